//! Stores the ledger in SQLite, and what principals have spent of their budgets.

pub(super) mod begun_journal;
mod budgets;
mod entries;
mod running;
mod sums;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, params};
use toolwright_core::model::Usage;
use toolwright_core::operation::{OpKind, ParentSessions, TraceId};
use toolwright_core::session::SessionId;
use toolwright_core::store::{
    AppendStatus, LedgerEntry, LedgerHealth, LedgerStore, LedgerTotals, RUNNING, StoreError, TraceCursor, TracePage,
    TraceSummary, TraceSums,
};

pub(super) use self::running::{close_dead_operations, try_to_write};
pub(super) use self::writer::{LedgerBatch, write};
use super::SqliteStore;
use super::{one_more, split_page, unreadable};
use toolwright_core::store::{UsageBy, UsageRow};

#[async_trait]
impl LedgerStore for SqliteStore {
    async fn begin(&self, entry: LedgerEntry) -> Result<(), StoreError> {
        self.thread.begin(entry).await
    }

    fn append(&self, entry: LedgerEntry) -> AppendStatus {
        self.thread.append(entry)
    }

    async fn room(&self) {
        self.thread.room().await;
    }

    fn condition(&self) -> LedgerHealth {
        self.thread.condition()
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.thread.check().await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.thread.flush().await
    }

    async fn totals(&self) -> Result<LedgerTotals, StoreError> {
        self.inspect("total the ledger", totals).await
    }

    async fn trace_page(&self, after: Option<TraceCursor>, limit: usize) -> Result<TracePage, StoreError> {
        let limit = limit.max(1);
        let (ended, number) = after.map_or((i64::MAX, i64::MAX), |after| (most(after.ended_ms), most(after.number)));
        self.inspect("list the traces", move |db| {
            let count = "SELECT count(*) FROM traces WHERE root IS NULL";
            let total: i64 = db.prepare_cached(count)?.query_row([], |row| row.get(0))?;
            let sql = format!(
                "SELECT {TRACE_COLUMNS}, id FROM traces WHERE root IS NULL AND (ended_ms, id) < (?1, ?2) \
                 ORDER BY ended_ms DESC, id DESC LIMIT ?3"
            );
            let with_id = |row: &Row<'_>| Ok((summary(row)?, unsigned(row, 19)?));
            let mut rows = db
                .prepare_cached(&sql)?
                .query_map(params![ended, number, one_more(limit)], with_id)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            let next =
                split_page(&mut rows, limit, |(last, number)| TraceCursor { ended_ms: last.ended_ms, number: *number });
            let mut traces: Vec<_> = rows.into_iter().map(|(trace, _)| trace).collect();
            let live = running::live(db)?;
            for root in &mut traces {
                let tree = tree(db, root)?;
                tree.iter().skip(1).for_each(|below| root.sums.add_all(&below.sums));
                root.live = tree.iter().any(|one| live.contains(one.name()));
            }
            Ok(TracePage { traces, total: total.cast_unsigned(), next })
        })
        .await
    }

    async fn find_traces(&self, name: &str) -> Result<Vec<TraceSummary>, StoreError> {
        let name = name.to_owned();
        self.inspect("find a trace", move |db| {
            let (mut found, live) = (find(db, &name)?, running::live(db)?);
            for one in &mut found {
                one.live = tree(db, one)?.iter().any(|one| live.contains(one.name()));
            }
            Ok(found)
        })
        .await
    }

    async fn trace_tree(&self, of: &TraceSummary) -> Result<Vec<TraceSummary>, StoreError> {
        let of = of.clone();
        self.inspect("read the runs below a run", move |db| tree(db, &of)).await
    }

    async fn usage(&self, by: UsageBy, since_ms: u64) -> Result<Vec<UsageRow>, StoreError> {
        self.inspect("sum the ledger", move |db| sums::usage(db, by, most(since_ms))).await
    }

