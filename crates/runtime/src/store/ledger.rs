//! The account.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use hashbrown::HashMap;
use rusqlite::types::{Type, ValueRef};
use rusqlite::{
    CachedStatement, Connection, OptionalExtension as _, Row, ToSql, Transaction, TransactionBehavior, params,
};
use serde::de::DeserializeOwned;
use toolwright_core::arguments::Provenance;
use toolwright_core::model::Usage;
use toolwright_core::operation::{Lineage, Op, OpId, OpKind, TraceId};
use toolwright_core::select::Showing;
use toolwright_core::session::{CallId, SessionId};
use toolwright_core::store::{Appended, LedgerEntry, LedgerStore, LedgerTotals, StoreError, TraceSummary, TraceSums};

use super::SqliteStore;

/// Rows of `traces` whose ids are remembered; past that they are looked up again.
const KNOWN: usize = 1024;

#[async_trait]
impl LedgerStore for SqliteStore {
    fn append(&self, entry: LedgerEntry) -> Appended {
        self.thread.append(entry)
    }

    async fn room(&self) {
        self.thread.room().await;
    }

    fn lost(&self) -> u64 {
        self.thread.lost()
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.thread.flush().await
    }

    async fn totals(&self) -> Result<LedgerTotals, StoreError> {
        self.thread.run("total the ledger", |db| totals(db)).await
    }

    async fn traces(&self, limit: usize) -> Result<Vec<TraceSummary>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.thread
            .run("list the traces", move |db| summaries(db, "ORDER BY ended_ms DESC, id DESC LIMIT ?1", &[&limit]))
            .await
    }

    async fn find_traces(&self, name: &str) -> Result<Vec<TraceSummary>, StoreError> {
        let name = name.to_owned();
        self.thread.run("find a trace", move |db| find(db, &name)).await
    }

    async fn operations(&self, of: &TraceSummary, limit: usize) -> Result<Vec<LedgerEntry>, StoreError> {
        let of = of.clone();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.thread.run("read a trace", move |db| operations(db, &of, limit)).await
    }
}

fn totals(db: &Connection) -> rusqlite::Result<LedgerTotals> {
    let mut statement = db.prepare("SELECT kind, status, COUNT(*) FROM operations GROUP BY kind, status")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, unsigned(row, 2)?)))?;
    let mut by_status: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for row in rows {
        let (kind, status, count) = row?;
        by_status.entry(kind).or_default().insert(status, count);
    }
    let of = |kind: &str, status: fn(&str) -> bool| {
        by_status.get(kind).into_iter().flatten().filter(|(name, _)| status(name)).map(|(_, count)| count).sum()
    };
    Ok(LedgerTotals {
        tool_calls: of("tool", |_| true),
        tool_failures: of("tool", |status| status != "ok"),
        model_calls: of("model", |_| true),
        by_status,
    })
}

const TRACE_COLUMNS: &str = "run, session, principal, started_ms, ended_ms, turns, tool_calls, model_calls, \
                             jobs, failures, input_tokens, output_tokens, cached_tokens, cost_usd, \
                             cache_written_tokens, open_costs";

fn summaries(db: &Connection, rest: &str, parameters: &[&dyn ToSql]) -> rusqlite::Result<Vec<TraceSummary>> {
    let mut statement = db.prepare_cached(&format!("SELECT {TRACE_COLUMNS} FROM traces {rest}"))?;
    statement.query_map(parameters, summary)?.collect()
}

fn summary(row: &Row<'_>) -> rusqlite::Result<TraceSummary> {
    Ok(TraceSummary {
        run: row.get(0)?,
        session: SessionId::new(row.get::<_, String>(1)?),
        principal: row.get(2)?,
        started_ms: unsigned(row, 3)?,
        ended_ms: unsigned(row, 4)?,
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
            },
            cost_usd: row.get(13)?,
            open_costs: unsigned(row, 15)?,
        },
    })
}

fn find(db: &Connection, name: &str) -> rusqlite::Result<Vec<TraceSummary>> {
    const NEWEST: &str = "ORDER BY ended_ms DESC, id DESC";
    if name == "last" {
        return summaries(db, &format!("{NEWEST} LIMIT 1"), &[]);
    }
    let exact = summaries(db, &format!("WHERE run = ?1 OR session = ?1 {NEWEST} LIMIT 100"), &[&name])?;
    if !exact.is_empty() || name.is_empty() {
        return Ok(exact);
    }
    if let Ok(trace) = name.parse::<TraceId>() {
        let of = "WHERE id IN (SELECT DISTINCT of FROM operations WHERE trace = ?1)";
        return summaries(db, &format!("{of} {NEWEST} LIMIT 100"), &[&trace.get().to_be_bytes()]);
    }
    let begins = "substr(run, 1, length(?1)) = ?1 OR substr(session, 1, length(?1)) = ?1";
    let found = summaries(db, &format!("WHERE {begins} {NEWEST} LIMIT 100"), &[&name])?;
    // One run, or the one session that they are of.
    let one = found.iter().all(|other| other.run == found[0].run && other.session == found[0].session);
    Ok(if one { found } else { Vec::new() })
}

