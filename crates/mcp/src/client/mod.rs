//! MCP servers as providers, over stdio and streamable HTTP, for the protocol revisions 2024-11-05 to
//! 2026-07-28.
//!
//! ```text
//! McpProvider ── Link (state, back-off) ── connect() ── Connection ── Peer ── dyn Transport ── server
//!                                                         (requests) └── Inbox ◄──────┘
//!                                                                 (answers, questions, notices)
//! ```
//!
//! The wire is written here, over the messages of [`protocol`](crate::protocol): a result stays the text that came
//! until whoever asked reads it, and what is not known of it passes as it is, so that nothing that a server said is
//! lost. The task of a call writes its request to the pipe itself, and the task that reads hands the answer straight to
//! it.
//!
//! # Which generation is tried first
//! `server/discover`, for two seconds at most: a server that speaks both generations is used as what it newly is, with
//! the keys of its questions and the capabilities of each call's client. Servers up to 2025-11-25 refuse it at once, and
//! over a pipe are asked to `initialize` in the same process. One that is silent, which may be starting still, is asked so
//! too, and what it says late of the first question is remembered. Where it stays silent or ends on a message that it does
//! not know, it is started again and gets `initialize` first. Where no process is at stake (HTTP, WebSocket) a failed
//! attempt costs one request. What was found is kept with the server's cached manifest (`VersionProbe`), so that all this
//! is paid once a server and not once a start; an older server is looked at anew when it says that it is another
//! version of itself. The legacy HTTP+SSE transport knows `initialize` alone.
//!
//! # What a server asks back
//! A question (`elicitation/create`, `sampling/createMessage`, `roots/list`) goes to the client of the call that it
//! belongs to: an older server's request is answered on the way (`questions`), a newer one's `input_required` result has
//! the request made again with the answers (`exchange`). On a connection that several sessions share, an older server
//! does not say which call it asks for: while calls of one client alone are in flight it is one of them, otherwise the
//! question is refused, and `shared: false` gives each session a connection. A task that a server makes of a call is
//! followed to its end inside the call (`tasks`).

pub(crate) mod config;
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

pub use crate::transport::traced::{Direction, FrameSink};
pub use config::{AsTools, McpServerConfig, McpTransport};
pub use config::{McpOptions, McpServerOptions};
pub use provider::McpProvider;
pub use toolwright_sandbox::DEPTH_VARIABLE;
