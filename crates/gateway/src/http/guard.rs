//! Checks the host, origin and token of every request.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde_json::json;
use subtle::ConstantTimeEq as _;
use toolwright_core::session::Principal;

use super::api_shape::{api_of, shape};
use super::origin::{self, Authority, Host};
use super::page_tokens::PageTokens;
use super::webhooks::is_webhook;
use super::{API, ApiError, HttpOptions, OPEN, facade_api, respond};
use crate::config::ApiAccess;

/// Names of OAuth metadata below `/.well-known/`.
const OAUTH_METADATA: [&str; 3] = ["oauth-authorization-server", "oauth-protected-resource", "openid-configuration"];
/// The path that creates an address of the console.
const OPEN_CONSOLE: &str = "/api/console";
/// The header in which Anthropic's clients send their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// OAuth endpoints that clients try without metadata.
const OAUTH_PATHS: [&str; 3] = ["/register", "/authorize", "/token"];

/// A bearer token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    /// Creates a token; `None` for a blank text.
    pub fn new(text: impl Into<Arc<str>>) -> Option<Self> {
        let text = text.into();
        (!text.trim().is_empty()).then_some(Self(text))
    }

    pub(crate) fn matches(&self, token: &str) -> bool {
        self.0.as_bytes().ct_eq(token.as_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The sender of a request. Every request that passes the guard carries it as an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity(Arc<IdentityInner>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct IdentityInner {
    principal: Principal,
    reach: AccessScope,
    /// Whether it may also read everything in the API.
    can_read_api: bool,
    /// Whether it is a page of the console that sends.
    is_page: bool,
}

/// The paths that a sender may use.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AccessScope {
    /// All paths.
    All,
    /// All paths except the API: no token was sent, and none is required.
    Open,
    /// All paths that serve MCP.
    Mcp,
    /// `/mcp/{name}` for these names.
    Only(Vec<String>),
}

impl Identity {
    fn of(principal: &Principal, reach: AccessScope) -> Self {
        Self(Arc::new(IdentityInner { principal: principal.clone(), reach, can_read_api: false, is_page: false }))
    }

    /// Returns an identity that may do everything.
    pub(crate) fn owner(principal: &Principal) -> Self {
        Self::of(principal, AccessScope::All)
    }

    /// The same sender, by a page of the console.
    pub(crate) fn by_page(&self) -> Self {
        Self(Arc::new(IdentityInner { is_page: true, ..(*self.0).clone() }))
    }

    /// Whether a page of the console sends.
    pub(crate) fn is_page(&self) -> bool {
        self.0.is_page
    }

    /// Returns whether it may change anything through the API.
    pub(crate) fn may_change(&self) -> bool {
        self.0.reach == AccessScope::All
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// Returns a message that a path is not allowed, and which ones are.
    fn reach_message(&self) -> String {
        match &self.0.reach {
            _ if self.0.can_read_api => "this token may read at /api, and change nothing there".to_owned(),
            AccessScope::All | AccessScope::Open => "this token is for other addresses".to_owned(),
            AccessScope::Mcp => "this token is for /mcp and what is below it".to_owned(),
            AccessScope::Only(names) => {
                let paths: Vec<String> = names.iter().map(|name| format!("/mcp/{name}")).collect();
                format!("this token is for {}", paths.join(", "))
            }
        }
    }

    /// Returns the views and servers that it may reach; `None` for all.
    pub(crate) fn views(&self) -> Option<&[String]> {
        match &self.0.reach {
            AccessScope::Only(names) => Some(names),
            AccessScope::All | AccessScope::Open | AccessScope::Mcp => None,
        }
    }

    /// Returns whether it sent a token.
    pub(crate) fn has_token(&self) -> bool {
        self.0.reach != AccessScope::Open
    }

    /// Returns whether it may send a request of this method to this path.
    fn may_send(&self, method: &Method, path: &str) -> bool {
        let reads = || self.0.can_read_api && in_api(path) && (method == Method::GET || path == OPEN_CONSOLE);
        self.may_reach(path) || reads()
    }

    fn may_reach(&self, path: &str) -> bool {
        match &self.0.reach {
            AccessScope::All => true,
            AccessScope::Open => !in_api(path) && facade_api(path).is_none(),
            AccessScope::Mcp => path == "/mcp" || path.starts_with("/mcp/") || facade_api(path).is_some(),
            AccessScope::Only(names) => {
                // A client that may only read the API may not use a model.
                (facade_api(path).is_some() && !(self.0.can_read_api && names.is_empty()))
                    || path.strip_prefix("/mcp/").is_some_and(|name| names.iter().any(|one| one == name))
            }
        }
    }
}

/// The access rules of one server.
#[derive(Debug)]
pub(crate) struct Guard {
    listen_ip: IpAddr,
    hosts: Vec<Authority>,
    origins: Vec<String>,
    /// The identity of a sender without a token, if that is allowed.
    anonymous: Option<Identity>,
    clients: Vec<(Token, Identity)>,
    /// The tokens of the console's pages.
    pages: Arc<PageTokens>,
}

impl Guard {
    pub(crate) fn new(options: &HttpOptions, bound: SocketAddr, pages: Arc<PageTokens>) -> Self {
        let lower = |item: &String| item.trim_end_matches('/').to_ascii_lowercase();
        let host = |item: &String| {
            let host = Authority::parse(item.trim_end_matches('/'));
            if host.is_none() {
                tracing::warn!("allowed_hosts: `{item}` is not a host name or HOST:PORT, and lets nobody in");
            }
            host
        };
        let usual = Identity::of(&options.principal, AccessScope::All);
        let others = options.server.tokens.iter().filter_map(|(name, client)| {
            let principal = Principal { id: name.clone(), roles: client.roles.clone(), owner: false };
            let reach = client.views.clone().map_or(AccessScope::Mcp, AccessScope::Only);
            let identity =
                IdentityInner { principal, reach, can_read_api: client.api == ApiAccess::Read, is_page: false };
            Some((Token::new(client.token.expose())?, Identity(Arc::new(identity))))
        });
        let own = options.token.iter().chain(&options.api_token).map(|token| (token.clone(), usual.clone()));
        Self {
            listen_ip: bound.ip(),
            hosts: options.server.allowed_hosts.iter().filter_map(host).collect(),
            origins: options.server.allowed_origins.iter().map(lower).collect(),
            anonymous: (options.token.is_none() && options.server.tokens.is_empty())
                .then(|| Identity::of(&options.principal, AccessScope::Open)),
            clients: own.chain(others).collect(),
            pages,
        }
    }

    /// Returns whether the `Host` is allowed. A malicious page can make its own host name resolve to our address (DNS
    /// rebinding), so only our names and bare addresses are.
    fn allows_host(&self, headers: &HeaderMap, target: Option<&str>) -> bool {
        let Some(host) = single(headers, &header::HOST) else { return false };
        self.allows_authority(host) && target.is_none_or(|target| self.allows_authority(target))
    }

    fn allows_authority(&self, text: &str) -> bool {
        let Some(requested) = Authority::parse(text) else { return false };
        let is_same = |listed: &Authority| {
            listed.host == requested.host && (listed.port.is_none() || listed.port == requested.port)
        };
        let is_ours = match &requested.host {
            Host::Address(ip) => ip.is_loopback() || *ip == self.listen_ip || self.listen_ip.is_unspecified(),
            Host::Name(name) => name == "localhost",
        };
        is_ours || self.hosts.iter().any(is_same)
    }

    /// Returns whether the origin is allowed: absent (no browser sent the request), our own, or listed.
    fn allows_origin(&self, headers: &HeaderMap) -> bool {
        if !headers.contains_key(header::ORIGIN) {
            return true;
        }
        let Some(origin) = single(headers, &header::ORIGIN).map(str::to_ascii_lowercase) else { return false };
        let Some((scheme, page)) = origin::origin(&origin) else { return false };
        let host = single(headers, &header::HOST).and_then(Authority::parse);
        let is_own = matches!(scheme, "http" | "https") && host.is_some_and(|host| host == page);
        is_own || self.origins.contains(&origin)
    }

    /// Returns the origin as sent, if it is listed: its page may read the answer.
    fn listed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = single(headers, &header::ORIGIN)?;
        let is_listed = self.origins.contains(&origin.to_ascii_lowercase());
        is_listed.then(|| headers.get(header::ORIGIN).cloned()).flatten()
    }

    /// Returns the sender by these headers; `None` if a valid token is required and missing.
    fn identity(&self, headers: &HeaderMap) -> Option<Identity> {
        self.identity_of_token(headers).or_else(|| self.anonymous.clone())
    }

    /// Returns the sender of the token in these headers.
    fn identity_of_token(&self, headers: &HeaderMap) -> Option<Identity> {
        let bearer = |sent: &'_ str| {
            let (scheme, sent_token) = sent.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| sent_token.trim().to_owned())
        };
        // Anthropic's clients send a key in their own header.
        let sent_token = match single(headers, &header::AUTHORIZATION) {
            Some(sent) => bearer(sent)?,
            None => single(headers, &API_KEY)?.trim().to_owned(),
        };
        // All tokens are compared, so that the time does not reveal a near match.
        let of_client = self
            .clients
            .iter()
            .fold(None, |found, (token, identity)| if token.matches(&sent_token) { Some(identity) } else { found });
        self.pages.identity(&sent_token).or_else(|| of_client.cloned())
    }
}

