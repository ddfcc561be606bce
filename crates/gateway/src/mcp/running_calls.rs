//! Running calls: those of each session, so that they can be cancelled, and the bound on all of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolwright_core::cancel::{Cancel, CancelCause};

use super::message::{Id, RpcError};

/// Requests of one session that are running, by id.
#[derive(Debug)]
pub(crate) struct RunningCalls {
    /// Above all of theirs: a call that waits for its client to come back has no request.
    all: Cancel,
    by_id: Mutex<HashMap<Id, Cancel>>,
}

impl Default for RunningCalls {
    fn default() -> Self {
        Self { all: Cancel::new(), by_id: Mutex::default() }
    }
}

impl RunningCalls {
    /// A token for a call of this session.
    pub(crate) fn token(&self) -> Cancel {
        self.all.child()
    }

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
        self.all.cancel(CancelCause::User);
    }

    /// Whether nothing runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// A request noted in [`RunningCalls`].
pub(crate) struct Entered {
    running: Arc<RunningCalls>,
    id: Id,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.running.by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// A call's place among those that run at once; it is given up with this.
pub(crate) struct CallPermit {
    all: Arc<Semaphore>,
    held: Mutex<Held>,
}

struct Held {
    permit: Option<OwnedSemaphorePermit>,
    /// Waits without it that are going on.
    away: usize,
}

impl CallPermit {
    /// One of these, if one is free.
    pub(crate) fn of(all: &Arc<Semaphore>) -> Option<Arc<Self>> {
        let permit = Arc::clone(all).try_acquire_owned().ok()?;
        Some(Arc::new(Self { all: Arc::clone(all), held: Mutex::new(Held { permit: Some(permit), away: 0 }) }))
    }

    /// Waits for something without holding the place, and then, as the last of those who do, for a place.
    pub(crate) async fn without<T>(&self, waiting: impl Future<Output = T>) -> T {
        let away = Away::from(self);
        let result = waiting.await;
        drop(away);
        if self.held().away == 0 {
            // It is never closed.
            let again = Arc::clone(&self.all).acquire_owned().await.ok();
            self.held().permit = again;
        }
        result
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One wait without the place.
struct Away<'a>(&'a CallPermit);

impl<'a> From<&'a CallPermit> for Away<'a> {
    fn from(permit: &'a CallPermit) -> Self {
        let mut held = permit.held();
        held.away += 1;
        let given_up = held.permit.take();
        drop(held);
        drop(given_up);
        Self(permit)
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.held().away -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_waits_for_its_client_takes_no_place() {
        let all = Arc::new(Semaphore::new(1));
        let permit = CallPermit::of(&all).expect("free");
        assert!(CallPermit::of(&all).is_none());
        permit.without(async { assert!(CallPermit::of(&all).is_some()) }).await;
        assert!(CallPermit::of(&all).is_none());
        // Two waits at once take one place again, also where there is no second one.
        let both = async { futures_util::future::join(permit.without(async {}), permit.without(async {})).await };
        tokio::time::timeout(std::time::Duration::from_secs(5), both).await.expect("one place is enough");
        assert!(CallPermit::of(&all).is_none());
        drop(permit);
        assert_eq!(all.available_permits(), 1);
    }
}
