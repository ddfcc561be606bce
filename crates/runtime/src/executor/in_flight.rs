//! Which providers have calls under way, so that a replaced one is shut down only when its last is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use toolwright_core::catalogue::Provider;

/// Calls under way by provider. Providers are told apart by identity: an old and a new one of the same
/// name are two.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    calls: Mutex<HashMap<usize, usize>>,
}

impl InFlight {
    /// Counts a call until the guard is dropped.
    pub(super) fn enter(&self, provider: &Arc<dyn Provider>) -> Entered<'_> {
        let key = identity(provider);
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
        Entered { calls: &self.calls, key }
    }

    /// The calls under way.
    pub(super) fn count(&self, provider: &Arc<dyn Provider>) -> usize {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.get(&identity(provider)).copied().unwrap_or(0)
    }
}

pub(super) struct Entered<'a> {
    calls: &'a Mutex<HashMap<usize, usize>>,
    key: usize,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = calls.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                calls.remove(&self.key);
            }
        }
    }
}

fn identity(provider: &Arc<dyn Provider>) -> usize {
    Arc::as_ptr(provider).cast::<()>().addr()
}
