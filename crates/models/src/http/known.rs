//! What was found out on the way, kept up to a bound.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries that are kept; past that all are forgotten and found out again.
const MAX_KNOWN: usize = 256;

/// A set of names.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashSet<String>>);

impl Known {
    /// Adds a name; false if it is there already.
    pub(crate) fn note(&self, name: &str) -> bool {
        let mut names = self.names();
        if names.contains(name) {
            return false;
        }
        if names.len() >= MAX_KNOWN {
            names.clear();
        }
        names.insert(name.to_owned())
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_up_to_a_bound() {
        let known = Known::default();
        assert!(known.note("a") && !known.note("a"));
        (0..MAX_KNOWN).for_each(|number| assert!(known.note(&number.to_string())));
        assert!(known.note("a") && known.names().len() <= MAX_KNOWN);
    }
}
