//! The executor, the live catalogue, and the stores and clocks that they need. This module records what each session
//! has read.
//!
//! Every tool call goes through [`Executor::execute`]: from the agent loop, the gateway and the command line.

pub mod approvals;
pub mod catalogue;
pub mod events;
pub mod executor;
pub mod jobs;
pub mod models;
pub mod outputs;
pub mod queue;
pub mod redact;
pub mod state;
pub mod store;

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use toolwright_core::context::{FileState, Manuals, SeenFile};
use toolwright_core::error::Unsupported;
use toolwright_core::session::SessionId;
use toolwright_core::{Clock, ContentHash};

pub use approvals::{FormInbox, FormInboxOptions, Inbox, InboxOptions};
pub use catalogue::{Catalogue, Pins};
pub use events::{EventHub, ObserverHandle};
pub use executor::{Executor, ExecutorOptions, ModelJudge, RecoveryOptions, RunContext};
pub use jobs::JobManager;
pub use jobs::triggers::{self, TriggerManager, TriggerRunner};
pub use models::{AgentBudget, Budgets, ModelQueueConfig, ModelTraffic, Recorder, TrafficConfig};
pub use outputs::OutputFiles;
pub use outputs::cache::Responses;
pub use queue::{CallOrder, Priority, QueueConfig, Queues};
pub use redact::SecretRedactor;
pub use state::RunVariables;
pub use store::{SqliteStore, StoredMemory};

/// Creates a directory and its parents, readable by the user alone.
pub(crate) fn private_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// The system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// The most entries over all sessions. The oldest are forgotten, which only costs a second read.
const MAX: usize = 10_000;

/// Records of what sessions have read, oldest first.
#[derive(Debug)]
struct ReadHistory<K, V> {
    values: HashMap<(SessionId, K), V>,
    order: VecDeque<(SessionId, K)>,
}

impl<K, V> Default for ReadHistory<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, V> ReadHistory<K, V> {
    fn insert(&mut self, session: &SessionId, what: K, value: V) {
        let key = (session.clone(), what);
        if self.values.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}

fn lock<T>(read: &Mutex<T>) -> MutexGuard<'_, T> {
    read.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files that sessions have read, in memory.
#[derive(Debug, Default)]
pub struct SessionFiles(Mutex<ReadHistory<PathBuf, SeenFile>>);

impl FileState for SessionFiles {
    fn record_seen(&self, session: &SessionId, path: &Path, version: SeenFile) {
        lock(&self.0).insert(session, path.to_owned(), version);
    }

    fn seen(&self, session: &SessionId, path: &Path) -> Result<Option<SeenFile>, Unsupported> {
        Ok(lock(&self.0).values.get(&(session.clone(), path.to_owned())).copied())
    }
}

/// The manuals that sessions have read, in memory.
#[derive(Debug, Default)]
pub struct SessionManuals(Mutex<ReadHistory<ContentHash, ()>>);

impl Manuals for SessionManuals {
    fn read(&self, session: &SessionId, definition: ContentHash) {
        lock(&self.0).insert(session, definition, ());
    }

    fn was_read(&self, session: &SessionId, definition: ContentHash) -> bool {
        lock(&self.0).values.contains_key(&(session.clone(), definition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_seen_belong_to_their_session() {
        let files = SessionFiles::default();
        let (a, b) = (SessionId::new("a"), SessionId::new("b"));
        let seen = SeenFile { hash: ContentHash::of_bytes(b"x"), modified: None };
        files.record_seen(&a, Path::new("/f"), seen);
        files.record_seen(&a, Path::new("/f"), seen);
        assert_eq!(files.seen(&a, Path::new("/f")), Ok(Some(seen)));
        assert_eq!(files.seen(&b, Path::new("/f")), Ok(None));
        for n in 0..MAX {
            files.record_seen(&b, Path::new(&format!("/{n}")), seen);
        }
        assert_eq!(files.seen(&a, Path::new("/f")), Ok(None), "the oldest is forgotten");
    }
}
