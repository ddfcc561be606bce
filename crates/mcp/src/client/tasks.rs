//! Follows tasks of a server: polls a call that continues after its first answer until it has ended. So a task ends
//! with the call that made it, and the caller sees a result.
//!
//! Up to 2025-11-25 a tool declares that it supports tasks and the request asks for one; the result is fetched with
//! `tasks/result`. From 2026-07-28 on (extension `io.modelcontextprotocol/tasks`) a server may turn any call into a
//! task; `tasks/get` returns its questions and its result, `tasks/update` sends the answers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Partial;

use super::connection::handshake::{ServerInfo, modern_meta};
use super::connection::inbox::Caller;
use super::connection::peer::{AskError, Params, Request};
use super::connection::{Connection, HeldRequest};
use super::exchange::{Exchange, RequestLabel, refusal, tool_error, transport};
use super::reply::Reply;
use crate::protocol::message::RpcError;
use crate::protocol::revision::Era;
use crate::transport::is_reply_failure;

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// Default poll interval of a task, and the bounds of the server's choice.
const POLL: Duration = Duration::from_secs(1);
const POLL_BOUNDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(30));
/// Bound on answers to one task request that show no knowledge of the task.
const MAX_UNRELATED_ANSWERS: u32 = 8;
/// Time limit for cancelling a task at the server.
const CANCEL_BOUND: Duration = Duration::from_secs(5);

/// Whether a request of this method may tell the server that tasks are supported.
pub(crate) fn are_offered(server: &ServerInfo, method: &str) -> bool {
    server.extends(EXTENSION) && (method == "tools/call" || method.starts_with("tasks/"))
}

/// Adds tasks to a request's capabilities.
pub(crate) fn announce(capabilities: &mut Map<String, Value>) {
    if let Value::Object(extensions) = capabilities.entry("extensions").or_insert_with(|| json!({})) {
        extensions.insert(EXTENSION.to_owned(), json!({}));
    }
}

/// Whether calls can be requested as tasks (up to 2025-11-25).
pub(crate) fn can_be_asked_for(server: &ServerInfo) -> bool {
    server.era == Era::Legacy && server.offers("tasks.requests.tools.call")
}

/// Whether a result is a task.
pub(crate) fn is_task(server: &ServerInfo, result: &impl Reply) -> bool {
    match server.era {
        Era::Legacy => !result.has_content() && result.field("task").is_some_and(|task| task.get("taskId").is_some()),
        Era::Modern => server.extends(EXTENSION) && result.field("resultType").and_then(Value::as_str) == Some("task"),
    }
}

