//! The sections that bring tools.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolwright_core::SandboxProfile;

use super::oauth::OAuthSection;
use super::pins::ServerTools;
use super::scalar::{CacheTtl, TimeSpan, Written};
use super::sections::EffectFlags;

/// One MCP server. Keys of other clients are understood where they mean the same, and warned about
/// where they are not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-foreign-keys" = "warn"))]
pub struct McpServer {
    /// Whether it is used. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How it is reached. Default: `stdio` with `command`; with `url`, `ws` for ws:// and wss:// addresses, else `http`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<Transport>,
    /// Program of a `stdio` server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Written>,
    /// Environment added for it; `${VAR}` and `${VAR:-default}` are filled in.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub env: IndexMap<String, Written>,
    /// Folder it runs in, relative to the configuration's own. Default: the workspace root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Address of an `http` server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers sent with every request; `${VAR}` is filled in.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub headers: IndexMap<String, Written>,
    /// How tokens for an `http` server are got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth: Option<OAuthSection>,
    /// Tools that are offered, as globs without regard to case; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools_allowed: Vec<String>,
    /// Tools that are not offered, as globs; counts after `tools_allowed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools_denied: Vec<String>,
    /// How single tools are shown, by the names that the server has for them. A list is read as `tools_allowed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<ServerTools>,
    /// Queue its calls wait in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How long results of its read-only tools may be served again: a duration, or `off`, the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheTtl>,
    /// The same for single tools, by the names that the server has for them, whatever it says of their effects.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub tools_cache: IndexMap<String, CacheTtl>,
    /// Limit of one call to it. Default: `defaults.tool_timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_timeout: Option<TimeSpan>,
    /// Limit of connecting to it, the start of its process and all handshakes that are tried included. Default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<TimeSpan>,
    /// Bound on one message from it, in bytes. A call whose answer is larger fails. Default 16777216 (16 MiB).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub max_message_bytes: Option<usize>,
    /// Tools whose calls are background jobs from the beginning, as globs without regard to case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<String>,
    /// How long a call to it keeps its caller waiting before it goes on as a background job. Default:
    /// `defaults.auto_background_after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_background_after: Option<TimeSpan>,
    /// What the process of a `stdio` server may do. Default: `full`, its user's own rights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxProfile>,
    /// How long a call to it may go on without a report of progress. Default: `defaults.idle_timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<TimeSpan>,
    /// How often a failed call to it is tried again: only if it was not sent, or if the server is trusted and says
    /// that the tool only reads or may be called twice. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub retries: Option<u32>,
    /// Whether its own word that a tool only reads may loosen policy. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trusted: Option<bool>,
    /// Whether all sessions share one connection. With false each session has a connection of its own, made at its
    /// first call and ended after ten minutes without one: for servers that keep a state for each client, or that ask
    /// their client something in the middle of calls. Its tools are then those that one more connection lists, which is
    /// of no session: what a session's own adds later is not there, and resources cannot be subscribed to. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// Whether it is started no sooner than a call needs it, once its tools are known from an earlier run. Default
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lazy: Option<bool>,
    /// With `tools` its resources are offered as tools: `list_resources` and `read_resource`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<OfferedAs>,
    /// With `tools` each of its prompts is offered as a tool, `prompt_` and its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<OfferedAs>,
    /// Other clients' word for `enabled: false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
    /// Other clients' word for `type`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Other clients' word for `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_url: Option<String>,
    /// Other clients' word for `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_url: Option<String>,
    /// Another client's word for `tools_allowed`; an empty list allows nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_tools: Option<Vec<String>>,
    /// Another client's word for `tools_allowed`; an empty list allows nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_tools: Option<Vec<String>>,
    /// Another client's word for `tools_denied`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude_tools: Vec<String>,
    /// Another client's word for `tools_denied`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled_tools: Vec<String>,
    /// Other clients' word for `request_timeout`: numbers under 1000 are seconds, others milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    /// Tools that another client approves by itself. Shown, never applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always_allow: Option<Value>,
    /// Tools that another client approves by itself. Shown, never applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_approve: Option<Value>,
    /// What it is for. A note, not shown to models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// As what something is offered that is no tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OfferedAs {
    /// As tools.
    #[serde(rename = "tools")]
    Tools,
}

