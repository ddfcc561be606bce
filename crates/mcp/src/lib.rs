//! The Model Context Protocol: messages and conversions that both sides share, and the client.
//!
//! `protocol` is pure; `transport` carries messages to a server and back; `client` is the provider over both,
//! as `config` sets it.

pub mod client;
mod config;
pub mod protocol;
mod transport;

pub use protocol::{asking, batch, convert, elicitation, headers, list_validation, merge, message, revision, tasks};
