//! HTTP with SSE, as of 2024-11-05 (basic/transports): all messages arrive on one stream, whose first event
//! names the address for POST.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use reqwest::Response;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;
use toolwright_core::sse::{Events, TooLong};
use url::Url;

use super::HttpFailure;
use super::delivery::{WaitingRequests, deliver, is_message};
use super::target::{EVENT_STREAM, JSON, Kind, Refusal, Target, kind, not_mcp, read_rest};
use crate::transport::{Incoming, Outgoing, OutgoingKind, SendError, Transport};

/// Bound on the opening of the stream and its first event.
const OPEN_BOUND: Duration = Duration::from_secs(10);
/// Bound on a message that gets no answer.
const NOTIFY_BOUND: Duration = Duration::from_secs(10);

/// A server over HTTP with SSE.
pub(super) struct LegacySse {
    target: Arc<Target>,
    endpoint: Url,
    waiting: Arc<WaitingRequests>,
    reader: AbortOnDropHandle<()>,
}

impl LegacySse {
    /// Opens the stream and waits for its first event, at most ten seconds.
    ///
    /// # Errors
    /// [`SendError`]: only the request for the stream was sent.
    pub(super) async fn open(target: Arc<Target>, incoming: Arc<dyn Incoming>) -> Result<Self, SendError> {
        let timed_out = |_| HttpFailure::Other("it opens no event stream within 10 s: is it an MCP server?".to_owned());
        Ok(tokio::time::timeout(OPEN_BOUND, Self::try_open(target, incoming)).await.map_err(timed_out)??)
    }

    async fn try_open(target: Arc<Target>, incoming: Arc<dyn Incoming>) -> Result<Self, HttpFailure> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(EVENT_STREAM))]);
        let response = target.request(Method::GET, &target.url, headers, None).await?;
        if !response.status().is_success() {
            return Err(target.failure(Refusal::read(response).await));
        }
        if kind(&response) != Kind::Events {
            return Err(not_mcp(&response));
        }
        let waiting = Arc::new(WaitingRequests::default());
        let (found, endpoint) = oneshot::channel();
        let reader = Reader {
            base: target.url.clone(),
            max: target.max,
            found: Some(found),
            waiting: Arc::clone(&waiting),
            incoming,
        };
        let reader = AbortOnDropHandle::new(tokio::spawn(reader.read(response)));
        let ended = |_| HttpFailure::Broken("the event stream was not read".to_owned());
        let endpoint = endpoint.await.map_err(ended)??;
        Ok(Self { target, endpoint, waiting, reader })
    }

    async fn post(&self, message: Outgoing<'_>) -> Result<(), HttpFailure> {
        let request = match message.kind {
            OutgoingKind::Request { id, .. } => Some(id),
            OutgoingKind::Notification { .. } | OutgoingKind::Response => None,
        };
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(JSON))]);
        let response = self.target.request(Method::POST, &self.endpoint, headers, Some(message.json.into())).await?;
        if response.status().is_success() {
            read_rest(response).await;
            return Ok(());
        }
        let refusal = Refusal::read(response).await;
        Err(if refusal.is_session_refusal(request) {
            HttpFailure::SessionExpired
        } else {
            self.target.failure(refusal)
        })
    }
}

#[async_trait]
impl Transport for LegacySse {
    async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError> {
        match message.kind {
            OutgoingKind::Request { id, .. } => {
                // There are servers that respond to the message only after its answer is on the stream.
                let answered = self.waiting.begin(id);
                tokio::select! {
                    posted = self.post(message) => Ok(posted?),
                    () = answered => Ok(()),
                }
            }
            OutgoingKind::Notification { .. } | OutgoingKind::Response => {
                let timed_out = |_| HttpFailure::Other("it does not take messages: no response within 10 s".to_owned());
                Ok(tokio::time::timeout(NOTIFY_BOUND, self.post(message)).await.map_err(timed_out)??)
            }
        }
    }

    async fn close(&self) {
        self.reader.abort();
    }
}

/// Reads the stream.
struct Reader {
    base: Url,
    max: usize,
    /// Receives the first event.
    found: Option<oneshot::Sender<Result<Url, HttpFailure>>>,
    waiting: Arc<WaitingRequests>,
    incoming: Arc<dyn Incoming>,
}

impl Reader {
    async fn read(mut self, mut response: Response) {
        let mut events = Events::new(self.max);
        let end = loop {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    if let Err(TooLong(_)) = events.feed(&chunk, &mut |event| {
                        if event.kind == b"endpoint" && !event.data.is_empty() {
                            self.endpoint(event.data);
                        } else if is_message(&event) {
                            let delivered = deliver(&*self.incoming, event.data, None);
                            for id in delivered.answered {
                                self.waiting.answered(id);
                            }
                            if delivered.garbage && self.incoming.unreadable(event.data) {
                                self.waiting.end_all();
                            }
                        }
                        Ok(())
                    }) {
                        break HttpFailure::TooLarge(self.max);
                    }
                }
                Ok(None) => break HttpFailure::Broken("the event stream ended".to_owned()),
                Err(error) => break error.into(),
            }
        };
        match self.found.take() {
            // The receiver may be gone.
            Some(found) => drop(found.send(Err(end))),
            None if matches!(end, HttpFailure::TooLarge(_)) => self.incoming.message_too_large(end.to_string()),
            None => self.incoming.ended(end.to_string()),
        }
    }

    /// A later one, which no revision knows, is ignored.
    fn endpoint(&mut self, data: &[u8]) {
        let Some(found) = self.found.take() else { return };
        // The receiver may be gone.
        let _ = found.send(endpoint(&self.base, data));
    }
}

/// Returns the address for messages. Credentials must not leave the server's origin.
fn endpoint(base: &Url, data: &[u8]) -> Result<Url, HttpFailure> {
    let url = std::str::from_utf8(data).ok().and_then(|path| base.join(path.trim()).ok());
    match url {
        None => Err(HttpFailure::Other("the endpoint that its event stream names is not a URL".to_owned())),
        Some(url) if url.origin() != base.origin() => Err(HttpFailure::Other(format!(
            "its event stream names an endpoint at another origin, {}, which is refused",
            url.origin().ascii_serialization()
        ))),
        Some(url) => Ok(url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_stay_with_their_origin() {
        let base = Url::parse("http://h:1/a/sse?k=1").expect("url");
        for (data, expect) in [
            ("/messages?sessionId=1", Some("http://h:1/messages?sessionId=1")),
            ("messages", Some("http://h:1/a/messages")),
            ("?s=1", Some("http://h:1/a/sse?s=1")),
            ("http://h:1/m", Some("http://h:1/m")),
            ("http://h:2/m", None),
            ("https://h:1/m", None),
            ("//evil/m", None),
            ("http://h:1@evil/m", None),
            ("file:///etc/passwd", None),
            ("http://[", None),
        ] {
            assert_eq!(endpoint(&base, data.as_bytes()).ok().as_ref().map(Url::as_str), expect, "{data}");
        }
    }
}
