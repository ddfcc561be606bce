//! Commands of the operator: ledger, pins, policy, jobs, state, triggers.

mod jobs;
mod ledger;
mod pins;
pub(crate) mod policy;
mod policy_cases;
mod safety;
pub(crate) mod sandbox;
mod session_log;
mod state;
mod triggers;
