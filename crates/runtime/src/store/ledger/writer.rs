//! Writes the account.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use hashbrown::hash_map::Entry;
use hashbrown::{Equivalent, HashMap};
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use toolwright_core::session::SessionId;
use toolwright_core::store::{LedgerEntry, TraceSums};

use super::{entries, most};

/// Rows of `traces` whose ids are remembered; past that they are looked up again.
const KNOWN: usize = 1024;

/// Statements that insert so many entries at once: half of what a statement costs is to begin and to end it.
static INSERTS: LazyLock<[(usize, String); 3]> = LazyLock::new(|| [16, 4, 1].map(|rows| (rows, entries::insert(rows))));

const UPDATE: &str = "UPDATE traces SET started_ms = min(started_ms, ?2), ended_ms = max(ended_ms, ?3), \
                      turns = max(turns, ?4), tool_calls = tool_calls + ?5, model_calls = model_calls + ?6, \
                      jobs = jobs + ?7, failures = failures + ?8, \
                      input_tokens = min(9223372036854775807, input_tokens + ?9), \
                      output_tokens = min(9223372036854775807, output_tokens + ?10), \
                      cached_tokens = min(9223372036854775807, cached_tokens + ?11), \
                      cache_written_tokens = min(9223372036854775807, cache_written_tokens + ?13), \
                      open_costs = open_costs + ?14, last = ?15, \
                      cost_usd = CASE WHEN ?12 IS NULL THEN cost_usd ELSE ifnull(cost_usd, 0) + ?12 END WHERE id = ?1";

/// What operations have in common.
#[derive(PartialEq, Eq, Hash)]
struct Common<'a> {
    run: Option<&'a str>,
    session: &'a str,
    principal: &'a str,
}

impl<'a> Common<'a> {
    fn of(entry: &'a LedgerEntry) -> Self {
        let run = entry.op.lineage.run.as_deref();
        Self { run, session: entry.session.as_str(), principal: &entry.principal }
    }
}

/// The same, remembered.
struct Key {
    run: Option<Arc<str>>,
    session: SessionId,
    principal: Arc<str>,
}

impl Key {
    fn of(entry: &LedgerEntry) -> Self {
        let (session, principal) = (entry.session.clone(), Arc::clone(&entry.principal));
        Self { run: entry.op.lineage.run.clone(), session, principal }
    }

    fn common(&self) -> Common<'_> {
        Common { run: self.run.as_deref(), session: self.session.as_str(), principal: &self.principal }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.common() == other.common()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.common().hash(state);
    }
}

impl Equivalent<Key> for Common<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self == key.common()
    }
}

/// What a batch adds to a row of `traces`.
struct Added {
    started_ms: u64,
    ended_ms: u64,
    turns: u32,
    sums: TraceSums,
    /// The last row of `entries` that is of it.
    last: Option<i64>,
}

impl Added {
    fn add(&mut self, entry: &LedgerEntry) {
        self.started_ms = self.started_ms.min(entry.at_ms.saturating_sub(entry.latency_us / 1000));
        self.ended_ms = self.ended_ms.max(entry.at_ms);
        self.turns = self.turns.max(entry.op.lineage.turn);
        self.sums.add(entry);
    }
}

/// Writes entries. Remembers the rows of `traces` that it met.
#[derive(Default)]
pub(in super::super) struct LedgerWriter {
    known: HashMap<Key, i64>,
}

impl LedgerWriter {
    /// Writes a batch, whole or not at all.
    pub(in super::super) fn write(&mut self, db: &mut Connection, entries: &[LedgerEntry]) -> rusqlite::Result<()> {
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

    fn write_all(&mut self, db: &mut Connection, mut entries: &[LedgerEntry]) -> rusqlite::Result<()> {
        // It reads before it writes: SQLite would not wait for another process that writes in between.
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut added: HashMap<i64, Added> = HashMap::new();
        // SQLite gives rows the ids that follow the largest.
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
                    let of = self.trace(&transaction, entry)?;
                    let added = match added.entry(of) {
                        Entry::Occupied(added) => added.into_mut(),
                        Entry::Vacant(place) => place.insert(Added {
                            started_ms: u64::MAX,
                            ended_ms: 0,
                            turns: 0,
                            sums: TraceSums::default(),
                            last: last(&transaction, of)?,
                        }),
                    };
                    added.add(entry);
                    id += 1;
                    entries::bind(&mut insert, row, (of, added.last.replace(id)), entry)?;
                }
                insert.raw_execute()?;
            }
        }
        update(&transaction, &added)?;
        transaction.commit()
    }

    /// The row of `traces` that the entry belongs to.
    fn trace(&mut self, db: &Transaction<'_>, entry: &LedgerEntry) -> rusqlite::Result<i64> {
        let common = Common::of(entry);
        if let Some(&id) = self.known.get(&common) {
            return Ok(id);
        }
        let Common { run, session, principal } = common;
        let find = "SELECT id FROM traces WHERE session = ?1 AND ifnull(run, '') = ?2 AND principal = ?3";
        let found = db
            .prepare_cached(find)?
            .query_row(params![session, run.unwrap_or_default(), principal], |row| row.get(0))
            .optional()?;
        let id = match found {
            Some(id) => id,
            None => {
                let at = entry.at_ms.cast_signed();
                let insert = "INSERT INTO traces (run, session, principal, started_ms, ended_ms) \
                              VALUES (?1, ?2, ?3, ?4, ?4)";
                db.prepare_cached(insert)?.insert(params![run, session, principal, at])?
            }
        };
        self.known.insert(Key::of(entry), id);
        Ok(id)
    }

    /// Forgets what it knows: rows may be gone.
    pub(in super::super) fn forget(&mut self) {
        self.known.clear();
    }
}

/// The last row of `entries` that is of this row of `traces`, which other processes write to as well.
fn last(db: &Connection, of: i64) -> rusqlite::Result<Option<i64>> {
    let mut statement = db.prepare_cached("SELECT last FROM traces WHERE id = ?1")?;
    statement.query_row([of], |row| row.get(0)).optional().map(Option::flatten)
}

fn update(db: &Connection, added: &HashMap<i64, Added>) -> rusqlite::Result<()> {
    let mut update = db.prepare_cached(UPDATE)?;
    for (id, Added { started_ms, ended_ms, turns, sums, last }) in added {
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
            last,
        ])?;
    }
    Ok(())
}
