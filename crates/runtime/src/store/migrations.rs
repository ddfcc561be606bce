//! The schema, as steps that are only ever appended.

use rusqlite::{Connection, TransactionBehavior};

const STEPS: &[&str] = &[
    include_str!("schema/01_first.sql"),
    include_str!("schema/02_saved.sql"),
    include_str!("schema/03_provenance.sql"),
    include_str!("schema/04_tools.sql"),
    include_str!("schema/05_operations.sql"),
    include_str!("schema/06_jobs.sql"),
    include_str!("schema/07_inbox.sql"),
    include_str!("schema/08_cache.sql"),
    include_str!("schema/09_pins.sql"),
    include_str!("schema/10_cache_writes.sql"),
    include_str!("schema/11_forms.sql"),
    include_str!("schema/12_open_costs.sql"),
    include_str!("schema/13_askers.sql"),
    include_str!("schema/14_pin_sources.sql"),
];

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
