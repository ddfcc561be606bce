//! Reads and writes rows of `entries`.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row, Statement, ToSql, params};
use serde::{Deserialize, Serialize};
use toolwright_core::arguments::Provenance;
use toolwright_core::exposure::ExposureRecord;
use toolwright_core::model::Usage;
use toolwright_core::operation::{Lineage, Op, OpId, OpKind, TraceId};
use toolwright_core::session::CallId;
use toolwright_core::store::{LedgerEntry, TraceSummary};

use super::super::unreadable;
use super::{kind, most, unsigned};

/// The columns that are written, in this order.
const COLUMNS: [&str; 18] = [
    "of",
    "before",
    "ids",
    "at_ms",
    "kind",
    "name",
    "call",
    "status",
    "decided_by",
    "latency_us",
    "wait_us",
    "characters_in",
    "characters_out",
    "validated",
    "cost_usd",
    "more",
    "arguments",
    "result",
];

/// The kind and status that are not stored.
const USUAL: (OpKind, &str) = (OpKind::Tool, "ok");

/// Returns the SQL that inserts this many rows.
pub(super) fn insert(rows: usize) -> String {
    let row = format!("({})", ["?"; COLUMNS.len()].join(","));
    format!("INSERT INTO entries ({}) VALUES {}", COLUMNS.join(","), vec![row; rows].join(","))
}

/// Data that few entries have.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct EntryDetails<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    turn: u32,
    #[serde(skip_serializing_if = "is_one")]
    attempts: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cached: bool,
    #[serde(skip_serializing_if = "is_nothing")]
    person_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provenance: Option<Cow<'a, Provenance>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<ExposureRecord>,
    #[serde(skip_serializing_if = "is_empty")]
    lost: Cow<'a, [Cow<'static, str>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<Arc<str>>,
}

