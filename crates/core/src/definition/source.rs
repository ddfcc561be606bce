//! Describes the source of a tool: how far its calls reach, and which texts of the source are passed through.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The kind of a tool's source.
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

/// The reach of a call, as far as known before it runs. Ordered from narrow to wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallScope {
    /// Stays inside the workspace root.
    Workspace,
    /// Anything else, or unknown.
    Anywhere,
    /// Writes Toolwright's own configuration, which may start other programs under another policy.
    Configuration,
}

/// The MCP server that a call is sent to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpPeer {
    /// Its name in the configuration.
    pub server: Arc<str>,
    /// The negotiated protocol version, once connected.
    pub protocol_version: Option<Cow<'static, str>>,
    /// The server's session id, over HTTP.
    pub session: Option<Arc<str>>,
}

/// Keys of data from MCP servers that Toolwright does not interpret, so that a gateway can pass it on
/// unchanged.
pub mod passthrough {
    /// Key in [`crate::ToolDefinition::meta`]: an object of the tool's own fields (`annotations`, `icons`,
    /// `_meta`, later additions), as its MCP server listed them.
    pub const LISTED_FIELDS: &str = "mcp";

    /// Key in [`crate::ToolOutput::extras`]: the unchanged result of a protocol method
    /// (see [`Provider::methods`](crate::catalogue::Provider::methods)).
    pub const METHOD_RESULT: &str = "mcp_method_result";

    /// Key in [`crate::ToolOutput::extras`]: an object of the result's fields other than `content`,
    /// `structuredContent`, `isError` and `_meta`.
    pub const RESULT_FIELDS: &str = "mcp_result";
}
