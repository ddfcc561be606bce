//! `POST /api/call`: one tool, once, through the executor, answered as `toolwright call --json` prints it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Snapshot;
use toolwright_core::client::NoClient;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::operation::{Lineage, Origin, TraceId};
use toolwright_core::outcome::Outcome;
use toolwright_core::output::ResultsFor;
use toolwright_core::session::CallId;
use toolwright_runtime::RunContext;

use super::{Answer, Api, Json, span};
use crate::http::{ApiError, respond};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    tool: String,
    #[serde(default = "no_arguments")]
    arguments: Value,
    timeout: Option<String>,
    #[serde(default)]
    background: bool,
}

fn no_arguments() -> Value {
    Map::new().into()
}

/// Cancels a call whose client is gone. Of no effect once it has ended.
struct Wanted(Cancel);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.cancel(CancelCause::CallerGone);
    }
}

pub(super) async fn call(State(api): State<Arc<Api>>, headers: HeaderMap, Json(asked): Json<Call>) -> Answer {
    let timeout = span("timeout", asked.timeout.as_deref())?;
    if api.gateway.is_draining() {
        return Err(ApiError::shutting_down());
    }
    let permit = Arc::clone(&api.gateway.call_permits).try_acquire_owned().map_err(|_| {
        let limit = api.gateway.options.max_calls;
        ApiError::busy(format!("{limit} calls are running, which is the limit; try again"))
    })?;
    let number = uuid::Uuid::new_v4();
    let id = CallId::new(format!("call_{}", number.simple()));
    let arguments = match asked.arguments {
        Value::String(text) => RawArguments::Text(text),
        value => RawArguments::Value(value),
    };
    let written = ToolCall { id: id.clone(), name: asked.tool, arguments };
    let traceparent = headers.get("traceparent").and_then(|value| value.to_str().ok());
    let wanted = Wanted(Cancel::new());
    let options = &api.gateway.options;
    let session = api.session();
    let client = api.gateway.with_fallback(Arc::new(NoClient), &session, None, |otherwise| otherwise);
    let own_trace = || Lineage::in_trace(TraceId::new(number.as_u128()));
    let lineage = traceparent.and_then(Lineage::of_traceparent).unwrap_or_else(own_trace);
    let (approver, snapshot) = (Arc::clone(&options.approver), api.snapshot_for(&written.name).await);
    let run = RunContext {
        origin: Origin::Gateway,
        results_for: ResultsFor::Client,
        cancel: wanted.0.clone(),
        client,
        timeout,
        background_after: asked.background.then_some(Duration::ZERO),
        ..RunContext::under(lineage, session, Arc::clone(&snapshot), api.gateway.policy(), approver)
    };
    let executor = Arc::clone(&options.executor);
    // On a task of its own, so that a shutdown waits for its end even where nobody else does.
    let running = api.gateway.running.spawn(async move {
        let _permit = permit;
        executor.run_calls(vec![written], &run).await.pop()
    });
    let outcome = match running.await {
        Ok(Some(outcome)) => outcome,
        Ok(None) => Outcome::failed(id, ToolError::new(ErrorKind::InternalError, "the executor gave no outcome")),
        Err(error) => {
            tracing::error!("a call ended without a result: {error}");
            return Err(ApiError::internal("the call ended without a result; the server's log says why"));
        }
    };
    Ok(respond(
        status(&outcome, &snapshot),
        &api.gateway.options.executor.services().redactor.redact_result(&outcome.to_json()),
    ))
}

/// That a call failed is its result, and the answer a good one, unless the same request had better come later: a
/// queue was full, or the server is ending. A call that the end may have caught underway is not to be made again by a
/// client that knows no more than the status, unless its tool may be repeated.
fn status(outcome: &Outcome, snapshot: &Snapshot) -> StatusCode {
    let Some(error) = &outcome.error else { return StatusCode::OK };
    let entry = || outcome.tool.as_ref().and_then(|tool| snapshot.get(tool.as_str()));
    let full = error.kind() == ErrorKind::LimitExceeded && error.is_retryable();
    let ending = error.cancel_cause() == Some(CancelCause::Shutdown)
        && (error.is_retryable() || entry().is_some_and(|entry| entry.is_repeatable()));
    if full || ending { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}
