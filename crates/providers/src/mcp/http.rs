//! Streamable HTTP over one pooled client: every request a POST, answered with JSON or a stream of events.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use http::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::Value;
use sse_stream::SseStream;
use tokio::task::AbortHandle;
use toolwright_mcp::revision::Era;

use super::explain::HttpFailure;
use super::transport::{Incoming, Outgoing, OutgoingKind, RequestId, SendError, Told, Transport};

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
/// Headers that the protocol owns.
const RESERVED: [&str; 4] = ["accept", "mcp-session-id", "mcp-protocol-version", "last-event-id"];
/// First and longest pause before the session's event stream is opened again.
const STREAM_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// What is read of the body of a failure, in bytes.
const FAILURE_BODY: usize = 64 * 1024;

/// The HTTP side of one connection.
pub(super) struct HttpTransport {
    client: reqwest::Client,
    url: String,
    headers: HeaderMap,
    max: usize,
    incoming: Arc<dyn Incoming>,
    own: Weak<Self>,
    session: OnceLock<HeaderValue>,
    established: OnceLock<(Era, &'static str)>,
    tasks: Mutex<HashMap<Option<RequestId>, AbortHandle>>,
}

impl HttpTransport {
    /// A transport to `url` whose messages are at most `max` bytes.
    pub(super) fn new(
        client: reqwest::Client,
        url: &str,
        headers: HeaderMap,
        max: usize,
        incoming: Arc<dyn Incoming>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            client,
            url: url.to_owned(),
            headers,
            max,
            incoming,
            own: Weak::clone(own),
            session: OnceLock::new(),
            established: OnceLock::new(),
            tasks: Mutex::default(),
        })
    }

    async fn post(&self, message: Outgoing) -> Result<(), HttpFailure> {
        let mut request = self.client.post(&self.url).headers(self.headers.clone());
        request = request.header(ACCEPT, format!("{JSON}, {EVENT_STREAM}")).header(CONTENT_TYPE, JSON);
        let is_modern = message.version == Some(toolwright_mcp::revision::MODERN_VERSIONS[0]);
        if let Some(version) = message.version {
            request = request.header(VERSION, version);
        }
        for (name, value) in message.headers {
            request = request.header(name, value);
        }
        let id = match message.kind {
            OutgoingKind::Request { id, method, name } => {
                if is_modern {
                    request = request.header("mcp-method", method);
                    if let Some(name) = name {
                        request = request.header("mcp-name", name);
                    }
                }
                Some(id)
            }
            OutgoingKind::Notification { .. } | OutgoingKind::Response => None,
        };
        if let Some(session) = self.session.get() {
            request = request.header(SESSION, session.clone());
        }
        let response = request.body(message.json).send().await?;
        let status = response.status();
        let kind = content_type(&response);
        if !status.is_success() {
            return self.refusal(response, &kind, id).await;
        }
        if let Some(session) = response.headers().get(SESSION) {
            // The first one stands.
            let _ = self.session.set(session.clone());
        }
        let Some(id) = id else { return Ok(()) };
        if kind.starts_with(EVENT_STREAM) {
            self.events(response, Some(id)).await?;
        } else if kind.starts_with(JSON) {
            let body = read(response, self.max).await?;
            self.incoming.message(&body, Some(id));
            return Err(HttpFailure::NotJsonRpc(excerpt(&body)));
        } else {
            return Err(HttpFailure::NotMcp(kind));
        }
        Err(HttpFailure::Other("the server ended its response before the result".to_owned()))
    }

    /// What a failed response says: a JSON-RPC error, or the failure.
    async fn refusal(&self, response: reqwest::Response, kind: &str, id: Option<RequestId>) -> Result<(), HttpFailure> {
        let status = response.status();
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = read(response, FAILURE_BODY).await.unwrap_or_default();
        if self.session.get().is_some() && forgets_session(status, &body) {
            return Err(HttpFailure::SessionExpired);
        }
        let refused_access = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let is_error = || serde_json::from_slice::<Value>(&body).is_ok_and(|body| body.get("error").is_some());
        if !refused_access && kind.starts_with(JSON) && id.is_some() && is_error() {
            // Answers the request, whatever id a server gives it that could not read ours.
            self.incoming.message(&body, id);
        }
        Err(HttpFailure::Status { status: status.as_u16(), location, body: excerpt(&body) })
    }

    /// Hands the events of a body on, each bounded.
    async fn events(&self, response: reqwest::Response, id: Option<RequestId>) -> Result<(), HttpFailure> {
        let mut limit = EventLimit { size: 0, line: 0, max: self.max };
        let body = response.bytes_stream().map(move |chunk| {
            let chunk = chunk.map_err(HttpFailure::from)?;
            if limit.admits(&chunk) { Ok(chunk) } else { Err(HttpFailure::TooLarge(limit.max)) }
        });
        let mut events = SseStream::from_bytes_stream(body);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if let Some(data) = event.data.filter(|data| !data.is_empty()) {
                        self.incoming.message(data.as_bytes(), id);
                    }
                }
                Err(sse_stream::Error::Body(error)) => {
                    return Err(match error.downcast::<HttpFailure>() {
                        Ok(failure) => *failure,
                        Err(error) => HttpFailure::Broken(error.to_string()),
                    });
                }
                Err(error) => return Err(HttpFailure::Broken(error.to_string())),
            }
        }
        Ok(())
    }

    /// Keeps the stream open on which a server speaks unasked.
    async fn follow(&self, version: &'static str) {
        let (first, longest) = STREAM_PAUSES;
        let mut pause = first;
        loop {
            let mut request = self.client.get(&self.url).headers(self.headers.clone());
            request = request.header(ACCEPT, EVENT_STREAM).header(VERSION, version);
            if let Some(session) = self.session.get() {
                request = request.header(SESSION, session.clone());
            }
            if let Ok(response) = request.send().await {
                if !response.status().is_success() {
                    return;
                }
                pause = first;
                // It is opened again.
                let _ = self.events(response, None).await;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    fn keep(&self, id: Option<RequestId>, task: AbortHandle) {
        let mut tasks = self.tasks();
        tasks.retain(|_, task| !task.is_finished());
        tasks.insert(id, task);
    }

    fn tasks(&self) -> MutexGuard<'_, HashMap<Option<RequestId>, AbortHandle>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(&self, message: Outgoing) -> Result<(), SendError> {
        let OutgoingKind::Request { id, .. } = &message.kind else {
            return self.post(message).await.map_err(|failure| failure.to_send_error());
        };
        let (id, Some(own)) = (*id, self.own.upgrade()) else { return Ok(()) };
        let task = tokio::spawn(async move {
            if let Err(failure) = own.post(message).await {
                own.incoming.lost(id, failure.to_send_error());
            }
        });
        self.keep(Some(id), task.abort_handle());
        Ok(())
    }

    fn established(&self, era: Era, version: &'static str) {
        // There is one handshake.
        let _ = self.established.set((era, version));
        if era == Era::Legacy
            && let Some(own) = self.own.upgrade()
        {
            self.keep(None, tokio::spawn(async move { own.follow(version).await }).abort_handle());
        }
    }

    fn abandon(&self, id: RequestId) -> Told {
        if let Some(task) = self.tasks().remove(&Some(id)) {
            task.abort();
        }
        match self.established.get() {
            Some((Era::Modern, _)) => Told::Yes,
            _ => Told::No,
        }
    }

    async fn close(&self) {
        for (_, task) in self.tasks().drain() {
            task.abort();
        }
        if let (Some(session), Some((_, version))) = (self.session.get(), self.established.get()) {
            let request = self.client.delete(&self.url).headers(self.headers.clone());
            let request = request.header(SESSION, session.clone()).header(VERSION, *version);
            // A server need not care for the end of a session.
            let _ = tokio::time::timeout(Duration::from_secs(1), request.send()).await;
        }
        self.incoming.ended("the connection is closed".to_owned());
    }
}

/// The configured headers, checked.
///
/// # Errors
/// Names the header that cannot be sent, never its value.
pub(super) fn header_map(headers: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
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

/// The status for it is 404; servers after the TypeScript SDK's examples say 400 and complain of the session.
fn forgets_session(status: StatusCode, body: &[u8]) -> bool {
    let complains = || String::from_utf8_lossy(body).to_ascii_lowercase().contains("session");
    status == StatusCode::NOT_FOUND || (status == StatusCode::BAD_REQUEST && complains())
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
