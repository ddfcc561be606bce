//! `chat`: the loop of `run`, message after message.

use std::sync::Arc;

use toolwright::agent::{Dispatch, RunState};
use toolwright::core::model::Message;
use toolwright::core::{Cancel, CancelCause, ContentBlock};

use super::account::{Account, Shown, Text};
use super::agent::{Desk, agent_tools, dispatch, driver, model, options, profile, spec};
use super::args::{Chat, Global};
use super::exit::{Done, Exit, Failure};
use super::lists::{Wanted, wait_for};
use super::run::{LIST_WAIT, exit, summary, with_id};
use super::screen::{BOLD, DIM, is_interactive, print_json, print_text, prose, say, styled};
use super::signals::{First, background_on_quit, next_signal, watch};
use super::{config, open, record};

pub(crate) async fn command(global: &Global, chat: &Chat) -> Done {
    let house = open(global, config::usable(global)?).await?;
    record(&house, &chat.agent.record)?;
    house.offer_llm_tools().await;
    let profile = profile(&chat.agent, &house)?;
    let model = model(&chat.agent, &house).await?;
    wait_for(&house, Wanted::Unknown, LIST_WAIT).await;
    let id = format!("chat-{}", uuid::Uuid::new_v4());
    let desk = Desk::new(&house);
    let driver = driver(&house);
    let mut run_options = options(&chat.agent, &house, &desk, &id, profile, Cancel::new())?;
    house.follow_pins();
    house.recover_jobs_of(run_options.session.id.clone());
    let dispatch = dispatch(&chat.agent, &house);
    if dispatch == Dispatch::Manual {
        return Err(Failure::usage(
            "a chat has no way to let calls run one turn at a time: use --dispatch turn-end or streaming, and --policy ask to be asked",
        ));
    }
    let spec = spec(&chat.agent, agent_tools(&house, None), model, dispatch, &house, &driver, &run_options);
    background_on_quit(&house, &run_options.session.id);
    if is_interactive() {
        say(styled(
            DIM,
            format_args!(
                "{}; Ctrl-C stops an answer, Ctrl-\\ lets running calls go on in the background, Ctrl-D or /exit ends",
                spec.model
            ),
        ));
    }
    let mut state: Option<RunState> = None;
    let mut status = Exit::Ok;
    let prompt = if is_interactive() { styled(BOLD, "> ") } else { String::new() };
    loop {
        let line = tokio::select! {
            line = desk.console.ask(&prompt) => line,
            _ = next_signal() => None,
        };
        let Some(line) = line else { break };
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => break,
            _ => {}
        }
        match &mut state {
            None => state = Some(RunState::new(spec.clone(), vec![Message::user(line)])),
            Some(state) => state.continue_with(vec![ContentBlock::text(line)]).map_err(Failure::failed)?,
        }
        let Some(state) = &mut state else { break };
        run_options.cancel = Cancel::new();
        let text = Text::for_output(global.json);
        let account = Account::begin(house.events().subscribe(), text, Arc::clone(&desk.screen));
        let signals = watch(run_options.cancel.clone(), First::Cancels);
        let report = driver.run(state, &run_options).await;
        signals.abort();
        let shown = account.end().await;
        let report = report.map_err(Failure::failed)?;
        if global.json {
            print_json(&with_id(&report, &id))?;
        } else {
            if report.is_delivered() || text == Text::Held || shown == Shown::Gaps || report.reason.is_some() {
                print_text(&prose(&report.answer))?;
            }
            summary(&report);
        }
        status = exit(report.status);
        if run_options.cancel.cause() == Some(CancelCause::Shutdown) {
            break;
        }
    }
    house.shut_down().await;
    Ok(status)
}
