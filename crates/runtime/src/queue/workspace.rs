//! The lock of a workspace, and the order in which the calls of one connection use it.
//!
//! Exclusive calls on one root run one at a time. The lock also works between processes that share a state directory:
//! its holder has an advisory lock on a file there. Without such a folder it works within the process only.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::{OnceCell, watch};
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

/// How a call uses what calls share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedUse {
    /// It only reads the workspace, concurrently with other readers.
    Reads,
    /// It is exclusive in the workspace.
    Writes,
    /// It uses a state outside the workspace, after the ordered calls before it.
    Ordered,
}

impl SharedUse {
    /// Returns whether a call may run although an earlier one, which uses this, has not ended. Writers may: they take the
    /// lock in order.
    fn passes(self, earlier: Self) -> bool {
        use SharedUse::{Ordered, Reads, Writes};
        match (self, earlier) {
            (Reads, Reads) | (Writes, Writes) => true,
            (Reads, Writes) | (Writes, Reads) | (Ordered, Ordered) => false,
            (Ordered, _) | (_, Ordered) => true,
        }
    }
}

/// The order of the calls of one connection, or of one turn: a writing call waits for the readers before it, a reading
/// call for the writers before it, writers take the lock in order, and an ordered call waits for the ordered calls before
/// it. Calls of other orders are not waited for. A call leaves its order when it ends, asks a question, goes to the
/// background or uses nothing that calls share.
#[derive(Debug, Clone)]
pub struct CallOrder(Arc<watch::Sender<Calls>>);

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    /// How each call uses what calls share; `None` if not known yet.
    open: BTreeMap<u64, Option<SharedUse>>,
}

impl Default for CallOrder {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Calls::default())))
    }
}

impl CallOrder {
    /// Returns the turn of a call that has just arrived. Calls arrive in the order of calls to this method.
    #[must_use]
    pub fn arrive(&self) -> Arc<WorkspaceTurn> {
        let mut number = 0;
        self.change(|calls| {
            number = calls.next;
            calls.next += 1;
            calls.open.insert(number, None);
            // No call waits for a later one.
            false
        });
        Arc::new(WorkspaceTurn { order: Some((self.clone(), number)), lock: Mutex::default() })
    }

    /// Changes the calls, and wakes those that wait if `change` returns true. One that begins to wait meanwhile sees the
    /// change.
    fn change(&self, change: impl FnOnce(&mut Calls) -> bool) {
        self.0.send_if_modified(|calls| change(calls) && self.0.receiver_count() > 0);
    }
}

/// The place of one call in its order, and its lock on the workspace.
#[derive(Debug, Default)]
pub struct WorkspaceTurn {
    order: Option<(CallOrder, u64)>,
    lock: Mutex<Option<WorkspaceGuard>>,
}

impl WorkspaceTurn {
    fn lock(&self) -> MutexGuard<'_, Option<WorkspaceGuard>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets later calls pass.
    pub(crate) fn leave_order(&self) {
        if let Some((order, number)) = &self.order {
            order.change(|calls| calls.open.remove(number).is_some());
        }
    }

    /// Lets later calls pass, and releases the workspace.
    pub(crate) fn release(&self) {
        self.leave_order();
        let guard = self.lock().take();
        drop(guard);
    }

    /// Records what this call uses, for later calls.
    pub(crate) fn note(&self, usage: SharedUse) {
        if let Some((order, number)) = &self.order {
            order.change(|calls| match calls.open.get_mut(number) {
                Some(noted) => noted.replace(usage) != Some(usage),
                None => false,
            });
        }
    }

    /// Waits until each earlier call has ended or is known to use what this one can pass.
    pub(crate) async fn after_others(&self, usage: SharedUse) {
        let Some((order, number)) = &self.order else { return };
        let is_next = |calls: &Calls| {
            !calls.open.contains_key(number)
                || calls.open.range(..number).all(|(_, other)| other.is_some_and(|other| usage.passes(other)))
        };
        // The sender lives as long as this order.
        let _ = order.0.subscribe().wait_for(is_next).await;
    }

    pub(crate) fn hold(&self, guard: WorkspaceGuard) {
        *self.lock() = Some(guard);
    }
}

impl Drop for WorkspaceTurn {
    fn drop(&mut self) {
        self.leave_order();
    }
}

/// A turn that ends on drop.
#[derive(Debug)]
pub(crate) struct HeldTurn(pub(crate) Arc<WorkspaceTurn>);

impl Drop for HeldTurn {
    fn drop(&mut self) {
        self.0.release();
    }
}

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
        let known = locks.by_root.values().find(|lock| lock.root == real).cloned();
        let lock = known.unwrap_or_else(|| {
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
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn calls_wait_for_others_before_them() {
        use SharedUse::{Ordered, Reads, Writes};
        // What the first two calls use, if known, and whether a third may continue that reads, writes, or is ordered.
        let check = |before: [Option<SharedUse>; 2], reads: bool, writes: bool, ordered: bool| {
            for (usage, may_run) in [(Reads, reads), (Writes, writes), (Ordered, ordered)] {
                let order = CallOrder::default();
                let [first, second, third] = [order.arrive(), order.arrive(), order.arrive()];
                for (turn, usage) in [(&first, before[0]), (&second, before[1])] {
                    usage.inspect(|usage| turn.note(*usage));
                }
                assert_eq!(third.after_others(usage).now_or_never().is_some(), may_run, "{before:?} {usage:?}");
                first.leave_order();
                drop(second);
                assert!(third.after_others(usage).now_or_never().is_some());
            }
        };
        check([None, None], false, false, false);
        check([Some(Reads), Some(Reads)], true, false, true);
        check([Some(Writes), Some(Writes)], false, true, true);
        check([Some(Writes), None], false, false, false);
        check([Some(Writes), Some(Reads)], false, false, true);
        check([Some(Ordered), Some(Reads)], true, false, false);
        check([Some(Writes), Some(Ordered)], false, true, false);
    }

    #[test]
    fn links_to_a_root_share_its_lock() {
        let dir = tempfile::tempdir().expect("dir");
        let locks = WorkspaceLocks::new(None);
        let same = |a: &Path, b: &Path| Arc::ptr_eq(&locks.of(a), &locks.of(b));
        assert!(same(dir.path(), &dir.path().join(".")) && !same(dir.path(), Path::new("/nowhere")));
    }
}
