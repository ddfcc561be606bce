//! One HTTP client policy for everything that goes out: `web__fetch`, REST tools and remote MCP servers.
//!
//! An [`HttpClient`] refuses addresses that are not public unless its [`AddressPolicy`] says otherwise. A
//! name is resolved and checked when its connection is dialled, and only checked addresses are dialled,
//! so that a name cannot change its mind between check and use. Redirects go through the same check.
//!
//! With a proxy from the environment the proxy dials, so the target is resolved and checked here before
//! the proxy hears of it; a target that does not resolve here is refused unless it is allowed by name.
//! What the proxy resolves later is the proxy's affair.

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

/// Makes `ring` the process's TLS provider, the first time it is called, unless the embedding program
/// has chosen one. Every client of this crate calls it before it is built; nothing calls it at start-up.
pub fn install_tls() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // An error means that a provider is installed already, and then that one serves.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
