//! The client identity at an authorization server: configured, a metadata document's URL, or registered (RFC 7591).

use serde::Deserialize;
use serde_json::json;
use toolwright_core::Secret;

use super::config::{ClientProof, OAuthConfig};
use super::credentials::{AuthMethod, Client, unix_now};
use super::discovery::Discovered;
use super::discovery::ServerMetadata;
use super::wire::OAuthHttp;
use super::wire::{JsonFields, seconds};
use crate::{OAuthError, excerpt};

/// Name of the registration request in errors.
pub(crate) const REGISTRATION: &str = "registration";

/// Returns the configured client, if any, without a request.
///
/// # Errors
/// [`OAuthError::Setting`] if its credentials and the server have no authentication method in common.
pub(crate) fn configured(settings: &OAuthConfig, server: &ServerMetadata) -> Result<Option<Client>, OAuthError> {
    let Some(id) = &settings.client_id else { return Ok(None) };
    let method = configured_method(&settings.proof, server)?;
    Ok(Some(Client { id: id.clone(), secret: None, method, redirect_uri: None, secret_expires_at: None }))
}

fn configured_method(proof: &ClientProof, server: &ServerMetadata) -> Result<AuthMethod, OAuthError> {
    let candidates: &[AuthMethod] = match proof {
        ClientProof::None => &[AuthMethod::None],
        ClientProof::Key(_) => &[AuthMethod::PrivateKeyJwt],
        ClientProof::Secret(_) => &[AuthMethod::ClientSecretBasic, AuthMethod::ClientSecretPost],
    };
    let Some(supported) = server.auth_methods() else { return Ok(candidates[0]) };
    let known = |method: &&AuthMethod| supported.iter().any(|name| name == method.name());
    match (candidates.iter().find(known), proof) {
        (Some(method), _) => Ok(*method),
        // A public client has no credentials, whatever methods the server supports.
        (None, ClientProof::None) => Ok(AuthMethod::None),
        (None, _) => Err(OAuthError::Setting(format!(
            "the authorization server knows the clients' proofs {}, and `oauth` sets {}",
            supported.join(", "),
            candidates.iter().map(|method| method.name()).collect::<Vec<_>>().join(" or "),
        ))),
    }
}

/// Returns the client whose id is the URL of its metadata, if the server supports this.
pub(crate) fn by_document(settings: &OAuthConfig, server: &ServerMetadata) -> Option<Client> {
    let url = settings.client_metadata_url.as_ref().filter(|_| server.client_id_metadata_document_supported)?;
    let method = match settings.proof {
        ClientProof::Key(_) => AuthMethod::PrivateKeyJwt,
        _ => AuthMethod::None,
    };
    Some(Client { id: url.clone(), secret: None, method, redirect_uri: None, secret_expires_at: None })
}

/// Whether an earlier registration is still valid.
pub(crate) fn holds(client: &Client) -> bool {
    client.secret_expires_at.is_none_or(|end| unix_now() < end)
}

/// Registers (RFC 7591), as a native application that its user runs.
///
/// # Errors
/// [`OAuthError`].
pub(crate) async fn register(
    wire: &OAuthHttp,
    found: &Discovered,
    redirect_uri: &str,
    scopes: &[String],
) -> Result<Client, OAuthError> {
    let what = REGISTRATION;
    let Some(endpoint) = &found.server.registration_endpoint else {
        return Err(OAuthError::Setting(format!(
            "the authorization server `{}` registers no clients by itself: register one there and set \
             `oauth.client_id` (and `oauth.client_secret`), with the redirect address `http://127.0.0.1:PORT/callback` \
             and `oauth.redirect_port`",
            found.issuer
        )));
    };
    let endpoint = wire.endpoint("registration_endpoint", endpoint)?;
    let mut metadata = json!({
        "client_name": "Toolwright",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": wanted_method(&found.server).name(),
        "application_type": "native",
    });
    if !scopes.is_empty() {
        metadata["scope"] = json!(scopes.join(" "));
    }
    let answer = wire.json(what, &endpoint, &metadata).await?;
    if !answer.status.is_success() {
        let refused: Option<RegistrationError> = serde_json::from_slice(&answer.body).ok();
        return Err(match refused {
            Some(refused) => OAuthError::Refused {
                what,
                error: excerpt(&refused.error),
                description: refused.error_description.as_deref().map(excerpt),
            },
            None => OAuthError::Answer { what, reason: format!("HTTP status {}", answer.status) },
        });
    }
    let given = Registration::read(&answer.body)?;
    let method = given_method(&given, &found.server)?;
    Ok(Client {
        id: given.client_id,
        secret: given.client_secret,
        method,
        redirect_uri: Some(redirect_uri.to_owned()),
        secret_expires_at: given.secret_expires_at.filter(|end| *end != 0),
    })
}

struct Registration {
    client_id: String,
    client_secret: Option<Secret>,
    /// `client_secret_expires_at`, in seconds since 1970.
    secret_expires_at: Option<u64>,
    token_endpoint_auth_method: Option<String>,
}

