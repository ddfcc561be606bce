//! The driver over real parts: executor, catalogue, store on disk. Only the model is scripted.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod agent_tools;
mod agent_tree;
mod budget;
mod compaction;
mod context;
mod delegates;
mod dispatch;
mod exposure;
mod extract;
mod faults;
mod fixture;
mod jobs;
mod live_agents;
mod long_talks;
mod native;
mod prompt_cache;
mod rate_limits;
mod recording;
mod resume;
mod runs;
mod sub_agents;
mod tree;
mod usage;
