//! `Host` and `Origin`, parsed strictly so that a browser cannot read them differently, and CORS (Fetch standard):
//! pages of listed origins may send requests and read answers, without cookies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

/// Longest name in the DNS.
const MAX_NAME: usize = 253;
/// The methods that the server accepts.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Answer headers that a page may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("Mcp-Session-Id, Retry-After, WWW-Authenticate");
/// Seconds for which a browser may cache a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// A host with or without a port, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) host: Host,
    pub(super) port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    Name(String),
    Address(IpAddr),
}

impl Authority {
    /// Parses `NAME`, `IPV4` or `[IPV6]`, with an optional `:PORT`. User, percent-encoding and trailing dot are
    /// invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let end = if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':').unwrap_or(text.len()) };
        let (host, port) = text.split_at(end);
        let port = match port {
            "" => None,
            port => Some(port.strip_prefix(':').and_then(number)?),
        };
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => Host::Address(address.parse::<Ipv6Addr>().ok()?.into()),
            None => match host.parse::<Ipv4Addr>() {
                Ok(address) => Host::Address(address.into()),
                Err(_) => Host::Name(name(host)?),
            },
        };
        Some(Self { host, port })
    }
}

/// Splits an origin, `SCHEME://AUTHORITY`, into its scheme and authority.
pub(super) fn origin(text: &str) -> Option<(&str, Authority)> {
    let (scheme, authority) = text.split_once("://")?;
    Some((scheme, Authority::parse(authority)?))
}

fn number(port: &str) -> Option<u16> {
    port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok())?
}

fn name(text: &str) -> Option<String> {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    (text.len() <= MAX_NAME && text.split('.').all(is_label)).then(|| text.to_ascii_lowercase())
}

/// Returns whether this is a CORS preflight.
pub(super) fn is_preflight(request: &Request<Body>) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Answers the preflight of an allowed page, and allows the headers that it asks for.
pub(super) fn permit(request_headers: &HeaderMap, page: &HeaderValue) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // Headers that the server does not read are harmless.
    for names in request_headers.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.append(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    share(&mut response, page.clone());
    response
}

/// Allows a page to read an answer.
pub(super) fn share(response: &mut Response, page: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, page);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    // No cache may give the answer to a page of another origin.
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ambiguous_authority_is_refused() {
        let name = |name: &str, port| Some(Authority { host: Host::Name(name.into()), port });
        let address = |ip: &str, port| Some(Authority { host: Host::Address(ip.parse().expect("address")), port });
        for (text, expect) in [
            ("localhost", name("localhost", None)),
            ("LocalHost:7117", name("localhost", Some(7117))),
            ("a-b.c_d.example:0", name("a-b.c_d.example", Some(0))),
            ("127.0.0.1:80", address("127.0.0.1", Some(80))),
            ("[::1]", address("::1", None)),
            ("[::1]:7117", address("::1", Some(7117))),
            ("[::FFFF:7f00:1]", address("::ffff:127.0.0.1", None)),
            // This notation is a name, not an address, and the name is not listed.
            ("127.1", name("127.1", None)),
            ("", None),
            (":80", None),
            ("localhost:", None),
            ("localhost.", None),
            ("localhost..example", None),
            (".localhost", None),
            ("localhost:80:80", None),
            ("localhost:65536", None),
            ("localhost:+80", None),
            ("localhost:8o", None),
            ("localhost :80", None),
            ("user@localhost", None),
            ("user:pw@localhost", None),
            ("localhost%00", None),
            ("local%68ost", None),
            ("localhost/", None),
            ("localhost#x", None),
            ("localhost\\evil.example", None),
            ("::1", None),
            ("[::1", None),
            ("[::1].evil.example", None),
            ("[::1]evil.example", None),
            ("[::1]@evil.example", None),
            ("[::1]:80.evil.example", None),
            ("[::1]]", None),
            ("[[::1]]", None),
            ("[]", None),
            ("[localhost]", None),
            ("[127.0.0.1]", None),
            ("[fe80::1%25eth0]", None),
            ("[v1.x]", None),
            ("l\u{f6}calhost", None),
        ] {
            assert_eq!(Authority::parse(text), expect, "{text}");
        }
        assert_eq!(name(&"a".repeat(MAX_NAME), None), Authority::parse(&"a".repeat(MAX_NAME)));
        assert_eq!(None, Authority::parse(&"a".repeat(MAX_NAME + 1)));
    }

    #[test]
    fn an_origin_is_a_scheme_and_an_authority() {
        assert_eq!(origin("http://[::1]:1").map(|(scheme, at)| (scheme, at.port)), Some(("http", Some(1))));
        for text in ["null", "", "://", "http://", "http://a/", "http://u@a", "http://a:", "http:a", "http://[::1].a"] {
            assert_eq!(origin(text), None, "{text}");
        }
    }
}
