//! Describes a remote server, its URL and the headers of every request, and reads its responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::message::RpcError;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use reqwest::Response;
use serde_json::Value;
use url::Url;

use super::RemoteKind;
use super::delivery::{is_answer_to, rpc_error};
use super::{HttpFailure, is_fault};
use crate::transport::RequestId;
use toolwright_net::{AddressPolicy, Authorizer, Challenge, HttpClient, HttpOptions, Retry};

pub(crate) const JSON: &str = "application/json";
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
/// Accepted content types of a response.
pub(crate) const BOTH_KINDS: &str = "application/json, text/event-stream";
/// Headers that the protocol and the transports own.
const RESERVED: [&str; 12] = [
    "accept",
    "connection",
    "content-type",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "upgrade",
];
/// Bytes read of a failure's body.
const FAILURE_BODY: usize = 64 * 1024;
/// Bound on reading it.
const FAILURE_BOUND: Duration = Duration::from_secs(10);
/// Texts by which servers based on the SDKs (TypeScript, Python, Rust, C#) report an unknown session or revision, in
/// lower case, with or without a status before them; in a JSON-RPC error they come with one of the codes.
const SESSION_PREFIXES: [&str; 3] = ["bad request: ", "not found: ", "error: "];
const SESSION_TEXTS: [&str; 14] = [
    "a new session can only be created by an initialize request",
    "could not find session",
    "invalid or expired session",
    "invalid or missing session",
    "invalid session id",
    "mcp-session-id header is required",
    "missing session id",
    "no transport found for sessionid",
    "no valid session id",
    "server not initialized",
    "session has been terminated",
    "session not found",
    "unexpected message, expect initialize request",
    "unsupported protocol version",
];
const SESSION_CODES: [i64; 3] = [-32000, -32001, RpcError::INVALID_REQUEST];
/// Codes for a missing object other than the session.
const MISSING_CODES: [i64; 3] = [RpcError::METHOD_NOT_FOUND, RpcError::INVALID_PARAMS, RpcError::RESOURCE_NOT_FOUND];
/// Codes of a server that has understood the request, whatever the status.
const UNDERSTOOD_CODES: [i64; 4] =
    [RpcError::INVALID_REQUEST, RpcError::METHOD_NOT_FOUND, RpcError::INVALID_PARAMS, RpcError::UNSUPPORTED_VERSION];
/// Bound on repeats of a refused request with new credentials: after an expired token, then after
/// too narrow a scope.
const MAX_CHALLENGES: usize = 3;
/// The error after that.
const ALL_REFUSED: &str = "HTTP 401: it refuses every new token; `toolwright mcp logout NAME` and `toolwright mcp \
    login NAME` start again";

/// A server over HTTP.
pub(crate) struct Target {
    /// Pooled connections to its origin.
    pub(crate) client: reqwest::Client,
    /// Its address.
    pub(crate) url: Url,
    headers: HeaderMap,
    authorizer: Option<Arc<dyn Authorizer>>,
    /// Bound on one message, in bytes.
    pub(crate) max: usize,
}

impl Target {
    /// A server at `url`, over this transport. `headers` are added to every request; `max` bounds each of its
    /// messages, in bytes.
    ///
    /// # Errors
    /// Cause and remedy, for the operator: the URL cannot be used with this transport.
    pub(crate) async fn new(
        kind: RemoteKind,
        mut url: Url,
        headers: HeaderMap,
        authorizer: Option<Arc<dyn Authorizer>>,
        max: usize,
    ) -> Result<Arc<Self>, String> {
        let scheme = match (kind, url.scheme()) {
            (RemoteKind::WebSocket, "ws") => Some("http"),
            (RemoteKind::WebSocket, "wss") => Some("https"),
            _ => None,
        };
        // Web schemes can be replaced with each other.
        let _ = scheme.map(|scheme| url.set_scheme(scheme));
        // The operator wrote the URL: no address is refused. Redirects stay within its origin.
        let client = HttpClient::new(AddressPolicy::open(), HttpOptions::default());
        let client = match kind {
            RemoteKind::Http | RemoteKind::Sse => client.client_for(&url).await,
            RemoteKind::WebSocket => client.upgrading_client_for(&url).await,
        };
        let client = client.map_err(|error| error.to_string())?;
        Ok(Arc::new(Self { client, url, headers, authorizer, max }))
    }

