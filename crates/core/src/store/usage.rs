//! Sums the usage of operations by group.

use serde::{Deserialize, Serialize};

use super::TraceSums;

/// How operations are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageBy {
    /// Tool id; only tool calls count.
    Tool,
    /// `provider/model`; only requests to models count.
    Model,
    /// The run, or the session outside of runs.
    Run,
    /// By the agent of the run; empty outside of runs of named agents.
    Agent,
    /// Principal.
    Principal,
    /// Day (UTC), as milliseconds since the epoch at its start.
    Day,
}

/// The sums of one group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UsageRow {
    /// Name of the group.
    pub name: String,
    /// Median latency in microseconds, without waits for people.
    pub p50_us: u64,
    /// The sums.
    #[serde(flatten)]
    pub sums: TraceSums,
}
