//! Stores the credentials of a server between runs: our client registration at its authorization server, and its
//! tokens.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;
use toolwright_core::Secret;
use toolwright_core::canonical::ContentHash;

/// Margin before expiry within which a token is no longer fresh, for tokens that live at least ten times as long.
const MARGIN: Duration = Duration::from_secs(60);

/// Everything stored for one server. It is valid for that server's URL only: another URL starts without any.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Credentials {
    /// The MCP server's URL.
    pub server_url: String,
    /// The authorization server that all of this is good for, and for no other.
    pub issuer: Option<String>,
    /// Our client registration there.
    pub client: Option<Client>,
    /// Whether a login with this registration was started and never completed: the authorization server
    /// may have forgotten the client, so the next login registers anew.
    pub is_doubtful: bool,
    /// The token it issued.
    pub token: Option<Token>,
    /// Id of the login that issued this token, kept across refreshes; `None` without a person (client credentials).
    pub login: Option<String>,
    /// Scopes that the server has requested since, for the next login.
    pub wanted_scopes: Vec<String>,
}

impl Credentials {
    /// Identifies the account of the token, without a secret.
    pub(crate) fn identity(&self) -> String {
        let client = self.client.as_ref().map(|client| client.id.as_str());
        match &self.token {
            None => String::new(),
            Some(_) => ContentHash::of_value(&json!([self.issuer, client, self.login])).to_string(),
        }
    }
}

/// A client as one authorization server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its identifier.
    pub id: String,
    /// Its secret, if it got one at registration. A configured secret is not stored here.
    #[serde(default, serialize_with = "serialize_secret")]
    pub secret: Option<Secret>,
    /// Authentication method: `none`, `client_secret_basic`, `client_secret_post` or `private_key_jwt`.
    pub method: AuthMethod,
    /// The redirect URI it registered with, if any.
    pub redirect_uri: Option<String>,
    /// Expiry of its secret, in seconds since 1970; `None` for never.
    pub secret_expires_at: Option<u64>,
}

impl Client {
    /// Whether it was registered dynamically and can be registered anew. Configured clients, and clients
    /// identified by the URL of their metadata, cannot.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.redirect_uri.is_some()
    }
}

/// How a client authenticates at the token endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// No authentication.
    None,
    /// HTTP Basic.
    ClientSecretBasic,
    /// Secret in the form body.
    ClientSecretPost,
    /// A signed assertion.
    PrivateKeyJwt,
}

impl AuthMethod {
    /// Its registered name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ClientSecretBasic => "client_secret_basic",
            Self::ClientSecretPost => "client_secret_post",
            Self::PrivateKeyJwt => "private_key_jwt",
        }
    }
}

/// A token with its refresh token and lifetime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The access token.
    #[serde(serialize_with = "kept")]
    pub access: Secret,
    /// Its refresh token.
    #[serde(default, serialize_with = "serialize_secret")]
    pub refresh: Option<Secret>,
    /// Time of issue, in seconds since 1970.
    pub since: u64,
    /// Expiry, in seconds since 1970; `None` if the server does not say.
    pub expires_at: Option<u64>,
    /// All scopes requested for it.
    pub asked: Vec<String>,
    /// Scopes that were given.
    pub granted: Vec<String>,
    /// Endpoint that refreshes it.
    pub token_endpoint: String,
    /// The `resource` it was requested for.
    pub resource: Option<String>,
}

impl Token {
    /// Whether it will still be valid when a request made now arrives.
    #[must_use]
    pub fn is_fresh(&self, now: u64) -> bool {
        self.expires_at.is_none_or(|end| {
            let margin = MARGIN.as_secs().min(end.saturating_sub(self.since) / 10);
            now + margin < end
        })
    }

    /// Whether it has not expired, without a margin.
    #[must_use]
    pub fn is_alive(&self, now: u64) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Writes a secret.
pub(crate) fn kept<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose())
}

/// Serialises an optional secret.
#[expect(clippy::ref_option, reason = "what serde calls a function with")]
pub(crate) fn serialize_secret<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(secret) => serializer.serialize_some(secret.expose()),
        None => serializer.serialize_none(),
    }
}

/// The stored login of a server, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginState {
    /// The authorization server.
    pub issuer: Option<String>,
    /// Our identifier there.
    pub client: Option<String>,
    /// The token's state, if there is one.
    pub token: Option<TokenState>,
    /// Scopes that the server has requested since the login.
    pub wanted_scopes: Vec<String>,
}

/// A token's state, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenState {
    /// Scopes that were given.
    pub scopes: Vec<String>,
    /// Expiry, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// Whether it can be refreshed without a person.
    pub renewable: bool,
}

impl LoginState {
    pub(crate) fn of(kept: Option<&Credentials>) -> Self {
        LoginState {
            issuer: kept.and_then(|kept| kept.issuer.clone()),
            client: kept.and_then(|kept| Some(kept.client.as_ref()?.id.clone())),
            token: kept.and_then(|kept| kept.token.as_ref()).map(|token| TokenState {
                scopes: token.granted.clone(),
                expires_at: token.expires_at,
                renewable: token.refresh.is_some(),
            }),
            wanted_scopes: kept.map(|kept| kept.wanted_scopes.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_refreshed_before_their_end() {
        for (expires_at, now, fresh, alive) in [
            (None, u64::MAX, true, true),
            (Some(4600), 4539, true, true),
            (Some(4600), 4540, false, true),
            (Some(4600), 4600, false, false),
            (Some(1010), 1008, true, true),
            (Some(1010), 1009, false, true),
        ] {
            let token = Token {
                access: Secret::new("a"),
                refresh: None,
                since: 1000,
                expires_at,
                asked: Vec::new(),
                granted: Vec::new(),
                token_endpoint: String::new(),
                resource: None,
            };
            let now = if expires_at.is_none() { 5000 } else { now };
            assert_eq!((token.is_fresh(now), token.is_alive(now)), (fresh, alive), "{expires_at:?} {now}");
        }
    }
}
