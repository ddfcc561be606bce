//! One task: its call, its status, its questions and its result.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::Instant;
use toolwright_core::approval::EXPIRY;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::client::ClientRequest;
use toolwright_core::context::Clock;
use toolwright_core::duration::iso;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::session::Session;
use toolwright_mcp::tasks::{Status, TaskDescription};

use super::call::STANDS_IN_META;
use super::tasks::Tasks;
use crate::mcp::client::input_required::{OpenQuestions, QuestionSet};
use crate::mcp::message::RpcError;
use crate::mcp::protocol::Era;
use crate::mcp::response::ResponseChannel;
use crate::mcp::session::Caller;

/// How long a call may take before it becomes a task for a client with the extension.
const TASK_DELAY: Duration = Duration::from_millis(500);
/// Longest `statusMessage`, in characters.
const MAX_MESSAGE: usize = 500;

/// A call that is a task or may become one.
pub(crate) struct Task {
    pub(crate) id: String,
    pub(super) session: Arc<Session>,
    pub(super) era: Era,
    /// Creation time, in milliseconds since the epoch.
    pub(super) created: u64,
    pub(super) expires: Instant,
    pub(super) cancel: Cancel,
    ttl: Duration,
    /// Fires when the session ends.
    session_ended: Cancel,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

struct State {
    stage: TaskStage,
    updated: u64,
    message: Option<String>,
    /// Open questions asked outside of its status.
    waiting: usize,
    /// Open questions of a call that is not yet a task.
    plain: usize,
    question_count: u64,
    open: OpenQuestions,
    streams: Vec<Weak<ResponseChannel>>,
}

enum TaskStage {
    /// The client does not know it as a task.
    Plain,
    Working,
    Cancelled,
    Ended(Result<TaskResult, RpcError>),
}

/// A result.
#[derive(Clone)]
pub(super) struct TaskResult {
    pub(super) result: Arc<RawValue>,
    has_failed: bool,
}

/// The outcome of a task.
pub(super) type Outcome = Result<TaskResult, RpcError>;

impl Task {
    /// Creates the task of a caller's call, which has this cancel token.
    pub(crate) fn new(caller: &Caller, era: Era, ttl: Duration, cancel: Cancel, clock: &Arc<dyn Clock>) -> Arc<Self> {
        let created = clock.wall_ms();
        let state = State {
            stage: if era == Era::Legacy { TaskStage::Working } else { TaskStage::Plain },
            updated: created,
            message: None,
            waiting: 0,
            plain: 0,
            question_count: 0,
            open: OpenQuestions::default(),
            streams: Vec::new(),
        };
        Arc::new(Self {
            id: uuid::Uuid::new_v4().to_string(),
            session: Arc::clone(&caller.session),
            era,
            created,
            expires: Instant::now() + ttl,
            cancel,
            ttl,
            session_ended: caller.running.token(),
            clock: Arc::clone(clock),
            state: Mutex::new(state),
            changed: watch::Sender::new(()),
        })
    }

    /// Runs the call. Returns the result if the first request still waits for it.
    pub(crate) async fn run<F>(
        self: &Arc<Self>,
        tasks: &Arc<Tasks>,
        channel: &ResponseChannel,
        server: &Value,
        work: F,
    ) -> Option<Result<Vec<u8>, RpcError>>
    where
        F: Future<Output = Result<Vec<u8>, RpcError>>,
    {
        let mut work = pin!(work);
        // Ends the task even if the call panics.
        let _end = EndOnDrop(self);
        if self.era == Era::Legacy {
            channel.end(Ok(self.created_result(server))).await;
            return self.finish(work.await);
        }
        loop {
            tokio::select! {
                biased;
                result = &mut work => return self.finish(result),
                () = tokio::time::sleep(TASK_DELAY), if self.is_plain() => {
                    if self.publish_task(tasks, channel) {
                        channel.end(Ok(self.created_result(server))).await;
                    }
                }
            }
        }
    }

    fn is_plain(&self) -> bool {
        matches!(self.lock().stage, TaskStage::Plain)
    }

    /// Makes a call a known task, unless its request is being answered with a question.
    fn publish_task(self: &Arc<Self>, tasks: &Arc<Tasks>, channel: &ResponseChannel) -> bool {
        let mut state = self.lock();
        if state.plain > 0 || !channel.is_awaited() || tasks.keep(self).is_err() {
            return false;
        }
        state.stage = TaskStage::Working;
        true
    }

