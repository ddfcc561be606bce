//! Opens the database file, and creates the tables of a new one. Refuses another version and, before SQLite opens it, a
//! file that is damaged or no database: SQLite would take an empty file for a new database and discard the WAL beside
//! it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, TransactionBehavior, ffi};
use toolwright_core::operation::OpId;
use toolwright_core::store::StoreError;

use super::retention;
use crate::store::{BUSY, is_in_memory, ledger};

/// WAL size, in bytes, above which [`OpenDatabase::close`] closes the file.
const LONG_LOG: u64 = 512 << 10;
const SCHEMA: &str = include_str!("schema.sql");

/// The version of [`SCHEMA`], kept as SQLite's `user_version`.
const VERSION: u32 = 29;

/// The connection, opened at its first use. After a failure, the next request tries again.
pub(in crate::store) struct OpenDatabase<'a> {
    path: &'a Path,
    pub(in crate::store) connection: Option<Connection>,
    /// Operations of this process whose beginning is in the ledger and whose end is not.
    pub(in crate::store) begun: HashSet<OpId>,
}

impl<'a> OpenDatabase<'a> {
    pub(in crate::store) fn new(path: &'a Path) -> Self {
        Self { path, connection: None, begun: HashSet::new() }
    }

    pub(in crate::store) fn connection(&mut self) -> Result<&mut Connection, Arc<rusqlite::Error>> {
        if self.connection.is_none() {
            self.connection = Some(open(self.path).map_err(Arc::new)?);
        }
        self.connection.as_mut().ok_or_else(|| Arc::new(rusqlite::Error::InvalidQuery))
    }

    /// Closes the file if its WAL is longer than [`LONG_LOG`]. The last process to close the file moves the WAL into
    /// it; the next process to open it must read all of a WAL that is left.
    pub(in crate::store) fn close(&mut self) {
        let log = std::fs::metadata(log_of(self.path)).map_or(0, |log| log.len());
        if log > LONG_LOG
            && let Some(db) = self.connection.take()
            && let Err((_, error)) = db.close()
        {
            tracing::debug!("{} was not closed: {error}", self.path.display());
        }
    }
}

/// Returns the path of the file's WAL.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    if is_in_memory(path) {
        return prepare(Connection::open_in_memory()?);
    }
    check_for_sqlite(path)?;
    make_private(path);
    Connection::open(path).and_then(prepare).map_err(|error| explain(path, error))
}

fn prepare(mut db: Connection) -> rusqlite::Result<Connection> {
    db.busy_timeout(BUSY)?;
    // Has an effect only before the file has tables.
    db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    use_wal(&db)?;
    // A commit survives the end of this process, but perhaps not a loss of power: `FULL` would wait for the disk at
    // each commit, and each call that may have an effect waits for one.
    db.pragma_update(None, "synchronous", "NORMAL")?;
    // Deleted form answers must not stay readable in the file.
    db.pragma_update(None, "secure_delete", "FAST")?;
    db.pragma_update(None, "journal_size_limit", retention::WAL_LIMIT)?;
    db.set_prepared_statement_cache_capacity(64);
    // Without it, SQLite may plan a cached statement again for each bound value.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    create_or_check(&mut db)?;
    check_tables(&db)?;
    if let Err(error) = ledger::close_dead_operations(&mut db) {
        tracing::debug!("what other processes have left was not entered in the ledger: {error}");
    }
    Ok(db)
}

/// Switches the file to WAL. If several processes do this to a new file at once, SQLite refuses all but one without
/// waiting, so this tries again.
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

/// Creates a missing file, readable by its user only: it holds arguments and results, and SQLite would apply the umask.
/// The WAL gets the mode of the file.
fn make_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    if let Err(error) = options.open(path) {
        tracing::debug!("{}: {error}", path.display());
    }
}

/// Creates the tables of a new file in one transaction, while other processes wait.
///
/// # Errors
/// If the file has another version of the tables. It is not changed.
pub(in crate::store) fn create_or_check(db: &mut Connection) -> rusqlite::Result<()> {
    if version(db)? == 0 {
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have created them meanwhile.
        if version(&transaction)? == 0 {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        transaction.commit()?;
    }
    match version(db)? {
        VERSION => Ok(()),
        other => {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_ERROR), Some(version_refusal(db, other))))
        }
    }
}

