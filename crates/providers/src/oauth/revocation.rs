//! Taking tokens back at the authorization server (RFC 7009) once nobody wants them any more.

use std::time::Duration;

use super::credentials::{Client, Credentials, Token};
use super::discovery::server_metadata;
use super::error::OAuthError;
use super::session::Session;
use super::token::{accepted, prove};

/// Bound on all of it: a logout is not to hang because the server does.
const BOUND: Duration = Duration::from_secs(20);
const WHAT: &str = "revocation of a token";

/// What a logout came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logout {
    /// Whether anything was kept here.
    pub removed: bool,
    /// What became of the token at the authorization server.
    pub revocation: Revocation,
}

/// What became of a token at the authorization server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revocation {
    /// There was none.
    NoToken,
    /// It is good no more.
    Revoked,
    /// The authorization server does not say where tokens are taken back (`revocation_endpoint`).
    NotOffered,
    /// It may be good until it ends; why.
    Failed(String),
}

impl Session {
    /// Takes back what was given out. Best effort, bounded.
    pub(super) async fn revoked(&self, kept: Option<&Credentials>) -> Revocation {
        let Some((issuer, client, token)) = kept.and_then(parts) else { return Revocation::NoToken };
        match tokio::time::timeout(BOUND, self.revoke(issuer, client, token)).await {
            Ok(Ok(true)) => Revocation::Revoked,
            Ok(Ok(false)) => Revocation::NotOffered,
            Ok(Err(error)) => Revocation::Failed(error.to_string()),
            Err(_) => Revocation::Failed(format!(
                "the authorization server did not answer within {}",
                toolwright_core::duration::format(BOUND)
            )),
        }
    }

    /// Whether the server takes tokens back. The one that renews goes first: most servers take the other with it.
    async fn revoke(&self, issuer: &str, client: &Client, token: &Token) -> Result<bool, OAuthError> {
        let metadata = server_metadata(&self.wire, issuer).await?;
        let Some(endpoint) = metadata.and_then(|metadata| metadata.revocation_endpoint) else { return Ok(false) };
        let endpoint = self.wire.endpoint("revocation_endpoint", &endpoint)?;
        let mut refused = Ok(());
        let refresh = token.refresh.iter().map(|refresh| (refresh, "refresh_token"));
        for (secret, hint) in refresh.chain([(&token.access, "access_token")]) {
            let proven = prove(client, &self.settings.client.proof, issuer)?;
            let mut fields = vec![("token", secret.expose()), ("token_type_hint", hint)];
            fields.extend(proven.fields.iter().map(|(name, value)| (*name, value.as_str())));
            let answer = self.wire.form(WHAT, &endpoint, &fields, proven.header).await;
            // The other one is taken back all the same: that this one was refused says nothing of it.
            refused = refused.and(answer.and_then(|answer| accepted(WHAT, &answer)));
        }
        refused.map(|()| true)
    }
}

/// Who gave which token to whom.
fn parts(kept: &Credentials) -> Option<(&str, &Client, &Token)> {
    Some((kept.issuer.as_deref()?, kept.client.as_ref()?, kept.token.as_ref()?))
}