/// Follows the task in `created` to its end; `params` are those of the request that made it. Dropping the
/// future cancels the task at the server.
///
/// # Errors
/// As [`Exchange::run`].
pub(crate) async fn finish(
    exchange: &Exchange<'_>,
    what: RequestLabel<'_>,
    created: Value,
    params: &Params<'_>,
) -> Result<Value, ToolError> {
    let mut task = match created {
        Value::Object(mut fields) if exchange.connection.server().era == Era::Legacy => {
            fields.shift_remove("task").unwrap_or_default()
        }
        other => other,
    };
    let Some(id) = task.get("taskId").and_then(Value::as_str).map(str::to_owned) else {
        return Err(transport(exchange.server, "it answers with a task that has no id"));
    };
    // The progress token of the request is also that of the task.
    let _progress: Option<HeldRequest> =
        params.meta.progress_token.map(|token| exchange.connection.hold(token, Caller::from(exchange.context)));
    let mut unfinished = UnfinishedTask { connection: exchange.connection, id: &id, is_open: true };
    let mut answered = HashSet::new();
    let mut last = Value::Null;
    let mut reports = 0_u32;
    loop {
        let status = task.get("status").and_then(Value::as_str).unwrap_or_default().to_owned();
        let now = json!([status, task.get("statusMessage"), task.get("lastUpdatedAt")]);
        if now != last {
            last = now;
            reports += 1;
            let message = task.get("statusMessage").and_then(Value::as_str).map(str::to_owned);
            let partial = Partial::Progress { progress: reports.into(), total: None, message, more: Map::new() };
            exchange.context.partials.send(partial);
        }
        let is_legacy = exchange.connection.server().era == Era::Legacy;
        match status.as_str() {
            "working" | "submitted" => {}
            "cancelled" => {
                unfinished.is_open = false;
                let text = format!("MCP server {} cancelled the task that it had made of {what}", exchange.server);
                return Err(ToolError::new(ErrorKind::ExecutionError, text));
            }
            // It answers when the task has ended, and may ask before that.
            "completed" | "failed" | "input_required" if is_legacy => {
                let result = poll_task(exchange, "tasks/result", what, &id, pause(&task)).await;
                unfinished.is_open = false;
                return result;
            }
            "completed" => {
                unfinished.is_open = false;
                return match task.get_mut("result").map(Value::take) {
                    Some(result @ Value::Object(_)) => Ok(result),
                    _ => Err(transport(exchange.server, "it answers with a task that has ended without a result")),
                };
            }
            "failed" => {
                unfinished.is_open = false;
                let error = task.get_mut("error").map(Value::take).unwrap_or_default();
                let error = serde_json::from_value::<RpcError>(error)
                    .unwrap_or_else(|_| RpcError::new(RpcError::INTERNAL, "the task failed without a reason"));
                return Err(refusal(exchange.server, what, error));
            }
            "input_required" => {
                if let Some(Value::Object(mut requests)) = task.get_mut("inputRequests").map(Value::take) {
                    requests.retain(|key, _| !answered.contains(key));
                    if !requests.is_empty() {
                        answered.extend(requests.keys().cloned());
                        let responses = exchange.answers(requests).await?;
                        let mut params = params_of(exchange, "tasks/update", &id);
                        params.others.insert("inputResponses".to_owned(), responses.into());
                        deliver(exchange, what, &id, params, pause(&task)).await?;
                    }
                }
            }
            other => {
                let reason = format!("its task has the state `{other}`, which is not known here");
                return Err(transport(exchange.server, &reason));
            }
        }
        tokio::time::sleep(pause(&task)).await;
        task = poll_task(exchange, "tasks/get", what, &id, pause(&task)).await?;
    }
}

/// Polls the task, with growing pauses until the server has answered: polling twice is harmless,
/// and the task continues meanwhile. The call's own limit and cancellation bound this while the server is away, and
/// [`MAX_UNRELATED_ANSWERS`] if another server has replaced it.
///
/// # Errors
/// The server refuses, the connection of the task has ended, or a retry would not help.
async fn poll_task(
    exchange: &Exchange<'_>,
    method: &str,
    what: RequestLabel<'_>,
    id: &str,
    pause: Duration,
) -> Result<Value, ToolError> {
    let mut tries = PollState::new(pause);
    loop {
        let mut params = params_of(exchange, method, id);
        match exchange.attempt(method, Some(id), Vec::new(), &mut params).await {
            Ok(result) => return Ok(result),
            Err(error) => wait_before_retry(exchange, (method, what), error, &mut tries).await?,
        }
    }
}

/// Sends answers to a task's questions, retried as in [`poll_task`]: a server ignores repeated answers ("Task Input
/// Requests" of the extension).
///
/// # Errors
/// As [`poll_task`].
async fn deliver(
    exchange: &Exchange<'_>,
    what: RequestLabel<'_>,
    id: &str,
    params: Params<'_>,
    pause: Duration,
) -> Result<(), ToolError> {
    let mut tries = PollState::new(pause);
    let mut may_have_arrived = false;
    loop {
        match exchange.attempt::<IgnoredAny>("tasks/update", Some(id), Vec::new(), &mut params.clone()).await {
            Ok(_) => return Ok(()),
            // They may have arrived the first time, and the task may have ended: the next poll shows that.
            Err(AskError::Rpc(_)) if may_have_arrived => return Ok(()),
            Err(error) => {
                may_have_arrived |= matches!(error, AskError::Broken(_) | AskError::Fault(_));
                wait_before_retry(exchange, ("tasks/update", what), error, &mut tries).await?;
            }
        }
    }
}