    fn finish(&self, result: Result<Vec<u8>, RpcError>) -> Option<Result<Vec<u8>, RpcError>> {
        let mut state = self.lock();
        match state.stage {
            TaskStage::Plain => Some(result),
            TaskStage::Cancelled | TaskStage::Ended(_) => None,
            TaskStage::Working => {
                let ended = result.and_then(|bytes| TaskResult::of(&bytes));
                if let Err(error) = &ended {
                    state.message = Some(shortened_message(&error.message));
                }
                state.stage = TaskStage::Ended(ended);
                self.touch(state);
                None
            }
        }
    }

    /// Cancels it for its client.
    ///
    /// # Errors
    /// The task has ended.
    pub(super) fn cancel_by_client(&self) -> Result<(), RpcError> {
        let mut state = self.lock();
        if !matches!(state.stage, TaskStage::Working) {
            let message = format!("the task has ended already: it is {}", status(&state, self.era).as_str());
            return Err(RpcError::invalid_params(message));
        }
        state.stage = TaskStage::Cancelled;
        state.message = Some("cancelled by the client".into());
        self.touch(state);
        self.cancel.cancel(CancelCause::User);
        Ok(())
    }

    /// Ends it because its time to live has passed.
    pub(super) fn expire(&self) {
        let mut state = self.lock();
        if matches!(state.stage, TaskStage::Working) {
            state.stage = TaskStage::Cancelled;
            state.message = Some("its time was up".into());
            self.touch(state);
            self.cancel.cancel(CancelCause::Deadline);
        }
    }

    /// Returns whether it belongs to this session.
    pub(super) fn is_of(&self, session: &Session) -> bool {
        self.session.id == session.id && self.session.principal == session.principal
    }

    /// Returns whether its session has ended.
    pub(super) fn is_orphan(&self) -> bool {
        self.session_ended.is_cancelled()
    }

    /// Returns its description.
    pub(super) fn described(&self) -> TaskDescription {
        let state = self.lock();
        TaskDescription {
            id: self.id.clone(),
            status: status(&state, self.era),
            message: state.message.clone(),
            created: iso(self.created),
            updated: iso(state.updated),
            ttl: self.ttl,
        }
    }

