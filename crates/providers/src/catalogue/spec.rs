//! What is configured for one catalogue.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use toolwright_core::catalogue::ToolOverride;
use url::{Host, Url};

use super::keys::PublicKey;
use toolwright_net::AddressPolicy;

/// Bytes of a document that are read unless configured otherwise.
const MAX_BYTES: usize = 4 << 20;
/// How often a catalogue is fetched again unless configured otherwise.
const REFRESH: Duration = Duration::from_secs(3600);

/// One configured catalogue.
#[derive(Clone, PartialEq)]
pub struct CatalogueSpec {
    /// Name of the provider, and the namespace that the catalogue may fill.
    pub namespace: String,
    /// What defines it, see [`Provider::defined_in`](toolwright_core::catalogue::Provider::defined_in).
    pub defined_in: String,
    /// Where it is fetched: `https`, or `http` on this machine where [`CatalogueSpec::insecure_loopback`] says so.
    pub url: Url,
    /// Keys that are believed.
    pub keys: Vec<PublicKey>,
    /// How often it is fetched again.
    pub refresh: Duration,
    /// Its size at most, in bytes.
    pub max_bytes: usize,
    /// Values that its tools may use as `${NAME}` in headers, query and body. They may be secret.
    pub secrets: BTreeMap<String, String>,
    /// Addresses that its tools may reach besides public ones, and it may be fetched from.
    pub address: AddressPolicy,
    /// Whether plain `http` on the loopback interface will do, for the catalogue and for its tools. For tests.
    pub insecure_loopback: bool,
    /// Patterns over names; empty offers all.
    pub tools_allowed: Vec<String>,
    /// Patterns over names, applied after `tools_allowed`.
    pub tools_denied: Vec<String>,
    /// How single tools are shown, by name.
    pub shown: BTreeMap<String, ToolOverride>,
    /// Whether what it says of effects may loosen policy.
    pub trusted: bool,
}

impl CatalogueSpec {
    /// A catalogue with default settings.
    #[must_use]
    pub fn new(namespace: impl Into<String>, url: Url, keys: Vec<PublicKey>) -> Self {
        Self {
            namespace: namespace.into(),
            defined_in: String::new(),
            url,
            keys,
            refresh: REFRESH,
            max_bytes: MAX_BYTES,
            secrets: BTreeMap::new(),
            address: AddressPolicy::default(),
            insecure_loopback: false,
            tools_allowed: Vec::new(),
            tools_denied: Vec::new(),
            shown: BTreeMap::new(),
            trusted: false,
        }
    }

    /// Which addresses are open to it and its tools.
    pub(super) fn address_policy(&self) -> AddressPolicy {
        let mut policy = self.address.clone();
        if self.insecure_loopback {
            policy.allowed_hosts.extend(["127.0.0.1".to_owned(), "[::1]".to_owned()]);
        }
        policy
    }
}

/// Whether `url` is as protected as it must be. A name is no loopback address, whatever it resolves to.
pub(super) fn is_secure(url: &Url, insecure_loopback: bool) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(_)) | None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && insecure_loopback && is_loopback)
}

impl fmt::Debug for CatalogueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogueSpec")
            .field("namespace", &self.namespace)
            .field("url", &self.url.as_str())
            .field("keys", &self.keys)
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}
