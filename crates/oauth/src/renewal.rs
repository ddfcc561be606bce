//! Renewing tokens: before they end, and when the server refuses one; and what a refusal to renew means.

use std::time::{Duration, Instant};

use super::credentials::{Credentials, Token, unix_now};
use super::discovery::Discovered;
use super::error::OAuthError;
use super::grants::renewed;
use super::keeping::State;
use super::session::Session;

/// How long what failed is not tried again, so that callers do not wait for it one after the other.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// What an authorization server's refusal (RFC 6749 section 5.2) is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The code or refresh token is good no more.
    Grant,
    /// It does not know the client, or not as one that may do this.
    Client,
    /// This one request.
    Request,
}

/// What a failure says of the grant and the client; `None` for one that is no word of the authorization server on
/// either, and may pass.
pub(crate) fn refusal(error: &OAuthError) -> Option<Refusal> {
    let OAuthError::Refused { error, .. } = error else { return None };
    Some(match error.as_str() {
        // Those after the first are GitHub's and Slack's.
        "invalid_grant" | "bad_refresh_token" | "invalid_refresh_token" => Refusal::Grant,
        "invalid_client" | "unauthorized_client" => Refusal::Client,
        _ => Refusal::Request,
    })
}

impl Credentials {
    /// Forgets what a renewal showed to be good no more. Whether there was anything: a client that the operator
    /// configured is mended there, and any other refusal may be of this one request.
    pub(crate) fn forget(&mut self, refusal: Refusal) -> bool {
        let is_registered = self.client.as_ref().is_some_and(|client| client.is_registered());
        match refusal {
            Refusal::Grant => {}
            Refusal::Client if is_registered => self.client = None,
            Refusal::Client | Refusal::Request => return false,
        }
        if let Some(token) = &mut self.token {
            token.refresh = None;
        }
        true
    }
}

impl Session {
    /// Whether a refusal to renew has shown something to be good no more, which is forgotten then. Where no person is
    /// needed, another token is asked for in place of a renewal that the client is refused.
    fn forgets(&self, kept: &mut Credentials, refusal: Refusal) -> bool {
        if refusal == Refusal::Client && !self.needs_person() {
            return kept.forget(Refusal::Grant);
        }
        kept.forget(refusal)
    }

    /// The failure of a renewal, with what there is to do where the server does not take a configured client, and nobody
    /// is there to log in.
    fn with_remedy(&self, error: OAuthError) -> OAuthError {
        if refusal(&error) != Some(Refusal::Client) || self.consent.is_some() {
            return error;
        }
        self.login_needed(&format!("{error}: see whether the client in `oauth` and what proves it are right"))
    }

    /// Renews the token that is about to end, unless another process has.
    ///
    /// # Errors
    /// [`OAuthError`]. A refresh token that is good no more is none: it is forgotten.
    pub(crate) async fn renew(&self, state: &mut State) -> Result<(), OAuthError> {
        if let Some(error) = recent(&state.failed_renewal) {
            return Err(error);
        }
        if self.trial.has_failed() {
            return Err(self.token_refused(None));
        }
        let renewed = self.renew_now(state).await;
        state.failed_renewal = renewed.as_ref().err().map(|error| (Instant::now(), error.clone()));
        renewed
    }

    async fn renew_now(&self, state: &mut State) -> Result<(), OAuthError> {
        let _lock = self.store.lock(self.key()).await?;
        self.reload(state).await?;
        let Some(mut credentials) = state.kept.clone() else { return Ok(()) };
        let fresh = |token: &Token| token.is_fresh(unix_now());
        let (Some(token), Some(issuer)) = (credentials.token.clone(), credentials.issuer.clone()) else {
            return Ok(());
        };
        let (Some(client), Some(refresh)) = (&credentials.client, &token.refresh) else { return Ok(()) };
        if fresh(&token) {
            return Ok(());
        }
        let proof = &self.settings.client.proof;
        match renewed(&self.wire, client, proof, &issuer, &token, refresh).await {
            Ok(token) => {
                self.try_next(&token);
                credentials.token = Some(token);
                self.save(state, credentials).await
            }
            Err(error) => match refusal(&error) {
                // It will not be taken later either. The token itself may have its last minute still.
                Some(refusal) if self.forgets(&mut credentials, refusal) => {
                    tracing::warn!(server = self.server, "{error}");
                    self.save(state, credentials).await
                }
                _ => Err(self.with_remedy(error)),
            },
        }
    }

    /// Renews a token that the server refused. Whether there is a new one.
    ///
    /// # Errors
    /// [`OAuthError`], of faults that may pass, and of a configured client that is not known where nobody can log in. Any
    /// other refusal is none: the token is to be had another way.
    pub(crate) async fn renewed_for(&self, state: &mut State, found: &Discovered) -> Result<bool, OAuthError> {
        let Some(token) = state.kept.as_ref().and_then(|kept| kept.token.clone()) else { return Ok(false) };
        let _lock = self.store.lock(self.key()).await?;
        self.reload(state).await?;
        let Some(mut kept) = state.kept.clone() else { return Ok(false) };
        if kept.token.as_ref() != Some(&token) {
            // Another process has renewed it meanwhile; a refresh token is good for one renewal only.
            return Ok(kept.token.is_some());
        }
        let (Some(client), Some(refresh)) = (&kept.client, &token.refresh) else { return Ok(false) };
        let proof = &self.settings.client.proof;
        let renewed = match recent(&state.failed_renewal) {
            Some(error) => Err(error),
            None => {
                let renewed = renewed(&self.wire, client, proof, &found.server.issuer, &token, refresh).await;
                state.failed_renewal = renewed.as_ref().err().map(|error| (Instant::now(), error.clone()));
                renewed
            }
        };
        match renewed {
            Ok(token) => {
                self.try_next(&token);
                kept.token = Some(token);
                self.save(state, kept).await?;
                Ok(true)
            }
            Err(error) => match refusal(&error) {
                Some(refusal) if self.forgets(&mut kept, refusal) => {
                    tracing::warn!(server = self.server, "{error}");
                    // The server does not take the token, and nothing renews it.
                    kept.token = None;
                    self.save(state, kept).await?;
                    Ok(false)
                }
                Some(Refusal::Client) if self.consent.is_none() => Err(self.with_remedy(error)),
                Some(_) => {
                    tracing::warn!(server = self.server, "{error}");
                    Ok(false)
                }
                None => Err(error),
            },
        }
    }
}

/// A failure of a moment ago, which another try would only repeat.
pub(crate) fn recent(failure: &Option<(Instant, OAuthError)>) -> Option<OAuthError> {
    let (since, error) = failure.as_ref()?;
    (since.elapsed() < RETRY_PAUSE).then(|| error.clone())
}
