//! Decides which addresses may be dialled, and resolves names to addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::pattern::glob_match;
use url::{Host, Url};

use super::error::NetError;

/// What a client may connect to besides public addresses. The default is nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddressPolicy {
    /// Lets requests reach private, loopback and link-local addresses.
    pub allow_private: bool,
    /// Hosts that may be reached whatever they resolve to: `host` or `host:port`, with `*` and `?`.
    // They add to what is public, they do not limit it. IPv6 literals stand in brackets.
    pub allowed_hosts: Vec<String>,
}

impl AddressPolicy {
    /// A policy that allows every address.
    #[must_use]
    pub fn open() -> Self {
        Self { allow_private: true, allowed_hosts: Vec::new() }
    }

    /// Whether `url` is exempt from the address check.
    #[must_use]
    pub fn exempts(&self, url: &Url) -> bool {
        self.allow_private || self.allowed_hosts.iter().any(|pattern| matches_host(pattern, url))
    }

    /// Returns the reason for refusing a literal address in `url`; `None` for a public address or a host name.
    pub(crate) fn refuses_literal(url: &Url) -> Option<&'static str> {
        match url.host()? {
            Host::Domain(_) => None,
            Host::Ipv4(address) => not_public(address.into()),
            Host::Ipv6(address) => not_public(address.into()),
        }
    }
}

fn matches_host(pattern: &str, url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let (pattern, port) = split_port(pattern);
    let port_fits =
        port.is_none_or(|port| url.port_or_known_default().is_some_and(|p| glob_match(port, &p.to_string())));
    port_fits && glob_match(pattern.trim_end_matches('.'), host.trim_end_matches('.'))
}

/// Splits `host:port`; colons of a bracketed or bare IPv6 literal do not start a port.
fn split_port(pattern: &str) -> (&str, Option<&str>) {
    match pattern.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (pattern, None),
    }
}

/// Returns why `address` is not public by the IANA special-purpose registries (RFC 6890 and its updates); `None` if it
/// is public. An IPv6 form that carries an IPv4 address is judged by that address.
pub(crate) fn not_public(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => v4_not_public(v4),
        IpAddr::V6(v6) => v6_not_public(v6),
    }
}

fn v4_not_public(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, d] = address.octets();
    Some(match (a, b, c, d) {
        (0, ..) => "an unspecified address",
        (127, ..) => "a loopback address",
        (10, ..) | (172, 16..=31, ..) | (192, 168, ..) => "a private address",
        (100, 64..=127, ..) => "a carrier-grade NAT address",
        (169, 254, ..) => "a link-local address, where cloud metadata lives",
        // Public by number, but a host's own Azure agent by use.
        (168, 63, 129, 16) => "a cloud metadata address",
        (192, 0, 0, _) | (192, 88, 99, _) | (198, 18..=19, ..) => "a reserved address",
        (192, 0, 2, _) | (198, 51, 100, _) | (203, 0, 113, _) => "a documentation address",
        (224..=239, ..) => "a multicast address",
        (240.., ..) => "a reserved address",
        _ => return None,
    })
}

fn v6_not_public(address: Ipv6Addr) -> Option<&'static str> {
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        v4_not_public(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("an unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("a loopback address"),
        // IPv4-mapped, and NAT64 by its well-known prefix (RFC 6052).
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => embedded(high, low),
        [0xfc00..=0xfdff, ..] => Some("a private address"),
        [0xfe80..=0xfebf, ..] => Some("a link-local address"),
        [0xff00..=0xffff, ..] => Some("a multicast address"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("a documentation address"),
        // 2001::/23 holds Teredo and other protocol assignments; only 2000::/3 is global unicast.
        [0x2001, 0..=0x1ff, ..] => Some("a reserved address"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("a reserved address"),
    }
}

/// Addresses tried for one name; a longer answer is cut.
const MAX_ADDRESSES: usize = 16;

/// Resolves host names.
#[async_trait]
pub trait HostResolver: Send + Sync {
    /// Returns the addresses of `host`, best first.
    ///
    /// # Errors
    /// The name has no address, or the lookup fails.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl HostResolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).take(MAX_ADDRESSES).collect())
    }
}

/// Returns the addresses of `host`, if all of them are public.
///
/// # Errors
/// [`NetError::Connect`] for a name without addresses; [`NetError::Refused`] if any address is not public:
/// a name with both kinds has no honest use.
pub(crate) async fn resolve_public(resolver: &dyn HostResolver, host: &str) -> Result<Vec<IpAddr>, NetError> {
    let addresses = resolve_any(resolver, host).await?;
    match addresses.iter().find_map(|address| Some((address, not_public(*address)?))) {
        None => Ok(addresses),
        Some((address, kind)) => {
            Err(NetError::Refused { target: host.to_owned(), reason: format!("it resolves to {address}, {kind}") })
        }
    }
}

async fn resolve_any(resolver: &dyn HostResolver, host: &str) -> Result<Vec<IpAddr>, NetError> {
    let failed = |reason: String| NetError::Connect { host: host.to_owned(), reason };
    let mut addresses = resolver.resolve(host).await.map_err(|error| failed(error.to_string()))?;
    addresses.truncate(MAX_ADDRESSES);
    if addresses.is_empty() { Err(failed("the name has no address".to_owned())) } else { Ok(addresses) }
}

/// The resolver a client uses when it connects.
pub(crate) struct DialResolver {
    /// The underlying resolver.
    pub(crate) resolver: Arc<dyn HostResolver>,
    /// Which addresses may be dialled.
    pub(crate) reach: DialScope,
}

/// Which addresses may be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialScope {
    /// Public addresses only.
    Public,
    /// Any address.
    Any,
}

impl Resolve for DialResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolver, reach) = (Arc::clone(&self.resolver), self.reach);
        Box::pin(async move {
            let addresses = match reach {
                DialScope::Public => resolve_public(&*resolver, name.as_str()).await?,
                DialScope::Any => resolve_any(&*resolver, name.as_str()).await?,
            };
            // Port 0 is replaced with the URL's port.
            let dialled: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(dialled)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_allowed_by_name_and_port() {
        for (pattern, url, expect) in [
            ("intra.example", "http://intra.example/", true),
            ("intra.example", "http://INTRA.example.:81/", true),
            ("intra.example", "http://x.intra.example/", false),
            ("*.example", "https://a.b.example/", true),
            ("127.0.0.1:8080", "http://127.0.0.1:8080/", true),
            ("127.0.0.1:8080", "http://127.0.0.1:8081/", false),
            ("intra.example:443", "https://intra.example/", true),
            ("intra.example:*", "http://intra.example:9/", true),
            ("[::1]", "http://[::1]:99/", true),
            ("[::1]:99", "http://[::1]:99/", true),
            ("[::1]:99", "http://[::1]:98/", false),
        ] {
            let policy = AddressPolicy { allow_private: false, allowed_hosts: vec![pattern.into()] };
            assert_eq!(policy.exempts(&Url::parse(url).expect("url")), expect, "{pattern} {url}");
        }
    }

    #[test]
    fn public_addresses_are_public() {
        for text in [
            "1.1.1.1",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "64:ff9b::808:808",
            "2002:808:808::",
        ] {
            assert_eq!(not_public(text.parse().expect("ip")), None, "{text}");
        }
    }
}
