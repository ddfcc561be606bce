//! What a running tool gets, and its client, whose questions pause the call.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::CallScope;
use toolwright_core::client::{AskingCall, CallClient, ClientRequest};
use toolwright_core::context::{PartialSink, ToolContext};
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_core::job::NoTurns;
use toolwright_core::operation::Op;
use toolwright_core::taint::of_all;
use toolwright_core::{ToolId, duration};

use super::progress::{CallProgress, CallTimeLimits};
use super::run_context::RunContext;
use crate::executor::Executor;
use crate::queue::{PausableSlot, Priority, WorkspaceTurn};

/// How long one question may stay open. The limits of the call are paused meanwhile.
const LONGEST: Duration = Duration::from_secs(900);

/// A question in progress.
struct PausedCall {
    place: Option<Arc<PausableSlot>>,
    progress: Arc<CallProgress>,
    person: bool,
}

impl Drop for PausedCall {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.answered();
        }
        self.progress.is_answered(self.person);
    }
}

/// The client of one call. During a question the call gives its slot back and its timeouts stop, so that calls that
/// wait for people do not fill a queue.
struct PausingClient {
    /// The client that is asked.
    client: Arc<dyn CallClient>,
    /// The slot that is released meanwhile, if any.
    place: Option<Arc<PausableSlot>>,
    /// The turn, which lets later calls pass during the question.
    turn: Option<Arc<WorkspaceTurn>>,
    /// The progress whose time limits are paused meanwhile.
    progress: Arc<CallProgress>,
    tool: ToolId,
    /// The call's priority in its queue.
    priority: Priority,
    /// The call's cancel token.
    cancel: Cancel,
}

impl PausingClient {
    /// Releases the slot, waits until the question has ended, and takes a slot again.
    async fn without_slot<T: Send>(
        &self,
        person: bool,
        asking: impl Future<Output = T> + Send,
    ) -> Result<T, ToolError> {
        if let Some(place) = &self.place {
            place.question_opened();
        }
        if let Some(turn) = &self.turn {
            turn.leave_order();
        }
        self.progress.question_opened(person);
        let paused = PausedCall { place: self.place.clone(), progress: Arc::clone(&self.progress), person };
        let ended = tokio::time::timeout(LONGEST, asking).await.map_err(|_| {
            let text = format!("nobody answered what the tool asks within {}", duration::format(LONGEST));
            ToolError::new(ErrorKind::Timeout, text)
        });
        drop(paused);
        if let Some(place) = &self.place {
            place.take_again(&self.tool, self.priority, &self.cancel).await?;
        }
        ended
    }
}

#[async_trait]
impl CallClient for PausingClient {
    fn inner(&self) -> Option<&dyn CallClient> {
        Some(&*self.client)
    }

    fn for_call(&self, asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        self.client.for_call(asking)
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        let person = requests.iter().any(ClientRequest::asks_person);
        self.without_slot(person, self.client.ask(requests)).await?
    }

    async fn ask_until(
        &self,
        requests: Vec<ClientRequest>,
        over: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Option<Result<Vec<Result<Value, ProtocolError>>, ToolError>> {
        // Dropping cancels only the question: the call continues and needs its slot.
        let person = requests.iter().any(ClientRequest::asks_person);
        self.without_slot(person, self.client.ask_until(requests, over)).await.unwrap_or_else(|error| Some(Err(error)))
    }
}

impl Executor {
    /// Returns the context of this call's tool.
    pub(in crate::executor) fn tool_context(
        self: &Arc<Self>,
        call: &ValidCall,
        place: Option<&Arc<PausableSlot>>,
        run: &RunContext,
        limits: &CallTimeLimits,
        progress: &Arc<CallProgress>,
        (op, scope): (&Op, CallScope),
    ) -> ToolContext {
        let traceparent = op.traceparent();
        let asking = AskingCall {
            tool: call.entry.id().clone(),
            traceparent: Arc::clone(&traceparent),
            cancel: run.cancel.clone(),
            usage: run.usage.clone(),
        };
        let client = run.client.for_call(&asking).unwrap_or_else(|| Arc::clone(&run.client));
        let client = Arc::new(PausingClient {
            client,
            place: place.cloned(),
            turn: run.turn.clone(),
            progress: Arc::clone(progress),
            tool: asking.tool,
            priority: run.priority,
            cancel: asking.cancel,
        });
        ToolContext {
            call_id: call.id.clone(),
            session: Arc::clone(&run.session),
            scope,
            cancel: run.cancel.clone(),
            deadline: limits.absolute.and_then(|limit| std::time::Instant::now().checked_add(limit)),
            limit: limits.absolute,
            client,
            partials: Arc::clone(progress) as Arc<dyn PartialSink>,
            traceparent: Some(traceparent),
            max_output: self.call_max_output(&call.entry, run),
            taint: of_all(&call.provenance.tainted),
            granted: Arc::clone(&run.granted),
            calls: self.inner_calls(call, run, op),
            turns: run.job.clone().unwrap_or_else(NoTurns::shared),
            services: Arc::clone(&self.options.services),
        }
    }
}
