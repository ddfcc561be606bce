//! The Model Context Protocol: messages and conversions that both sides share, and the client.
//!
//! `protocol` is pure; `transport` carries messages to a server and back; `client` is the provider over both.

pub mod client;
pub mod protocol;
mod transport;

pub use protocol::{
    address, asking, batch, convert, downgrade, form, headers, level, list_validation, merge, message, page, revision,
    sampling, state, tasks,
};
