//! MCP servers as providers, over stdio and streamable HTTP, for the protocol revisions 2024-11-05 to
//! 2026-07-28.
//!
//! ```text
//! McpProvider ── ManagedConnection (state, back-off) ── Connector ── Connection ── Peer ── dyn Transport ── server
//!                                                                      (requests) └── Inbox ◄──────┘
//!                                                                              (answers, questions, notices)
//! ```
//!
//! The client reads and writes messages of [`protocol`](crate::protocol) itself: a result stays raw text until its
//! requester parses it, and unknown members are passed on, so that nothing of a server's answer is lost. A call's task
//! writes its request to the pipe itself, and the reading task hands the answer directly to it.
//!
//! # Which generation is tried first
//! `server/discover`, for two seconds at most: a server of both generations is used in the newer one, with keys for its
//! questions and the capabilities of each call's client. Servers up to 2025-11-25 refuse it at once, and over a pipe
//! are asked to `initialize` in the same process. A silent server, which may still be starting, is also asked to
//! `initialize`, and its late answer to the first request is remembered. If it stays silent or exits on the unknown
//! message, it is restarted and gets `initialize` first. Without a process (HTTP, WebSocket) a failed attempt costs one
//! request. The result is stored with the server's cached manifest (`VersionProbe`), so that this cost occurs once per
//! server, not per start; an older server is probed again when its version changes. The legacy HTTP+SSE transport uses
//! only `initialize`.
//!
//! # What a server asks back
//! A question (`elicitation/create`, `sampling/createMessage`, `roots/list`) goes to the client of the call that it
//! belongs to: an older server's request is answered during the call (`questions`); after a newer server's
//! `input_required` result the request is sent again with the answers (`exchange`). On a shared connection, an older
//! server does not say which call it asks for: if all calls in flight are from one client, it is one of them, otherwise
//! the question is refused; `shared: false` gives each session its own connection. If a server turns a call into a
//! task, the call follows it to its end (`tasks`).

pub(crate) mod connection;
mod exchange;
mod listed_as_tools;
mod listing;
mod methods;
mod provider;
mod reply;
mod source;
mod tasks;
mod url_elicitation;

pub use crate::config::{AsTools, McpOptions, McpServerConfig, McpServerOptions, McpTransport};
pub use crate::transport::{Direction, FrameSink};
pub use provider::McpProvider;
pub use toolwright_sandbox::DEPTH_VARIABLE;
