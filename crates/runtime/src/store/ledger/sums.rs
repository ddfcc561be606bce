//! Sums rows of `entries`, and lists the last calls of all sessions.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, Row, ToSql, params_from_iter};
use toolwright_core::model::Usage;
use toolwright_core::operation::{Lineage, Op, OpId, OpKind};
use toolwright_core::session::SessionId;
use toolwright_core::store::{LedgerEntry, TraceSums};
use toolwright_core::store::{UsageBy, UsageRow};

use super::{entries, kind, most, summaries, tokens, unsigned};

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// The most operations that are searched for the calls of one tool.
const SEARCHED: usize = 20_000;

/// Returns the group of an operation, as SQL over `entries`, `traces` and `agents`.
fn group(by: UsageBy) -> String {
    match by {
        UsageBy::Tool | UsageBy::Model => "entries.name".into(),
        UsageBy::Run => "ifnull(traces.run, traces.session)".into(),
        UsageBy::Agent => "ifnull(agents.name, '')".into(),
        UsageBy::Principal => "traces.principal".into(),
        UsageBy::Day => format!("CAST(at_ms / {DAY_MS} * {DAY_MS} AS TEXT)"),
    }
}

fn counted(by: UsageBy) -> &'static str {
    match by {
        UsageBy::Tool => "kind IS NULL",
        UsageBy::Model => "kind = 'model'",
        UsageBy::Run | UsageBy::Agent | UsageBy::Principal | UsageBy::Day => "ifnull(kind, '') <> 'guard'",
    }
}

pub(super) fn usage(db: &Connection, by: UsageBy, since_ms: i64) -> rusqlite::Result<Vec<UsageRow>> {
    let (group, counted) = (group(by), counted(by));
    let rows = format!(
        "FROM entries JOIN traces ON traces.id = entries.of LEFT JOIN agents ON agents.id = traces.run \
         WHERE at_ms >= ?1 AND {counted}"
    );
    let used = |what: &str| format!("json_extract(more, '$.usage.{what}_tokens')");
    let [input, output, cached, written, reasoning] =
        ["input", "output", "cached", "cache_written", "reasoning"].map(used);
    // Equal rows are added up first, so that how they count is decided once for each group.
    let mut alike = db.prepare_cached(&format!(
        "SELECT {group}, kind, ifnull(status, 'ok'), entries.cost_usd IS NOT NULL, ifnull(json_extract(more, '$.attempts'), 1) = 0, \
         json_extract(more, '$.usage') IS NOT NULL, COUNT(*), SUM({input}), SUM({output}), SUM({cached}), SUM({written}), \
         SUM(entries.cost_usd), SUM({reasoning}) {rows} GROUP BY 1, 2, 3, 4, 5, 6"
    ))?;
    let mut sums: BTreeMap<String, TraceSums> = BTreeMap::new();
    let mut found = alike.query([since_ms])?;
    while let Some(row) = found.next()? {
        sums.entry(row.get(0)?).or_default().add_all(&counts_as(row)?);
    }
    let mut middle = db.prepare_cached(&format!(
        "SELECT name, latency_us FROM (SELECT {group} AS name, latency_us, \
         ROW_NUMBER() OVER (PARTITION BY {group} ORDER BY latency_us) - 1 AS place, \
         COUNT(*) OVER (PARTITION BY {group}) AS count {rows}) WHERE place = count / 2"
    ))?;
    let medians: HashMap<String, u64> =
        middle.query_map([since_ms], |row| Ok((row.get(0)?, unsigned(row, 1)?)))?.collect::<rusqlite::Result<_>>()?;
    let row = |(name, sums): (String, TraceSums)| UsageRow {
        p50_us: medians.get(&name).copied().unwrap_or_default(),
        name,
        sums,
    };
    Ok(sums.into_iter().map(row).collect())
}

/// Returns the sums of a group of equal rows.
fn counts_as(row: &Row<'_>) -> rusqlite::Result<TraceSums> {
    let (has_cost, never_began, has_usage): (bool, bool, bool) = (row.get(3)?, row.get(4)?, row.get(5)?);
    let op = Op { id: OpId::new(0), lineage: Lineage::named("") };
    let one = LedgerEntry {
        status: row.get::<_, String>(2)?.into(),
        attempts: u32::from(!never_began),
        cost_usd: has_cost.then_some(0.0),
        usage: Usage { input_tokens: u64::from(has_usage), ..Usage::default() },
        ..LedgerEntry::new(op, 0, SessionId::new(""), "".into(), kind(row, 1)?.unwrap_or(OpKind::Tool), "".into())
    };
    let mut sums = TraceSums::default();
    sums.add(&one);
    let count = unsigned(row, 6)?;
    for each in [&mut sums.tool_calls, &mut sums.model_calls, &mut sums.jobs, &mut sums.failures, &mut sums.open_costs]
    {
        *each *= count;
    }
    sums.usage = Usage {
        input_tokens: tokens(row, 7)?,
        output_tokens: tokens(row, 8)?,
        cached_tokens: tokens(row, 9)?,
        cache_written_tokens: tokens(row, 10)?,
        reasoning_tokens: tokens(row, 12)?,
    };
    sums.cost_usd = row.get(11)?;
    Ok(sums)
}

