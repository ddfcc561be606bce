//! Answers to one HTTP request.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::mpsc;

use super::Place;
use super::sessions::{Busy, HttpSession};
use crate::mcp::message::{self, Id, RpcError, SaidBy};
use crate::mcp::protocol::Era;
use crate::mcp::response_channel::{Said, Waiting, whole};

/// An answer that says why there is no other.
pub(super) struct Refusal {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
}

impl Refusal {
    /// In words; the status comes first.
    pub(super) fn text(status: StatusCode, why: &str) -> Self {
        let body = format!("{}: {why}\n", status.as_u16()).into();
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// As a JSON-RPC error.
    pub(super) fn rpc(status: StatusCode, id: Option<&Id>, error: &RpcError) -> Self {
        Self { status, content_type: "application/json", body: message::error(id, error) }
    }

    /// A JSON-RPC error with the status that its generation gives it: before 2026-07-28 a request that
    /// was understood is answered 200. A source's error is no failure of the transport: clients that find one there
    /// throw its words away, or the connection. Only what 2026-07-28 binds to a status has that, whoever says it.
    pub(super) fn of(era: Era, id: &Id, error: &RpcError) -> Self {
        let status = match (era, error.said_by, error.code) {
            (_, SaidBy::Us, RpcError::BUSY) => StatusCode::SERVICE_UNAVAILABLE,
            (Era::Legacy, ..) | (Era::Modern, SaidBy::Us, RpcError::INTERNAL) => StatusCode::OK,
            (Era::Modern, _, RpcError::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
            (Era::Modern, SaidBy::Us, _)
            | (Era::Modern, SaidBy::Source, RpcError::INVALID_PARAMS | RpcError::MISSING_CAPABILITY) => {
                StatusCode::BAD_REQUEST
            }
            (Era::Modern, SaidBy::Source, _) => StatusCode::OK,
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

/// A message as a JSON body.
pub(super) fn json(message: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], message).into_response()
}

/// What a request keeps until its response has been sent.
pub(super) type Held = (Place, Option<Busy>);

/// What a request that runs has to say.
pub(super) struct Events {
    waiting: Waiting,
    said: mpsc::Receiver<Said>,
    held: Option<Held>,
}

impl Events {
    pub(super) fn new(waiting: Waiting, said: mpsc::Receiver<Said>, held: Held) -> Self {
        Self { waiting, said, held: Some(held) }
    }

    pub(super) fn id(&self) -> &Id {
        self.waiting.id()
    }

    /// The session of the request, where its streams outlive their connections.
    pub(super) fn resumable(&self) -> Option<Arc<HttpSession>> {
        let (_, busy) = self.held.as_ref()?;
        let session = busy.as_ref()?.session();
        session.caller.peer.resumes_streams().then(|| Arc::clone(session))
    }

    /// Gives away what is kept until the response has been sent.
    pub(super) fn release(&mut self) -> Option<Held> {
        self.held.take()
    }

    /// The next; the last is the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Said {
        // Whoever runs it says an end in any case; there is none only when the whole server stops.
        self.said.recv().await.unwrap_or(Said::End(None))
    }

    /// The rest as messages.
    pub(super) fn messages(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(Some(self), |state| async move {
            let mut events = state?;
            match events.next().await {
                Said::Note(note) => Some((note, Some(events))),
                Said::End(end) => Some((whole(events.id(), &end?), None)),
            }
        })
    }
}
