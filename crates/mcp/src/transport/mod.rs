//! Defines the transport: it carries messages between the protocol and one server. [`Traced`] also shows them.

pub(crate) mod child_process;
mod outbox;
pub(crate) mod remote;
pub(crate) mod stdio;

use std::fmt;
use std::sync::Arc;

use crate::protocol::revision::Era;
use crate::transport::child_process::StdoutNoise;
use async_trait::async_trait;
use http::{HeaderName, HeaderValue};

/// Start of the reason for a message over the size limit.
pub(crate) const TOO_LARGE: &str = "message over max_message_bytes";

/// Start of the reason for an answer that is JSON but cannot be parsed.
pub(crate) const UNREADABLE: &str = "the server's answer cannot be read";

/// Whether the answer arrived but is unusable: a retry would give the same answer.
pub(crate) fn is_reply_failure(reason: &str) -> bool {
    [TOO_LARGE, UNREADABLE].iter().any(|beginning| reason.starts_with(beginning))
}

/// Id of a request of ours.
pub(crate) type RequestId = u64;

/// Parses our request id as a server returns it. Our ids are numbers; a text with the same digits is another id.
pub(crate) fn own_id(json: &str) -> Option<RequestId> {
    let json = json.trim();
    json.bytes().all(|byte| byte.is_ascii_digit()).then(|| json.parse().ok())?
}

/// An outgoing message.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// The message, without a line feed.
    pub(crate) json: Vec<u8>,
    /// Its kind.
    pub(crate) kind: OutgoingKind<'a>,
    /// Its protocol revision; `None` in the handshake, before it is known.
    pub(crate) version: Option<&'static str>,
    /// Further headers of this message over HTTP (2026-07-28: `Mcp-Param-*`).
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

/// The kind of a message, as far as transports need it.
#[derive(Debug)]
pub(crate) enum OutgoingKind<'a> {
    /// A request.
    Request {
        /// Its id.
        id: RequestId,
        /// Its method.
        method: &'a str,
        /// The object that it names (a tool, a prompt, a resource's URI), for the header `Mcp-Name`.
        name: Option<&'a str>,
    },
    /// A notification.
    Notification {
        /// Its method.
        method: &'a str,
    },
    /// The answer to a request of the server's.
    Response,
}

/// A message, or the answer to it, that will not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SendError {
    /// It had no effect.
    NotSent(String),
    /// It may have had its effect.
    Broken(String),
    /// The server reports a fault of its own, which says nothing about its revision. The message may have
    /// had an effect.
    Fault(String),
    /// A failure that a retry does not fix: not authorized, a redirect. It had no effect. A status by which a
    /// server of another revision may reject an unknown message (400, 404, 405, another content type) is
    /// [`SendError::Broken`], so that the next handshake is tried.
    Final(String),
    /// The server has forgotten the session, or no longer supports the negotiated version. It had no effect.
    Expired,
}

impl OutgoingKind<'_> {
    /// Returns the method, if it has one.
    pub(crate) fn method(&self) -> Option<&str> {
        match self {
            Self::Request { method, .. } | Self::Notification { method } => Some(method),
            Self::Response => None,
        }
    }
}

/// Receives messages. Never blocks. Answers to requests that are answered or abandoned are
/// ignored, so a transport need not know whether an answer came: at the end of a response it may always call
/// [`Incoming::request_failed`].
pub(crate) trait Incoming: Send + Sync {
    /// A message. `during` is our request whose response stream it came in, if the transport knows.
    fn message(&self, json: &[u8], during: Option<RequestId>);
    /// Unreadable data on a connection for all answers. If it was meant as a message, every request in
    /// flight fails, because the answered one is unknown. Returns whether any failed.
    fn unreadable(&self, json: &[u8]) -> bool;
    /// The answer to this request will not arrive.
    fn request_failed(&self, id: RequestId, error: SendError);
    /// Data that is no message, or is too large; reported to the operator.
    fn unreadable_message(&self, what: &str);
    /// The server has forgotten the session; no request was told so.
    fn expired(&self);
    /// The server may have forgotten the session: the next request must start another.
    fn session_may_be_lost(&self);
    /// Unsolicited messages may have been missed; the stream works again.
    fn messages_missed(&self);
    /// The connection ended at a message over its bound, with this reason. If only one request waits, it was its
    /// answer.
    fn message_too_large(&self, too_large: String);
    /// Nothing more will arrive or can be sent.
    fn ended(&self, reason: String);
}

