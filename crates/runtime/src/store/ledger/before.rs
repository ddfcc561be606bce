//! Rows of `operations`, where the account was kept before there was `entries`: they are read until they are too old.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::{Connection, Row, params};
use serde::de::DeserializeOwned;
use toolwright_core::model::Usage;
use toolwright_core::operation::{Lineage, Op, OpId, OpKind, TraceId};
use toolwright_core::select::Showing;
use toolwright_core::session::CallId;
use toolwright_core::store::{LedgerEntry, TraceSummary};

use super::super::tables::unreadable;
use super::{kind, unsigned};

/// The operations that are of this row of `traces`, the last first.
pub(super) fn operations(
    db: &Connection,
    trace: i64,
    of: &TraceSummary,
    limit: usize,
) -> rusqlite::Result<Vec<LedgerEntry>> {
    let mut statement = db.prepare_cached(
        "SELECT op, parent, turn, kind, name, call, status, at_ms, latency_us, wait_us, attempts, cached, characters_in, \
         characters_out, input_tokens, output_tokens, cached_tokens, cost_usd, validated, decided_by, approval, \
         provenance, tools, trace, cache_written_tokens FROM operations WHERE of = ?1 ORDER BY id DESC LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    statement.query_map(params![trace, limit], |row| entry(row, of))?.collect()
}

fn entry(row: &Row<'_>, of: &TraceSummary) -> rusqlite::Result<LedgerEntry> {
    let id = |number: i64| OpId::new(number.cast_unsigned());
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
        kind: kind(row, 3)?.unwrap_or(OpKind::Tool),
        call: row.get::<_, Option<String>>(5)?.map(CallId::new),
        name: row.get(4)?,
        status: Cow::Owned(row.get(6)?),
        latency_us: unsigned(row, 8)?,
        wait_us: unsigned(row, 9)?,
        person_us: 0,
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

fn json<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(index)?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| unreadable(index, error))
}
