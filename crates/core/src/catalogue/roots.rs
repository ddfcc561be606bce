//! Holds MCP's roots: the folders that tools' sources may work in, for questions outside of calls.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use event_listener::Event as Wakeup;
use serde_json::{Value, json};

/// Answers `roots/list` of a source while no call runs whose client could be asked. A process with one client
/// answers with that client's folders. With several clients, or none, there is no answer (the default): a source that
/// once got an empty list might not ask again during a call.
pub struct Roots {
    state: Mutex<State>,
    changed: Wakeup,
}

struct State {
    known: RootsState,
    /// Changes with `known`.
    version: u64,
}

enum RootsState {
    /// The process has several clients, or none.
    NobodysOwn,
    /// The one client has not given its folders yet.
    Awaited,
    /// The `ListRootsResult` of the one client.
    Given(Value),
}

impl RootsState {
    fn value(&self) -> Option<&Value> {
        match self {
            Self::Given(result) => Some(result),
            Self::NobodysOwn | Self::Awaited => None,
        }
    }
}

impl Roots {
    /// An answer without folders.
    #[must_use]
    pub fn none() -> Value {
        json!({"roots": []})
    }

    /// Expects one client, which will set its folders with [`Roots::set`].
    pub fn expect_client(&self) {
        self.lock().known = RootsState::Awaited;
    }

    /// Stops answering: the client is asked during its calls only.
    pub fn withhold(&self) {
        self.lock().known = RootsState::NobodysOwn;
        self.changed.notify(usize::MAX);
    }

    /// Answers with these folders (MCP, `ListRootsResult`) from now on.
    pub fn set(&self, result: Value) {
        {
            let mut state = self.lock();
            if state.known.value() == Some(&result) {
                return;
            }
            (state.known, state.version) = (RootsState::Given(result), state.version.wrapping_add(1));
        }
        self.changed.notify(usize::MAX);
    }

    /// Whether there is an answer, or will be once the expected client has connected.
    #[must_use]
    pub fn are_known(&self) -> bool {
        !matches!(self.lock().known, RootsState::NobodysOwn)
    }

    /// Whether the expected client has not sent its folders yet.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        matches!(self.lock().known, RootsState::Awaited)
    }

    /// The version of the answer. It changes with the answer.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// Returns the answer; waits for the expected client. `None` if there is no answer. Cancel-safe.
    pub async fn known(&self) -> Option<Value> {
        self.when(|state| match &state.known {
            RootsState::Awaited => None,
            RootsState::NobodysOwn => Some(None),
            RootsState::Given(result) => Some(Some(result.clone())),
        })
        .await
    }

    /// Waits for a version other than `seen`, and returns it. Cancel-safe.
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
        Self { state: Mutex::new(State { known: RootsState::NobodysOwn, version: 0 }), changed: Wakeup::new() }
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots").finish_non_exhaustive()
    }
}
