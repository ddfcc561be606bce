//! Serving the catalogue to MCP clients over stdio and HTTP, and to any client as plain JSON.
//!
//! A [`Gateway`] holds what every client shares; [`serve_stdio`] and [`serve_http`] put clients in
//! touch with it. Each call goes through the one executor of `toolwright-runtime`.

mod api;
mod gateway;
mod http;
mod mcp;

pub use api::ApiStores;
pub use gateway::{DEFAULT_MAX_TOOL_NAME, Elicitation, Gateway, GatewayOptions, ServerInfo};
pub use http::{Client, HttpError, HttpOptions, HttpServer, LookUpPeer, MetricsSource, Token, serve_http};
pub use mcp::fallback_client::{FallbackClient, FallbackTerms};
pub use mcp::stdio::{serve_connection, serve_stdio};
pub use mcp::view::{Expose, ListedSchemas, ViewOptions};
