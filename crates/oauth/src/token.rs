//! The token endpoint (OAuth 2.1 section 3.2): requests, answers and client authentication; and revocation (RFC 7009).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use toolwright_core::Secret;
use url::Url;

use crate::config::ClientProof;
use crate::credentials::{AuthMethod, Client, Credentials, Token, unix_now};
use crate::discovery::server_metadata;
use crate::session::Session;
use crate::wire::{EndpointResponse, OAuthHttp};
use crate::wire::{JsonFields, Scopes, seconds};
use crate::{OAuthError, excerpt};

const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// A request to the token endpoint.
pub(crate) struct TokenRequest<'a> {
    /// The endpoint.
    pub(crate) endpoint: &'a str,
    /// Fields of the grant, `grant_type` among them.
    pub(crate) fields: Vec<(&'a str, &'a str)>,
    /// `resource` (RFC 8707).
    pub(crate) resource: Option<&'a str>,
    /// `scope`, as the request carries it.
    pub(crate) scopes: &'a [String],
    /// All scopes requested during this grant.
    pub(crate) asked: &'a [String],
    /// The audience of a signed assertion: the issuer.
    pub(crate) audience: &'a str,
}

/// Requests a token.
///
/// # Errors
/// [`OAuthError`].
pub(crate) async fn request(
    wire: &OAuthHttp,
    client: &Client,
    proof: &ClientProof,
    request: TokenRequest<'_>,
) -> Result<Token, OAuthError> {
    let endpoint = wire.endpoint("token_endpoint", request.endpoint)?;
    let proven = authenticate(client, proof, request.audience)?;
    let scope = request.scopes.join(" ");
    let mut fields = request.fields.clone();
    fields.extend(request.resource.map(|resource| ("resource", resource)));
    if !scope.is_empty() {
        fields.push(("scope", &scope));
    }
    fields.extend(proven.fields.iter().map(|(name, value)| (*name, value.as_str())));
    let answer = wire.form("request for a token", &endpoint, &fields, proven.header).await?;
    let given = TokenResponse::read("request for a token", &answer)?;
    given.token(&endpoint, &request)
}

/// Authentication of a request.
pub(crate) struct ClientAuthentication {
    pub(crate) header: Option<HeaderValue>,
    pub(crate) fields: Vec<(&'static str, String)>,
}

/// Builds the client authentication of `client` for the issuer `audience`.
///
/// # Errors
/// [`OAuthError::Setting`].
pub(crate) fn authenticate(
    client: &Client,
    proof: &ClientProof,
    audience: &str,
) -> Result<ClientAuthentication, OAuthError> {
    let secret = || match (proof, &client.secret) {
        (ClientProof::Secret(secret), _) | (_, Some(secret)) => Ok(secret.expose().to_owned()),
        _ => Err(OAuthError::Setting(format!(
            "the authorization server wants {}, and there is no `oauth.client_secret`",
            client.method.name()
        ))),
    };
    let id = ("client_id", client.id.clone());
    Ok(match client.method {
        AuthMethod::None => ClientAuthentication { header: None, fields: vec![id] },
        AuthMethod::ClientSecretPost => {
            ClientAuthentication { header: None, fields: vec![id, ("client_secret", secret()?)] }
        }
        AuthMethod::ClientSecretBasic => {
            ClientAuthentication { header: Some(basic(&client.id, &secret()?)?), fields: Vec::new() }
        }
        AuthMethod::PrivateKeyJwt => {
            let ClientProof::Key(key) = proof else {
                let message = "the client authenticates with a key, and there is no `oauth.private_key`";
                return Err(OAuthError::Setting(message.to_owned()));
            };
            let assertion = key.assertion(&client.id, audience)?;
            let kind = ("client_assertion_type", ASSERTION_TYPE.to_owned());
            ClientAuthentication { header: None, fields: vec![id, kind, ("client_assertion", assertion)] }
        }
    })
}

/// HTTP Basic as RFC 6749 section 2.3.1 has it: both parts are form-encoded first.
pub(crate) fn basic(id: &str, secret: &str) -> Result<HeaderValue, OAuthError> {
    let encoded = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let credentials = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let mut value = HeaderValue::from_str(&format!("Basic {credentials}"))
        .map_err(|error| OAuthError::Setting(format!("the client's secret cannot be sent: {error}")))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A successful answer (RFC 6749 section 5.1).
pub(crate) struct TokenResponse {
    pub(crate) access_token: Secret,
    token_type: Option<String>,
    /// `expires_in`, in seconds.
    lifetime: Option<u64>,
    refresh_token: Option<Secret>,
    scope: Option<Scopes>,
}

#[derive(Deserialize)]
struct ErrorResponse {
    error: String,
    error_description: Option<String>,
}

/// Checks that a response is a success; some servers send errors with status 200.
///
/// # Errors
/// [`OAuthError::Refused`] for an error of RFC 6749 section 5.2; [`OAuthError::Answer`] for a server fault, which may
/// be temporary, whatever its body says.
pub(crate) fn accepted(what: &'static str, answer: &EndpointResponse) -> Result<(), OAuthError> {
    let status = answer.status;
    let refused = serde_json::from_slice::<ErrorResponse>(&answer.body).ok();
    if status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT) {
        let said = refused.map(|refused| format!(" ({})", excerpt(&refused.error))).unwrap_or_default();
        return Err(OAuthError::Answer { what, reason: format!("HTTP status {status}{said}; try again later") });
    }
    if let Some(refused) = refused {
        let description = refused.error_description.as_deref().map(excerpt);
        return Err(OAuthError::Refused { what, error: excerpt(&refused.error), description });
    }
    if !status.is_success() {
        return Err(OAuthError::Answer { what, reason: format!("HTTP status {status}") });
    }
    Ok(())
}

impl TokenResponse {
    /// Reads an answer.
    pub(crate) fn read(what: &'static str, answer: &EndpointResponse) -> Result<Self, OAuthError> {
        accepted(what, answer)?;
        let mut members = JsonFields::read(what, &answer.body)?;
        Ok(Self {
            access_token: members.required("access_token")?,
            token_type: members.optional("token_type")?,
            lifetime: members.optional("expires_in")?.as_ref().and_then(seconds),
            refresh_token: members.optional("refresh_token")?,
            scope: members.optional("scope")?,
        })
    }

