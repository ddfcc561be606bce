//! The Model Context Protocol, as far as both its sides share it: messages, revisions, what one revision says in
//! terms of another. Pure: no I/O, no clock. `client` is the client over it, `gateway/mcp` the server.

pub mod asking;
pub mod batch;
pub mod convert;
pub mod elicitation;
pub mod headers;
pub mod list_validation;
pub mod merge;
pub mod message;
pub mod revision;
mod strict;
pub mod tasks;
