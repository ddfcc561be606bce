//! The configuration of a document.

use std::collections::BTreeMap;
use std::path::PathBuf;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use toolwright_core::Effects;
use toolwright_core::canonical::ContentHash;
use toolwright_core::definition::{Guidance, ToolLimits};
use toolwright_core::setting::{CacheTtl, LiteralText};

use super::document::Origin;
use crate::rest::ResponseFormat;
use toolwright_net::AddressPolicy;

/// One `OpenAPI` 3.0 or 3.1 document. Its operations are tools of the namespace that the entry is called.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct OpenApiConfig {
    /// Name of the provider, and namespace of its tools; with [`GroupBy::Tag`] what their namespaces begin with. In a
    /// configuration it is `prefix`, or the entry's key.
    #[serde(skip)]
    pub name: String,
    /// What defines it, see [`Provider::defined_in`](toolwright_core::catalogue::Provider::defined_in).
    #[serde(skip)]
    pub defined_in: String,
    /// What its content must be, as [`content_hash`](super::content_hash) tells it; any if `None`. For a document in a file.
    #[serde(skip)]
    pub approved: Option<ContentHash>,
    /// Which addresses are open. In a configuration it is what `allow_private` and `allowed_hosts` make of that of `web`.
    #[serde(skip)]
    pub address: AddressPolicy,
    /// Whether it is used. Default true.
    pub enabled: bool,
    /// The document, JSON or YAML: a file, relative to the configuration's folder, or an http(s) address.
    #[schemars(with = "Option<String>", extend("x-variables" = "setting"))]
    pub document: Origin,
    /// Headers of the request for a document at an address; `${VAR}` is filled in.
    #[schemars(with = "IndexMap<String, LiteralText>", extend("x-variables" = "pair"))]
    pub document_headers: IndexMap<String, String>,
    /// Namespace of the tools. Default: the entry's name.
    pub prefix: Option<String>,
    /// Address of the API, instead of the document's servers. Required if those are relative. For a document at an
    /// address it is also required before credentials are sent to a host other than the document's.
    #[schemars(extend("x-variables" = "setting"))]
    pub base_url: Option<String>,
    /// Values for the variables of the document's servers. Default: the document's own.
    #[schemars(with = "BTreeMap<String, LiteralText>", extend("x-variables" = "setting"))]
    pub server_variables: BTreeMap<String, String>,
    /// Which operations are offered.
    #[serde(flatten)]
    pub filter: Filter,
    /// How tools are grouped: `none`, the default, or by their first `tag`, into namespaces `{name}-{tag}`.
    pub group_by: GroupBy,
    /// Headers of every request; `${VAR}` is filled in. A parameter of the same name is then not an argument of the
    /// tool.
    #[schemars(with = "IndexMap<String, LiteralText>", extend("x-variables" = "pair"))]
    pub headers: IndexMap<String, String>,
    /// Credentials, by the name that the document gives the security scheme.
    pub auth: BTreeMap<String, Auth>,
    /// Settings of single operations, by `operationId` or like `GET /path`.
    pub operations: BTreeMap<String, Operation>,
    /// Whether the document's response schemas are announced to clients as output schemas, for operations with one kind
    /// of response. Default false: many servers deviate from their documents, and clients then refuse the results.
    pub output_schemas: bool,
    /// What holds for all operations that do not say otherwise. Of the cache it holds for those that only read.
    #[serde(flatten)]
    pub calls: CallConfig,
    /// How many bytes of a response are read at most. Default 2 MiB.
    #[schemars(range(min = 256))]
    pub max_bytes: Option<usize>,
    /// Whether it may reach private addresses. Default: `web.allow_private`.
    pub allow_private: Option<bool>,
    /// Hosts that it may reach even at private addresses. Default: `web.allowed_hosts`.
    pub allowed_hosts: Option<Vec<String>>,
}

impl Default for OpenApiConfig {
    fn default() -> Self {
        Self::new("", Origin::File(PathBuf::new()))
    }
}

impl OpenApiConfig {
    /// Creates an entry with only the document's location.
    #[must_use]
    pub fn new(name: impl Into<String>, document: Origin) -> Self {
        Self {
            name: name.into(),
            defined_in: String::new(),
            approved: None,
            address: AddressPolicy::default(),
            enabled: true,
            document,
            document_headers: IndexMap::new(),
            prefix: None,
            base_url: None,
            server_variables: BTreeMap::new(),
            filter: Filter::default(),
            group_by: GroupBy::default(),
            headers: IndexMap::new(),
            auth: BTreeMap::new(),
            operations: BTreeMap::new(),
            output_schemas: false,
            calls: CallConfig::default(),
            max_bytes: None,
            allow_private: None,
            allowed_hosts: None,
        }
    }
}

/// Which operations of a document become tools. An empty list is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Filter {
    /// Tags of the operations that are offered, as globs; empty: all.
    pub tags: Vec<String>,
    /// HTTP methods of the operations that are offered; empty: all.
    // In upper or lower case.
    pub methods: Vec<String>,
    /// Operations that are offered, as globs on `operationId`; empty: all.
    #[serde(rename = "operations_allowed")]
    pub allowed: Vec<String>,
    /// Operations that are not offered, as globs; counts after `operations_allowed`.
    #[serde(rename = "operations_denied")]
    pub denied: Vec<String>,
}

