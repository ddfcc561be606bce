//! Deletes old or surplus rows in small steps, so that no call waits long.

use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};
use toolwright_core::store::{LASTING_MANIFESTS, WRITES};

use crate::store::inbox::clear_expired;
use crate::store::ledger;
use crate::store::now_ms;

/// Age after which rows are deleted.
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);
/// Age after which unused tool lists are deleted: a server may be configured in a project that is rarely worked on.
const KEEP_MANIFESTS: Duration = Duration::from_secs(365 * 24 * 3600);
/// Age after which notes on files that woken runs wrote are deleted: triggers read them right after a change.
const KEEP_WRITES: Duration = Duration::from_secs(24 * 3600);
/// Bytes in use above which rows are deleted before they are old.
const MAX_BYTES: u64 = 896 << 20;
/// Size to which SQLite truncates the WAL after a checkpoint, in bytes.
pub(in crate::store) const WAL_LIMIT: i64 = 64 << 20;
/// Interval of passes over the file; one of several processes makes each.
const PERIOD: Duration = Duration::from_secs(3600);
/// Written ledger entries after which a check is due at once.
const MANY: u64 = 100_000;
/// Most rows deleted in one step.
const ROWS: i64 = 4096;
/// Most pages freed in one step.
const PAGES: u64 = 2048;
/// Free pages up to which the file is not shrunk.
const SPARE: u64 = 64;
/// Age of the oldest kept rows at which deletion by size stops: they may be in use.
const NEWEST: Duration = Duration::from_secs(60);

/// Tables whose old rows are deleted: name, and time column. The response cache has its own bounds.
const AGING: &[(&str, &str)] = &[
    ("entries", "at_ms"),
    ("traces", "ended_ms"),
    ("runs", "saved_ms"),
    ("objects", "saved_ms"),
    // NULL until the job ends.
    ("jobs", "ended_ms"),
    ("job_requests", "asked_ms"),
    ("session_log", "at_ms"),
    ("session_log_cursors", "at_ms"),
    ("session_log_reads", "at_ms"),
    ("firings", "ended_ms"),
    ("manifests", "saved_ms"),
    ("approvals", "saved_ms"),
    ("inbox", "created_ms"),
    ("agents", "begun_ms"),
];
/// Number of these tables, from the first, that are also pruned when the file is too large. The others are small, and
/// some hold a person's words.
const LARGE: usize = 6;

/// Deletes old rows of one file. `step` does a part, and must be called again while there is more.
#[derive(Debug)]
pub(in crate::store) struct Retention {
    keep: Duration,
    max_bytes: u64,
    /// When the next check is due.
    next: Instant,
    /// Ledger entries written since the last check.
    written: u64,
    work: Option<RetentionPass>,
}

/// A pass over the tables.
#[derive(Debug)]
struct RetentionPass {
    /// The time before which rows are deleted.
    horizon_ms: i64,
    table: usize,
    /// Number of tables in this pass.
    tables: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { keep: KEEP, max_bytes: MAX_BYTES, next: Instant::now() + PERIOD, written: 0, work: None }
    }
}

impl Retention {
    /// Makes a check due after the file was opened.
    pub(in crate::store) fn opened(&mut self) {
        self.next = Instant::now();
    }

    /// Returns the time until a step is due if no other work waits.
    pub(in crate::store) fn due(&self) -> Duration {
        if self.work.is_some() { Duration::ZERO } else { self.next.saturating_duration_since(Instant::now()) }
    }

    /// Returns whether a step is due even if other work waits.
    pub(in crate::store) fn is_urgent(&self) -> bool {
        self.written >= MANY || (self.work.is_some() && self.written > 0)
    }

    /// Counts written ledger entries.
    pub(in crate::store) fn record_writes(&mut self, entries: u64) {
        self.written += entries;
    }

    /// Starts a pass if one is due, or continues it.
    pub(in crate::store) fn step(&mut self, db: &mut Connection) -> rusqlite::Result<()> {
        let done = match self.work.take() {
            None => self.begin(db),
            Some(work) => self.continue_pass(db, work),
        };
        if self.work.is_none() {
            self.postpone();
        }
        done
    }

    /// Delays the next check by [`PERIOD`].
    pub(in crate::store) fn postpone(&mut self) {
        (self.next, self.written) = (Instant::now() + PERIOD, 0);
    }

