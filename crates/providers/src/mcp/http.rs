//! Streamable HTTP: the requests that `rmcp`'s worker makes, over one pooled client.
//!
//! Sessions, resumption and the headers of 2026-07-28 are the worker's. What is done here is what it
//! leaves to its client: bounds on every body, raw results, and failures that say what to do.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use http::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::explain::HttpFailure;
use super::inbox::{Admission, Answer, Inbox, Taken, Ticket, answered, ticket_of};

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
const SESSION: &str = "mcp-session-id";
/// Headers that the protocol owns.
const RESERVED: [&str; 4] = ["accept", "mcp-session-id", "mcp-protocol-version", "last-event-id"];
/// Requests that wait for their response's head at once.
const MAX_CONCURRENT: usize = 256;
/// Longest pause before a broken event stream is opened again.
const MAX_STREAM_BACKOFF: Duration = Duration::from_secs(60);
/// What is read of the body of a failure, in bytes.
const FAILURE_BODY: usize = 64 * 1024;

type Error = StreamableHttpError<HttpFailure>;

/// The HTTP side of one connection. Clones share it.
#[derive(Clone)]
pub(super) struct HttpPeer {
    client: reqwest::Client,
    inbox: Arc<Inbox>,
    max: usize,
    failure: Arc<Mutex<Option<HttpFailure>>>,
    expired: Arc<AtomicBool>,
}

impl HttpPeer {
    /// A peer whose messages are at most `max` bytes.
    pub(super) fn new(client: reqwest::Client, max: usize, inbox: Arc<Inbox>) -> Self {
        Self { client, inbox, max, failure: Arc::default(), expired: Arc::default() }
    }

    /// The transport over it.
    pub(super) fn transport(
        &self,
        url: &str,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> StreamableHttpClientTransport<Self> {
        let mut backoff = ExponentialBackoff::default();
        backoff.max_delay = Some(MAX_STREAM_BACKOFF);
        let mut config = StreamableHttpClientTransportConfig::with_uri(url)
            .custom_headers(headers)
            .max_concurrent_requests(MAX_CONCURRENT)
            .max_sse_event_size(self.max)
            // It would send again what may have had its effect.
            .reinit_on_expired_session(false);
        config.channel_buffer_capacity = MAX_CONCURRENT;
        config.retry_config = Arc::new(backoff);
        StreamableHttpClientTransport::with_client(self.clone(), config)
    }

    /// The last failure, for a handshake that failed.
    pub(super) fn last_failure(&self) -> Option<HttpFailure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the server has forgotten the session.
    pub(super) fn is_expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    /// Notes a failure for the handshake and for the request's ticket.
    fn failed(&self, failure: HttpFailure, ticket: Option<&Ticket>) -> Error {
        if let Some(ticket) = ticket {
            let reason = failure.to_string();
            ticket.settle(if failure.had_no_effect() { Answer::NotSent(reason) } else { Answer::Broken(reason) });
        }
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
        StreamableHttpError::Client(failure)
    }

    async fn post(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        if self.inbox.register(&message) == Admission::Drop {
            return Err(StreamableHttpError::Client(HttpFailure::Other("cancelled before it was sent".to_owned())));
        }
        let (id, ticket) = match ticket_of(&message) {
            Some((id, ticket)) => (Some(id), Some(ticket)),
            None => (request_id(&message), None),
        };
        let ticket = ticket.as_deref();
        let mut request = self.client.post(&*uri).header(ACCEPT, format!("{JSON}, {EVENT_STREAM}"));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(session) = &session {
            request = request.header(SESSION, &**session);
        }
        if let Some(ticket) = ticket {
            ticket.dispatched();
        }
        let response = request.json(&message).send().await.map_err(|error| self.failed(error.into(), ticket))?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let kind = content_type(&response);
        if !status.is_success() {
            let refusal = self.refusal(response, &kind, id.as_ref(), session.is_some()).await;
            return refusal.map_err(|failure| self.failed(failure, ticket));
        }
        let new_session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        if id.is_none() {
            // Nothing is expected for a notification or an answer of ours, whatever the server sends.
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if kind.starts_with(EVENT_STREAM) {
            let stream = self.bounded(response.bytes_stream(), id);
            return Ok(StreamableHttpPostResponse::Sse(stream, new_session));
        }
        if !kind.starts_with(JSON) {
            return Err(self.failed(HttpFailure::NotMcp(kind), ticket));
        }
        let body = read(response, self.max).await.map_err(|failure| self.failed(failure, ticket))?;
        match self.message(&body) {
            Some(message) => Ok(StreamableHttpPostResponse::Json(message, new_session)),
            None => Err(self.failed(HttpFailure::NotJsonRpc(excerpt(&body)), ticket)),
        }
    }

    /// What a failed response says: a JSON-RPC error, or the failure.
    async fn refusal(
        &self,
        response: reqwest::Response,
        kind: &str,
        id: Option<&RequestId>,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, HttpFailure> {
        let status = response.status();
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = read(response, FAILURE_BODY).await.unwrap_or_default();
        if in_session && forgets_session(status, &body) {
            self.expired.store(true, Ordering::Release);
            return Err(HttpFailure::SessionExpired);
        }
        let refused_access = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if !refused_access
            && kind.starts_with(JSON)
            && let Some(id) = id
            && let Ok(JsonRpcMessage::Error(mut error)) = serde_json::from_slice::<ServerJsonRpcMessage>(&body)
        {
            // The response belongs to this request, whatever id a server gives it that could not read ours.
            error.id = Some(id.clone());
            return Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), None));
        }
        Err(HttpFailure::Status { status: status.as_u16(), location, body: excerpt(&body) })
    }

