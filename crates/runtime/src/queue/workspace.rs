//! The lock of a workspace.
//!
//! Exclusive calls on one root run one at a time. The lock also works between processes that share a state directory:
//! its holder has an advisory lock on a file there. Without such a folder it works within the process only.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::canonical::ContentHash;
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::tool_id::ToolId;

use super::{Priority, PriorityQueue, QueueConfig, Slot, WaitBounds};
use crate::private_dir;

/// The first pause between two checks of a file that another process has locked, and the longest.
const MIN_LOCK_POLL: Duration = Duration::from_millis(1);
const MAX_LOCK_POLL: Duration = Duration::from_millis(32);

/// One lock for each workspace root, so that file and shell changes never race.
#[derive(Debug)]
pub(crate) struct WorkspaceLocks {
    /// The folder of lock files; `None`: the locks work within this process only.
    folder: Option<PathBuf>,
    state: Mutex<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    by_root: HashMap<PathBuf, Arc<WorkspaceLock>>,
    closed: Option<CancelCause>,
}

impl WorkspaceLocks {
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, state: Mutex::default() }
    }

    /// Returns the lock of this root.
    pub(crate) fn of(&self, root: &Path) -> Arc<WorkspaceLock> {
        let mut locks = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.by_root.get(root) {
            return Arc::clone(lock);
        }
        // All paths to the same folder have one lock.
        let real = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        let existing_lock = locks.by_root.values().find(|lock| lock.root == real).cloned();
        let lock = existing_lock.unwrap_or_else(|| {
            locks.by_root.retain(|_, lock| Arc::strong_count(lock) > 1);
            let file = self.folder.as_ref().map(|folder| folder.join(name_of(&real)));
            Arc::new(WorkspaceLock::new(real, file))
        });
        if let Some(cause) = locks.closed {
            lock.queue.close(cause);
        }
        locks.by_root.insert(root.to_owned(), Arc::clone(&lock));
        lock
    }

    /// Ends all waits and admits nobody any more.
    pub(crate) fn close(&self, cause: CancelCause) {
        let mut locks = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        locks.closed.get_or_insert(cause);
        locks.by_root.values().for_each(|lock| lock.queue.close(cause));
    }
}

/// Returns the name of the lock file of a root, without its extension.
fn name_of(root: &Path) -> String {
    let mut hash = ContentHash::of_bytes(root.as_os_str().as_encoded_bytes()).to_hex();
    hash.truncate(32);
    hash
}

/// The lock of one workspace root: a queue with one slot, and a file for other processes.
#[derive(Debug)]
pub(crate) struct WorkspaceLock {
    root: PathBuf,
    queue: Arc<PriorityQueue>,
    path: Option<PathBuf>,
    files: OnceCell<Option<Arc<LockFiles>>>,
}

impl WorkspaceLock {
    fn new(root: PathBuf, path: Option<PathBuf>) -> Self {
        let config = QueueConfig { concurrent: 1, per_minute: None, ..QueueConfig::default() };
        let queue = PriorityQueue::new("exclusive", format!("the exclusive lock of {}", root.display()), config);
        Self { root, queue, path, files: OnceCell::new() }
    }

    /// Takes the lock, waiting within these limits. `on_wait` gets the lock's name before each wait, once this call has
    /// its place in the queue.
    ///
    /// # Errors
    /// As [`PriorityQueue::take`].
    pub(crate) async fn take(
        &self,
        bounds: WaitBounds,
        tool: &ToolId,
        priority: Priority,
        cancel: &Cancel,
        on_wait: impl Fn(&str),
    ) -> Result<WorkspaceGuard, ToolError> {
        let until = Instant::now() + bounds.limit;
        let (slot, _) = self.queue.take_within(bounds, tool, priority, cancel, &on_wait).await?;
        let Some(files) = self.files().await else { return Ok(WorkspaceGuard { _file: None, _slot: slot }) };
        let locked = async {
            // The waiter for the lock holds the gate, so that a process with many calls cannot keep others out.
            let gate = files.take(LockPart::Gate, &on_wait).await;
            let held = files.take(LockPart::Held, &on_wait).await;
            drop(gate);
            held
        };
        tokio::select! {
            biased;
            held = locked => Ok(WorkspaceGuard { _file: Some(held), _slot: slot }),
            cause = cancel.cancelled() => Err(ToolError::canceled(cause).retryable()),
            () = tokio::time::sleep_until(until) => Err(ToolError::new(ErrorKind::LimitExceeded, format!(
                "the exclusive lock of {} was not free within {}; held by another process of Toolwright",
                self.root.display(), duration::format(bounds.limit),
            )).retryable()),
        }
    }

    /// Returns the lock's files, opened once.
    async fn files(&self) -> Option<Arc<LockFiles>> {
        let path = self.path.clone()?;
        let open = async || match tokio::task::spawn_blocking(move || LockFiles::open(&path))
            .await
            .unwrap_or_else(|error| Err(error.into()))
        {
            Ok(files) => Some(Arc::new(files)),
            Err(error) => {
                tracing::warn!("other processes are not kept out of {}: {error}", self.root.display());
                None
            }
        };
        self.files.get_or_init(open).await.clone()
    }
}

/// The two files of a lock, each opened once: the queue separates the calls of this process.
#[derive(Debug)]
struct LockFiles {
    gate: File,
    held: File,
}

#[derive(Debug, Clone, Copy)]
enum LockPart {
    /// Held by the next one to get the lock.
    Gate,
    /// The lock.
    Held,
}

impl LockFiles {
    fn open(path: &Path) -> std::io::Result<Self> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        if let Some(folder) = path.parent() {
            private_dir(folder)?;
        }
        Ok(Self { gate: options.open(path.with_extension("gate"))?, held: options.open(path.with_extension("lock"))? })
    }

    fn file(&self, part: LockPart) -> &File {
        match part {
            LockPart::Gate => &self.gate,
            LockPart::Held => &self.held,
        }
    }

    /// Waits for the lock on a file without blocking the thread. On file systems without locks, nothing is locked.
    async fn take(self: &Arc<Self>, part: LockPart, on_wait: &impl Fn(&str)) -> FileGuard {
        let mut pause = MIN_LOCK_POLL;
        while let Err(TryLockError::WouldBlock) = self.file(part).try_lock() {
            on_wait("exclusive");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_LOCK_POLL);
        }
        FileGuard(Arc::clone(self), part)
    }
}

/// A lock on a file, released on drop.
#[derive(Debug)]
struct FileGuard(Arc<LockFiles>, LockPart);

impl Drop for FileGuard {
    fn drop(&mut self) {
        // Closing the file at the end of the process also unlocks it.
        let _ = self.0.file(self.1).unlock();
    }
}

/// The lock of a workspace, released on drop: first for other processes.
#[derive(Debug)]
pub(crate) struct WorkspaceGuard {
    _file: Option<FileGuard>,
    _slot: Slot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_a_root_share_its_lock() {
        let dir = tempfile::tempdir().expect("dir");
        let locks = WorkspaceLocks::new(None);
        let same = |a: &Path, b: &Path| Arc::ptr_eq(&locks.of(a), &locks.of(b));
        assert!(same(dir.path(), &dir.path().join(".")) && !same(dir.path(), Path::new("/nowhere")));
    }
}
