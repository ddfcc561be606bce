//! What is known of a server's credentials in this process, and how it follows what is kept for all processes.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::credentials::Credentials;
use super::error::OAuthError;
use super::renewal::Refusal;
use super::session::Session;
use super::store::Stamp;

/// What requests go out with.
#[derive(Default)]
pub(crate) struct State {
    /// The credentials, once they were taken.
    pub(crate) kept: Option<Credentials>,
    /// What was kept when they were.
    stamp: Stamp,
    /// Sets of scopes that were asked for because the server wanted more.
    pub(crate) stepped_up: Vec<Vec<String>>,
    /// The last renewal, if it failed.
    pub(crate) failed_renewal: Option<(Instant, OAuthError)>,
    /// The last search for the authorization server, or request for a token without a person, if it failed.
    pub(crate) failed_request: Option<(Instant, OAuthError)>,
}

/// Whose the credentials are that are kept, as of when that was looked at.
#[derive(Default)]
pub(crate) struct Identity(Mutex<Option<(Stamp, String)>>);

impl Identity {
    fn lock(&self) -> MutexGuard<'_, Option<(Stamp, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Takes what is kept, where nothing was taken yet, or where it is not what was taken.
    ///
    /// # Errors
    /// [`OAuthError::Store`]: nothing was taken yet.
    pub(crate) async fn load(&self, state: &mut State) -> Result<(), OAuthError> {
        if state.kept.is_none() {
            return self.reload(state).await;
        }
        let stamp = self.store.stamp(self.key());
        if state.stamp != stamp
            && let Err(error) = self.reload(state).await
        {
            tracing::warn!(server = self.server, "what was read before is used: {error}");
            state.stamp = stamp;
        }
        Ok(())
    }

    /// Whether another process has renewed what was taken since, or a person has logged in or out. One look at a file.
    pub(crate) fn is_outdated(&self, state: &State) -> bool {
        state.stamp != self.store.stamp(self.key())
    }

    /// Takes what is kept now.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub(crate) async fn reload(&self, state: &mut State) -> Result<(), OAuthError> {
        // Before it is read: what changes meanwhile is read once more.
        let stamp = self.store.stamp(self.key());
        let kept = self.store.load(self.key()).await?;
        if let Some(credentials) = kept.as_ref().filter(|kept| state.kept.as_ref() != Some(kept)) {
            self.tell_secrets(credentials);
        }
        let mut kept = kept.unwrap_or_else(|| self.nothing());
        if kept.client.as_ref().is_some_and(|client| !self.settings.client.may_be(client)) {
            // The operator has changed the settings. What that one was given serves to its end, and is not renewed.
            kept.client = None;
            kept.forget(Refusal::Grant);
        }
        (state.kept, state.stamp) = (Some(kept), stamp);
        Ok(())
    }

    /// Keeps credentials, and goes on with them even where that fails.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub(crate) async fn save(&self, state: &mut State, credentials: Credentials) -> Result<(), OAuthError> {
        self.tell_secrets(&credentials);
        let identity = credentials.identity();
        state.kept = Some(credentials.clone());
        let saved = self.store.save(self.key(), credentials).await;
        // Another process may have written since: what was kept is looked at once more. What was not kept is to be had here
        // alone, until there is something newer.
        state.stamp = Stamp::UNKNOWN;
        if saved.is_err() {
            state.stamp = self.store.stamp(self.key());
            *self.identity.lock() = Some((state.stamp, identity));
        }
        saved
    }

    /// Has its secrets kept out of what is shown.
    pub(crate) fn tell_secrets(&self, credentials: &Credentials) {
        let Some(tell) = &self.secrets else { return };
        let token = credentials.token.iter().flat_map(|token| [Some(&token.access), token.refresh.as_ref()]);
        let client = credentials.client.iter().map(|client| client.secret.as_ref());
        token.chain(client).flatten().for_each(|secret| tell(secret.expose().to_owned()));
    }

    /// Whose the credentials are that are kept now.
    pub(crate) fn identity_now(&self) -> String {
        let mut known = self.identity.lock();
        let stamp = self.store.stamp(self.key());
        if known.as_ref().is_none_or(|(of, _)| *of != stamp) {
            let identity = match self.store.peek(self.key()) {
                Ok(kept) => kept.map_or_else(String::new, |kept| kept.identity()),
                // Nobody's until it is known.
                Err(_) => format!("{:x}", RandomState::new().hash_one(&self.server)),
            };
            *known = Some((stamp, identity));
        }
        known.as_ref().map(|(_, identity)| identity.clone()).unwrap_or_default()
    }

    /// Credentials without anything in them.
    pub(crate) fn nothing(&self) -> Credentials {
        Credentials { server_url: self.url.to_string(), ..Credentials::default() }
    }
}