/// Returns the header's value if it occurs once and is text.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// Middleware: passes a request on, or refuses it; at `/v1` in the form of the API.
pub(crate) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let Some(api) = api_of(request.uri().path(), request.headers()) else {
        return checked(&guard, request, next).await;
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = checked(&guard, request, next).await;
    shape(api, &method, &path, response).await
}

async fn checked(guard: &Guard, request: Request, next: Next) -> Response {
    let (headers, path) = (request.headers(), request.uri().path());
    if !guard.allows_host(headers, request.uri().authority().map(axum::http::uri::Authority::as_str)) {
        let why = "this host name is not served; use localhost, or list the name in server.allowed_hosts";
        return refuse(path, StatusCode::FORBIDDEN, why);
    }
    if !guard.allows_origin(headers) {
        let why = "this origin may not call; list it in server.allowed_origins";
        return refuse(path, StatusCode::FORBIDDEN, why);
    }
    let page = guard.listed_origin(headers);
    if let Some(page) = page.as_ref().filter(|_| origin::is_preflight(&request)) {
        // A browser sends preflights without a token.
        return origin::permit(headers, page);
    }
    let mut response = if is_oauth(path) { no_oauth() } else { admit(guard, request, next).await };
    if let Some(page) = page {
        origin::share(&mut response, page);
    }
    response
}