impl Default for EntryDetails<'_> {
    fn default() -> Self {
        Self {
            turn: 0,
            attempts: 1,
            cached: false,
            person_us: 0,
            usage: None,
            approval: None,
            provenance: None,
            tools: None,
            lost: Cow::Borrowed(&[]),
            note: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(turn: &u32) -> bool {
    *turn == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_nothing(us: &u64) -> bool {
    *us == 0
}

fn is_empty(lost: &[Cow<'static, str>]) -> bool {
    lost.is_empty()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_one(attempts: &u32) -> bool {
    *attempts == 1
}

/// Returns this data of the entry, if it has any.
fn more(entry: &LedgerEntry) -> Option<String> {
    // Only model operations have token usage.
    let usage = Some(entry.usage).filter(|usage| entry.kind == OpKind::Model && *usage != Usage::default());
    let more = EntryDetails {
        turn: entry.op.lineage.turn,
        attempts: entry.attempts,
        cached: entry.cached,
        person_us: entry.person_us,
        usage: usage.map(as_kept),
        approval: entry.approval.as_deref().map(Cow::Borrowed),
        provenance: Some(&entry.provenance).filter(|provenance| !provenance.is_plain()).map(Cow::Borrowed),
        tools: entry.tools,
        lost: Cow::Borrowed(&entry.lost),
        note: entry.note.clone(),
    };
    let is_usual = more.turn == 0
        && more.attempts == 1
        && !more.cached
        && more.person_us == 0
        && more.usage.is_none()
        && more.approval.is_none()
        && more.provenance.is_none()
        && more.tools.is_none()
        && more.lost.is_empty()
        && more.note.is_none();
    if is_usual { None } else { serde_json::to_string(&more).ok() }
}

/// Returns usage within the range that the sums of `traces` can hold.
fn as_kept(usage: Usage) -> Usage {
    let clamped = |tokens: u64| most(tokens).cast_unsigned();
    Usage {
        input_tokens: clamped(usage.input_tokens),
        output_tokens: clamped(usage.output_tokens),
        cached_tokens: clamped(usage.cached_tokens),
        cache_written_tokens: clamped(usage.cache_written_tokens),
        reasoning_tokens: clamped(usage.reasoning_tokens),
    }
}

/// Binds an entry as row `row` of a statement's inserted rows, counted from 0.
pub(super) fn bind(
    statement: &mut Statement<'_>,
    row: usize,
    (of, before): (i64, Option<i64>),
    entry: &LedgerEntry,
) -> rusqlite::Result<()> {
    let (ids, length) = ids(&entry.op);
    let mut row = ParameterBinder { statement, at: row * COLUMNS.len() };
    row.next(of)?;
    row.next(before)?;
    row.next(&ids[..length])?;
    row.next(entry.at_ms.cast_signed())?;
    row.next((entry.kind != USUAL.0).then(|| entry.kind.as_str()))?;
    row.next(&*entry.name)?;
    row.next(entry.call.as_ref().map(CallId::as_str))?;
    row.next(Some(&*entry.status).filter(|status| *status != USUAL.1))?;
    row.next(Some(&*entry.decided_by).filter(|by| !by.is_empty()))?;
    row.next(entry.latency_us.cast_signed())?;
    row.next(entry.wait_us.cast_signed())?;
    row.next(entry.characters_in.cast_signed())?;
    row.next(entry.characters_out.cast_signed())?;
    row.next(entry.validated)?;
    row.next(entry.cost_usd)?;
    row.next(more(entry))?;
    row.next(entry.arguments.as_deref())?;
    row.next(entry.result.as_deref())
}

struct ParameterBinder<'a, 's> {
    statement: &'a mut Statement<'s>,
    at: usize,
}

impl ParameterBinder<'_, '_> {
    fn next(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.at += 1;
        self.statement.raw_bind_parameter(self.at, value)
    }
}

/// Encodes trace, operation and parent, if any.
fn ids(op: &Op) -> ([u8; 32], usize) {
    let mut ids = [0; 32];
    ids[..16].copy_from_slice(&op.lineage.trace.get().to_be_bytes());
    ids[16..24].copy_from_slice(&op.id.get().to_be_bytes());
    let Some(parent) = op.lineage.parent else { return (ids, 24) };
    ids[24..].copy_from_slice(&parent.get().to_be_bytes());
    (ids, 32)
}

/// Returns the operations of this row of `traces`, the last first.
pub(super) fn operations(
    db: &Connection,
    trace: i64,
    of: &TraceSummary,
    limit: usize,
) -> rusqlite::Result<Vec<LedgerEntry>> {
    let last = db.query_row("SELECT last FROM traces WHERE id = ?1", [trace], |row| row.get(0)).optional()?;
    let mut next: Option<i64> = last.flatten();
    let sql = format!("SELECT {} FROM entries WHERE id = ?1 AND of = ?2", COLUMNS.join(","));
    let mut statement = db.prepare_cached(&sql)?;
    let mut entries = Vec::new();
    while let Some(id) = next.filter(|_| entries.len() < limit) {
        let found = statement.query_row(params![id, trace], |row| Ok((row.get(1)?, entry(row, of)?))).optional()?;
        // Older rows are gone, and the id may belong to another entry.
        let Some((before, entry)) = found else { break };
        entries.push(entry);
        next = Option::filter(before, |before| *before < id);
    }
    Ok(entries)
}

/// Returns the columns that [`entry`] reads, as a list.
pub(super) fn columns() -> String {
    COLUMNS.join(",")
}

/// Reads a row of [`columns`] that belongs to this row of `traces`.
pub(super) fn entry(row: &Row<'_>, of: &TraceSummary) -> rusqlite::Result<LedgerEntry> {
    let ids = row.get_ref(2)?.as_blob()?;
    let id = |bytes: Option<&[u8; 8]>| bytes.map(|bytes| OpId::new(u64::from_be_bytes(*bytes)));
    let ids = ids.split_first_chunk::<16>().and_then(|(trace, rest)| {
        let (op, rest) = rest.split_first_chunk()?;
        Some((TraceId::new(u128::from_be_bytes(*trace)), id(Some(op))?, id(rest.first_chunk())))
    });
    let (trace, op, parent) = ids.ok_or_else(|| unreadable(2, std::io::Error::other("ids of another length")))?;
    let more = match row.get_ref(15)?.as_str_or_null()? {
        Some(text) => serde_json::from_str(text).map_err(|error| unreadable(15, error))?,
        None => EntryDetails::default(),
    };
    Ok(LedgerEntry {
        op: Op {
            id: op,
            lineage: Lineage { trace, parent, run: of.run.clone(), turn: more.turn, within: of.within.clone() },
        },
        at_ms: unsigned(row, 3)?,
        session: of.session.clone(),
        principal: Arc::clone(&of.principal),
        kind: kind(row, 4)?.unwrap_or(USUAL.0),
        name: row.get(5)?,
        call: row.get::<_, Option<String>>(6)?.map(CallId::new),
        status: row.get::<_, Option<String>>(7)?.map_or(Cow::Borrowed(USUAL.1), Cow::Owned),
        decided_by: row.get::<_, Option<String>>(8)?.map_or(Cow::Borrowed(""), Cow::Owned),
        latency_us: unsigned(row, 9)?,
        wait_us: unsigned(row, 10)?,
        characters_in: unsigned(row, 11)?,
        characters_out: unsigned(row, 12)?,
        validated: row.get(13)?,
        cost_usd: row.get(14)?,
        attempts: more.attempts,
        cached: more.cached,
        person_us: more.person_us,
        usage: more.usage.unwrap_or_default(),
        approval: more.approval.map(|approval| Cow::Owned(approval.into_owned())),
        provenance: more.provenance.map(Cow::into_owned).unwrap_or_default(),
        tools: more.tools,
        lost: more.lost.into_owned(),
        arguments: row.get::<_, Option<String>>(16)?.map(String::into_boxed_str),
        result: row.get::<_, Option<String>>(17)?.map(String::into_boxed_str),
        note: more.note,
    })
}
