//! The client: routes, checks and redirects.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, USER_AGENT};
use http::{HeaderMap, Method, StatusCode};
use url::{Origin, Url};

use super::address::{AddressPolicy, DialResolver, DialScope, HostResolver, SystemResolver, resolve_public};
use super::error::{NetError, without_secrets};
use super::proxy::ProxyConfig;
use super::response::{Bounds, HttpResponse};

/// Redirects followed for one request.
const MAX_REDIRECTS: usize = 5;
/// Bound on name resolution, connection and TLS handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections kept for each host.
const MAX_IDLE_PER_HOST: usize = 8;
/// Idle connections kept by a client of one origin, enough for all calls that may run on one server.
const MAX_IDLE_OF_ORIGIN: usize = 128;
/// TCP keep-alive: idle time before the system probes the peer.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
/// Headers that follow a redirect to another origin: they describe the request and grant nothing.
const HARMLESS_HEADERS: [http::HeaderName; 4] = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// Options of a client. The default is the machine's own proxy and resolver.
#[derive(Clone)]
pub struct HttpOptions {
    /// Resolves names.
    pub resolver: Arc<dyn HostResolver>,
    /// Proxies.
    pub proxies: ProxyConfig,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { resolver: Arc::new(SystemResolver), proxies: ProxyConfig::from_env() }
    }
}

impl std::fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpOptions").field("proxies", &self.proxies).finish_non_exhaustive()
    }
}

/// An HTTP request.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// Method.
    pub method: Method,
    /// Target, `http` or `https`.
    pub url: Url,
    /// Request headers. Only `Accept`, `Accept-Language`, `Content-Type` and `User-Agent` follow a redirect to
    /// another origin.
    pub headers: HeaderMap,
    /// Body.
    pub body: Option<Bytes>,
}

impl HttpRequest {
    /// A GET without headers.
    #[must_use]
    pub fn get(url: Url) -> Self {
        Self { method: Method::GET, url, headers: HeaderMap::new(), body: None }
    }
}

/// An HTTP client with one address policy. TLS and connection pools are built at the first request.
/// Share it to share connections.
#[derive(Debug)]
pub struct HttpClient {
    policy: AddressPolicy,
    options: HttpOptions,
    pools: [OnceLock<reqwest::Client>; 3],
}

/// The route of a request. Each route has its own pool: a connection opened for an exempt host is never used for a
/// checked one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// Straight, to addresses that are checked as they are dialled.
    Checked,
    /// Straight, to any address.
    Exempt,
    /// Through the proxy.
    Proxied,
}

/// The purpose of a connection pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PoolUse {
    /// Any host. Redirects are left to [`HttpClient::send`], which checks each.
    Anywhere,
    /// One origin. Redirects are followed within it.
    OneOrigin,
    /// One origin, with HTTP/1.1 connections that can be upgraded to another protocol.
    Upgrades,
}

impl HttpClient {
    /// A client.
    #[must_use]
    pub fn new(policy: AddressPolicy, options: HttpOptions) -> Self {
        Self { policy, options, pools: Default::default() }
    }

    /// Its policy.
    #[must_use]
    pub fn policy(&self) -> &AddressPolicy {
        &self.policy
    }

    /// Sends a request, follows at most five redirects, and returns the head of the response.
    ///
    /// Each redirect is checked like the request itself. A redirect within one origin keeps all headers and the body;
    /// to another origin only headers that grant nothing follow, and a request with a body is not repeated. 301, 302
    /// and 303 turn a POST into a GET, as RFC 9110 section 15.4 allows.
    ///
    /// # Errors
    /// [`NetError`]. An HTTP error status is not an error here.
    pub async fn send(&self, request: HttpRequest, bounds: Bounds<'_>) -> Result<HttpResponse, NetError> {
        self.send_restricted(request, bounds, |_| true).await
    }

