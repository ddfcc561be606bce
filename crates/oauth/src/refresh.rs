//! Gives each request its access token, and refreshes the token shortly before it expires or when the server refuses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use tokio::task::JoinHandle;
use toolwright_net::{Authorizer, Challenge, Retry};

use crate::credentials::{Credentials, Token, unix_now};
use crate::discovery::BearerChallenge;
use crate::discovery::Discovered;
use crate::grants::refresh_grant;
use crate::session::{OAuth, Session, State, TokenNeed};
use crate::{OAuthError, excerpt};

impl Session {
    /// Returns headers if no request is needed: of a fresh token, or empty ones if there is no token.
    async fn headers_without_request(&self) -> Option<HeaderMap> {
        let state = self.state.lock().await;
        if self.is_outdated(&state) {
            return None;
        }
        match &state.kept.as_ref()?.token {
            None => Some(HeaderMap::new()),
            Some(token) if token.is_fresh(unix_now()) => header(token).map(authorized),
            Some(_) => None,
        }
    }

    async fn answer(&self, challenge: &Challenge, sent: &HeaderMap) -> Result<Retry, OAuthError> {
        let mut state = self.state.lock().await;
        self.load(&mut state).await?;
        let used = sent.get(AUTHORIZATION);
        if has_other(&state, used) {
            return Ok(Retry::Yes);
        }
        self.reload(&mut state).await?;
        if has_other(&state, used) {
            return Ok(Retry::Yes);
        }
        let bearer = BearerChallenge::of(&challenge.authenticate);
        match (challenge.status, &bearer) {
            (401, None) if used.is_none() && self.options.consent.is_none() && self.needs_person() => {
                let reason = "the server refuses requests without credentials (HTTP status 401); set \
                              `headers.Authorization` if it wants a fixed key";
                Err(self.login_needed(reason))
            }
            // A lost token of a person cannot have been refused.
            (401, bearer) if (used.is_some() || !self.needs_person()) && self.trial.is_refused(used) => {
                Err(self.token_refused(bearer.as_ref()))
            }
            (401, bearer) => {
                self.obtain(&mut state, TokenNeed::Any(bearer.as_ref().unwrap_or(&BearerChallenge::default()))).await?;
                Ok(Retry::Yes)
            }
            (403, Some(bearer)) if bearer.error.as_deref() == Some("insufficient_scope") => {
                // The server accepts the token itself.
                self.trial.accepted(used);
                let token = state.kept.as_ref().and_then(|kept| kept.token.as_ref());
                let granted = |scope: &String| token.is_some_and(|token| token.granted.contains(scope));
                if bearer.scopes.iter().all(granted) {
                    return Err(OAuthError::Metadata(format!(
                        "the server refuses a token that has the scopes it asks for (`{}`); see who is logged in",
                        bearer.scopes.join(" ")
                    )));
                }
                self.obtain(&mut state, TokenNeed::More(bearer)).await?;
                Ok(Retry::Yes)
            }
            _ => Ok(Retry::No),
        }
    }

    async fn bearer(&self) -> Result<HeaderMap, OAuthError> {
        let mut state = self.state.lock().await;
        self.load(&mut state).await?;
        let current = |state: &State| state.kept.as_ref().and_then(|kept| kept.token.clone());
        if let Some(token) = current(&state).filter(|token| !token.is_fresh(unix_now()) && token.refresh.is_some()) {
            match self.refresh(&mut state).await {
                // If only the refresh was refused, the server's 401 may lead to another way.
                Err(error) if !token.is_alive(unix_now()) && refusal(&error).is_none() => return Err(error),
                Err(error) => tracing::warn!(server = self.options.server, "its token is used to its end: {error}"),
                Ok(()) => {}
            }
        }
        // Without a token, the request is sent anyway: the server's challenge says what it needs.
        let token = current(&state).filter(|token| token.is_alive(unix_now()));
        Ok(token.as_ref().and_then(header).map(authorized).unwrap_or_default())
    }
}

impl Session {
    /// Records a new token that the server has not accepted yet.
    pub(crate) fn try_next(&self, token: &Token) {
        if let Some(header) = header(token) {
            self.trial.begin(header);
        }
    }

    /// The error for a server that refuses a new token, with the server's explanation.
    pub(crate) fn token_refused(&self, said: Option<&BearerChallenge>) -> OAuthError {
        let said = said.and_then(|said| said.description.as_ref().or(said.error.as_ref()));
        OAuthError::TokenRefused { server: self.options.server.clone(), said: said.map(|said| excerpt(said)) }
    }
}

/// Whether there is a live token other than the one sent.
fn has_other(state: &State, used: Option<&HeaderValue>) -> bool {
    let token = state.kept.as_ref().and_then(|kept| kept.token.as_ref()).filter(|token| token.is_alive(unix_now()));
    token.and_then(header).is_some_and(|current| Some(&current) != used)
}

fn header(token: &Token) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.access.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn authorized(value: HeaderValue) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

