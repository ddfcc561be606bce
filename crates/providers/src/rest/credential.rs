//! Adds the credential to a request. Arguments cannot affect it, and it is never sent to another origin after a
//! redirect.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;
use tokio::sync::Mutex;
use toolwright_core::{ErrorKind, ToolContext, ToolError};
use url::Url;

use super::request::query::encode;
use toolwright_net::{Bounds, HttpClient, HttpRequest};

/// How long before its expiry a token is no longer used.
const EXPIRY_MARGIN: Duration = Duration::from_secs(30);
/// How long a token without a stated lifetime is used.
const UNSTATED: Duration = Duration::from_secs(300);
/// The most bytes of a token endpoint's answer that are read.
const MAX_ANSWER: usize = 64 << 10;

/// A credential.
#[derive(Clone)]
pub(crate) enum Credential {
    /// A header.
    Header(HeaderName, HeaderValue),
    /// A pair of the query.
    Query(String, String),
    /// A cookie.
    Cookie(String, String),
    /// A fetched bearer token.
    Minted(Arc<TokenSource>),
}

/// Fetches tokens by the OAuth 2.0 client credentials grant (RFC 6749 section 4.4): one request at a time. A token is
/// cached until it expires.
pub(crate) struct TokenSource {
    pub(crate) url: Url,
    pub(crate) client_id: String,
    pub(crate) client_secret: String,
    pub(crate) scopes: Vec<String>,
    pub(crate) cached: Mutex<Option<CachedToken>>,
}

/// A token and its expiry.
pub(crate) struct CachedToken {
    token: HeaderValue,
    until: Instant,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name, _) => write!(f, "Header({name})"),
            Self::Query(name, _) => write!(f, "Query({name})"),
            Self::Cookie(name, _) => write!(f, "Cookie({name})"),
            Self::Minted(source) => write!(f, "Minted({})", source.url),
        }
    }
}

impl Credential {
    /// Creates a header with a value that is never shown.
    ///
    /// # Errors
    /// The value is invalid in a header.
    pub(crate) fn header(name: HeaderName, value: &str) -> Result<Self, String> {
        let mut value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            format!("the value for the header `{name}` holds a line break or another control character")
        })?;
        value.set_sensitive(true);
        Ok(Self::Header(name, value))
    }

    /// Creates `Authorization: <scheme> <value>`.
    ///
    /// # Errors
    /// As [`Credential::header`].
    pub(crate) fn authorization(scheme: &str, value: &str) -> Result<Self, String> {
        Self::header(AUTHORIZATION, &format!("{scheme} {value}"))
    }

    /// Creates the header for user and password (RFC 7617).
    ///
    /// # Errors
    /// As [`Credential::header`].
    pub(crate) fn basic(username: &str, password: &str) -> Result<Self, String> {
        Self::authorization("Basic", &BASE64_STANDARD.encode(format!("{username}:{password}")))
    }

    /// Adds it to a request.
    pub(super) async fn apply(
        &self,
        request: &mut HttpRequest,
        client: &HttpClient,
        settings: &str,
        context: &ToolContext,
    ) -> Result<(), ToolError> {
        match self {
            Self::Header(name, value) => {
                request.headers.insert(name.clone(), value.clone());
            }
            Self::Query(name, value) => {
                let pair = format!("{}={}", encode(name), encode(value));
                let query = request.url.query().filter(|query| !query.is_empty());
                let query = query.map_or_else(|| pair.clone(), |query| format!("{query}&{pair}"));
                request.url.set_query(Some(&query));
            }
            Self::Cookie(name, value) => {
                let mut cookies =
                    request.headers.get(COOKIE).map(|value| value.as_bytes().to_vec()).unwrap_or_default();
                if !cookies.is_empty() {
                    cookies.extend_from_slice(b"; ");
                }
                cookies.extend_from_slice(format!("{name}={value}").as_bytes());
                let mut value = HeaderValue::from_bytes(&cookies).map_err(|_| {
                    ToolError::new(ErrorKind::InternalError, format!("{settings}: the cookie `{name}` cannot be sent"))
                })?;
                value.set_sensitive(true);
                request.headers.insert(COOKIE, value);
            }
            Self::Minted(source) => {
                let token = source.token(client, settings, context).await?;
                request.headers.insert(AUTHORIZATION, token);
            }
        }
        Ok(())
    }

    /// Forgets a fetched token. Returns whether there was one.
    pub(super) async fn forget(&self) -> bool {
        match self {
            Self::Minted(source) => source.cached.lock().await.take().is_some(),
            _ => false,
        }
    }
}

impl TokenSource {
    /// Returns the header's value with a valid token. Concurrent callers wait for the one that fetches it.
    async fn token(
        &self,
        client: &HttpClient,
        settings: &str,
        context: &ToolContext,
    ) -> Result<HeaderValue, ToolError> {
        let bounds = Bounds::of(context);
        let mut held = bounds.run(self.cached.lock()).await.map_err(|error| error.into_tool_error(settings))?;
        if let Some(held) = held.as_ref().filter(|held| Instant::now() < held.until) {
            return Ok(held.token.clone());
        }
        let asked = Instant::now();
        let response = client.send(self.request(), bounds).await.map_err(|error| error.into_tool_error(settings))?;
        let status = response.status();
        let body = response.read(MAX_ANSWER, bounds).await.map_err(|error| error.into_tool_error(settings))?;
        let answer: Value = serde_json::from_slice(&body.bytes).unwrap_or_default();
        let host = self.url.host_str().unwrap_or_default();
        // The tool's own request has not been sent yet.
        let fail = |why: String| {
            let message = format!("the token endpoint at {host} gave no token: {why}; see {settings}.auth");
            Err(ToolError::new(ErrorKind::ExecutionError, message))
        };
        let Some(token) = answer.get("access_token").and_then(Value::as_str).filter(|_| status.is_success()) else {
            let error = answer.get("error").and_then(Value::as_str).unwrap_or_default();
            return fail(format!("HTTP {status} {error}").trim_end().to_owned());
        };
        let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) else {
            return fail("it cannot stand in a header".into());
        };
        value.set_sensitive(true);
        context.services.redactor.learn(vec![token.to_owned()]);
        let lifetime = answer.get("expires_in").and_then(Value::as_u64).map_or(UNSTATED, Duration::from_secs);
        let until = asked + lifetime.saturating_sub(EXPIRY_MARGIN).min(Duration::from_secs(86_400));
        *held = Some(CachedToken { token: value.clone(), until });
        Ok(value)
    }

    fn request(&self) -> HttpRequest {
        let mut form = "grant_type=client_credentials".to_owned();
        if !self.scopes.is_empty() {
            form.push_str(&format!("&scope={}", encode(&self.scopes.join(" "))));
        }
        let mut headers = HeaderMap::new();
        // RFC 6749 section 2.3.1: both are form-encoded before they are joined.
        let pair = BASE64_STANDARD.encode(format!("{}:{}", encode(&self.client_id), encode(&self.client_secret)));
        if let Ok(mut value) = HeaderValue::from_str(&format!("Basic {pair}")) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        HttpRequest { method: Method::POST, url: self.url.clone(), headers, body: Some(form.into()) }
    }
}
