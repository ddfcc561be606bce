//! Commands for running and waiting work: `approvals`, `jobs`, `trace`, `policy`, `pins`, `mcp`, `state`, `triggers`.

pub(crate) mod approvals;
pub(crate) mod jobs;
pub(crate) mod mcp;
pub(crate) mod pins;
pub(crate) mod policy;
pub(crate) mod state;
pub(crate) mod trace;
mod trace_html;
pub(crate) mod triggers;