fn version(db: &Connection) -> rusqlite::Result<u32> {
    db.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn version_refusal(db: &Connection, version: u32) -> String {
    let path = db.path().unwrap_or_default();
    format!(
        "{path} has version {version} of the store, and this program uses version {VERSION}; use the program that made it, \
         or move it away with its -wal and -shm files to begin with an empty one: approvals, pins, the ledger and jobs are in it"
    )
}

/// Length of a database file's header, in bytes (sqlite.org/fileformat2.html, 1.3).
const HEADER: usize = 100;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Length of the WAL's header, in bytes. A WAL that is not longer is empty.
const LOG_HEADER: u64 = 32;

/// Refuses a file that cannot be a whole database. A missing file, or an empty one without a WAL, is a new database. A
/// file that cannot be read is left to SQLite, which reports the reason.
pub(in crate::store) fn check(path: &Path) -> Result<(), StoreError> {
    find_problem(path).unwrap_or_default().map_or(Ok(()), |what| Err(StoreError::Refused(refusal(path, &what))))
}

/// Like [`check`], with an error of SQLite.
fn check_for_sqlite(path: &Path) -> rusqlite::Result<()> {
    check(path).map_err(|error| failure(ffi::SQLITE_NOTADB, error.to_string()))
}

fn failure(code: i32, message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(message))
}

/// Adds the file and the remedy to an error that comes from damage.
fn explain(path: &Path, error: rusqlite::Error) -> rusqlite::Error {
    let code = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => ffi::SQLITE_CORRUPT,
        Some(ErrorCode::NotADatabase) => ffi::SQLITE_NOTADB,
        _ => return error,
    };
    let message = error.to_string();
    if message.contains("move it away") { error } else { failure(code, refusal(path, &message)) }
}

fn refusal(path: &Path, what: &str) -> String {
    let path = path.display();
    format!(
        "{path} is damaged ({what}), so nothing is read from it and nothing written; restore it from a backup, or move it \
         away with its -wal and -shm files to begin with an empty one: approvals, pins, the ledger and jobs are in it"
    )
}

/// Returns what is wrong with the file, if anything.
fn find_problem(path: &Path) -> std::io::Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    let length = metadata.len();
    if !metadata.is_file() {
        return Ok(None);
    }
    // Pages in the WAL may be missing from the file.
    let has_log = std::fs::metadata(log_of(path)).is_ok_and(|log| log.len() > LOG_HEADER);
    if length == 0 {
        return Ok(has_log.then(|| "it is empty, and its log of writes is not".to_owned()));
    }
    let mut header = [0; HEADER];
    if file.read_exact(&mut header).is_err() {
        return Ok(Some(format!("it ends after {length} bytes")));
    }
    if header.iter().all(|byte| *byte == 0) {
        return Ok(Some("it begins with zeros".to_owned()));
    }
    if !header.starts_with(MAGIC) {
        return Ok(Some("it is not an SQLite database".to_owned()));
    }
    let page = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        size => u64::from(size),
    };
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    // The number of pages is valid only if the last writer updated it.
    let pages = if word(24) == word(92) { u64::from(word(28)) } else { 0 };
    // Another process may have written the rest since.
    let is_cut = length < pages * page && !has_log && file.metadata()?.len() < pages * page;
    Ok(is_cut.then(|| format!("it has {length} bytes of {}", pages * page)))
}

