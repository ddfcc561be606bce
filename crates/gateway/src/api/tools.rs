//! Tools: list, show, search, and call through the executor like `toolwright call --json`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::cancel::{Cancel, CancelCause, CancelOnDrop};
use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::client::NoClient;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::name_table::Resolution;
use toolwright_core::operation::{CallOrigin, Lineage, TraceId};
use toolwright_core::outcome::Outcome;
use toolwright_core::output::ResultAudience;
use toolwright_core::session::CallId;
use toolwright_runtime::RunContext;
use toolwright_search::{SearchFilter, SearchHit, search_or_similar};

use super::{Api, ApiResult, JsonBody, PathParam, QueryParams, span};
use crate::http::{ApiError, respond};
use crate::view::Scope;

/// The default and largest number of hits.
const HITS: usize = 20;
const MAX_HITS: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    namespace: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Search {
    query: String,
    limit: Option<usize>,
    namespace: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
}

impl Api {
    /// Returns the catalogue as far as the caller's role allows.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        let whole = self.gateway.options.catalogue.snapshot();
        let limited = |entry: &Entry| !self.principal.may_use(&entry.definition().allowed_roles);
        if whole.list().iter().any(|entry| limited(entry)) {
            Arc::new(whole.only(|entry| !limited(entry), "not open to your role"))
        } else {
            whole
        }
    }

    /// Returns the same after waiting for first lists.
    async fn listed(&self) -> Arc<Snapshot> {
        self.gateway.await_first_lists(&Scope::Whole).await;
        self.snapshot()
    }

    /// Returns the same for a caller that names one tool. Waits for first lists only if the tool is unknown.
    pub(super) async fn snapshot_for(&self, written: &str) -> Arc<Snapshot> {
        let snapshot = self.snapshot();
        match snapshot.resolve(written) {
            Resolution::Found(..) => snapshot,
            Resolution::Unknown(_) => self.listed().await,
        }
    }

    /// Returns the tool that a caller names.
    pub(super) async fn tool(&self, written: &str) -> Result<Arc<Entry>, ApiError> {
        let snapshot = self.snapshot_for(written).await;
        let near = match snapshot.resolve(written) {
            Resolution::Found(index, _) if let Some(entry) = snapshot.list().get(index) => {
                return Ok(Arc::clone(entry));
            }
            Resolution::Found(..) => Vec::new(),
            Resolution::Unknown(near) => near,
        };
        Err(ApiError::unknown_tool(snapshot.unknown_message(written, &near)))
    }
}

/// Handles `GET /api/tools`.
pub(super) async fn list(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Filter>) -> ApiResult {
    let filter = SearchFilter { namespace: asked.namespace, prefix: asked.prefix, tag: asked.tag };
    let snapshot = api.listed().await;
    let listed = snapshot.list().iter().filter(|entry| filter.passes(entry));
    api.ok(&listed.map(|entry| entry.to_json()).collect())
}

/// Handles `GET /api/tools/{id}`.
pub(super) async fn show(State(api): State<Arc<Api>>, PathParam(written): PathParam) -> ApiResult {
    api.ok(&api.tool(&written).await?.to_whole_json())
}

/// Handles `GET /api/search`.
pub(super) async fn search(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Search>) -> ApiResult {
    let limit = asked.limit.unwrap_or(HITS);
    if !(1..=MAX_HITS).contains(&limit) {
        return Err(ApiError::bad_request(format!("`limit` is from 1 to {MAX_HITS}")));
    }
    let filter = SearchFilter { namespace: asked.namespace, prefix: asked.prefix, tag: asked.tag };
    let snapshot = api.listed().await;
    let hits = search_or_similar(&snapshot, &asked.query, limit, &filter);
    api.ok(&hits.iter().map(SearchHit::to_json).collect::<Value>())
}

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

/// Handles `POST /api/call`.
pub(super) async fn call(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    JsonBody(asked): JsonBody<Call>,
) -> ApiResult {
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
    let written = ToolCall::new(id.clone(), asked.tool, arguments);
    let traceparent = headers.get("traceparent").and_then(|value| value.to_str().ok());
    let cancel = Cancel::new();
    let cancel_on_drop = CancelOnDrop::new(&cancel);
    let options = &api.gateway.options;
    let session = api.session();
    let client = api.gateway.with_fallback(Arc::new(NoClient), &session, None, |otherwise| otherwise);
    let new_trace = || Lineage::in_trace(TraceId::new(number.as_u128()));
    let lineage = traceparent.and_then(Lineage::of_traceparent).unwrap_or_else(new_trace);
    let (approver, snapshot) = (Arc::clone(&options.approver), api.snapshot_for(&written.name).await);
    let run = RunContext {
        origin: CallOrigin::Gateway,
        results_for: ResultAudience::Client,
        cancel,
        client,
        timeout,
        background_after: asked.background.then_some(Duration::ZERO),
        ..RunContext::in_trace(lineage, session, Arc::clone(&snapshot), api.gateway.policy(), approver)
    };
    let executor = Arc::clone(&options.executor);
    // Runs in its own task, so that a shutdown waits for it even if the client has disconnected.
    let running = api.gateway.running.spawn(async move {
        let _permit = permit;
        executor.run_calls(vec![written], &run).await.pop()
    });
    let ended = running.await;
    cancel_on_drop.disarm();
    let outcome = match ended {
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

/// Returns the HTTP status: 200, because a failed call is a result; 503 if the same request may be sent again later,
/// because a queue was full or the server is ending. A call that the shutdown may have interrupted gets 503 only if its
/// tool is repeatable.
fn status(outcome: &Outcome, snapshot: &Snapshot) -> StatusCode {
    let Some(error) = &outcome.error else { return StatusCode::OK };
    let entry = || outcome.tool.as_ref().and_then(|tool| snapshot.get(tool.as_str()));
    let full = error.kind() == ErrorKind::LimitExceeded && error.is_retryable();
    let ending = error.cancel_cause() == Some(CancelCause::Shutdown)
        && (error.is_retryable() || entry().is_some_and(|entry| entry.is_repeatable()));
    if full || ending { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}
