//! The one thread that owns the connection: SQLite blocks, the runtime must not.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::{Notify, oneshot};
use toolwright_core::store::{Appended, LedgerEntry, StoreError};

use super::ledger;
use super::migrations;
use super::retention::{self, Retention};

/// Requests that may wait; more wait outside.
const LINE: usize = 1024;
/// How old a batched ledger entry may get.
const MAX_AGE: Duration = Duration::from_millis(40);
/// How many entries wake the thread before they are that old.
const MAX_BATCH: usize = 2048;
/// Entries in line from which on whoever appends is asked to wait: some 20 MB.
const HIGH_WATER: usize = 32_768;
/// From how many bytes on of the log of writes it is worth to wait for it to be taken into the file.
const LONG_LOG: u64 = 256 << 10;
/// How long another process may hold the file.
pub(super) const BUSY: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce(&mut Opened<'_>) + Send>;

/// What waits for the thread.
#[derive(Default)]
struct Line {
    entries: Vec<LedgerEntry>,
    /// When the first of them came.
    since: Option<Instant>,
    /// Another process held the file when they were to be written: requests go before the next try.
    kept: bool,
    work: VecDeque<Work>,
    closed: bool,
    /// The thread is no more: nothing is taken any longer.
    ended: bool,
}

#[derive(Default)]
struct Shared {
    line: Mutex<Line>,
    /// Tells the thread that there is something to do.
    filled: Condvar,
    /// Tells others that there is room again.
    emptied: Notify,
    /// Entries that could not be written, or came when the thread had ended.
    lost: AtomicU64,
}

impl Shared {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, count: usize, why: impl std::fmt::Display) {
        self.line().kept = false;
        self.lost.fetch_add(count as u64, Ordering::Relaxed);
        tracing::warn!("{count} ledger entries were lost: {why}");
    }

    /// Puts entries back at the front of the line, for another try. Past the high-water mark, where callers wait
    /// already, and at the end they are lost: neither memory nor a wait may grow without bound.
    fn keep(&self, mut entries: Vec<LedgerEntry>, why: &rusqlite::Error) {
        let mut line = self.line();
        if line.closed || entries.len() + line.entries.len() >= HIGH_WATER {
            drop(line);
            return self.lose(entries.len(), why);
        }
        tracing::debug!("{} ledger entries wait: {why}", entries.len());
        entries.append(&mut line.entries);
        line.entries = entries;
        line.since = Some(Instant::now());
        line.kept = true;
    }
}

pub(super) struct StoreThread {
    shared: Arc<Shared>,
    path: Arc<Path>,
}

impl std::fmt::Debug for StoreThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreThread").field("path", &self.path).finish_non_exhaustive()
    }
}

