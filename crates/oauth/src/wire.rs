//! HTTP exchanges bounded in time and size, and the reading of their answers member by member.
//!
//! An error names the member only: the parser's words may quote the answer, and the answer may hold a secret.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use ring::digest;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toolwright_core::Cancel;
use toolwright_net::{AddressPolicy, Bounds, HttpClient, HttpOptions, HttpRequest, NetError};
use url::{Host, Url};

use crate::{OAuthError, excerpt};

/// Bound on one exchange, redirects and body included.
const EXCHANGE_BOUND: Duration = Duration::from_secs(15);
/// Bound on one answer. Tokens and metadata have some kilobytes.
const MAX_ANSWER: usize = 256 << 10;

/// HTTP under OAuth's rules: metadata names the next address, so addresses are checked, and secrets go over TLS.
#[derive(Debug)]
pub(crate) struct OAuthHttp {
    http: HttpClient,
    /// Whether the operator's own server is reached without TLS, so that its host may also be.
    plain: bool,
}

/// An endpoint's answer.
#[derive(Debug)]
pub(crate) struct EndpointResponse {
    /// Status.
    pub(crate) status: StatusCode,
    /// `WWW-Authenticate`.
    pub(crate) headers: HeaderMap,
    /// Body.
    pub(crate) body: Vec<u8>,
}

/// Result of looking for a document at a URL.
enum MetadataLookup<T> {
    Here(T),
    Elsewhere,
    /// The request was refused or the content unreadable, so it is unknown whether the document is there.
    Refused(OAuthError),
}

impl OAuthHttp {
    /// Exchanges around `server`. Its host may be private, because the operator configured it, and so may `allowed`
    /// hosts; all others must be public.
    pub(crate) fn new(server: &Url, allowed: &[String], options: HttpOptions) -> Self {
        let own = server.host_str().map(str::to_owned);
        let allowed_hosts = own.into_iter().chain(allowed.iter().cloned()).collect();
        let policy = AddressPolicy { allow_private: false, allowed_hosts };
        Self { http: HttpClient::new(policy, options), plain: server.scheme() == "http" }
    }

    /// Checks an endpoint's URL: `https`, or `http` on this machine or if the operator's own server is also without
    /// TLS.
    ///
    /// # Errors
    /// [`OAuthError::Metadata`].
    pub(crate) fn endpoint(&self, name: &str, text: &str) -> Result<Url, OAuthError> {
        let unusable = |reason: &str| OAuthError::Metadata(format!("{name} `{}` {reason}", excerpt(text)));
        let url = Url::parse(text).map_err(|error| unusable(&format!("is not a URL: {error}")))?;
        match url.scheme() {
            "https" => Ok(url),
            "http" if is_loopback(&url) || (self.plain && self.http.policy().exempts(&url)) => Ok(url),
            "http" => Err(unusable("has no TLS (https), which OAuth requires")),
            _ => Err(unusable("is neither https nor http")),
        }
    }

    /// Fetches a JSON document from the first of these URLs that has it; `None` if all answer 404, 405 or 410. After
    /// any other refusal (4xx) the next URL is tried: file stores answer 403 for missing files. So it is after content
    /// that is not the document: sites serve their start page at every path.
    ///
    /// # Errors
    /// [`OAuthError`]; the problem of the first such URL, if no URL has the document.
    pub(crate) async fn document_at<T: DeserializeOwned>(
        &self,
        what: &str,
        places: &[Url],
    ) -> Result<Option<T>, OAuthError> {
        let mut refusal = None;
        for url in places {
            match self.document(what, url).await? {
                MetadataLookup::Here(document) => return Ok(Some(document)),
                MetadataLookup::Elsewhere => {}
                MetadataLookup::Refused(error) => _ = refusal.get_or_insert(error),
            }
        }
        refusal.map_or(Ok(None), Err)
    }