/// Passes a request on if its sender may use the path.
async fn admit(guard: &Guard, mut request: Request, next: Next) -> Response {
    let (headers, path) = (request.headers(), request.uri().path());
    if OPEN.contains(&path) || is_webhook(path) || is_page(path) {
        return next.run(request).await;
    }
    let identity = guard.identity(headers).filter(|identity| identity.has_token() || identity.may_reach(path));
    let Some(identity) = identity else {
        let mut response = refuse(path, StatusCode::UNAUTHORIZED, unauthorized_reason(headers));
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    };
    if !identity.may_send(request.method(), path) {
        return refuse(path, StatusCode::FORBIDDEN, &identity.reach_message());
    }
    request.extensions_mut().insert(identity);
    next.run(request).await
}

/// Returns the reason why these headers identify nobody.
fn unauthorized_reason(headers: &HeaderMap) -> &'static str {
    if !headers.contains_key(header::AUTHORIZATION) {
        return "send the server's token as `Authorization: Bearer TOKEN`; `toolwright serve` says where it is";
    }
    let scheme = single(headers, &header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    match scheme {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("bearer") => {
            "this server does not know the token that was sent: send the one of --token, server.token or \
             server.tokens, or, if none of these is set, the one in its file api-token"
        }
        _ => "send one `Authorization` header: `Bearer`, a space and the server's token",
    }
}

/// Returns whether the path needs no token because it belongs to the console.
fn is_page(path: &str) -> bool {
    path == "/" || path.starts_with("/console/")
}