/// Receives data of a pipe, which does not say to which request it belongs, and answers questions of its writer and
/// reader.
#[async_trait]
pub(crate) trait PipeIncoming: Incoming {
    /// Number of requests that the server has to answer, including unsent ones; without subscriptions.
    fn in_flight(&self) -> usize;
    /// A line that is no message, or that cannot be read.
    fn unreadable_line(&self, line: &[u8], problem: &str);
    /// A line over the bound was skipped, with this reason; `head` is its beginning. If it was meant as a message, the
    /// request that it answers fails, or every request in flight if `head` does not identify it.
    fn line_too_long(&self, too_long: String, head: &[u8]);
    /// Output of the server that is no message.
    fn stdout_noise(&self) -> &StdoutNoise;
    /// The first reason given to [`Incoming::ended`].
    fn end_reason(&self) -> Option<&str>;
    /// The server has closed its input: waits for the answers to earlier requests, within a bound.
    async fn last_answers(&self);
}

/// An open transport to one server. All methods may be used concurrently. Dropping it ends everything that it started.
#[async_trait]
pub(crate) trait Transport: Send + Sync {
    /// Sends a message. On a pipe it is queued after all earlier messages when this returns; if a request cannot be
    /// written, [`Incoming::request_failed`] is called. Over HTTP each message is sent independently, and a request runs in its
    /// caller's task: its answer has been passed to [`Incoming`] when this returns. Dropping the future abandons the
    /// request.
    ///
    /// # Errors
    /// [`SendError`]; a request's answer is then not awaited.
    async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError>;
    /// The handshake is done: from now on the server may speak unasked (over legacy HTTP, the stream of the session
    /// is opened).
    fn established(&self, _era: Era, _version: &'static str) {}
    /// Abandons a request. The server needs no cancellation if its stream is closed
    /// (2026-07-28 over HTTP) or the request was not written yet (on a pipe).
    fn abandon(&self, _id: RequestId) -> CancelNotice {
        CancelNotice::Needed
    }
    /// Whether nothing can be sent any more, though answers may still come.
    fn is_write_closed(&self) -> bool {
        false
    }
    /// Ends it: input closed, session deleted, a process ended after a grace. Bounded by two seconds.
    async fn close(&self);
    /// Returns why it ended, with a process's last output, if more is known than [`Incoming::ended`] was told.
    async fn end_reason(&self) -> Option<String> {
        None
    }
}

/// Whether an abandoned request needs `notifications/cancelled`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelNotice {
    /// The server knows already, or never got the request.
    Unneeded,
    /// The server must get the notification.
    Needed,
}

/// Direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the server.
    Sent,
    /// From the server.
    Received,
}

/// Receives every message from and to MCP servers, as on the wire. Must not block for long.
pub trait FrameSink: fmt::Debug + Send + Sync {
    /// Shows a message.
    fn frame(&self, server: &str, direction: Direction, json: &[u8]);
}

/// A transport whose messages are shown.
pub(crate) struct Traced {
    pub(crate) inner: Arc<dyn Transport>,
    pub(crate) server: Arc<str>,
    pub(crate) frames: Arc<dyn FrameSink>,
}

#[async_trait]
impl Transport for Traced {
    async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError> {
        self.frames.frame(&self.server, Direction::Sent, &message.json);
        self.inner.send(message).await
    }

    fn established(&self, era: Era, version: &'static str) {
        self.inner.established(era, version);
    }

    fn abandon(&self, id: RequestId) -> CancelNotice {
        self.inner.abandon(id)
    }

    fn is_write_closed(&self) -> bool {
        self.inner.is_write_closed()
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    async fn end_reason(&self) -> Option<String> {
        self.inner.end_reason().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_digits_are_no_own_ids() {
        for (json, expect) in
            [("7", Some(7)), (" 7 ", Some(7)), ("\"7\"", None), ("7.0", None), ("+7", None), ("-7", None), ("", None)]
        {
            assert_eq!(own_id(json), expect, "{json}");
        }
    }
}
