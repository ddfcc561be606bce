//! MCP servers as providers, over stdio and streamable HTTP, for the protocol revisions 2024-11-05 to
//! 2026-07-28.
//!
//! ```text
//! McpProvider ── Link (state, back-off) ── connect() ── Connection ── Peer ── dyn Transport ── server
//!                                                         (requests) └── Inbox ◄──────┘
//!                                                                 (answers, questions, notices)
//! ```
//!
//! The wire is written here, over `toolwright_mcp`'s messages: results pass as raw values, so that nothing that a server
//! said is lost. The task of a call writes its request to the pipe itself, and the task that reads hands the answer
//! straight to it.
//!
//! # Which generation is tried first
//! A server's generation is found once and remembered. On a pipe `initialize` comes first: every server
//! up to 2025-11-25 answers it at once, servers that speak both answer it too, and one that speaks
//! 2026-07-28 alone refuses it at once, so nothing waits for a time-out; a pipe gains nothing from being
//! stateless. The other order would cost old servers a restart where they end or fall silent on a first
//! message that they do not know. Over HTTP `server/discover` comes first, for two seconds at most: there
//! a session is worth avoiding, and a failed attempt costs one request.
//!
//! # What a server asks back
//! A question (`elicitation/create`, `sampling/createMessage`, `roots/list`) goes to the client of the call that it
//! belongs to: an older server's request is answered on the way (`questions`), a newer one's `input_required` result has
//! the request made again with the answers (`exchange`). On a connection that several sessions share, an older server
//! does not say which call it asks for: while calls of one client alone are in flight it is one of them, otherwise the
//! question is refused, and `shared: false` gives each session a connection. A task that a server makes of a call is
//! followed to its end inside the call (`tasks`).

mod call;
mod connect;
mod connection;
mod exchange;
mod explain;
mod facts;
mod frames;
mod handshake;
mod inbox;
mod link;
mod links;
mod listener;
mod listing;
mod manifest;
mod methods;
mod nesting;
mod peer;
mod process;
mod provider;
mod questions;
mod relist;
mod remote;
mod shown;
mod sniff;
mod source;
mod spec;
mod stdio;
mod subscription;
mod tasks;
mod transport;

pub use nesting::DEPTH_VARIABLE;
pub use provider::McpProvider;
pub use spec::{AsTools, DEFAULT_RETRIES, McpDeps, McpServerSpec, McpTransport};
