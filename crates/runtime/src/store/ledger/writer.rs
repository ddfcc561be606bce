//! Writes the ledger.

use std::sync::LazyLock;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use toolwright_core::operation::{OpId, ParentSessions};
use toolwright_core::store::{LedgerEntry, TraceSums};

use super::{entries, most, running};

/// Insert statements for several entries at once: half of a statement's cost is its start and end.
static INSERTS: LazyLock<[(usize, String); 3]> = LazyLock::new(|| [16, 4, 1].map(|rows| (rows, entries::insert(rows))));

const UPDATE: &str = "UPDATE traces SET started_ms = min(started_ms, ?2), ended_ms = max(ended_ms, ?3), \
                      turns = max(turns, ?4), tool_calls = tool_calls + ?5, model_calls = model_calls + ?6, \
                      jobs = jobs + ?7, failures = failures + ?8, \
                      input_tokens = min(9223372036854775807, input_tokens + ?9), \
                      output_tokens = min(9223372036854775807, output_tokens + ?10), \
                      cached_tokens = min(9223372036854775807, cached_tokens + ?11), \
                      cache_written_tokens = min(9223372036854775807, cache_written_tokens + ?13), \
                      reasoning_tokens = min(9223372036854775807, reasoning_tokens + ?16), \
                      open_costs = open_costs + ?14, last = ?15, \
                      cost_usd = CASE WHEN ?12 IS NULL THEN cost_usd ELSE ifnull(cost_usd, 0) + ?12 END WHERE id = ?1";

/// The common part of operations.
#[derive(PartialEq, Eq, Hash)]
struct SharedColumns<'a> {
    /// Empty without a run.
    run: &'a str,
    session: &'a str,
    principal: &'a str,
    within: Option<&'a ParentSessions>,
}

impl<'a> SharedColumns<'a> {
    fn of(entry: &'a LedgerEntry) -> Self {
        let run = entry.op.lineage.run.as_deref().unwrap_or_default();
        let within = entry.op.lineage.within.as_deref();
        Self { run, session: entry.session.as_str(), principal: &entry.principal, within }
    }
}

/// Additions of a batch to a row of `traces`.
struct TraceDelta {
    /// Its id.
    of: i64,
    started_ms: u64,
    ended_ms: u64,
    turns: u32,
    sums: TraceSums,
    /// Its last row of `entries`.
    last: Option<i64>,
}

impl TraceDelta {
    fn begin((of, last): (i64, Option<i64>)) -> Self {
        Self { of, started_ms: u64::MAX, ended_ms: 0, turns: 0, sums: TraceSums::default(), last }
    }

    fn add(&mut self, entry: &LedgerEntry) {
        self.started_ms = self.started_ms.min(entry.started_us() / 1000);
        self.ended_ms = self.ended_ms.max(entry.at_ms);
        self.turns = self.turns.max(entry.op.lineage.turn);
        self.sums.add(entry);
    }
}

/// The content of one batch.
pub(in super::super) struct LedgerBatch<'a> {
    /// Operations that have begun and not ended.
    pub(in super::super) begun: &'a [&'a LedgerEntry],
    /// Operations that have ended.
    pub(in super::super) entries: &'a [LedgerEntry],
    /// The ended operations that were recorded at their beginning.
    pub(in super::super) ended: &'a [OpId],
}

/// Writes a batch in one transaction.
pub(in super::super) fn write(db: &mut Connection, written: &LedgerBatch<'_>) -> rusqlite::Result<()> {
    // An immediate transaction: it reads before it writes, and SQLite would not wait for a process that writes in
    // between.
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    write_in(&transaction, written)?;
    transaction.commit()
}

pub(super) fn write_in(transaction: &Transaction<'_>, written: &LedgerBatch<'_>) -> rusqlite::Result<()> {
    let LedgerBatch { begun, mut entries, ended } = *written;
    running::insert(transaction, begun)?;
    running::delete(transaction, ended)?;
    if entries.is_empty() {
        return Ok(());
    }
    let mut added: HashMap<SharedColumns<'_>, TraceDelta> = HashMap::new();
    // SQLite assigns ids after the largest one.
    let mut id: i64 =
        transaction.prepare_cached("SELECT ifnull(max(id), 0) FROM entries")?.query_row([], |row| row.get(0))?;
    for (rows, sql) in &*INSERTS {
        if entries.len() < *rows {
            continue;
        }
        let mut insert = transaction.prepare_cached(sql)?;
        let chunks = entries.chunks_exact(*rows);
        entries = chunks.remainder();
        for chunk in chunks {
            for (row, entry) in chunk.iter().enumerate() {
                let added = match added.entry(SharedColumns::of(entry)) {
                    Entry::Occupied(added) => added.into_mut(),
                    Entry::Vacant(place) => {
                        let trace = trace(transaction, place.key(), entry.at_ms)?;
                        place.insert(TraceDelta::begin(trace))
                    }
                };
                added.add(entry);
                id += 1;
                entries::bind(&mut insert, row, (added.of, added.last.replace(id)), entry)?;
            }
            insert.raw_execute()?;
            debug_assert_eq!(transaction.last_insert_rowid(), id, "the id that the next entry names");
        }
    }
    update(transaction, added.values())
}

/// Makes sure that an operation has its row of `traces`.
pub(super) fn trace_of(db: &Connection, entry: &LedgerEntry) -> rusqlite::Result<()> {
    trace(db, &SharedColumns::of(entry), entry.at_ms).map(drop)
}

/// Returns the row of `traces` of an operation, and its last row of `entries`. It is looked up in each batch, because
/// other processes write to it, and their upkeep may delete it and reuse its id.
fn trace(db: &Connection, common: &SharedColumns<'_>, at_ms: u64) -> rusqlite::Result<(i64, Option<i64>)> {
    let SharedColumns { run, session, principal, within } = common;
    let find = "SELECT id, last FROM traces WHERE session = ?1 AND ifnull(run, '') = ?2 AND principal = ?3";
    let found = db
        .prepare_cached(find)?
        .query_row(params![session, run, principal], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some(found) = found {
        return Ok(found);
    }
    let insert = "INSERT INTO traces (run, session, principal, started_ms, ended_ms, parent, root) \
                  VALUES (nullif(?1, ''), ?2, ?3, ?4, ?4, ?5, ?6)";
    let (parent, root) = (within.map(|within| within.parent.as_str()), within.map(|within| within.root.as_str()));
    let id = db.prepare_cached(insert)?.insert(params![run, session, principal, at_ms.cast_signed(), parent, root])?;
    Ok((id, None))
}

fn update<'a>(db: &Connection, added: impl Iterator<Item = &'a TraceDelta>) -> rusqlite::Result<()> {
    let mut update = db.prepare_cached(UPDATE)?;
    for TraceDelta { of, started_ms, ended_ms, turns, sums, last } in added {
        update.execute(params![
            of,
            started_ms.cast_signed(),
            ended_ms.cast_signed(),
            turns,
            sums.tool_calls.cast_signed(),
            sums.model_calls.cast_signed(),
            sums.jobs.cast_signed(),
            sums.failures.cast_signed(),
            most(sums.usage.input_tokens),
            most(sums.usage.output_tokens),
            most(sums.usage.cached_tokens),
            sums.cost_usd,
            most(sums.usage.cache_written_tokens),
            sums.open_costs.cast_signed(),
            last,
            most(sums.usage.reasoning_tokens),
        ])?;
    }
    Ok(())
}
