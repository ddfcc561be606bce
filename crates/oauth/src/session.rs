//! One server's session: its credentials in this process, kept in step with the store, and the wait for a new token.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Mutex as AsyncMutex;
use toolwright_net::HttpOptions;
use url::Url;

use crate::OAuthError;
use crate::config::{ClientProof, Grant, OAuthConfig};
use crate::consent::Consent;
use crate::credentials::{Client, Credentials, LoginState, Token};
use crate::discovery::BearerChallenge;
use crate::discovery::{Discovered, discover, provoke};
use crate::discovery::{ScopeSources, choose};
use crate::refresh::Trial;
use crate::refresh::{Refusal, recent, refusal};
use crate::registration::REGISTRATION;
use crate::store::{CredentialStore, ServerKey, Stamp};
use crate::token::{Logout, Revocation};
use crate::wire::Wire;
use crate::wire::random_text;

/// How often more scopes are asked for in the life of one process, each set once.
const MAX_STEP_UPS: usize = 8;

/// What one server's OAuth is made of.
#[derive(Clone)]
pub struct OAuthOptions {
    /// The server's name in the configuration.
    pub server: String,
    /// Its address.
    pub url: Url,
    /// What is configured.
    pub settings: OAuthConfig,
    /// Where credentials are kept.
    pub store: CredentialStore,
    /// What surrounds HTTP.
    pub http: HttpOptions,
    /// Who can log in; `None` where nobody is there to ask.
    pub consent: Option<Arc<dyn Consent>>,
    /// Is told each secret before it is used, so that it is kept out of what is shown.
    pub secrets: Option<Arc<dyn Fn(String) + Send + Sync>>,
}

/// The OAuth of one MCP server. Tokens are got by tasks of their own: a caller that gives up does not lose what the
/// authorization server has given out meanwhile.
#[derive(Debug)]
pub struct OAuth(pub(crate) Arc<Session>);

pub(crate) struct Session {
    pub(crate) server: String,
    pub(crate) url: Url,
    pub(crate) settings: OAuthConfig,
    pub(crate) wire: Wire,
    pub(crate) store: CredentialStore,
    pub(crate) consent: Option<Arc<dyn Consent>>,
    pub(crate) secrets: Option<Arc<dyn Fn(String) + Send + Sync>>,
    /// Held while tokens are got: one flight for all who ask.
    pub(crate) state: AsyncMutex<State>,
    /// Whose the credentials are that are kept.
    pub(crate) identity: Identity,
    /// Whether the server takes what was got for it.
    pub(crate) trial: Trial,
}

/// Why a token is got.
pub(crate) enum Want<'a> {
    /// There is none, or the server does not take it.
    Any(&'a BearerChallenge),
    /// The server wants more scopes.
    More(&'a BearerChallenge),
    /// A person has asked to log in, with these scopes besides.
    Login(&'a BearerChallenge, &'a [String]),
}

impl OAuth {
    /// The OAuth of one server.
    #[must_use]
    pub fn new(parts: OAuthOptions) -> Self {
        let OAuthOptions { server, url, settings, store, http, consent, secrets } = parts;
        let provider = settings.identity_provider.as_ref().filter(|_| settings.grant == Grant::IdentityAssertion);
        let provider = provider.map(|provider| provider.token_endpoint.as_str());
        // Hosts that the operator wrote may be private.
        let written = [settings.authorization_server.as_deref(), provider].into_iter().flatten();
        let hosts = written.filter_map(|text| Some(Url::parse(text).ok()?.host_str()?.to_owned()));
        let allowed: Vec<_> = hosts.chain(settings.allowed_hosts.iter().cloned()).collect();
        let wire = Wire::new(&url, &allowed, http);
        let (state, identity) = (AsyncMutex::default(), Identity::default());
        let trial = Trial::default();
        Self(Arc::new(Session { server, url, settings, wire, store, consent, secrets, state, identity, trial }))
    }

    /// Gets a new token, whatever there is: a person logs in, if the grant needs one. `scopes` are asked for besides
    /// those that the server wants.
    ///
    /// # Errors
    /// [`OAuthError`].
    pub async fn login(&self, scopes: &[String]) -> Result<LoginState, OAuthError> {
        let session = &self.0;
        let mut state = session.state.lock().await;
        session.load(&mut state).await?;
        let challenge = provoke(&session.wire, &session.url).await?;
        session.obtain(&mut state, Want::Login(&challenge, scopes)).await?;
        Ok(LoginState::of(state.kept.as_ref()))
    }

    /// Forgets the token and the registration, and has the authorization server take the token back if it can; that
    /// it could not is no error, and takes 20 s at most.
    ///
    /// # Errors
    /// [`OAuthError::Store`]: it is not forgotten.
    pub async fn logout(&self) -> Result<Logout, OAuthError> {
        let session = &self.0;
        let mut state = session.state.lock().await;
        let (removed, found) = {
            let _lock = session.store.lock(session.key()).await?;
            // What cannot be read cannot be revoked, and is to go all the same.
            let found = session.store.load(session.key()).await;
            state.kept = None;
            (session.store.remove(session.key()).await?, found)
        };
        let revocation = match found {
            Ok(kept) => {
                kept.iter().for_each(|kept| session.register_secrets(kept));
                session.revoked(kept.as_ref()).await
            }
            Err(error) => Revocation::Failed(error.to_string()),
        };
        Ok(Logout { removed, revocation })
    }

    /// What is kept.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn login_state(&self) -> Result<LoginState, OAuthError> {
        let mut state = self.0.state.lock().await;
        self.0.load(&mut state).await?;
        Ok(LoginState::of(state.kept.as_ref()))
    }
}

