//! `openapi`: documents whose operations are tools.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sections::EffectFlags;
use super::tools::RestResponse;
use toolwright_core::setting::{CacheTtl, TimeSpan, Written};

/// One `OpenAPI` 3.0 or 3.1 document. Its operations are tools of the namespace that the entry is called.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenApiEntry {
    /// Whether it is used. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The document, JSON or YAML: a file, relative to the configuration's folder, or an http(s) address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// Headers of the request for a document at an address; `${VAR}` is filled in.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub document_headers: IndexMap<String, Written>,
    /// Namespace of the tools. Default: the entry's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Address of the API, instead of the document's servers. Needed where those are relative, and before credentials
    /// go to another host than the one that a document at an address comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Values for the variables of the document's servers. Default: the document's own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub server_variables: BTreeMap<String, Written>,
    /// Tags of the operations that are offered, as globs; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// HTTP methods of the operations that are offered; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Operations that are offered, as globs on `operationId`; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operations_allowed: Vec<String>,
    /// Operations that are not offered, as globs; counts after `operations_allowed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operations_denied: Vec<String>,
    /// How tools are grouped: `none`, the default, or by their first `tag`, into namespaces `{name}-{tag}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_by: Option<OpenApiGrouping>,
    /// Headers of every request; `${VAR}` is filled in. A parameter of that name is not asked for then.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub headers: IndexMap<String, Written>,
    /// Credentials, by the name that the document gives the security scheme.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub auth: BTreeMap<String, OpenApiAuth>,
    /// Settings of single operations, by `operationId` or like `GET /path`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub operations: BTreeMap<String, OpenApiOperation>,
    /// Whether the document's schemas of responses are promised to clients as those of results, where there is one kind of
    /// answer. Default false: servers answer otherwise than their documents say, and clients refuse such results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schemas: Option<bool>,
    /// How responses are read. Default `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<RestResponse>,
    /// Limit of one call. Default: `defaults.tool_timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeSpan>,
    /// How long a call may go on without a report of progress. Default: `defaults.idle_timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<TimeSpan>,
    /// How often a failed call is tried again where that is safe. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub retries: Option<u32>,
    /// Bytes of a response that are read. Default 2 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub max_bytes: Option<usize>,
    /// Cap on the text of a result, in bytes. Default: `defaults.tool_response_max_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub max_output: Option<usize>,
    /// Queue its calls wait in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How long a successful result of an operation that only reads may be served again: a duration, or `off`, the
    /// default. Others are cached where `operations` says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheTtl>,
    /// Roles that may use its tools; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_roles: Vec<String>,
    /// Whether private addresses are open to it. Default: `web.allow_private`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_private: Option<bool>,
    /// Hosts that are open all the same. Default: `web.allowed_hosts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_hosts: Option<Vec<String>>,
}

/// How the tools of a document are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OpenApiGrouping {
    /// All in one namespace.
    None,
    /// By the first tag.
    Tag,
}

/// Credentials of a security scheme: a `token`, or `username` and `password`, or `client_id` and `client_secret`. `${VAR}`
/// is filled in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenApiAuth {
    /// API key or bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Written>,
    /// User, for `basic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<Written>,
    /// Password, for `basic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Written>,
    /// Client, for tokens by the client credentials grant of `OAuth` 2.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<Written>,
    /// Its secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<Written>,
    /// Where tokens are had. Default: what a document in a file says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_url: Option<String>,
    /// Scopes to ask for. Default: all that the operations require.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
}

/// Settings of one operation; what is left out is the entry's or the document's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenApiOperation {
    /// Whether it is offered. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Name of the tool. Default: its `operationId`, else method and path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Title. Default: its `summary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it does, for the model that chooses. Default: the document's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What a call may do. Default: GET, HEAD and OPTIONS only read, all else may destroy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<EffectFlags>,
    /// Labels, besides the document's tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Roles that may use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_roles: Vec<String>,
    /// Media type of its body, where it takes several. Default: JSON before forms, parts, text and bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// How its response is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<RestResponse>,
    /// The part of a JSON response that is the result, like `/items/*/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub select: Option<String>,
    /// Limit of one call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeSpan>,
    /// How long a call may go on without a report of progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<TimeSpan>,
    /// How often a failed call is tried again where that is safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub retries: Option<u32>,
    /// Queue its calls wait in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How long a successful result may be served again, or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheTtl>,
    /// Cap on the text of a result, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub max_output: Option<usize>,
}