/// Returns the last tool calls, of one tool or all, the newest first.
pub(super) fn recent_calls(db: &Connection, tool: Option<&str>, limit: usize) -> rusqlite::Result<Vec<LedgerEntry>> {
    let of_tool = tool.map_or(String::new(), |_| {
        format!("AND name = ?2 AND id > (SELECT coalesce(max(id), 0) FROM entries) - {SEARCHED}")
    });
    let columns = entries::columns();
    let sql = format!("SELECT {columns} FROM entries WHERE kind IS NULL {of_tool} ORDER BY id DESC LIMIT ?1");
    let mut statement = db.prepare_cached(&sql)?;
    let limit: &dyn ToSql = &most(limit as u64);
    let mut rows = statement.query(params_from_iter([limit].into_iter().chain(tool.iter().map(|tool| tool as _))))?;
    let (mut of, mut calls) = (HashMap::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let trace: i64 = row.get(0)?;
        let of = match of.entry(trace) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(summaries(db, "WHERE id = ?1", &[&trace])?.pop())
            }
        };
        if let Some(of) = of {
            calls.push(entries::entry(row, of)?);
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use toolwright_core::store::LedgerStore as _;

    use super::super::super::SqliteStore;
    use super::*;

    #[tokio::test]
    async fn operations_are_summed_by_group() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let entry = |id, kind, name: &str, at_ms, latency_us, status: &'static str| {
            let op = Op { id: OpId::new(id), lineage: Lineage::named("s") };
            let entry = LedgerEntry::new(op, at_ms, SessionId::new("s"), "owner".into(), kind, name.into());
            LedgerEntry { latency_us, status: status.into(), ..entry }
        };
        let now = super::super::super::now_ms().cast_unsigned();
        let (day, earlier) = (now / DAY_MS * DAY_MS, now / DAY_MS * DAY_MS - DAY_MS);
        let usage = Usage { input_tokens: 5, output_tokens: 2, ..Usage::default() };
        for entry in [
            LedgerEntry { arguments: Some("{}".into()), ..entry(1, OpKind::Tool, "a:x@1.0.0", earlier, 30, "ok") },
            entry(2, OpKind::Tool, "a:x@1.0.0", day, 10, "timeout"),
            entry(3, OpKind::Tool, "a:x@1.0.0", day, 20, "ok"),
            LedgerEntry { usage, cost_usd: Some(0.5), ..entry(4, OpKind::Model, "p/m", day + 1, 7, "ok") },
            LedgerEntry { usage, ..entry(5, OpKind::Model, "p/m", day + 1, 9, "rate_limit") },
            entry(6, OpKind::Guard, "g", day, 7, "ok"),
        ] {
            store.append(entry);
        }
        store.flush().await.expect("flush");
        let rows = async |by, since| {
            let row = |row: UsageRow| {
                let TraceSums { tool_calls, failures, usage, cost_usd, open_costs, .. } = row.sums;
                (row.name, row.p50_us, tool_calls, failures, usage.input_tokens, cost_usd, open_costs)
            };
            store.usage(by, since).await.expect("sums").into_iter().map(row).collect::<Vec<_>>()
        };
        assert_eq!(rows(UsageBy::Tool, 0).await, [("a:x@1.0.0".into(), 20, 3, 1, 0, None, 0)]);
        assert_eq!(rows(UsageBy::Tool, day).await, [("a:x@1.0.0".into(), 20, 2, 1, 0, None, 0)]);
        assert_eq!(rows(UsageBy::Model, 0).await, [("p/m".into(), 9, 0, 1, 10, Some(0.5), 1)]);
        assert_eq!(
            rows(UsageBy::Day, 0).await,
            [(earlier.to_string(), 30, 1, 0, 0, None, 0), (day.to_string(), 10, 2, 2, 10, Some(0.5), 1)]
        );
        assert_eq!(rows(UsageBy::Agent, 0).await.len(), 1);
        assert_eq!(rows(UsageBy::Run, now + DAY_MS).await, []);
        assert_eq!(store.recent_calls(Some("a:y@1.0.0"), 3).await.expect("calls").len(), 0);
        assert_eq!(store.recent_calls(Some("a:x@1.0.0"), 2).await.expect("calls").len(), 2);
        let last = store.recent_calls(None, 3).await.expect("calls");
        assert_eq!(last.iter().map(|call| call.op.id.get()).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!((last[2].arguments.as_deref(), &*last[2].principal), (Some("{}"), "owner"));
    }
}
