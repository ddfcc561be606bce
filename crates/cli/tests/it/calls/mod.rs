//! `call`, `pick` and `plan`, and the people who are asked.

mod approvals;
pub(crate) mod arguments;
mod asking;
mod call;
mod embeddings;
pub(crate) mod kill_points;
mod pick;
#[cfg(unix)]
mod plan_kills;
mod planned_runs;
pub(crate) mod plans;
mod text_format;
