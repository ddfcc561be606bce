//! The answer to one HTTP request: an error, JSON, or server-sent events with one JSON message each.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::RequestPermit;
use super::sessions::{HttpSession, SessionInUse};
use crate::mcp::message::{self, ErrorAuthor, Id, RpcError};
use crate::mcp::protocol::Era;
use crate::mcp::response::{Event, ResponseGuard, whole};

/// An error answer.
pub(super) struct Refusal {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
}

impl Refusal {
    /// A refusal as text that begins with the status.
    pub(super) fn text(status: StatusCode, why: &str) -> Self {
        let body = format!("{}: {why}\n", status.as_u16()).into();
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// A refusal as a JSON-RPC error.
    pub(super) fn rpc(status: StatusCode, id: Option<&Id>, error: &RpcError) -> Self {
        Self { status, content_type: "application/json", body: message::error(id, error) }
    }

    /// A JSON-RPC error with the HTTP status of its generation. Before 2026-07-28 every understood request is answered
    /// 200. A source's error is no transport failure, because clients would discard its message or the connection. Only
    /// errors that 2026-07-28 binds to a status have that status, regardless of who reports them.
    pub(super) fn of(era: Era, id: &Id, error: &RpcError) -> Self {
        let status = match (era, error.author, error.code) {
            (_, ErrorAuthor::Us, RpcError::BUSY) => StatusCode::SERVICE_UNAVAILABLE,
            (Era::Legacy, ..) | (Era::Modern, ErrorAuthor::Us, RpcError::INTERNAL) => StatusCode::OK,
            (Era::Modern, _, RpcError::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
            (Era::Modern, ErrorAuthor::Us, _)
            | (Era::Modern, ErrorAuthor::Source, RpcError::INVALID_PARAMS | RpcError::MISSING_CAPABILITY) => {
                StatusCode::BAD_REQUEST
            }
            (Era::Modern, ErrorAuthor::Source, _) => StatusCode::OK,
        };
        Self::rpc(status, Some(id), error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, [(header::CONTENT_TYPE, self.content_type)], self.body).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Returns a message as a JSON body.
pub(super) fn json(message: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], message).into_response()
}

/// Resources that a request holds until its response has been sent.
pub(super) type ResponseHold = (RequestPermit, Option<SessionInUse>);

/// The events of a running request.
pub(super) struct Events {
    waiting: ResponseGuard,
    events: mpsc::Receiver<Event>,
    held: Option<ResponseHold>,
}

impl Events {
    pub(super) fn new(waiting: ResponseGuard, events: mpsc::Receiver<Event>, held: ResponseHold) -> Self {
        Self { waiting, events, held: Some(held) }
    }

    pub(super) fn id(&self) -> &Id {
        self.waiting.id()
    }

    /// Returns the session of the request, if its client resumes streams.
    pub(super) fn resumable(&self) -> Option<Arc<HttpSession>> {
        let (_, busy) = self.held.as_ref()?;
        let session = busy.as_ref()?.session();
        session.caller.client.resumes_streams().then(|| Arc::clone(session))
    }

    /// Takes the resources to hold until the response has been sent.
    pub(super) fn release(&mut self) -> Option<ResponseHold> {
        self.held.take()
    }

    /// Returns the next event; the last is the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Event {
        // The work always sends an end, unless the whole server stops.
        self.events.recv().await.unwrap_or(Event::End(None))
    }

    /// Returns the remaining events as messages.
    pub(super) fn messages(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(Some(self), |state| async move {
            let mut events = state?;
            match events.next().await {
                Event::Note(note) => Some((note, Some(events))),
                Event::End(end) => Some((whole(events.id(), &end?), None)),
            }
        })
    }
}

/// A stream of messages as a response. After each `keep_alive` of silence it sends a comment, so that proxies keep the
/// connection open and a disconnected client is noticed.
pub(super) fn event_stream(messages: impl Stream<Item = Bytes> + Send + 'static, keep_alive: Duration) -> Response {
    frame_stream(messages.map(|message| frame(&message)), keep_alive)
}

/// Returns the same for framed messages.
pub(super) fn frame_stream(frames: impl Stream<Item = Bytes> + Send + 'static, keep_alive: Duration) -> Response {
    let mut tick = interval_at(Instant::now() + keep_alive, keep_alive);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let frames = stream::unfold((Box::pin(frames), tick), |(mut frames, mut tick)| async move {
        let frame = tokio::select! {
            biased;
            frame = frames.next() => {
                tick.reset();
                frame?
            }
            _ = tick.tick() => Bytes::from_static(b":\n\n"),
        };
        Some((Ok::<_, Infallible>(frame), (frames, tick)))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    // Tells nginx not to buffer events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Returns an event with an id. An empty message becomes empty data.
pub(super) fn numbered(id: impl Display, message: &[u8]) -> Bytes {
    let mut frame = format!("id: {id}\ndata:").into_bytes();
    if !message.is_empty() {
        frame.push(b' ');
    }
    frame.extend_from_slice(message);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// Returns a message as an event. A message never contains a line break: its JSON is written without whitespace.
fn frame(message: &Bytes) -> Bytes {
    let mut frame = Vec::with_capacity(message.len() + 8);
    frame.extend_from_slice(b"data: ");
    frame.extend_from_slice(message);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}
