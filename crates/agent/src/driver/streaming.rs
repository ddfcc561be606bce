//! Starts calls while the model is still writing its answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use toolwright_core::ValidCall;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, Approver};
use toolwright_core::cancel::Cancel;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{ModelEvent, ModelEvents, WrittenCall};
use toolwright_core::outcome::Outcome;
use toolwright_core::plan::plan;
use toolwright_core::session::CallId;
use toolwright_runtime::{Executor, RunContext};

use super::meter::Meter;
use super::room::Room;
use super::text::TextEvents;

/// Calls that were started, under the token of the request that brought them.
pub(super) struct InFlightCalls {
    pub(super) cancel: Cancel,
    /// Where the results of their turn go.
    pub(super) room: Room,
    /// Hears what the calls of their turn ask of models.
    pub(super) meter: Arc<Meter>,
    ids: Vec<CallId>,
    tasks: JoinSet<Vec<Outcome>>,
}

impl InFlightCalls {
    /// None yet.
    pub(super) fn under(cancel: Cancel, room: Room, meter: &Arc<Meter>) -> Self {
        Self { cancel, room, meter: Arc::clone(meter), ids: Vec::new(), tasks: JoinSet::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// How many were started.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Starts a call that [`Executor::startable`] has let through.
    pub(super) fn start(&mut self, executor: &Arc<Executor>, call: ValidCall, run: &RunContext) {
        self.ids.push(call.id.clone());
        // A guard may still ask: nobody is to answer before the turn is over.
        let run = RunContext { approver: Arc::new(AtTurnEnd), cancel: self.cancel.clone(), ..run.clone() };
        let executor = Arc::clone(executor);
        self.tasks.spawn(async move { executor.execute(plan(vec![Ok(call)], 1, 0), &run).await });
    }

    /// Waits for all of them; one outcome each.
    pub(super) async fn land(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(self.ids.len());
        while let Some(joined) = self.tasks.join_next().await {
            match joined {
                Ok(ended) => outcomes.extend(ended),
                Err(error) => tracing::error!("a started call was lost: {error}"),
            }
        }
        for id in std::mem::take(&mut self.ids) {
            if !outcomes.iter().any(|outcome| outcome.call_id == id) {
                outcomes.push(lost(id));
            }
        }
        outcomes
    }
}

/// The outcome of a call that started and of which nothing more is known.
pub(super) fn lost(id: CallId) -> Outcome {
    let message = "unknown: the call started, and what became of it was lost; it may or may not have taken effect. Check before you call it again";
    Outcome::failed(id, ToolError::new(ErrorKind::ExecutionError, message))
}

struct AtTurnEnd;

#[async_trait]
impl Approver for AtTurnEnd {
    async fn ask(&self, _request: &ApprovalRequest) -> ApprovalDecision {
        ApprovalDecision::Later
    }
}

/// Passes text on, and whole calls to whoever starts them: as many as may run in a turn.
pub(super) struct StreamEvents<'a> {
    text: &'a TextEvents,
    said: Mutex<String>,
    calls: UnboundedSender<WrittenCall>,
    left: AtomicUsize,
}

impl<'a> StreamEvents<'a> {
    pub(super) fn new(text: &'a TextEvents, limit: usize) -> (Self, UnboundedReceiver<WrittenCall>) {
        let (calls, receiver) = unbounded_channel();
        (Self { text, said: Mutex::default(), calls, left: AtomicUsize::new(limit) }, receiver)
    }

    /// The text so far.
    pub(super) fn said(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ModelEvents for StreamEvents<'_> {
    fn on_event(&self, event: ModelEvent) {
        match &event {
            ModelEvent::Text(text) => self.said.lock().unwrap_or_else(PoisonError::into_inner).push_str(text),
            ModelEvent::Call(call) => {
                let one_less = |left: usize| left.checked_sub(1);
                if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
                    // Nobody listens any more: the call runs when its turn is over.
                    let _ = self.calls.send(call.clone());
                }
            }
            ModelEvent::Reasoning(_) => {}
        }
        self.text.on_event(event);
    }
}
