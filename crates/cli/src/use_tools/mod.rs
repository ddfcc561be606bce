//! Commands that use tools: `serve`, `run`, `chat`, `call`, `tools`, `pick`.

pub(crate) mod arguments;
pub(crate) mod call;
pub(crate) mod chat;
pub(crate) mod client_setup;
pub(crate) mod pick;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod tools;
pub(crate) mod tools_cost;
