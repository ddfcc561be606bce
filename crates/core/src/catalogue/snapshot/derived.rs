//! Caches values that are derived from a snapshot, for as long as the snapshot lives.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::Snapshot;

/// Maximal number; a further one replaces the oldest.
const MOST: usize = 64;

type DerivedValue = (String, Arc<dyn Any + Send + Sync>);

/// Derived values by key, oldest first.
#[derive(Default)]
pub(super) struct Derived(Mutex<Vec<DerivedValue>>);

impl fmt::Debug for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Derived").finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Returns the value of `make` for this snapshot, computed once per `key`. It must not hold the snapshot itself,
    /// which would never be freed.
    pub fn derived<T: Any + Send + Sync>(&self, key: &str, make: impl FnOnce(&Self) -> T) -> Arc<T> {
        let find = |kept: &[DerivedValue]| {
            let (_, value) = kept.iter().find(|(known, value)| known == key && value.is::<T>())?;
            Arc::clone(value).downcast::<T>().ok()
        };
        let lock = || self.derived.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = find(&lock()) {
            return known;
        }
        let made = Arc::new(make(self));
        let mut kept = lock();
        // A concurrent caller may have made it; all share one.
        if let Some(known) = find(&kept) {
            return known;
        }
        if kept.len() == MOST {
            kept.remove(0);
        }
        kept.push((key.to_owned(), Arc::clone(&made) as _));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_made_once() {
        let snapshot = Snapshot::default();
        let make = |key: &str, made: usize| *snapshot.derived(key, |_| made);
        assert_eq!((make("a", 1), make("b", 2), make("a", 3)), (1, 2, 1));
        assert_eq!(*snapshot.derived("a", |_| "of another type"), "of another type");
        for n in 0..MOST {
            make(&n.to_string(), n);
        }
        assert_eq!(make("a", 4), 4, "the oldest goes where there are too many");
    }
}
