//! Built-in tools of the namespace `web`.

mod blocks;
mod fetch;
mod markdown;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolwright_core::{Tool, duration};

use toolwright_net::{AddressPolicy, HttpClient, HttpOptions};

pub use fetch::WebFetch;

/// Settings of the section `web`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebOptions {
    /// Whether private, loopback, link-local and reserved addresses are open. Default: no.
    #[serde(alias = "allowPrivate")]
    pub allow_private: bool,
    /// Hosts that are open all the same, `host` or `host:port`, with `*` and `?`.
    #[serde(alias = "allowedHosts")]
    pub allowed_hosts: Vec<String>,
    /// Bytes of a page that are read unless a call asks for another number. Default: 2 MiB.
    #[serde(alias = "maxBytes")]
    pub max_bytes: usize,
    /// Limit of one call. Default: 30 s.
    #[serde(with = "duration::option")]
    pub timeout: Option<Duration>,
}

impl Default for WebOptions {
    fn default() -> Self {
        Self {
            allow_private: false,
            allowed_hosts: Vec::new(),
            max_bytes: 2 << 20,
            timeout: Some(Duration::from_secs(30)),
        }
    }
}

/// The tools: `web:fetch@1.0.0`. Nothing is built or connected before the first call.
#[must_use]
pub fn tools(options: &WebOptions) -> Vec<Arc<dyn Tool>> {
    tools_with(options, HttpOptions::default())
}

/// As [`tools`], with a resolver and proxies of the caller's.
#[must_use]
pub fn tools_with(options: &WebOptions, http: HttpOptions) -> Vec<Arc<dyn Tool>> {
    let policy = AddressPolicy { allow_private: options.allow_private, allowed_hosts: options.allowed_hosts.clone() };
    vec![Arc::new(WebFetch::new(HttpClient::new(policy, http), options))]
}
