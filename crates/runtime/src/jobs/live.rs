//! A job that this process runs, and its events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::{oneshot, watch};
use toolwright_core::cancel::Cancel;
use toolwright_core::context::{Clock, PartialSink, Redactor, Services};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Event, EventDetail, EventSink};
use toolwright_core::job::{JobRecord, JobState};
use toolwright_core::operation::Op;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::{CallId, SessionId};
use toolwright_core::store::{RunStore, StoreError};
use toolwright_core::tool_id::ToolId;

use super::log::JobLog;
use crate::store::SqliteStore;
use crate::store::jobs::JobStep;

/// How long a stateful job waits for input.
const INPUT_WAIT: Duration = Duration::from_secs(30 * 60);

/// A job of this process: its state beyond the store.
pub(crate) struct LiveJob {
    pub(crate) id: String,
    /// Ends it.
    pub(crate) cancel: Cancel,
    /// The log of its progress.
    pub(crate) log: Arc<dyn PartialSink>,
    /// Whether it may be dispatched again.
    pub(crate) resumable: bool,
    /// Reports it to observers.
    pub(crate) events: JobEvents,
    dispatched: AtomicBool,
    /// Whether this process has given it up, regardless of its state.
    left: AtomicBool,
    state: watch::Sender<JobState>,
    input: Mutex<Option<oneshot::Sender<Value>>>,
    store: Arc<SqliteStore>,
}

impl LiveJob {
    pub(super) fn new(
        id: String,
        state: JobState,
        cancel: Cancel,
        resumable: bool,
        log: JobLog,
        events: JobEvents,
        store: &Arc<SqliteStore>,
    ) -> Self {
        Self {
            id,
            cancel,
            log: Arc::new(log),
            resumable,
            events,
            dispatched: AtomicBool::new(state != JobState::Pending),
            left: AtomicBool::new(false),
            state: watch::Sender::new(state),
            input: Mutex::default(),
            store: Arc::clone(store),
        }
    }

    /// Returns whether it may have had an effect.
    pub(crate) fn was_dispatched(&self) -> bool {
        self.dispatched.load(Ordering::Acquire)
    }

    /// Returns whether the end of this process would lose its work: it runs, and may not be dispatched again.
    pub(super) fn would_lose_work(&self) -> bool {
        let rests = is_inactive(*self.state.borrow()) || self.left.load(Ordering::Acquire);
        self.was_dispatched() && !self.resumable && !rests
    }

    /// Returns a receiver of its state.
    pub(crate) fn state(&self) -> watch::Receiver<JobState> {
        self.state.subscribe()
    }

    /// Waits until it is over, waits for input, or was left to others.
    pub(crate) async fn wait_until_settled(&self) -> JobState {
        let mut state = self.state();
        let rests = |state: &JobState| is_inactive(*state) || self.left.load(Ordering::Acquire);
        state.wait_for(rests).await.map_or(JobState::Unknown, |state| *state)
    }

    /// Returns a partial result to the caller and waits for input.
    pub(crate) async fn pause(&self, partial: Outcome) -> Result<Value, ToolError> {
        let (sender, input) = oneshot::channel();
        *self.input() = Some(sender);
        self.step(&JobStep::Paused(partial), JobState::WaitingInput).await?;
        tokio::select! {
            input = input => input.map_err(|_| ToolError::new(ErrorKind::InternalError, "the input of a job was lost")),
            cause = self.cancel.cancelled() => Err(ToolError::canceled(cause)),
            () = tokio::time::sleep(INPUT_WAIT) => {
                self.input().take();
                let limit = toolwright_core::duration::format(INPUT_WAIT);
                Err(ToolError::new(ErrorKind::Timeout, format!("nobody continued the job within {limit}")))
            }
        }
    }

    /// Continues it with this input.
    pub(super) async fn send(&self, input: Value) -> Result<(), StoreError> {
        let waiting = self.input().take();
        let waiting = waiting.ok_or_else(|| StoreError::Refused(format!("job {} does not wait for input", self.id)))?;
        // Committed first, so that a caller that waits for the next step does not get this one.
        self.step(&JobStep::Continued, JobState::Running).await?;
        // A job that has just been stopped takes no input.
        let _ = waiting.send(input);
        Ok(())
    }

