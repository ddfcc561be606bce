//! What servers publish of themselves: protected resources (RFC 9728) and authorization servers (RFC 8414, OpenID
//! Connect Discovery), where it lies, and which of it may be believed.

use serde::{Deserialize, Deserializer};
use url::Url;

use super::error::{OAuthError, excerpt};

/// A protected resource's word on how it is protected.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ResourceMetadata {
    /// Its identifier, sent as `resource` exactly as it stands here.
    pub(crate) resource: String,
    /// Issuers of the authorization servers that it trusts.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) authorization_servers: Vec<String>,
    /// Scopes that it knows.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) scopes_supported: Vec<String>,
}

/// An authorization server's word on itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ServerMetadata {
    /// Its identifier.
    pub(crate) issuer: String,
    /// Where people log in.
    pub(crate) authorization_endpoint: Option<String>,
    /// Where tokens come from.
    pub(crate) token_endpoint: Option<String>,
    /// Where clients register (RFC 7591).
    pub(crate) registration_endpoint: Option<String>,
    /// Where tokens are taken back (RFC 7009).
    pub(crate) revocation_endpoint: Option<String>,
    /// Scopes that it knows.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) scopes_supported: Vec<String>,
    /// How clients authenticate at the token endpoint, as it was written: see [`ServerMetadata::auth_methods`].
    pub(crate) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// PKCE methods.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) code_challenge_methods_supported: Vec<String>,
    /// Whether a client's identifier may be the URL of its metadata.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) client_id_metadata_document_supported: bool,
    /// Whether every answer of its login page names it (RFC 9207).
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) authorization_response_iss_parameter_supported: bool,
}

impl ServerMetadata {
    /// How clients may authenticate at the token endpoint; `None` where it does not say, which stands for
    /// `client_secret_basic` (RFC 8414 section 2). An empty list says nothing: there is to be none (section 3.2).
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

/// Where a resource's metadata may lie, in the order to ask: what the challenge names, or else the well-known places
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

/// Where the metadata of an issuer may lie, in the order to ask (MCP authorization, "Authorization Server Metadata
/// Discovery").
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

/// Whether metadata that calls itself `resource` speaks for `server`: the same origin, and a path above its own or
/// the same. Anything else would have tokens for one server made out to another.
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
        "its metadata is that of another resource, `{}`, not of {}: tokens for it would be good elsewhere, so none \
         is asked for",
        excerpt(resource),
        bare(server),
    )))
}

/// Whether metadata found for `expected` names that issuer (RFC 8414 section 3.3). A slash at the end does not tell
/// two issuers apart, because both have their metadata in the same place.
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

/// Whether two names are one issuer's.
pub(crate) fn same_issuer(a: &str, b: &str) -> bool {
    a.strip_suffix('/').unwrap_or(a) == b.strip_suffix('/').unwrap_or(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    #[test]
    fn metadata_lies_where_the_standards_say() {
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
    fn a_resource_speaks_for_its_own_path_and_below() {
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
    fn an_issuer_is_who_it_says() {
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
}
