//! The thread that owns the SQLite connection, so that SQLite does not block the async runtime.

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::{Notify, oneshot};
use toolwright_core::operation::OpId;
use toolwright_core::store::{AppendStatus, LedgerEntry, LedgerHealth, StoreError};

use super::begun_journal::{self, BegunJournal};
use super::file::OpenDatabase;
use super::retention::Retention;
use crate::store::ledger::{self, LedgerBatch};

/// Most queued requests; further callers wait for room.
const MAX_WAITING: usize = 1024;
/// Age at which queued ledger entries are written.
const MAX_AGE: Duration = Duration::from_millis(40);
/// Delay before entries that could not be written are tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// Shortest time between two log messages that the ledger cannot be written.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// Number of queued entries that wakes the thread before [`MAX_AGE`].
const MAX_BATCH: usize = 2048;
/// Queued entries from which appenders are asked to wait: some 20 MB.
const HIGH_WATER: usize = 32_768;

type ReplySender<T> = oneshot::Sender<Result<T, Arc<rusqlite::Error>>>;

type DatabaseWork = Box<dyn FnOnce(&mut OpenDatabase<'_>) + Send>;
type AnyValue = Box<dyn Any + Send>;
type AnyWork = Box<dyn FnOnce(&mut OpenDatabase<'_>) -> Result<AnyValue, Arc<rusqlite::Error>> + Send>;

/// The work queued for the thread.
struct Backlog {
    entries: Vec<LedgerEntry>,
    /// Operations that have begun and are in the journal. Those that have not ended by the next batch get a row.
    journalled: Vec<LedgerEntry>,
    journal: BegunJournal,
    /// Whether the ledger has been written, so that the journal alone may record a beginning.
    has_written: bool,
    /// Operations that begin once their rows are written, and their waiting callers. Those that arrive during a write
    /// share the next commit.
    begun: Vec<(LedgerEntry, ReplySender<()>)>,
    /// When the oldest entry was queued, or put back.
    since: Option<Instant>,
    /// Whether the thread wakes within [`MAX_AGE`] by itself, so that entries need not wake it.
    is_watched: bool,
    /// Whether the last write of the entries failed. Requests run before the next try.
    kept: bool,
    /// Why the last write of the ledger failed, and when that was logged.
    failing: Option<(String, Instant)>,
    work: VecDeque<DatabaseWork>,
    closed: bool,
    /// Whether the thread has ended and accepts nothing.
    ended: bool,
}

impl Backlog {
    fn new(path: &Path) -> Self {
        Self {
            entries: Vec::new(),
            journalled: Vec::new(),
            journal: BegunJournal::of(path),
            has_written: false,
            begun: Vec::new(),
            since: None,
            is_watched: false,
            kept: false,
            failing: None,
            work: VecDeque::new(),
            closed: false,
            ended: false,
        }
    }

    /// Returns the number of entries that the next batch writes.
    fn in_line(&self) -> usize {
        self.entries.len() + self.journalled.len()
    }

    /// Notes that an entry was queued. Returns whether that wakes the thread: the first entry starts its timer, and a
    /// full batch is written at once.
    fn wakes(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now);
        let in_line = self.in_line();
        (in_line == 1 && !self.is_watched) || in_line == MAX_BATCH
    }
}

struct Shared {
    path: Arc<Path>,
    backlog: Mutex<Backlog>,
    /// Wakes the thread for new work.
    filled: Condvar,
    /// Wakes callers that wait for room.
    emptied: Notify,
    /// Entries that could not be written, or came after the thread had ended.
    lost: AtomicU64,
    /// Failed writes of the ledger.
    failures: AtomicU64,
}

impl Shared {
    fn new(path: Arc<Path>) -> Self {
        Self {
            backlog: Mutex::new(Backlog::new(&path)),
            path,
            filled: Condvar::new(),
            emptied: Notify::new(),
            lost: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_lost(&self, count: usize, why: impl std::fmt::Display) {
        self.backlog().kept = false;
        self.lost.fetch_add(count as u64, Ordering::Relaxed);
        self.failed(&why.to_string());
    }

    /// Logs that the ledger could not be written, at most once per [`TELL_AGAIN`].
    fn failed(&self, why: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let (warned, waiting) = {
            let mut backlog = self.backlog();
            let warned = backlog
                .failing
                .take()
                .map(|(_, warned)| warned)
                .filter(|warned| now.duration_since(*warned) < TELL_AGAIN);
            backlog.failing = Some((why.to_owned(), warned.unwrap_or(now)));
            (warned, backlog.entries.len())
        };
        if warned.is_none() {
            let lost = self.lost.load(Ordering::Relaxed);
            tracing::error!(
                "the ledger cannot be written ({}): {why}; {waiting} entries wait in memory, {lost} are lost; see that its disk \
                 has room and can be written",
                self.path.display()
            );
        }
    }

    /// Records that the ledger was written.
    fn succeeded(&self) {
        let failing = {
            let mut backlog = self.backlog();
            backlog.kept = false;
            backlog.failing.take()
        };
        if failing.is_some() {
            tracing::error!("the ledger is written again ({})", self.path.display());
        }
    }

    /// Records that a batch was committed. Without `has_journalled` it had only operations whose callers wait.
    fn committed(&self, has_journalled: bool) {
        let mut backlog = self.backlog();
        backlog.has_written = true;
        if has_journalled {
            backlog.journal.committed();
        }
        drop(backlog);
        self.succeeded();
    }

    /// Puts entries back at the front of the queue for another try. Past the high-water mark and while the store closes
    /// they are lost, because neither memory nor a wait may grow without bound; the journal keeps what has begun.
    fn keep(&self, mut entries: Vec<LedgerEntry>, mut journalled: Vec<LedgerEntry>, why: &rusqlite::Error) {
        let mut backlog = self.backlog();
        if !backlog.closed {
            journalled.append(&mut backlog.journalled);
            backlog.journalled = journalled;
            backlog.since = Some(Instant::now());
        }
        if backlog.closed || entries.len() + backlog.entries.len() >= HIGH_WATER {
            drop(backlog);
            return self.record_lost(entries.len(), why);
        }
        entries.append(&mut backlog.entries);
        backlog.entries = entries;
        backlog.kept = true;
        drop(backlog);
        self.failed(&why.to_string());
    }
}

pub(in crate::store) struct StoreThread {
    shared: Arc<Shared>,
    path: Arc<Path>,
}

impl std::fmt::Debug for StoreThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreThread").field("path", &self.path).finish_non_exhaustive()
    }
}

impl StoreThread {
    pub(in crate::store) fn start(path: PathBuf, retention: Retention) -> Result<Self, StoreError> {
        let path: Arc<Path> = path.into();
        let shared = Arc::new(Shared::new(Arc::clone(&path)));
        let (its, own) = (Arc::clone(&shared), Arc::clone(&path));
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || serve(&its, OpenDatabase::new(&own), retention))
            .map_err(|error| StoreError::failed("start its thread", error))?;
        Ok(Self { shared, path })
    }

    /// Runs `work` on the connection, after everything that was sent before it.
    pub(in crate::store) async fn run<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let work = |opened: &mut OpenDatabase<'_>| {
            opened.connection().and_then(|db| work(db).map_err(Arc::new)).map(|value| Box::new(value) as AnyValue)
        };
        let value = self.run_on(doing, Box::new(work)).await?;
        value.downcast().map(|value| *value).map_err(|_| self.ended(doing))
    }

    /// Like [`StoreThread::run`], for any type of value: the many callers share its code.
    async fn run_on(&self, doing: &'static str, work: AnyWork) -> Result<AnyValue, StoreError> {
        let (reply, answer) = oneshot::channel();
        let mut request: Option<DatabaseWork> = Some(Box::new(move |opened| {
            let result = work(opened);
            // The caller may have been dropped.
            let _ = reply.send(result);
        }));
        loop {
            let room = self.shared.emptied.notified();
            {
                let mut backlog = self.shared.backlog();
                if backlog.ended {
                    return Err(self.ended(doing));
                }
                if backlog.work.len() < MAX_WAITING {
                    backlog.work.extend(request.take());
                    break;
                }
            }
            room.await;
        }
        self.shared.filled.notify_one();
        match answer.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(StoreError::Failed { doing: self.failure_text(doing), source }),
            Err(_) => Err(self.ended(doing)),
        }
    }

    /// Waits until earlier entries are written.
    pub(in crate::store) async fn flush(&self) -> Result<(), StoreError> {
        const DOING: &str = "flush the ledger";
        // Entries are written before the requests that came after them, unless the last write failed.
        self.run(DOING, |_| Ok(())).await?;
        self.check_writable(DOING)
    }

    /// Fails if appended entries wait after a failed write.
    fn check_writable(&self, doing: &str) -> Result<(), StoreError> {
        let backlog = self.shared.backlog();
        let Some((why, _)) = backlog.failing.as_ref().filter(|_| backlog.kept) else { return Ok(()) };
        let waiting = std::io::Error::other(format!("{why}; entries wait until they can be written"));
        Err(StoreError::failed(self.failure_text(doing), waiting))
    }

    /// Finishes earlier requests, then closes the file if its WAL is long. The next request opens it again.
    pub(in crate::store) async fn close(&self) -> Result<(), StoreError> {
        const DOING: &str = "close its file";
        let close = |opened: &mut OpenDatabase<'_>| {
            opened.close();
            Ok(Box::new(()) as AnyValue)
        };
        self.run_on(DOING, Box::new(close)).await?;
        self.check_writable(DOING)
    }

    fn failure_text(&self, doing: &str) -> String {
        format!("{doing} ({})", self.path.display())
    }

    fn ended(&self, doing: &str) -> StoreError {
        StoreError::failed(self.failure_text(doing), std::io::Error::other("the store's thread panicked or has ended"))
    }

    pub(in crate::store) fn append(&self, entry: LedgerEntry) -> AppendStatus {
        let (waiting, wakes) = {
            let mut backlog = self.shared.backlog();
            if backlog.ended {
                self.shared.lost.fetch_add(1, Ordering::Relaxed);
                return AppendStatus::Room;
            }
            backlog.entries.push(entry);
            (backlog.entries.len(), backlog.wakes())
        };
        if wakes {
            self.shared.filled.notify_one();
        }
        if waiting < HIGH_WATER { AppendStatus::Room } else { AppendStatus::Full }
    }

    /// Returns whether new entries need not wake the thread.
    #[cfg(test)]
    pub(in crate::store) fn is_watched(&self) -> bool {
        self.shared.backlog().is_watched
    }

    /// Records the beginning of an operation: in the journal, or in a row while the ledger cannot be written.
    pub(in crate::store) async fn begin(&self, entry: LedgerEntry) -> Result<(), StoreError> {
        const DOING: &str = "enter a call in the ledger";
        let line = begun_journal::line(&self.path, &entry);
        let line = line.map_err(|error| StoreError::failed(self.failure_text(DOING), error))?;
        let answer = {
            let mut backlog = self.shared.backlog();
            if backlog.ended {
                return Err(self.ended(DOING));
            }
            let may_journal = backlog.has_written && backlog.failing.is_none() && backlog.journalled.len() < HIGH_WATER;
            if may_journal && backlog.journal.append(&line).is_ok() {
                backlog.journalled.push(entry);
                let wakes = backlog.wakes();
                drop(backlog);
                if wakes {
                    self.shared.filled.notify_one();
                }
                return Ok(());
            }
            let (reply, answer) = oneshot::channel();
            backlog.begun.push((entry, reply));
            answer
        };
        self.shared.filled.notify_one();
        match answer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(StoreError::Failed { doing: self.failure_text(DOING), source }),
            Err(_) => Err(self.ended(DOING)),
        }
    }

    /// Waits until fewer than [`HIGH_WATER`] entries are queued.
    pub(in crate::store) async fn room(&self) {
        loop {
            let room = self.shared.emptied.notified();
            if self.shared.backlog().entries.len() < HIGH_WATER {
                return;
            }
            room.await;
        }
    }

    pub(in crate::store) fn condition(&self) -> LedgerHealth {
        let backlog = self.shared.backlog();
        LedgerHealth {
            failures: self.shared.failures.load(Ordering::Relaxed),
            lost: self.shared.lost.load(Ordering::Relaxed),
            waiting: if backlog.kept { backlog.entries.len() as u64 } else { 0 },
            failing: backlog.failing.as_ref().map(|(why, _)| why.clone()),
        }
    }

    /// Checks that the ledger can be written. If the last write failed, tries again now.
    pub(in crate::store) async fn check(&self) -> Result<(), StoreError> {
        const DOING: &str = "write the ledger";
        if self.shared.backlog().failing.is_none() {
            return Ok(());
        }
        self.run(DOING, ledger::try_to_write).await?;
        self.check_writable(DOING)?;
        self.shared.succeeded();
        Ok(())
    }
}