    /// Returns its outcome, if it has ended by itself.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        match &self.lock().stage {
            TaskStage::Ended(ended) => Some(ended.clone()),
            _ => None,
        }
    }

    /// Waits for its outcome.
    pub(super) async fn ended(&self) -> Outcome {
        let mut changed = self.changed.subscribe();
        loop {
            match &self.lock().stage {
                TaskStage::Ended(ended) => return ended.clone(),
                TaskStage::Cancelled => {
                    return Err(RpcError::invalid_params("the task was cancelled, so that it has no result"));
                }
                TaskStage::Plain | TaskStage::Working => {}
            }
            if changed.changed().await.is_err() {
                return Err(RpcError::new(RpcError::INTERNAL, "the task is gone"));
            }
        }
    }

    /// Sets its status message.
    pub(super) fn set_message(&self, message: &str) {
        let mut state = self.lock();
        if matches!(state.stage, TaskStage::Plain | TaskStage::Working) {
            state.message = Some(shortened_message(message));
            self.touch(state);
        }
    }

    /// Adds a stream in which its client may be asked.
    pub(super) fn add_stream(&self, channel: &Arc<ResponseChannel>) {
        let mut state = self.lock();
        state.streams.retain(|channel| channel.strong_count() > 0);
        state.streams.push(Arc::downgrade(channel));
        drop(state);
        self.changed.send_replace(());
    }

    /// Returns the newest open stream.
    pub(super) fn newest_stream(&self) -> Option<Arc<ResponseChannel>> {
        let state = self.lock();
        state.streams.iter().rev().filter_map(Weak::upgrade).find(|channel| channel.takes_questions())
    }

    /// Waits for a stream to ask in.
    pub(super) async fn stream(self: &Arc<Self>) -> Result<Arc<ResponseChannel>, ToolError> {
        let _waits = self.waits();
        let mut changed = self.changed.subscribe();
        let opened = async {
            loop {
                if let Some(channel) = self.newest_stream() {
                    return Some(channel);
                }
                changed.changed().await.ok()?;
            }
        };
        let channel = tokio::time::timeout(EXPIRY, opened).await.ok().flatten();
        channel.ok_or_else(unanswered)
    }

    /// Marks it as waiting for its client until the guard is dropped.
    pub(super) fn waits(self: &Arc<Self>) -> InputWait {
        let mut state = self.lock();
        state.waiting += 1;
        self.touch(state);
        InputWait(Arc::clone(self))
    }

    /// Keeps a call from becoming a task until the guard is dropped. `None` if it is one already.
    pub(super) fn prevent_task(self: &Arc<Self>) -> Option<TaskPrevention> {
        let mut state = self.lock();
        matches!(state.stage, TaskStage::Plain).then(|| {
            state.plain += 1;
            TaskPrevention(Arc::clone(self))
        })
    }

    /// Asks by its status, and waits for the answers.
    pub(super) async fn ask(self: &Arc<Self>, mut requests: Vec<ClientRequest>) -> Result<Vec<Value>, ToolError> {
        let (number, answers) = {
            let mut state = self.lock();
            for request in &mut requests {
                // Keys are unique in a task, because a client identifies answered questions by them.
                state.question_count += 1;
                request.key = Some(format!("input-{}", state.question_count));
            }
            let round = state.open.add(QuestionSet::new(requests, &mut HashMap::new()));
            self.touch(state);
            round
        };
        let _open = OpenRound { task: Arc::clone(self), number };
        match tokio::time::timeout(EXPIRY, answers).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) | Err(_) => Err(unanswered()),
        }
    }

    /// Returns the open questions, as the protocol's `inputRequests`.
    pub(super) fn questions(&self) -> Map<String, Value> {
        self.lock().open.requests()
    }

    /// Takes the answers to open questions, and ignores others.
    pub(super) fn take(&self, answers: &Map<String, Value>) {
        let mut state = self.lock();
        state.open.take(answers);
        state.open.send_complete_rounds();
        self.touch(state);
    }

    /// Records a change.
    fn touch(&self, mut state: MutexGuard<'_, State>) {
        state.updated = self.clock.wall_ms();
        drop(state);
        self.changed.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskResult {
    fn of(bytes: &[u8]) -> Result<Self, RpcError> {
        #[derive(Deserialize)]
        struct Result {
            #[serde(default, rename = "isError")]
            is_error: bool,
            #[serde(default, rename = "_meta")]
            meta: HashMap<String, IgnoredAny>,
        }
        let unread = |error: serde_json::Error| RpcError::new(RpcError::INTERNAL, format!("the result: {error}"));
        let Result { is_error, meta } = serde_json::from_slice(bytes).map_err(unread)?;
        let result: Box<RawValue> = serde_json::from_slice(bytes).map_err(unread)?;
        // A client does not fetch the result of a failed task, so it would not learn of the job that replaced the
        // result.
        Ok(Self { result: result.into(), has_failed: is_error && !meta.contains_key(STANDS_IN_META) })
    }
}

fn status(state: &State, era: Era) -> Status {
    match &state.stage {
        TaskStage::Plain | TaskStage::Working if state.waiting > 0 || !state.open.is_empty() => Status::InputRequired,
        TaskStage::Plain | TaskStage::Working => Status::Working,
        TaskStage::Cancelled => Status::Cancelled,
        TaskStage::Ended(Err(_)) => Status::Failed,
        TaskStage::Ended(Ok(ended)) if ended.has_failed && era == Era::Legacy => Status::Failed,
        TaskStage::Ended(Ok(_)) => Status::Completed,
    }
}

fn shortened_message(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

fn unanswered() -> ToolError {
    ToolError::new(ErrorKind::ExecutionError, "the tool asked its caller something, and nobody answered in time")
}

/// Ends a task whose call ended without a result.
struct EndOnDrop<'a>(&'a Task);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.finish(Err(RpcError::new(RpcError::INTERNAL, "the call ended without a result")));
    }
}

/// Marks a task as waiting for its client.
pub(super) struct InputWait(Arc<Task>);

impl Drop for InputWait {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.waiting -= 1;
        self.0.touch(state);
    }
}

/// Keeps a call from becoming a task.
pub(super) struct TaskPrevention(Arc<Task>);

impl Drop for TaskPrevention {
    fn drop(&mut self) {
        self.0.lock().plain -= 1;
    }
}

/// Open questions; removed on drop.
struct OpenRound {
    task: Arc<Task>,
    number: u64,
}

impl Drop for OpenRound {
    fn drop(&mut self) {
        self.task.lock().open.remove(self.number);
    }
}
