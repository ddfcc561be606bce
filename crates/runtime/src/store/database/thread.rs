//! The thread that owns the SQLite connection, so that SQLite does not block the async runtime.

use std::any::Any;
use std::collections::HashSet;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;
use toolwright_core::operation::OpId;
use toolwright_core::store::{AppendStatus, LedgerEntry, LedgerHealth, StoreError};

use super::backlog::{Backlog, Batch, DatabaseWork, HIGH_WATER, NextStep, Shared};
use super::file::OpenDatabase;
use super::retention::Retention;
use crate::store::ledger::{self, LedgerBatch, begun_journal};

/// Most queued requests; further callers wait for room.
const MAX_WAITING: usize = 1024;

type AnyValue = Box<dyn Any + Send>;
type AnyWork = Box<dyn FnOnce(&mut OpenDatabase<'_>) -> Result<AnyValue, Arc<rusqlite::Error>> + Send>;

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
        const OPERATION: &str = "flush the ledger";
        // Entries are written before the requests that came after them, unless the last write failed.
        self.run(OPERATION, |_| Ok(())).await?;
        self.check_writable(OPERATION)
    }

    /// Fails if appended entries wait after a failed write.
    fn check_writable(&self, doing: &str) -> Result<(), StoreError> {
        let backlog = self.shared.backlog();
        let Some((why, _)) = backlog.failing.as_ref().filter(|_| backlog.has_failed) else { return Ok(()) };
        let waiting = std::io::Error::other(format!("{why}; entries wait until they can be written"));
        Err(StoreError::failed(self.failure_text(doing), waiting))
    }

    /// Finishes earlier requests, then closes the file if its WAL is long. The next request opens it again.
    pub(in crate::store) async fn close(&self) -> Result<(), StoreError> {
        const OPERATION: &str = "close its file";
        let close = |opened: &mut OpenDatabase<'_>| {
            opened.close();
            Ok(Box::new(()) as AnyValue)
        };
        self.run_on(OPERATION, Box::new(close)).await?;
        self.check_writable(OPERATION)
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

    /// Makes the journal write to this file. Returns its own files, which hold its lock.
    #[cfg(test)]
    pub(in crate::store) fn journal_to(&self, file: &Path) -> [Arc<File>; 2] {
        self.shared.backlog().journal.write_to(file)
    }

    /// Returns whether new entries need not wake the thread.
    #[cfg(test)]
    pub(in crate::store) fn is_watched(&self) -> bool {
        self.shared.backlog().is_watched
    }

    /// Records the beginning of an operation: in the journal, or in a row while the ledger or the journal cannot be written.
    pub(in crate::store) async fn begin(&self, entry: LedgerEntry) -> Result<(), StoreError> {
        const OPERATION: &str = "enter a call in the ledger";
        let line = begun_journal::line(&self.path, &entry);
        let line = line.map_err(|error| StoreError::failed(self.failure_text(OPERATION), error))?;
        let answer = match self.queue_begun(entry).ok_or_else(|| self.ended(OPERATION))? {
            BegunRecord::Line(file) => {
                // Without the lock of the backlog: no call waits for the system call of another.
                let Err(error) = begun_journal::append(file.as_deref(), &line) else { return Ok(()) };
                drop(file);
                tracing::debug!("the journal beside {}: {error}", self.path.display());
                let entry = begun_journal::read(&line);
                let entry = entry.ok_or_else(|| StoreError::failed(self.failure_text(OPERATION), error))?;
                queue_row(&mut self.shared.backlog(), entry).ok_or_else(|| self.ended(OPERATION))?
            }
            BegunRecord::Row(answer) => answer,
        };
        self.shared.filled.notify_one();
        match answer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(StoreError::Failed { doing: self.failure_text(OPERATION), source }),
            Err(_) => Err(self.ended(OPERATION)),
        }
    }

    /// Queues an operation that begins. `None` if the thread has ended.
    fn queue_begun(&self, entry: LedgerEntry) -> Option<BegunRecord> {
        let mut backlog = self.shared.backlog();
        let may_journal =
            !backlog.ended && backlog.has_written && backlog.failing.is_none() && backlog.journalled.len() < HIGH_WATER;
        if may_journal && let Ok(file) = backlog.journal.file() {
            backlog.journalled.push(entry);
            let wakes = backlog.wakes();
            drop(backlog);
            if wakes {
                self.shared.filled.notify_one();
            }
            return Some(BegunRecord::Line(file));
        }
        queue_row(&mut backlog, entry).map(BegunRecord::Row)
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
            waiting: if backlog.has_failed { backlog.entries.len() as u64 } else { 0 },
            failing: backlog.failing.as_ref().map(|(why, _)| why.clone()),
        }
    }

    /// Checks that the ledger can be written. If the last write failed, tries again now.
    pub(in crate::store) async fn check(&self) -> Result<(), StoreError> {
        const OPERATION: &str = "write the ledger";
        if self.shared.backlog().failing.is_none() {
            return Ok(());
        }
        self.run(OPERATION, ledger::try_to_write).await?;
        self.check_writable(OPERATION)?;
        self.shared.succeeded();
        Ok(())
    }
}

/// The answer to a caller that waits for a row.
type RowAnswer = oneshot::Receiver<Result<(), Arc<rusqlite::Error>>>;

/// Where the beginning of an operation is recorded.
enum BegunRecord {
    /// In this file of the journal, once the caller has written the line.
    Line(Option<Arc<File>>),
    /// In a row, once this is answered.
    Row(RowAnswer),
}

/// Queues an operation whose row is written before it runs. A row that it has already is replaced. `None` if the thread has
/// ended, and so nobody would answer.
fn queue_row(backlog: &mut Backlog, entry: LedgerEntry) -> Option<RowAnswer> {
    if backlog.ended {
        return None;
    }
    let (reply, answer) = oneshot::channel();
    backlog.begun.push((entry, reply));
    Some(answer)
}

impl Drop for StoreThread {
    /// Lets the thread finish the queued work and end.
    fn drop(&mut self) {
        self.shared.backlog().closed = true;
        self.shared.filled.notify_one();
    }
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
        let next = shared.next(retention.due(), wrote);
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
            if retention.is_urgent() {
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
