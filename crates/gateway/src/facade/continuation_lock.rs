//! Reserves the conversation that a request continues, because two requests at once would overwrite each other. A
//! reservation holds across all processes of the state directory, and ends with its process.

use std::sync::{Arc, PoisonError};

use toolwright_core::store::Claim;
use toolwright_models::served::Fault;

use super::refusal::Refusal;
use super::{Facade, RecordKind};

/// Owner, kind and id.
pub(super) type RecordKey = (String, RecordKind, String);

/// A reservation: no other request may continue the object meanwhile.
pub(super) struct ContinuationLock {
    facade: Arc<Facade>,
    key: RecordKey,
    released: bool,
}

impl Facade {
    /// Reserves a conversation, a waiting run, or a response that is not over.
    ///
    /// # Errors
    /// [`Fault::Conflict`] while another request holds it.
    pub(super) async fn reserve(
        self: &Arc<Self>,
        owner: &str,
        kind: RecordKind,
        id: &str,
    ) -> Result<ContinuationLock, Refusal> {
        let taken = || {
            let why = format!("another request works on {} `{id}`: wait for its answer, then try again", kind.as_str());
            Refusal::new(Fault::Conflict, why)
        };
        let key = (owner.to_owned(), kind, id.to_owned());
        if !self.reserved.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone()) {
            return Err(taken());
        }
        // The store's claims separate processes; `reserved` separates requests of one process.
        let lock = ContinuationLock { facade: Arc::clone(self), key, released: false };
        match self.source.runs().claim(&name(&lock.key)).await? {
            Claim::Held => Ok(lock),
            Claim::TakenBy(_) => Err(taken()),
        }
    }
}

/// Returns the name of the claim. It contains spaces, so no run has the same name.
fn name((owner, kind, id): &RecordKey) -> String {
    format!("{} {owner} {id}", kind.as_str())
}

async fn release(facade: &Facade, key: &RecordKey) {
    if let Err(error) = facade.source.runs().release(&name(key)).await {
        // The claim blocks only other processes, and only until this one ends.
        tracing::warn!("the reservation of {} `{}` stays: {error}", key.1.as_str(), key.2);
    }
    facade.reserved.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
}

impl ContinuationLock {
    /// Ends the reservation, so that a client may continue as soon as it is answered.
    pub(super) async fn release(mut self) {
        release(&self.facade, &self.key).await;
        self.released = true;
    }
}

impl Drop for ContinuationLock {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let (facade, key) = (Arc::clone(&self.facade), self.key.clone());
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move { release(&facade, &key).await })),
            Err(_) => drop(facade.reserved.lock().unwrap_or_else(PoisonError::into_inner).remove(&key)),
        }
    }
}