fn operations(db: &Connection, of: &TraceSummary, limit: i64) -> rusqlite::Result<Vec<LedgerEntry>> {
    let mut statement = db.prepare_cached(
        "SELECT op, parent, turn, kind, name, call, status, at_ms, latency_us, wait_us, attempts, cached, characters_in, \
         characters_out, input_tokens, output_tokens, cached_tokens, cost_usd, validated, decided_by, approval, \
         provenance, tools, trace, cache_written_tokens FROM operations WHERE of = (SELECT id FROM traces WHERE session = ?1 \
         AND ifnull(run, '') = ?2 AND principal = ?3) ORDER BY id DESC LIMIT ?4",
    )?;
    let key = params![of.session.as_str(), of.run.as_deref().unwrap_or_default(), of.principal, limit];
    let mut entries = statement.query_map(key, |row| entry(row, of))?.collect::<Result<Vec<_>, _>>()?;
    entries.reverse();
    Ok(entries)
}

fn entry(row: &Row<'_>, of: &TraceSummary) -> rusqlite::Result<LedgerEntry> {
    let id = |number: i64| OpId::new(number.cast_unsigned());
    let kind: String = row.get(3)?;
    let lineage = Lineage {
        trace: TraceId::new(u128::from_be_bytes(row.get(23)?)),
        parent: row.get::<_, Option<i64>>(1)?.map(id),
        run: of.run.clone(),
        turn: row.get(2)?,
    };
    Ok(LedgerEntry {
        op: Op { id: id(row.get(0)?), lineage },
        at_ms: unsigned(row, 7)?,
        session: of.session.clone(),
        principal: Arc::clone(&of.principal),
        kind: OpKind::parse(&kind).ok_or_else(|| unreadable(3, std::io::Error::other(kind)))?,
        call: row.get::<_, Option<String>>(5)?.map(CallId::new),
        name: row.get(4)?,
        status: Cow::Owned(row.get(6)?),
        latency_us: unsigned(row, 8)?,
        wait_us: unsigned(row, 9)?,
        attempts: row.get(10)?,
        cached: row.get(11)?,
        characters_in: unsigned(row, 12)?,
        characters_out: unsigned(row, 13)?,
        usage: Usage {
            input_tokens: unsigned(row, 14)?,
            output_tokens: unsigned(row, 15)?,
            cached_tokens: unsigned(row, 16)?,
            cache_written_tokens: unsigned(row, 24)?,
        },
        cost_usd: row.get(17)?,
        validated: row.get(18)?,
        decided_by: Cow::Owned(row.get(19)?),
        approval: row.get::<_, Option<String>>(20)?.map(Cow::Owned),
        provenance: json(row, 21)?.unwrap_or_default(),
        tools: json::<Showing>(row, 22)?,
    })
}

/// A sum of tokens. SQLite makes one that no integer holds a real number: that is the largest.
fn tokens(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    match row.get_ref(index)? {
        ValueRef::Real(_) => Ok(i64::MAX.cast_unsigned()),
        _ => unsigned(row, index),
    }
}

/// A count as SQLite can keep it.
fn most(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn json<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(index)?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| unreadable(index, error))
}

fn unsigned(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    row.get::<_, Option<i64>>(index).map(|number| number.unwrap_or_default().cast_unsigned())
}

fn unreadable(index: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
}

/// What operations have in common.
#[derive(PartialEq, Eq, Hash, Clone)]
struct Key {
    run: Option<Arc<str>>,
    session: SessionId,
    principal: Arc<str>,
}

/// What a batch adds to a row of `traces`.
#[derive(Default)]
struct Added {
    id: i64,
    started_ms: u64,
    ended_ms: u64,
    turns: u32,
    sums: TraceSums,
}

/// Writes entries. Remembers the rows of `traces` that it met.
#[derive(Default)]
pub(super) struct LedgerWriter {
    known: HashMap<Key, i64>,
}

impl LedgerWriter {
    /// Writes a batch, whole or not at all.
    pub(super) fn write(&mut self, db: &mut Connection, entries: &[LedgerEntry]) -> rusqlite::Result<()> {
        if self.known.len() > KNOWN {
            self.known.clear();
        }
        let written = self.write_all(db, entries);
        if written.is_err() {
            // Ids of rows that were rolled back.
            self.known.clear();
        }
        written
    }

