//! A call's place among those that run at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The place; it is given up with this.
pub(crate) struct Slot {
    all: Arc<Semaphore>,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Slot {
    /// One of these, if one is free.
    pub(crate) fn of(all: &Arc<Semaphore>) -> Option<Arc<Self>> {
        let held = Arc::clone(all).try_acquire_owned().ok()?;
        Some(Arc::new(Self { all: Arc::clone(all), held: Mutex::new(Some(held)) }))
    }

    /// Waits for something without holding the place, and then for a place.
    pub(crate) async fn without<T>(&self, waiting: impl Future<Output = T>) -> T {
        drop(self.held().take());
        let result = waiting.await;
        if self.held().is_none() {
            // It is never closed.
            let again = Arc::clone(&self.all).acquire_owned().await.ok();
            *self.held() = again;
        }
        result
    }

    fn held(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_waits_for_its_client_takes_no_place() {
        let all = Arc::new(Semaphore::new(1));
        let slot = Slot::of(&all).expect("free");
        assert!(Slot::of(&all).is_none());
        slot.without(async { assert!(Slot::of(&all).is_some()) }).await;
        assert!(Slot::of(&all).is_none());
        drop(slot);
        assert_eq!(all.available_permits(), 1);
    }
}
