//! One HTTP client for all outgoing requests of tools: `web__fetch`, REST tools and remote MCP servers.
//!
//! An [`HttpClient`] refuses addresses that are not public unless its [`AddressPolicy`] allows them. A
//! name is resolved and checked when its connection is dialled, and only checked addresses are dialled,
//! so DNS cannot change between check and use. Redirects go through the same check.
//!
//! With a proxy from the environment, the proxy dials. The target is resolved and checked here first; a
//! target that does not resolve here is refused unless it is allowed by name. What the proxy itself
//! resolves later is not checked.

mod address;
mod client;
mod error;
mod proxy;
mod response;

use std::sync::Once;

pub use address::{AddressPolicy, HostResolver, SystemResolver};
pub use client::{Authorizer, Challenge, HttpClient, HttpOptions, HttpRequest, Retry};
pub use error::NetError;
pub use proxy::ProxyConfig;
pub use response::{Body, Bounds, HttpResponse, MediaType, decode_text};

/// Installs `ring` as the process's TLS provider on the first call, unless the embedding program has
/// chosen one. Every client of this crate calls it before it is built; nothing calls it at start-up.
pub fn install_tls() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // An error means that a provider is installed already, and then that one serves.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
