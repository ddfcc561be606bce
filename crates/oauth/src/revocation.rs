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
        came_to(refused.map(|error| error.to_string()), ended)
    }

    /// Whether the server takes tokens back. The one that renews goes first: most servers take the other with it.
    /// `refused` gets what is said of the first where that is not taken back.
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
            let proven = prove(client, &self.settings.client.proof, issuer)?;
            let mut fields = vec![("token", secret.expose()), ("token_type_hint", hint)];
            fields.extend(proven.fields.iter().map(|(name, value)| (*name, value.as_str())));
            let answer = self.wire.form(WHAT, &endpoint, &fields, proven.header).await;
            // The other one is taken back all the same: that this one was refused says nothing of it.
            if let Err(error) = last {
                refused.get_or_insert(error);
            }
            last = answer.and_then(|answer| accepted(WHAT, &answer));
        }
        last.map(|()| true)
    }
}

/// What became of both tokens: what was said of the first is told whatever became of the other.
fn came_to(refused: Option<String>, ended: Result<Revocation, String>) -> Revocation {
    match (refused, ended) {
        (None, Ok(revocation)) => revocation,
        (None, Err(why)) => Revocation::Failed(why),
        (Some(refused), Err(why)) if why != refused => Revocation::Failed(format!("{refused}; and {why}")),
        (Some(refused), _) => Revocation::Failed(refused),
    }
}

/// Who gave which token to whom.
fn parts(kept: &Credentials) -> Option<(&str, &Client, &Token)> {
    Some((kept.issuer.as_deref()?, kept.client.as_ref()?, kept.token.as_ref()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_first_token_is_told_where_nothing_is_heard_of_the_second() {
        let failed = |why: &str| Revocation::Failed(why.to_owned());
        for (refused, ended, expect) in [
            (None, Ok(Revocation::Revoked), Revocation::Revoked),
            (None, Ok(Revocation::NotOffered), Revocation::NotOffered),
            (None, Err("late"), failed("late")),
            (Some("no"), Ok(Revocation::Revoked), failed("no")),
            (Some("no"), Err("late"), failed("no; and late")),
            (Some("no"), Err("no"), failed("no")),
        ] {
            assert_eq!(came_to(refused.map(str::to_owned), ended.map_err(str::to_owned)), expect);
        }
    }
}