impl Session {
    /// Under which its credentials are kept.
    pub(crate) fn key(&self) -> ServerKey<'_> {
        (&self.server, self.url.as_str())
    }

    /// Whether a person has to log in before the first request.
    pub(crate) fn needs_person(&self) -> bool {
        matches!(self.settings.grant, Grant::AuthorizationCode)
    }

    /// Gets a token: by renewal, without a person, or by asking one.
    pub(crate) async fn obtain(&self, state: &mut State, want: Want<'_>) -> Result<(), OAuthError> {
        let (challenge, extra) = match &want {
            Want::Any(challenge) | Want::More(challenge) => (*challenge, &[][..]),
            Want::Login(challenge, extra) => (*challenge, *extra),
        };
        let mut kept = state.kept.clone().unwrap_or_else(|| self.nothing());
        let refreshable = kept.token.as_ref().is_some_and(|token| token.refresh.is_some());
        let by_renewal = matches!(want, Want::Any(_)) && refreshable;
        if !by_renewal && self.needs_person() && self.consent.is_none() {
            return Err(self.remember(state, kept, challenge).await);
        }
        if !matches!(want, Want::Login(..))
            && let Some(error) = recent(&state.failed_request)
        {
            return Err(error);
        }
        let found = self.discovered(state, challenge).await?;
        self.bind(&mut kept, &found)?;
        state.kept = Some(kept.clone());
        if by_renewal {
            if self.renewed_for(state, &found).await? {
                return Ok(());
            }
            kept = state.kept.clone().unwrap_or_else(|| self.nothing());
            self.bind(&mut kept, &found)?;
        }
        if self.needs_person() && self.consent.is_none() {
            return Err(self.remember(state, kept, challenge).await);
        }
        let before = match &want {
            Want::Any(_) => &[][..],
            Want::More(_) | Want::Login(..) => kept.token.as_ref().map_or(&[][..], |token| &token.asked),
        };
        let before: Vec<_> = before.iter().chain(&kept.wanted_scopes).chain(extra).cloned().collect();
        let offline = if self.needs_person() { &found.server.scopes_supported[..] } else { &[] };
        let scopes = choose(ScopeSources {
            configured: &self.settings.scopes,
            before: &before,
            challenged: &challenge.scopes,
            supported: &found.scopes,
            server_supported: offline,
        });
        if matches!(want, Want::More(_)) {
            self.count_step_up(state, &scopes)?;
        }
        let (client, token) = self.ask_as_known(state, &mut kept, &found, &scopes).await?;
        self.try_next(&token);
        kept.client = Some(client);
        kept.is_doubtful = false;
        kept.token = Some(token);
        // A client that asks for itself is the same with every token.
        let is_itself = matches!(self.settings.grant, Grant::ClientCredentials);
        kept.login = if is_itself { None } else { random_text().ok() };
        kept.wanted_scopes = Vec::new();
        tracing::info!(server = self.server, issuer = found.issuer, "a token was given");
        self.save(state, kept).await
    }

    /// Finds the authorization server.
    async fn discovered(&self, state: &mut State, challenge: &BearerChallenge) -> Result<Discovered, OAuthError> {
        let wanted = self.settings.authorization_server.as_deref();
        let found = discover(&self.wire, &self.url, challenge, wanted).await;
        state.failed_request = found.as_ref().err().map(|error| (Instant::now(), error.clone()));
        found
    }

    /// Asks for a token, as the client that registered earlier where there is one; as a new one if the authorization
    /// server says that it does not know that any more.
    ///
    /// Most servers say so on the login page alone, which then never sends back. So a registration is in doubt from
    /// when its page is shown until the login has come to its end, and one in doubt is not used for another login.
    async fn ask_as_known(
        &self,
        state: &mut State,
        kept: &mut Credentials,
        found: &Discovered,
        scopes: &[String],
    ) -> Result<(Client, Token), OAuthError> {
        let known = self.begun(state, kept, found).await?;
        let asked = self.ask(found, known.as_ref(), scopes).await;
        if let Err(error @ (OAuthError::Unreachable { .. } | OAuthError::Answer { .. })) = &asked
            && !self.needs_person()
        {
            state.failed_request = Some((Instant::now(), error.clone()));
        }
        match asked {
            Err(error) if known.is_some() && refusal(&error) == Some(Refusal::Client) => {
                tracing::warn!(server = self.server, "the client registers anew: {error}");
                kept.forget(Refusal::Client);
                self.save(state, kept.clone()).await?;
                self.ask(found, None, scopes).await
            }
            Err(error @ OAuthError::Refused { what, .. }) if what != REGISTRATION => {
                if let Some(known) = &known
                    && let Err(problem) = self.is_known(state, known).await
                {
                    tracing::warn!(server = self.server, "{problem}");
                }
                Err(error)
            }
            asked => asked,
        }
    }

    /// The client of an earlier registration that a token is asked for with, where there is one; in doubt from here on,
    /// if a person is to see its page. Where none can be registered, one in doubt is better than none.
    async fn begun(
        &self,
        state: &mut State,
        kept: &mut Credentials,
        found: &Discovered,
    ) -> Result<Option<Client>, OAuthError> {
        let is_closed = found.server.registration_endpoint.is_none();
        let usable = |kept: &Credentials| {
            kept.client.clone().filter(|client| client.is_registered() && (!kept.is_doubtful || is_closed))
        };
        if usable(kept).is_none() || !self.needs_person() {
            return Ok(usable(kept));
        }
        let _lock = self.store.lock(self.key()).await?;
        self.reload(state).await?;
        // While the server was asked, another process may have renewed the token, or logged in or out.
        let Some(now) = state.kept.clone().filter(|now| now.issuer == kept.issuer) else { return Ok(None) };
        *kept = now;
        let known = usable(kept);
        if known.is_some() {
            kept.is_doubtful = true;
            self.save(state, kept.clone()).await?;
        }
        Ok(known)
    }

    /// Notes that the authorization server knows this client: it has refused it something else.
    async fn is_known(&self, state: &mut State, client: &Client) -> Result<(), OAuthError> {
        let _lock = self.store.lock(self.key()).await?;
        self.reload(state).await?;
        match state.kept.clone() {
            Some(mut now) if now.is_doubtful && now.client.as_ref() == Some(client) => {
                now.is_doubtful = false;
                self.save(state, now).await
            }
            _ => Ok(()),
        }
    }

    /// Credentials are one authorization server's: those of another are forgotten, and a configured secret is not
    /// shown to a server that came later.
    fn bind(&self, kept: &mut Credentials, found: &Discovered) -> Result<(), OAuthError> {
        let issuer = found.server.issuer.clone();
        match &kept.issuer {
            Some(known) if *known == issuer => return Ok(()),
            Some(known) if found.resource.is_none() && self.settings.authorization_server.is_none() => {
                return Err(OAuthError::Metadata(format!(
                    "the server's authorization server is `{known}`, and its metadata, which said so, is gone: without \
                     it nothing goes to `{issuer}` instead; if that is right, `toolwright mcp logout {}` and log in again",
                    self.server
                )));
            }
            Some(known) => {
                let proven = !matches!(self.settings.proof, ClientProof::None);
                if proven && self.settings.authorization_server.is_none() {
                    return Err(OAuthError::Metadata(format!(
                        "the server's authorization server was `{known}` and is now `{issuer}`; if that is right, \
                         set `oauth.authorization_server: {issuer}`: the client's secret is kept from it until then"
                    )));
                }
                tracing::warn!(server = self.server, "its authorization server was {known} and is now {issuer}");
            }
            None => {}
        }
        *kept = Credentials { issuer: Some(issuer), ..self.nothing() };
        Ok(())
    }

    fn count_step_up(&self, state: &mut State, scopes: &[String]) -> Result<(), OAuthError> {
        if state.stepped_up.iter().any(|asked| asked == scopes) || state.stepped_up.len() >= MAX_STEP_UPS {
            return Err(OAuthError::Metadata(format!(
                "the server wants more than it was given, and asking again for `{}` would not change that",
                scopes.join(" ")
            )));
        }
        state.stepped_up.push(scopes.to_vec());
        Ok(())
    }

    /// Keeps in mind what the server wants, for the login that it takes.
    async fn remember(&self, state: &mut State, mut kept: Credentials, challenge: &BearerChallenge) -> OAuthError {
        let missing = challenge.scopes.iter().filter(|scope| !kept.wanted_scopes.contains(scope));
        let missing: Vec<_> = missing.cloned().collect();
        if !missing.is_empty() && kept.token.is_some() {
            kept.wanted_scopes.extend(missing);
            if let Err(error) = self.save(state, kept).await {
                return error;
            }
        }
        match &challenge.scopes[..] {
            [] => self.login_needed("the server wants you to log in"),
            scopes => self.login_needed(&format!("the server wants a login with the scopes `{}`", scopes.join(" "))),
        }
    }

    pub(crate) fn login_needed(&self, reason: &str) -> OAuthError {
        OAuthError::LoginNeeded { server: self.server.clone(), reason: reason.to_owned() }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("server", &self.server)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OAuthOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthOptions")
            .field("server", &self.server)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

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
            self.register_secrets(credentials);
        }
        let mut kept = kept.unwrap_or_else(|| self.nothing());
        if kept.client.as_ref().is_some_and(|client| !self.settings.may_be(client)) {
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
        self.register_secrets(&credentials);
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
    pub(crate) fn register_secrets(&self, credentials: &Credentials) {
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
