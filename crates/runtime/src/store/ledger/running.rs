//! Lists the operations that have begun but not ended.

use std::collections::HashSet;
use std::path::Path;

use rusqlite::{Connection, TransactionBehavior, params};
use toolwright_core::operation::OpId;
use toolwright_core::store::{LedgerEntry, RUNNING, UNKNOWN_OUTCOME};

use super::super::json_column;
use super::super::owner;
use super::begun_journal::{DeadJournal, dead_journals};
use super::writer::{self, LedgerBatch};

/// Bytes of a test write: more than the file has free by chance.
const TRIAL: i64 = 64 << 10;

/// Records that operations begin, each under its row of `traces`.
pub(super) fn insert(db: &Connection, entries: &[&LedgerEntry]) -> rusqlite::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let owner = owner::number(db)?;
    let mut insert = db.prepare_cached("INSERT OR REPLACE INTO begun (op, owner, entry) VALUES (?1, ?2, ?3)")?;
    for entry in entries {
        writer::trace_of(db, entry)?;
        let text =
            serde_json::to_string(entry).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        insert.execute(params![key(entry.op.id), owner, text])?;
    }
    Ok(())
}

/// Removes operations that have ended.
pub(super) fn delete(db: &Connection, ended: &[OpId]) -> rusqlite::Result<()> {
    let mut delete = db.prepare_cached("DELETE FROM begun WHERE op = ?1")?;
    ended.iter().try_for_each(|op| delete.execute([key(*op)]).map(drop))
}

fn key(op: OpId) -> i64 {
    op.get().cast_signed()
}

/// Returns the remaining operations: running, or with an unknown outcome if their process is gone.
pub(super) fn remaining_operations(db: &Connection) -> rusqlite::Result<Vec<LedgerEntry>> {
    let gone = owner::dead_owners(db)?;
    db.prepare_cached("SELECT entry, owner, owner IN (SELECT id FROM job_owners) FROM begun ORDER BY op")?
        .query_map([], |row| {
            let mut entry: LedgerEntry = json_column(row, 0)?;
            let is_known: bool = row.get(2)?;
            let is_gone = !is_known || gone.contains(&row.get(1)?);
            entry.status = if is_gone { UNKNOWN_OUTCOME } else { RUNNING }.into();
            Ok(entry)
        })?
        .collect()
}

/// Returns the runs that a process drives, and the runs and sessions of running operations.
pub(super) fn live(db: &Connection) -> rusqlite::Result<HashSet<String>> {
    let of = |entry: &LedgerEntry| entry.op.lineage.run.as_deref().unwrap_or(entry.session.as_str()).to_owned();
    let begun = remaining_operations(db)?.into_iter().filter(|entry| entry.status == RUNNING);
    Ok(begun.map(|entry| of(&entry)).chain(owner::driven(db)?).collect())
}

/// Records the unfinished operations of dead processes with an unknown outcome.
pub(in super::super) fn close_dead_operations(db: &mut Connection) -> rusqlite::Result<()> {
    let dead_entries = |db: &Connection| {
        remaining_operations(db)
            .map(|left| left.into_iter().filter(|entry| entry.status == UNKNOWN_OUTCOME).collect::<Vec<_>>())
    };
    let journals = db.path().map(|path| dead_journals(Path::new(path))).unwrap_or_default();
    if journals.is_empty() && dead_entries(db)?.is_empty() {
        return Ok(());
    }
    // Another process may have done so meanwhile.
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut entries = dead_entries(&transaction)?;
    let ended: Vec<OpId> = entries.iter().map(|entry| entry.op.id).collect();
    entries.extend(without_row(&transaction, &journals)?);
    writer::write_in(&transaction, &LedgerBatch { begun: &[], entries: &entries, ended: &ended })?;
    transaction.commit()?;
    journals.into_iter().for_each(DeadJournal::remove);
    Ok(())
}

/// Returns the operations of these journals that have no row, because their process ended before it could write one.
fn without_row(db: &Connection, journals: &[DeadJournal]) -> rusqlite::Result<Vec<LedgerEntry>> {
    /// Two processes may write rows in another order than that of their times.
    const SLACK_MS: u64 = 60_000;
    let begun = || journals.iter().flat_map(|journal| &journal.entries);
    let Some(oldest) = begun().map(|entry| entry.at_ms).min() else { return Ok(Vec::new()) };
    let mut with_row: HashSet<i64> =
        db.prepare_cached("SELECT op FROM begun")?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut last = db.prepare("SELECT at_ms, substr(ids, 17, 8) FROM entries ORDER BY id DESC")?;
    let mut rows = last.query([])?;
    while let Some(row) = rows.next()?
        && super::unsigned(row, 0)?.saturating_add(SLACK_MS) >= oldest
    {
        with_row.insert(i64::from_be_bytes(row.get(1)?));
    }
    let mut missing = Vec::new();
    for entry in begun().filter(|entry| with_row.insert(key(entry.op.id))) {
        missing.push(LedgerEntry { status: UNKNOWN_OUTCOME.into(), ..entry.clone() });
    }
    Ok(missing)
}