impl Drop for StoreThread {
    /// Lets the thread finish the queued work and end.
    fn drop(&mut self) {
        self.shared.backlog().closed = true;
        self.shared.filled.notify_one();
    }
}

/// The next step of the thread.
enum NextStep {
    Write(Batch),
    Run(DatabaseWork),
    /// Nothing waits: do upkeep.
    Idle,
    End,
}

/// Tells waiting callers that the thread has ended, even after a panic.
struct ThreadEndGuard<'a>(&'a Shared);

impl Drop for ThreadEndGuard<'_> {
    fn drop(&mut self) {
        let (entries, begun, work) = {
            let mut backlog = self.0.backlog();
            backlog.ended = true;
            (
                std::mem::take(&mut backlog.entries),
                std::mem::take(&mut backlog.begun),
                std::mem::take(&mut backlog.work),
            )
        };
        // This drops the senders, so callers that wait for an answer fail.
        drop((begun, work));
        if !entries.is_empty() {
            self.0.record_lost(entries.len(), "the store's thread has ended");
        }
        self.0.emptied.notify_waiters();
    }
}

fn serve(shared: &Shared, mut opened: OpenDatabase<'_>, mut retention: Retention) {
    let _ending = ThreadEndGuard(shared);
    let mut wrote = false;
    loop {
        let was_open = opened.connection.is_some();
        let next = next(shared, retention.due(), wrote);
        wrote = matches!(next, NextStep::Write(_));
        if matches!(next, NextStep::End) {
            let mut backlog = shared.backlog();
            if backlog.failing.is_none() {
                backlog.journal.remove();
            }
            return;
        }
        let step = catch_unwind(AssertUnwindSafe(|| {
            match next {
                NextStep::Write(batch) => {
                    let count = batch.entries.len() as u64;
                    write(shared, &mut opened, batch);
                    retention.record_writes(count);
                }
                NextStep::Run(work) => work(&mut opened),
                NextStep::Idle => run_upkeep(&mut opened, &mut retention),
                NextStep::End => {}
            }
            if !was_open && opened.connection.is_some() {
                retention.opened();
            }
            // Calls come before upkeep, but upkeep must also run under load to bound the file.
            if retention.is_pressing() {
                run_upkeep(&mut opened, &mut retention);
            }
        }));
        if step.is_err() {
            // The state of the connection is unknown.
            tracing::error!("the store's thread panicked over a piece of work; it goes on with a new connection");
            opened.connection = None;
        }
        shared.emptied.notify_waiters();
    }
}

