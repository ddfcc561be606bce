//! Discovery of a server's authorization server: the 401 challenge (RFC 9110, 6750), the published metadata (RFC 9728,
//! RFC 8414, OpenID Connect Discovery) with its checks, and the scopes to ask for.

use http::header::WWW_AUTHENTICATE;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use url::Url;

use crate::wire::OAuthHttp;
use crate::{OAuthError, excerpt};

/// The authorization server of an MCP server, and its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Discovered {
    /// Value of the parameter `resource` (RFC 8707); `None` for servers of 2025-03-26, which publish no metadata
    /// and whose authorization servers may not support it.
    pub(crate) resource: Option<String>,
    /// Scopes that the resource knows.
    pub(crate) scopes: Vec<String>,
    /// The issuer that the metadata was found by.
    pub(crate) issuer: String,
    /// The authorization server.
    pub(crate) server: ServerMetadata,
    /// Whether `server` was published; otherwise it has the default endpoints of 2025-03-26.
    pub(crate) published: bool,
}

/// Finds the authorization server. `wanted` is the configured issuer, which must be among those that the
/// server trusts.
///
/// # Errors
/// [`OAuthError`].
pub(crate) async fn discover(
    wire: &OAuthHttp,
    server: &Url,
    challenge: &BearerChallenge,
    wanted: Option<&str>,
) -> Result<Discovered, OAuthError> {
    let named = challenge.resource_metadata.as_deref();
    let named = named.map(|named| wire.endpoint("resource_metadata", named)).transpose()?;
    let places = resource_metadata_urls(server, named.as_ref());
    let Some(resource) = wire.document_at::<ResourceMetadata>("the server's OAuth metadata", &places).await? else {
        return without_metadata(wire, server, wanted).await;
    };
    check_resource(server, &resource.resource)?;
    let issuer = chosen_issuer(&resource, wanted)?;
    let metadata = server_metadata(wire, &issuer).await?;
    let metadata = metadata.ok_or_else(|| {
        OAuthError::Metadata(format!("the authorization server `{issuer}` publishes no metadata (RFC 8414)"))
    })?;
    Ok(Discovered {
        resource: Some(resource.resource),
        scopes: resource.scopes_supported,
        issuer,
        server: metadata,
        published: true,
    })
}

/// Sends a request without a token and returns the bearer challenge; an empty one if the server sends none.
pub(crate) async fn fetch_challenge(wire: &OAuthHttp, server: &Url) -> Result<BearerChallenge, OAuthError> {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let answer = wire.json("the server", server, &request).await?;
    let headers = answer.headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let headers: Vec<String> = headers.map(str::to_owned).collect();
    Ok(BearerChallenge::of(&headers).unwrap_or_default())
}

fn chosen_issuer(resource: &ResourceMetadata, wanted: Option<&str>) -> Result<String, OAuthError> {
    let trusted = &resource.authorization_servers;
    match wanted {
        None => trusted.first().cloned().ok_or_else(|| {
            OAuthError::Metadata("its metadata names no authorization server (authorization_servers)".to_owned())
        }),
        Some(wanted) => trusted.iter().find(|issuer| same_issuer(issuer, wanted)).cloned().ok_or_else(|| {
            OAuthError::Metadata(format!(
                "`oauth.authorization_server` is `{wanted}`, and the server trusts only {}: your client's secret is \
                 kept from it",
                trusted.join(", "),
            ))
        }),
    }
}

/// Servers of 2025-03-26: they are their own authorization server, at the root of their origin.
async fn without_metadata(wire: &OAuthHttp, server: &Url, wanted: Option<&str>) -> Result<Discovered, OAuthError> {
    let issuer =
        wanted.map_or_else(|| server.origin().ascii_serialization(), |wanted| wanted.trim_end_matches('/').to_owned());
    let published = server_metadata(wire, &issuer).await?;
    let found = published.is_some();
    let metadata = published.unwrap_or_else(|| ServerMetadata {
        issuer: issuer.clone(),
        authorization_endpoint: Some(format!("{issuer}/authorize")),
        token_endpoint: Some(format!("{issuer}/token")),
        registration_endpoint: Some(format!("{issuer}/register")),
        ..ServerMetadata::default()
    });
    Ok(Discovered { resource: None, scopes: Vec::new(), issuer, server: metadata, published: found })
}

/// Fetches the metadata of an issuer and checks that it names that issuer; `None` if none is published.
///
/// # Errors
/// [`OAuthError`].
pub(crate) async fn server_metadata(wire: &OAuthHttp, issuer: &str) -> Result<Option<ServerMetadata>, OAuthError> {
    let base = wire.endpoint("the authorization server", issuer)?;
    let places = server_metadata_urls(&base);
    let found = wire.document_at::<ServerMetadata>("the authorization server's metadata", &places).await?;
    found.iter().try_for_each(|metadata| check_issuer(issuer, metadata))?;
    Ok(found)
}

