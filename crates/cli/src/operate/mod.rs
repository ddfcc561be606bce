//! Commands for what runs and waits: `approvals`, `jobs`, `trace`, `policy`, `pins`, `mcp`, `triggers`.

pub(crate) mod approvals;
pub(crate) mod jobs;
pub(crate) mod mcp;
pub(crate) mod pins;
pub(crate) mod policy;
pub(crate) mod trace;
pub(crate) mod triggers;
