//! Caches which sessions have stored outputs, because every call asks.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use toolwright_core::session::SessionId;

/// How long an answer holds: other processes store and delete outputs too.
const HOLDS: Duration = Duration::from_secs(1);
/// Sessions that are remembered at once.
const MAX: usize = 256;

/// Answers of a moment ago.
#[derive(Debug, Default)]
pub(super) struct Presence(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_session: HashMap<SessionId, (Instant, bool)>,
    /// How often all was forgotten.
    forgotten: u64,
}

impl Presence {
    /// Whether this session has outputs, by `look` if it was not asked just now.
    pub(super) fn has(&self, session: &SessionId, look: impl FnOnce() -> bool) -> bool {
        let now = Instant::now();
        let before = {
            let known = self.lock();
            match known.by_session.get(session) {
                Some((at, has)) if now.saturating_duration_since(*at) < HOLDS => return *has,
                _ => known.forgotten,
            }
        };
        let has = look();
        let mut known = self.lock();
        // What was seen before something was stored is old already.
        if known.forgotten == before {
            if known.by_session.len() >= MAX {
                known.by_session.clear();
            }
            known.by_session.insert(session.clone(), (now, has));
        }
        has
    }

    /// An output was stored, or some were deleted: nothing is known any more.
    pub(super) fn forget(&self) {
        let mut known = self.lock();
        known.by_session.clear();
        known.forgotten += 1;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
