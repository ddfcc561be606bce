//! What the server has over HTTP besides MCP, and who may use it.

pub(crate) mod api;
mod api_approvals;
mod console;
mod facades;
mod guards;
