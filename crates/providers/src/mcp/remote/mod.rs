//! Transports to servers at a URL: streamable HTTP, HTTP with SSE, WebSocket.
//!
//! All of them make their requests through one [`Target`]: the pooled client of one origin, under the house's address
//! policy and proxies, with the configured headers and, where there is one, what an [`Authorizer`] adds. A request
//! that may have reached its server is never repeated.
//!
//! [`Authorizer`]: super::transport::Authorizer

mod deliver;
mod events;
mod failure;
mod sse;
mod streamable;
mod target;
#[cfg(test)]
mod tests;
mod value;
mod websocket;

pub(super) use sse::LegacySse;
pub(super) use streamable::StreamableHttp;
pub(super) use target::{Target, header_map};
pub(super) use websocket::WebSocket;