impl Registration {
    fn read(body: &[u8]) -> Result<Self, OAuthError> {
        let mut members = JsonFields::read(REGISTRATION, body)?;
        Ok(Self {
            client_id: members.required("client_id")?,
            client_secret: members.optional("client_secret")?,
            secret_expires_at: members.optional("client_secret_expires_at")?.as_ref().and_then(seconds),
            token_endpoint_auth_method: members.optional("token_endpoint_auth_method")?,
        })
    }
}

#[derive(Deserialize)]
struct RegistrationError {
    error: String,
    error_description: Option<String>,
}

/// Supported methods of a registered client, in order of preference: a program on its user's machine cannot keep a
/// secret.
const METHODS: [AuthMethod; 3] = [AuthMethod::None, AuthMethod::ClientSecretBasic, AuthMethod::ClientSecretPost];
/// Preferred methods of a client with a secret: a server that issues one expects to see it.
const WITH_SECRET: [AuthMethod; 3] = [AuthMethod::ClientSecretBasic, AuthMethod::ClientSecretPost, AuthMethod::None];

/// The method to register with.
fn wanted_method(server: &ServerMetadata) -> AuthMethod {
    first_known(METHODS, server)
}

/// Returns the first method that the server supports; by default that is `client_secret_basic` (RFC 8414 section 2).
fn first_known(methods: [AuthMethod; 3], server: &ServerMetadata) -> AuthMethod {
    let Some(supported) = server.auth_methods() else { return AuthMethod::ClientSecretBasic };
    let known = |method: &AuthMethod| supported.iter().any(|name| name == method.name());
    methods.into_iter().find(known).unwrap_or(AuthMethod::ClientSecretBasic)
}

/// Returns the method of a registration: the server's choice, or else the best that fits the response. By default a
/// client with a secret uses `client_secret_basic` (RFC 7591 section 2), if the server supports it.
fn given_method(given: &Registration, server: &ServerMetadata) -> Result<AuthMethod, OAuthError> {
    if let Some(name) = &given.token_endpoint_auth_method {
        let method = METHODS.into_iter().find(|method| method.name() == name);
        return method.ok_or_else(|| OAuthError::Answer {
            what: "registration",
            reason: format!("it says `token_endpoint_auth_method` `{}`, which was not asked for", excerpt(name)),
        });
    }
    if given.client_secret.as_ref().is_none_or(|secret| secret.expose().is_empty()) {
        return Ok(AuthMethod::None);
    }
    Ok(first_known(WITH_SECRET, server))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(methods: Option<&[&str]>) -> ServerMetadata {
        ServerMetadata {
            token_endpoint_auth_methods_supported: methods
                .map(|methods| methods.iter().map(|method| (*method).to_owned()).collect()),
            ..ServerMetadata::default()
        }
    }

    #[test]
    fn the_method_fits_what_both_sides_can() {
        let secret = ClientProof::Secret(Secret::new("s"));
        for (proof, methods, expect) in [
            (&secret, None, Some(AuthMethod::ClientSecretBasic)),
            (&ClientProof::None, None, Some(AuthMethod::None)),
            (&secret, Some(&["client_secret_post", "none"][..]), Some(AuthMethod::ClientSecretPost)),
            (&secret, Some(&["client_secret_post", "client_secret_basic"]), Some(AuthMethod::ClientSecretBasic)),
            (&secret, Some(&["private_key_jwt"]), None),
            (&secret, Some(&[]), Some(AuthMethod::ClientSecretBasic)),
            (&ClientProof::None, Some(&["client_secret_basic"]), Some(AuthMethod::None)),
        ] {
            assert_eq!(configured_method(proof, &server(methods)).ok(), expect, "{methods:?}");
        }
        for (methods, secret, said, expect) in [
            (None, true, None, Some(AuthMethod::ClientSecretBasic)),
            (None, false, None, Some(AuthMethod::None)),
            (Some(&["none"][..]), true, None, Some(AuthMethod::None)),
            (Some(&["none", "client_secret_basic"]), true, None, Some(AuthMethod::ClientSecretBasic)),
            (Some(&["none", "client_secret_post"]), true, None, Some(AuthMethod::ClientSecretPost)),
            (Some(&["none", "client_secret_basic"]), false, None, Some(AuthMethod::None)),
            (Some(&[]), true, None, Some(AuthMethod::ClientSecretBasic)),
            (Some(&["none"]), true, Some("client_secret_post"), Some(AuthMethod::ClientSecretPost)),
            (None, true, Some("tls_client_auth"), None),
        ] {
            let given = Registration {
                client_id: "c".into(),
                client_secret: secret.then(|| Secret::new("s")),
                secret_expires_at: None,
                token_endpoint_auth_method: said.map(str::to_owned),
            };
            assert_eq!(given_method(&given, &server(methods)).ok(), expect, "{methods:?} {secret} {said:?}");
        }
    }
}
