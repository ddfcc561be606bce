//! Pauses a call while its source asks the client: the call returns its slot and its timeouts stop, because a queue
//! must not fill with calls that wait for people.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::ToolId;
use toolwright_core::cancel::Cancel;
use toolwright_core::client::{AskingCall, CallClient, ClientRequest};
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};

use super::partials::Partials;
use crate::queue::{Priority, PriorityQueue, Slot};

/// Bound on one question: the limits of the call itself do not hold meanwhile.
const LONGEST: Duration = Duration::from_secs(900);

/// A place in a queue that can be given back for a while.
#[derive(Debug)]
pub(super) struct PausableSlot {
    queue: Arc<PriorityQueue>,
    held: Mutex<HeldSlot>,
}

#[derive(Debug)]
struct HeldSlot {
    slot: Option<Slot>,
    /// Questions whose answers are waited for.
    asking: usize,
}

impl PausableSlot {
    /// The place that this slot is.
    pub(super) fn new(queue: Arc<PriorityQueue>, slot: Slot) -> Arc<Self> {
        Arc::new(Self { queue, held: Mutex::new(HeldSlot { slot: Some(slot), asking: 0 }) })
    }

    fn held(&self) -> MutexGuard<'_, HeldSlot> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the slot back until there is no question any more.
    fn leave(&self) {
        let mut held = self.held();
        held.asking += 1;
        // What is dropped may hand the slot on at once.
        let given_back = held.slot.take();
        drop(held);
        drop(given_back);
    }
}

/// A question under way.
struct PausedCall {
    place: Option<Arc<PausableSlot>>,
    progress: Arc<Partials>,
    person: bool,
}

impl Drop for PausedCall {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.held().asking -= 1;
        }
        self.progress.is_answered(self.person);
    }
}

/// The client of one call.
pub(super) struct PausingClient {
    /// Who is asked.
    pub(super) client: Arc<dyn CallClient>,
    /// What is given back meanwhile, if there is anything.
    pub(super) place: Option<Arc<PausableSlot>>,
    /// Whose time does not run meanwhile.
    pub(super) progress: Arc<Partials>,
    /// The call's tool.
    pub(super) tool: ToolId,
    /// How the call waits in its queue.
    pub(super) priority: Priority,
    /// The call's token.
    pub(super) cancel: Cancel,
}

impl PausingClient {
    /// Waits for a question's end, of a person or not, without a slot and takes one again.
    async fn without_slot<T: Send>(
        &self,
        person: bool,
        asking: impl Future<Output = T> + Send,
    ) -> Result<T, ToolError> {
        if let Some(place) = &self.place {
            place.leave();
        }
        self.progress.asks(person);
        let paused = PausedCall { place: self.place.clone(), progress: Arc::clone(&self.progress), person };
        let ended = tokio::time::timeout(LONGEST, asking).await.map_err(|_| {
            let text = format!("nobody answered what the tool asks within {}", duration::format(LONGEST));
            ToolError::new(ErrorKind::Timeout, text)
        });
        drop(paused);
        let Some(place) = self.place.as_ref().filter(|place| place.held().asking == 0) else { return ended };
        match place.queue.take(&self.tool, self.priority, &self.cancel, |_| ()).await {
            Ok((slot, _)) => {
                let second = place.held().slot.replace(slot);
                drop(second);
                ended
            }
            // The call has begun: to fail it for want of a slot would leave it half done. It goes on without one.
            Err(error) if error.kind() == ErrorKind::LimitExceeded => ended,
            // To begin it anew could repeat what it has done.
            Err(error) => Err(error.not_retryable()),
        }
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
        // The question alone is dropped: the call goes on, and needs its slot.
        let person = requests.iter().any(ClientRequest::asks_person);
        self.without_slot(person, self.client.ask_until(requests, over)).await.unwrap_or_else(|error| Some(Err(error)))
    }
}