impl StoreThread {
    pub(super) fn start(path: PathBuf, retention: Retention) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let path: Arc<Path> = path.into();
        let (its, own) = (Arc::clone(&shared), Arc::clone(&path));
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || serve(&its, Opened::new(&own), retention))
            .map_err(|error| StoreError::failed("start its thread", error))?;
        Ok(Self { shared, path })
    }

    /// Runs `work` on the connection, after everything that was sent before it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_on(doing, move |opened| opened.connection().and_then(|db| work(db).map_err(Arc::new))).await
    }

    async fn run_on<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut Opened<'_>) -> Result<T, Arc<rusqlite::Error>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let mut request: Option<Work> = Some(Box::new(move |opened| {
            let result = work(opened);
            // Nobody listens any more when the caller was dropped; the work is done all the same.
            let _ = reply.send(result);
        }));
        loop {
            let room = self.shared.emptied.notified();
            {
                let mut line = self.shared.line();
                if line.ended {
                    return Err(self.ended(doing));
                }
                if line.work.len() < LINE {
                    line.work.extend(request.take());
                    break;
                }
            }
            room.await;
        }
        self.shared.filled.notify_one();
        match answer.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(StoreError::Failed { doing: self.what(doing), source }),
            Err(_) => Err(self.ended(doing)),
        }
    }

    /// Writes the entries that were appended before.
    pub(super) async fn flush(&self) -> Result<(), StoreError> {
        const DOING: &str = "flush the ledger";
        // Entries go before the requests that came after them, unless they could not be written.
        self.run(DOING, |_| Ok(())).await?;
        self.nothing_is_kept(DOING)
    }

    /// Whether what was appended could be written.
    fn nothing_is_kept(&self, doing: &str) -> Result<(), StoreError> {
        let is_kept = self.shared.line().kept;
        let busy = || std::io::Error::other("another process holds the file; they will be written when it lets go");
        if is_kept { Err(StoreError::failed(self.what(doing), busy())) } else { Ok(()) }
    }

    /// Does what was sent before, and closes the file if its log of writes is long; the next request opens it again.
    pub(super) async fn close(&self) -> Result<(), StoreError> {
        const DOING: &str = "close its file";
        self.run_on(DOING, |opened| {
            opened.close();
            Ok(())
        })
        .await?;
        self.nothing_is_kept(DOING)
    }

    fn what(&self, doing: &str) -> String {
        format!("{doing} ({})", self.path.display())
    }

    fn ended(&self, doing: &str) -> StoreError {
        StoreError::failed(self.what(doing), std::io::Error::other("the store's thread panicked or has ended"))
    }

    pub(super) fn append(&self, entry: LedgerEntry) -> Appended {
        let in_line = {
            let mut line = self.shared.line();
            if line.ended {
                self.shared.lost.fetch_add(1, Ordering::Relaxed);
                return Appended::Room;
            }
            line.since.get_or_insert_with(Instant::now);
            line.entries.push(entry);
            line.entries.len()
        };
        // The first lets the thread see to the time, and enough of them to the rest.
        if in_line == 1 || in_line == MAX_BATCH {
            self.shared.filled.notify_one();
        }
        if in_line < HIGH_WATER { Appended::Room } else { Appended::Full }
    }

    /// Waits until the entries in line are few enough.
    pub(super) async fn room(&self) {
        loop {
            let room = self.shared.emptied.notified();
            if self.shared.line().entries.len() < HIGH_WATER {
                return;
            }
            room.await;
        }
    }

    pub(super) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Drop for StoreThread {
    /// The thread writes what is in line, and ends.
    fn drop(&mut self) {
        self.shared.line().closed = true;
        self.shared.filled.notify_one();
    }
}

/// The connection, opened when it is first needed; a failed opening is tried again by the next request.
struct Opened<'a> {
    path: &'a Path,
    connection: Option<Connection>,
}

impl<'a> Opened<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, connection: None }
    }

    fn connection(&mut self) -> Result<&mut Connection, Arc<rusqlite::Error>> {
        if self.connection.is_none() {
            self.connection = Some(open(self.path).map_err(Arc::new)?);
        }
        self.connection.as_mut().ok_or_else(|| Arc::new(rusqlite::Error::InvalidQuery))
    }

    /// Whoever is the last to close the file takes its log of writes into it; who finds one when he opens it reads it
    /// from one end to the other.
    fn close(&mut self) {
        let log = std::fs::metadata(log_of(self.path)).map_or(0, |log| log.len());
        if log > LONG_LOG
            && let Some(db) = self.connection.take()
            && let Err((_, error)) = db.close()
        {
            tracing::debug!("{} was not closed: {error}", self.path.display());
        }
    }
}

/// Where SQLite writes before it writes to the file.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    make_private(path);
    let mut db = Connection::open(path)?;
    db.busy_timeout(BUSY)?;
    // Counts for a new file only, and before it is made.
    db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    use_wal(&db)?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    // What was filled in and taken is not to stand in the file for whoever reads its bytes.
    db.pragma_update(None, "secure_delete", "FAST")?;
    db.pragma_update(None, "journal_size_limit", retention::WAL_LIMIT)?;
    db.set_prepared_statement_cache_capacity(64);
    migrations::migrate(&mut db)?;
    Ok(db)
}