/// How an MCP server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Transport {
    /// A child process.
    #[serde(rename = "stdio")]
    Stdio,
    /// Streamable HTTP, or the older HTTP with server-sent events where the server turns out to be older.
    #[serde(rename = "http")]
    Http,
    /// Streamable HTTP, as other clients call it.
    #[serde(rename = "streamable-http")]
    StreamableHttp,
    /// Streamable HTTP, as other clients call it.
    #[serde(rename = "streamableHttp")]
    StreamableHttpCamel,
    /// The older HTTP with server-sent events (2024-11-05).
    #[serde(rename = "sse")]
    Sse,
    /// WebSocket.
    #[serde(rename = "ws")]
    Ws,
    /// WebSocket, as other clients call it.
    #[serde(rename = "websocket")]
    WebSocket,
}

/// One HTTP endpoint as a tool, `rest:<name>@1.0.0`. `${VAR}` is filled in from the environment when the
/// configuration is read, `${parameters.x}` from the arguments of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestTool {
    /// Whether it is used. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// What it does, for the model that chooses.
    pub description: String,
    /// Human-readable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// HTTP method.
    #[serde(default)]
    pub method: RestMethod,
    /// Address. Placeholders may stand in path and query, where values are percent-encoded.
    pub url: String,
    /// Request headers; one whose placeholder has no value is left out.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub headers: IndexMap<String, Written>,
    /// Query pairs: a template, a scalar, a list, or `{value, style, explode}` in `OpenAPI`'s sense. One
    /// whose placeholder has no value is left out.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub query: IndexMap<String, Value>,
    /// Body: JSON with placeholders in its strings, or a text. A string that is one placeholder keeps
    /// the argument's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// JSON Schema of the arguments that the placeholders name. Without placeholders it may be left out:
    /// the tool takes no arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// JSON Schema of the result; with it, a JSON response is returned as a structured value too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// How the response is read. Default `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<RestResponse>,
    /// The part of a JSON response that is the result: names and positions after slashes, `*` for every item, like
    /// `/items/*/name`. A response without it is returned whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<String>,
    /// Limit of one call. Default: `defaults.tool_timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeSpan>,
    /// How long a call may go on without a report of progress. Default: `defaults.idle_timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<TimeSpan>,
    /// How often a failed call is tried again: only if it was not sent, or if `effects` say that it only reads or
    /// may be called twice. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub retries: Option<u32>,
    /// Bytes of a response that are read. Default 2 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub max_bytes: Option<usize>,
    /// What a call may do. Default: GET, HEAD and OPTIONS only read, all else may destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<EffectFlags>,
    /// Labels for search, filters and policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Other names of the tool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Roles that may use it; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_roles: Vec<String>,
    /// Example arguments, for the model that fills them in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Map<String, Value>>,
    /// Whether it may be offered where unsafe tools are not allowed. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safe: Option<bool>,
    /// Whether to ask a model API for strict arguments. Default: where the API and the schema allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// Whether calls may overlap. Default `safe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ToolConcurrency>,
    /// Cap on the text of a result, in bytes. Default: `defaults.tool_response_max_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub max_output: Option<usize>,
    /// A hint paragraph for the system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contribution: Option<String>,
    /// The argument that takes the body of a call in a text format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_argument: Option<String>,
    /// Queue its calls wait in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How long a successful result may be served again: a duration, or `off`, the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheTtl>,
    /// Whether private addresses are open to it. Default: `web.allow_private`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_private: Option<bool>,
    /// Hosts that are open all the same. Default: `web.allowed_hosts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_hosts: Option<Vec<String>>,
}

/// Whether calls of a tool may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolConcurrency {
    /// Any number at once.
    Safe,
    /// One at a time per workspace root, across all exclusive tools.
    Exclusive,
}

/// An HTTP method.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum RestMethod {
    /// Reads.
    #[default]
    Get,
    /// Reads headers only.
    Head,
    /// Asks what is possible.
    Options,
    /// Creates or acts.
    Post,
    /// Replaces.
    Put,
    /// Changes.
    Patch,
    /// Removes.
    Delete,
}

/// How a response is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestResponse {
    /// By its `Content-Type`.
    Auto,
    /// As text.
    Text,
    /// As JSON.
    Json,
    /// As server-sent events, each passed on as it arrives.
    Events,
    /// As JSON lines, each passed on as it arrives.
    JsonLines,
}
