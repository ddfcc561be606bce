//! Serves the catalogue to MCP clients over stdio and HTTP, and to any HTTP client as plain JSON.
//!
//! A [`Gateway`] holds what all clients share. [`serve_stdio`] and [`serve_http`] connect clients to it. Every call
//! goes through the executor of `toolwright-runtime`.
//!
//! `mcp` is the MCP server, `api` the HTTP API, `facade` the APIs of `OpenAI` and Anthropic, and `http` the parts that
//! all HTTP endpoints share. `serve` puts them on one listener.

mod agents;
mod api;
mod config;
mod console;
mod facade;
mod http;
mod instructions;
mod mcp;
mod operator;
mod serve;
mod view;

pub use agents::{AgentSource, PreparedRun, RunRequest, RunTarget};
pub use config::{
    ApiAccess, ClientBudget, ClientConfig, FacadeApprovals, FacadeConfig, ModelTarget, OnDisconnect, ServerConfig,
};
pub use http::{ApiStores, HttpError, HttpOptions, LookUpPeer, MetricsSource, SecretSource, Token, WebhookOptions};
pub use mcp::client::fallback_client::{FallbackClient, FallbackContext};
pub use mcp::transport::stdio::{serve_connection, serve_stdio};
pub use mcp::{Elicitation, Gateway, GatewayOptions, ServerInfo};
pub use operator::{Operator, PinAction};
pub use serve::{HttpServer, serve_http};
pub use view::{Expose, ListedSchemas, ViewConfig};
