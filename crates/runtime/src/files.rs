//! Records which files each session has read, so that a tool overwrites only files that were read.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use toolwright_core::context::{FileSeen, FileState};
use toolwright_core::error::Unsupported;
use toolwright_core::session::SessionId;

/// Files remembered over all sessions; the oldest are forgotten, which only costs a second read.
const MAX_FILES: usize = 10_000;

/// Read state in memory.
#[derive(Debug, Default)]
pub struct SessionFiles {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: HashMap<(SessionId, PathBuf), FileSeen>,
    order: VecDeque<(SessionId, PathBuf)>,
}

impl FileState for SessionFiles {
    fn saw(&self, session: &SessionId, path: &Path, seen: FileSeen) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (session.clone(), path.to_owned());
        if state.seen.insert(key.clone(), seen).is_none() {
            state.order.push_back(key);
            if state.order.len() > MAX_FILES
                && let Some(oldest) = state.order.pop_front()
            {
                state.seen.remove(&oldest);
            }
        }
    }

    fn seen(&self, session: &SessionId, path: &Path) -> Result<Option<FileSeen>, Unsupported> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(state.seen.get(&(session.clone(), path.to_owned())).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::ContentHash;

    #[test]
    fn read_state_belongs_to_its_session_and_is_bounded() {
        let files = SessionFiles::default();
        let (a, b) = (SessionId::new("a"), SessionId::new("b"));
        let seen = FileSeen { hash: ContentHash::of_bytes(b"x"), modified: None };
        files.saw(&a, Path::new("/f"), seen);
        assert_eq!(files.seen(&a, Path::new("/f")), Ok(Some(seen)));
        assert_eq!(files.seen(&b, Path::new("/f")), Ok(None));
        for n in 0..MAX_FILES {
            files.saw(&b, Path::new(&format!("/{n}")), seen);
        }
        assert_eq!(files.seen(&a, Path::new("/f")), Ok(None), "the oldest is forgotten");
    }
}
