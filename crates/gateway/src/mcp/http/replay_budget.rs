//! ReplayBudget for streams that have ended and are kept for clients that are away, over all sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that is kept while there is room.
pub(super) trait Evictable: Send + Sync {
    /// Whether all of it has been sent, and nobody is taking it again.
    fn may_go(&self) -> bool;

    /// It is not kept any more.
    fn evict(&self);
}

/// So many bytes. What may go makes room for what comes, the oldest first; nothing else does.
pub(super) struct ReplayBudget<T>(Mutex<State<T>>);

struct State<T> {
    left: usize,
    /// By number, the oldest first.
    shares: BTreeMap<u64, Share<T>>,
    next: u64,
}

struct Share<T> {
    of: Arc<T>,
    bytes: usize,
}

/// A share, which is given back with this.
pub(super) struct Held<'r, T> {
    room: &'r ReplayBudget<T>,
    number: u64,
}

impl<T: Evictable> ReplayBudget<T> {
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { left: bytes, shares: BTreeMap::new(), next: 0 })))
    }

    /// A share of so many bytes, if there is one; what may go is evicted for it only if that is enough.
    pub(super) fn take(&self, of: &Arc<T>, bytes: usize) -> Option<Held<'_, T>> {
        let mut state = self.lock();
        let (mut left, mut going) = (state.left, Vec::new());
        for (number, share) in state.shares.iter().filter(|(_, share)| share.of.may_go()) {
            if left >= bytes {
                break;
            }
            left += share.bytes;
            going.push(*number);
        }
        let rest = left.checked_sub(bytes)?;
        let evicted: Vec<_> = going.iter().filter_map(|number| state.shares.remove(number)).collect();
        let number = state.next;
        (state.left, state.next) = (rest, number + 1);
        state.shares.insert(number, Share { of: Arc::clone(of), bytes });
        drop(state);
        evicted.iter().for_each(|share| share.of.evict());
        Some(Held { room: self, number })
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.lock().left
    }
}

impl<T> ReplayBudget<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        let mut state = self.room.lock();
        // An evicted one has given it back already.
        if let Some(share) = state.shares.remove(&self.number) {
            state.left += share.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Thing {
        may_go: bool,
        is_evicted: AtomicBool,
    }

    impl Evictable for Thing {
        fn may_go(&self) -> bool {
            self.may_go
        }

        fn evict(&self) {
            self.is_evicted.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_may_go_makes_room_and_nothing_else() {
        let thing = |may_go| Arc::new(Thing { may_go, is_evicted: AtomicBool::new(false) });
        let room = ReplayBudget::new(10);
        let things = [thing(true), thing(false), thing(true), thing(true)];
        let mut held: Vec<_> = things.iter().zip([3, 3, 2, 2]).map(|(of, bytes)| room.take(of, bytes)).collect();
        assert!(held.iter().all(Option::is_some) && room.left() == 0);
        let evicted = || things.iter().map(|thing| thing.is_evicted.load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert!(room.take(&thing(false), 8).is_none());
        assert_eq!(evicted(), [false; 4], "it would not have been enough");
        let newer = room.take(&thing(false), 4).expect("room");
        assert_eq!((evicted(), room.left()), (vec![true, false, true, false], 1));
        held.truncate(2);
        assert_eq!(room.left(), 3, "what was evicted gives back nothing more");
        drop((newer, held));
        assert_eq!((room.left(), room.lock().shares.len()), (10, 0));
    }
}
