//! What is kept for a server, as people see it.

use super::credentials::Credentials;

/// What is kept for a server, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginState {
    /// The authorization server.
    pub issuer: Option<String>,
    /// Our identifier there.
    pub client: Option<String>,
    /// The token's, if there is one.
    pub token: Option<TokenState>,
    /// Scopes that the server has asked for since the login.
    pub wanted_scopes: Vec<String>,
}

/// What is known of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenState {
    /// Scopes that were given.
    pub scopes: Vec<String>,
    /// When it ends, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// Whether it can be renewed without a person.
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
