//! Configures one remote catalogue.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toolwright_core::catalogue::ToolOverride;
use toolwright_core::duration;
use toolwright_core::setting::TimeSpan;
use url::{Host, Url};

use super::document::PublicKey;
use toolwright_net::AddressPolicy;

/// The default limit on a document, in bytes.
const MAX_BYTES: usize = 4 << 20;
/// The default interval between fetches of a catalogue.
const REFRESH: Duration = Duration::from_secs(3600);

/// One remote catalogue. Its name here is the namespace of its tools, and must be the one that is signed.
#[derive(Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CatalogueConfig {
    /// Name of the provider, and the namespace that the catalogue may fill. It is the entry's key in a configuration.
    #[serde(skip)]
    pub namespace: String,
    /// What defines it, see [`Provider::defined_in`](toolwright_core::catalogue::Provider::defined_in).
    #[serde(skip)]
    pub defined_in: String,
    /// Whether it is used.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Address that it is fetched from, over https.
    // Or `http` on this machine if [`CatalogueConfig::insecure_loopback`] is set.
    #[schemars(with = "String", extend("x-variables" = "setting"))]
    pub url: Url,
    /// Public keys whose signatures are accepted, `ed25519:…`. One valid signature is enough.
    #[schemars(with = "Vec<String>")]
    pub keys: Vec<PublicKey>,
    /// How often it is fetched again.
    #[serde(default = "refresh", with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub refresh: Duration,
    /// Its largest size, in bytes.
    #[serde(default = "max_bytes")]
    #[schemars(range(min = 256, max = 67_108_864))]
    pub max_bytes: usize,
    /// Environment variables whose values its tools may send, as `${NAME}` in headers, query and body. A tool that
    /// names another variable is refused.
    // By name, once loaded.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub secrets: BTreeMap<String, String>,
    /// Tools that are offered, as case-insensitive globs; empty: all.
    #[serde(default)]
    pub tools_allowed: Vec<String>,
    /// Tools that are not offered, as globs. Applied after `tools_allowed`.
    #[serde(default)]
    pub tools_denied: Vec<String>,
    /// Settings of single tools, by their names in the catalogue.
    #[serde(default)]
    pub tools: BTreeMap<String, ToolOverride>,
    /// Whether policy believes its claims that a tool only reads.
    #[serde(default)]
    pub trusted: bool,
    /// Addresses that it and its tools may reach besides public ones, whatever `web` says.
    #[serde(flatten)]
    pub address: AddressPolicy,
    /// Whether plain http is accepted on loopback addresses. For tests.
    #[serde(default)]
    pub insecure_loopback: bool,
}

fn yes() -> bool {
    true
}

fn refresh() -> Duration {
    REFRESH
}

fn max_bytes() -> usize {
    MAX_BYTES
}

impl CatalogueConfig {
    /// Creates a catalogue with default settings.
    #[must_use]
    pub fn new(namespace: impl Into<String>, url: Url, keys: Vec<PublicKey>) -> Self {
        Self {
            namespace: namespace.into(),
            defined_in: String::new(),
            enabled: true,
            url,
            keys,
            refresh: REFRESH,
            max_bytes: MAX_BYTES,
            secrets: BTreeMap::new(),
            address: AddressPolicy::default(),
            insecure_loopback: false,
            tools_allowed: Vec::new(),
            tools_denied: Vec::new(),
            tools: BTreeMap::new(),
            trusted: false,
        }
    }

    /// Returns the addresses that it and its tools may reach.
    pub(super) fn address_policy(&self) -> AddressPolicy {
        let mut policy = self.address.clone();
        if self.insecure_loopback {
            policy.allowed_hosts.extend(["127.0.0.1".to_owned(), "[::1]".to_owned()]);
        }
        policy
    }
}

/// Returns whether `url` is sufficiently protected. A host name never counts as a loopback address.
pub(super) fn is_secure(url: &Url, insecure_loopback: bool) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(_)) | None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && insecure_loopback && is_loopback)
}

impl fmt::Debug for CatalogueConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogueConfig")
            .field("namespace", &self.namespace)
            .field("url", &self.url.as_str())
            .field("keys", &self.keys)
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}