    async fn recent_calls(&self, tool: Option<&str>, limit: usize) -> Result<Vec<LedgerEntry>, StoreError> {
        let tool = tool.map(str::to_owned);
        self.inspect("read the last calls", move |db| sums::recent_calls(db, tool.as_deref(), limit)).await
    }

    async fn operations(&self, of: &TraceSummary, limit: usize) -> Result<Vec<LedgerEntry>, StoreError> {
        let of = of.clone();
        self.inspect("read a trace", move |db| operations(db, &of, limit)).await
    }
}

impl SqliteStore {
    /// Reads the ledger after recording the unfinished operations of dead processes.
    async fn inspect<T: Send + 'static>(
        &self,
        doing: &'static str,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let settled = |db: &mut Connection| {
            if let Err(error) = close_dead_operations(db) {
                tracing::debug!("what other processes have left was not entered in the ledger: {error}");
            }
            read(db)
        };
        self.thread.run(doing, settled).await
    }
}

fn totals(db: &Connection) -> rusqlite::Result<LedgerTotals> {
    let mut statement =
        db.prepare("SELECT ifnull(kind, 'tool'), ifnull(status, 'ok'), COUNT(*) FROM entries GROUP BY kind, status")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, unsigned(row, 2)?)))?;
    let mut by_status: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for row in rows {
        let (kind, status, count) = row?;
        *by_status.entry(kind).or_default().entry(status).or_default() += count;
    }
    for entry in running::remaining_operations(db)? {
        let (kind, status) = (entry.kind.as_str().to_owned(), entry.status.into_owned());
        *by_status.entry(kind).or_default().entry(status).or_default() += 1;
    }
    let of = |kind: &str, status: fn(&str) -> bool| {
        by_status.get(kind).into_iter().flatten().filter(|(name, _)| status(name)).map(|(_, count)| count).sum()
    };
    Ok(LedgerTotals {
        tool_calls: of("tool", |_| true),
        tool_failures: of("tool", |status| !matches!(status, "ok" | RUNNING)),
        model_calls: of("model", |_| true),
        by_status,
    })
}

const TRACE_COLUMNS: &str = "run, session, principal, started_ms, ended_ms, turns, tool_calls, model_calls, \
                             jobs, failures, input_tokens, output_tokens, cached_tokens, cost_usd, \
                             cache_written_tokens, open_costs, parent, root, reasoning_tokens";

fn summaries(db: &Connection, rest: &str, parameters: &[&dyn ToSql]) -> rusqlite::Result<Vec<TraceSummary>> {
    let mut statement = db.prepare_cached(&format!("SELECT {TRACE_COLUMNS} FROM traces {rest}"))?;
    statement.query_map(parameters, summary)?.collect()
}

fn summary(row: &Row<'_>) -> rusqlite::Result<TraceSummary> {
    Ok(TraceSummary {
        run: row.get(0)?,
        session: SessionId::new(row.get::<_, String>(1)?),
        principal: row.get(2)?,
        within: match (row.get::<_, Option<String>>(16)?, row.get::<_, Option<String>>(17)?) {
            (Some(parent), Some(root)) => {
                Some(Arc::new(ParentSessions { parent: SessionId::new(parent), root: SessionId::new(root) }))
            }
            _ => None,
        },
        started_ms: unsigned(row, 3)?,
        ended_ms: unsigned(row, 4)?,
        live: false,
        turns: row.get(5)?,
        sums: TraceSums {
            tool_calls: unsigned(row, 6)?,
            model_calls: unsigned(row, 7)?,
            jobs: unsigned(row, 8)?,
            failures: unsigned(row, 9)?,
            usage: Usage {
                input_tokens: tokens(row, 10)?,
                output_tokens: tokens(row, 11)?,
                cached_tokens: tokens(row, 12)?,
                cache_written_tokens: tokens(row, 14)?,
                reasoning_tokens: tokens(row, 18)?,
            },
            cost_usd: row.get(13)?,
            open_costs: unsigned(row, 15)?,
        },
    })
}

