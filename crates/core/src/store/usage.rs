//! What operations come to, summed by what they have in common.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LedgerEntry, TraceSums};
use crate::event::operation::OpKind;

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// What operations are summed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageBy {
    /// Tool id; only tool calls count.
    Tool,
    /// `provider/model`; only requests to models count.
    Model,
    /// The run, or the session outside of runs.
    Run,
    /// Principal.
    Principal,
    /// Day (UTC), as milliseconds since the epoch at its start.
    Day,
}

/// The sums of one group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UsageRow {
    /// What the group has in common.
    pub name: String,
    /// Median of the operations' latency, in microseconds; waits for people are no part of it.
    pub p50_us: u64,
    /// The sums.
    #[serde(flatten)]
    pub sums: TraceSums,
}

/// Sums operations by group, in the order of the groups' names. Judgements of guards do not count.
#[must_use]
pub fn usage(entries: &[LedgerEntry], by: UsageBy) -> Vec<UsageRow> {
    let mut groups: BTreeMap<String, (Vec<u64>, TraceSums)> = BTreeMap::new();
    for entry in entries {
        let counts = match by {
            UsageBy::Tool => entry.kind == OpKind::Tool,
            UsageBy::Model => entry.kind == OpKind::Model,
            UsageBy::Run | UsageBy::Principal | UsageBy::Day => entry.kind != OpKind::Guard,
        };
        if !counts {
            continue;
        }
        let name = match by {
            UsageBy::Tool | UsageBy::Model => entry.name.to_string(),
            UsageBy::Run => entry.op.lineage.run.as_deref().unwrap_or(entry.session.as_str()).to_owned(),
            UsageBy::Principal => entry.principal.to_string(),
            UsageBy::Day => (entry.at_ms / DAY_MS * DAY_MS).to_string(),
        };
        let (latencies, sums) = groups.entry(name).or_default();
        latencies.push(entry.latency_us);
        sums.add(entry);
    }
    let row = |(name, (mut latencies, sums)): (String, (Vec<u64>, TraceSums))| {
        let middle = latencies.len() / 2;
        let p50_us = *latencies.select_nth_unstable(middle).1;
        UsageRow { name, p50_us, sums }
    };
    groups.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::operation::{Lineage, Op, OpId};
    use crate::identity::session::SessionId;
    use std::borrow::Cow;

    #[test]
    fn operations_are_summed_by_group() {
        let entry = |kind, name: &str, at_ms, latency_us, status: &'static str| {
            let op = Op { id: OpId::new(1), lineage: Lineage::named("s") };
            let entry = LedgerEntry::new(op, at_ms, SessionId::new("s"), "owner".into(), kind, name.into());
            LedgerEntry { latency_us, status: Cow::Borrowed(status), cost_usd: Some(0.5), ..entry }
        };
        let entries = [
            entry(OpKind::Tool, "a:x@1.0.0", 5, 30, "ok"),
            entry(OpKind::Tool, "a:x@1.0.0", DAY_MS, 10, "timeout"),
            entry(OpKind::Tool, "a:x@1.0.0", DAY_MS, 20, "ok"),
            entry(OpKind::Model, "p/m", DAY_MS + 1, 7, "ok"),
            entry(OpKind::Guard, "g", 1, 7, "ok"),
        ];
        let rows = |by| {
            let row = |row: UsageRow| (row.name, row.p50_us, row.sums.tool_calls, row.sums.failures, row.sums.cost_usd);
            usage(&entries, by).into_iter().map(row).collect::<Vec<_>>()
        };
        assert_eq!(rows(UsageBy::Tool), [("a:x@1.0.0".into(), 20, 3, 1, Some(1.5))]);
        assert_eq!(rows(UsageBy::Model), [("p/m".into(), 7, 0, 0, Some(0.5))]);
        let days = [("0".into(), 30, 1, 0, Some(0.5)), (DAY_MS.to_string(), 10, 2, 1, Some(1.5))];
        assert_eq!(rows(UsageBy::Day), days);
        assert_eq!(rows(UsageBy::Principal).len(), 1);
        assert_eq!(usage(&[], UsageBy::Run), []);
    }
}
