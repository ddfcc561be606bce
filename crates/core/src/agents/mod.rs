//! Agents as they are configured, by a file or an entry of `agents`; and checks of several of them together.

mod config;
mod graph;
pub mod handoff;
pub mod prompt;
mod tree;

pub use crate::policy::{AgentLimits, Rights};
pub use config::{AgentConfig, HandoffDestination, History, NameError, OnChildren, Router, check_name, legal_name};
pub use graph::{find_cycle, unknown_agent, unknown_tools};
pub use tree::{
    AgentAllowance, AgentNode, AgentTree, DEFAULT_AGENTS, DEFAULT_DEPTH, DEFAULT_LIVE, LimitWarning, NewAgent,
    RequestEstimate, Spending, TimeLeft, TreeError, TreeLimit, admit, afford, ancestors, child_session, near_limits,
    nearest_limits, time_left,
};
