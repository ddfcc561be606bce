//! What goes along with each request, and what becomes of one that the server refuses.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use tokio::task::JoinHandle;

use super::challenge::BearerChallenge;
use super::credentials::{Token, unix_now};
use super::error::{OAuthError, excerpt};
use super::keeping::State;
use super::renewal::refusal;
use super::session::{OAuth, Session, Want};
use toolwright_net::{Authorizer, Challenge, Retry};

impl Session {
    /// Headers where nothing has to be asked for them: of a token that needs no renewal, or none without a token.
    async fn at_hand(&self) -> Option<HeaderMap> {
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
            (401, None) if used.is_none() && self.consent.is_none() && self.needs_person() => {
                let reason = "the server refuses requests without credentials (HTTP status 401); set \
                              `headers.Authorization` if it wants a fixed key";
                Err(self.login_needed(reason))
            }
            // Where a person's token is gone, there is none to refuse.
            (401, bearer) if (used.is_some() || !self.needs_person()) && self.trial.is_refused(used) => {
                Err(self.token_refused(bearer.as_ref()))
            }
            (401, bearer) => {
                self.obtain(&mut state, Want::Any(bearer.as_ref().unwrap_or(&BearerChallenge::default()))).await?;
                Ok(Retry::Yes)
            }
            (403, Some(bearer)) if bearer.error.as_deref() == Some("insufficient_scope") => {
                // It knows the token.
                self.trial.accepted(used);
                let token = state.kept.as_ref().and_then(|kept| kept.token.as_ref());
                let granted = |scope: &String| token.is_some_and(|token| token.granted.contains(scope));
                if bearer.scopes.iter().all(granted) {
                    return Err(OAuthError::Metadata(format!(
                        "the server refuses a token that has the scopes it asks for (`{}`); see who is logged in",
                        bearer.scopes.join(" ")
                    )));
                }
                self.obtain(&mut state, Want::More(bearer)).await?;
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
            match self.renew(&mut state).await {
                // Where a renewal was refused and no more, there may be another way, which the server's 401 leads to.
                Err(error) if !token.is_alive(unix_now()) && refusal(&error).is_none() => return Err(error),
                Err(error) => tracing::warn!(server = self.server, "its token is used to its end: {error}"),
                Ok(()) => {}
            }
        }
        // Without a token the server is asked all the same: it says what it wants.
        let token = current(&state).filter(|token| token.is_alive(unix_now()));
        Ok(token.as_ref().and_then(header).map(authorized).unwrap_or_default())
    }
}

impl Session {
    /// Notes that a token was got, which the server has yet to take.
    pub(crate) fn try_next(&self, token: &Token) {
        if let Some(header) = header(token) {
            self.trial.begin(header);
        }
    }

    /// That the server does not take a token that is new, with what it says of that.
    pub(crate) fn token_refused(&self, said: Option<&BearerChallenge>) -> OAuthError {
        let said = said.and_then(|said| said.description.as_ref().or(said.error.as_ref()));
        OAuthError::TokenRefused { server: self.server.clone(), said: said.map(|said| excerpt(said)) }
    }
}

/// Whether there is a token now, other than the one that was sent.
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
        if let Some(headers) = self.0.at_hand().await {
            return Ok(headers);
        }
        let session = Arc::clone(&self.0);
        done(tokio::spawn(async move { session.bearer().await })).await
    }

    async fn challenged(&self, challenge: Challenge, sent: HeaderMap) -> Result<Retry, String> {
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

/// What a task of ours came to.
async fn done<T>(task: JoinHandle<Result<T, OAuthError>>) -> Result<T, String> {
    let done = task.await.map_err(|error| format!("the authorization broke off: {error}"))?;
    done.map_err(|error| error.to_string())
}