    /// Sends a request and returns the head of the response with any status. A request refused with 401 or 403
    /// had no effect: if the authorizer has better credentials, it is sent again with those, at most three times.
    ///
    /// # Errors
    /// [`HttpFailure`].
    pub(crate) async fn request(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Option<Bytes>,
    ) -> Result<Response, HttpFailure> {
        let mut challenges = 0;
        loop {
            let granted = match &self.authorizer {
                Some(authorizer) => authorizer.headers().await.map_err(HttpFailure::Unauthorized)?,
                None => HeaderMap::new(),
            };
            let mut all = headers.clone();
            all.extend(self.headers.clone());
            all.extend(granted.clone());
            let mut request = self.client.request(method.clone(), url.clone()).headers(all);
            if let Some(body) = &body {
                request = request.body(body.clone());
            }
            let response = request.send().await?;
            let Some(authorizer) = &self.authorizer else { return Ok(response) };
            match response.status() {
                StatusCode::UNAUTHORIZED if challenges == MAX_CHALLENGES => {
                    return Err(HttpFailure::Unauthorized(ALL_REFUSED.to_owned()));
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if challenges < MAX_CHALLENGES => challenges += 1,
                status => {
                    if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
                        authorizer.accepted(&granted);
                    }
                    return Ok(response);
                }
            }
            match authorizer.on_challenge(challenge(&response), granted).await {
                Ok(Retry::Yes) => {}
                Ok(Retry::No) => return Ok(response),
                Err(reason) => return Err(HttpFailure::Unauthorized(reason)),
            }
        }
    }

    /// The whole body of a response, bounded like a message.
    ///
    /// # Errors
    /// [`HttpFailure::TooLarge`], without the rest being read, and [`HttpFailure::Broken`].
    pub(crate) async fn body(&self, response: Response) -> Result<Bytes, HttpFailure> {
        read(response, self.max).await
    }

    /// Converts a refusal to a failure, given the sent request.
    pub(crate) fn failure(&self, refusal: Refusal) -> HttpFailure {
        let has_key = self.authorizer.is_none() && self.headers.contains_key(AUTHORIZATION);
        match refusal.failure() {
            HttpFailure::Status { status: 401, body, .. } if has_key => HttpFailure::KeyRefused(body),
            failure => failure,
        }
    }
}

fn challenge(response: &Response) -> Challenge {
    let values = response.headers().get_all(WWW_AUTHENTICATE).iter();
    Challenge {
        status: response.status().as_u16(),
        authenticate: values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect(),
    }
}

async fn read(mut response: Response, max: usize) -> Result<Bytes, HttpFailure> {
    // Most bodies are one piece, which is then not copied.
    let first = response.chunk().await?.unwrap_or_default();
    if first.len() > max || response.content_length().is_some_and(|length| length > max as u64) {
        return Err(HttpFailure::TooLarge(max));
    }
    let Some(second) = response.chunk().await? else { return Ok(first) };
    let mut body = Vec::from(first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        if body.len() + chunk.len() > max {
            return Err(HttpFailure::TooLarge(max));
        }
        body.extend_from_slice(&chunk);
        next = response.chunk().await?;
    }
    Ok(body.into())
}

/// Reads a short unneeded body, so that its connection becomes free.
pub(crate) async fn read_rest(response: Response) {
    if response.content_length().is_some_and(|length| length <= FAILURE_BODY as u64) {
        // A connection that breaks here is not reused.
        let _ = read(response, FAILURE_BODY).await;
    }
}

/// A response with an error status and its body.
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    location: Option<String>,
    is_json: bool,
}