    fn begin(&mut self, db: &mut Connection) -> rusqlite::Result<()> {
        let now = now_ms();
        clear_expired(db, now)?;
        ledger::close_dead_operations(db)?;
        db.prepare_cached("DELETE FROM session_log WHERE session = ?1 AND at_ms < ?2")?
            .execute(params![WRITES, horizon_before(now, KEEP_WRITES)])?;
        if self.is_too_large(db)? || claim(db, now)? {
            self.work =
                Some(RetentionPass { horizon_ms: horizon_before(now, self.keep), table: 0, tables: AGING.len() });
        }
        Ok(())
    }

    fn continue_pass(&mut self, db: &mut Connection, mut work: RetentionPass) -> rusqlite::Result<()> {
        if let Some(&(table, time)) = AGING[..work.tables].get(work.table) {
            let horizon_ms =
                if table == "manifests" { horizon_before(now_ms(), KEEP_MANIFESTS) } else { work.horizon_ms };
            if delete(db, table, time, horizon_ms)? < ROWS {
                work.table += 1;
            }
            self.work = Some(work);
            return Ok(());
        }
        if pragma(db, "freelist_count")? > SPARE {
            let mut statement = db.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
            // Each row that it returns frees a page.
            let mut pages = statement.query([])?;
            while pages.next()?.is_some() {}
            if pragma(db, "auto_vacuum")? != 0 {
                self.work = Some(work);
                return Ok(());
            }
        }
        db.execute("DELETE FROM run_calls WHERE run NOT IN (SELECT id FROM runs)", [])?;
        // The next pass deletes the oldest quarter of the time that is left.
        let newest = i64::try_from(NEWEST.as_millis()).unwrap_or_default();
        let span_ms = now_ms().saturating_sub(work.horizon_ms);
        if self.is_too_large(db)? && span_ms > newest {
            let horizon_ms = work.horizon_ms + span_ms / 4;
            self.work = Some(RetentionPass { horizon_ms, table: 0, tables: LARGE });
        }
        Ok(())
    }

    fn is_too_large(&self, db: &Connection) -> rusqlite::Result<bool> {
        Ok(bytes(db)? > self.max_bytes)
    }
}

/// Returns the time `long` before `now_ms`.
fn horizon_before(now_ms: i64, long: Duration) -> i64 {
    now_ms.saturating_sub(i64::try_from(long.as_millis()).unwrap_or(i64::MAX))
}

/// Returns whether this process claimed the pass that is due.
fn claim(db: &mut Connection, now_ms: i64) -> rusqlite::Result<bool> {
    let period = i64::try_from(PERIOD.as_millis()).unwrap_or(i64::MAX);
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // A time in the future comes from a clock that was set back.
    let due = "UPDATE upkeep SET at_ms = ?1 WHERE at_ms <= ?1 - ?2 OR at_ms > ?1";
    let claimed = transaction.execute(due, params![now_ms, period])? > 0;
    transaction.commit()?;
    Ok(claimed)
}

/// Deletes at most [`ROWS`] rows older than `horizon_ms`; returns their number.
fn delete(db: &Connection, table: &str, time: &str, horizon_ms: i64) -> rusqlite::Result<i64> {
    // The ledger is large and in the order of time: the search ends at the first row that stays.
    let rows = match table {
        "entries" => format!(
            "id < ifnull((SELECT id FROM entries WHERE at_ms >= ?1 ORDER BY id LIMIT 1), 1 << 62) \
             ORDER BY id LIMIT {ROWS}"
        ),
        "manifests" => format!("{time} < ?1 AND instr(key, '{LASTING_MANIFESTS}') <> 1 LIMIT {ROWS}"),
        _ => format!("{time} < ?1 LIMIT {ROWS}"),
    };
    let sql = format!("DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {rows})");
    let deleted = db.prepare_cached(&sql)?.execute([horizon_ms])?;
    Ok(i64::try_from(deleted).unwrap_or(i64::MAX))
}

/// Returns the bytes of the file in use.
fn bytes(db: &Connection) -> rusqlite::Result<u64> {
    Ok((pragma(db, "page_count")?.saturating_sub(pragma(db, "freelist_count")?)) * pragma(db, "page_size")?)
}