/// Metadata of a protected resource.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ResourceMetadata {
    /// Its identifier, sent literally as `resource`.
    pub(crate) resource: String,
    /// Issuers of the authorization servers that it trusts.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) authorization_servers: Vec<String>,
    /// Scopes that it knows.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) scopes_supported: Vec<String>,
}

/// Metadata of an authorization server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ServerMetadata {
    /// Its identifier.
    pub(crate) issuer: String,
    /// The login page.
    pub(crate) authorization_endpoint: Option<String>,
    /// The token endpoint.
    pub(crate) token_endpoint: Option<String>,
    /// Endpoint of dynamic client registration (RFC 7591).
    pub(crate) registration_endpoint: Option<String>,
    /// Token revocation endpoint (RFC 7009).
    pub(crate) revocation_endpoint: Option<String>,
    /// Scopes that it knows.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) scopes_supported: Vec<String>,
    /// Client authentication methods of the token endpoint, as published: see [`ServerMetadata::auth_methods`].
    pub(crate) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// PKCE methods.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) code_challenge_methods_supported: Vec<String>,
    /// Whether a client id may be the URL of the client's metadata.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) client_id_metadata_document_supported: bool,
    /// Whether every answer of the login page has `iss` (RFC 9207).
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) authorization_response_iss_parameter_supported: bool,
}

impl ServerMetadata {
    /// Client authentication methods of the token endpoint; `None` if not stated, which means
    /// `client_secret_basic` (RFC 8414 section 2). An empty list counts as not stated (section 3.2).
    pub(crate) fn auth_methods(&self) -> Option<&[String]> {
        self.token_endpoint_auth_methods_supported.as_deref().filter(|methods| !methods.is_empty())
    }
}

/// A member that is left out or, which servers write as well, null.
fn null_as_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// URLs to try for a resource's metadata, in order: the one in the challenge, or else the well-known URLs
/// of its path and of its root (RFC 9728 section 3.1).
pub(crate) fn resource_metadata_urls(server: &Url, named: Option<&Url>) -> Vec<Url> {
    if let Some(named) = named {
        return vec![named.clone()];
    }
    let mut urls = vec![well_known(server, "oauth-protected-resource", server.path())];
    let root = well_known(server, "oauth-protected-resource", "");
    if !urls.contains(&root) {
        urls.push(root);
    }
    urls
}

/// URLs to try for an issuer's metadata, in order (MCP authorization, "Authorization Server Metadata Discovery").
pub(crate) fn server_metadata_urls(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let mut urls =
        vec![well_known(issuer, "oauth-authorization-server", path), well_known(issuer, "openid-configuration", path)];
    if !path.is_empty() {
        let mut appended = bare(issuer);
        appended.set_path(&format!("{path}/.well-known/openid-configuration"));
        urls.push(appended);
    }
    urls
}

fn well_known(of: &Url, name: &str, path: &str) -> Url {
    let mut url = bare(of);
    url.set_path(&format!("/.well-known/{name}{}", path.trim_end_matches('/')));
    url
}

/// A URL without query, fragment and credentials.
fn bare(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail only for URLs that cannot have credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url
}