    /// Commits a state, then notifies observers and waiters in this process.
    pub(super) async fn step(&self, step: &JobStep, state: JobState) -> Result<(), StoreError> {
        let event = self.events.of_step(step, state);
        self.store.step_job(&self.id, step).await?;
        self.events.emit(event);
        self.state.send_replace(state);
        Ok(())
    }

    /// Notifies waiters in this process that it has given the job up.
    pub(super) fn mark_released(&self, state: JobState) {
        self.left.store(true, Ordering::Release);
        self.state.send_replace(state);
    }

    fn input(&self) -> std::sync::MutexGuard<'_, Option<oneshot::Sender<Value>>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a job in this state does no work.
fn is_inactive(state: JobState) -> bool {
    state.is_over() || state == JobState::WaitingInput
}

/// The journal of a job's own call. The job counts as dispatched before its tool is called.
#[async_trait]
impl RunStore for LiveJob {
    async fn call_dispatched(&self, _run: &str, _call: &CallId) -> Result<(), StoreError> {
        self.dispatched.store(true, Ordering::Release);
        self.step(&JobStep::Dispatched, JobState::Running).await
    }

    async fn call_finished(&self, _run: &str, _outcome: &Outcome) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Reports a job to observers: each state after its commit, before waiters in this process are notified.
pub(crate) struct JobEvents {
    events: Arc<dyn EventSink>,
    redactor: Arc<dyn Redactor>,
    clock: Arc<dyn Clock>,
    op: Op,
    session: SessionId,
    job: String,
    tool: ToolId,
    created_ms: u64,
}

impl JobEvents {
    /// Creates the events of a job that is the operation `op`.
    pub(crate) fn new(op: Op, job: &JobRecord, services: &Services) -> Self {
        Self {
            events: Arc::clone(&services.events),
            redactor: Arc::clone(&services.redactor),
            clock: Arc::clone(&services.clock),
            op,
            session: job.session.clone(),
            job: job.id.clone(),
            tool: job.tool.clone(),
            created_ms: job.created_ms,
        }
    }

    /// Reports that this process owns the job from now on.
    pub(super) fn started(&self, state: JobState) {
        self.events.emit_with(|| Event::JobStarted {
            op: self.op.clone(),
            session: self.session.clone(),
            job: self.job.clone(),
            tool: self.tool.clone(),
        });
        if state != JobState::Pending {
            self.events.emit_with(|| self.changed(state));
        }
    }

    /// Reports that it was the running call `call`, the operation `op`.
    pub(crate) fn promoted(&self, op: Op, call: &CallId, by: &str) {
        self.events.emit_with(|| Event::JobPromoted {
            op,
            session: self.session.clone(),
            job: self.job.clone(),
            call: call.clone(),
            tool: self.tool.clone(),
            by: by.to_owned(),
        });
    }

    /// Returns the event of a step towards `state`, to be emitted after its commit; `None` without observers.
    fn of_step(&self, step: &JobStep, state: JobState) -> Option<Event> {
        (self.events.event_detail() > EventDetail::Nothing).then(|| match step {
            JobStep::Ended(state, outcome) => self.finished(*state, outcome.error.as_ref()),
            _ => self.changed(state),
        })
    }

    /// Reports that it is over with an outcome that was not stored.
    pub(super) fn end_not_stored(&self, state: JobState) {
        self.events.emit_with(|| self.finished(state, None));
    }

    pub(super) fn emit(&self, event: Option<Event>) {
        if let Some(event) = event {
            self.events.emit(event);
        }
    }

    fn changed(&self, state: JobState) -> Event {
        Event::JobChanged {
            op: self.op.clone(),
            session: self.session.clone(),
            job: self.job.clone(),
            tool: self.tool.clone(),
            state,
        }
    }

    fn finished(&self, state: JobState, error: Option<&ToolError>) -> Event {
        Event::JobFinished {
            op: self.op.clone(),
            session: self.session.clone(),
            job: self.job.clone(),
            tool: self.tool.clone(),
            state,
            error: error.map(ToolError::kind),
            message: error.map(|error| self.redactor.redact(error.message()).into_owned()),
            latency_us: self.clock.wall_ms().saturating_sub(self.created_ms).saturating_mul(1000),
        }
    }
}
