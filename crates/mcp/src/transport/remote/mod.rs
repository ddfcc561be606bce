//! Transports to servers at a URL: streamable HTTP, HTTP with SSE, WebSocket.
//!
//! All of them make their requests through one [`Target`]: the pooled client of one origin, under the application's
//! address policy and proxies, with the configured headers and those of an optional [`Authorizer`]. A request that may
//! have reached its server is never repeated.
//!
//! [`Authorizer`]: toolwright_net::Authorizer

use std::sync::Arc;

use sse::LegacySse;
use streamable::StreamableHttp;
use websocket::WebSocket;

use crate::transport::{Incoming, SendError, TOO_LARGE, Transport};

pub(crate) use target::{Target, header_map};

mod delivery;
mod sse;
mod streamable;
mod target;
#[cfg(test)]
mod tests;
mod websocket;

/// The transport to a server at a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemoteKind {
    /// Streamable HTTP, or HTTP with SSE if the server turns out to be older.
    Http,
    /// HTTP with SSE.
    Sse,
    /// WebSocket.
    WebSocket,
}

/// Opens a separate transport to `target`. Streamable HTTP sends nothing yet.
///
/// # Errors
/// [`SendError`]: no message was sent.
pub(crate) async fn open(
    kind: RemoteKind,
    target: &Arc<Target>,
    incoming: Arc<dyn Incoming>,
) -> Result<Arc<dyn Transport>, SendError> {
    Ok(match kind {
        RemoteKind::Http => Arc::new(StreamableHttp::new(Arc::clone(target), incoming)),
        RemoteKind::Sse => Arc::new(LegacySse::open(Arc::clone(target), incoming).await?),
        RemoteKind::WebSocket => Arc::new(WebSocket::open(target, incoming).await?),
    })
}

/// A failed HTTP exchange.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HttpFailure {
    /// The connection failed.
    #[error("cannot connect: {0}; is the server running, and are host and port of `url` right?")]
    Connect(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The server answered with an error status.
    #[error("{}", status_text(*.status, .location.as_deref(), .body))]
    Status {
        /// Status code.
        status: u16,
        /// Target of the redirect.
        location: Option<String>,
        /// Beginning of the body.
        body: String,
    },
    /// It refuses the credentials in a configured header, with this message.
    #[error("HTTP 401: it refuses what `headers.Authorization` is set to: check that value{}", body_excerpt(.0))]
    KeyRefused(String),
    /// The required credentials are not available.
    #[error("{0}")]
    Unauthorized(String),
    /// The session that the request belonged to is gone.
    #[error("the server has forgotten the session; the next call begins a new one")]
    SessionExpired,
    /// The response is not MCP.
    #[error("it answers with `{0}`, which is not MCP: check the path of `url` (often /mcp)")]
    NotMcp(String),
    /// The response is JSON, but no message.
    #[error("it answers with JSON that is not an MCP message: {0}; check the path of `url`")]
    NotJsonRpc(String),
    /// A message over the bound, in bytes.
    #[error("{TOO_LARGE} ({0})", TOO_LARGE = TOO_LARGE)]
    TooLarge(usize),
    /// Another failure.
    #[error("{0}")]
    Other(String),
}

impl From<reqwest::Error> for HttpFailure {
    fn from(error: reqwest::Error) -> Self {
        let connect = error.is_connect();
        // The error's text has the URL, whose query may be secret; the cause is more informative anyway.
        let error = error.without_url();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = cause.to_string();
            source = cause.source();
        }
        if connect { Self::Connect(text) } else { Self::Broken(text) }
    }
}

impl From<HttpFailure> for SendError {
    fn from(failure: HttpFailure) -> Self {
        let text = failure.to_string();
        match failure {
            HttpFailure::SessionExpired => Self::Expired,
            HttpFailure::Connect(_) | HttpFailure::Status { status: 429, .. } => Self::NotSent(text),
            HttpFailure::Unauthorized(_)
            | HttpFailure::KeyRefused(_)
            | HttpFailure::Status { status: 300..=399 | 401 | 403 | 407, .. } => Self::Final(text),
            HttpFailure::Status { status, .. } if is_fault(status) => Self::Fault(text),
            HttpFailure::Broken(_)
            | HttpFailure::Status { .. }
            | HttpFailure::NotMcp(_)
            | HttpFailure::NotJsonRpc(_)
            | HttpFailure::TooLarge(_)
            | HttpFailure::Other(_) => Self::Broken(text),
        }
    }
}

/// Whether a status reports a server fault. Not implemented (501) and unsupported HTTP version (505) are statements
/// about the server's features instead.
pub(super) fn is_fault(status: u16) -> bool {
    matches!(status, 500..=599) && !matches!(status, 501 | 505)
}

fn status_text(status: u16, location: Option<&str>, body: &str) -> String {
    let remedy = match (status, location) {
        (300..=399, Some(location)) => format!("it redirects to {location}: put that into `url`"),
        (401, _) => "it requires a login: set `headers.Authorization`, for example to `Bearer ${TOKEN}`".to_owned(),
        (403, _) => {
            "it refuses access: check `headers.Authorization`, or who is logged in (`toolwright mcp ls`)".to_owned()
        }
        (404, _) => "there is nothing at this path: check `url` (often it ends in /mcp)".to_owned(),
        (405, _) => "this path takes no MCP messages, nor is it an SSE endpoint: check `url`".to_owned(),
        (407, _) => "the proxy wants credentials: check HTTPS_PROXY".to_owned(),
        (429, _) => "it is asked too often: try again later".to_owned(),
        (500..=599, _) => "the fault is on the server's side: see its log".to_owned(),
        _ => "the request was refused".to_owned(),
    };
    format!("HTTP {status}: {remedy}{}", body_excerpt(body))
}

fn body_excerpt(body: &str) -> String {
    if body.is_empty() { String::new() } else { format!(" (it says: {body})") }
}

#[cfg(test)]
mod failure_tests {
    use super::*;

    #[test]
    fn status_errors_name_remedy_and_effect() {
        let failure = |status, location: Option<&str>| HttpFailure::Status {
            status,
            location: location.map(Into::into),
            body: "b".into(),
        };
        for (failure, expect, kind) in [
            (failure(401, None), "headers.Authorization", SendError::Final as fn(String) -> SendError),
            (failure(404, None), "/mcp", SendError::Broken),
            (failure(307, Some("https://x/mcp")), "https://x/mcp", SendError::Final),
            (failure(429, None), "later", SendError::NotSent),
            (failure(500, None), "see its log", SendError::Fault),
            (failure(501, None), "see its log", SendError::Broken),
            (failure(503, None), "see its log", SendError::Fault),
            (HttpFailure::Connect("refused".into()), "is the server running", SendError::NotSent),
            (HttpFailure::TooLarge(7), "max_message_bytes (7)", SendError::Broken),
        ] {
            let text = failure.to_string();
            assert!(text.contains(expect), "{text}");
            assert_eq!(SendError::from(failure), kind(text));
        }
        assert_eq!(SendError::from(HttpFailure::SessionExpired), SendError::Expired);
    }
}
