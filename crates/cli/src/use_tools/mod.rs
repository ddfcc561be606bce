//! Commands that use tools: `serve`, `run`, `chat`, `call`, `tools`, `pick`.

pub(crate) mod call;
pub(crate) mod pick;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod tools;
