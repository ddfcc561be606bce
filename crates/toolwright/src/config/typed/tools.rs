//! The sections that bring tools.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::sections::EffectFlags;
use toolwright_core::setting::{CacheTtl, TimeSpan, Written};

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