    fn token(self, endpoint: &Url, request: &TokenRequest<'_>) -> Result<Token, OAuthError> {
        let what = "request for a token";
        if let Some(kind) = self.token_type.as_deref().filter(|kind| !kind.eq_ignore_ascii_case("bearer")) {
            let reason = format!("it is a token of the type `{}`, and only bearer tokens are used here", excerpt(kind));
            return Err(OAuthError::Answer { what, reason });
        }
        if HeaderValue::from_str(self.access_token.expose()).is_err() {
            let reason = "its token has characters that a header cannot carry".to_owned();
            return Err(OAuthError::Answer { what, reason });
        }
        let since = unix_now();
        Ok(Token {
            access: self.access_token,
            refresh: self.refresh_token,
            since,
            expires_at: self.lifetime.map(|lifetime| since.saturating_add(lifetime)),
            asked: request.asked.to_vec(),
            granted: self.scope.map_or_else(|| request.asked.to_vec(), |scope| scope.words()),
            token_endpoint: endpoint.to_string(),
            resource: request.resource.map(str::to_owned),
        })
    }
}

/// Time limit of a whole logout, so that a hanging server does not block it.
const BOUND: Duration = Duration::from_secs(20);
const WHAT: &str = "revocation of a token";

/// Result of a logout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logout {
    /// Whether any credentials were stored here.
    pub removed: bool,
    /// Result of revoking the token at the authorization server.
    pub revocation: Revocation,
}

/// Result of revoking a token at the authorization server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revocation {
    /// There was no token.
    NoToken,
    /// It is good no more.
    Revoked,
    /// The authorization server has no `revocation_endpoint`.
    NotOffered,
    /// It may stay valid until it expires; the reason.
    Failed(String),
}

impl Session {
    /// Revokes tokens at the authorization server. Best effort, bounded.
    pub(crate) async fn revoked(&self, kept: Option<&Credentials>) -> Revocation {
        let Some((issuer, client, token)) = kept.and_then(parts) else { return Revocation::NoToken };
        let mut refused = None;
        let ended = match tokio::time::timeout(BOUND, self.revoke(issuer, client, token, &mut refused)).await {
            Ok(Ok(true)) => Ok(Revocation::Revoked),
            Ok(Ok(false)) => Ok(Revocation::NotOffered),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!(
                "the authorization server did not answer within {}",
                toolwright_core::duration::format(BOUND)
            )),
        };
        combine_revocations(refused.map(|error| error.to_string()), ended)
    }

    /// Revokes both tokens; `false` if the server has no revocation endpoint. The refresh token comes first: most
    /// servers revoke the access token with it. `refused` gets the error of the first token.
    async fn revoke(
        &self,
        issuer: &str,
        client: &Client,
        token: &Token,
        refused: &mut Option<OAuthError>,
    ) -> Result<bool, OAuthError> {
        let metadata = server_metadata(&self.wire, issuer).await?;
        let Some(endpoint) = metadata.and_then(|metadata| metadata.revocation_endpoint) else { return Ok(false) };
        let endpoint = self.wire.endpoint("revocation_endpoint", &endpoint)?;
        let mut last = Ok(());
        let refresh = token.refresh.iter().map(|refresh| (refresh, "refresh_token"));
        for (secret, hint) in refresh.chain([(&token.access, "access_token")]) {
            let proven = authenticate(client, &self.options.settings.proof, issuer)?;
            let mut fields = vec![("token", secret.expose()), ("token_type_hint", hint)];
            fields.extend(proven.fields.iter().map(|(name, value)| (*name, value.as_str())));
            let answer = self.wire.form(WHAT, &endpoint, &fields, proven.header).await;
            // The second token is revoked even if the first was refused.
            if let Err(error) = last {
                refused.get_or_insert(error);
            }
            last = answer.and_then(|answer| accepted(WHAT, &answer));
        }
        last.map(|()| true)
    }
}