/// Operations that begin and operations that have ended, to be written in one commit.
struct Batch {
    begun: Vec<(LedgerEntry, ReplySender<()>)>,
    /// `None` if only callers that wait are served.
    journalled: Option<Vec<LedgerEntry>>,
    entries: Vec<LedgerEntry>,
}

/// Writes a batch. If the error may pass, keeps the entries for the next try.
fn write(shared: &Shared, opened: &mut OpenDatabase<'_>, batch: Batch) {
    let Batch { begun, journalled, entries } = batch;
    let has_journalled = journalled.is_some();
    let (mut begun, answers): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
    let waiting = begun.len();
    begun.extend(journalled.into_iter().flatten());
    // If the write panics, the entries count as lost.
    let entries = UnwrittenEntries { shared, entries };
    let ops: HashSet<OpId> = if begun.is_empty() && opened.begun.is_empty() {
        HashSet::new()
    } else {
        entries.entries.iter().map(|entry| entry.op.id).collect()
    };
    let ended: Vec<OpId> = ops.intersection(&opened.begun).copied().collect();
    let open: Vec<&LedgerEntry> = begun.iter().filter(|entry| !ops.contains(&entry.op.id)).collect();
    let written = LedgerBatch { begun: &open, entries: &entries.entries, ended: &ended };
    let written = opened.connection().and_then(|db| ledger::write(db, &written).map_err(Arc::new));
    let entries = entries.taken();
    match &written {
        Ok(()) => {
            opened.begun.extend(open.iter().map(|entry| entry.op.id));
            ended.iter().for_each(|op| {
                opened.begun.remove(op);
            });
            shared.committed(has_journalled);
        }
        Err(error) if entries.is_empty() && begun.len() == waiting => shared.failed(&error.to_string()),
        Err(error) if may_pass(error) => shared.keep(entries, begun.split_off(waiting), error),
        Err(error) => shared.record_lost(entries.len(), error),
    }
    for answer in answers {
        // The caller may have been cancelled.
        let _ = answer.send(written.clone());
    }
}

