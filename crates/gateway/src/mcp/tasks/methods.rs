//! The methods of tasks.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolwright_mcp::tasks::{MAX_TTL, RELATED, Status, announced, not_announced, ttl};

use super::task::{Outcome, Task};
use crate::Gateway;
use crate::mcp::call::{Ask, Caller};
use crate::mcp::dispatch::Reply;
use crate::mcp::input_required::given_answers;
use crate::mcp::message::{RpcError, to_json};
use crate::mcp::protocol::{Era, SERVER_INFO};
use crate::mcp::tools::ToolList;

/// Whether this is a method of tasks.
pub(crate) fn serves(era: Era, method: &str) -> bool {
    match era {
        Era::Legacy => ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"].contains(&method),
        Era::Modern => ["tasks/get", "tasks/update", "tasks/cancel"].contains(&method),
    }
}

/// How long a call of this tool is kept as a task, if it may be one.
///
/// # Errors
/// Its request wants one that cannot be.
pub(crate) fn wished(ask: &mut Ask, list: &ToolList, tool: &str) -> Result<Option<Duration>, RpcError> {
    match (ask.era, ask.params.task.take()) {
        (Era::Legacy, Some(task)) if list.may_be_task(tool) => ttl(&task).map(Some),
        (Era::Legacy, Some(_)) => {
            Err(RpcError::new(RpcError::METHOD_NOT_FOUND, "this tool cannot be a task: leave out `task`"))
        }
        (Era::Legacy, None) => Ok(None),
        // The server alone decides.
        (Era::Modern, _) => {
            let capabilities = ask.params.meta.client_capabilities.as_ref();
            Ok(capabilities.is_some_and(announced).then_some(MAX_TTL))
        }
    }
}

impl Gateway {
    /// Answers a request about tasks.
    ///
    /// # Errors
    /// The JSON-RPC error to answer with.
    pub(crate) fn start_tasks(self: &Arc<Self>, caller: &Caller, mut ask: Ask) -> Result<Reply, RpcError> {
        let (era, session) = (ask.era, &caller.session);
        if era == Era::Modern && !ask.params.meta.client_capabilities.as_ref().is_some_and(announced) {
            return Err(not_announced());
        }
        if ask.method == "tasks/list" {
            if ask.params.cursor.is_some() {
                return Err(RpcError::invalid_params("this list has one page only, so no cursor is valid"));
            }
            let tasks: Vec<Value> = self.tasks.of(session).iter().map(|task| fields(task).into()).collect();
            return Ok(Reply::Result(to_json(&json!({"tasks": tasks}))));
        }
        let task = self.tasks.find(session, ask.params.task_id.as_deref())?;
        match ask.method.as_str() {
            "tasks/result" => {
                let waiting = self.start(caller, ask, async move |work| {
                    if let Some(channel) = &work.channel {
                        task.add_stream(channel);
                    }
                    tokio::select! {
                        outcome = task.ended() => related(&task, outcome),
                        _ = work.cancel.cancelled() => {
                            Err(RpcError::new(RpcError::INTERNAL, "nobody waits for the task's result any more"))
                        }
                    }
                })?;
                return Ok(Reply::Running(waiting));
            }
            "tasks/cancel" => match (era, task.cancel_by_client()) {
                (Era::Legacy, cancelled) => cancelled?,
                // One that has ended stays as it is.
                (Era::Modern, _) => return Ok(self.done()),
            },
            "tasks/update" => {
                task.take(&given_answers(&mut ask.params)?);
                return Ok(self.done());
            }
            _ => {}
        }
        Ok(Reply::Result(to_json(&match era {
            Era::Legacy => fields(&task),
            Era::Modern => self.detailed(&task),
        })))
    }

    /// The empty result of 2026-07-28.
    fn done(&self) -> Reply {
        Reply::Result(to_json(&json!({"resultType": "complete", "_meta": {SERVER_INFO: self.server_info}})))
    }

    /// `DetailedTask` of 2026-07-28.
    fn detailed(&self, task: &Task) -> Map<String, Value> {
        // First, so that a status of an end never lacks it.
        let mut all = fields(task);
        let status = all.get("status").and_then(Value::as_str).unwrap_or_default().to_owned();
        if status == Status::InputRequired.as_str() {
            all.insert("inputRequests".into(), task.questions().into());
        }
        match task.outcome() {
            Some(Ok(ended)) if status == Status::Completed.as_str() => {
                let result = serde_json::from_str(ended.result.get()).unwrap_or_default();
                all.insert("result".into(), result);
            }
            Some(Err(error)) if status == Status::Failed.as_str() => {
                all.insert("error".into(), json!(error));
            }
            _ => {}
        }
        all.insert("resultType".into(), "complete".into());
        all.insert("_meta".into(), json!({SERVER_INFO: self.server_info}));
        all
    }
}

impl Task {
    /// `CreateTaskResult`.
    pub(super) fn created_result(&self, server_info: &Value) -> Vec<u8> {
        let mut fields = fields(self);
        match self.era {
            Era::Legacy => to_json(&json!({"task": fields})),
            Era::Modern => {
                fields.insert("resultType".into(), "task".into());
                fields.insert("_meta".into(), json!({SERVER_INFO: server_info}));
                to_json(&fields)
            }
        }
    }
}

fn fields(task: &Task) -> Map<String, Value> {
    task.described().fields(task.era)
}

/// The result that the call would have had, with the task it belongs to (2025-11-25).
fn related(task: &Task, outcome: Outcome) -> Result<Vec<u8>, RpcError> {
    let mut result: Map<String, Value> = serde_json::from_str(outcome?.result.get())
        .map_err(|error| RpcError::new(RpcError::INTERNAL, format!("the result: {error}")))?;
    if let Value::Object(meta) = result.entry("_meta").or_insert_with(|| json!({})) {
        meta.insert(RELATED.into(), json!({"taskId": task.id}));
    }
    Ok(to_json(&result))
}
