//! Records which manuals each session has read.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use toolwright_core::ContentHash;
use toolwright_core::context::Manuals;
use toolwright_core::session::SessionId;

/// Manuals remembered over all sessions; the oldest are forgotten, which only costs a second read.
const MAX: usize = 10_000;

/// Read manuals in memory.
#[derive(Debug, Default)]
pub struct SessionManuals(Mutex<Read>);

#[derive(Debug, Default)]
struct Read {
    known: HashSet<(SessionId, ContentHash)>,
    order: VecDeque<(SessionId, ContentHash)>,
}

impl Manuals for SessionManuals {
    fn read(&self, session: &SessionId, definition: ContentHash) {
        let mut read = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (session.clone(), definition);
        if read.known.insert(key.clone()) {
            read.order.push_back(key);
        }
        if read.order.len() > MAX
            && let Some(oldest) = read.order.pop_front()
        {
            read.known.remove(&oldest);
        }
    }

    fn was_read(&self, session: &SessionId, definition: ContentHash) -> bool {
        let read = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        read.known.contains(&(session.clone(), definition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_belongs_to_its_session_and_is_bounded() {
        let manuals = SessionManuals::default();
        let (a, b) = (SessionId::new("a"), SessionId::new("b"));
        let hash = |n: usize| ContentHash::of_bytes(&n.to_be_bytes());
        manuals.read(&a, hash(0));
        manuals.read(&a, hash(0));
        assert!(manuals.was_read(&a, hash(0)) && !manuals.was_read(&b, hash(0)));
        for n in 0..MAX {
            manuals.read(&b, hash(n));
        }
        assert!(!manuals.was_read(&a, hash(0)) && manuals.was_read(&b, hash(0)));
    }
}
