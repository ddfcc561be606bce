//! Serving the catalogue to MCP clients over stdio and HTTP, and to any client as plain JSON.
//!
//! A [`Gateway`] holds what every client shares; [`serve_stdio`] and [`serve_http`] put clients in
//! touch with it. Each call goes through the one executor of `toolwright-runtime`.

mod api;
mod gateway;
mod http;
mod mcp;
mod serve;
mod view;

pub use gateway::{DEFAULT_MAX_TOOL_NAME, Elicitation, Gateway, GatewayOptions, ServerInfo};
pub use http::{ApiStores, Client, HttpError, HttpOptions, LookUpPeer, MetricsSource, Token};
pub use mcp::client::fallback_client::{FallbackClient, FallbackContext};
pub use mcp::stdio::{serve_connection, serve_stdio};
pub use serve::{HttpServer, serve_http};
pub use view::{Expose, ListedSchemas, ViewOptions};
