//! Defines the transport: it carries messages between the protocol and one server.

mod outbox;
pub(crate) mod process;
pub(crate) mod remote;
pub(crate) mod stdio;
pub(crate) mod traced;

use crate::protocol::revision::Era;
use crate::transport::process::StdoutNoise;
use async_trait::async_trait;
use http::{HeaderName, HeaderValue};

/// What the reason of a message that is larger than what is taken begins with.
pub(crate) const TOO_LARGE: &str = "message over max_message_bytes";

/// What the reason of an answer that is JSON and yet cannot be read begins with.
pub(crate) const UNREADABLE: &str = "the server's answer cannot be read";

/// Whether a request was lost for what its answer holds: the server has given it, and would give it again.
pub(crate) fn has_come(reason: &str) -> bool {
    [TOO_LARGE, UNREADABLE].iter().any(|beginning| reason.starts_with(beginning))
}

/// Id of a request of ours.
pub(crate) type RequestId = u64;

/// An id of ours as a server gives it back. Every id of ours is a number, and a text of the same digits is another id.
pub(crate) fn own_id(json: &str) -> Option<RequestId> {
    let json = json.trim();
    json.bytes().all(|byte| byte.is_ascii_digit()).then(|| json.parse().ok())?
}

/// One message on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// The message, without a line feed.
    pub(crate) json: Vec<u8>,
    /// What it is.
    pub(crate) kind: OutgoingKind<'a>,
    /// The revision it is written in; `None` in the handshake, before it is known.
    pub(crate) version: Option<&'static str>,
    /// Headers of this message over HTTP besides those of the transport (2026-07-28: `Mcp-Param-*`).
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

/// What a message is, as far as its way depends on it.
#[derive(Debug)]
pub(crate) enum OutgoingKind<'a> {
    /// A request.
    Request {
        /// Its id.
        id: RequestId,
        /// Its method.
        method: &'a str,
        /// What it names (a tool, a prompt, a resource's URI), for the header `Mcp-Name`.
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
    /// The server says that something went wrong on its side, which says nothing of what it knows. The message may have
    /// had its effect.
    Fault(String),
    /// Something that trying again does not mend: not authorized, a redirect. It had no effect. An answer that a
    /// server of another revision may give to what it does not know (400, 404, 405, another content type) is
    /// [`SendError::Broken`], so that the next handshake is tried.
    Final(String),
    /// The server has forgotten the session, or does not speak any more what was agreed on. It had no effect.
    Expired,
}

impl OutgoingKind<'_> {
    /// The method, of what has one.
    pub(crate) fn method(&self) -> Option<&str> {
        match self {
            Self::Request { method, .. } | Self::Notification { method } => Some(method),
            Self::Response => None,
        }
    }
}

/// Takes what arrives. Never blocks. Both sides of a request that has been answered, or is not waited for any more, are
/// ignored, so a transport need not know whether an answer came: at the end of a response it may say
/// [`Incoming::lost`] in any case.
pub(crate) trait Incoming: Send + Sync {
    /// One message. `during` is our request in whose answer's stream it came, where the transport knows.
    fn message(&self, json: &[u8], during: Option<RequestId>);
    /// What cannot be read, on a connection over which all answers come. If it was meant as a message, every request in
    /// flight fails with that: nobody knows whose answer it was. Whether any did.
    fn unreadable(&self, json: &[u8]) -> bool;
    /// The answer to this request will not arrive.
    fn lost(&self, id: RequestId, error: SendError);
    /// Something that is no message, or that is too large; told to the operator.
    fn noise(&self, what: &str);
    /// The server has forgotten the session, which nobody's request was told.
    fn expired(&self);
    /// The server may have forgotten the session: the next request is to begin another.
    fn doubted(&self);
    /// What the server says unasked was not heard for a while, and is heard again.
    fn missed(&self);
    /// The connection has ended at a message over its bound, which this says. Where one request waits, it was its answer.
    fn burst(&self, too_large: String);
    /// No more will arrive, or can be sent.
    fn ended(&self, reason: String);
}

/// Takes what arrives over a pipe, of which nothing says to which request it belongs, and answers what its writer and
/// reader have to know.
#[async_trait]
pub(crate) trait PipeIncoming: Incoming {
    /// Requests that the server has to answer, or is about to have; a subscription has none but its end.
    fn in_flight(&self) -> usize;
    /// A line that is no message, or that cannot be read.
    fn garbled(&self, line: &[u8], problem: &str);
    /// A line over the bound, which this says, was skipped; of it `head` is left. If it was meant as a message, the request
    /// that it answers fails, and every one in flight where the beginning does not tell which.
    fn skipped(&self, too_long: String, head: &[u8]);
    /// What the server printed that is no message.
    fn stdout_noise(&self) -> &StdoutNoise;
    /// What [`Incoming::ended`] was told first.
    fn end_reason(&self) -> Option<&str>;
    /// The server has closed its input: waits for the answers to what it was asked before, within a bound.
    async fn last_answers(&self);
}

/// An open way to one server. All of it may be used at once. Dropped without being closed, it ends all that it started.
#[async_trait]
pub(crate) trait Transport: Send + Sync {
    /// Sends a message. On a pipe it is on its way when this returns, behind all that were sent before; a request that
    /// cannot be written is told by [`Incoming::lost`].
    /// Over HTTP each goes its own way, and a request is carried by its caller's task: its answer has been handed to
    /// [`Incoming`] when this returns. Dropping the future abandons the request.
    ///
    /// # Errors
    /// [`SendError`]; for a request the answer is then not awaited.
    async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError>;
    /// The handshake is done: from now on the server may speak unasked (over legacy HTTP, the stream of the session
    /// is opened).
    fn established(&self, _era: Era, _version: &'static str) {}
    /// The answer to this request is not wanted any more. The server needs no notice of it where its stream is closed
    /// (2026-07-28 over HTTP) or nothing of the request was written yet (on a pipe).
    fn abandon(&self, _id: RequestId) -> CancelNotice {
        CancelNotice::Needed
    }
    /// Whether nothing can be sent over it any more, though answers may come still.
    fn is_write_closed(&self) -> bool {
        false
    }
    /// Ends it: input closed, session deleted, a process ended after a grace. Bounded by two seconds.
    async fn close(&self);
    /// Why it ended, with a process's last words, if more is known than [`Incoming::ended`] was told.
    async fn end_reason(&self) -> Option<String> {
        None
    }
}

/// Whether `notifications/cancelled` must follow once an answer is not wanted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelNotice {
    /// The server knows already, or never got the request.
    Unneeded,
    /// The server must get the notification.
    Needed,
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
