//! Proxies from the environment.

use std::fmt;

use hyper_util::client::proxy::matcher::Matcher;
use url::Url;

use super::error::NetError;

/// Proxy settings: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, or their lower-case names, read as
/// curl does. Only `http` and `https` proxies are supported.
#[derive(Clone, Default)]
pub struct ProxyConfig {
    http: Option<String>,
    https: Option<String>,
    bypass: String,
}

impl ProxyConfig {
    /// Settings without a proxy.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The process's environment.
    #[must_use]
    pub fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Like [`ProxyConfig::from_env`], with variables from `lookup`.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| {
            let value = lookup(name).or_else(|| lookup(&name.to_ascii_lowercase()))?;
            (!value.trim().is_empty()).then(|| value.trim().to_owned())
        };
        // Under CGI, HTTP_PROXY comes from the request's `Proxy` header and cannot be trusted (CVE-2016-5385).
        let cgi = lookup("REQUEST_METHOD").is_some();
        let http = get("HTTP_PROXY").filter(|_| !cgi);
        let all = get("ALL_PROXY");
        Self {
            http: http.or_else(|| all.clone()),
            https: get("HTTPS_PROXY").or(all),
            bypass: get("NO_PROXY").unwrap_or_default(),
        }
    }

    /// Whether `url` goes through a proxy.
    pub(crate) fn covers(&self, url: &Url) -> bool {
        let configured = if url.scheme() == "https" { &self.https } else { &self.http };
        configured.is_some() && !self.bypasses(url)
    }

    fn bypasses(&self, url: &Url) -> bool {
        // The matcher implements NO_PROXY's rules; with a dummy proxy its answer depends only on them.
        let matcher = Matcher::builder().all("http://proxy.invalid").no(self.bypass.as_str()).build();
        url.as_str().parse().is_ok_and(|uri| matcher.intercept(&uri).is_none())
    }

    /// Adds the proxies to a client that is used for covered URLs only.
    pub(crate) fn apply(&self, mut builder: reqwest::ClientBuilder) -> Result<reqwest::ClientBuilder, NetError> {
        type Constructor = fn(String) -> reqwest::Result<reqwest::Proxy>;
        let proxies: [(&Option<String>, Constructor, &str); 2] =
            [(&self.http, reqwest::Proxy::http, "HTTP_PROXY"), (&self.https, reqwest::Proxy::https, "HTTPS_PROXY")];
        for (proxy, constructor, name) in proxies {
            let Some(proxy) = proxy else { continue };
            let scheme = proxy.split_once("://").map_or("http", |(scheme, _)| scheme);
            if scheme != "http" && scheme != "https" {
                return Err(NetError::Setup(format!(
                    "{name} is a `{scheme}` proxy; only http and https proxies are supported"
                )));
            }
            let proxy = constructor(proxy.clone()).map_err(|_| NetError::Setup(format!("{name} is not a URL")))?;
            builder = builder.proxy(proxy);
        }
        Ok(builder)
    }
}

impl fmt::Debug for ProxyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A proxy's URL may hold a password.
        f.debug_struct("ProxyConfig")
            .field("http", &self.http.is_some())
            .field("https", &self.https.is_some())
            .field("bypass", &self.bypass)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_decides_as_it_does_for_curl() {
        let check = |variables: &[(&str, &str)], url: &str, expect: bool| {
            let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            let covered = ProxyConfig::from_lookup(lookup).covers(&Url::parse(url).expect("url"));
            assert_eq!(covered, expect, "{variables:?} {url}");
        };
        check(&[], "http://a.example/", false);
        check(&[("HTTP_PROXY", "http://p:1")], "http://a.example/", true);
        check(&[("HTTP_PROXY", "http://p:1")], "https://a.example/", false);
        check(&[("http_proxy", "p:1")], "http://a.example/", true);
        check(&[("HTTPS_PROXY", "http://p:1")], "https://a.example/", true);
        check(&[("ALL_PROXY", "http://p:1")], "https://a.example/", true);
        check(&[("HTTP_PROXY", "http://p:1"), ("REQUEST_METHOD", "GET")], "http://a.example/", false);
        check(&[("HTTP_PROXY", " ")], "http://a.example/", false);
        for (bypass, url, expect) in [
            ("example", "http://a.example/", false),
            (".a.example", "http://a.example/", false),
            ("*", "http://a.example/", false),
            ("10.0.0.0/8", "http://10.1.2.3/", false),
            ("10.0.0.0/8", "http://11.1.2.3/", true),
            ("b.example", "http://a.example/", true),
        ] {
            check(&[("HTTP_PROXY", "http://p:1"), ("NO_PROXY", bypass)], url, expect);
        }
    }

    #[test]
    fn unusable_proxies_are_named_without_passwords() {
        let settings =
            ProxyConfig::from_lookup(|name| (name == "HTTPS_PROXY").then(|| "socks5://u:secret@p:1".to_owned()));
        let error = settings.apply(reqwest::Client::builder()).expect_err("socks").to_string();
        assert!(error.contains("HTTPS_PROXY") && error.contains("socks5") && !error.contains("secret"), "{error}");
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