/// Combines the results of both tokens: an error of the first is reported whatever the second's result is.
fn combine_revocations(refused: Option<String>, ended: Result<Revocation, String>) -> Revocation {
    match (refused, ended) {
        (None, Ok(revocation)) => revocation,
        (None, Err(why)) => Revocation::Failed(why),
        (Some(refused), Err(why)) if why != refused => Revocation::Failed(format!("{refused}; and {why}")),
        (Some(refused), _) => Revocation::Failed(refused),
    }
}

/// Returns the issuer, client and token of credentials.
fn parts(kept: &Credentials) -> Option<(&str, &Client, &Token)> {
    Some((kept.issuer.as_deref()?, kept.client.as_ref()?, kept.token.as_ref()?))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn check(status: u16, body: &str, expect: Result<&str, &str>) {
        let answer = EndpointResponse {
            status: StatusCode::from_u16(status).expect("a status"),
            headers: HeaderMap::new(),
            body: body.into(),
        };
        let asked = ["a".to_owned()];
        let request = TokenRequest {
            endpoint: "",
            fields: Vec::new(),
            resource: None,
            scopes: &asked,
            asked: &asked,
            audience: "",
        };
        let endpoint = Url::parse("https://as/token").expect("a URL");
        let read =
            TokenResponse::read("request for a token", &answer).and_then(|given| given.token(&endpoint, &request));
        match (read, expect) {
            (Ok(token), Ok(expect)) => {
                let lifetime = token.expires_at.map(|end| end - token.since);
                let shown = format!("{} {lifetime:?} {}", token.access.expose(), token.granted.join(","));
                assert_eq!(shown, expect, "{body}");
            }
            (Err(error), Err(expect)) => {
                let error = error.to_string();
                assert!(error.contains(expect) && !error.contains("sesame"), "{error}");
            }
            (got, _) => panic!("{body}: {got:?}"),
        }
    }

    #[test]
    fn answers_are_read_as_servers_write_them() {
        check(200, r#"{"access_token":"t","token_type":"bearer","expires_in":60}"#, Ok("t Some(60) a"));
        check(200, r#"{"access_token":"t","expires_in":"60","scope":"b c"}"#, Ok("t Some(60) b,c"));
        check(200, r#"{"access_token":"t","token_type":"Bearer"}"#, Ok("t None a"));
        check(200, r#"{"access_token":"sesame","token_type":"DPoP"}"#, Err("DPoP"));
        check(200, r#"{"access_token":"ses\name"}"#, Err("header"));
        check(200, r#"{"access_token":"t","expires_in":60.5,"scope":["b","c d"]}"#, Ok("t Some(60) b,c,d"));
        check(200, r#"{"access_token":"t","expires_in":null,"scope":null,"refresh_token":null}"#, Ok("t None a"));
        check(200, r#"{"token":"sesame"}"#, Err("it has no `access_token`"));
        check(200, r#"{"access_token":null}"#, Err("it has no `access_token`"));
        check(200, r#"{"access_token":["sesame"]}"#, Err("its `access_token` cannot be this list"));
        check(200, r#"{"access_token":"sesame","scope":{"a":1}}"#, Err("its `scope` cannot be an object"));
        check(200, r#"{"access_token":"sesame","refresh_token":5}"#, Err("its `refresh_token` cannot be this number"));
        check(200, "sesame", Err("it is not a JSON object"));
        check(400, r#"{"error":"invalid_grant","error_description":"gone"}"#, Err("invalid_grant (gone)"));
        check(200, r#"{"error":"invalid_grant"}"#, Err("invalid_grant"));
        check(502, "<html>", Err("502"));
        check(503, r#"{"error":"temporarily_unavailable"}"#, Err("503 Service Unavailable (temporarily_unavailable)"));
        check(500, r#"{"status":500,"error":"Internal Server Error"}"#, Err("try again later"));
    }

    #[test]
    fn basic_credentials_are_form_encoded_first() {
        let value = basic("a:b", "c d&").expect("a header");
        let encoded = value.to_str().expect("text").strip_prefix("Basic ").expect("Basic").to_owned();
        assert_eq!(STANDARD.decode(encoded).expect("base64"), b"a%3Ab:c+d%26");
    }

    #[test]
    fn refusals_show_when_the_second_is_silent() {
        let failed = |why: &str| Revocation::Failed(why.to_owned());
        for (refused, ended, expect) in [
            (None, Ok(Revocation::Revoked), Revocation::Revoked),
            (None, Ok(Revocation::NotOffered), Revocation::NotOffered),
            (None, Err("late"), failed("late")),
            (Some("no"), Ok(Revocation::Revoked), failed("no")),
            (Some("no"), Err("late"), failed("no; and late")),
            (Some("no"), Err("no"), failed("no")),
        ] {
            assert_eq!(combine_revocations(refused.map(str::to_owned), ended.map_err(str::to_owned)), expect);
        }
    }
}
