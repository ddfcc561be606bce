//! The one thread that owns the connection: SQLite blocks, the runtime must not.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;
use toolwright_core::store::{LedgerEntry, StoreError};

use super::{migrations, tables};

/// Requests and ledger entries that may wait; a full line blocks requests and drops ledger entries.
const LINE: usize = 16_384;
/// How old a batched ledger entry may get.
const MAX_AGE: Duration = Duration::from_millis(40);
/// How many make a batch.
const MAX_BATCH: usize = 512;
/// How long another process may hold the file.
const BUSY: Duration = Duration::from_secs(10);
/// Ledger rows kept; checked now and then, oldest out.
const MAX_LEDGER_ROWS: i64 = 2_000_000;

type Work = Box<dyn FnOnce(&mut Opened<'_>) + Send>;

enum Request {
    Run(Work),
    Append(Box<LedgerEntry>),
}

#[derive(Debug)]
pub(super) struct StoreThread {
    sender: SyncSender<Request>,
    path: Arc<Path>,
}

impl StoreThread {
    pub(super) fn start(path: PathBuf) -> Result<Self, StoreError> {
        let (sender, receiver) = sync_channel(LINE);
        let shared: Arc<Path> = path.into();
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || serve(&own, &receiver))
            .map_err(|error| StoreError::failed("start its thread", error))?;
        Ok(Self { sender, path: shared })
    }

    /// Runs `work` on the connection, after everything that was sent before it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let what = format!("{doing} ({})", self.path.display());
        let failed = what.clone();
        let mut request = Request::Run(Box::new(move |opened| {
            let result = opened.connection().and_then(|db| work(db).map_err(Arc::new));
            // Nobody listens any more when the caller was dropped; the work is done all the same.
            let _ = reply.send(result);
        }));
        let gone = || StoreError::failed(failed.clone(), std::io::Error::other("the store's thread has ended"));
        loop {
            match self.sender.try_send(request) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) => {
                    request = back;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(TrySendError::Disconnected(_)) => return Err(gone()),
            }
        }
        match answer.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(StoreError::Failed { doing: what, source }),
            Err(_) => Err(gone()),
        }
    }

    pub(super) fn append(&self, entry: LedgerEntry) {
        if self.sender.try_send(Request::Append(Box::new(entry))).is_err() {
            tracing::warn!("a ledger entry was dropped: the store cannot keep up");
        }
    }
}

/// The connection, opened when it is first needed; a failed opening is tried again by the next request.
struct Opened<'a> {
    path: &'a Path,
    connection: Option<Connection>,
}

impl Opened<'_> {
    fn connection(&mut self) -> Result<&mut Connection, Arc<rusqlite::Error>> {
        if self.connection.is_none() {
            self.connection = Some(open(self.path).map_err(Arc::new)?);
        }
        self.connection.as_mut().ok_or_else(|| Arc::new(rusqlite::Error::InvalidQuery))
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    make_private(path);
    let mut db = Connection::open(path)?;
    db.busy_timeout(BUSY)?;
    use_wal(&db)?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    migrations::migrate(&mut db)?;
    migrations::expire(&mut db, tables::now_ms())?;
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

fn serve(path: &Path, requests: &Receiver<Request>) {
    let mut opened = Opened { path, connection: None };
    let mut batch: Vec<LedgerEntry> = Vec::new();
    let mut oldest = Instant::now();
    let mut written: u64 = 0;
    loop {
        let wait = if batch.is_empty() { Duration::from_secs(3600) } else { MAX_AGE.saturating_sub(oldest.elapsed()) };
        match requests.recv_timeout(wait) {
            Ok(Request::Append(entry)) => {
                if batch.is_empty() {
                    oldest = Instant::now();
                }
                batch.push(*entry);
                if batch.len() < MAX_BATCH && oldest.elapsed() < MAX_AGE {
                    continue;
                }
                write_batch(&mut opened, &mut batch, &mut written);
            }
            Ok(Request::Run(work)) => {
                write_batch(&mut opened, &mut batch, &mut written);
                work(&mut opened);
            }
            Err(RecvTimeoutError::Timeout) => write_batch(&mut opened, &mut batch, &mut written),
            Err(RecvTimeoutError::Disconnected) => {
                write_batch(&mut opened, &mut batch, &mut written);
                return;
            }
        }
    }
}

fn write_batch(opened: &mut Opened<'_>, batch: &mut Vec<LedgerEntry>, written: &mut u64) {
    if batch.is_empty() {
        return;
    }
    let result = opened.connection().and_then(|db| tables::insert_ledger(db, batch).map_err(Arc::new));
    if let Err(error) = result {
        tracing::warn!("{} ledger entries were lost: {error}", batch.len());
    }
    let before = *written;
    *written += batch.len() as u64;
    if before / 100_000 != *written / 100_000 {
        trim(opened);
    }
    batch.clear();
}

fn trim(opened: &mut Opened<'_>) {
    let oldest_out = "DELETE FROM ledger WHERE rowid <= (SELECT MAX(rowid) FROM ledger) - ?1";
    if let Err(error) = opened.connection().and_then(|db| db.execute(oldest_out, [MAX_LEDGER_ROWS]).map_err(Arc::new)) {
        tracing::warn!("the ledger could not be trimmed: {error}");
    }
}
