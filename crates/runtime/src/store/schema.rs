//! Creates the tables of a new file, and refuses a file whose tables are of another version.

use rusqlite::{Connection, TransactionBehavior, ffi};

const SCHEMA: &str = include_str!("schema.sql");

/// The version of [`SCHEMA`], kept as SQLite's `user_version`.
const VERSION: u32 = 18;

/// Creates the tables of a new file, whole or not at all, while other processes wait.
///
/// # Errors
/// When the file has tables of another version; it is left as it is.
pub(super) fn create_or_check(db: &mut Connection) -> rusqlite::Result<()> {
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
        other => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_ERROR), Some(refusal(db, other)))),
    }
}

fn version(db: &Connection) -> rusqlite::Result<u32> {
    db.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn refusal(db: &Connection, version: u32) -> String {
    let path = db.path().unwrap_or_default();
    format!(
        "{path} has version {version} of the store, and this program uses version {VERSION}; use the program that made it, \
         or move it away with its -wal and -shm files to begin with an empty one: approvals, pins, the ledger and jobs are in it"
    )
}

#[cfg(test)]
mod tests {
    use toolwright_core::store::{LedgerStore as _, ManifestCache as _};

    use super::super::{FILE, SqliteStore};
    use super::*;

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
    async fn processes_that_create_the_store_at_once_all_use_it() {
        let dir = tempfile::tempdir().expect("dir");
        let stores: Vec<_> = (0..4).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
        for done in futures_util::future::join_all(stores.iter().map(|store| store.flush())).await {
            done.expect("created");
        }
        for store in &stores {
            assert!(store.manifest("k").await.expect("read").is_none());
        }
    }
}