/// How the tools of a document are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupBy {
    /// All in one namespace.
    #[default]
    None,
    /// By the first tag.
    Tag,
}

/// The credentials of a security scheme.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawAuth")]
pub enum Auth {
    /// The key, bearer token or other value, as it is sent.
    Token(String),
    /// User name and password.
    Basic {
        /// The user name.
        username: String,
        /// The password.
        password: String,
    },
    /// A token from the OAuth 2.0 client credentials grant.
    ClientCredentials {
        /// The client id.
        client_id: String,
        /// The client's secret.
        client_secret: String,
        /// The token endpoint. Default: as the document says.
        token_url: Option<String>,
        /// The requested scopes. Default: all that the operations require.
        scopes: Option<Vec<String>>,
    },
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token",
            Self::Basic { .. } => "Basic",
            Self::ClientCredentials { .. } => "ClientCredentials",
        })
    }
}

impl JsonSchema for Auth {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Auth".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        RawAuth::json_schema(generator)
    }
}

/// Credentials of a security scheme: a `token`, or `username` and `password`, or `client_id` and `client_secret`. `${VAR}`
/// is filled in.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct RawAuth {
    /// API key or bearer token.
    #[schemars(with = "Option<LiteralText>", extend("x-variables" = "secret"))]
    token: Option<String>,
    /// User, for `basic`.
    #[schemars(with = "Option<LiteralText>", extend("x-variables" = "own_pair"))]
    username: Option<String>,
    /// Password, for `basic`.
    #[schemars(with = "Option<LiteralText>", extend("x-variables" = "secret"))]
    password: Option<String>,
    /// Client, for tokens by the client credentials grant of `OAuth` 2.0.
    #[schemars(with = "Option<LiteralText>", extend("x-variables" = "own_pair"))]
    client_id: Option<String>,
    /// The client's secret.
    #[schemars(with = "Option<LiteralText>", extend("x-variables" = "secret"))]
    client_secret: Option<String>,
    /// The token endpoint. Default: what a document in a file says.
    #[schemars(extend("x-variables" = "setting"))]
    token_url: Option<String>,
    /// The requested scopes. Default: all that the operations require.
    scopes: Option<Vec<String>>,
}

impl TryFrom<RawAuth> for Auth {
    type Error = &'static str;

    fn try_from(written: RawAuth) -> Result<Self, &'static str> {
        let RawAuth { token, username, password, client_id, client_secret, token_url, scopes } = written;
        match (token, (username, password), (client_id, client_secret)) {
            (Some(token), (None, None), (None, None)) => Ok(Self::Token(token)),
            (None, (Some(username), Some(password)), (None, None)) => Ok(Self::Basic { username, password }),
            (None, (None, None), (Some(client_id), Some(client_secret))) => {
                Ok(Self::ClientCredentials { client_id, client_secret, token_url, scopes })
            }
            _ => Err("these credentials are not whole, or of two kinds"),
        }
    }
}

/// Settings of one operation; what is left out is the entry's or the document's.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Operation {
    /// Whether it is offered. Default true.
    pub enabled: Option<bool>,
    /// Name of the tool. Default: its `operationId`, else method and path.
    pub name: Option<String>,
    /// Title. Default: its `summary`.
    pub title: Option<String>,
    /// What it does, for the model that chooses. Default: the document's.
    pub description: Option<String>,
    /// What a call may do. Default: GET, HEAD and OPTIONS only read, all else may destroy.
    pub effects: Option<Effects>,
    /// Labels, besides the document's tags.
    pub tags: Vec<String>,
    /// Media type of its body, where it takes several. Default: JSON before forms, parts, text and bytes.
    pub content_type: Option<String>,
    /// The part of a JSON response that is the result, like `/items/*/name`.
    // A [`Selection`](crate::rest::Selection).
    pub select: Option<String>,
    /// How its results come back, and how it is explained.
    #[serde(flatten)]
    pub guidance: Guidance,
    /// How it is called.
    #[serde(flatten)]
    pub calls: CallConfig,
}

/// How operations are called. What is `None` is left to the document, or to the provider.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CallConfig {
    /// How responses are read. Default `auto`.
    pub response: Option<ResponseFormat>,
    /// The limits of calls.
    #[serde(flatten)]
    pub limits: ToolLimits,
    /// How long a successful result is cached: a duration, or `off`, the default. For a whole document it applies only
    /// to operations that only read.
    pub cache: Option<CacheTtl>,
    /// Roles that may use it; empty: all.
    pub allowed_roles: Vec<String>,
}

impl CallConfig {
    /// Merges these settings with those of the whole document. The cache setting of the latter applies only to
    /// read-only operations, which are determined later.
    #[must_use]
    pub(super) fn or(self, document: &Self) -> Self {
        Self {
            response: self.response.or(document.response),
            limits: self.limits.or(&document.limits),
            cache: self.cache,
            allowed_roles: if self.allowed_roles.is_empty() {
                document.allowed_roles.clone()
            } else {
                self.allowed_roles
            },
        }
    }
}
