//! The configuration of a REST tool.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use toolwright_core::Effects;
use toolwright_core::definition::{Concurrency, Guidance, ToolLimits};
use toolwright_core::setting::{CacheTtl, LiteralText};

use super::request::query::Style;

/// One HTTP endpoint as a tool, `rest:<name>@1.0.0`. `${VAR}` is filled in from the environment when the
/// configuration is read, `${parameters.x}` from the arguments of a call.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestToolConfig {
    /// Whether it is used.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// What it does, for the model that chooses.
    pub description: String,
    /// Human-readable name.
    pub title: Option<String>,
    /// HTTP method.
    #[serde(default)]
    pub method: RestMethod,
    /// Address. Placeholders may stand in path and query, where values are percent-encoded.
    #[schemars(extend("x-variables" = "setting"))]
    pub url: String,
    /// Request headers. A header whose placeholder has no value is left out.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, LiteralText>", extend("x-variables" = "pair"))]
    pub headers: IndexMap<String, String>,
    /// Query pairs: a template, a scalar, a list, or `{value, style, explode}` in `OpenAPI`'s sense. A pair whose
    /// placeholder has no value is left out.
    // Added to the query of the URL.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, Value>", extend("x-variables" = "pair"))]
    pub query: IndexMap<String, QueryValue>,
    /// Body: JSON with placeholders in its strings, or a text. A string that consists of one placeholder becomes the
    /// argument's value with its type.
    // Null is sent too; a member or item whose placeholder has no value is left out. With a `Content-Type` of
    // `application/x-www-form-urlencoded` an object is sent as a form.
    #[schemars(extend("x-variables" = "setting"))]
    pub body: Option<Value>,
    /// JSON Schema of the arguments that the placeholders name. Without placeholders it may be left out:
    /// the tool takes no arguments.
    #[serde(alias = "parametersSchema", alias = "parameters_schema")]
    #[schemars(extend("x-aliases" = ["parameters_schema"]))]
    pub parameters: Option<Value>,
    /// JSON Schema of the result; with it, a JSON response is returned as a structured value too.
    #[serde(alias = "outputSchema")]
    pub output_schema: Option<Value>,
    /// How the response is read.
    #[serde(default)]
    pub response: ResponseFormat,
    /// The part of a JSON response that is returned: names and positions after slashes, `*` for every item, like
    /// `/items/*/name`. A response without that part is returned whole. For a stream it selects from each event, or,
    /// with `stream.answer`, from the joined text, which must then be JSON.
    // See [`Selection`](super::Selection).
    pub select: Option<String>,
    /// How the events of a stream become one result. Default: all events, one a line.
    pub stream: Option<StreamConfig>,
    /// The limits of its calls.
    #[serde(flatten)]
    pub limits: ToolLimits,
    /// How many bytes of a response are read at most. Default 2 MiB.
    #[serde(alias = "maxBytes")]
    #[schemars(range(min = 256))]
    pub max_bytes: Option<usize>,
    /// What a call may do. Default: GET, HEAD and OPTIONS only read, all else may destroy.
    pub effects: Option<Effects>,
    /// Labels for search, filters and policy.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Other names of the tool.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Roles that may use it; empty: all.
    #[serde(default, alias = "allowedRoles")]
    pub allowed_roles: Vec<String>,
    /// Example arguments, for the model that fills them in.
    #[serde(default)]
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub examples: Vec<Value>,
    /// Whether it may be offered where unsafe tools are not allowed.
    #[serde(default = "yes")]
    pub safe: bool,
    /// Whether to ask a model API for strict arguments. Default: where the API and the schema allow it.
    pub strict: Option<bool>,
    /// Whether calls may overlap.
    #[serde(default)]
    pub concurrency: Concurrency,
    /// How it is called and explained.
    #[serde(flatten)]
    pub guidance: Guidance,
    /// The argument that gets the body of a call whose text format has one (see `tool_format`).
    #[serde(alias = "bodyArgument")]
    pub body_argument: Option<String>,
    /// How long a successful result is cached: a duration, or `off`, the default.
    #[serde(default, alias = "cache_ttl", alias = "cacheTtl")]
    pub cache: CacheTtl,
    /// Whether it may reach private addresses. Default: `web.allow_private`.
    #[serde(alias = "allowPrivate")]
    pub allow_private: Option<bool>,
    /// Hosts that it may reach even at private addresses. Default: `web.allowed_hosts`.
    #[serde(alias = "allowedHosts")]
    pub allowed_hosts: Option<Vec<String>>,
    /// The entry as its author wrote it, before environment variables were expanded. The loader sets it,
    /// so that the contract covers the whole text and holds no secret. Without it the contract covers
    /// what cannot be one: see `RestProvider`.
    #[serde(skip)]
    pub written: Option<Value>,
}

/// How the events of a streamed response become one result. Paths are written as in `select`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StreamConfig {
    /// Path of the text in an event, like `/delta/text`. The result is the joined texts; events without one are
    /// skipped.
    pub answer: Option<String>,
    /// Path of the mark of the last event, like `/done`. Any value counts but null, false, 0 and an empty text.
    pub done: Option<String>,
}

/// An HTTP method.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum RestMethod {
    /// Reads.
    #[default]
    #[serde(alias = "get")]
    Get,
    /// Reads headers only.
    #[serde(alias = "head")]
    Head,
    /// Asks what is possible.
    #[serde(alias = "options")]
    Options,
    /// Creates or acts.
    #[serde(alias = "post")]
    Post,
    /// Replaces.
    #[serde(alias = "put")]
    Put,
    /// Changes.
    #[serde(alias = "patch")]
    Patch,
    /// Removes.
    #[serde(alias = "delete")]
    Delete,
}

impl From<RestMethod> for http::Method {
    fn from(method: RestMethod) -> Self {
        match method {
            RestMethod::Get => Self::GET,
            RestMethod::Head => Self::HEAD,
            RestMethod::Options => Self::OPTIONS,
            RestMethod::Post => Self::POST,
            RestMethod::Put => Self::PUT,
            RestMethod::Patch => Self::PATCH,
            RestMethod::Delete => Self::DELETE,
        }
    }
}

/// A value in the query.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryValue {
    /// A template, or a fixed scalar or list.
    pub value: Value,
    /// How lists and objects are written. Default: `form`.
    pub style: Style,
    /// Whether each item is a separate pair. Default: yes for `form` and `deepObject`.
    pub explode: Option<bool>,
}

impl From<Value> for QueryValue {
    fn from(value: Value) -> Self {
        Self { value, style: Style::default(), explode: None }
    }
}

impl From<&str> for QueryValue {
    fn from(template: &str) -> Self {
        Value::from(template).into()
    }
}

impl<'de> Deserialize<'de> for QueryValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Styled {
            value: Value,
            #[serde(default)]
            style: Style,
            #[serde(default)]
            explode: Option<bool>,
        }
        match Value::deserialize(deserializer)? {
            object @ Value::Object(_) => {
                let Styled { value, style, explode } =
                    serde_json::from_value(object).map_err(serde::de::Error::custom)?;
                Ok(Self { value, style, explode })
            }
            plain => Ok(plain.into()),
        }
    }
}

/// How a response is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFormat {
    /// By its `Content-Type`.
    #[default]
    Auto,
    /// As text.
    Text,
    /// As JSON.
    Json,
    /// As server-sent events, each passed on as it arrives.
    #[serde(alias = "sse")]
    Events,
    /// As JSON lines, each passed on as it arrives.
    #[serde(alias = "jsonLines", alias = "ndjson")]
    JsonLines,
}

fn yes() -> bool {
    true
}