/// Entries of a running write, counted as lost if it panics.
struct UnwrittenEntries<'a> {
    shared: &'a Shared,
    entries: Vec<LedgerEntry>,
}

impl UnwrittenEntries<'_> {
    fn taken(mut self) -> Vec<LedgerEntry> {
        std::mem::take(&mut self.entries)
    }
}

impl Drop for UnwrittenEntries<'_> {
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            self.shared.record_lost(self.entries.len(), "writing them panicked");
        }
    }
}

/// Returns whether a later try may succeed: another process holds the file, or the disk is full or cannot be written.
fn may_pass(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, PermissionDenied, ReadOnly, SystemIoFailure};
    matches!(
        error.sqlite_error_code(),
        Some(DatabaseBusy | DatabaseLocked | DiskFull | SystemIoFailure | ReadOnly | CannotOpen | PermissionDenied)
    )
}

/// Does a step of upkeep. Does not open a store that nobody has used yet.
fn run_upkeep(opened: &mut OpenDatabase<'_>, retention: &mut Retention) {
    let Some(db) = &mut opened.connection else { return retention.postpone() };
    if let Err(error) = retention.step(db) {
        tracing::warn!("old rows could not be deleted: {error}");
    }
}

/// Waits until entries must be written, an operation begins, a request comes, or upkeep is due. Entries go before the
/// requests that came after them. After a write, the thread soon wakes by itself, so that the next entries need not
/// wake it.
fn next(shared: &Shared, due: Duration, wrote: bool) -> NextStep {
    let mut backlog = shared.backlog();
    let (start, mut looks_soon, mut looked) = (Instant::now(), wrote, false);
    loop {
        let age = backlog.since.map(|since| since.elapsed());
        let old = if backlog.kept { AGAIN } else { MAX_AGE };
        let is_due = (backlog.in_line() >= MAX_BATCH || looked) && !backlog.kept;
        let ripe = is_due || age.is_some_and(|age| age >= old);
        let writes = backlog.in_line() > 0 && (ripe || backlog.closed || !(backlog.work.is_empty() || backlog.kept));
        // Callers wait for begun operations and for requests, so these take turns.
        let begins = !backlog.begun.is_empty() && (backlog.work.is_empty() || !wrote);
        if writes || begins {
            let begun = std::mem::take(&mut backlog.begun);
            // Entries whose write failed are not tried again with each operation that begins.
            if !writes && backlog.kept {
                return NextStep::Write(Batch { begun, journalled: None, entries: Vec::new() });
            }
            backlog.since = None;
            backlog.journal.cut();
            let journalled = Some(std::mem::take(&mut backlog.journalled));
            return NextStep::Write(Batch { begun, journalled, entries: std::mem::take(&mut backlog.entries) });
        }
        if let Some(work) = backlog.work.pop_front() {
            return NextStep::Run(work);
        }
        if backlog.closed {
            return NextStep::End;
        }
        let idle = due.saturating_sub(start.elapsed());
        if backlog.in_line() == 0 && idle.is_zero() {
            return NextStep::Idle;
        }
        let wait = match age {
            Some(age) => old.saturating_sub(age),
            None if looks_soon => idle.min(MAX_AGE),
            None => idle,
        };
        backlog.is_watched = looks_soon;
        let (woken, timeout) = shared.filled.wait_timeout(backlog, wait).unwrap_or_else(PoisonError::into_inner);
        backlog = woken;
        backlog.is_watched = false;
        looked = looks_soon && timeout.timed_out();
        looks_soon &= !looked;
    }
}
