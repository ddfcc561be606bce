//! Rows to values and back.

use std::time::SystemTime;

use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toolwright_core::store::{LedgerEntry, StoreError};

pub(super) fn json_column<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    serde_json::from_str(&row.get::<_, String>(index)?).map_err(|error| unreadable(index, error))
}

pub(super) fn unreadable(index: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
}

pub(super) fn insert_ledger(db: &mut Connection, entries: &[LedgerEntry]) -> rusqlite::Result<()> {
    let transaction = db.transaction()?;
    {
        let mut insert = transaction.prepare_cached(
            "INSERT INTO ledger VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, \
             ?18, ?19, ?20, ?21, ?22, ?23)",
        )?;
        for entry in entries {
            insert.execute(params![
                entry.at_ms.cast_signed(),
                entry.session.as_str(),
                entry.principal,
                entry.kind,
                entry.call.as_ref().map(|call| call.as_str()),
                entry.name,
                entry.status,
                entry.latency_ms.cast_signed(),
                entry.characters_in.cast_signed(),
                entry.characters_out.cast_signed(),
                entry.usage.input_tokens.cast_signed(),
                entry.usage.output_tokens.cast_signed(),
                entry.usage.cached_tokens.cast_signed(),
                entry.validated,
                entry.decided_by,
                provenance(entry),
                entry.tools.and_then(|tools| serde_json::to_string(&tools).ok()),
                entry.op.id.to_string(),
                entry.op.lineage.trace.to_string(),
                entry.op.lineage.parent.map(|parent| parent.to_string()),
                entry.op.lineage.run,
                entry.op.lineage.turn,
                entry.cost_usd,
            ])?;
        }
    }
    transaction.commit()
}

/// The provenance as JSON; null where there is nothing to say.
fn provenance(entry: &LedgerEntry) -> Option<String> {
    let provenance = Some(&entry.provenance).filter(|provenance| !provenance.is_plain());
    provenance.and_then(|provenance| serde_json::to_string(provenance).ok())
}

/// Milliseconds since the epoch.
pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn to_json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::failed("write a value as JSON", error))
}

pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::failed("read a stored value", error))
}
