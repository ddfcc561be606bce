//! How many attempts at requests a caller lets be made for it, whoever makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Room for attempts at requests to models, shared by all that take of it. By default there is no end to it.
#[derive(Debug, Clone, Default)]
pub struct RequestAllowance(Option<Arc<Allowance>>);

#[derive(Debug)]
struct Allowance {
    whole: u64,
    /// What was wanted, more than there is too.
    wanted: AtomicU64,
}

impl RequestAllowance {
    /// Room for so many.
    #[must_use]
    pub fn of(attempts: u64) -> Self {
        Self(Some(Arc::new(Allowance { whole: attempts, wanted: AtomicU64::new(0) })))
    }

    /// Takes room for one attempt; `false` where there is none.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.as_ref().is_none_or(|room| room.wanted.fetch_add(1, Ordering::Relaxed) < room.whole)
    }

    /// How many attempts were made; `None` where nobody counts.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        self.0.as_ref().map(|room| room.wanted.load(Ordering::Relaxed).min(room.whole))
    }

    /// Whether an attempt was wanted for which there was no room.
    #[must_use]
    pub fn is_overdrawn(&self) -> bool {
        self.0.as_ref().is_some_and(|room| room.wanted.load(Ordering::Relaxed) > room.whole)
    }

    /// Whether there is no end to it.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        self.0.is_none()
    }
}

/// The same room, and not as much.
impl PartialEq for RequestAllowance {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for RequestAllowance {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let room = RequestAllowance::of(2);
        let same = room.clone();
        assert_eq!((room.take(), same.used(), same.is_overdrawn()), (true, Some(1), false));
        assert_eq!((same.take(), room.take(), room.take()), (true, false, false));
        assert_eq!((room.used(), room.is_overdrawn(), room == same), (Some(2), true, true));
        let endless = RequestAllowance::default();
        assert_eq!((endless.take(), endless.used(), endless.is_overdrawn()), (true, None, false));
        assert!(endless.is_endless() && !room.is_endless() && room != RequestAllowance::of(2));
    }
}
