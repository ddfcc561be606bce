//! Tasks: calls that continue after their first answer, and whose status and result a client reads later. A task runs
//! through the executor like any call. Up to 2025-11-25 the client requests a task. A client with the extension of
//! 2026-07-28 gets one whenever a call takes longer than a moment. A task belongs to its session, ends with it, and is
//! kept for a limited time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::client::{CallClient, ClientRequest};
use toolwright_core::context::PartialSink;
use toolwright_core::error::{ProtocolError, ToolError};
use toolwright_core::event::Partial;
use toolwright_core::session::Session;
use toolwright_mcp::tasks::{MAX_TTL, RELATED, Status, announced, not_announced, ttl};

use super::PendingRequest;
use super::task::{Outcome, Task};
use crate::Gateway;
use crate::mcp::client::input_required::given_answers;
use crate::mcp::client::{SessionClient, ask_permitted};
use crate::mcp::message::{Params, RpcError, notification, to_json};
use crate::mcp::protocol::{Era, Level, SERVER_INFO};
use crate::mcp::response::Reply;
use crate::mcp::session::{Caller, ClientState};
use crate::mcp::tools::ToolList;

/// The most tasks of one session.
const MAX_OF_SESSION: usize = 64;
/// The most tasks of all sessions together.
const MAX_TASKS: usize = 1024;

/// All tasks, by id.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<HashMap<String, Arc<Task>>>);

impl Tasks {
    /// Keeps a task until it expires; a call that still runs then is cancelled.
    ///
    /// # Errors
    /// There are too many tasks.
    pub(crate) fn keep(self: &Arc<Self>, task: &Arc<Task>) -> Result<(), RpcError> {
        {
            let mut all = self.lock();
            // The tasks of an ended session cannot be requested any more.
            all.retain(|_, task| !task.is_orphan());
            let of_session = all.values().filter(|other| other.is_of(&task.session)).count();
            if of_session >= MAX_OF_SESSION || all.len() >= MAX_TASKS {
                let message = format!("a session has at most {MAX_OF_SESSION} tasks, and all have {MAX_TASKS}");
                return Err(RpcError::new(RpcError::BUSY, message));
            }
            all.insert(task.id.clone(), Arc::clone(task));
        }
        let (tasks, id, expires) = (Arc::downgrade(self), task.id.clone(), task.expires);
        tokio::spawn(async move {
            tokio::time::sleep_until(expires).await;
            if let Some(tasks) = tasks.upgrade() {
                tasks.forget(&id);
            }
        });
        Ok(())
    }

    /// Returns a task of this session.
    ///
    /// # Errors
    /// The session has no such task.
    pub(in crate::mcp) fn find(&self, session: &Session, id: Option<&str>) -> Result<Arc<Task>, RpcError> {
        let id = id.ok_or_else(|| RpcError::invalid_params("a `taskId` is needed"))?;
        let found = self.lock().get(id).filter(|task| task.is_of(session)).cloned();
        found.ok_or_else(|| RpcError::invalid_params("there is no such task, or it has expired"))
    }

    /// Returns the tasks of a session, the oldest first.
    pub(in crate::mcp) fn of(&self, session: &Session) -> Vec<Arc<Task>> {
        let mut tasks: Vec<_> = self.lock().values().filter(|task| task.is_of(session)).cloned().collect();
        tasks.sort_by_key(|task| (task.created, task.expires));
        tasks
    }