/// Checks that metadata for `resource` covers `server`: the same origin, and the same path or a parent of it.
/// Otherwise tokens for one server could be issued for another.
///
/// # Errors
/// [`OAuthError::Metadata`].
pub(crate) fn check_resource(server: &Url, resource: &str) -> Result<(), OAuthError> {
    let speaks = Url::parse(resource).is_ok_and(|resource| {
        let above = resource.path().trim_end_matches('/');
        let rest = server.path().strip_prefix(above);
        resource.fragment().is_none()
            && resource.origin() == server.origin()
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    if speaks {
        return Ok(());
    }
    Err(OAuthError::Metadata(format!(
        "its metadata belongs to another resource, `{}`, not to {}: tokens for that would be valid elsewhere, so none \
         is requested",
        excerpt(resource),
        bare(server),
    )))
}

/// Checks that metadata found for `expected` names that issuer (RFC 8414 section 3.3). A trailing slash is ignored:
/// both forms have their metadata in the same place.
///
/// # Errors
/// [`OAuthError::Metadata`].
pub(crate) fn check_issuer(expected: &str, metadata: &ServerMetadata) -> Result<(), OAuthError> {
    if same_issuer(expected, &metadata.issuer) {
        return Ok(());
    }
    Err(OAuthError::Metadata(format!(
        "the authorization server `{}` calls itself `{}` in its metadata: one of them is not who it says",
        excerpt(expected),
        excerpt(&metadata.issuer),
    )))
}

/// Whether two names denote the same issuer.
pub(crate) fn same_issuer(a: &str, b: &str) -> bool {
    a.strip_suffix('/').unwrap_or(a) == b.strip_suffix('/').unwrap_or(b)
}

/// A bearer challenge: what the server requires of the token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BearerChallenge {
    /// `error`.
    pub(crate) error: Option<String>,
    /// `error_description`.
    pub(crate) description: Option<String>,
    /// `scope`, its words.
    pub(crate) scopes: Vec<String>,
    /// `resource_metadata` (RFC 9728 section 5.1).
    pub(crate) resource_metadata: Option<String>,
}

impl BearerChallenge {
    /// Returns the first bearer challenge among the header's values.
    pub(crate) fn of(headers: &[String]) -> Option<Self> {
        headers.iter().find_map(|header| Self::in_header(header))
    }

    fn in_header(header: &str) -> Option<Self> {
        let mut found: Option<Self> = None;
        for item in items(header) {
            match item {
                Item::Scheme(_) if found.is_some() => break,
                Item::Scheme(scheme) => found = scheme.eq_ignore_ascii_case("bearer").then(Self::default),
                Item::Parameter(name, value) => {
                    if let Some(challenge) = &mut found {
                        challenge.take(&name, value);
                    }
                }
            }
        }
        found
    }

    fn take(&mut self, name: &str, value: String) {
        match name.to_ascii_lowercase().as_str() {
            "error" => self.error = Some(value),
            "error_description" => self.description = Some(value),
            "scope" => self.scopes = value.split_ascii_whitespace().map(str::to_owned).collect(),
            "resource_metadata" => self.resource_metadata = Some(value),
            _ => {}
        }
    }
}

enum Item {
    Scheme(String),
    Parameter(String, String),
}

/// Parses schemes and parameters in order. Unparsable parts are skipped: a header is never rejected as a whole.
fn items(header: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find([' ', '\t', ',', '=', '"']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if rest.is_empty() {
            return items;
        }
        if word.is_empty() {
            // A stray `=` or quotation mark.
            rest = after.get(1..).unwrap_or_default();
            continue;
        }
        let spaced = after.trim_start_matches([' ', '\t']);
        match spaced.strip_prefix('=') {
            // A scheme's `token68` may end in `=`; no value follows then.
            Some(value) if !value.trim_start().is_empty() && !value.starts_with(['=', ',']) => {
                let (value, after) = value_of(value.trim_start_matches([' ', '\t']));
                items.push(Item::Parameter(word.to_owned(), value));
                rest = after;
            }
            Some(padding) => rest = padding.trim_start_matches('='),
            None => {
                items.push(Item::Scheme(word.to_owned()));
                rest = after;
            }
        }
    }
}

/// Splits off a token or quoted string and returns the rest.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => value.push(c),
        }
    }
    (value, "")
}

/// Sources for the choice of scopes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScopeSources<'a> {
    /// Configured by the operator; always requested.
    pub(crate) configured: &'a [String],
    /// Requested before, from the same authorization server.
    pub(crate) before: &'a [String],
    /// Scopes of the server's challenge.
    pub(crate) challenged: &'a [String],
    /// Scopes of the protected resource's metadata.
    pub(crate) supported: &'a [String],
    /// Scopes of the authorization server's metadata.
    pub(crate) server_supported: &'a [String],
}

/// Returns the scopes to request, without duplicates: the challenge's, or else the resource's, plus the configured and
/// the earlier ones. If empty, the parameter is omitted. `offline_access`, which brings a refresh token, is added if
/// the authorization server supports it; alone it would replace the server's own default.
pub(crate) fn choose(sources: ScopeSources<'_>) -> Vec<String> {
    let wanted = match (sources.challenged, sources.configured) {
        ([], []) => sources.supported,
        (challenged, _) => challenged,
    };
    let mut chosen: Vec<String> = Vec::new();
    for scope in sources.configured.iter().chain(sources.before).chain(wanted) {
        if !chosen.contains(scope) {
            chosen.push(scope.clone());
        }
    }
    let offline = |scope: &String| scope == OFFLINE_ACCESS;
    if !chosen.is_empty() && sources.server_supported.iter().any(offline) && !chosen.iter().any(offline) {
        chosen.push(OFFLINE_ACCESS.to_owned());
    }
    chosen
}