/// Of processes that do this to a new file at once, SQLite refuses all but one, without waiting.
fn use_wal(db: &Connection) -> rusqlite::Result<()> {
    let start = Instant::now();
    loop {
        match db.pragma_update(None, "journal_mode", "WAL") {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && start.elapsed() < BUSY => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// SQLite makes files by the umask; this one holds arguments and results. Its WAL takes its mode from it.
fn make_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    if let Err(error) = options.open(path) {
        tracing::debug!("{}: {error}", path.display());
    }
}

/// What the thread is to do next.
enum Next {
    Write(Vec<LedgerEntry>),
    Run(Work),
    /// Nothing waits: time to look after the file.
    Idle,
    End,
}

/// Tells whoever waits when the thread ends, however it does.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let (entries, work) = {
            let mut line = self.0.line();
            line.ended = true;
            (std::mem::take(&mut line.entries), std::mem::take(&mut line.work))
        };
        // Whoever waits for an answer finds its sender gone.
        drop(work);
        if !entries.is_empty() {
            self.0.lose(entries.len(), "the store's thread has ended");
        }
        self.0.emptied.notify_waiters();
    }
}

fn serve(shared: &Shared, mut opened: Opened<'_>, mut retention: Retention) {
    let _ending = Ending(shared);
    loop {
        let was_open = opened.connection.is_some();
        let next = next(shared, retention.due());
        if matches!(next, Next::End) {
            return;
        }
        let step = catch_unwind(AssertUnwindSafe(|| {
            match next {
                Next::Write(entries) => {
                    let count = entries.len() as u64;
                    write(shared, &mut opened, entries);
                    retention.wrote(count);
                }
                Next::Run(work) => work(&mut opened),
                Next::Idle => look_after(&mut opened, &mut retention),
                Next::End => {}
            }
            if !was_open && opened.connection.is_some() {
                retention.opened();
            }
            // Calls come before upkeep, but it has its turn: the file must stay bounded under any load.
            if retention.is_pressing() {
                look_after(&mut opened, &mut retention);
            }
        }));
        if step.is_err() {
            // Nobody knows in which state it was left.
            tracing::error!("the store's thread panicked over a piece of work; it goes on with a new connection");
            opened.connection = None;
        }
        shared.emptied.notify_waiters();
    }
}

/// Writes a batch. While another process holds the file for too long the entries are kept for the next try.
fn write(shared: &Shared, opened: &mut Opened<'_>, entries: Vec<LedgerEntry>) {
    // What is unwound over is lost, and counted.
    let batch = Batch { shared, entries };
    let written = opened.connection().and_then(|db| ledger::write(db, &batch.entries).map_err(Arc::new));
    let entries = batch.taken();
    match written {
        Ok(()) => shared.line().kept = false,
        Err(error) if is_busy(&error) => shared.keep(entries, &error),
        Err(error) => shared.lose(entries.len(), error),
    }
}

/// Entries that are being written.
struct Batch<'a> {
    shared: &'a Shared,
    entries: Vec<LedgerEntry>,
}

impl Batch<'_> {
    fn taken(mut self) -> Vec<LedgerEntry> {
        std::mem::take(&mut self.entries)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            self.shared.lose(self.entries.len(), "writing them panicked");
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// A step of upkeep. A store that nobody has used yet is not opened for it.
fn look_after(opened: &mut Opened<'_>, retention: &mut Retention) {
    let Some(db) = &mut opened.connection else { return retention.rest() };
    if let Err(error) = retention.step(db) {
        tracing::warn!("old rows could not be deleted: {error}");
    }
}

/// Waits for entries that are old or many enough, a request, or until upkeep is due. Entries go before the
/// requests that came after them.
fn next(shared: &Shared, due: Duration) -> Next {
    let mut line = shared.line();
    let start = Instant::now();
    loop {
        let age = line.since.map(|since| since.elapsed());
        let ripe = (line.entries.len() >= MAX_BATCH && !line.kept) || age.is_some_and(|age| age >= MAX_AGE);
        if !line.entries.is_empty() && (ripe || line.closed || !(line.work.is_empty() || line.kept)) {
            line.since = None;
            return Next::Write(std::mem::take(&mut line.entries));
        }
        if let Some(work) = line.work.pop_front() {
            return Next::Run(work);
        }
        if line.closed {
            return Next::End;
        }
        let idle = due.saturating_sub(start.elapsed());
        if line.entries.is_empty() && idle.is_zero() {
            return Next::Idle;
        }
        let wait = age.map_or(idle, |age| MAX_AGE.saturating_sub(age));
        line = shared.filled.wait_timeout(line, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}
