//! The MCP server: one protocol core under two transports.
//!
//! A request comes in by `stdio` or `http`; `dispatch` answers it at once or starts work on it (`request`), whose
//! `response` ends it. `request::call` is the work of `tools/call`, `sources` that of all other methods that servers have.
//! `client` is whoever sent the request, as a tool's source may ask it.
//!
//! The wire is written here rather than with `rmcp`'s server, whose typed results drop the fields it
//! does not know and whose sessions end during long silent calls: a gateway passes on what it was given.
//! Both generations are served side by side, request by request: up to 2025-11-25 with `initialize`
//! and sessions, and 2026-07-28 with a complete `_meta` in each request.

pub(crate) mod client;
mod dispatch;
pub(crate) mod http;
mod protocol;
pub(crate) mod request;
mod response;
mod session;
pub(crate) mod sources;
pub(crate) mod stdio;
mod stdio_streams;
pub(crate) mod tools;

pub(crate) use toolwright_mcp::message;