    /// Like [`HttpClient::send`], but follows only redirects that `may_go` accepts.
    ///
    /// # Errors
    /// As [`HttpClient::send`].
    pub async fn send_restricted(
        &self,
        mut request: HttpRequest,
        bounds: Bounds<'_>,
        may_go: impl Fn(&Url) -> bool,
    ) -> Result<HttpResponse, NetError> {
        let mut acted = false;
        for _ in 0..=MAX_REDIRECTS {
            let response = match bounds.run(self.send_once(&request)).await? {
                Ok(response) => response,
                // An earlier request had its effect, so the call can no longer count as not run.
                Err(error) if acted => {
                    return Err(NetError::Redirect { host: authority(&request.url), reason: error.to_string() });
                }
                Err(error) => return Err(error),
            };
            let Some(next) = redirect_target(&request.url, &response)? else {
                return Ok(HttpResponse::new(response, authority(&request.url)));
            };
            if !may_go(&next) {
                let reason = format!("{next} is not allowed");
                return Err(NetError::Redirect { host: authority(&request.url), reason });
            }
            acted |= !request.method.is_safe();
            request = redirected(request, next, response.status())?;
        }
        Err(NetError::Redirect {
            host: authority(&request.url),
            reason: format!("there were more than {MAX_REDIRECTS}"),
        })
    }

    /// Builds a client for one origin, for libraries that make requests themselves: checked like
    /// [`HttpClient::send`], redirects followed within the origin only. Requests to other origins are not
    /// checked before dialling, so it must not be used for them.
    ///
    /// # Errors
    /// [`NetError`] when `url` is refused or the client cannot be built.
    pub async fn client_for(&self, url: &Url) -> Result<reqwest::Client, NetError> {
        let route = self.route(url).await?;
        self.build(route, PoolUse::OneOrigin)
    }

    /// Like [`HttpClient::client_for`], with connections that can be upgraded, for example to a WebSocket.
    ///
    /// # Errors
    /// As [`HttpClient::client_for`].
    pub async fn upgrading_client_for(&self, url: &Url) -> Result<reqwest::Client, NetError> {
        let route = self.route(url).await?;
        self.build(route, PoolUse::Upgrades)
    }

    async fn send_once(&self, request: &HttpRequest) -> Result<reqwest::Response, NetError> {
        let client = self.pool(self.route(&request.url).await?)?;
        let mut builder = client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        match request.body.as_ref().filter(|body| !body.is_empty()) {
            Some(body) => builder = builder.body(body.clone()),
            // Some servers demand a length on methods that may carry a body (RFC 9110 section 8.6, and 411).
            None if [Method::POST, Method::PUT, Method::PATCH].contains(&request.method) => {
                builder = builder.header(CONTENT_LENGTH, 0);
            }
            None => {}
        }
        builder.send().await.map_err(|error| NetError::from_reqwest(error, authority(&request.url)))
    }

    /// Checks `url` as far as possible before dialling and returns the route.
    async fn route(&self, url: &Url) -> Result<Route, NetError> {
        let unusable = |reason: &str| Err(NetError::Url { url: without_secrets(url), reason: reason.to_owned() });
        if !matches!(url.scheme(), "http" | "https") {
            return unusable("only http and https are spoken");
        }
        let Some(host) = url.host_str() else { return unusable("it has no host") };
        let proxied = self.options.proxies.covers(url);
        if self.policy.exempts(url) {
            return Ok(if proxied { Route::Proxied } else { Route::Exempt });
        }
        if let Some(kind) = AddressPolicy::refuses_literal(url) {
            return Err(NetError::Refused { target: authority(url), reason: format!("it is {kind}") });
        }
        if !proxied {
            return Ok(Route::Checked);
        }
        if url.domain().is_some() {
            // The proxy will resolve the name, so this is the only look at it that we get.
            let resolved = tokio::time::timeout(CONNECT_TIMEOUT, resolve_public(&*self.options.resolver, host)).await;
            match resolved {
                Ok(Ok(_)) => {}
                Ok(Err(refused @ NetError::Refused { .. })) => return Err(refused),
                Ok(Err(_)) | Err(_) => {
                    let reason = "a proxy would resolve it, and it cannot be checked because it does not resolve here";
                    return Err(NetError::Refused { target: authority(url), reason: reason.to_owned() });
                }
            }
        }
        Ok(Route::Proxied)
    }

    fn pool(&self, route: Route) -> Result<&reqwest::Client, NetError> {
        let pool = &self.pools[route as usize];
        if let Some(client) = pool.get() {
            return Ok(client);
        }
        let client = self.build(route, PoolUse::Anywhere)?;
        Ok(pool.get_or_init(|| client))
    }

