//! The provider of one configured document.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::json;
use toolwright_core::catalogue::CallLimits;
use toolwright_core::{
    Cancel, ContentHash, ErrorKind, Health, Principal, Provider, ProviderCall, ProviderError, ProviderKind,
    RegisteredTool, ToolContext, ToolError, ToolOutput,
};

use super::document::{MAX_BYTES, Origin, read_file};
use super::error::OpenApiError;
use super::import::{Import, import};
use super::spec::{Auth, OpenApiSpec};
use crate::net::{Bounds, HttpClient, HttpOptions, HttpRequest, decode_text};
use crate::rest::{HttpTool, RETRIES};

/// How long a document from the network may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The operations of one document as tools. The document is read whenever they are listed, so that a refresh sees what
/// changed; calls go on with what was listed last.
pub struct OpenApiProvider {
    spec: OpenApiSpec,
    client: Arc<HttpClient>,
    credential_scope: ContentHash,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By name: the hash of the definition, and what runs calls of that definition.
    tools: Arc<HashMap<String, (ContentHash, HttpTool)>>,
    health: Option<Health>,
    about: Option<String>,
    withheld: Vec<(String, String)>,
}

impl fmt::Debug for OpenApiProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenApiProvider").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

impl OpenApiProvider {
    /// A provider. Nothing is read yet.
    #[must_use]
    pub fn new(spec: OpenApiSpec, http: HttpOptions) -> Arc<Self> {
        let client = Arc::new(HttpClient::new(spec.address.clone(), http));
        let credential_scope = credential_scope(&spec);
        Arc::new(Self { spec, client, credential_scope, state: Mutex::default() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self) -> Result<Import, OpenApiError> {
        let spec = self.spec.clone();
        let text = text(&self.spec, &self.client).await?;
        // A large document takes long enough to hold up others.
        let read = tokio::task::spawn_blocking(move || import(&spec, &text, spec.document.clone()));
        read.await.unwrap_or_else(|error| Err(OpenApiError::Syntax(format!("reading it broke off: {error}"))))
    }

    fn settle(&self, import: Import) -> Vec<Arc<RegisteredTool>> {
        let settings: Arc<str> = format!("openapi.{}", self.spec.name).into();
        for warning in &import.warnings {
            tracing::warn!("{settings}: {warning}");
        }
        let mut listed = Vec::with_capacity(import.tools.len());
        let mut tools = HashMap::with_capacity(import.tools.len());
        for tool in import.tools {
            let entry = RegisteredTool::foreign_as(tool.definition, &*tool.raw_name, &tool.shown);
            let made = tool.made.with(Arc::clone(&self.client), Arc::clone(&settings));
            tools.insert(tool.raw_name, (entry.source_hash(), made));
            listed.push(entry);
        }
        *self.state() = State {
            tools: Arc::new(tools),
            health: Some(Health::Ready),
            about: import.about,
            withheld: import.refused.into_iter().map(|refused| (refused.operation, refused.reason)).collect(),
        };
        listed
    }
}

/// The text of a configured document: its file, or what its address answers under the entry's address policy.
///
/// # Errors
/// [`OpenApiError::Unreadable`] and [`OpenApiError::Unfetchable`].
pub async fn text(spec: &OpenApiSpec, client: &HttpClient) -> Result<String, OpenApiError> {
    let url = match &spec.document {
        Origin::File(path) => {
            let read = {
                let path = path.clone();
                tokio::task::spawn_blocking(move || read_file(&path)).await
            };
            let read = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            return read.map_err(|error| OpenApiError::Unreadable { path: path.display().to_string(), error });
        }
        Origin::Url(url) => url,
    };
    let mut shown = url.clone();
    shown.set_query(None);
    let failed = |reason: String, error| OpenApiError::Unfetchable { url: shown.to_string(), reason, error };
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, application/yaml, text/yaml, */*;q=0.5"));
    for (name, value) in &spec.document_headers {
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
    let (status, media_type) = (response.status(), response.media_type());
    if !status.is_success() {
        return Err(failed(format!("HTTP {status}"), None));
    }
    let body = response.read(MAX_BYTES, bounds).await.map_err(|error| failed(error.to_string(), Some(error)))?;
    if body.cut {
        return Err(failed(format!("it is larger than {MAX_BYTES} bytes"), None));
    }
    Ok(decode_text(&body.bytes, media_type.as_ref()))
}

/// A hash of everything that may hold a secret.
fn credential_scope(spec: &OpenApiSpec) -> ContentHash {
    let auth = spec.auth.iter().map(|(name, auth)| match auth {
        Auth::Token(token) => json!([name, token]),
        Auth::Basic { username, password } => json!([name, username, password]),
        Auth::ClientCredentials { client_id, client_secret, token_url, scopes } => {
            json!([name, client_id, client_secret, token_url, scopes])
        }
    });
    ContentHash::of_value(&json!([spec.name, spec.base_url, spec.headers, auth.collect::<Vec<_>>()]))
}

#[async_trait]
impl Provider for OpenApiProvider {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::OpenApi
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        match self.read().await {
            Ok(import) => Ok(self.settle(import)),
            Err(error) => {
                let message = format!("{error}; see openapi.{}.document", self.spec.name);
                self.state().health = Some(Health::Failed { reason: message.clone() });
                Err(ProviderError { message, source: Some(Arc::new(error)) })
            }
        }
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let tools = Arc::clone(&self.state().tools);
        match tools.get(call.raw_name) {
            Some((hash, tool)) if *hash == call.source_hash => tool.call(&call, context).await,
            Some(_) => Err(ToolError::new(
                ErrorKind::UnknownTool,
                format!(
                    "the document of {} has changed its operation `{}` since this call was checked, so it was not run: \
                     look at the tool again, and call it as it is now",
                    self.spec.name, call.raw_name
                ),
            )),
            None => Err(ToolError::new(
                ErrorKind::UnknownTool,
                format!("the document of {} has no operation `{}` any more", self.spec.name, call.raw_name),
            )),
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

    fn withheld(&self) -> Vec<(String, String)> {
        self.state().withheld.clone()
    }
}
