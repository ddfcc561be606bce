//! `call`: one tool, once.

use std::sync::Arc;
use std::time::Duration;

use toolwright::core::approval::NoApprover;
use toolwright::core::{CallId, Cancel, Outcome, Profile, ToolCall};
use toolwright::runtime::RunContext;

use super::args::{Call, Global};
use super::exit::{Done, Exit, Failure};
use super::screen::{BAD, harmless, print_json, print_text, say, styled};
use super::signals::{First, watch};
use super::{arguments, config, open};

/// How long the provider of the tool may take to answer with its list.
const LIST_WAIT: Duration = Duration::from_secs(60);

pub(crate) async fn command(global: &Global, call: &Call) -> Done {
    let house = open(global, config::usable(global)?).await?;
    let cancel = Cancel::new();
    watch(cancel.clone(), First::Cancels);
    tokio::select! {
        () = house.list_for(&call.tool, LIST_WAIT) => {}
        _ = cancel.cancelled() => return Ok(Exit::Cancelled),
    }
    let snapshot = house.catalogue().snapshot();
    let arguments = arguments::parse(&call.arguments, &call.tool, &snapshot)?;
    let settings = house.config();
    let run = RunContext {
        session: house.session(format!("call-{}", uuid::Uuid::new_v4())),
        cancel,
        policy: Arc::new(settings.policy(Some(Profile::Owner), Profile::Owner)),
        approver: Arc::new(NoApprover { remedy: "nobody is there to approve it".into() }),
        partials: None,
        timeout: call.timeout,
        traceparent: None,
        journal: None,
    };
    let written = ToolCall { id: CallId::new("call"), name: call.tool.clone(), arguments };
    let outcome = house.executor().run_calls(vec![written], &snapshot, &run).await.pop();
    let outcome = outcome.ok_or_else(|| Failure::failed("the executor gave no outcome"))?;
    house.shut_down().await;
    if global.json {
        print_json(&outcome.to_json())?;
    } else {
        print_outcome(&outcome)?;
    }
    Ok(outcome.error.as_ref().map_or(Exit::Ok, |error| error.kind().into()))
}

fn print_outcome(outcome: &Outcome) -> std::io::Result<()> {
    let text = outcome.model_text();
    let Some(error) = &outcome.error else {
        return print_text(&text);
    };
    // Where the tool itself had something to say, that is its output; else there is only the error.
    if text != error.for_model() {
        print_text(&text)?;
    }
    say(format_args!("{} {}", styled(BAD, format_args!("{}:", error.kind())), harmless(error.message())));
    Ok(())
}
