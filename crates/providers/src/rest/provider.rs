//! The provider `rest`, and one call of its tools: request, credentials and response.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use toolwright_core::catalogue::{CallLimits, RegistrationError};
use toolwright_core::{
    ContentHash, Effects, ErrorKind, Health, Principal, Provider, ProviderCall, ProviderError, ProviderKind,
    RegisteredTool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_net::{AddressPolicy, Bounds, HttpClient, HttpOptions, HttpRequest, HttpResponse};

use crate::rest::config::{ResponseFormat, RestToolConfig};
use crate::rest::credential::Credential;
use crate::rest::entry::{self, declaration};
use crate::rest::reply::{ResponseReading, Selection, StreamAssembly};
use crate::rest::request::RequestTemplate;
use crate::rest::{FieldError, RestError};

const NAME: &str = "rest";
const VERSION: &str = "1.0.0";
/// The default limit on a response, in bytes.
pub(crate) const MAX_BYTES: usize = 2 << 20;
/// The default number of retries of a failed call, if they are safe.
pub(crate) const RETRIES: u32 = 1;

/// Defaults for all entries.
#[derive(Debug, Clone)]
pub struct RestOptions {
    /// The allowed addresses.
    pub address: AddressPolicy,
    /// The limit on a response, in bytes. Default: 2 MiB.
    pub max_bytes: usize,
    /// Resolver and proxies.
    pub http: HttpOptions,
}

impl Default for RestOptions {
    fn default() -> Self {
        Self { address: AddressPolicy::default(), max_bytes: MAX_BYTES, http: HttpOptions::default() }
    }
}

/// The REST tools of the configuration: provider and namespace `rest`, ids `rest:<name>@1.0.0`.
///
/// A call other than GET, HEAD, OPTIONS, PUT or DELETE sends its idempotency key as `Idempotency-Key`; all send
/// `traceparent` if there is one. An entry's own header of that name has precedence.
///
/// A definition's `declaration` contains method, URL, headers, query and body as written, if the loader kept the text
/// ([`RestToolConfig::written`]). Otherwise it leaves out literals of headers, query and body, which may contain
/// expanded secrets, so changing them does not change the contract.
pub struct RestProvider {
    tools: HashMap<String, HttpTool>,
    listed: Vec<Arc<RegisteredTool>>,
    warnings: Vec<String>,
    credential_scope: ContentHash,
    /// The host of each tool with a fixed one.
    hosts: HashMap<ToolId, String>,
}

impl fmt::Debug for RestProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestProvider").field("tools", &self.listed).finish_non_exhaustive()
    }
}

impl RestProvider {
    /// Compiles the entries, in order. Connects to nothing.
    ///
    /// # Errors
    /// The error of the first invalid entry. Build entries one at a time to leave out invalid ones.
    pub fn new(tools: Vec<(String, RestToolConfig)>, options: &RestOptions) -> Result<Self, RestError> {
        let credential_scope = credential_scope(&tools);
        let mut provider = Self {
            tools: HashMap::new(),
            listed: Vec::new(),
            warnings: Vec::new(),
            credential_scope,
            hosts: HashMap::new(),
        };
        let mut clients: Vec<Arc<HttpClient>> = Vec::new();
        let mut names: HashMap<ToolId, String> = HashMap::new();
        for (name, config) in tools {
            let host = host_of(&config.url).map(str::to_owned);
            let (definition, tool) = compile(&name, config, options, &mut clients)?;
            if let Some(first) = names.insert(definition.id.clone(), name.clone()) {
                return Err(RestError::Collision { first, second: name, id: definition.id.to_string() });
            }
            provider.hosts.extend(host.map(|host| (definition.id.clone(), host)));
            provider.warnings.extend(unused(&name, &definition, &tool.request));
            let registered = RegisteredTool::own_named(definition, &*name)
                .map_err(|error| RestError::Registration { tool: name.clone(), error })?;
            provider.listed.push(registered);
            provider.tools.insert(name, tool);
        }
        Ok(provider)
    }

    /// Returns warnings about entries that work.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

#[async_trait]
impl Provider for RestProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Rest
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(self.listed.clone())
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        match self.tools.get(call.raw_name) {
            Some(tool) => tool.call(&call, context).await,
            None => Err(ToolError::new(
                ErrorKind::InternalError,
                format!("the REST provider has no tool `{}`", call.raw_name),
            )),
        }
    }

    fn peer(&self, tool: &ToolId) -> Option<&str> {
        self.hosts.get(tool).map(String::as_str)
    }

    fn limits(&self) -> CallLimits {
        CallLimits { retries: Some(RETRIES), ..CallLimits::default() }
    }

    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        Some(self.credential_scope)
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}