    fn write_all(&mut self, db: &mut Connection, entries: &[LedgerEntry]) -> rusqlite::Result<()> {
        // It reads before it writes: SQLite would not wait for another process that writes in between.
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut added: HashMap<i64, Added> = HashMap::new();
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            for entry in entries {
                let of = self.trace(&transaction, entry)?;
                insert_entry(&mut insert, of, entry)?;
                let started_ms = entry.at_ms.saturating_sub(entry.latency_us / 1000);
                let added = added.entry(of).or_insert_with(|| Added { id: of, started_ms, ..Added::default() });
                added.started_ms = added.started_ms.min(started_ms);
                added.ended_ms = added.ended_ms.max(entry.at_ms);
                added.turns = added.turns.max(entry.op.lineage.turn);
                added.sums.add(entry);
            }
            let mut update = transaction.prepare_cached(UPDATE)?;
            for Added { id, started_ms, ended_ms, turns, sums } in added.into_values() {
                update.execute(params![
                    id,
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
                ])?;
            }
        }
        transaction.commit()
    }

    /// The row of `traces` that the entry belongs to.
    fn trace(&mut self, db: &Transaction<'_>, entry: &LedgerEntry) -> rusqlite::Result<i64> {
        let key = Key {
            run: entry.op.lineage.run.clone(),
            session: entry.session.clone(),
            principal: Arc::clone(&entry.principal),
        };
        if let Some(&id) = self.known.get(&key) {
            return Ok(id);
        }
        let (run, session) = (key.run.as_deref(), key.session.as_str());
        let find = "SELECT id FROM traces WHERE session = ?1 AND ifnull(run, '') = ?2 AND principal = ?3";
        let found = db
            .prepare_cached(find)?
            .query_row(params![session, run.unwrap_or_default(), key.principal], |row| row.get(0))
            .optional()?;
        let id = match found {
            Some(id) => id,
            None => {
                let at = entry.at_ms.cast_signed();
                let insert = "INSERT INTO traces (run, session, principal, started_ms, ended_ms) \
                              VALUES (?1, ?2, ?3, ?4, ?4)";
                db.prepare_cached(insert)?.insert(params![run, session, key.principal, at])?
            }
        };
        self.known.insert(key, id);
        Ok(id)
    }

    /// Forgets what it knows: rows may be gone.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}

const INSERT: &str = "INSERT INTO operations (of, op, trace, parent, turn, kind, name, call, status, at_ms, latency_us, \
                      wait_us, attempts, cached, characters_in, characters_out, input_tokens, output_tokens, \
                      cached_tokens, cost_usd, validated, decided_by, approval, provenance, tools, cache_written_tokens) \
                      VALUES (?1, ?2, ?3, \
                      ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26)";

const UPDATE: &str = "UPDATE traces SET started_ms = min(started_ms, ?2), ended_ms = max(ended_ms, ?3), \
                      turns = max(turns, ?4), tool_calls = tool_calls + ?5, model_calls = model_calls + ?6, \
                      jobs = jobs + ?7, failures = failures + ?8, \
                      input_tokens = min(9223372036854775807, input_tokens + ?9), \
                      output_tokens = min(9223372036854775807, output_tokens + ?10), \
                      cached_tokens = min(9223372036854775807, cached_tokens + ?11), \
                      cache_written_tokens = min(9223372036854775807, cache_written_tokens + ?13), \
                      open_costs = open_costs + ?14, \
                      cost_usd = CASE WHEN ?12 IS NULL THEN cost_usd ELSE ifnull(cost_usd, 0) + ?12 END WHERE id = ?1";

fn insert_entry(insert: &mut CachedStatement<'_>, of: i64, entry: &LedgerEntry) -> rusqlite::Result<()> {
    // Only models use tokens.
    let tokens = |count: u64| (entry.kind == OpKind::Model).then_some(most(count));
    let provenance = Some(&entry.provenance).filter(|provenance: &&Provenance| !provenance.is_plain());
    insert
        .execute(params![
            of,
            entry.op.id.get().cast_signed(),
            entry.op.lineage.trace.get().to_be_bytes(),
            entry.op.lineage.parent.map(|parent| parent.get().cast_signed()),
            entry.op.lineage.turn,
            entry.kind.as_str(),
            entry.name,
            entry.call.as_ref().map(|call| call.as_str()),
            entry.status,
            entry.at_ms.cast_signed(),
            entry.latency_us.cast_signed(),
            entry.wait_us.cast_signed(),
            entry.attempts,
            entry.cached,
            entry.characters_in.cast_signed(),
            entry.characters_out.cast_signed(),
            tokens(entry.usage.input_tokens),
            tokens(entry.usage.output_tokens),
            tokens(entry.usage.cached_tokens),
            entry.cost_usd,
            entry.validated,
            entry.decided_by,
            entry.approval,
            provenance.and_then(|provenance| serde_json::to_string(provenance).ok()),
            entry.tools.and_then(|tools| serde_json::to_string(&tools).ok()),
            tokens(entry.usage.cache_written_tokens),
        ])
        .map(drop)
}
