//! MCP servers as providers, over stdio and streamable HTTP, for the protocol revisions 2024-11-05 to
//! 2026-07-28.
//!
//! ```text
//! McpProvider ── Link (state, back-off) ── connect() ── Connection ── rmcp ── stdio frames | HTTP ── server
//!                                                           └── Inbox: raw results and progress, by call
//! ```
//!
//! `rmcp` does the handshakes, ids and sessions. Results of `tools/list` and `tools/call` go around its
//! types, because those drop fields that they do not know: `inbox` takes them as they arrive.
//!
//! # Which generation is tried first
//! A server's generation is found once and remembered. On a pipe `initialize` comes first: every server
//! up to 2025-11-25 answers it at once, servers that speak both answer it too, and one that speaks
//! 2026-07-28 alone refuses it at once, so nothing waits for a time-out; a pipe gains nothing from being
//! stateless. The other order would cost old servers a restart where they end or fall silent on a first
//! message that they do not know. Over HTTP `server/discover` comes first, for two seconds at most: there
//! a session is worth avoiding, and a failed attempt costs one request.

mod call;
mod connect;
mod connection;
mod explain;
mod frames;
mod handler;
mod http;
mod inbox;
mod link;
mod listing;
mod nesting;
mod process;
mod provider;
mod relist;
#[cfg_attr(not(test), expect(dead_code, reason = "the protocol over it comes next"))]
mod remote;
mod spec;
mod stdio;
#[expect(dead_code, reason = "the transports over it come next")]
mod transport;

pub use nesting::DEPTH_VARIABLE;
pub use provider::McpProvider;
pub use spec::{DEFAULT_RETRIES, McpDeps, McpServerSpec, McpTransport};