/// Returns a hash of everything in the entries that may contain a secret.
fn credential_scope(tools: &[(String, RestToolConfig)]) -> ContentHash {
    let part = |(name, config): &(String, RestToolConfig)| {
        let query: Vec<_> = config.query.iter().map(|(name, query)| (name, &query.value)).collect();
        json!([name, config.url, config.headers, query, config.body])
    };
    ContentHash::of_value(&tools.iter().map(part).collect())
}

/// Returns the definition of an entry, and the parts that make its calls.
///
/// # Errors
/// The error in it.
pub(crate) fn compile(
    name: &str,
    config: RestToolConfig,
    options: &RestOptions,
    clients: &mut Vec<Arc<HttpClient>>,
) -> Result<(ToolDefinition, HttpTool), RestError> {
    let registration = |error: RegistrationError| RestError::Registration { tool: name.to_owned(), error };
    let id = tool_id(name)?;
    let Some(schema) = &config.parameters else {
        return Err(registration(RegistrationError::MissingSchema(id)));
    };
    let request = entry::compile(&config, schema).map_err(|complaint| complaint.of_tool(name))?;
    let policy = AddressPolicy {
        allow_private: config.allow_private.unwrap_or(options.address.allow_private),
        allowed_hosts: config.allowed_hosts.clone().unwrap_or_else(|| options.address.allowed_hosts.clone()),
    };
    let select = config.select.as_deref().map(Selection::parse).transpose();
    let select = select.map_err(|reason| FieldError::new("select", reason).of_tool(name))?;
    let stream = config.stream.as_ref().map(|stream| {
        let parse = |(field, path): (&str, &Option<String>)| {
            let path = path.as_deref().map(Selection::parse).transpose();
            path.map_err(|reason| FieldError::new(field, reason).of_tool(name))
        };
        Ok(StreamAssembly {
            answer: parse(("stream.answer", &stream.answer))?,
            done: parse(("stream.done", &stream.done))?,
        })
    });
    let stream = stream.transpose()?;
    without_effect(&config).map_err(|(field, reason)| FieldError::new(field, reason).of_tool(name))?;
    let client = client_of(policy, options, clients);
    let tool = HttpTool {
        reading: ResponseReading {
            format: config.response,
            max_bytes: config.max_bytes.unwrap_or(options.max_bytes).max(1),
            structured: config.output_schema.is_some(),
            select,
            stream,
        },
        client,
        settings: format!("restTools.{name}").into(),
        request,
        credentials: Vec::new(),
    };
    Ok((definition(id, config, &tool.request.method), tool))
}

/// Returns the client of that policy, which is created at first use.
fn client_of(policy: AddressPolicy, options: &RestOptions, clients: &mut Vec<Arc<HttpClient>>) -> Arc<HttpClient> {
    if let Some(client) = clients.iter().find(|client| *client.policy() == policy) {
        return Arc::clone(client);
    }
    let client = Arc::new(HttpClient::new(policy, options.http.clone()));
    clients.push(Arc::clone(&client));
    client
}

/// Checks that no setting is useless for this tool's responses.
///
/// # Errors
/// The setting, and the reason.
fn without_effect(config: &RestToolConfig) -> Result<(), (&'static str, &'static str)> {
    match config.response {
        ResponseFormat::Text if config.select.is_some() => {
            Err(("select", "it has no effect on a response that is read as text: set `response: json`"))
        }
        ResponseFormat::Text | ResponseFormat::Json if config.stream.is_some() => {
            Err(("stream", "it has no effect on a response that is no stream: set `response: json_lines` or `events`"))
        }
        ResponseFormat::Text if config.output_schema.is_some() => {
            Err(("output_schema", "a response that is read as text has no structured value: set `response: json`"))
        }
        _ => Ok(()),
    }
}

/// Returns host and port of an address; `None` if an argument determines them.
fn host_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next()?;
    let host = host.rsplit('@').next()?;
    (!host.is_empty() && !host.contains("${")).then_some(host)
}

/// Returns `rest:<name>@1.0.0`, with `_` for characters that are invalid in an id.
fn tool_id(name: &str) -> Result<ToolId, RestError> {
    let id = ToolId::foreign(NAME, name).and_then(|id| ToolId::format(NAME, id.name(), VERSION));
    id.map_err(|error| RestError::Field { tool: name.to_owned(), field: "name".into(), reason: error.to_string() })
}

