//! The folders that tools' sources may work in, as far as they ask outside of calls: MCP's roots.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use event_listener::Event as Wakeup;
use serde_json::{Value, json};

/// What the sources of a process are told when they ask `roots/list` while no call runs whose client could be asked: one
/// answer for all that they are used for. A process with one client tells its folders; one with several has none that hold
/// for all of them.
pub struct Roots {
    state: Mutex<State>,
    changed: Wakeup,
}

struct State {
    /// `ListRootsResult`; `None` until the client that is to come has told.
    known: Option<Value>,
    /// Changes with what is known.
    version: u64,
}

impl Roots {
    /// These folders (MCP, `ListRootsResult`).
    #[must_use]
    pub fn new(result: Value) -> Self {
        Self { state: Mutex::new(State { known: Some(result), version: 0 }), changed: Wakeup::new() }
    }

    /// No folder.
    #[must_use]
    pub fn none() -> Value {
        json!({"roots": []})
    }

    /// From now on it is not known, until [`Roots::set`]: a client is to come that tells.
    pub fn expect_client(&self) {
        self.lock().known = None;
    }

    /// Tells these folders (MCP, `ListRootsResult`) from now on.
    pub fn set(&self, result: Value) {
        {
            let mut state = self.lock();
            if state.known.as_ref() == Some(&result) {
                return;
            }
            (state.known, state.version) = (Some(result), state.version.wrapping_add(1));
        }
        self.changed.notify(usize::MAX);
    }

    /// Whether a client is still to come.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.lock().known.is_none()
    }

    /// The version of what is known; it changes with that.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// What is known, once anything is. Cancel-safe.
    pub async fn known(&self) -> Value {
        self.when(|state| state.known.clone()).await
    }

    /// Waits until another version than this is known; that one. Cancel-safe.
    pub async fn newer_than(&self, seen: u64) -> u64 {
        self.when(|state| (state.version != seen && state.known.is_some()).then_some(state.version)).await
    }

    async fn when<T>(&self, look: impl Fn(&State) -> Option<T>) -> T {
        loop {
            // Listen first, look second: a change between the two is not missed.
            let woken = self.changed.listen();
            if let Some(found) = look(&self.lock()) {
                return found;
            }
            woken.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Roots {
    fn default() -> Self {
        Self::new(Self::none())
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots").finish_non_exhaustive()
    }
}
