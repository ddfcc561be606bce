//! The MCP server: one protocol core under two transports.
//!
//! The wire is written here rather than with `rmcp`'s server, whose typed results drop the fields it
//! does not know and whose sessions end during long silent calls: a gateway passes on what it was given.
//! Both generations are served side by side, request by request: up to 2025-11-25 with `initialize`
//! and sessions, and 2026-07-28 with a complete `_meta` in each request.

mod approve;
mod ask;
mod batch;
pub(crate) mod broken_output_schemas;
mod call;
mod changes;
mod dispatch;
pub(crate) mod fallback_client;
pub(crate) mod http;
pub(crate) mod input_required;
mod instructions;
mod levels;
pub(crate) mod lists;
mod methods;
mod peer;
mod progress;
mod protocol;
pub(crate) mod resource_links;
mod response_channel;
mod result;
mod routing;
mod running_calls;
pub(crate) mod sources;
pub(crate) mod stdio;
pub(crate) mod subscriptions;
pub(crate) mod tasks;
pub(crate) mod tools;
pub(crate) mod view;

pub(crate) use toolwright_mcp::message;
