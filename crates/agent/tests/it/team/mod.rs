//! Agents that start agents, delegates and jobs.

mod agent_tools;
pub(crate) mod agent_tree;
mod delegates;
mod jobs;
mod live_agents;
mod sub_agents;
mod tree;
