//! Grants that need nobody: a client's own rights, and assertions.

use serde::Deserialize;
use toolwright_core::Secret;

use super::consent::token_endpoint;
use super::credentials::{Client, Token};
use super::discovery::Discovered;
use super::error::OAuthError;
use super::settings::{AssertionSource, ClientProof, Grant, IdentityProvider};
use super::token::{TokenAnswer, TokenRequest, basic, request};
use super::wire::Wire;

const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
/// Bound on an assertion's file.
const MAX_ASSERTION: usize = 64 << 10;

/// Asks for a token without a person. `None` for the grant that needs one.
///
/// # Errors
/// [`OAuthError`].
pub(crate) async fn unattended(
    wire: &Wire,
    grant: &Grant,
    found: &Discovered,
    client: &Client,
    proof: &ClientProof,
    scopes: &[String],
) -> Result<Option<Token>, OAuthError> {
    let assertion = match grant {
        Grant::AuthorizationCode => return Ok(None),
        Grant::ClientCredentials => None,
        Grant::JwtBearer(source) => Some(read(source).await?),
        Grant::IdentityAssertion(provider) => Some(exchange(wire, provider, found, scopes).await?),
    };
    let fields = match &assertion {
        None => vec![("grant_type", "client_credentials")],
        Some(assertion) => vec![("grant_type", JWT_BEARER), ("assertion", assertion.expose())],
    };
    let asked = TokenRequest {
        endpoint: token_endpoint(found)?,
        fields,
        resource: found.resource.as_deref(),
        scopes,
        asked: scopes,
        audience: &found.server.issuer,
    };
    request(wire, client, proof, asked).await.map(Some)
}

/// Renews a token (OAuth 2.1 section 4.3). What the answer leaves out stays as it was.
///
/// # Errors
/// [`OAuthError`]; `invalid_grant` says that a person has to log in again.
pub(crate) async fn renewed(
    wire: &Wire,
    client: &Client,
    proof: &ClientProof,
    issuer: &str,
    token: &Token,
    refresh: &Secret,
) -> Result<Token, OAuthError> {
    let asked = TokenRequest {
        endpoint: &token.token_endpoint,
        fields: vec![("grant_type", "refresh_token"), ("refresh_token", refresh.expose())],
        resource: token.resource.as_deref(),
        scopes: &[],
        asked: &token.asked,
        audience: issuer,
    };
    let mut new = request(wire, client, proof, asked).await?;
    new.refresh = new.refresh.or_else(|| Some(refresh.clone()));
    Ok(new)
}

/// Has an identity provider turn a person's identity token into an assertion for the authorization server.
async fn exchange(
    wire: &Wire,
    provider: &IdentityProvider,
    found: &Discovered,
    scopes: &[String],
) -> Result<Secret, OAuthError> {
    let what = "exchange of the identity token";
    let endpoint = wire.endpoint("`oauth.identity_provider.token_endpoint`", &provider.token_endpoint)?;
    let identity = read(&provider.identity_token).await?;
    let scope = scopes.join(" ");
    let mut fields = vec![
        ("grant_type", TOKEN_EXCHANGE),
        ("requested_token_type", ID_JAG),
        ("subject_token", identity.expose()),
        ("subject_token_type", ID_TOKEN),
        ("audience", found.server.issuer.as_str()),
    ];
    fields.extend(found.resource.as_deref().map(|resource| ("resource", resource)));
    if !scope.is_empty() {
        fields.push(("scope", &scope));
    }
    let authorization = match &provider.client_secret {
        Some(secret) => Some(basic(&provider.client_id, secret.expose())?),
        None => {
            fields.push(("client_id", &provider.client_id));
            None
        }
    };
    let answer = wire.form(what, &endpoint, &fields, authorization).await?;
    let issued: Issued = serde_json::from_slice(&answer.body).unwrap_or_default();
    let given = TokenAnswer::read(what, &answer)?;
    match issued.issued_token_type.as_deref() {
        Some(ID_JAG) => Ok(given.access_token),
        _ => Err(OAuthError::Answer { what, reason: "it gave out no identity assertion (`id-jag`)".to_owned() }),
    }
}

#[derive(Default, Deserialize)]
struct Issued {
    issued_token_type: Option<String>,
}

async fn read(source: &AssertionSource) -> Result<Secret, OAuthError> {
    match source {
        AssertionSource::Value(secret) => Ok(secret.clone()),
        AssertionSource::File(path) => {
            let failed = |reason: String| OAuthError::Setting(format!("{}: {reason}", path.display()));
            let text = tokio::fs::read_to_string(path).await.map_err(|error| failed(error.to_string()))?;
            let text = text.trim();
            if text.is_empty() || text.len() > MAX_ASSERTION {
                return Err(failed("it holds no assertion".to_owned()));
            }
            Ok(Secret::new(text))
        }
    }
}