/// Returns whether a path belongs to the API.
fn in_api(path: &str) -> bool {
    path.strip_prefix(API).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a refusal in the format of the path.
fn refuse(path: &str, status: StatusCode, why: &str) -> Response {
    match (in_api(path), status) {
        (true, StatusCode::UNAUTHORIZED) => ApiError::unauthorized(why).into_response(),
        (true, _) => ApiError::forbidden(why).into_response(),
        (false, _) if facade_api(path).is_some() => (status, why.to_owned()).into_response(),
        (false, _) => (status, format!("{}: {why}\n", status.as_u16())).into_response(),
    }
}

/// Returns whether a client looks for OAuth at this path. MCP clients do so before they connect, or after a 401: for
/// metadata (RFC 8414, RFC 9728, OpenID Connect), with the server's path before or after, and then at the default
/// endpoints.
fn is_oauth(path: &str) -> bool {
    let is_metadata = |rest: &str| OAUTH_METADATA.iter().any(|name| rest.split('/').next() == Some(*name));
    OAUTH_PATHS.contains(&path) || path.split_once("/.well-known/").is_some_and(|(_, rest)| is_metadata(rest))
}

/// Returns the error that there is no OAuth here. The SDKs for TypeScript and Python show its message.
fn no_oauth() -> Response {
    let why = "this server has no OAuth; where it needs a token, send it as `Authorization: Bearer TOKEN`";
    respond(StatusCode::NOT_FOUND, &json!({"error": "not_found", "error_description": why}))
}

#[cfg(test)]
mod tests {
    use toolwright_core::Secret;

    use super::*;
    use crate::config::ClientConfig;

    fn pages() -> Arc<PageTokens> {
        Arc::new(PageTokens::new(Identity::owner(&Principal::owner())))
    }

    fn guard(addr: &str) -> Guard {
        let addr: SocketAddr = addr.parse().expect("addr");
        let mut options = HttpOptions::new(addr);
        options.server.allowed_hosts = vec!["Tools.example".into(), "only.example:81".into()];
        options.server.allowed_origins = vec!["https://app.example/".into()];
        options.token = Token::new("s3cret");
        Guard::new(&options, addr, pages())
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (name.parse::<HeaderName>().expect("name"), HeaderValue::from_str(value).expect("value"))
            })
            .collect()
    }

    #[test]
    fn hosts() {
        for (bound, host, allowed) in [
            ("127.0.0.1:7117", "localhost:7117", true),
            ("127.0.0.1:7117", "LOCALHOST", true),
            ("127.0.0.1:7117", "127.0.0.1:1", true),
            ("127.0.0.1:7117", "[::1]:7117", true),
            ("127.0.0.1:7117", "evil.example", false),
            ("127.0.0.1:7117", "localhost.evil.example", false),
            ("127.0.0.1:7117", "evil.example@localhost", false),
            ("127.0.0.1:7117", "[::1].evil.example", false),
            ("127.0.0.1:7117", "[::1].evil.example:7117", false),
            ("127.0.0.1:7117", "127.0.0.1.evil.example", false),
            ("127.0.0.1:7117", "localhost.", false),
            ("127.0.0.1:7117", "192.168.1.2", false),
            ("192.168.1.2:7117", "192.168.1.2:7117", true),
            ("0.0.0.0:7117", "192.168.1.2:7117", true),
            ("0.0.0.0:7117", "evil.example", false),
            ("127.0.0.1:7117", "tools.example:9", true),
            ("127.0.0.1:7117", "only.example:81", true),
            ("127.0.0.1:7117", "only.example:82", false),
            ("127.0.0.1:7117", "", false),
        ] {
            assert_eq!(guard(bound).allows_host(&headers(&[("host", host)]), None), allowed, "{bound} {host}");
        }
        let guard = guard("127.0.0.1:1");
        assert!(!guard.allows_host(&HeaderMap::new(), None));
        let mut twice = headers(&[("host", "localhost")]);
        twice.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert!(!guard.allows_host(&twice, None));
        assert!(!guard.allows_host(&headers(&[("host", "localhost")]), Some("evil.example")));
    }

    #[test]
    fn origins() {
        let guard = guard("127.0.0.1:7117");
        for (origin, allowed) in [
            (None, true),
            (Some("http://localhost:7117"), true),
            (Some("http://localhost:7118"), false),
            (Some("https://app.example"), true),
            (Some("https://app.example:8"), false),
            (Some("http://evil.example"), false),
            (Some("null"), false),
            (Some("http://user@localhost:7117"), false),
            (Some("ftp://localhost:7117"), false),
        ] {
            let mut pairs = vec![("host", "localhost:7117")];
            pairs.extend(origin.map(|origin| ("origin", origin)));
            assert_eq!(guard.allows_origin(&headers(&pairs)), allowed, "{origin:?}");
        }
    }

    #[test]
    fn tokens() {
        let guard = guard("127.0.0.1:7117");
        for (value, refused) in [
            ("Bearer s3cret", None),
            ("bearer  s3cret", None),
            ("Bearer s3cre", Some("does not know the token")),
            ("s3cret", Some("send one `Authorization` header")),
            ("Basic s3cret", Some("send one `Authorization` header")),
        ] {
            let headers = headers(&[("authorization", value)]);
            assert_eq!(guard.identity(&headers).is_none(), refused.is_some(), "{value}");
            assert!(
                refused.is_none_or(|words| unauthorized_reason(&headers).contains(words)),
                "{value}: {}",
                unauthorized_reason(&headers)
            );
        }
        assert!(unauthorized_reason(&HeaderMap::new()).starts_with("send the server's token"));
        assert!(guard.identity(&HeaderMap::new()).is_none());
        assert!(Token::new(" ").is_none());
        assert_eq!(format!("{:?}", Token::new("s3cret")), "Some(Token(…))");
    }

    #[test]
    fn a_token_decides_principal_and_reachable_paths() {
        let addr: SocketAddr = "127.0.0.1:7117".parse().expect("addr");
        let mut options = HttpOptions::new(addr);
        let open = Guard::new(&options, addr, pages());
        let anybody = open.identity(&HeaderMap::new()).expect("known as the owner");
        assert!(anybody.principal().owner && !anybody.has_token());
        let reached = ["/mcp", "/mcp/small", "/metrics", "/api/tools", "/api"].map(|path| anybody.may_reach(path));
        assert_eq!(reached, [true, true, true, false, false]);
        options.api_token = Token::new("t0");
        let shown = headers(&[("authorization", "Bearer t0")]);
        let api = Guard::new(&options, addr, pages());
        assert!(api.identity(&shown).is_some_and(|identity| identity.has_token() && identity.may_reach("/api/tools")));
        assert!(api.identity(&HeaderMap::new()).is_some_and(|identity| !identity.has_token()));
        options.api_token = None;
        let client = |name: &str, token: &str, views| {
            let config = ClientConfig {
                token: Secret::new(token),
                roles: vec!["dev".into()],
                views,
                models: Vec::new(),
                budget: None,
                approvals: None,
                api: if name == "eye" { ApiAccess::Read } else { ApiAccess::None },
            };
            (name.to_owned(), config)
        };
        let [small, all, reader] = [Some(vec!["small".into()]), None, Some(Vec::new())];
        options.server.tokens =
            [client("ci", "t2", small), client("me", "t3", all), client("eye", "t4", reader)].into();
        let closed = Guard::new(&options, addr, pages());
        assert!(closed.identity(&HeaderMap::new()).is_none(), "where there are tokens one is needed");
        options.token = Token::new("t1");
        let guard = Guard::new(&options, addr, pages());
        for (token, who, expect) in [
            ("t1", "owner", [true, true, true, true]),
            ("t2", "ci", [false, true, false, false]),
            ("t3", "me", [true, true, true, false]),
            ("t4", "eye", [false, false, false, true]),
        ] {
            let identity = guard.identity(&headers(&[("authorization", &format!("Bearer {token}"))])).expect("known");
            let reached =
                ["/mcp", "/mcp/small", "/mcp/other", "/api/tools"].map(|path| identity.may_send(&Method::GET, path));
            assert_eq!(identity.may_send(&Method::POST, "/api/call"), who == "owner", "{token}");
            assert_eq!((&*identity.principal().id, reached), (who, expect), "{token}");
            assert!(
                token != "t2" || identity.reach_message().ends_with("for /mcp/small"),
                "{}",
                identity.reach_message()
            );
        }
    }

    #[test]
    fn oauth_paths_are_known_below_any_server_path() {
        for (path, expect) in [
            ("/.well-known/oauth-authorization-server", true),
            ("/.well-known/oauth-authorization-server/mcp", true),
            ("/.well-known/oauth-protected-resource/mcp/small", true),
            ("/.well-known/openid-configuration", true),
            ("/mcp/.well-known/openid-configuration", true),
            ("/register", true),
            ("/token", true),
            ("/.well-known/oauth-authorization-serverx", false),
            ("/.well-known/security.txt", false),
            ("/register/x", false),
            ("/mcp/register", false),
            ("/api/token", false),
        ] {
            assert_eq!(is_oauth(path), expect, "{path}");
        }
    }
}