    async fn document<T: DeserializeOwned>(&self, what: &str, url: &Url) -> Result<MetadataLookup<T>, OAuthError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let request = HttpRequest { method: Method::GET, url: url.clone(), headers, body: None };
        let answer = self.exchange(what, request).await?;
        if is_absent(answer.status) {
            return Ok(MetadataLookup::Elsewhere);
        }
        if !answer.status.is_success() {
            let error = OAuthError::Metadata(format!("{what}: {} answered {}", shown(url), answer.status));
            let may_lie_elsewhere =
                answer.status.is_client_error() && !matches!(answer.status, StatusCode::TOO_MANY_REQUESTS);
            return if may_lie_elsewhere { Ok(MetadataLookup::Refused(error)) } else { Err(error) };
        }
        Ok(serde_json::from_slice(&answer.body).map_or_else(
            |error| {
                let why = excerpt(&error.to_string());
                MetadataLookup::Refused(OAuthError::Metadata(format!("{what} at {} cannot be read: {why}", shown(url))))
            },
            MetadataLookup::Here,
        ))
    }

    /// Sends a form (RFC 6749 appendix B).
    ///
    /// # Errors
    /// [`OAuthError::Unreachable`]. An HTTP error status is not an error here.
    pub(crate) async fn form(
        &self,
        what: &str,
        url: &Url,
        fields: &[(&str, &str)],
        authorization: Option<HeaderValue>,
    ) -> Result<EndpointResponse, OAuthError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        self.post(what, url, headers, body.into()).await
    }

    /// Sends JSON.
    ///
    /// # Errors
    /// [`OAuthError::Unreachable`]. An HTTP error status is not an error here.
    pub(crate) async fn json(&self, what: &str, url: &Url, value: &Value) -> Result<EndpointResponse, OAuthError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.post(what, url, headers, value.to_string().into()).await
    }

    async fn post(
        &self,
        what: &str,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<EndpointResponse, OAuthError> {
        let request = HttpRequest { method: Method::POST, url: url.clone(), headers, body: Some(body) };
        self.exchange(what, request).await
    }

    async fn exchange(&self, what: &str, request: HttpRequest) -> Result<EndpointResponse, OAuthError> {
        let unreachable = |source: NetError| OAuthError::Unreachable { what: what.to_owned(), source };
        let cancel = Cancel::new();
        let bounds = Bounds::new(&cancel, Instant::now().checked_add(EXCHANGE_BOUND));
        let response = self.http.send(request, bounds).await.map_err(unreachable)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.read(MAX_ANSWER, bounds).await.map_err(unreachable)?;
        Ok(EndpointResponse { status, headers, body: body.bytes })
    }
}

/// Whether a status says that nothing is there. Other errors may be temporary, so they do not allow a fallback.
fn is_absent(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::GONE)
}

/// Whether a URL leads to this machine, without name resolution.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Formats a URL without its query.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.to_string()
}

/// A JSON object that an endpoint answered with.
pub(crate) struct JsonFields {
    what: &'static str,
    all: Map<String, Value>,
}

impl JsonFields {
    /// Parses the body of the response to the request `what`.
    ///
    /// # Errors
    /// [`OAuthError::Answer`].
    pub(crate) fn read(what: &'static str, body: &[u8]) -> Result<Self, OAuthError> {
        match serde_json::from_slice(body) {
            Ok(all) => Ok(Self { what, all }),
            Err(_) => Err(OAuthError::Answer { what, reason: "it is not a JSON object".to_owned() }),
        }
    }

    /// A member that must be there.
    ///
    /// # Errors
    /// [`OAuthError::Answer`].
    pub(crate) fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, OAuthError> {
        let what = self.what;
        self.optional(name)?.ok_or_else(|| OAuthError::Answer { what, reason: format!("it has no `{name}`") })
    }

    /// Reads an optional member, which may be null.
    ///
    /// # Errors
    /// [`OAuthError::Answer`].
    pub(crate) fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, OAuthError> {
        let Some(value) = self.all.remove(name) else { return Ok(None) };
        let kind = kind(&value);
        serde_json::from_value(value)
            .map_err(|_| OAuthError::Answer { what: self.what, reason: format!("its `{name}` cannot be {kind}") })
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "this number",
        Value::String(_) => "this text",
        Value::Array(_) => "this list",
        Value::Object(_) => "an object",
    }
}

/// Scopes: words of one text, or a list of texts, as some servers write.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Scopes {
    Text(String),
    List(Vec<String>),
}

