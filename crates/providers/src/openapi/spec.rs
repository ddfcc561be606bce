//! A document as it is configured.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwright_core::Effects;
use toolwright_core::canonical::ContentHash;

use super::document::Origin;
use crate::rest::ResponseFormat;
use toolwright_net::AddressPolicy;

/// One entry of `openapi`, environment variables expanded.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenApiSpec {
    /// Name of the provider, and namespace of its tools; with [`GroupBy::Tag`] what their namespaces begin with.
    pub name: String,
    /// What defines it, see [`Provider::defined_in`](toolwright_core::catalogue::Provider::defined_in).
    pub defined_in: String,
    /// Where the document is.
    pub document: Origin,
    /// What its content must be, as [`content_hash`](super::content_hash) tells it; any if `None`. For a document in a file.
    pub approved: Option<ContentHash>,
    /// Headers of the request for a document from the network.
    pub document_headers: Vec<(String, String)>,
    /// Replaces the servers of the document.
    pub base_url: Option<String>,
    /// Values for the variables of its servers.
    pub server_variables: BTreeMap<String, String>,
    /// Which operations are offered.
    pub filter: Filter,
    /// How its tools are grouped.
    pub group_by: GroupBy,
    /// Headers of every request.
    pub headers: Vec<(String, String)>,
    /// Credentials, by the name of the security scheme.
    pub auth: BTreeMap<String, Auth>,
    /// Settings of single operations, by `operationId` or `METHOD /path`.
    pub operations: BTreeMap<String, Operation>,
    /// What holds for all operations that do not say otherwise.
    pub defaults: Operation,
    /// Whether the schemas of results are the document's.
    pub results: ResultSchemas,
    /// Bytes of a response that are read. Default: 2 MiB.
    pub max_bytes: Option<usize>,
    /// Which addresses are open.
    pub address: AddressPolicy,
}

impl OpenApiSpec {
    /// An entry that says nothing but where the document is.
    #[must_use]
    pub fn new(name: impl Into<String>, document: Origin) -> Self {
        Self {
            name: name.into(),
            defined_in: String::new(),
            document,
            approved: None,
            document_headers: Vec::new(),
            base_url: None,
            server_variables: BTreeMap::new(),
            filter: Filter::default(),
            group_by: GroupBy::default(),
            headers: Vec::new(),
            auth: BTreeMap::new(),
            operations: BTreeMap::new(),
            defaults: Operation::default(),
            results: ResultSchemas::default(),
            max_bytes: None,
            address: AddressPolicy::default(),
        }
    }
}

/// Which operations of a document become tools. An empty list is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Those with one of these tags, as globs without regard to case.
    pub tags: Vec<String>,
    /// Those of these HTTP methods, in any case.
    pub methods: Vec<String>,
    /// Those with such an `operationId` or name, as globs.
    pub allowed: Vec<String>,
    /// Not those, whatever else holds.
    pub denied: Vec<String>,
}

/// How tools are grouped into namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupBy {
    /// All in one.
    #[default]
    None,
    /// By the first tag of each: `{name}-{tag}`.
    Tag,
}

/// What becomes of the schemas that a document gives of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResultSchemas {
    /// Nothing. Servers answer otherwise than their documents say, and clients that are promised a structured result take
    /// no other.
    #[default]
    Left,
    /// They are the tools' output schemas, where there is one kind of answer.
    Kept,
}

/// Credentials of one security scheme.
#[derive(Clone, PartialEq, Eq)]
pub enum Auth {
    /// The key, bearer token or other value as it is sent.
    Token(String),
    /// User and password.
    Basic {
        /// User.
        username: String,
        /// Password.
        password: String,
    },
    /// A token by the OAuth 2.0 client credentials grant.
    ClientCredentials {
        /// Client.
        client_id: String,
        /// Its secret.
        client_secret: String,
        /// Where tokens are had. Default: as the document says.
        token_url: Option<String>,
        /// Scopes to ask for. Default: all that the operations require.
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

/// Settings of an operation. What is `None` is left to the document, or to the provider.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Operation {
    /// `false` leaves it out.
    pub enabled: Option<bool>,
    /// Name, instead of its `operationId`.
    pub name: Option<String>,
    /// Title, instead of its `summary`.
    pub title: Option<String>,
    /// What a model reads, instead of the document's words.
    pub description: Option<String>,
    /// Effects. Default: by its method.
    pub effects: Option<Effects>,
    /// More labels.
    pub tags: Vec<String>,
    /// Roles that may use it.
    pub allowed_roles: Vec<String>,
    /// The media type of its body, where it takes several.
    pub content_type: Option<String>,
    /// How its response is read.
    pub response: Option<ResponseFormat>,
    /// The part of a JSON response that is the result: a [`Selection`](crate::rest::Selection).
    pub select: Option<String>,
    /// Limit of one call.
    pub timeout: Option<Duration>,
    /// How long a call may go on without a report of progress.
    pub idle_timeout: Option<Duration>,
    /// How often a failed call is tried again where that is safe.
    pub retries: Option<u32>,
    /// Queue of its calls.
    pub queue: Option<String>,
    /// How long a successful result may be served again; `Some(None)` is never. Among [`OpenApiSpec::defaults`] it covers
    /// operations that only read.
    pub cache: Option<Option<Duration>>,
    /// Cap on the text of a result, in bytes.
    pub max_output: Option<usize>,
}

impl Operation {
    /// These settings, and `defaults` where they say nothing. Names, titles and descriptions have no default; what
    /// `defaults` say of the cache holds for operations that only read, and is looked at once it is known which do.
    #[must_use]
    pub(super) fn or(self, defaults: &Self) -> Self {
        let mut tags = self.tags;
        tags.extend(defaults.tags.iter().cloned());
        Self {
            enabled: self.enabled.or(defaults.enabled),
            name: self.name,
            title: self.title,
            description: self.description,
            effects: self.effects.or(defaults.effects),
            tags,
            allowed_roles: if self.allowed_roles.is_empty() {
                defaults.allowed_roles.clone()
            } else {
                self.allowed_roles
            },
            content_type: self.content_type,
            response: self.response.or(defaults.response),
            select: self.select,
            timeout: self.timeout.or(defaults.timeout),
            idle_timeout: self.idle_timeout.or(defaults.idle_timeout),
            retries: self.retries.or(defaults.retries),
            queue: self.queue.or_else(|| defaults.queue.clone()),
            cache: self.cache,
            max_output: self.max_output.or(defaults.max_output),
        }
    }
}
