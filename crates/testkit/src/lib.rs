//! For tests only: a scripted model server, a misbehaving MCP server, fixtures.

pub mod conformance;
mod locate;
pub mod misbehaving;
pub mod model_server;
mod wire;

pub use locate::bin;