impl Scopes {
    /// Returns the words as a list.
    pub(crate) fn words(&self) -> Vec<String> {
        let texts = match self {
            Self::Text(text) => std::slice::from_ref(text),
            Self::List(texts) => texts,
        };
        texts.iter().flat_map(|text| text.split_ascii_whitespace()).map(str::to_owned).collect()
    }
}

/// Reads seconds: a number, also with a fraction, or a text of one, as servers write it; `None` for anything else and
/// for negative values.
pub(crate) fn seconds(value: &Value) -> Option<u64> {
    let text = value.as_str().map(str::trim);
    if let Some(whole) = value.as_u64().or_else(|| text?.parse().ok()) {
        return Some(whole);
    }
    let fraction: f64 = value.as_f64().or_else(|| text?.parse().ok())?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is cut, and not below zero")]
    (fraction.is_finite() && fraction >= 0.0).then_some(fraction as u64)
}

/// Returns 256 random bits as text.
///
/// # Errors
/// [`OAuthError::Setting`] if the system has no randomness.
pub(crate) fn random_text() -> Result<String, OAuthError> {
    let mut bytes = [0; 32];
    let failed = |_| OAuthError::Setting("the system's random number generator does not work".to_owned());
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// The S256 challenge of a PKCE verifier (RFC 7636 section 4.2).
pub(crate) fn s256(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, verifier.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_need_tls_except_locally() {
        for (server, endpoint, expect) in [
            ("https://h/mcp", "https://as/token", true),
            ("https://h/mcp", "http://as/token", false),
            ("https://h/mcp", "http://h/token", false),
            ("https://h/mcp", "http://127.0.0.1:1/token", true),
            ("https://h/mcp", "http://localhost:1/token", true),
            ("https://h/mcp", "http://localhost.evil/token", false),
            ("http://h/mcp", "http://h:9/token", true),
            ("http://h/mcp", "http://as/token", false),
            ("http://h/mcp", "http://listed/token", true),
            ("https://h/mcp", "file:///etc/passwd", false),
            ("https://h/mcp", "javascript:alert(1)", false),
            ("https://h/mcp", "/token", false),
        ] {
            let server = Url::parse(server).expect("a URL");
            let wire = OAuthHttp::new(&server, &["listed".into()], HttpOptions::default());
            assert_eq!(wire.endpoint("token_endpoint", endpoint).is_ok(), expect, "{server} {endpoint}");
        }
    }

    #[test]
    fn failing_servers_may_still_have_metadata() {
        for (status, expect) in [
            (200, false),
            (400, false),
            (401, false),
            (403, false),
            (404, true),
            (405, true),
            (410, true),
            (429, false),
            (500, false),
        ] {
            assert_eq!(is_absent(StatusCode::from_u16(status).expect("a status")), expect, "{status}");
        }
    }

    #[tokio::test]
    async fn metadata_urls_cannot_reach_private_networks() {
        let server = Url::parse("https://mcp.example/").expect("a URL");
        let wire = OAuthHttp::new(&server, &[], HttpOptions::default());
        let inside = Url::parse("https://169.254.169.254/latest").expect("a URL");
        let refused = wire.document_at::<Value>("its metadata", &[inside]).await.expect_err("refused");
        assert!(refused.to_string().contains("link-local"), "{refused}");
    }

    use serde_json::json;

    #[test]
    fn seconds_are_read_however_they_are_written() {
        for (value, expect) in [
            (json!(3600), Some(3600)),
            (json!(3600.0), Some(3600)),
            (json!(3600.9), Some(3600)),
            (json!("3600"), Some(3600)),
            (json!(" 3600.5 "), Some(3600)),
            (json!(1e300), Some(u64::MAX)),
            (json!(0), Some(0)),
            (json!(-1), None),
            (json!("-1.5"), None),
            (json!("NaN"), None),
            (json!("inf"), None),
            (json!("soon"), None),
            (json!([]), None),
        ] {
            assert_eq!(seconds(&value), expect, "{value}");
        }
    }

    #[test]
    fn challenges_are_those_of_rfc_7636_appendix_b() {
        assert_eq!(s256("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        let (one, two) = (random_text().expect("random"), random_text().expect("random"));
        assert!(one.len() == 43 && one != two);
    }
}