/// The scope for a refresh token (OpenID Connect Core section 11).
pub(crate) const OFFLINE_ACCESS: &str = "offline_access";

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    #[test]
    fn metadata_urls_follow_the_standards() {
        let shown = |urls: Vec<Url>| urls.iter().map(|url| url.path().to_owned()).collect::<Vec<_>>();
        for (server, expect) in [
            (
                "https://h/mcp?x=1#f",
                vec!["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"],
            ),
            ("https://h/", vec!["/.well-known/oauth-protected-resource"]),
        ] {
            assert_eq!(shown(resource_metadata_urls(&url(server), None)), expect, "{server}");
        }
        let named = url("https://h/custom.json");
        assert_eq!(resource_metadata_urls(&url("https://h/mcp"), Some(&named)), [named]);
        for (issuer, expect) in [
            ("https://h", vec!["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
            (
                "https://h/t/",
                vec![
                    "/.well-known/oauth-authorization-server/t",
                    "/.well-known/openid-configuration/t",
                    "/t/.well-known/openid-configuration",
                ],
            ),
        ] {
            assert_eq!(shown(server_metadata_urls(&url(issuer))), expect, "{issuer}");
        }
    }

    #[test]
    fn resources_speak_for_paths_below_them() {
        for (server, resource, expect) in [
            ("https://h/mcp", "https://h/mcp", true),
            ("https://h/mcp", "https://h", true),
            ("https://h/mcp", "https://H:443/", true),
            ("https://h/mcp/a", "https://h/mcp/", true),
            ("https://h/mcpx", "https://h/mcp", false),
            ("https://h/mcp", "https://h/mcp/a", false),
            ("https://h/mcp", "http://h/mcp", false),
            ("https://h/mcp", "https://h:8443/mcp", false),
            ("https://h/mcp", "https://evil/mcp", false),
            ("https://h/mcp", "https://h/mcp#x", false),
            ("https://h/mcp", "nonsense", false),
        ] {
            assert_eq!(check_resource(&url(server), resource).is_ok(), expect, "{server} {resource}");
        }
    }

    #[test]
    fn issuers_must_match_their_metadata() {
        for (expected, issuer, expect) in [
            ("https://h", "https://h", true),
            ("https://h/", "https://h", true),
            ("https://h/t", "https://h", false),
            ("https://h", "https://H", false),
        ] {
            let metadata = ServerMetadata { issuer: issuer.into(), ..ServerMetadata::default() };
            assert_eq!(check_issuer(expected, &metadata).is_ok(), expect, "{expected} {issuer}");
        }
    }

    fn check(headers: &[&str], expect: Option<(&[&str], Option<&str>, Option<&str>)>) {
        let headers: Vec<_> = headers.iter().map(|header| (*header).to_owned()).collect();
        let found = BearerChallenge::of(&headers);
        let shown = found.as_ref().map(|challenge| {
            let scopes: Vec<_> = challenge.scopes.iter().map(String::as_str).collect();
            (scopes, challenge.error.as_deref(), challenge.resource_metadata.as_deref())
        });
        assert_eq!(shown, expect.map(|(scopes, error, metadata)| (scopes.to_vec(), error, metadata)), "{headers:?}");
    }

    #[test]
    fn bearer_challenges_are_found_among_others() {
        check(&[], None);
        check(&["Basic realm=\"a, Bearer b\""], None);
        check(&["Bearer"], Some((&[], None, None)));
        check(
            &["bearer scope=\"a b\", resource_metadata=\"https://x/y\""],
            Some((&["a", "b"], None, Some("https://x/y"))),
        );
        check(
            &["Basic realm=\"x\", Bearer error=insufficient_scope , scope = \"a\\\"b\", DPoP scope=\"other\""],
            Some((&["a\"b"], Some("insufficient_scope"), None)),
        );
        check(&["Negotiate abc==", "Bearer scope=\"a"], Some((&["a"], None, None)));
        check(&["Negotiate abc==, Bearer scope=a"], Some((&["a"], None, None)));
        check(&["=,\"\",=Bearer error=x"], Some((&[], Some("x"), None)));
    }

    #[test]
    fn the_narrowest_scope_source_decides() {
        let words = |text: &str| text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        for (configured, before, challenged, supported, server, expect) in [
            ("", "", "", "", "", ""),
            ("", "", "", "a b", "", "a b"),
            ("", "", "c", "a b", "", "c"),
            ("", "a", "c a", "b", "", "a c"),
            ("x", "", "", "a b", "", "x"),
            ("x", "", "c", "a b", "", "x c"),
            ("", "", "", "", "offline_access", ""),
            ("", "", "c", "", "c offline_access", "c offline_access"),
            ("", "offline_access c", "c", "", "offline_access", "offline_access c"),
        ] {
            let chosen = choose(ScopeSources {
                configured: &words(configured),
                before: &words(before),
                challenged: &words(challenged),
                supported: &words(supported),
                server_supported: &words(server),
            });
            assert_eq!(chosen, words(expect), "{configured:?} {before:?} {challenged:?} {supported:?} {server:?}");
        }
    }
}
