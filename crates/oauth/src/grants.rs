//! Getting a token: the grant to use, grants that need no person, and signed client assertions (RFC 7523 section 2.2).

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256,
    RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::json;
use toolwright_core::Secret;
use url::Url;

use crate::OAuthError;
use crate::config::{ClientProof, Grant, IdentityProviderConfig, OAuthConfig};
use crate::credentials::{Client, Token};
use crate::discovery::Discovered;
use crate::login::Loopback;
use crate::login::{Login, token_endpoint};
use crate::registration::{by_document, configured, holds, register};
use crate::session::Session;
use crate::token::{TokenRequest, TokenResponse, basic, request};
use crate::wire::OAuthHttp;
use crate::wire::random_text;

const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
/// Bound on an assertion's file.
const MAX_ASSERTION: usize = 64 << 10;

/// Requests a token without a person. `None` for the grant that needs a person.
///
/// # Errors
/// [`OAuthError`].
pub(crate) async fn unattended(
    wire: &OAuthHttp,
    settings: &OAuthConfig,
    found: &Discovered,
    client: &Client,
    scopes: &[String],
) -> Result<Option<Token>, OAuthError> {
    let assertion = match (settings.grant, &settings.identity_provider) {
        (Grant::AuthorizationCode, _) => return Ok(None),
        (Grant::ClientCredentials, _) => None,
        (Grant::JwtBearer, _) => Some(read(settings.assertion.as_ref(), settings.assertion_file.as_deref()).await?),
        (Grant::IdentityAssertion, Some(provider)) => Some(exchange(wire, provider, found, scopes).await?),
        (Grant::IdentityAssertion, None) => {
            return Err(OAuthError::Setting("`oauth.identity_provider` is missing".to_owned()));
        }
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
    request(wire, client, &settings.proof, asked).await.map(Some)
}

/// Refreshes a token (OAuth 2.1 section 4.3). Fields missing in the response keep their values.
///
/// # Errors
/// [`OAuthError`]; `invalid_grant` says that a person has to log in again.
pub(crate) async fn refresh_grant(
    wire: &OAuthHttp,
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

/// Exchanges a person's identity token at the identity provider for an assertion for the authorization server.
async fn exchange(
    wire: &OAuthHttp,
    provider: &IdentityProviderConfig,
    found: &Discovered,
    scopes: &[String],
) -> Result<Secret, OAuthError> {
    let what = "exchange of the identity token";
    let endpoint = wire.endpoint("`oauth.identity_provider.token_endpoint`", &provider.token_endpoint)?;
    let identity = read(provider.identity_token.as_ref(), Some(&provider.identity_token_file)).await?;
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
    let given = TokenResponse::read(what, &answer)?;
    match issued.issued_token_type.as_deref() {
        Some(ID_JAG) => Ok(given.access_token),
        _ => Err(OAuthError::Answer { what, reason: "it gave out no identity assertion (`id-jag`)".to_owned() }),
    }
}

#[derive(Default, Deserialize)]
struct Issued {
    issued_token_type: Option<String>,
}

/// Returns the configured assertion, or reads it from the file, which is read for every request.
async fn read(itself: Option<&Secret>, file: Option<&Path>) -> Result<Secret, OAuthError> {
    if let Some(secret) = itself {
        return Ok(secret.clone());
    }
    let Some(path) = file else { return Err(OAuthError::Setting("`oauth.assertion_file` is missing".to_owned())) };
    let failed = |reason: String| OAuthError::Setting(format!("{}: {reason}", path.display()));
    let text = tokio::fs::read_to_string(path).await.map_err(|error| failed(error.to_string()))?;
    let text = text.trim();
    if text.is_empty() || text.len() > MAX_ASSERTION {
        return Err(failed("it holds no assertion".to_owned()));
    }
    Ok(Secret::new(text))
}

impl Session {
    /// Requests a token from the authorization server with the configured grant: with `known`, the earlier
    /// registration, if it can be used.
    ///
    /// # Errors
    /// [`OAuthError`].
    pub(crate) async fn ask(
        &self,
        found: &Discovered,
        known: Option<&Client>,
        scopes: &[String],
    ) -> Result<(Client, Token), OAuthError> {
        let settings = &self.options.settings;
        let fixed = match configured(settings, &found.server)? {
            Some(client) => Some(client),
            None => by_document(settings, &found.server),
        };
        let (true, Some(consent)) = (self.needs_person(), &self.options.consent) else {
            let Some(client) = fixed else {
                let message = "this grant needs a client that is known already: set `oauth.client_id`";
                return Err(OAuthError::Setting(message.to_owned()));
            };
            let token = unattended(&self.wire, settings, found, &client, scopes).await?;
            return match token {
                Some(token) => Ok((client, token)),
                None => Err(self.login_needed("the server wants you to log in")),
            };
        };
        let (client, loopback) = match fixed {
            Some(client) => (client, Loopback::listen(self.options.settings.redirect_port).await?),
            None => self.registered(found, known, scopes).await?,
        };
        let login = Login {
            wire: &self.wire,
            discovered: found,
            client: &client,
            proof: &settings.proof,
            scopes,
            loopback: &loopback,
            consent: &**consent,
        };
        let token = login.run().await?;
        Ok((client, token))
    }

    /// Returns the earlier registration if it can be used, or else a new one, with its listener: the page
    /// redirects only to the registered address.
    async fn registered(
        &self,
        found: &Discovered,
        known: Option<&Client>,
        scopes: &[String],
    ) -> Result<(Client, Loopback), OAuthError> {
        if let Some(client) = known.filter(|client| holds(client))
            && let Some(port) = client.redirect_uri.as_deref().and_then(|uri| Url::parse(uri).ok()?.port())
            && self.options.settings.redirect_port.is_none_or(|wanted| wanted == port)
            && let Ok(loopback) = Loopback::listen(Some(port)).await
        {
            return Ok((client.clone(), loopback));
        }
        let loopback = Loopback::listen(self.options.settings.redirect_port).await?;
        let client = register(&self.wire, found, &loopback.redirect_uri(), scopes).await?;
        Ok((client, loopback))
    }
}

/// Lifetime of an assertion. Each is used for one request.
const LIFETIME_SECONDS: u64 = 120;

/// A client's private key. `Debug` shows the algorithm only.
#[derive(Clone)]
pub struct SigningKey {
    algorithm: &'static str,
    key_id: Option<String>,
    pem: Secret,
    key: Arc<Key>,
}

impl PartialEq for SigningKey {
    fn eq(&self, other: &Self) -> bool {
        (self.algorithm, &self.key_id, &self.pem) == (other.algorithm, &other.key_id, &other.pem)
    }
}

impl Eq for SigningKey {}

enum Key {
    Ecdsa(EcdsaKeyPair),
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// Reads a PKCS#8 key in PEM (`BEGIN PRIVATE KEY`) for a JWS algorithm: ES256, ES384, RS256, RS384, RS512, PS256,
    /// PS384, PS512 or EdDSA. `key_id` goes into the header `kid`.
    ///
    /// # Errors
    /// [`OAuthError::Setting`], never with the key in it.
    pub fn from_pem(pem: &str, algorithm: &str, key_id: Option<String>) -> Result<Self, OAuthError> {
        let unusable = |reason: String| OAuthError::Setting(format!("the private key cannot be used: {reason}"));
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| unusable("it is not PKCS#8 in PEM (`-----BEGIN PRIVATE KEY-----`)".to_owned()))?;
        let der = der.secret_pkcs8_der();
        let rejected = |error: ring::error::KeyRejected| unusable(format!("{error} (for {algorithm})"));
        let rsa = |encoding| RsaKeyPair::from_pkcs8(der).map(|pair| Key::Rsa(pair, encoding)).map_err(rejected);
        let ecdsa =
            |curve| EcdsaKeyPair::from_pkcs8(curve, der, &SystemRandom::new()).map(Key::Ecdsa).map_err(rejected);
        let (algorithm, key) = match algorithm {
            "ES256" => ("ES256", ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING)?),
            "ES384" => ("ES384", ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING)?),
            "RS256" => ("RS256", rsa(&RSA_PKCS1_SHA256)?),
            "RS384" => ("RS384", rsa(&RSA_PKCS1_SHA384)?),
            "RS512" => ("RS512", rsa(&RSA_PKCS1_SHA512)?),
            "PS256" => ("PS256", rsa(&RSA_PSS_SHA256)?),
            "PS384" => ("PS384", rsa(&RSA_PSS_SHA384)?),
            "PS512" => ("PS512", rsa(&RSA_PSS_SHA512)?),
            "EdDSA" => {
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(rejected)?;
                ("EdDSA", Key::Ed25519(pair))
            }
            other => return Err(unusable(format!("the algorithm `{other}` is not known"))),
        };
        Ok(Self { algorithm, key_id, pem: Secret::new(pem), key: Arc::new(key) })
    }

    /// Signs an assertion of `client` for the authorization server `audience`.
    ///
    /// # Errors
    /// [`OAuthError::Setting`] if signing fails.
    pub(crate) fn assertion(&self, client: &str, audience: &str) -> Result<String, OAuthError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut header = json!({"alg": self.algorithm, "typ": "JWT"});
        if let Some(key_id) = &self.key_id {
            header["kid"] = json!(key_id);
        }
        let claims = json!({
            "iss": client,
            "sub": client,
            "aud": audience,
            "jti": random_text()?,
            "iat": now,
            "exp": now + LIFETIME_SECONDS,
        });
        let encode = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.sign(signed.as_bytes())?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, OAuthError> {
        let failed = |_| OAuthError::Setting("the private key does not sign".to_owned());
        let random = SystemRandom::new();
        match &*self.key {
            Key::Ecdsa(pair) => Ok(pair.sign(&random, message).map_err(failed)?.as_ref().to_vec()),
            Key::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Key::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
        }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, KeyPair as _, UnparsedPublicKey};
    use serde_json::Value;

    use super::*;

    #[test]
    fn assertions_verify_with_subject_and_audience() {
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).expect("a key");
        let pem =
            format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(document.as_ref()));
        let key = SigningKey::from_pem(&pem, "ES256", Some("k1".into())).expect("a key");
        let jwt = key.assertion("me", "https://as").expect("an assertion");
        let parts: Vec<_> = jwt.split('.').collect();
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).expect("base64url");
        let claims: Value = serde_json::from_slice(&decoded(parts[1])).expect("claims");
        let header: Value = serde_json::from_slice(&decoded(parts[0])).expect("a header");
        assert_eq!(
            (&claims["iss"], &claims["sub"], &claims["aud"]),
            (&json!("me"), &json!("me"), &json!("https://as"))
        );
        assert_eq!((&header["alg"], &header["kid"]), (&json!("ES256"), &json!("k1")));
        let Key::Ecdsa(pair) = &*key.key else { panic!("an elliptic key") };
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref());
        public.verify(format!("{}.{}", parts[0], parts[1]).as_bytes(), &decoded(parts[2])).expect("it verifies");

        for (pem, algorithm, expect) in [(&*pem, "RS256", "RS256"), (&*pem, "none", "not known"), ("x", "ES256", "PEM")]
        {
            let error = SigningKey::from_pem(pem, algorithm, None).expect_err("refused").to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
