//! The work that waits for the store's thread, and the choice of its next step.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use toolwright_core::store::LedgerEntry;

use super::file::OpenDatabase;
use crate::store::ledger::begun_journal::BegunJournal;

/// Age at which queued ledger entries are written.
const MAX_AGE: Duration = Duration::from_millis(40);
/// Delay before entries that could not be written are tried again.
const WRITE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Shortest time between two log messages that the ledger cannot be written.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Number of queued entries that wakes the thread before [`MAX_AGE`].
const MAX_BATCH: usize = 2048;
/// Queued entries from which appenders are asked to wait: some 20 MB.
pub(super) const HIGH_WATER: usize = 32_768;

pub(super) type ReplySender<T> = oneshot::Sender<Result<T, Arc<rusqlite::Error>>>;

pub(super) type DatabaseWork = Box<dyn FnOnce(&mut OpenDatabase<'_>) + Send>;

/// The next step of the thread.
pub(super) enum NextStep {
    Write(Batch),
    Run(DatabaseWork),
    /// Nothing waits: do upkeep.
    Idle,
    End,
}

/// Operations that begin and operations that have ended, to be written in one commit.
pub(super) struct Batch {
    pub(super) begun: Vec<(LedgerEntry, ReplySender<()>)>,
    /// `None` if only callers that wait are served.
    pub(super) journalled: Option<Vec<LedgerEntry>>,
    pub(super) entries: Vec<LedgerEntry>,
}

/// The work queued for the thread.
pub(super) struct Backlog {
    pub(super) entries: Vec<LedgerEntry>,
    /// Operations that have begun and are in the journal. Those that have not ended by the next batch get a row.
    pub(super) journalled: Vec<LedgerEntry>,
    pub(super) journal: BegunJournal,
    /// Whether the ledger has been written, so that the journal alone may record a beginning.
    pub(super) has_written: bool,
    /// Operations that begin once their rows are written, and their waiting callers. Those that arrive during a write
    /// share the next commit.
    pub(super) begun: Vec<(LedgerEntry, ReplySender<()>)>,
    /// When the oldest entry was queued, or put back.
    since: Option<Instant>,
    /// Whether the thread wakes within [`MAX_AGE`] by itself, so that entries need not wake it.
    pub(super) is_watched: bool,
    /// Whether the last write of the entries failed. Requests run before the next try.
    pub(super) has_failed: bool,
    /// Why the last write of the ledger failed, and when that was logged.
    pub(super) failing: Option<(String, Instant)>,
    pub(super) work: VecDeque<DatabaseWork>,
    pub(super) closed: bool,
    /// Whether the thread has ended and accepts nothing.
    pub(super) ended: bool,
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
            has_failed: false,
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
    pub(super) fn wakes(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now);
        let in_line = self.in_line();
        (in_line == 1 && !self.is_watched) || in_line == MAX_BATCH
    }
}

/// The backlog and what its callers and the thread share about it.
pub(super) struct Shared {
    path: Arc<Path>,
    backlog: Mutex<Backlog>,
    /// Wakes the thread for new work.
    pub(super) filled: Condvar,
    /// Wakes callers that wait for room.
    pub(super) emptied: Notify,
    /// Entries that could not be written, or came after the thread had ended.
    pub(super) lost: AtomicU64,
    /// Failed writes of the ledger.
    pub(super) failures: AtomicU64,
}

impl Shared {
    pub(super) fn new(path: Arc<Path>) -> Self {
        Self {
            backlog: Mutex::new(Backlog::new(&path)),
            path,
            filled: Condvar::new(),
            emptied: Notify::new(),
            lost: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    pub(super) fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record_lost(&self, count: usize, why: impl std::fmt::Display) {
        self.backlog().has_failed = false;
        self.lost.fetch_add(count as u64, Ordering::Relaxed);
        self.failed(&why.to_string());
    }

    /// Logs that the ledger could not be written, at most once per [`WARNING_INTERVAL`].
    pub(super) fn failed(&self, why: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let (warned, waiting) = {
            let mut backlog = self.backlog();
            let warned = backlog
                .failing
                .take()
                .map(|(_, warned)| warned)
                .filter(|warned| now.duration_since(*warned) < WARNING_INTERVAL);
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
    pub(super) fn succeeded(&self) {
        let failing = {
            let mut backlog = self.backlog();
            backlog.has_failed = false;
            backlog.failing.take()
        };
        if failing.is_some() {
            tracing::error!("the ledger is written again ({})", self.path.display());
        }
    }

    /// Records that a batch was committed. Without `has_journalled` it had only operations whose callers wait.
    pub(super) fn committed(&self, has_journalled: bool) {
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
    pub(super) fn keep(&self, mut entries: Vec<LedgerEntry>, mut journalled: Vec<LedgerEntry>, why: &rusqlite::Error) {
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
        backlog.has_failed = true;
        drop(backlog);
        self.failed(&why.to_string());
    }

    /// Waits until entries must be written, an operation begins, a request comes, or upkeep is due. Entries go before
    /// the requests that came after them. After a write, the thread soon wakes by itself, so that the next entries need
    /// not wake it.
    pub(super) fn next(&self, due: Duration, wrote: bool) -> NextStep {
        let mut backlog = self.backlog();
        let (start, mut looks_soon, mut looked) = (Instant::now(), wrote, false);
        loop {
            let age = backlog.since.map(|since| since.elapsed());
            let old = if backlog.has_failed { WRITE_RETRY_DELAY } else { MAX_AGE };
            let is_due = (backlog.in_line() >= MAX_BATCH || looked) && !backlog.has_failed;
            let ripe = is_due || age.is_some_and(|age| age >= old);
            let writes =
                backlog.in_line() > 0 && (ripe || backlog.closed || !(backlog.work.is_empty() || backlog.has_failed));
            // Callers wait for begun operations and for requests, so these take turns.
            let begins = !backlog.begun.is_empty() && (backlog.work.is_empty() || !wrote);
            if writes || begins {
                let begun = std::mem::take(&mut backlog.begun);
                // Entries whose write failed are not tried again with each operation that begins.
                if !writes && backlog.has_failed {
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
            let (woken, timeout) = self.filled.wait_timeout(backlog, wait).unwrap_or_else(PoisonError::into_inner);
            backlog = woken;
            backlog.is_watched = false;
            looked = looks_soon && timeout.timed_out();
            looks_soon &= !looked;
        }
    }
}