impl Refusal {
    /// Reads its body, for at most ten seconds; a body over 64 kB, or a slower one, is ignored.
    pub(crate) async fn read(response: Response) -> Self {
        let status = response.status();
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let is_json = kind(&response) == Kind::Json;
        // Another kind of server may send an endless body.
        let body = tokio::time::timeout(FAILURE_BOUND, read(response, FAILURE_BODY)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        Self { status, body, location, is_json }
    }

    /// Returns the JSON body that may be a message, for statuses whose meaning the protocol defines.
    pub(crate) fn json(&self) -> Option<&[u8]> {
        let of_access = matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        (self.is_json && !of_access).then_some(&*self.body)
    }

    /// Whether a message in a session (a request, if `request` is set) was refused because the session is gone. The
    /// status for that is 404, unless the body's author has read the request; servers based on the SDKs'
    /// examples answer 400 with one of a few texts.
    pub(crate) fn is_session_refusal(&self, request: Option<RequestId>) -> bool {
        match self.status {
            StatusCode::NOT_FOUND => !self.answers(request) || self.is_session_text(),
            StatusCode::BAD_REQUEST => !self.answers(request) && self.names_session(),
            _ => false,
        }
    }

    /// Whether a refusal in a session may concern the session, or else one that the tool itself knows. A 404 always
    /// may (2025-11-25, basic/transports, session management), unless it names another missing object.
    pub(crate) fn may_concern_session(&self) -> bool {
        match self.status {
            StatusCode::NOT_FOUND => !rpc_error(&self.body).is_some_and(|error| MISSING_CODES.contains(&error.code)),
            StatusCode::BAD_REQUEST => self.names_session(),
            _ => false,
        }
    }

    /// Whether a request after the handshake, in this revision, was refused because the server does not support the
    /// negotiated version: another server has replaced it. A server up to 2025-11-25 misses a session in requests of
    /// 2026-07-28, and answers 400 or 422 without reading them. An answer to the request itself may come from its tool
    /// or from another server behind it, so it counts only if it lists revisions without ours (2026-07-28,
    /// basic/versioning).
    pub(crate) fn denies_handshake(&self, request: RequestId, version: &str) -> bool {
        if !matches!(self.status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) {
            return false;
        }
        let error = rpc_error(&self.body).filter(|error| error.code == RpcError::UNSUPPORTED_VERSION);
        match error {
            Some(error) if self.answers(Some(request)) => {
                let data = error.data.as_deref();
                let supported = data.and_then(|data| data.get("supported")).and_then(Value::as_array);
                supported.is_some_and(|versions| versions.iter().all(|listed| listed != version))
            }
            Some(_) => true,
            None => !self.answers(Some(request)) && self.names_session(),
        }
    }

    /// Whether a refused handshake was a server fault, which says nothing about its revision. SDKs'
    /// examples answer errors in handlers with 500 and an error object.
    pub(crate) fn is_fault(&self) -> bool {
        is_fault(self.status.as_u16())
            && !rpc_error(&self.body).is_some_and(|error| UNDERSTOOD_CODES.contains(&error.code))
    }

    /// Whether its author has read this request.
    fn answers(&self, request: Option<RequestId>) -> bool {
        request.is_some_and(|id| is_answer_to(id, &self.body))
    }

    /// Whether it uses an SDK's text for an unknown session or revision.
    fn names_session(&self) -> bool {
        let text = self.session_text();
        SESSION_TEXTS.iter().any(|known| text.starts_with(known))
    }

    /// Whether it consists of that text alone.
    fn is_session_text(&self) -> bool {
        SESSION_TEXTS.contains(&self.session_text().trim_end_matches('.'))
    }

    /// Returns its text if it may be about the session, in lower case and without a leading status; else an empty one.
    fn session_text(&self) -> String {
        let text = match rpc_error(&self.body) {
            Some(error) if SESSION_CODES.contains(&error.code) => error.message.into_owned(),
            Some(_) => return String::new(),
            None => String::from_utf8_lossy(&self.body).into_owned(),
        };
        let text = text.trim().to_ascii_lowercase();
        SESSION_PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(&text).to_owned()
    }

    /// The failure that it is.
    fn failure(self) -> HttpFailure {
        HttpFailure::Status { status: self.status.as_u16(), location: self.location, body: excerpt(&self.body) }
    }
}

/// The kind of a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Json,
    Events,
    Other,
}

/// Returns the kind by the response's headers.
pub(crate) fn kind(response: &Response) -> Kind {
    let value = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default().trim_ascii();
    let begins = |with: &str| value.get(..with.len()).is_some_and(|head| head.eq_ignore_ascii_case(with.as_bytes()));
    if begins(JSON) {
        Kind::Json
    } else if begins(EVENT_STREAM) {
        Kind::Events
    } else {
        Kind::Other
    }
}

/// The failure of a response that is neither JSON nor events.
pub(crate) fn not_mcp(response: &Response) -> HttpFailure {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    HttpFailure::NotMcp(value.unwrap_or_default().chars().take(100).collect())
}

