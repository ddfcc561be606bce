//! The provider of one configured document, and the settings that match nothing in it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use toolwright_core::catalogue::{CallLimits, ChangeNotifier, WithheldTool};
use toolwright_core::event::{Event, NoEvents};
use toolwright_core::pattern::{glob_match, nearest};
use toolwright_core::store::NoStore;
use toolwright_core::{
    Cancel, ContentHash, ErrorKind, Health, Principal, Provider, ProviderCall, ProviderError, ProviderKind,
    RegisteredTool, ToolContext, ToolError, ToolOutput,
};
use toolwright_net::{Bounds, HttpClient, HttpOptions, HttpRequest, decode_text};
use url::Url;

use crate::DocumentOptions;
use crate::list_retry::ListRetry;
use crate::openapi::config::{Auth, Filter, GroupBy, OpenApiConfig};
use crate::openapi::document::{Document, MAX_BYTES, OpenApiError, Origin, read_file};
use crate::openapi::import::{FoundOperation, Import, import, tags};
use crate::openapi::security;
use crate::rest::{HttpTool, RETRIES};

/// Time limit of fetching a document.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest document that is stored for the next start, in bytes.
const MAX_KEPT: usize = 16 << 20;

/// The operations of one document as tools. The document is read for each list, so that a refresh sees changes; calls
/// use the last list.
///
/// A document that cannot be read is requested again with growing pauses of at most five minutes. Tools of a fetched
/// document stay available, with a warning, while its address fails. Its text is stored up to 16 MiB, for use at the
/// next start. The document is only read for a list, because large ones take long.
pub struct OpenApiProvider {
    config: OpenApiConfig,
    options: DocumentOptions,
    client: Arc<HttpClient>,
    credential_scope: ContentHash,
    state: Mutex<State>,
    retry: ListRetry,
    /// Held by a call that precedes the first list.
    first: tokio::sync::Mutex<()>,
    /// Held while a document is read, which continues even if nobody waits for it, so that no other is read
    /// concurrently.
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    /// The tools by name: the hash of the definition, and the implementation of that definition; `None` before the
    /// first list.
    tools: Option<Arc<HashMap<String, (ContentHash, HttpTool)>>>,
    /// The tools as listed.
    listed: Vec<Arc<RegisteredTool>>,
    health: Option<Health>,
    about: Option<String>,
    withheld: Vec<WithheldTool>,
    issues: Vec<String>,
}

/// The basis of a list.
enum ListBasis {
    /// A document that was read for it.
    Read(Import),
    /// The result of the previous list.
    Listed(Vec<Arc<RegisteredTool>>),
}

/// A document that was read or fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedDocument {
    /// Its text.
    pub text: String,
    /// Its location: its file, or the final address after redirects.
    pub origin: Origin,
}

impl fmt::Debug for OpenApiProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenApiProvider").field("name", &self.config.name).finish_non_exhaustive()
    }
}

impl OpenApiProvider {
    /// Creates a provider that stores nothing. Reads nothing yet.
    #[must_use]
    pub fn new(config: OpenApiConfig, http: HttpOptions) -> Arc<Self> {
        Self::with(config, DocumentOptions { manifests: Arc::new(NoStore), events: Arc::new(NoEvents), http })
    }