/// Checks that the file can grow: writes more than is free in it, and deletes that again.
pub(in super::super) fn try_to_write(db: &mut Connection) -> rusqlite::Result<()> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("INSERT OR REPLACE INTO begun (op, owner, entry) VALUES (0, 0, zeroblob(?1))", [TRIAL])?;
    transaction.execute("DELETE FROM begun WHERE op = 0", [])?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use toolwright_core::error::ErrorKind;
    use toolwright_core::operation::{Lineage, OpKind};
    use toolwright_core::session::SessionId;
    use toolwright_core::store::LedgerStore as _;

    use super::super::super::SqliteStore;
    use super::super::super::now_ms;
    use super::super::begun_journal::{BegunJournal, line};
    use super::*;

    fn entry(id: u64) -> LedgerEntry {
        let (op, now) = (Lineage::named("s").begin(OpId::new(id)), now_ms().cast_unsigned());
        LedgerEntry::new(op, now, SessionId::new("s"), "owner".into(), OpKind::Tool, "x:t@1.0.0".into())
    }

    /// Returns operations with their statuses, and the number of calls in the session's sums.
    async fn rows_of(store: &SqliteStore) -> (Vec<(u64, String)>, u64) {
        let of = store.find_traces("s").await.expect("traces").remove(0);
        let entries = store.operations(&of, 99).await.expect("operations");
        let rows = entries.iter().map(|entry| (entry.op.id.get(), entry.status.to_string())).collect();
        (rows, of.sums.tool_calls)
    }

    fn rows(of: &[(u64, &str)]) -> Vec<(u64, String)> {
        of.iter().map(|(id, status)| (*id, (*status).to_owned())).collect()
    }

    async fn change(store: &SqliteStore, sql: String) {
        store.thread.run("change rows", move |db| db.execute_batch(&sql)).await.expect("changed");
    }

    #[tokio::test]
    async fn an_operation_is_running_until_it_ends() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let other = SqliteStore::open(dir.path()).expect("open");
        store.append(entry(1));
        store.begin(entry(2)).await.expect("entered");
        for store in [&store, &other] {
            assert_eq!(rows_of(store).await, (rows(&[(1, "ok"), (2, RUNNING)]), 1));
            let totals = store.totals().await.expect("totals");
            assert_eq!((totals.by_status["tool"][RUNNING], totals.tool_failures), (1, 0));
            assert!(
                store.traces(1).await.expect("traces")[0].live && store.find_traces("s").await.expect("traces")[0].live
            );
        }
        store.append(LedgerEntry { status: ErrorKind::Timeout.as_str().into(), ..entry(2) });
        // The end may arrive before the beginning if the call was cancelled meanwhile.
        let (entered, _) = tokio::join!(store.begin(entry(3)), async { store.append(entry(3)) });
        entered.expect("entered");
        store.flush().await.expect("flush");
        assert_eq!(rows_of(&other).await, (rows(&[(1, "ok"), (2, "timeout"), (3, "ok")]), 3));
        assert!(!other.traces(1).await.expect("traces")[0].live, "all has ended");
    }

    #[tokio::test]
    async fn operations_of_a_dead_process_are_unknown() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        store.begin(entry(1)).await.expect("entered");
        change(&store, "UPDATE begun SET owner = 4711".to_owned()).await;
        let others: Vec<_> = (0..4).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
        let seen = futures_util::future::join_all(others.iter().map(|store| rows_of(store))).await;
        assert!(seen.iter().all(|rows_and_calls| *rows_and_calls == (rows(&[(1, UNKNOWN_OUTCOME)]), 1)), "{seen:?}");
        let totals = store.totals().await.expect("totals");
        assert_eq!((totals.tool_calls, totals.tool_failures), (1, 1), "once, whoever enters it");
    }

    #[tokio::test]
    async fn a_dead_journal_is_settled_once() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        store.begin(entry(1)).await.expect("entered");
        store.append(entry(2));
        store.flush().await.expect("flush");
        let mut journal = BegunJournal::of(store.path());
        for id in 1..=3 {
            journal.write(&line(store.path(), &entry(id)).expect("line"));
        }
        drop(journal);
        let other = SqliteStore::open(dir.path()).expect("open");
        for store in [&other, &store] {
            assert_eq!(rows_of(store).await.0, rows(&[(2, "ok"), (3, UNKNOWN_OUTCOME), (1, RUNNING)]));
        }
    }

    #[tokio::test]
    async fn operations_outliving_their_batch_get_a_row() {
        let dir = tempfile::tempdir().expect("dir");
        let (store, other) =
            (SqliteStore::open(dir.path()).expect("open"), SqliteStore::open(dir.path()).expect("open"));
        for id in 1..=3 {
            store.begin(entry(id)).await.expect("entered");
        }
        store.append(entry(2));
        store.flush().await.expect("flush");
        assert_eq!(rows_of(&other).await.0, rows(&[(2, "ok"), (1, RUNNING), (3, RUNNING)]));
        drop(store);
    }

    /// Limits the file's size to this many pages.
    async fn limit(store: &SqliteStore, pages: i64) {
        let limit = move |db: &mut Connection| {
            let now: i64 = db.pragma_query_value(None, "page_count", |row| row.get(0))?;
            db.pragma_update(None, "max_page_count", now + pages)
        };
        store.thread.run("limit the file", limit).await.expect("limited");
    }

    #[tokio::test]
    async fn a_full_disk_is_reported_and_loses_nothing() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        store.begin(entry(1)).await.expect("entered");
        assert_eq!(store.check().await.map_err(|error| error.to_string()), Ok(()));
        limit(&store, 0).await;
        let long = |id| LedgerEntry { name: "n".repeat(20_000).into(), ..entry(id) };
        store.append(long(3));
        let error = store.flush().await.expect_err("there is no room").to_string();
        assert!(error.contains("full"), "{error}");
        let error = store.begin(long(2)).await.expect_err("there is no room").to_string();
        assert!(error.contains("full") && error.contains("toolwright.sqlite3"), "{error}");
        let condition = store.condition();
        assert_eq!((condition.waiting, condition.lost), (1, 0));
        assert!(condition.failures >= 2 && condition.failing.is_some_and(|why| why.contains("full")));
        store.check().await.expect_err("it is tried, and fails");

        limit(&store, 10_000).await;
        while store.check().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((store.condition().waiting, store.condition().failing), (0, None));
        store.flush().await.expect("there is room");
        let (seen, _) = rows_of(&store).await;
        assert_eq!(seen, rows(&[(3, "ok"), (1, RUNNING)]), "what was refused has no row");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn what_the_journal_cannot_hold_gets_a_row() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        for id in 1..=2 {
            store.begin(entry(id)).await.expect("entered");
        }
        let _locked = store.thread.journal_to(std::path::Path::new("/dev/full"));
        store.begin(entry(3)).await.expect("its row is written");
        limit(&store, 0).await;
        let long = LedgerEntry { name: "n".repeat(20_000).into(), ..entry(4) };
        store.begin(long).await.expect_err("there is no room");
        store.append(entry(4));
        limit(&store, 10_000).await;
        while store.check().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (mut seen, _) = rows_of(&store).await;
        seen.sort();
        assert_eq!(seen, rows(&[(1, RUNNING), (2, RUNNING), (3, RUNNING), (4, "ok")]));
    }

    #[tokio::test]
    async fn an_unwritable_store_closes_and_keeps_its_journal() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        store.begin(entry(1)).await.expect("entered");
        limit(&store, 0).await;
        store.begin(LedgerEntry { name: "n".repeat(20_000).into(), ..entry(2) }).await.expect("in the journal");
        let path = store.path().to_owned();
        drop(store);
        // The thread keeps the journal locked while it works.
        let closed = async {
            while dead_journals(&path).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), closed).await.expect("the thread has ended");
        let (seen, _) = rows_of(&SqliteStore::open(dir.path()).expect("open")).await;
        assert_eq!(seen, rows(&[(2, UNKNOWN_OUTCOME), (1, RUNNING)]));
    }

    #[tokio::test]
    async fn an_unwritable_ledger_keeps_a_bounded_backlog() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        store.flush().await.expect("open");
        limit(&store, 0).await;
        for id in 0..40_000 {
            store.append(entry(id));
        }
        while store.condition().lost == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let condition = store.condition();
        assert!(condition.waiting < 32_768 && condition.failing.is_some(), "{condition:?}");
    }

    #[tokio::test]
    async fn entries_after_a_recent_write_wake_nobody() {
        let dir = tempfile::tempdir().expect("dir");
        let (store, other) =
            (SqliteStore::open(dir.path()).expect("open"), SqliteStore::open(dir.path()).expect("open"));
        let mut id = 0;
        while !store.thread.is_watched() {
            id += 1;
            store.begin(entry(id)).await.expect("entered");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        store.append(entry(id));
        let written = async {
            while !rows_of(&other).await.0.contains(&(id, "ok".to_owned())) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), written).await.expect("written without being waited for");
    }

    #[tokio::test]
    async fn concurrent_begins_are_all_recorded() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let calls = (1..=300).map(|id| {
            let store: Arc<SqliteStore> = Arc::clone(&store);
            async move {
                store.begin(entry(id)).await.expect("entered");
                store.append(LedgerEntry { status: status(id), ..entry(id) });
            }
        });
        futures_util::future::join_all(calls).await;
        store.flush().await.expect("flush");
        let totals = store.totals().await.expect("totals");
        assert_eq!((totals.tool_calls, totals.tool_failures), (300, 100));
        assert!(!totals.by_status["tool"].contains_key(RUNNING));
    }

    fn status(id: u64) -> std::borrow::Cow<'static, str> {
        if id.is_multiple_of(3) { ErrorKind::Timeout.as_str().into() } else { "ok".into() }
    }
}