/// The beginning of a text for an operator, in one line.
pub(crate) fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(1000)]);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// The configured headers, checked.
///
/// # Errors
/// Names the header that cannot be sent, never its value.
pub(crate) fn header_map(headers: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let parsed: HeaderName = name.parse().map_err(|_| format!("`headers.{name}` is not a legal header name"))?;
        if RESERVED.contains(&parsed.as_str()) {
            return Err(format!("`headers.{name}` belongs to the protocol itself: remove it"));
        }
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| format!("the value of `headers.{name}` has characters that a header cannot carry"))?;
        value.set_sensitive(true);
        map.insert(parsed, value);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mentioning_a_session_does_not_end_it() {
        let error = |id: &str, code: i64, message: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#)
        };
        for (status, body, expect) in [
            (404, String::new(), true),
            (404, "404 page not found".to_owned(), true),
            (404, error("null", -32001, "Session not found"), true),
            (404, error("7", -32001, "Session not found"), true),
            (404, error("\"server-error\"", -32600, "Not Found: Session has been terminated"), true),
            (404, error("7", -32601, "Method not found"), false),
            (404, error("7", -32602, "no such chat session"), false),
            (400, "Bad Request: No valid Session ID provided".to_owned(), true),
            (400, error("null", -32000, "Bad Request: No valid session ID provided"), true),
            (404, error("7", -32001, "Session not found: tab-3"), false),
            (400, error("7", -32000, "Session not found"), false),
            (400, error("7", -32602, "session not found"), false),
            (400, error("7", -32000, "the browser session is closed"), false),
            (400, "a session takes two people".to_owned(), false),
            (500, "session not found".to_owned(), false),
        ] {
            let status = StatusCode::from_u16(status).expect("status");
            let refusal = Refusal { status, body: body.clone().into(), location: None, is_json: true };
            assert_eq!(refusal.is_session_refusal(Some(7)), expect, "{status} {body}");
        }
    }

    #[test]
    fn unclear_404s_put_the_session_in_doubt() {
        for (status, code, message, expect) in [
            (404, -32001, "no such session: begin with 'initialize'", true),
            (404, -32001, "Session not found: tab-3", true),
            (404, -32600, "unknown", true),
            (404, -32601, "Method not found", false),
            (404, -32602, "no such tool", false),
            (404, -32002, "no such resource", false),
            (400, -32000, "Session not found: tab-3", true),
            (400, -32000, "the browser session is closed", false),
            (500, -32001, "Session not found", false),
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":{code},"message":"{message}"}}}}"#);
            let status = StatusCode::from_u16(status).expect("status");
            let refusal = Refusal { status, body: body.into(), location: None, is_json: true };
            assert_eq!(refusal.may_concern_session(), expect, "{status} {code} {message}");
            assert!(!refusal.is_session_refusal(Some(7)), "{status} {code} {message}: it may have been run");
        }
    }

    #[test]
    fn missed_handshakes_differ_from_refused_requests() {
        for (status, body, expect) in [
            (400, "Bad Request: Server not initialized", true),
            (400, "Bad Request: Missing session ID", true),
            (400, "Bad Request: Unsupported protocol version: 2026-07-28. Supported versions: 2025-06-18", true),
            (400, "Bad Request: A new session can only be created by an initialize request", true),
            (422, "Unexpected message, expect initialize request", true),
            (400, "the region is missing", false),
            (403, "Session not found", false),
            (422, "name: must be set", false),
        ] {
            for (code, id) in [(None, ""), (Some(-32000), "null"), (Some(-32000), "7"), (Some(-32602), "null")] {
                let json =
                    |code| format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{body}"}}}}"#);
                let text = code.map_or_else(|| body.to_owned(), json);
                let status = StatusCode::from_u16(status).expect("status");
                let refusal = Refusal { status, body: text.into(), location: None, is_json: true };
                // Other codes are about the parameters, and so are answers to the request itself.
                let expect = expect && code != Some(-32602) && id != "7";
                assert_eq!(refusal.denies_handshake(7, "2026-07-28"), expect, "{status} {body} {code:?} {id}");
            }
        }
    }

    #[test]
    fn unknown_revisions_count_only_with_a_list() {
        for (status, id, data, expect) in [
            (400, "null", "", true),
            (400, "7", r#","data":{"supported":["2025-11-25"],"requested":"2026-07-28"}"#, true),
            (400, "7", r#","data":{"supported":["2026-07-28"]}"#, false),
            (400, "7", "", false),
            (200, "7", r#","data":{"supported":["2025-11-25"]}"#, false),
        ] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32022,"message":"no such table"{data}}}}}"#);
            let status = StatusCode::from_u16(status).expect("status");
            let refusal = Refusal { status, body: body.clone().into(), location: None, is_json: true };
            assert_eq!(refusal.denies_handshake(7, "2026-07-28"), expect, "{status} {body}");
        }
    }

    #[test]
    fn unsendable_headers_are_named_without_values() {
        let map = |name: &str, value: &str| header_map(&BTreeMap::from([(name.to_owned(), value.to_owned())]));
        assert!(map("Authorization", "Bearer x").is_ok());
        for (name, value) in [("a b", "v"), ("Accept", "v"), ("Upgrade", "v"), ("x", "sec\nret")] {
            let error = map(name, value).expect_err("refused");
            assert!(error.contains(name) && !error.contains("sec"), "{error}");
        }
    }
}