#[async_trait]
impl Authorizer for OAuth {
    async fn headers(&self) -> Result<HeaderMap, String> {
        if let Some(headers) = self.0.headers_without_request().await {
            return Ok(headers);
        }
        let session = Arc::clone(&self.0);
        done(tokio::spawn(async move { session.bearer().await })).await
    }

    async fn on_challenge(&self, challenge: Challenge, sent: HeaderMap) -> Result<Retry, String> {
        let session = Arc::clone(&self.0);
        done(tokio::spawn(async move { session.answer(&challenge, &sent).await })).await
    }

    fn accepted(&self, sent: &HeaderMap) {
        self.0.trial.accepted(sent.get(AUTHORIZATION));
    }

    fn identity(&self) -> String {
        self.0.identity_now()
    }
}

/// Returns the result of a spawned task.
async fn done<T>(task: JoinHandle<Result<T, OAuthError>>) -> Result<T, String> {
    let done = task.await.map_err(|error| format!("the authorization broke off: {error}"))?;
    done.map_err(|error| error.to_string())
}

/// How long a token counts as new, and how long no token is requested after a new one was refused.
const PAUSE: Duration = Duration::from_secs(60);

/// The newest token, until the server has accepted it.
#[derive(Default)]
pub(crate) struct UnverifiedToken {
    /// Whether `known` has entries; a fast path for requests that are accepted, which are nearly all.
    is_on: AtomicBool,
    known: Mutex<TokenHistory>,
}

#[derive(Default)]
struct TokenHistory {
    /// The new token that the server has not answered yet.
    given: Option<TokenEvent>,
    /// A token that was refused while it was new.
    refused: Option<TokenEvent>,
}

/// A token as sent, and the time of its issue or refusal.
struct TokenEvent {
    since: Instant,
    token: HeaderValue,
}

impl TokenEvent {
    fn now(token: HeaderValue) -> Self {
        Self { since: Instant::now(), token }
    }

    fn is_recent(&self) -> bool {
        self.since.elapsed() < PAUSE
    }
}

impl UnverifiedToken {
    /// A token was got.
    pub(crate) fn begin(&self, token: HeaderValue) {
        self.lock().given = Some(TokenEvent::now(token));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Records that the server accepted `sent`. If it accepts a token that it refused before, it refused the request,
    /// and another token would not help.
    pub(crate) fn accepted(&self, sent: Option<&HeaderValue>) {
        let Some(sent) = sent.filter(|_| self.is_on.load(Ordering::Relaxed)) else { return };
        let mut known = self.lock();
        known.given = known.given.take().filter(|given| given.is_recent() && given.token != *sent);
        known.refused = known.refused.take().filter(|refused| refused.is_recent() && refused.token == *sent);
        self.is_on.store(known.given.is_some() || known.refused.is_some(), Ordering::Relaxed);
    }

    /// Records that the server refused `sent`. Returns whether it would refuse another token, too.
    pub(crate) fn is_refused(&self, sent: Option<&HeaderValue>) -> bool {
        let mut known = self.lock();
        if known.refused.as_ref().is_some_and(TokenEvent::is_recent) {
            return true;
        }
        let new = known.given.take_if(|given| given.is_recent() && Some(&given.token) == sent);
        known.refused = new.map(|given| TokenEvent::now(given.token));
        known.refused.is_some()
    }

    /// Whether the server has just refused a new token.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().refused.as_ref().is_some_and(TokenEvent::is_recent)
    }

    fn lock(&self) -> MutexGuard<'_, TokenHistory> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pause after a failure, so that callers do not each wait for another attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The subject of an authorization server's refusal (RFC 6749 section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The code or refresh token is good no more.
    Grant,
    /// The client is unknown, or not authorized for this grant.
    Client,
    /// This one request.
    Request,
}

/// Classifies a failure; `None` if it is not a refusal by the authorization server and may be temporary.
pub(crate) fn refusal(error: &OAuthError) -> Option<Refusal> {
    let OAuthError::Refused { error, .. } = error else { return None };
    Some(match error.as_str() {
        // The second and third are used by GitHub and Slack.
        "invalid_grant" | "bad_refresh_token" | "invalid_refresh_token" => Refusal::Grant,
        "invalid_client" | "unauthorized_client" => Refusal::Client,
        _ => Refusal::Request,
    })
}

impl Credentials {
    /// Forgets credentials that a refused refresh showed to be invalid. Returns whether anything was forgotten: the
    /// operator must fix a configured client, and another refusal may concern only this request.
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
    /// Forgets credentials that a refused refresh showed to be invalid, and returns whether there were any. If no
    /// person is needed, a refused client keeps its registration, and another token is requested instead of the
    /// refresh.
    fn forgets(&self, kept: &mut Credentials, refusal: Refusal) -> bool {
        if refusal == Refusal::Client && !self.needs_person() {
            return kept.forget(Refusal::Grant);
        }
        kept.forget(refusal)
    }

