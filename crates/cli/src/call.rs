//! `call`: one tool, once.

use std::sync::Arc;
use std::time::Duration;

use toolwright::House;
use toolwright::core::catalogue::Snapshot;
use toolwright::core::client::CallClient;
use toolwright::core::error::labelled;
use toolwright::core::llm::llm_definition;
use toolwright::core::names::Resolution;
use toolwright::core::{CallId, Cancel, Outcome, Profile, ToolCall};
use toolwright::house::{CallTerms, CallTimes};
use toolwright::models::default_model;
use toolwright::runtime::executor::LlmTerms;

use super::account::Account;
use super::agent::{Desk, can_answer, can_be_asked, who};
use super::args::{Call, Global};
use super::config::variable;
use super::exit::{Done, Exit, Failure};
use super::lists::{Wanted, patiently, say_starting, starting_for};
use super::names::AskName;
use super::screen::{WARN, harmless, print_result_json, print_result_text, say, say_error, styled};
use super::signals::{First, watch};
use super::{arguments, config, open, record};

/// How long the provider of the tool may take to answer with its list.
pub(crate) const LIST_WAIT: Duration = Duration::from_secs(60);
/// Characters by which a message is known again.
const TELLING: usize = 80;

pub(crate) async fn command(global: &Global, call: &Call) -> Done {
    can_be_asked(who(call.ask))?;
    let house = open(global, config::usable(global)?).await?;
    record(&house, &call.record)?;
    house.offer_llm_tools().await;
    let cancel = Cancel::new();
    watch(cancel.clone(), First::Cancels);
    let waits_for = || starting_for(&house, Wanted::Fresh, &call.tool);
    tokio::select! {
        () = patiently(waits_for, house.list_for(&call.tool, LIST_WAIT)) => {}
        _ = cancel.cancelled() => return Err(Failure::cancelled()),
    }
    let snapshot = house.catalogue().snapshot();
    if matches!(snapshot.resolve(&call.tool), Resolution::Unknown(_)) {
        say_starting(&house, &call.tool);
    }
    let arguments = arguments::parse(&call.arguments, &call.tool, &snapshot)?;
    let written = ToolCall { id: CallId::new("call"), name: call.tool.clone(), arguments };
    let background_after = call.background.then_some(Duration::ZERO);
    let times = CallTimes { limit: call.timeout, background_after };
    let llm = llm_terms(call, &house, &snapshot).await?;
    let desk = Desk::new(&house);
    let client = client(&desk, &house, who(call.ask));
    let account = Account::of_call(house.events().subscribe(), desk.screen);
    // A person and a program get all of it: nobody's window is filled. The result of a job is kept, and read by others.
    let whole = house.config().written.defaults.whole_result_max_bytes;
    let max_output = call.max_output.or((!call.background).then_some(whole));
    let terms = CallTerms { profile: Profile::Owner, cancel: cancel.clone(), times, max_output, client, llm };
    let outcome = house.call_on(written, terms).await;
    account.end().await;
    let printed = if global.json { print_result_json(&outcome.to_json()) } else { print_outcome(&outcome) };
    // What went on as a job goes on here: there is no other process to do it.
    tokio::select! {
        () = house.jobs().all_ended() => {}
        _ = cancel.cancelled() => {}
    }
    house.shut_down().await;
    printed?;
    Ok(outcome.error.as_ref().map_or(Exit::Ok, |error| error.kind().into()))
}

/// The model and the mode that were asked for. A tool for which nothing says a model, neither benchmarks nor its author
/// nor the configuration, has one that the environment offers.
async fn llm_terms(call: &Call, house: &House, snapshot: &Snapshot) -> Result<LlmTerms, Failure> {
    let given = LlmTerms {
        model: call.model.as_deref().map(Arc::from),
        mode: call.mode.as_deref().map(Arc::from),
        effort: call.effort,
        ..LlmTerms::default()
    };
    // A name that means nothing is the executor's to refuse.
    let Resolution::Found(index, _) = snapshot.resolve(&call.tool) else { return Ok(given) };
    let Some(entry) = snapshot.list().get(index) else { return Ok(given) };
    let definition = llm_definition(entry);
    let preference = entry.definition().model_preference.as_ref();
    if definition.is_none() && preference.is_none() && given != LlmTerms::default() {
        let why = format!("{} asks no model: --model, --mode and --effort are for tools that do", entry.id());
        return Err(Failure::usage(why));
    }
    if let Some(mode) = &given.mode {
        let modes = definition.as_ref().map(|definition| definition.modes()).unwrap_or_default();
        if !modes.contains(&&**mode) {
            let has = if modes.is_empty() { "none".to_owned() } else { modes.join(", ") };
            return Err(Failure::usage(format!("{} has no mode `{mode}`; its modes: {has}", entry.id())));
        }
    }
    if let Some(model) = &given.model {
        can_answer(house, model).await.map_err(Failure::usage)?;
        return Ok(given);
    }
    if definition.is_none() || house.names_model_for(entry) {
        return Ok(given);
    }
    let found = default_model(&variable, house.models().http()).await.map_err(Failure::usage)?;
    Ok(LlmTerms { default: Some(found.into()), ..given })
}

/// Whom the tool's source may ask back. That the owner calls the tool is no word for what its source asks of a model.
fn client(desk: &Desk, house: &House, ask: AskName) -> Arc<dyn CallClient> {
    let remedy = || {
        "there is no terminal to ask at: run it in one or with --ask inbox, or allow client:sample by a rule under \
         policy.rules"
            .to_owned()
    };
    let approver = desk.approver(ask, house, remedy);
    let policy = Arc::new(house.config().policy(None, Profile::Ask));
    desk.client(house, &house.call_session(), policy, approver, (ask, None))
}

fn print_outcome(outcome: &Outcome) -> std::io::Result<()> {
    let text = outcome.model_text();
    if outcome.is_truncated() {
        say(styled(
            WARN,
            "the result was cut: --max-output BYTES, or defaults.whole_result_max_bytes, lets more through",
        ));
    }
    let Some(error) = &outcome.error else {
        return print_result_text(&text);
    };
    // Where the tool itself had something to say, that is its output; else there is only the error.
    let spoke = text != error.for_model();
    if spoke {
        print_result_text(&text)?;
    }
    if spoke && repeats(&text, error.message()) {
        say_error(error.kind().as_str());
    } else {
        say_error(&harmless(&labelled(error.kind().as_str(), error.message())));
    }
    Ok(())
}

/// Whether the message says what the output has said. A long one is cut in the middle, so its beginning
/// decides.
fn repeats(output: &str, message: &str) -> bool {
    let end = message.char_indices().nth(TELLING).map_or(message.len(), |(at, _)| at);
    output.contains(&message[..end])
}
