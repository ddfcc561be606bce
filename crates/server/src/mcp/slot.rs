//! A call's place among those that run at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The place; it is given up with this.
pub(crate) struct Slot {
    all: Arc<Semaphore>,
    held: Mutex<Held>,
}

struct Held {
    permit: Option<OwnedSemaphorePermit>,
    /// Waits without it that are going on.
    away: usize,
}

impl Slot {
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
struct Away<'a>(&'a Slot);

impl<'a> From<&'a Slot> for Away<'a> {
    fn from(slot: &'a Slot) -> Self {
        let mut held = slot.held();
        held.away += 1;
        let given_up = held.permit.take();
        drop(held);
        drop(given_up);
        Self(slot)
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
        let slot = Slot::of(&all).expect("free");
        assert!(Slot::of(&all).is_none());
        slot.without(async { assert!(Slot::of(&all).is_some()) }).await;
        assert!(Slot::of(&all).is_none());
        // Two waits at once take one place again, also where there is no second one.
        let both = async { futures_util::future::join(slot.without(async {}), slot.without(async {})).await };
        tokio::time::timeout(std::time::Duration::from_secs(5), both).await.expect("one place is enough");
        assert!(Slot::of(&all).is_none());
        drop(slot);
        assert_eq!(all.available_permits(), 1);
    }
}
