//! Finding the authorization server of an MCP server.

use http::header::WWW_AUTHENTICATE;
use serde_json::json;
use url::Url;

use super::challenge::BearerChallenge;
use super::error::OAuthError;
use super::metadata::{
    ResourceMetadata, ServerMetadata, check_issuer, check_resource, resource_metadata_urls, same_issuer,
    server_metadata_urls,
};
use super::wire::Wire;

/// All that is known of who gives out tokens for a server.
#[derive(Debug, Clone)]
pub(crate) struct Discovered {
    /// Value of the parameter `resource` (RFC 8707); `None` for servers of 2025-03-26, which have no metadata of
    /// their own and whose authorization servers need not know it.
    pub(crate) resource: Option<String>,
    /// Scopes that the resource knows.
    pub(crate) scopes: Vec<String>,
    /// The issuer that the metadata was found by.
    pub(crate) issuer: String,
    /// The authorization server.
    pub(crate) server: ServerMetadata,
    /// Whether `server` was published; otherwise it is the default endpoints of 2025-03-26.
    pub(crate) published: bool,
}

/// Finds the authorization server. `wanted` is the issuer that the operator wrote, which must be among those that the
/// server trusts.
///
/// # Errors
/// [`OAuthError`].
pub(crate) async fn discover(
    wire: &Wire,
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

/// What a server answers to a request without a token; empty where it does not answer with a bearer challenge.
pub(crate) async fn provoke(wire: &Wire, server: &Url) -> Result<BearerChallenge, OAuthError> {
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
async fn without_metadata(wire: &Wire, server: &Url, wanted: Option<&str>) -> Result<Discovered, OAuthError> {
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

/// What an issuer publishes of itself, which names that issuer; `None` where it publishes nothing.
///
/// # Errors
/// [`OAuthError`].
pub(crate) async fn server_metadata(wire: &Wire, issuer: &str) -> Result<Option<ServerMetadata>, OAuthError> {
    let base = wire.endpoint("the authorization server", issuer)?;
    let places = server_metadata_urls(&base);
    let found = wire.document_at::<ServerMetadata>("the authorization server's metadata", &places).await?;
    found.iter().try_for_each(|metadata| check_issuer(issuer, metadata))?;
    Ok(found)
}
