//! For tests only: a scripted model server, a misbehaving MCP server, rules of model APIs, fixtures.

pub mod conformance;
mod locate;
pub mod misbehaving;
pub mod model_server;
pub mod rules;
mod wire;

pub use locate::bin;
