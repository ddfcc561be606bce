//! A REST tool as it is configured.

use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use toolwright_core::definition::Concurrency;
use toolwright_core::{Effects, duration};

use super::query::Style;

/// One entry of `restTools`. In `url`, `headers`, `query` and `body`, `${parameters.x}` (or
/// `${parameters.x.y}`) stands for an argument; environment variables are expanded before.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestToolSpec {
    /// What a model reads to decide.
    #[serde(default)]
    pub description: String,
    /// Human-readable name.
    #[serde(default)]
    pub title: Option<String>,
    /// `GET` (the default), `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE` or `OPTIONS`.
    #[serde(default = "get")]
    pub method: String,
    /// Absolute URL. Placeholders may stand in its path and its query only, where values are
    /// percent-encoded.
    pub url: String,
    /// Request headers. One whose placeholder has no value is left out.
    #[serde(default)]
    pub headers: IndexMap<String, String>,
    /// Query pairs, added to those of the URL. One whose placeholder has no value is left out.
    #[serde(default)]
    pub query: IndexMap<String, QueryValue>,
    /// Body: JSON with placeholders in its strings, or a text. A string that is exactly one placeholder
    /// keeps the argument's type, a null too; a member or item whose placeholder has no value is left out. With a
    /// `Content-Type` of `application/x-www-form-urlencoded` an object is sent as a form.
    #[serde(default)]
    pub body: Option<Value>,
    /// JSON Schema of the arguments.
    #[serde(default, alias = "parametersSchema", alias = "parameters_schema")]
    pub parameters: Option<Value>,
    /// JSON Schema of the result. With it, a JSON response is returned as a structured value too.
    #[serde(default, alias = "outputSchema")]
    pub output_schema: Option<Value>,
    /// How the response is read.
    #[serde(default)]
    pub response: ResponseFormat,
    /// The part of a JSON response that is the result: a [`Selection`](super::Selection), like `/items/*/name`. A
    /// response without it is returned whole.
    #[serde(default)]
    pub select: Option<String>,
    /// Limit of one call.
    #[serde(default, with = "duration::option")]
    pub timeout: Option<Duration>,
    /// How long a call may go on without a report of progress.
    #[serde(default, with = "duration::option", alias = "idleTimeout")]
    pub idle_timeout: Option<Duration>,
    /// How often a failed call is tried again where that is safe. Default: the provider's, 1.
    #[serde(default)]
    pub retries: Option<u32>,
    /// Bytes of a response that are read. Default: the provider's, 2 MiB.
    #[serde(default, alias = "maxBytes")]
    pub max_bytes: Option<usize>,
    /// Effects. Without them GET, HEAD and OPTIONS count as reading, and all else as dangerous.
    #[serde(default)]
    pub effects: Option<Effects>,
    /// Labels.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Other names of the tool.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Roles that may use it; empty means all.
    #[serde(default, alias = "allowedRoles")]
    pub allowed_roles: Vec<String>,
    /// Example arguments.
    #[serde(default)]
    pub examples: Vec<Value>,
    /// `false` hides it from selection unless unsafe tools are allowed.
    #[serde(default = "yes")]
    pub safe: bool,
    /// Whether to ask a model API for strict arguments; `None` leaves it to the encoder.
    #[serde(default)]
    pub strict: Option<bool>,
    /// Whether calls may overlap.
    #[serde(default)]
    pub concurrency: Concurrency,
    /// Cap on the text of a result, in bytes; beats the global one.
    #[serde(default, alias = "maxOutput")]
    pub max_output: Option<usize>,
    /// A hint paragraph for the system prompt.
    #[serde(default)]
    pub contribution: Option<String>,
    /// The argument that takes the body of a text-format call.
    #[serde(default, alias = "bodyArgument")]
    pub body_argument: Option<String>,
    /// Name of the queue its calls wait in.
    #[serde(default)]
    pub queue: Option<String>,
    /// How long a successful result may be served again, or `off`.
    #[serde(default, alias = "cache_ttl", alias = "cacheTtl", deserialize_with = "cache")]
    pub cache: Option<Duration>,
    /// Whether private addresses are open; overrides the provider's policy.
    #[serde(default, alias = "allowPrivate")]
    pub allow_private: Option<bool>,
    /// Hosts that are open all the same; overrides the provider's policy.
    #[serde(default, alias = "allowedHosts")]
    pub allowed_hosts: Option<Vec<String>>,
    /// The entry as its author wrote it, before environment variables were expanded. The loader sets it,
    /// so that the contract covers the whole text and holds no secret. Without it the contract covers
    /// what cannot be one: see `RestProvider`.
    #[serde(skip)]
    pub written: Option<Value>,
}

/// A value of the query.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryValue {
    /// A template, or a fixed scalar or list.
    pub value: Value,
    /// How lists and objects are written. Default: `form`.
    pub style: Style,
    /// Whether each item is a pair of its own. Default: yes for `form` and `deepObject`.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

fn get() -> String {
    "GET".to_owned()
}

fn cache<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    match Option::<Value>::deserialize(deserializer)? {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(Value::String(text)) if text == "off" => Ok(None),
        Some(written) => duration::option::deserialize(written).map_err(serde::de::Error::custom),
    }
}