    fn message(&self, body: &[u8]) -> Option<ServerJsonRpcMessage> {
        match self.inbox.take(body) {
            Taken::Answer(id) => Some(answered(id)),
            _ => serde_json::from_slice(body).ok(),
        }
    }

    /// The events of a body, each bounded, raw results and progress taken out.
    fn bounded<E>(
        &self,
        body: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
        id: Option<RequestId>,
    ) -> BoxStream<'static, Result<Sse, SseError>>
    where
        HttpFailure: From<E>,
    {
        let mut limit = EventLimit { size: 0, line: 0, max: self.max };
        let inbox = Arc::clone(&self.inbox);
        let body = body.map(move |chunk| {
            let chunk = chunk.map_err(HttpFailure::from)?;
            if limit.admits(&chunk) {
                return Ok(chunk);
            }
            let failure = HttpFailure::TooLarge(limit.max);
            if let Some(id) = &id {
                inbox.fail(id, &failure.to_string());
            }
            Err(failure)
        });
        self.raw(SseStream::from_bytes_stream(body))
    }

    /// Takes raw results and progress out of a stream of events.
    fn raw(
        &self,
        events: impl Stream<Item = Result<Sse, SseError>> + Send + 'static,
    ) -> BoxStream<'static, Result<Sse, SseError>> {
        let inbox = Arc::clone(&self.inbox);
        events
            .map(move |event| {
                let mut event = event?;
                if let Some(data) = event.data.take() {
                    event.data = match inbox.take(data.as_bytes()) {
                        Taken::Answer(id) => serde_json::to_string(&answered(id)).ok(),
                        Taken::Progress => None,
                        Taken::Other | Taken::Garbage => Some(data),
                    };
                }
                Ok(event)
            })
            .boxed()
    }
}

impl StreamableHttpClient for HttpPeer {
    type Error = HttpFailure;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        self.post(uri, message, session_id, custom_headers).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Error> {
        self.client.delete_session(uri, session_id, auth_header, custom_headers).await.map_err(converted)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        let (client, max) = (&self.client, self.max);
        let stream = client
            .get_stream_with_max_sse_event_size(uri, session_id, last_event_id, auth_header, custom_headers, max)
            .await;
        stream.map(|events| self.raw(events)).map_err(converted)
    }
}

/// The same error, with a failure of ours in place of the client's.
fn converted(error: StreamableHttpError<reqwest::Error>) -> Error {
    match error {
        StreamableHttpError::Client(error) => StreamableHttpError::Client(error.into()),
        StreamableHttpError::ServerDoesNotSupportSse => StreamableHttpError::ServerDoesNotSupportSse,
        StreamableHttpError::AuthRequired(error) => StreamableHttpError::AuthRequired(error),
        StreamableHttpError::InsufficientScope(error) => StreamableHttpError::InsufficientScope(error),
        StreamableHttpError::HttpStatus(error) => StreamableHttpError::HttpStatus(error),
        other => StreamableHttpError::Client(HttpFailure::Other(other.to_string())),
    }
}

/// The configured headers, checked.
///
/// # Errors
/// Names the header that cannot be sent, never its value.
pub(super) fn header_map(headers: &BTreeMap<String, String>) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let mut map = HashMap::with_capacity(headers.len());
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

/// The status for it is 404; servers after the TypeScript SDK's examples say 400 and complain of the session.
fn forgets_session(status: StatusCode, body: &[u8]) -> bool {
    let complains = || String::from_utf8_lossy(body).to_ascii_lowercase().contains("session");
    status == StatusCode::NOT_FOUND || (status == StatusCode::BAD_REQUEST && complains())
}

fn request_id(message: &ClientJsonRpcMessage) -> Option<RequestId> {
    match message {
        JsonRpcMessage::Request(request) => Some(request.id.clone()),
        _ => None,
    }
}

fn content_type(response: &reqwest::Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().trim().to_ascii_lowercase()
}

/// A body of at most `max` bytes.
async fn read(mut response: reqwest::Response, max: usize) -> Result<Vec<u8>, HttpFailure> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max {
            return Err(HttpFailure::TooLarge(max));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(1000)]);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// Counts the bytes of an event; a blank line ends it.
struct EventLimit {
    size: usize,
    line: usize,
    max: usize,
}

impl EventLimit {
    fn admits(&mut self, chunk: &[u8]) -> bool {
        for &byte in chunk {
            self.size += 1;
            match byte {
                b'\n' if self.line == 0 => self.size = 0,
                b'\n' => self.line = 0,
                b'\r' => {}
                _ => self.line += 1,
            }
            if self.size > self.max {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_bounded_one_by_one() {
        let mut limit = EventLimit { size: 0, line: 0, max: 10 };
        for (chunk, expect) in [("data: a\n\n", true), ("data: b\r\n\r\n", true), ("data", true), (": 12345", false)] {
            assert_eq!(limit.admits(chunk.as_bytes()), expect, "{chunk}");
        }
    }

    #[test]
    fn headers_that_cannot_be_sent_are_named_without_their_value() {
        let map = |name: &str, value: &str| header_map(&BTreeMap::from([(name.to_owned(), value.to_owned())]));
        assert!(map("Authorization", "Bearer x").is_ok());
        for (name, value) in [("a b", "v"), ("Accept", "v"), ("x", "sec\nret")] {
            let error = map(name, value).expect_err("refused");
            assert!(error.contains(name) && !error.contains("sec"), "{error}");
        }
    }
}
