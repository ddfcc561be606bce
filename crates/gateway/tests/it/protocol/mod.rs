//! MCP of each revision, over pipes and HTTP.

mod batches;
mod connections;
mod legacy;
mod methods;
mod modern;
mod shutdown;
pub(crate) mod stdio;
mod streams;
