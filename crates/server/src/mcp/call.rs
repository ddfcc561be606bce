//! `tools/call`: from the client's parameters through the executor to an MCP result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::task::JoinHandle;
use toolwright_core::approval::Approver;
use toolwright_core::call::ToolCall;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::PartialSink;
use toolwright_core::error::ErrorKind;
use toolwright_core::operation::{Lineage, Origin};
use toolwright_core::outcome::Outcome;
use toolwright_core::passthrough::RESULT_FIELDS;
use toolwright_core::select::SEARCH_ID;
use toolwright_core::session::{CallId, Session};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::PartialsFor;

use super::elicit::Elicitations;
use super::message::{Id, Params, RpcError, to_json};
use super::protocol::{Era, SERVER_INFO};
use super::view::View;
use crate::Gateway;

/// Whose requests these are.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) session: Arc<Session>,
    pub(crate) view: View,
    /// What the caller has running; a cancel is looked up here.
    pub(crate) running: Arc<Running>,
    /// What its client is asked.
    pub(crate) elicitations: Arc<Elicitations>,
}

/// Requests of one session that are running, by id.
#[derive(Debug, Default)]
pub(crate) struct Running {
    by_id: Mutex<HashMap<Id, Cancel>>,
}

impl Running {
    /// Notes a request; it is forgotten when the guard goes.
    ///
    /// # Errors
    /// When a request of that id is running.
    pub(crate) fn enter(self: &Arc<Self>, id: &Id, cancel: &Cancel) -> Result<Entered, RpcError> {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if by_id.contains_key(id) {
            return Err(RpcError::new(RpcError::INVALID_REQUEST, "a request with this id is still running"));
        }
        by_id.insert(id.clone(), cancel.clone());
        Ok(Entered { running: Arc::clone(self), id: id.clone() })
    }

    /// Cancels one request on the client's behalf; one that has ended is no error.
    pub(crate) fn cancel(&self, id: &Id) {
        if let Some(cancel) = self.by_id.lock().unwrap_or_else(PoisonError::into_inner).get(id) {
            cancel.cancel(CancelCause::User);
        }
    }

    /// Cancels all requests: the client is gone.
    pub(crate) fn cancel_all(&self) {
        for cancel in self.by_id.lock().unwrap_or_else(PoisonError::into_inner).values() {
            cancel.cancel(CancelCause::User);
        }
    }

    /// Whether nothing runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// A request noted in [`Running`].
pub(crate) struct Entered {
    running: Arc<Running>,
    id: Id,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.running.by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// A call in a task of its own, so that it ends in good order whatever becomes of the connection.
pub(crate) struct RunningCall {
    cancel: Cancel,
    era: Era,
    task: JoinHandle<Result<Vec<u8>, RpcError>>,
}

impl RunningCall {
    /// Waits for the result as JSON. Cancel-safe; not to be called again once it has returned.
    pub(crate) async fn finish(&mut self) -> Result<Vec<u8>, RpcError> {
        (&mut self.task).await.unwrap_or_else(|error| {
            tracing::error!("a call ended without a result: {error}");
            Err(RpcError::new(RpcError::INTERNAL, "the call ended without a result; the server's log says why"))
        })
    }

    /// Whether the client itself cancelled it, and so must not be answered.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.cancel.cause() == Some(CancelCause::User)
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        // Nobody waits any more. To a modern client closing the stream means cancel; an older one may
        // lose its connection without meaning it (2025-11-25, "Sending Messages to the Server").
        if self.era == Era::Modern {
            self.cancel.cancel(CancelCause::User);
        }
    }
}

impl Gateway {
    /// Starts a call.
    ///
    /// # Errors
    /// A JSON-RPC error for what is no tool failure: no name, no such tool in the view, too many calls,
    /// shutting down.
    pub(crate) fn start_call(
        self: &Arc<Self>,
        caller: &Caller,
        id: &Id,
        params: Params,
        era: Era,
        progress: Option<Arc<dyn PartialSink>>,
        approver: Arc<dyn Approver>,
    ) -> Result<RunningCall, RpcError> {
        let written = params.name.ok_or_else(|| RpcError::invalid_params("tools/call needs a `name`"))?;
        if self.is_draining() {
            return Err(RpcError::new(RpcError::BUSY, "the server is shutting down"));
        }
        let list = self.tools(&caller.view, &caller.session);
        let arguments = params.arguments.unwrap_or(Value::Null);
        let (name, arguments) =
            list.for_executor(&caller.view, &written, arguments).map_err(RpcError::invalid_params)?;
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| {
            let message = format!("{} calls are running, which is the limit; try again", self.options.max_calls);
            RpcError::new(RpcError::BUSY, message)
        })?;
        let cancel = Cancel::new();
        let entered = caller.running.enter(id, &cancel)?;
        let call = ToolCall { id: CallId::new(format!("call_{}", uuid::Uuid::new_v4().simple())), name, arguments };
        let traced = params.meta.traceparent.as_deref().and_then(Lineage::of_traceparent);
        let named = Arc::clone(&list);
        let run = RunContext {
            names: Some(Arc::new(move |entry| named.name_of(entry).map(str::to_owned))),
            lineage: traced.unwrap_or_else(|| Lineage::named(call.id.as_str())),
            origin: Origin::Gateway,
            cancel: cancel.clone(),
            partials: progress.map(|sink| -> PartialsFor { Arc::new(move |_: &CallId| Arc::clone(&sink)) }),
            ..RunContext::new(Arc::clone(&caller.session), Arc::clone(&list.snapshot), self.policy(), approver)
        };
        let gateway = Arc::clone(self);
        let task = self.running.spawn(async move {
            let _held = (slot, entered);
            let outcomes = gateway.options.executor.run_calls(vec![call], &run).await;
            if outcomes.iter().any(|outcome| list.grows_by(outcome)) {
                gateway.options.catalogue.nudge();
            }
            gateway.answer(outcomes, era)
        });
        Ok(RunningCall { cancel, era, task })
    }