    /// Creates a provider. Reads nothing yet.
    #[must_use]
    pub fn with(config: OpenApiConfig, options: DocumentOptions) -> Arc<Self> {
        let client = Arc::new(HttpClient::new(config.address.clone(), options.http.clone()));
        let credential_scope = credential_scope(&config);
        Arc::new(Self {
            config,
            options,
            client,
            credential_scope,
            state: Mutex::default(),
            retry: ListRetry::default(),
            first: tokio::sync::Mutex::default(),
            reading: Arc::default(),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tools(&self) -> Option<Arc<HashMap<String, (ContentHash, HttpTool)>>> {
        self.state().tools.clone()
    }

    /// Returns the present import of the document, or else the last one with the reason.
    async fn current(&self) -> Result<(ListBasis, Option<String>), OpenApiError> {
        let error = match self.fetched().await {
            Ok((import, fetched)) => {
                self.keep(&fetched).await;
                return Ok((ListBasis::Read(import), None));
            }
            Err(error) => error,
        };
        let Origin::Url(address) = &self.config.document else { return Err(error) };
        let last = match self.listed() {
            Some(listed) => ListBasis::Listed(listed),
            None => match self.stored_import(address).await {
                Some(import) => ListBasis::Read(import),
                None => return Err(error),
            },
        };
        Ok((last, Some(error.to_string())))
    }

    /// Returns the last list.
    fn listed(&self) -> Option<Vec<Arc<RegisteredTool>>> {
        let state = self.state();
        state.tools.is_some().then(|| state.listed.clone())
    }

    async fn fetched(&self) -> Result<(Import, FetchedDocument), OpenApiError> {
        let fetched = text(&self.config, &self.client).await?;
        let import = self.read(fetched.clone()).await?;
        Ok((import, fetched))
    }

    async fn read(&self, fetched: FetchedDocument) -> Result<Import, OpenApiError> {
        let config = self.config.clone();
        let alone = Arc::clone(&self.reading).lock_owned().await;
        // Importing a large document would block other tasks.
        let read = tokio::task::spawn_blocking(move || {
            let _alone = alone;
            import(&config, &fetched.text, fetched.origin)
        });
        read.await.unwrap_or_else(|error| Err(OpenApiError::Syntax(format!("reading it broke off: {error}"))))
    }

    /// Returns the key of the stored document of this address. It contains more than the entry's name, because several
    /// projects share a store.
    fn key(&self, address: &Url) -> String {
        let entry = [address.as_str(), &self.config.defined_in].join(" ");
        format!("openapi:{}:{}", self.config.name, ContentHash::of_bytes(entry.trim_end().as_bytes()))
    }

    /// Returns the stored document of that address, imported.
    async fn stored_import(&self, address: &Url) -> Option<Import> {
        let kept = match self.options.manifests.manifest(&self.key(address)).await {
            Ok(kept) => kept?,
            Err(error) => {
                tracing::debug!(document = self.config.name, "the kept document was not read: {error}");
                return None;
            }
        };
        let field = |key: &str| kept.get(key).and_then(Value::as_str);
        let origin = Origin::Url(Url::parse(field("found")?).ok()?);
        let read = self.read(FetchedDocument { text: field("text")?.to_owned(), origin }).await;
        read.inspect_err(|error| tracing::warn!("the stored copy of openapi.{} is not used: {error}", self.config.name))
            .ok()
    }

    /// Stores the fetched document each time, because stored ones expire. A document that is too large also replaces an
    /// older one.
    async fn keep(&self, fetched: &FetchedDocument) {
        let (Origin::Url(address), Origin::Url(found)) = (&self.config.document, &fetched.origin) else { return };
        let (key, manifests) = (self.key(address), &self.options.manifests);
        let kept = match fetched.text.len() > MAX_KEPT {
            true => manifests.remove_manifest(&key).await.map(drop),
            false => manifests.set_manifest(&key, &json!({"found": found.as_str(), "text": fetched.text})).await,
        };
        if let Err(error) = kept {
            tracing::debug!(document = self.config.name, "the document was not kept: {error}");
        }
    }

    fn publish(&self, current: ListBasis, health: Health) -> Vec<Arc<RegisteredTool>> {
        let import = match current {
            ListBasis::Read(import) => import,
            ListBasis::Listed(listed) => {
                self.state().health = Some(health);
                return listed;
            }
        };
        let settings: Arc<str> = format!("openapi.{}", self.config.name).into();
        for warning in &import.warnings {
            tracing::warn!("{settings}: {warning}");
        }
        let mut listed = Vec::with_capacity(import.tools.len());
        let mut tools = HashMap::with_capacity(import.tools.len());
        for tool in import.tools {
            let entry = RegisteredTool::foreign_with_overrides(tool.definition, &*tool.raw_name, &tool.overrides);
            let made = tool.made.with(Arc::clone(&self.client), Arc::clone(&settings));
            tools.insert(tool.raw_name, (entry.source_hash(), made));
            listed.push(entry);
        }
        let mut state = self.state();
        state.tools = Some(Arc::new(tools));
        state.listed.clone_from(&listed);
        state.health = Some(health);
        state.about = import.about;
        state.issues = import.issues;
        state.withheld = import.refused.into_iter().map(Into::into).collect();
        listed
    }

    /// Records how the last list ended. Returns whether that is new.
    fn record_health(&self, health: &Health) -> bool {
        self.state().health.as_ref() != Some(health)
    }

    /// Lists it if that has not happened yet: a call of a tool that another provider of this name listed may come
    /// first.
    async fn first_list(&self) {
        if self.is_listed() {
            return;
        }
        let _first = self.first.lock().await;
        if !self.is_listed() {
            // The call reports the result.
            let _ = self.list().await;
        }
    }

    fn is_listed(&self) -> bool {
        let state = self.state();
        state.tools.is_some() || state.health.is_some()
    }
}

/// Reads a configured document from its file, or fetches it from its address under the entry's address policy.
///
/// # Errors
/// [`OpenApiError::Unreadable`] and [`OpenApiError::Unfetchable`].
pub async fn text(config: &OpenApiConfig, client: &HttpClient) -> Result<FetchedDocument, OpenApiError> {
    let url = match &config.document {
        Origin::File(path) => {
            let read = {
                let path = path.clone();
                tokio::task::spawn_blocking(move || read_file(&path)).await
            };
            let read = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            let unreadable = |error| OpenApiError::Unreadable { path: path.display().to_string(), error };
            return Ok(FetchedDocument { text: read.map_err(unreadable)?, origin: config.document.clone() });
        }
        Origin::Url(url) => url,
    };
    let mut shown = url.clone();
    shown.set_query(None);
    let failed = |reason: String, error| OpenApiError::Unfetchable { url: shown.to_string(), reason, error };
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, application/yaml, text/yaml, */*;q=0.5"));
    for (name, value) in &config.document_headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        let (Ok(name), Ok(mut value)) = (name, HeaderValue::from_bytes(value.as_bytes())) else {
            return Err(failed("a header that is configured for it cannot be sent".into(), None));
        };
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    let cancel = Cancel::new();
    let bounds = Bounds::new(&cancel, Some(Instant::now() + FETCH_TIMEOUT));
    let request = HttpRequest { method: Method::GET, url: url.clone(), headers, body: None };
    let response = client.send(request, bounds).await.map_err(|error| failed(error.to_string(), Some(error)))?;
    let (status, media_type, found) = (response.status(), response.media_type(), response.url().clone());
    if !status.is_success() {
        return Err(failed(format!("HTTP {status}"), None));
    }
    let body = response.read(MAX_BYTES, bounds).await.map_err(|error| failed(error.to_string(), Some(error)))?;
    if body.cut {
        return Err(failed(format!("it is larger than {MAX_BYTES} bytes"), None));
    }
    Ok(FetchedDocument { text: decode_text(&body.bytes, media_type.as_ref()), origin: Origin::Url(found) })
}

/// Returns a hash of the settings that affect calls or results but are not part of a definition: credentials, and the
/// operator's settings for servers and responses.
fn credential_scope(config: &OpenApiConfig) -> ContentHash {
    let auth = config.auth.iter().map(|(name, auth)| match auth {
        Auth::Token(token) => json!([name, token]),
        Auth::Basic { username, password } => json!([name, username, password]),
        Auth::ClientCredentials { client_id, client_secret, token_url, scopes } => {
            json!([name, client_id, client_secret, token_url, scopes])
        }
    });
    let document = match &config.document {
        Origin::File(path) => path.to_string_lossy(),
        Origin::Url(url) => url.as_str().into(),
    };
    let operations = config
        .operations
        .iter()
        .map(|(key, set)| json!([key, set.name, set.select, set.calls.response, set.content_type]));
    ContentHash::of_value(&json!([
        config.name,
        config.base_url,
        config.headers,
        auth.collect::<Vec<_>>(),
        document,
        config.server_variables,
        config.calls.response,
        config.max_bytes,
        config.output_schemas,
        operations.collect::<Vec<_>>(),
    ]))
}

#[async_trait]
impl Provider for OpenApiProvider {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn defined_in(&self) -> &str {
        &self.config.defined_in
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::OpenApi
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        let (attempt, name) = (self.retry.attempt(), &self.config.name);
        match self.current().await {
            Ok((current, None)) => {
                attempt.succeeded(None);
                Ok(self.publish(current, Health::Ready))
            }
            Ok((current, Some(reason))) => {
                let message = format!("openapi.{name}: {reason}; the document that was read before stays in use");
                let health = Health::Failed { reason };
                // Each new reason is reported once.
                if self.record_health(&health) {
                    self.options.events.emit(Event::Warning { code: "openapi_kept".to_owned(), message });
                }
                Ok(self.publish(current, health))
            }
            Err(error) => {
                let message = format!("{error}; see openapi.{name}.document");
                self.state().health = Some(Health::Failed { reason: message.clone() });
                Err(ProviderError { message, source: Some(Arc::new(error)) })
            }
        }
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let name = &self.config.name;
        let listed = Bounds::of(context).run(self.first_list()).await;
        listed.map_err(|error| error.into_tool_error(&format!("openapi.{name}")))?;
        let tools = self.tools();
        match tools.as_ref().and_then(|tools| tools.get(call.raw_name)) {
            Some((hash, tool)) if *hash == call.source_hash => tool.call(&call, context).await,
            Some(_) => Err(ToolError::new(
                ErrorKind::UnknownTool,
                format!(
                    "the document of {} has changed its operation `{}` since this call was checked, so it was not run: \
                     look at the tool again, and call it as it is now",
                    self.config.name, call.raw_name
                ),
            )),
            None => {
                let message = match (&tools, self.health()) {
                    (None, Health::Failed { reason }) => {
                        format!("the document of {name} cannot be read, so `{}` was not run: {reason}", call.raw_name)
                    }
                    _ => format!("the document of {name} has no operation `{}` any more", call.raw_name),
                };
                Err(ToolError::new(ErrorKind::UnknownTool, message))
            }
        }
    }

    fn limits(&self) -> CallLimits {
        CallLimits { retries: Some(RETRIES), ..CallLimits::default() }
    }

    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        Some(self.credential_scope)
    }

    fn health(&self) -> Health {
        self.state().health.clone().unwrap_or(Health::Starting)
    }

    fn instructions(&self) -> Option<String> {
        self.state().about.clone()
    }

    fn issues(&self) -> Vec<String> {
        self.state().issues.clone()
    }

    fn withheld(&self) -> Vec<WithheldTool> {
        self.state().withheld.clone()
    }

    fn may_fill(&self, namespace: &str) -> bool {
        let is_own = namespace == self.config.name;
        let rest = namespace.strip_prefix(self.config.name.as_str());
        is_own || (self.config.group_by == GroupBy::Tag && rest.is_some_and(|tag| tag.starts_with('-')))
    }

    fn on_change(&self, notify: ChangeNotifier) {
        self.retry.listen(notify);
    }

    async fn shut_down(&self) {
        self.retry.close();
    }
}

/// The most names of a document that a suggestion lists.
const MAX_SUGGESTED_NAMES: usize = 8;

/// The document's names that settings may use, collected operation by operation.
#[derive(Default)]
pub(super) struct DocumentNames {
    tags: BTreeSet<String>,
    methods: BTreeSet<String>,
    /// `operationId`s and names of operations.
    names: BTreeSet<String>,
    /// `operationId`s, and methods with paths.
    keys: BTreeSet<String>,
    /// Variables of servers.
    variables: BTreeSet<String>,
    /// Messages about values that variables may not have.
    wrong_values: BTreeSet<String>,
}

impl DocumentNames {
    pub(super) fn note(&mut self, found: &FoundOperation<'_>, config: &OpenApiConfig, document: &Document) {
        self.tags.extend(tags(found.operation).into_iter().map(str::to_owned));
        self.methods.insert(found.method.to_string());
        self.names.extend([found.name.clone(), found.label()]);
        self.keys.extend([found.label(), format!("{} {}", found.method, found.path)]);
        if config.base_url.is_some() || config.server_variables.is_empty() {
            return;
        }
        let server = security::server_of(document, &found.path_item, found.operation);
        for (name, variable) in server.into_iter().flat_map(security::variables) {
            self.variables.insert(name.to_owned());
            let chosen = config.server_variables.get(name);
            self.wrong_values.extend(chosen.and_then(|chosen| security::wrong_value(name, chosen, variable)));
        }
    }

    /// Returns a sentence for each setting that matches nothing: its location, the name in it, and a suggestion.
    pub(super) fn unmatched(&self, config: &OpenApiConfig, document: &Document) -> Vec<String> {
        let mut all = Vec::new();
        let Filter { tags, methods, allowed, denied } = &config.filter;
        for (field, patterns, what, known) in [
            ("tags", tags, "no operation of the document has such a tag", &self.tags),
            ("methods", methods, "no operation of the document has such a method", &self.methods),
            ("operations_allowed", allowed, "the document has no such operation", &self.names),
            ("operations_denied", denied, "the document has no such operation", &self.names),
        ] {
            for pattern in patterns.iter().filter(|pattern| !known.iter().any(|name| glob_match(pattern, name))) {
                all.push(format!("{field}: `{pattern}`: {what}{}", remedy(pattern, known)));
            }
        }
        for key in config.operations.keys().filter(|key| !self.keys.contains(*key)) {
            let near = nearest(key, self.keys.iter().map(String::as_str));
            let remedy =
                near.map_or("write its operationId, or `GET /path`".into(), |near| format!("did you mean `{near}`?"));
            all.push(format!("operations.{key}: the document has no such operation; {remedy}"));
        }
        let schemes = document.root().get("components").and_then(|components| components.get("securitySchemes"));
        let schemes = schemes.and_then(|schemes| schemes.value.as_object().map(|map| map.keys().cloned().collect()));
        let schemes: BTreeSet<String> = schemes.unwrap_or_default();
        for name in config.auth.keys().filter(|name| !schemes.contains(*name)) {
            all.push(format!(
                "auth.{name}: the document has no security scheme of that name, so that this is sent with no call{}",
                remedy(name, &schemes)
            ));
        }
        all.extend(self.wrong_values.iter().cloned());
        let is_unknown = |name: &&String| config.base_url.is_none() && !self.variables.contains(*name);
        for name in config.server_variables.keys().filter(is_unknown) {
            let remedy = remedy(name, &self.variables);
            all.push(format!("server_variables.{name}: no server of the document has such a variable{remedy}"));
        }
        all
    }
}

/// Returns the nearest known name, else some of the names.
fn remedy(written: &str, known: &BTreeSet<String>) -> String {
    if let Some(near) = nearest(written, known.iter().map(String::as_str)) {
        return format!("; did you mean `{near}`?");
    }
    let said: Vec<&str> = known.iter().take(MAX_SUGGESTED_NAMES).map(String::as_str).collect();
    match (said.is_empty(), known.len() > MAX_SUGGESTED_NAMES) {
        (true, _) => "; it has none: remove this".to_owned(),
        (false, true) => format!("; it has {} and {} more", said.join(", "), known.len() - MAX_SUGGESTED_NAMES),
        (false, false) => format!("; it has {}", said.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn documents_are_read_one_at_a_time() {
        let provider =
            OpenApiProvider::new(OpenApiConfig::new("api", Origin::File("a".into())), HttpOptions::default());
        let of = |text: String| FetchedDocument { text, origin: Origin::File("a".into()) };
        let large = format!("[{}1]", "1,".repeat(4 << 20));
        let waited = tokio::time::timeout(Duration::from_millis(1), provider.read(of(large))).await;
        assert!(waited.is_err(), "it takes longer");
        assert!(provider.reading.try_lock().is_err(), "it goes on");
        assert!(provider.read(of("1".into())).await.is_err(), "it is none");
        assert!(provider.reading.try_lock().is_ok());
    }
}