/// Reads the first page of each table, which fails if it is zeroed.
fn check_tables(db: &Connection) -> rusqlite::Result<()> {
    let tables: Vec<String> = db
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for table in tables {
        let name = table.replace('"', "\"\"");
        db.prepare(&format!("SELECT 1 FROM \"{name}\" LIMIT 1"))?.exists([])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwright_core::store::{LedgerStore as _, ManifestCache as _};

    use super::*;
    use crate::store::{FILE, SqliteStore};

    #[tokio::test]
    async fn a_store_of_another_version_is_refused_unchanged() {
        for other in [VERSION - 1, VERSION + 1] {
            let dir = tempfile::tempdir().expect("dir");
            let path = dir.path().join(FILE);
            let db = Connection::open(&path).expect("open");
            db.execute_batch("CREATE TABLE pins (provider, tool)").expect("table");
            db.pragma_update(None, "user_version", other).expect("version");
            drop(db);
            let store = SqliteStore::open(dir.path()).expect("it is opened at its first use");
            let error = store.manifest("k").await.expect_err("a store of another version was read").to_string();
            for part in [FILE, &format!("version {other}"), &format!("version {VERSION}"), "move it away"] {
                assert!(error.contains(part), "{error}");
            }
            let db = Connection::open(&path).expect("open");
            assert_eq!(version(&db).expect("version"), other);
            let tables = "SELECT group_concat(name) FROM sqlite_schema";
            assert_eq!(db.query_row(tables, [], |row| row.get::<_, String>(0)).expect("tables"), "pins");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn processes_create_the_store_at_once() {
        let dir = tempfile::tempdir().expect("dir");
        let stores: Vec<_> = (0..4).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
        for done in futures_util::future::join_all(stores.iter().map(|store| store.flush())).await {
            done.expect("created");
        }
        for store in &stores {
            assert!(store.manifest("k").await.expect("read").is_none());
        }
    }

    /// Stores a manifest, closes the store and returns its path.
    async fn filled(dir: &Path) -> PathBuf {
        let store = SqliteStore::open(dir).expect("open");
        store.set_manifest("k", &json!({"text": "x".repeat(600_000)})).await.expect("set");
        store.close().await.expect("closed");
        dir.join(FILE)
    }

    /// Returns the error of opening or reading the store.
    async fn refused(dir: &Path) -> String {
        match SqliteStore::open(dir) {
            Err(error) => error.to_string(),
            Ok(store) => {
                let read = store.manifest("k").await.map(|found| found.is_some());
                read.expect_err("a damaged file was used").to_string()
            }
        }
    }

    #[tokio::test]
    async fn a_damaged_database_is_refused_unchanged() {
        type Damage = fn(&Path, Vec<u8>);
        let harms: [(&str, Damage); 6] = [
            ("zeros", |path, was| std::fs::write(path, vec![0; was.len()]).expect("write")),
            ("a few zeros", |path, _| std::fs::write(path, [0; 40]).expect("write")),
            ("text", |path, _| std::fs::write(path, "not a database ".repeat(999)).expect("write")),
            ("half of it", |path, was| std::fs::write(path, &was[..was.len() / 2]).expect("write")),
            ("its header alone", |path, was| std::fs::write(path, &was[..100]).expect("write")),
            ("zeros but for the first page", |path, mut was| {
                was[4096..].fill(0);
                std::fs::write(path, was).expect("write");
            }),
        ];
        for (what, harm) in harms {
            let dir = tempfile::tempdir().expect("dir");
            let path = filled(dir.path()).await;
            harm(&path, std::fs::read(&path).expect("read"));
            let harmed = std::fs::read(&path).expect("read");
            let error = refused(dir.path()).await;
            assert!(error.contains(FILE) && error.contains("move it away"), "{what}: {error}");
            assert_eq!(std::fs::read(&path).expect("read"), harmed, "{what}");
        }
    }

    #[tokio::test]
    async fn a_database_emptied_beside_its_log_is_refused() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        store.set_manifest("k", &json!({})).await.expect("set");
        let copy = tempfile::tempdir().expect("dir");
        std::fs::copy(log_of(store.path()), log_of(&copy.path().join(FILE))).expect("copy");
        std::fs::write(copy.path().join(FILE), "").expect("write");
        let error = refused(copy.path()).await;
        assert!(error.contains("log of writes") && error.contains("move it away"), "{error}");
        assert!(log_of(&copy.path().join(FILE)).exists());
    }

    #[tokio::test]
    async fn an_empty_file_is_a_new_database() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join(FILE), "").expect("write");
        let store: Arc<SqliteStore> = SqliteStore::open(dir.path()).expect("open");
        store.flush().await.expect("new");
    }
}
