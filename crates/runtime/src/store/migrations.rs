//! The schema, as steps that are only ever appended.

use rusqlite::{Connection, TransactionBehavior};

const STEPS: &[&str] = &[
    "
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, state TEXT NOT NULL,
        outcome TEXT, created_ms INTEGER NOT NULL, session TEXT NOT NULL);
    CREATE TABLE ledger (
        at_ms INTEGER NOT NULL, session TEXT NOT NULL, principal TEXT NOT NULL, kind TEXT NOT NULL, call TEXT,
        name TEXT NOT NULL, status TEXT NOT NULL, latency_ms INTEGER NOT NULL, characters_in INTEGER NOT NULL,
        characters_out INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL, validated INTEGER NOT NULL, decided_by TEXT NOT NULL);
    CREATE INDEX ledger_by_time ON ledger (at_ms);
    CREATE TABLE pins (provider TEXT, tool TEXT, hash TEXT NOT NULL, PRIMARY KEY (provider, tool));
    CREATE TABLE manifests (key TEXT PRIMARY KEY, manifest TEXT NOT NULL);
    CREATE TABLE approvals (scope TEXT, tool TEXT, hash TEXT, PRIMARY KEY (scope, tool, hash));
    CREATE TABLE runs (id TEXT PRIMARY KEY, state TEXT NOT NULL);
    CREATE TABLE run_calls (run TEXT, call TEXT, outcome TEXT, PRIMARY KEY (run, call));
",
    "
    ALTER TABLE runs ADD COLUMN saved_ms INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE manifests ADD COLUMN saved_ms INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE approvals ADD COLUMN saved_ms INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE run_claims (run TEXT PRIMARY KEY, pid INTEGER NOT NULL, boot TEXT NOT NULL, started INTEGER NOT NULL);
",
    "
    ALTER TABLE ledger ADD COLUMN provenance TEXT;
",
    "
    ALTER TABLE ledger ADD COLUMN tools TEXT;
",
];

/// How long rows are kept, in milliseconds: thirty days.
const KEEP_MS: i64 = 30 * 24 * 3600 * 1000;

/// Deletes what nobody has touched for thirty days.
pub(super) fn expire(db: &mut Connection, now_ms: i64) -> rusqlite::Result<()> {
    let oldest = now_ms.saturating_sub(KEEP_MS);
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for table in ["runs", "manifests", "approvals"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE saved_ms < ?1"), [oldest])?;
    }
    transaction.execute("DELETE FROM jobs WHERE created_ms < ?1", [oldest])?;
    transaction.execute("DELETE FROM ledger WHERE at_ms < ?1", [oldest])?;
    transaction.execute("DELETE FROM run_calls WHERE run NOT IN (SELECT id FROM runs)", [])?;
    transaction.commit()
}

/// Brings the file to the newest schema, whole or not at all, while other processes wait.
pub(super) fn migrate(db: &mut Connection) -> rusqlite::Result<()> {
    let version = |db: &Connection| db.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0));
    let newest = u32::try_from(STEPS.len()).unwrap_or(u32::MAX);
    if version(db)? >= newest {
        return Ok(());
    }
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = version(&transaction)?;
    for step in STEPS.iter().skip(done as usize) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", newest)?;
    transaction.commit()
}
