//! Sums the usage of operations by group.

use serde::{Deserialize, Serialize};

use super::TraceSums;

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
    /// The agent whose run it is; empty outside of runs of named agents.
    Agent,
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
