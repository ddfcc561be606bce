//! Holds MCP's roots: the folders that tools' sources may work in, for questions outside of calls.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use event_listener::Event as Wakeup;
use serde_json::{Value, json};

/// What the sources of a process are told when they ask `roots/list` while no call runs whose client could be asked: one
/// answer for all that they are used for. A process with one client tells its folders. Where there are several, or none
/// yet, nothing is told (the default): a source that was told of no folder might not ask in a call any more.
pub struct Roots {
    state: Mutex<State>,
    changed: Wakeup,
}

struct State {
    known: Known,
    /// Changes with what is known.
    version: u64,
}

enum Known {
    /// There is no one client whose they are.
    NobodysOwn,
    /// The client that is to come has not told yet.
    Awaited,
    /// `ListRootsResult`.
    Given(Value),
}

impl Known {
    fn value(&self) -> Option<&Value> {
        match self {
            Self::Given(result) => Some(result),
            Self::NobodysOwn | Self::Awaited => None,
        }
    }
}

impl Roots {
    /// No folder.
    #[must_use]
    pub fn none() -> Value {
        json!({"roots": []})
    }

    /// From now on it is not known, until [`Roots::set`]: a client is to come that tells.
    pub fn expect_client(&self) {
        self.lock().known = Known::Awaited;
    }

    /// Nothing is told from now on: the client that has come is asked in its calls only.
    pub fn withhold(&self) {
        self.lock().known = Known::NobodysOwn;
        self.changed.notify(usize::MAX);
    }

    /// Tells these folders (MCP, `ListRootsResult`) from now on.
    pub fn set(&self, result: Value) {
        {
            let mut state = self.lock();
            if state.known.value() == Some(&result) {
                return;
            }
            (state.known, state.version) = (Known::Given(result), state.version.wrapping_add(1));
        }
        self.changed.notify(usize::MAX);
    }

    /// Whether there is one client whose folders are told, or will be when it has come.
    #[must_use]
    pub fn are_known(&self) -> bool {
        !matches!(self.lock().known, Known::NobodysOwn)
    }

    /// Whether a client is still to come.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        matches!(self.lock().known, Known::Awaited)
    }

    /// The version of what is known; it changes with that.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// What is told, once a client that is awaited has come; `None` where nothing is told. Cancel-safe.
    pub async fn known(&self) -> Option<Value> {
        self.when(|state| match &state.known {
            Known::Awaited => None,
            Known::NobodysOwn => Some(None),
            Known::Given(result) => Some(Some(result.clone())),
        })
        .await
    }

    /// Waits until another version than this is known; that one. Cancel-safe.
    pub async fn newer_than(&self, seen: u64) -> u64 {
        self.when(|state| (state.version != seen && state.known.value().is_some()).then_some(state.version)).await
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
        Self { state: Mutex::new(State { known: Known::NobodysOwn, version: 0 }), changed: Wakeup::new() }
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots").finish_non_exhaustive()
    }
}
