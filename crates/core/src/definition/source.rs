//! Describes the source of a tool: how far its calls reach, and which texts of the source are passed through.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What kind of source a tool comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// Shipped with Toolwright.
    Builtin,
    /// Registered from Rust.
    Native,
    /// An MCP server.
    Mcp,
    /// A configured REST tool.
    Rest,
    /// A signed remote catalogue.
    Catalogue,
    /// An OpenAPI document.
    #[serde(rename = "openapi")]
    OpenApi,
    /// An agent.
    Agent,
    /// A model-backed tool.
    Llm,
}

impl ProviderKind {
    /// Every one.
    pub const ALL: [Self; 8] =
        [Self::Builtin, Self::Native, Self::Mcp, Self::Rest, Self::Catalogue, Self::OpenApi, Self::Agent, Self::Llm];
}

/// What a call would touch, as far as the provider can tell before it runs. Ordered: each reaches further than the one
/// before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallScope {
    /// Nothing outside the workspace root.
    Workspace,
    /// Unknown, or more.
    Anywhere,
    /// It writes what Toolwright itself is configured by: the next moment it may start other programs, under another policy.
    Configuration,
}

/// The MCP server that a call goes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpPeer {
    /// Its name in the configuration.
    pub server: Arc<str>,
    /// The protocol version that was agreed on, once there is a connection.
    pub protocol_version: Option<Cow<'static, str>>,
    /// The session that the server gave, over HTTP.
    pub session: Option<Arc<str>>,
}

/// Keys under which an MCP provider keeps what its server said and Toolwright does not interpret, so that a gateway can say it
/// again untouched.
pub mod passthrough {
    /// Key in [`crate::ToolDefinition::meta`]: an object of the tool's own fields (`annotations`, `icons`,
    /// `_meta`, later additions), as its MCP server listed them.
    pub const LISTED_FIELDS: &str = "mcp";

    /// Key in [`crate::ToolOutput::extras`]: the whole result of a protocol's method that is no tool, as the source gave
    /// it (see [`Provider::methods`](crate::catalogue::Provider::methods)).
    pub const METHOD_RESULT: &str = "mcp_method_result";

    /// Key in [`crate::ToolOutput::extras`]: an object of the result's fields beside `content`,
    /// `structuredContent`, `isError` and `_meta`.
    pub const RESULT_FIELDS: &str = "mcp_result";
}