    fn answer(&self, outcomes: Vec<Outcome>, era: Era) -> Result<Vec<u8>, RpcError> {
        let outcome = outcomes
            .into_iter()
            .next()
            .ok_or_else(|| RpcError::new(RpcError::INTERNAL, "the executor returned no outcome"))?;
        match protocol_error(&outcome) {
            Some(error) => Err(error),
            None => Ok(to_json(&CallResult::of(outcome, era, &self.options.info))),
        }
    }
}

/// The outcomes that are answered with a JSON-RPC error: an unknown tool (MCP, "Error Handling"), and
/// an upstream that needs a capability which only the client could have declared. An unknown name inside a call
/// is the model's to mend, who sees results but not errors.
fn protocol_error(outcome: &Outcome) -> Option<RpcError> {
    let error = outcome.error.as_ref()?;
    if error.kind() == ErrorKind::UnknownTool && !outcome.provenance.carried {
        return Some(RpcError::invalid_params(error.message().to_owned()));
    }
    let upstream = error.protocol().filter(|upstream| upstream.code == RpcError::MISSING_CAPABILITY)?;
    Some(RpcError {
        code: upstream.code,
        message: upstream.message.clone().into(),
        data: upstream.data.clone().map(Box::new),
    })
}

/// `CallToolResult` of the specification.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    content: Vec<ContentBlock>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_error: bool,
    #[serde(rename = "_meta", skip_serializing_if = "Map::is_empty")]
    meta: Map<String, Value>,
    /// Fields of the source's own result that have no place here.
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl CallResult {
    fn of(mut outcome: Outcome, era: Era, info: &crate::ServerInfo) -> Self {
        let mut meta = outcome.meta;
        if let Some(note) = outcome.extras.remove("tool_output") {
            meta.insert("tool_output".into(), note);
        }
        if era == Era::Modern {
            // The response is ours, whoever made the result.
            meta.insert(SERVER_INFO.into(), serde_json::to_value(info).unwrap_or_default());
        }
        let more = match outcome.extras.remove(RESULT_FIELDS) {
            Some(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        // The names of what was found, for programs; clients may show their model nothing else.
        let structured = outcome.structured.filter(|_| outcome.tool.is_none_or(|id| id.as_str() != SEARCH_ID));
        Self {
            result_type: (era == Era::Modern).then_some("complete"),
            content: outcome.content,
            structured_content: structured,
            is_error: !outcome.ok,
            meta,
            more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolwright_core::error::{ProtocolError, ToolError};

    fn outcome(error: ToolError) -> Outcome {
        Outcome::failed(CallId::new("c"), error)
    }

    fn info() -> crate::ServerInfo {
        crate::ServerInfo { name: "s".into(), title: None, version: "1".into() }
    }

    #[test]
    fn what_only_the_client_can_mend_is_a_protocol_error() {
        let failed = |code| {
            let protocol = ProtocolError { code, message: "m".into(), data: Some(json!({"a": 1})) };
            outcome(ToolError::new(ErrorKind::ExecutionError, "x").with_protocol(protocol))
        };
        let error = protocol_error(&failed(-32021)).expect("passed on");
        assert_eq!((error.code, error.data), (-32021, Some(Box::new(json!({"a": 1})))));
        assert!(protocol_error(&failed(-32602)).is_none());
        let unknown = ToolError::new(ErrorKind::UnknownTool, "did you mean x?");
        assert_eq!(protocol_error(&outcome(unknown)).expect("error").code, RpcError::INVALID_PARAMS);
    }

    #[test]
    fn a_result_keeps_everything_and_adds_the_cap_note() {
        let mut done = outcome(ToolError::new(ErrorKind::Timeout, "late"));
        done.meta.insert("k".into(), json!(1));
        done.extras.insert("tool_output".into(), json!({"handle": "h"}));
        done.extras.insert("exit_code".into(), json!(3));
        done.extras.insert(RESULT_FIELDS.into(), json!({"later": true}));
        done.structured = Some(json!({"a": [1]}));
        let legacy = serde_json::to_value(CallResult::of(done.clone(), Era::Legacy, &info())).expect("json");
        let text = json!([{"type": "text", "text": "(tool failed: late)"}]);
        let expect = json!({
            "content": text, "structuredContent": {"a": [1]}, "isError": true,
            "_meta": {"k": 1, "tool_output": {"handle": "h"}}, "later": true,
        });
        assert_eq!(legacy, expect);
        let modern = serde_json::to_value(CallResult::of(done, Era::Modern, &info())).expect("json");
        assert_eq!((&modern["resultType"], &modern["_meta"][SERVER_INFO]["name"]), (&json!("complete"), &json!("s")));
    }
}