    /// Adds a remedy to a failed refresh if the server refuses the client and nobody can log in.
    fn with_remedy(&self, error: OAuthError) -> OAuthError {
        if refusal(&error) != Some(Refusal::Client) || self.options.consent.is_some() {
            return error;
        }
        self.login_needed(&format!("{error}: see whether the client in `oauth` and what proves it are right"))
    }

    /// Refreshes the token that is about to expire, unless another process has.
    ///
    /// # Errors
    /// [`OAuthError`]. An invalid refresh token is not an error: it is forgotten.
    pub(crate) async fn refresh(&self, state: &mut State) -> Result<(), OAuthError> {
        if let Some(error) = recent(&state.failed_refresh) {
            return Err(error);
        }
        if self.trial.has_failed() {
            return Err(self.token_refused(None));
        }
        let refreshed = self.refresh_now(state).await;
        state.failed_refresh = refreshed.as_ref().err().map(|error| (Instant::now(), error.clone()));
        refreshed
    }

    async fn refresh_now(&self, state: &mut State) -> Result<(), OAuthError> {
        let _lock = self.options.store.lock(self.key()).await?;
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
        let proof = &self.options.settings.proof;
        match refresh_grant(&self.wire, client, proof, &issuer, &token, refresh).await {
            Ok(token) => {
                self.try_next(&token);
                credentials.token = Some(token);
                self.save(state, credentials).await
            }
            Err(error) => match refusal(&error) {
                // A retry would not help. The token itself may still be valid for a minute.
                Some(refusal) if self.forgets(&mut credentials, refusal) => {
                    tracing::warn!(server = self.options.server, "{error}");
                    self.save(state, credentials).await
                }
                _ => Err(self.with_remedy(error)),
            },
        }
    }

    /// Refreshes a token that the server refused. Returns whether there is a new one.
    ///
    /// # Errors
    /// [`OAuthError`] for temporary faults, and for an unknown configured client if nobody can log in. After any
    /// other refusal the token must be requested another way.
    pub(crate) async fn refresh_for(&self, state: &mut State, found: &Discovered) -> Result<bool, OAuthError> {
        let Some(token) = state.kept.as_ref().and_then(|kept| kept.token.clone()) else { return Ok(false) };
        let _lock = self.options.store.lock(self.key()).await?;
        self.reload(state).await?;
        let Some(mut kept) = state.kept.clone() else { return Ok(false) };
        if kept.token.as_ref() != Some(&token) {
            // Another process has refreshed it meanwhile; a refresh token can be used once.
            return Ok(kept.token.is_some());
        }
        let (Some(client), Some(refresh)) = (&kept.client, &token.refresh) else { return Ok(false) };
        let proof = &self.options.settings.proof;
        let refreshed = match recent(&state.failed_refresh) {
            Some(error) => Err(error),
            None => {
                let refreshed = refresh_grant(&self.wire, client, proof, &found.server.issuer, &token, refresh).await;
                state.failed_refresh = refreshed.as_ref().err().map(|error| (Instant::now(), error.clone()));
                refreshed
            }
        };
        match refreshed {
            Ok(token) => {
                self.try_next(&token);
                kept.token = Some(token);
                self.save(state, kept).await?;
                Ok(true)
            }
            Err(error) => match refusal(&error) {
                Some(refusal) if self.forgets(&mut kept, refusal) => {
                    tracing::warn!(server = self.options.server, "{error}");
                    // The server refuses the token, and it cannot be refreshed.
                    kept.token = None;
                    self.save(state, kept).await?;
                    Ok(false)
                }
                Some(Refusal::Client) if self.options.consent.is_none() => Err(self.with_remedy(error)),
                Some(_) => {
                    tracing::warn!(server = self.options.server, "{error}");
                    Ok(false)
                }
                None => Err(error),
            },
        }
    }
}

/// Returns a recent failure, which a retry would only repeat.
pub(crate) fn recent(failure: &Option<(Instant, OAuthError)>) -> Option<OAuthError> {
    let (since, error) = failure.as_ref()?;
    (since.elapsed() < RETRY_PAUSE).then(|| error.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_new_tokens_stop_further_ones() {
        let trial = UnverifiedToken::default();
        let [old, new, other] = ["old", "new", "other"].map(HeaderValue::from_static);
        assert!(!trial.is_refused(Some(&old)), "nothing is known of it");
        trial.begin(new.clone());
        assert!(!trial.is_refused(Some(&old)), "it is of before");
        assert!(trial.is_refused(Some(&new)) && trial.has_failed());
        assert!(trial.is_refused(Some(&other)) && trial.is_refused(None));
        trial.accepted(Some(&new));
        assert!(trial.is_refused(Some(&new)), "it takes it for something else");
        trial.accepted(Some(&other));
        assert!(!trial.is_refused(Some(&other)) && !trial.has_failed());
        trial.begin(new.clone());
        trial.accepted(Some(&new));
        assert!(!trial.is_refused(Some(&new)), "it was good once");
    }
}