fn definition(id: ToolId, config: RestToolConfig, method: &Method) -> ToolDefinition {
    let declaration = declaration(&config, method);
    let mut definition = ToolDefinition::new(id, config.description, config.parameters);
    definition.title = config.title;
    definition.output_schema = config.output_schema;
    definition.effects = config.effects.unwrap_or(if method.is_safe() { Effects::FETCH } else { Effects::UNKNOWN });
    definition.tags = config.tags;
    definition.aliases = config.aliases;
    definition.allowed_roles = config.allowed_roles;
    definition.examples = config.examples;
    definition.safe = config.safe;
    definition.strict = config.strict;
    definition.concurrency = config.concurrency;
    config.guidance.apply(&mut definition);
    definition.body_argument = config.body_argument;
    config.limits.apply(&mut definition);
    definition.cache_ttl = config.cache.0;
    definition.declaration = Some(declaration);
    if matches!(config.response, ResponseFormat::Events | ResponseFormat::JsonLines) {
        definition.capabilities.insert("streaming".into(), Value::Bool(true));
    }
    definition
}

/// Returns warnings about arguments that the request does not use.
fn unused(name: &str, definition: &ToolDefinition, request: &RequestTemplate) -> Vec<String> {
    let used = request.parameters();
    let properties =
        definition.parameters.as_ref().and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    properties
        .into_iter()
        .flat_map(|properties| properties.keys())
        .filter(|property| used.iter().all(|parameter| parameter.root() != property.as_str()))
        .map(|property| format!("restTools.{name}: the parameter `{property}` is not used in url, headers, query or body, so it is never sent"))
        .collect()
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Makes the calls of one tool.
pub(crate) struct HttpTool {
    pub(crate) request: RequestTemplate,
    pub(crate) credentials: Vec<Credential>,
    pub(crate) reading: ResponseReading,
    pub(crate) client: Arc<HttpClient>,
    /// The configuration section of its settings, for remedies.
    pub(crate) settings: Arc<str>,
}

impl HttpTool {
    /// Runs one call.
    ///
    /// # Errors
    /// Errors of a tool call, with a kind that shows whether it was executed.
    pub(crate) async fn call(&self, call: &ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut request = self
            .request
            .render(&call.arguments)
            .map_err(|message| ToolError::new(ErrorKind::InvalidParameters, message))?;
        let method = request.method.clone();
        let mut add = |name: HeaderName, value: &str| {
            // A header argument that the caller omitted must not be set by anything else.
            if !request.headers.contains_key(&name)
                && let Ok(value) = HeaderValue::from_str(value)
            {
                request.headers.insert(name, value);
            }
        };
        if !is_idempotent(&method) {
            add(IDEMPOTENCY_KEY, call.idempotency_key);
        }
        if let Some(traceparent) = &context.traceparent {
            add(TRACEPARENT, traceparent);
        }
        let mut response = self.send(&request, context).await?;
        // The issuer has revoked the token early. The request was refused, so it may be sent again with a fresh token.
        if response.status() == StatusCode::UNAUTHORIZED && self.forget_tokens().await {
            response = self.send(&request, context).await?;
        }
        self.reading.read(&method, response, context).await.map_err(|error| error.into_tool_error(&self.settings))
    }

    async fn send(&self, request: &HttpRequest, context: &ToolContext) -> Result<HttpResponse, ToolError> {
        let mut request = request.clone();
        for credential in &self.credentials {
            credential.apply(&mut request, &self.client, &self.settings, context).await?;
        }
        let response = self.client.send(request, Bounds::of(context)).await;
        response.map_err(|error| error.into_tool_error(&self.settings))
    }

    /// Forgets fetched tokens. Returns whether there were any.
    async fn forget_tokens(&self) -> bool {
        let mut forgot = false;
        for credential in &self.credentials {
            forgot |= credential.forget().await;
        }
        forgot
    }
}

/// Returns whether a request of this method may be repeated (RFC 9110 section 9.2.2; QUERY:
/// draft-ietf-httpbis-safe-method-w-body). Unknown methods may not.
fn is_idempotent(method: &Method) -> bool {
    const IDEMPOTENT: [Method; 6] =
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];
    IDEMPOTENT.contains(method) || method.as_str() == "QUERY"
}
