//! `chat`: the loop of `run`, message after message.

use std::sync::Arc;
use std::time::Duration;

use toolwright::agent::RunState;
use toolwright::core::model::Message;
use toolwright::core::{Cancel, ContentBlock};

use super::account::{Account, Shown, Text};
use super::agent::{Desk, driver, model, options, profile, spec};
use super::args::{Chat, Global};
use super::exit::{Done, Exit, Failure};
use super::run::summary;
use super::screen::{BOLD, DIM, harmless, is_interactive, print_json, print_text, say, styled};
use super::{config, open, say_failures};

/// How long the first message waits for the lists of providers.
const LIST_WAIT: Duration = Duration::from_secs(15);

pub(crate) async fn command(global: &Global, chat: &Chat) -> Done {
    let house = open(global, config::usable(global)?).await?;
    let profile = profile(&chat.agent, &house)?;
    let model = model(&chat.agent, &house).await?;
    house.list_all(LIST_WAIT).await;
    say_failures(&house);
    let id = format!("chat-{}", uuid::Uuid::new_v4());
    let desk = Desk::new();
    let driver = driver(&house);
    let mut run_options = options(&chat.agent, &house, &desk, &id, profile, Cancel::new())?;
    let spec = spec(&chat.agent, model, &driver, &run_options);
    if is_interactive() {
        say(styled(DIM, format_args!("{}; Ctrl-C stops an answer, Ctrl-D or /exit ends", spec.model)));
    }
    let mut state: Option<RunState> = None;
    let prompt = if is_interactive() { styled(BOLD, "> ") } else { String::new() };
    loop {
        let line = tokio::select! {
            line = desk.console.ask(&prompt) => line,
            _ = tokio::signal::ctrl_c() => None,
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
        let stop = tokio::spawn(stop_on_ctrl_c(run_options.cancel.clone()));
        let report = driver.run(state, &run_options).await;
        stop.abort();
        let shown = account.end().await;
        let report = report.map_err(Failure::failed)?;
        if global.json {
            print_json(&report.to_json())?;
        } else {
            if text == Text::Held || shown == Shown::Gaps || report.reason.is_some() {
                print_text(&harmless(&report.answer))?;
            }
            summary(&report);
        }
    }
    house.shut_down().await;
    Ok(Exit::Ok)
}

async fn stop_on_ctrl_c(cancel: Cancel) {
    if tokio::signal::ctrl_c().await.is_ok() {
        cancel.cancel(toolwright::core::CancelCause::User);
    }
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(i32::from(Exit::Cancelled.code()));
    }
}
