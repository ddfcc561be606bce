//! Commands that use tools: `serve`, `console`, `run`, `chat`, `agents`, `call`, `plan`, `tools`, `pick`.

pub(crate) mod agents;
mod batches;
pub(crate) mod call;
pub(crate) mod chat;
pub(crate) mod pick;
pub(crate) mod plan;
pub(crate) mod prompt;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod tools;
