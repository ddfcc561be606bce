//! Transports to servers at a URL: streamable HTTP, HTTP with SSE, WebSocket.
//!
//! All of them make their requests through one [`Target`]: the pooled client of one origin, under the application's address
//! policy and proxies, with the configured headers and, where there is one, what an [`Authorizer`] adds. A request
//! that may have reached its server is never repeated.
//!
//! [`Authorizer`]: toolwright_net::Authorizer

mod deliver;
mod events;
mod failure;
mod sse;
mod streamable;
mod target;
#[cfg(test)]
mod tests;
mod websocket;

use std::sync::Arc;

use crate::transport::{Incoming, SendError, Transport};
use sse::LegacySse;
use streamable::StreamableHttp;
pub(crate) use target::{Target, header_map};
use websocket::WebSocket;

/// How a server at a URL is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Streamable HTTP, and HTTP with SSE where the server turns out to be older.
    Http,
    /// HTTP with SSE.
    Sse,
    /// WebSocket.
    WebSocket,
}

/// Opens a transport of its own to `target`. Over streamable HTTP nothing is sent by that.
///
/// # Errors
/// [`SendError`]: no message was sent.
pub(crate) async fn open(
    way: Way,
    target: &Arc<Target>,
    incoming: Arc<dyn Incoming>,
) -> Result<Arc<dyn Transport>, SendError> {
    Ok(match way {
        Way::Http => Arc::new(StreamableHttp::new(Arc::clone(target), incoming)),
        Way::Sse => Arc::new(LegacySse::open(Arc::clone(target), incoming).await?),
        Way::WebSocket => Arc::new(WebSocket::open(target, incoming).await?),
    })
}
