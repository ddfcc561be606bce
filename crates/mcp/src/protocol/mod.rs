//! The parts of the Model Context Protocol that client and server share: messages, revisions, and conversion between
//! revisions. Pure: no I/O, no clock. `client` has the client, `gateway/mcp` the server.

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
