//! Answers to one HTTP request.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::sessions::Busy;
use crate::mcp::call::RunningCall;
use crate::mcp::message::{self, Id, RpcError};
use crate::mcp::protocol::Era;

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
    /// was understood is answered 200.
    pub(super) fn of(era: Era, id: &Id, error: &RpcError) -> Self {
        let status = match (era, error.code) {
            (_, RpcError::BUSY) => StatusCode::SERVICE_UNAVAILABLE,
            (Era::Legacy, _) | (Era::Modern, RpcError::INTERNAL) => StatusCode::OK,
            (Era::Modern, RpcError::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
            (Era::Modern, _) => StatusCode::BAD_REQUEST,
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
pub(super) type Held = (OwnedSemaphorePermit, Option<Busy>);

/// What a running call has to say.
pub(super) struct CallEvents {
    pub(super) id: Id,
    call: RunningCall,
    notes: mpsc::Receiver<Bytes>,
    /// The end, while notes that came before it are still to be given out.
    end: Option<Result<Vec<u8>, RpcError>>,
    _held: Held,
}

/// One thing that it says.
pub(super) enum CallEvent {
    /// A notification.
    Note(Bytes),
    /// The last: result or error, or nothing to a client that cancelled.
    End(Option<Result<Vec<u8>, RpcError>>),
}

impl CallEvents {
    pub(super) fn new(id: Id, call: RunningCall, notes: mpsc::Receiver<Bytes>, held: Held) -> Self {
        Self { id, call, notes, end: None, _held: held }
    }

    /// The next event; the last is the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> CallEvent {
        loop {
            if let Ok(note) = self.notes.try_recv() {
                return CallEvent::Note(note);
            }
            if let Some(end) = self.end.take() {
                return CallEvent::End((!self.call.is_unwanted()).then_some(end));
            }
            tokio::select! {
                biased;
                Some(note) = self.notes.recv() => return CallEvent::Note(note),
                end = self.call.finish() => self.end = Some(end),
            }
        }
    }

    /// The rest as messages.
    pub(super) fn messages(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(Some(self), |state| async move {
            let mut events = state?;
            match events.next().await {
                CallEvent::Note(note) => Some((note, Some(events))),
                CallEvent::End(end) => match end? {
                    Ok(result) => Some((message::result(&events.id, &result), None)),
                    Err(error) => Some((message::error(Some(&events.id), &error), None)),
                },
            }
        })
    }
}