    fn build(&self, route: Route, purpose: PoolUse) -> Result<reqwest::Client, NetError> {
        super::install_tls();
        let reach = if route == Route::Checked { DialScope::Public } else { DialScope::Any };
        let builder = reqwest::Client::builder()
            .user_agent(concat!("toolwright/", env!("CARGO_PKG_VERSION")))
            .redirect(match purpose {
                PoolUse::Anywhere => reqwest::redirect::Policy::none(),
                PoolUse::OneOrigin | PoolUse::Upgrades => same_origin_redirects(),
            })
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(if purpose == PoolUse::Anywhere { MAX_IDLE_PER_HOST } else { MAX_IDLE_OF_ORIGIN })
            .tcp_nodelay(true)
            .tcp_keepalive(TCP_KEEPALIVE)
            .no_proxy()
            .dns_resolver(DialResolver { resolver: Arc::clone(&self.options.resolver), reach });
        let builder = if purpose == PoolUse::Upgrades { builder.http1_only() } else { builder };
        let builder = if route == Route::Proxied { self.options.proxies.apply(builder)? } else { builder };
        builder.build().map_err(|error| NetError::Setup(error.without_url().to_string()))
    }
}

fn same_origin_redirects() -> reqwest::redirect::Policy {
    reqwest::redirect::Policy::custom(|attempt| {
        let same = attempt.previous().last().is_some_and(|previous| previous.origin() == attempt.url().origin());
        if same && attempt.previous().len() <= MAX_REDIRECTS { attempt.follow() } else { attempt.stop() }
    })
}

/// Returns the target of a redirect; `None` if `response` is not one.
fn redirect_target(from: &Url, response: &reqwest::Response) -> Result<Option<Url>, NetError> {
    let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| redirects) else { return Ok(None) };
    let target = location.to_str().ok().and_then(|location| from.join(location).ok());
    match target {
        Some(url) => Ok(Some(url)),
        None => Err(NetError::Redirect { host: authority(from), reason: "its Location is not a URL".to_owned() }),
    }
}

/// Returns the request for a redirect.
fn redirected(mut request: HttpRequest, next: Url, status: StatusCode) -> Result<HttpRequest, NetError> {
    let rewrites = match status {
        StatusCode::SEE_OTHER => request.method != Method::HEAD,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => request.method == Method::POST,
        _ => false,
    };
    if rewrites {
        request.method = Method::GET;
        request.body = None;
        request.headers.remove(CONTENT_TYPE);
        request.headers.remove(CONTENT_LENGTH);
    }
    if !same_origin(&request.url, &next) {
        if request.body.is_some() {
            let reason = format!("it would carry the request's body to {}", authority(&next));
            return Err(NetError::Redirect { host: authority(&request.url), reason });
        }
        let headers = std::mem::take(&mut request.headers);
        request.headers = headers
            .iter()
            .filter(|(name, _)| HARMLESS_HEADERS.contains(name))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect();
    }
    request.url = next;
    Ok(request)
}

fn same_origin(a: &Url, b: &Url) -> bool {
    matches!(a.origin(), Origin::Tuple(..)) && a.origin() == b.origin()
}

/// Host and port of a URL, for messages.
fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or("nowhere");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Adds credentials that a server demands, such as OAuth 2.1 tokens, to each HTTP request.
#[async_trait]
pub trait Authorizer: fmt::Debug + Send + Sync {
    /// Returns the headers of the next request. Refreshes expiring credentials, once for all concurrent callers.
    ///
    /// # Errors
    /// Cause and remedy, for the operator.
    async fn headers(&self) -> Result<HeaderMap, String>;
    /// Handles a 401 or 403 response to a request that carried `sent`. Returns whether to send it again with
    /// [new headers](Authorizer::headers).
    ///
    /// # Errors
    /// Cause and remedy, for the operator.
    async fn on_challenge(&self, challenge: Challenge, sent: HeaderMap) -> Result<Retry, String>;
    /// The server accepted a request that carried `sent`. Called for each, so it must be fast.
    fn accepted(&self, _sent: &HeaderMap) {}
    /// Identifies the account that requests are sent for, without a secret. Responses are not shared between
    /// identities. By default all requests have the same one.
    fn identity(&self) -> String {
        String::new()
    }
}

/// A refusal.
#[derive(Debug, Clone)]
pub struct Challenge {
    /// 401 or 403.
    pub status: u16,
    /// `WWW-Authenticate`, all of them.
    pub authenticate: Vec<String>,
}

/// Whether to send a refused request again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Once.
    Yes,
    /// Do not send again.
    No,
}