/// Waits before a task's request is repeated.
///
/// # Errors
/// A retry would not help.
async fn wait_before_retry(
    exchange: &Exchange<'_>,
    (method, what): (&str, RequestLabel<'_>),
    error: AskError,
    tries: &mut PollState,
) -> Result<(), ToolError> {
    let connection = exchange.connection;
    let is_forgotten = connection.is_expired() && connection.server().era == Era::Legacy;
    // On a pipe nothing can be sent after its process has closed its input.
    let is_write_closed = connection.is_write_closed() && matches!(error, AskError::NotSent(_));
    if !tries.may_poll_again(&error) || connection.is_closed() || is_forgotten || is_write_closed {
        return Err(tool_error(exchange.server, what, error));
    }
    let pause = tries.pause;
    tracing::debug!(server = exchange.server, "{method} is sent again in {pause:?}: {error:?}");
    tokio::time::sleep(pause).await;
    tries.pause = (pause * 2).min(POLL_BOUNDS.1);
    Ok(())
}

/// The tries of one request of a task.
#[derive(Debug)]
struct PollState {
    /// The pause before the next attempt.
    pause: Duration,
    /// Number of answers that show no knowledge of the task.
    strange: u32,
}

impl PollState {
    fn new(pause: Duration) -> Self {
        Self { pause, strange: 0 }
    }

    /// Counts such an answer. Returns whether more are allowed.
    fn count(&mut self) -> bool {
        self.strange += 1;
        self.strange < MAX_UNRELATED_ANSWERS
    }

    /// Whether a retry may succeed after this error.
    fn may_poll_again(&mut self, error: &AskError) -> bool {
        match error {
            AskError::Rpc(_) | AskError::Final(_) | AskError::Ended(_) => false,
            // A retry would give the same oversized answer.
            AskError::Broken(reason) if is_reply_failure(reason) => false,
            // Without a session, another server behind the address may know the task; if none does,
            // a server without tasks has replaced it.
            AskError::Broken(_) | AskError::Expired => self.count(),
            // It is away for a while.
            AskError::NotSent(_) | AskError::Fault(_) | AskError::Full => true,
        }
    }
}

fn params_of<'a>(exchange: &Exchange<'a>, method: &str, id: &str) -> Params<'a> {
    Params::from(Map::from_iter([("taskId".to_owned(), id.into())])).with(exchange.meta(method, None))
}

/// Returns the pause before the next poll of the task.
fn pause(task: &Value) -> Duration {
    let interval_ms = task.get("pollIntervalMs").or_else(|| task.get("pollInterval")).and_then(Value::as_u64);
    interval_ms.map_or(POLL, Duration::from_millis).clamp(POLL_BOUNDS.0, POLL_BOUNDS.1)
}

/// A task that has not ended: dropped, it is cancelled at the server.
struct UnfinishedTask<'a> {
    connection: &'a Arc<Connection>,
    id: &'a str,
    is_open: bool,
}

impl Drop for UnfinishedTask<'_> {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.is_open || self.connection.is_closed() {
            return;
        }
        let (connection, id) = (Arc::clone(self.connection), self.id.to_owned());
        runtime.spawn(async move {
            let mut params = Params::from(Map::from_iter([("taskId".to_owned(), id.as_str().into())]));
            if connection.server().era == Era::Modern {
                let mut capabilities = Map::new();
                announce(&mut capabilities);
                params.meta.others = modern_meta(capabilities);
            }
            let request = Request { name: Some(&id), ..Request::internal("tasks/cancel") };
            // A server that ignores this runs the task to its end.
            let _ = tokio::time::timeout(CANCEL_BOUND, connection.ask::<IgnoredAny>(request, &mut params)).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::TOO_LARGE;

    #[test]
    fn poll_intervals_are_bounded() {
        for (task, expect) in [
            (json!({}), 1000),
            (json!({"pollInterval": 200}), 200),
            (json!({"pollIntervalMs": 0}), 20),
            (json!({"pollIntervalMs": 86_400_000}), 30_000),
            (json!({"pollIntervalMs": "x"}), 1000),
        ] {
            assert_eq!(pause(&task), Duration::from_millis(expect), "{task}");
        }
    }
    #[test]
    fn absent_servers_are_awaited_unknown_tasks_fail() {
        let mut tries = PollState::new(POLL);
        let expired = (1..MAX_UNRELATED_ANSWERS).all(|_| tries.may_poll_again(&AskError::Expired));
        let away = (0..1000).all(|_| tries.may_poll_again(&AskError::Fault("HTTP 503".to_owned())));
        let refused = (0..1000).all(|_| tries.may_poll_again(&AskError::NotSent("cannot connect".to_owned())));
        assert!(expired && away && refused);
        assert!(!tries.may_poll_again(&AskError::Broken("HTTP 404".to_owned())));
        assert!(!PollState::new(POLL).may_poll_again(&AskError::Broken(format!("{TOO_LARGE} (7)"))));
    }
}