fn find(db: &Connection, name: &str) -> rusqlite::Result<Vec<TraceSummary>> {
    const NEWEST: &str = "ORDER BY ended_ms DESC, id DESC";
    if name == "last" {
        return summaries(db, &format!("WHERE root IS NULL {NEWEST} LIMIT 1"), &[]);
    }
    let exact = summaries(db, &format!("WHERE run = ?1 OR session = ?1 {NEWEST} LIMIT 100"), &[&name])?;
    if !exact.is_empty() || name.is_empty() {
        return Ok(exact);
    }
    if let Ok(trace) = name.parse::<TraceId>() {
        let of = "WHERE id IN (SELECT of FROM entries WHERE substr(ids, 1, 16) = ?1)";
        return summaries(db, &format!("{of} {NEWEST} LIMIT 100"), &[&trace.get().to_be_bytes()]);
    }
    let begins = "substr(run, 1, length(?1)) = ?1 OR substr(session, 1, length(?1)) = ?1";
    let found = summaries(db, &format!("WHERE {begins} {NEWEST} LIMIT 100"), &[&name])?;
    // They belong to one run, or to the same session.
    let one = found.iter().all(|other| other.run == found[0].run && other.session == found[0].session);
    Ok(if one { found } else { Vec::new() })
}

/// Returns a run or session and the runs below it, in the order of their starts.
fn tree(db: &Connection, of: &TraceSummary) -> rusqlite::Result<Vec<TraceSummary>> {
    let root = of.within.as_ref().map_or(&of.session, |within| &within.root);
    let others = summaries(db, "WHERE root = ?1 AND principal = ?2 ORDER BY id", &[&root.as_str(), &&*of.principal])?;
    let mut tree = vec![of.clone()];
    let mut next = 0;
    while let Some(parent) = tree.get(next).map(|above| above.session.clone()) {
        let is_child = |other: &&TraceSummary| other.within.as_ref().is_some_and(|within| within.parent == parent);
        let is_new =
            |other: &&TraceSummary| !tree.iter().any(|known| known.session == other.session && known.run == other.run);
        let children: Vec<_> = others.iter().filter(is_child).filter(is_new).cloned().collect();
        tree.extend(children);
        next += 1;
    }
    Ok(tree)
}

/// Returns the last operations of a run or session in the order of writing, followed by those that have not ended.
fn operations(db: &Connection, of: &TraceSummary, limit: usize) -> rusqlite::Result<Vec<LedgerEntry>> {
    // Reads everything at one moment, because others write and delete between the queries.
    let moment = db.unchecked_transaction()?;
    let find = "SELECT id FROM traces WHERE session = ?1 AND ifnull(run, '') = ?2 AND principal = ?3";
    let key = params![of.session.as_str(), of.run.as_deref().unwrap_or_default(), of.principal];
    let Some(trace) = moment.prepare_cached(find)?.query_row(key, |row| row.get(0)).optional()? else {
        return Ok(Vec::new());
    };
    // The last come first.
    let ended = entries::operations(&moment, trace, of, limit)?;
    let mut begun: Vec<_> = running::remaining_operations(&moment)?;
    begun.retain(|entry| {
        entry.session == of.session && entry.op.lineage.run == of.run && entry.principal == of.principal
    });
    begun.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.at_ms));
    let mut entries: Vec<_> = begun.into_iter().chain(ended).take(limit).collect();
    entries.reverse();
    Ok(entries)
}

/// Reads a sum of tokens. SQLite turns a sum that exceeds its integers into a real number, which counts as the largest
/// integer.
fn tokens(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    match row.get_ref(index)? {
        ValueRef::Real(_) => Ok(i64::MAX.cast_unsigned()),
        _ => unsigned(row, index),
    }
}

