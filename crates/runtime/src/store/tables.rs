//! Rows to values and back.

use std::time::SystemTime;

use rusqlite::Row;
use rusqlite::types::Type;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toolwright_core::name::ToolId;
use toolwright_core::session::SessionId;
use toolwright_core::store::{JobRecord, StoreError};

pub(super) const SELECT_JOB: &str = "SELECT id, tool, arguments, state, created_ms, session FROM jobs";

pub(super) fn job_from_row(row: &Row<'_>) -> rusqlite::Result<JobRecord> {
    Ok(JobRecord {
        id: row.get(0)?,
        tool: ToolId::parse(&row.get::<_, String>(1)?).map_err(|error| unreadable(1, error))?,
        arguments: json_column(row, 2)?,
        state: json_column(row, 3)?,
        created_ms: row.get::<_, i64>(4)?.cast_unsigned(),
        session: SessionId::new(row.get::<_, String>(5)?),
    })
}

fn json_column<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    serde_json::from_str(&row.get::<_, String>(index)?).map_err(|error| unreadable(index, error))
}

fn unreadable(index: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
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