fn pragma(db: &Connection, name: &str) -> rusqlite::Result<u64> {
    db.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file::create_or_check;
    use super::*;
    use crate::store::caches::used;
    use toolwright_core::operation::{Lineage, OpId, OpKind};
    use toolwright_core::session::SessionId;
    use toolwright_core::store::LedgerEntry;

    /// The last accepted version of a catalogue keeps older versions out, so it does not expire.
    #[test]
    fn accepted_catalogue_versions_do_not_expire() {
        let mut db = Connection::open_in_memory().expect("open");
        create_or_check(&mut db).expect("schema");
        for key in ["catalogue:acme", "openapi:shop", "mcp:catalogue:x"] {
            listed(&db, key, 400);
        }
        look(&mut db);
        assert_eq!(kept(&db), ["catalogue:acme"]);
    }

    /// A server that starts at its first call may list nothing for months.
    #[test]
    fn unused_tool_lists_age_and_used_ones_stay() {
        let mut db = Connection::open_in_memory().expect("open");
        create_or_check(&mut db).expect("schema");
        for (key, days) in [("mcp:rare", 300), ("mcp:used", 364), ("mcp:gone", 366)] {
            listed(&db, key, days);
        }
        assert_eq!(used(&db, "mcp:used").expect("read").as_deref(), Some("{}"));
        look(&mut db);
        assert_eq!(kept(&db), ["mcp:rare", "mcp:used"]);
        // Two months later, only the last use counts.
        db.execute("UPDATE manifests SET saved_ms = saved_ms - ?1", params![70 * DAY]).expect("later");
        look(&mut db);
        assert_eq!(kept(&db), ["mcp:used"]);
    }

    const DAY: i64 = 24 * 3600 * 1000;

    /// Stores a tool list that is `days` old.
    fn listed(db: &Connection, key: &str, days: i64) {
        let at = now_ms() - days * DAY;
        db.execute("INSERT INTO manifests (key, manifest, saved_ms) VALUES (?1, '{}', ?2)", params![key, at])
            .expect("row");
    }

    /// Makes a pass as if one were due.
    fn look(db: &mut Connection) {
        db.execute("UPDATE upkeep SET at_ms = 0", []).expect("due");
        let mut retention = Retention::default();
        for _ in 0..100 {
            retention.step(db).expect("step");
            if retention.work.is_none() {
                break;
            }
        }
    }

    fn kept(db: &Connection) -> Vec<String> {
        db.prepare("SELECT key FROM manifests ORDER BY key")
            .and_then(|mut rows| rows.query_map([], |row| row.get(0))?.collect())
            .expect("rows")
    }

    #[test]
    fn a_file_over_its_limit_shrinks() {
        let dir = tempfile::tempdir().expect("dir");
        let (mut db, first_ms) = filled(&dir.path().join("x.sqlite3"));
        let before = bytes(&db).expect("size");
        shrink(&mut db, before / 2);
        assert!(bytes(&db).expect("size") <= before / 2);
        let pages = pragma(&db, "page_count").expect("pages") * pragma(&db, "page_size").expect("size");
        assert!(pages < before * 3 / 4, "the file itself is smaller: {pages} of {before}");
        let oldest: i64 = db.query_row("SELECT MIN(at_ms) FROM entries", [], |row| row.get(0)).expect("some are left");
        assert!(oldest > first_ms + DAY, "the oldest are gone");
    }

    /// Returns a file with entries of the last ten days, and the time of the first.
    fn filled(path: &Path) -> (Connection, i64) {
        let mut db = Connection::open(path).expect("open");
        db.pragma_update(None, "auto_vacuum", "INCREMENTAL").expect("vacuum");
        create_or_check(&mut db).expect("schema");
        let first_ms = now_ms() - 10 * DAY;
        let entry = |n: u64| {
            let at_ms = first_ms.cast_unsigned() + n * 10 * DAY.cast_unsigned() / 30_000;
            let op = Lineage::named("s").begin(OpId::new(n + 1));
            LedgerEntry::new(op, at_ms, SessionId::new("s"), "owner".into(), OpKind::Tool, "x:tool@1.0.0".into())
        };
        let entries: Vec<_> = (0..30_000).map(entry).collect();
        let written = ledger::LedgerBatch { begun: &[], entries: &entries, ended: &[] };
        ledger::write(&mut db, &written).expect("written");
        (db, first_ms)
    }

    /// Makes passes with this size limit.
    fn shrink(db: &mut Connection, max_bytes: u64) {
        let mut retention = Retention { max_bytes, ..Retention::default() };
        for _ in 0..1000 {
            retention.step(db).expect("step");
            if retention.work.is_none() {
                return;
            }
        }
        panic!("it does not come to an end");
    }
}