/// Returns a count that SQLite can store.
fn most(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn unsigned(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    row.get::<_, Option<i64>>(index).map(|number| number.unwrap_or_default().cast_unsigned())
}

fn kind(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<OpKind>> {
    let Some(kind) = row.get_ref(index)?.as_str_or_null()? else { return Ok(None) };
    OpKind::parse(kind).map(Some).ok_or_else(|| unreadable(index, std::io::Error::other(kind.to_owned())))
}

#[cfg(test)]
mod tests {
    use toolwright_core::arguments::Provenance;
    use toolwright_core::exposure::ExposureRecord;
    use toolwright_core::operation::{Lineage, Op, OpId};
    use toolwright_core::session::CallId;

    use super::super::SqliteStore;
    use super::super::now_ms;
    use super::*;

    fn entry(session: &str, id: u64) -> LedgerEntry {
        let op = Lineage::in_trace(TraceId::new(u128::from(id) << 64 | 5)).begin(OpId::new(id));
        let now = now_ms().cast_unsigned();
        LedgerEntry::new(op, now, SessionId::new(session), "owner".into(), OpKind::Tool, "x:t@1.0.0".into())
    }

    async fn trace(store: &SqliteStore, name: &str) -> TraceSummary {
        let mut found = store.find_traces(name).await.expect("traces");
        assert_eq!(found.len(), 1, "{name}");
        found.remove(0)
    }

    /// Returns the ids of the last operations of a session.
    async fn ids(store: &SqliteStore, session: &str, limit: usize) -> Vec<u64> {
        let of = trace(store, session).await;
        let entries = store.operations(&of, limit).await.expect("operations");
        entries.iter().map(|entry| entry.op.id.get()).collect()
    }

    async fn change(store: &SqliteStore, sql: impl Into<String>) {
        let sql = sql.into();
        store.thread.run("change rows", move |db| db.execute_batch(&sql)).await.expect("changed");
    }

    #[tokio::test]
    async fn a_ledger_entry_reads_back_unchanged() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let usual = entry("s", 1);
        let inside = |parent| Op {
            id: OpId::new(u64::MAX),
            lineage: Lineage { turn: 3, parent, ..Lineage::in_trace(TraceId::new(u128::MAX)) },
        };
        let usage =
            Usage { input_tokens: 1, output_tokens: 2, cached_tokens: 3, cache_written_tokens: 4, reasoning_tokens: 5 };
        let all = [
            usual.clone(),
            LedgerEntry { call: Some(CallId::new("c")), validated: true, decided_by: "rule".into(), ..usual.clone() },
            LedgerEntry { op: inside(Some(OpId::new(7))), status: "timeout".into(), attempts: 0, ..usual.clone() },
            LedgerEntry { op: inside(None), cached: true, approval: Some("always".into()), ..usual.clone() },
            LedgerEntry { provenance: Provenance { repaired: true, ..Provenance::default() }, ..usual.clone() },
            LedgerEntry { kind: OpKind::Model, usage, cost_usd: Some(0.1 + 0.2), attempts: 2, ..usual.clone() },
            LedgerEntry {
                kind: OpKind::Model,
                tools: Some(ExposureRecord { shown: 3, ..ExposureRecord::default() }),
                ..usual.clone()
            },
            LedgerEntry { kind: OpKind::Guard, wait_us: 1, characters_in: 2, characters_out: 3, ..usual.clone() },
            LedgerEntry { kind: OpKind::Job, status: "done".into(), latency_us: 9, ..usual },
        ];
        for entry in &all {
            store.append(entry.clone());
        }
        store.flush().await.expect("flush");
        let of = trace(&store, "s").await;
        assert_eq!(store.operations(&of, 99).await.expect("operations"), all);
        let totals = store.totals().await.expect("totals");
        assert_eq!((totals.tool_calls, totals.tool_failures, totals.model_calls), (5, 1, 2));
        assert_eq!(totals.by_status["job"]["done"], 1);
    }

    #[tokio::test]
    async fn each_session_has_its_own_operations() {
        let dir = tempfile::tempdir().expect("dir");
        let stores: Vec<_> = (0..2).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
        let sessions = ["a", "b", "c"];
        // Batches of many sizes, from two processes in turns.
        let mut id = 0;
        for (turn, size) in [1, 16, 23, 3, 40, 5].into_iter().enumerate() {
            let store = &stores[turn % 2];
            for _ in 0..size {
                id += 1;
                store.append(entry(sessions[(id * id % 7 % 3) as usize], id));
            }
            store.flush().await.expect("flush");
        }
        let of = |n: usize| (1..=id).filter(|id| (id * id % 7 % 3) as usize == n).collect::<Vec<_>>();
        for (n, session) in sessions.into_iter().enumerate() {
            assert_eq!(ids(&stores[0], session, 99).await, of(n));
            assert_eq!(ids(&stores[1], session, 2).await, of(n)[of(n).len() - 2..]);
            assert_eq!(trace(&stores[0], session).await.sums.tool_calls, of(n).len() as u64);
        }
        // Old rows are deleted, and their numbers are used again.
        change(&stores[0], "DELETE FROM entries WHERE id <= 40").await;
        assert_eq!(ids(&stores[0], "a", 99).await, of(0).into_iter().filter(|id| *id > 40).collect::<Vec<_>>());
        change(&stores[0], "DELETE FROM entries").await;
        for id in 1000..1100 {
            stores[1].append(entry("b", id));
        }
        stores[1].append(entry("c", 2000));
        stores[1].flush().await.expect("flush");
        assert_eq!(ids(&stores[1], "a", 99).await, [0; 0]);
        assert_eq!(ids(&stores[1], "b", 199).await, (1000..1100).collect::<Vec<_>>());
        assert_eq!(ids(&stores[1], "c", 99).await, [2000]);
    }

    /// Another process's upkeep can delete the `traces` row of a session, and its id may then be reused.
    #[tokio::test]
    async fn entries_stay_with_their_session_across_upkeep() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let gone = "DELETE FROM traces";
        let another_s = "DELETE FROM traces WHERE session = 'z'; \
                         UPDATE traces SET session = 'z', last = NULL, tool_calls = 0 WHERE session = 's'";
        // Several times each, because the store's own upkeep may run between the first of them.
        for (round, sql) in (1..).zip([gone, another_s].repeat(4)) {
            let (before, z, s) = (100 * round, 100 * round + 1, 100 * round + 2);
            store.append(entry("s", before));
            store.flush().await.expect("flush");
            change(&store, sql).await;
            store.append(entry("z", z));
            store.append(entry("s", s));
            store.flush().await.expect("flush");
            for (session, id) in [("z", z), ("s", s)] {
                assert_eq!(trace(&store, session).await.sums.tool_calls, 1, "{round}: {session}");
                assert_eq!(ids(&store, session, 99).await, [id], "{round}: {session}");
            }
        }
    }

    #[tokio::test]
    async fn an_empty_run_name_is_ignored() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        for id in 1..=6 {
            let mut entry = entry("s", id);
            entry.op.lineage.run = (id % 3 == 0).then(|| "".into());
            store.append(entry);
        }
        store.flush().await.expect("flush");
        assert_eq!(ids(&store, "s", 99).await, [1, 2, 3, 4, 5, 6]);
    }

    #[tokio::test]
    async fn a_trace_is_a_consistent_snapshot() {
        let dir = tempfile::tempdir().expect("dir");
        let stores: Vec<_> = (0..2).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
        for round in 0..4 {
            for id in 1..=3000 {
                stores[0].append(entry("s", id));
            }
            stores[0].flush().await.expect("flush");
            let of = trace(&stores[0], "s").await;
            let (read, ()) = tokio::join!(stores[0].operations(&of, 9999), change(&stores[1], "DELETE FROM entries"));
            let read = read.expect("operations").len();
            assert!([0, 3000].contains(&read), "{round}: {read}");
        }
    }
}