    /// Forgets a task, and cancels it if it runs.
    pub(in crate::mcp) fn forget(&self, id: &str) {
        let task = self.lock().remove(id);
        if let Some(task) = task {
            task.expire();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Task>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether this is a method of tasks.
pub(crate) fn serves(era: Era, method: &str) -> bool {
    match era {
        Era::Legacy => ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"].contains(&method),
        Era::Modern => ["tasks/get", "tasks/update", "tasks/cancel"].contains(&method),
    }
}

/// Returns how long a call of this tool is kept as a task, if it may become one.
///
/// # Errors
/// The request asks for a task, but the tool does not support tasks.
pub(crate) fn requested_ttl(
    era: Era,
    params: &mut Params,
    list: &ToolList,
    tool: &str,
) -> Result<Option<Duration>, RpcError> {
    match (era, params.task.take()) {
        (Era::Legacy, Some(task)) if list.may_be_task(tool) => ttl(&task).map(Some),
        (Era::Legacy, Some(_)) => {
            Err(RpcError::new(RpcError::METHOD_NOT_FOUND, "this tool cannot be a task: leave out `task`"))
        }
        (Era::Legacy, None) => Ok(None),
        // In this generation the server decides.
        (Era::Modern, _) => {
            let capabilities = params.meta.client_capabilities.as_ref();
            Ok(capabilities.is_some_and(announced).then_some(MAX_TTL))
        }
    }
}

impl Gateway {
    /// Answers a request about tasks.
    ///
    /// # Errors
    /// The JSON-RPC error to answer with.
    pub(crate) fn start_tasks(
        self: &Arc<Self>,
        caller: &Caller,
        mut pending: PendingRequest,
    ) -> Result<Reply, RpcError> {
        let (era, session, params) = (pending.era, &caller.session, &mut pending.request.params);
        if era == Era::Modern && !params.meta.client_capabilities.as_ref().is_some_and(announced) {
            return Err(not_announced());
        }
        if pending.request.method == "tasks/list" {
            if params.cursor.is_some() {
                return Err(RpcError::invalid_params("this list has one page only, so no cursor is valid"));
            }
            let tasks: Vec<Value> = self.tasks.of(session).iter().map(|task| fields(task).into()).collect();
            return Ok(Reply::Result(to_json(&json!({"tasks": tasks}))));
        }
        let task = self.tasks.find(session, params.task_id.as_deref())?;
        match pending.request.method.as_str() {
            "tasks/result" => {
                let waiting = self.start(caller, pending, async move |work| {
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
                // A task that has ended stays unchanged.
                (Era::Modern, _) => return Ok(self.done()),
            },
            "tasks/update" => {
                task.take(&given_answers(params)?);
                return Ok(self.done());
            }
            _ => {}
        }
        Ok(Reply::Result(to_json(&match era {
            Era::Legacy => fields(&task),
            Era::Modern => self.detailed(&task),
        })))
    }

    /// Returns the empty result of 2026-07-28.
    fn done(&self) -> Reply {
        Reply::Result(to_json(&json!({"resultType": "complete", "_meta": {SERVER_INFO: self.server_info}})))
    }

    /// Returns `DetailedTask` of 2026-07-28.
    fn detailed(&self, task: &Task) -> Map<String, Value> {
        // Read first, so that an ended status never lacks its result.
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
    /// Returns `CreateTaskResult`.
    pub(in crate::mcp) fn created_result(&self, server_info: &Value) -> Vec<u8> {
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

/// Returns the result of the call, with the id of its task (2025-11-25).
fn related(task: &Task, outcome: Outcome) -> Result<Vec<u8>, RpcError> {
    let mut result: Map<String, Value> = serde_json::from_str(outcome?.result.get())
        .map_err(|error| RpcError::new(RpcError::INTERNAL, format!("the result: {error}")))?;
    if let Value::Object(meta) = result.entry("_meta").or_insert_with(|| json!({})) {
        meta.insert(RELATED.into(), json!({"taskId": task.id}));
    }
    Ok(to_json(&result))
}

/// Asks the client in the style of the task's generation.
pub(crate) struct TaskClient {
    pub(crate) task: Arc<Task>,
    pub(crate) route: AskRoute,
    /// The client of the request that began the call.
    pub(crate) first: Arc<dyn CallClient>,
}

/// How a task's client is asked.
pub(crate) enum AskRoute {
    /// In the stream of `tasks/result` (2025-11-25).
    InStream(Arc<ClientState>),
    /// By the status in `tasks/get` once the call is a task (2026-07-28); before that like any call.
    ByStatus,
}

#[async_trait]
impl CallClient for TaskClient {
    fn inner(&self) -> Option<&dyn CallClient> {
        Some(&*self.first)
    }

    fn capabilities(&self) -> Map<String, Value> {
        match &self.route {
            // A stream will be opened.
            AskRoute::InStream(state) => Map::clone(&state.capabilities()),
            AskRoute::ByStatus => self.first.capabilities(),
        }
    }

    fn is_client_absent(&self) -> bool {
        match &self.route {
            AskRoute::InStream(_) => self.task.newest_stream().is_none(),
            AskRoute::ByStatus => self.first.is_client_absent(),
        }
    }

    async fn ask(&self, mut requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        match &self.route {
            AskRoute::InStream(state) => {
                let channel = self.task.stream().await?;
                for request in &mut requests {
                    if let Value::Object(params) = &mut request.params
                        && let Value::Object(meta) = params.entry("_meta").or_insert_with(|| json!({}))
                    {
                        meta.insert(RELATED.into(), json!({"taskId": self.task.id}));
                    }
                }
                let client = SessionClient { channel, state: Arc::clone(state), params: None };
                let _waits = self.task.waits();
                client.ask(requests).await
            }
            AskRoute::ByStatus => {
                if let Some(_plain) = self.task.prevent_task() {
                    return self.first.ask(requests).await;
                }
                ask_permitted(requests, &self.capabilities(), RpcError::MISSING_CAPABILITY, async |permitted| {
                    Ok(self.task.ask(permitted).await?.into_iter().map(Ok).collect())
                })
                .await
            }
        }
    }

    fn log(&self, message: Value) {
        match &self.route {
            AskRoute::InStream(state) => {
                if let Some(channel) = self.task.newest_stream().filter(|_| state.wants(Level::of_message(&message))) {
                    channel.note(|_| Some(notification("notifications/message", Some(&message))));
                }
            }
            AskRoute::ByStatus => self.first.log(message),
        }
    }
}

/// Keeps the last progress message as the task's status, and passes progress on.
pub(crate) struct TaskProgress {
    pub(crate) task: Arc<Task>,
    pub(crate) to_client: Option<Arc<dyn PartialSink>>,
}

impl PartialSink for TaskProgress {
    fn send(&self, partial: Partial) {
        if let Partial::Progress { message: Some(message), .. } = &partial {
            self.task.set_message(message);
        }
        if let Some(client) = &self.to_client {
            client.send(partial);
        }
    }
}
