//! Stores the data of agents: saved runs, the session log, the tree of runs, groups, triggers and their firings.

pub(crate) mod firings;
mod groups;
mod mailbox;
mod runs;
pub(crate) mod session_log;
pub(crate) mod tree;
pub(crate) mod triggers;

pub(super) use session_log::Watchers;
