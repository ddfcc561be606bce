//! The OAuth session of one server: its credentials, in sync with the store, and requests for new tokens.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Mutex as AsyncMutex;
use toolwright_net::HttpOptions;
use url::Url;

use crate::OAuthError;
use crate::config::{ClientProof, Grant, OAuthConfig};
use crate::credentials::{Client, Credentials, LoginState, Token};
use crate::discovery::BearerChallenge;
use crate::discovery::{Discovered, discover, fetch_challenge};
use crate::discovery::{ScopeSources, choose};
use crate::login::Consent;
use crate::refresh::UnverifiedToken;
use crate::refresh::{Refusal, recent, refusal};
use crate::registration::REGISTRATION;
use crate::store::{CredentialStore, CredentialsVersion, ServerKey};
use crate::token::{Logout, Revocation};
use crate::wire::OAuthHttp;
use crate::wire::random_text;

/// Limit on requests for more scopes in one process; each set is requested once.
const MAX_STEP_UPS: usize = 8;

/// Parts of one server's OAuth.
#[derive(Clone)]
pub struct OAuthOptions {
    /// The server's name in the configuration.
    pub server: String,
    /// Its address.
    pub url: Url,
    /// The configuration.
    pub settings: OAuthConfig,
    /// Store of credentials.
    pub store: CredentialStore,
    /// Options of the HTTP client.
    pub http: HttpOptions,
    /// Lets a person log in; `None` if nobody can.
    pub consent: Option<Arc<dyn Consent>>,
    /// Called with each secret before it is used, so that it is redacted from output.
    pub secrets: Option<Arc<dyn Fn(String) + Send + Sync>>,
}

/// The OAuth of one MCP server. Spawned tasks request tokens: when a caller gives up, a token that the
/// authorization server has just issued is not lost.
#[derive(Debug)]
pub struct OAuth(pub(crate) Arc<Session>);

pub(crate) struct Session {
    pub(crate) options: OAuthOptions,
    pub(crate) wire: OAuthHttp,
    /// Held during a token request, so that concurrent callers share one.
    pub(crate) state: AsyncMutex<State>,
    /// Account of the stored credentials.
    pub(crate) identity: Identity,
    /// Whether the server accepts new tokens.
    pub(crate) trial: UnverifiedToken,
}

/// Why a token is got.
pub(crate) enum TokenNeed<'a> {
    /// There is no token, or the server refuses it.
    Any(&'a BearerChallenge),
    /// The server wants more scopes.
    More(&'a BearerChallenge),
    /// A person wants to log in, with these additional scopes.
    Login(&'a BearerChallenge, &'a [String]),
}

impl OAuth {
    /// The OAuth of one server.
    #[must_use]
    pub fn new(options: OAuthOptions) -> Self {
        let settings = &options.settings;
        let provider = settings.identity_provider.as_ref().filter(|_| settings.grant == Grant::IdentityAssertion);
        let provider = provider.map(|provider| provider.token_endpoint.as_str());
        // Configured hosts may be private.
        let written = [settings.authorization_server.as_deref(), provider].into_iter().flatten();
        let hosts = written.filter_map(|text| Some(Url::parse(text).ok()?.host_str()?.to_owned()));
        let allowed: Vec<_> = hosts.chain(settings.allowed_hosts.iter().cloned()).collect();
        let wire = OAuthHttp::new(&options.url, &allowed, options.http.clone());
        let (state, identity) = (AsyncMutex::default(), Identity::default());
        let trial = UnverifiedToken::default();
        Self(Arc::new(Session { options, wire, state, identity, trial }))
    }

    /// Gets a new token, even if there is one: a person logs in, if the grant needs one. Requests `scopes` in addition
    /// to those that the server wants.
    ///
    /// # Errors
    /// [`OAuthError`].
    pub async fn login(&self, scopes: &[String]) -> Result<LoginState, OAuthError> {
        let session = &self.0;
        let mut state = session.state.lock().await;
        session.load(&mut state).await?;
        let challenge = fetch_challenge(&session.wire, &session.options.url).await?;
        session.obtain(&mut state, TokenNeed::Login(&challenge, scopes)).await?;
        Ok(LoginState::of(state.kept.as_ref()))
    }

    /// Forgets the token and the registration, and revokes the token at the authorization server if possible. A failed
    /// revocation is not an error; it takes at most 20 s.
    ///
    /// # Errors
    /// [`OAuthError::Store`]: nothing is forgotten.
    pub async fn logout(&self) -> Result<Logout, OAuthError> {
        let session = &self.0;
        let mut state = session.state.lock().await;
        let (removed, found) = {
            let _lock = session.options.store.lock(session.key()).await?;
            // Unreadable credentials cannot be revoked, but are removed too.
            let found = session.options.store.load(session.key()).await;
            state.kept = None;
            (session.options.store.remove(session.key()).await?, found)
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

    /// Returns the stored login.
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
    /// The key of its stored credentials.
    pub(crate) fn key(&self) -> ServerKey<'_> {
        (&self.options.server, self.options.url.as_str())
    }

    /// Whether the grant needs a person to log in.
    pub(crate) fn needs_person(&self) -> bool {
        matches!(self.options.settings.grant, Grant::AuthorizationCode)
    }

    /// Gets a token: by refresh, without a person, or by asking one.
    pub(crate) async fn obtain(&self, state: &mut State, want: TokenNeed<'_>) -> Result<(), OAuthError> {
        let (challenge, extra) = match &want {
            TokenNeed::Any(challenge) | TokenNeed::More(challenge) => (*challenge, &[][..]),
            TokenNeed::Login(challenge, extra) => (*challenge, *extra),
        };
        let mut kept = state.kept.clone().unwrap_or_else(|| self.empty_credentials());
        let refreshable = kept.token.as_ref().is_some_and(|token| token.refresh.is_some());
        let by_refresh = matches!(want, TokenNeed::Any(_)) && refreshable;
        if !by_refresh && self.needs_person() && self.options.consent.is_none() {
            return Err(self.remember(state, kept, challenge).await);
        }
        if !matches!(want, TokenNeed::Login(..))
            && let Some(error) = recent(&state.failed_request)
        {
            return Err(error);
        }
        let found = self.discovered(state, challenge).await?;
        self.bind(&mut kept, &found)?;
        state.kept = Some(kept.clone());
        if by_refresh {
            if self.refresh_for(state, &found).await? {
                return Ok(());
            }
            kept = state.kept.clone().unwrap_or_else(|| self.empty_credentials());
            self.bind(&mut kept, &found)?;
        }
        if self.needs_person() && self.options.consent.is_none() {
            return Err(self.remember(state, kept, challenge).await);
        }
        let before = match &want {
            TokenNeed::Any(_) => &[][..],
            TokenNeed::More(_) | TokenNeed::Login(..) => kept.token.as_ref().map_or(&[][..], |token| &token.asked),
        };
        let before: Vec<_> = before.iter().chain(&kept.wanted_scopes).chain(extra).cloned().collect();
        let offline = if self.needs_person() { &found.server.scopes_supported[..] } else { &[] };
        let scopes = choose(ScopeSources {
            configured: &self.options.settings.scopes,
            before: &before,
            challenged: &challenge.scopes,
            supported: &found.scopes,
            server_supported: offline,
        });
        if matches!(want, TokenNeed::More(_)) {
            self.record_step_up(state, &scopes)?;
        }
        let (client, token) = self.request_as_registered(state, &mut kept, &found, &scopes).await?;
        self.try_next(&token);
        kept.client = Some(client);
        kept.is_doubtful = false;
        kept.token = Some(token);
        // A client without a person has the same account with every token.
        let is_itself = matches!(self.options.settings.grant, Grant::ClientCredentials);
        kept.login = if is_itself { None } else { random_text().ok() };
        kept.wanted_scopes = Vec::new();
        tracing::info!(server = self.options.server, issuer = found.issuer, "a token was given");
        self.save(state, kept).await
    }

    /// Finds the authorization server.
    async fn discovered(&self, state: &mut State, challenge: &BearerChallenge) -> Result<Discovered, OAuthError> {
        let wanted = self.options.settings.authorization_server.as_deref();
        let found = discover(&self.wire, &self.options.url, challenge, wanted).await;
        state.failed_request = found.as_ref().err().map(|error| (Instant::now(), error.clone()));
        found
    }

    /// Requests a token with the earlier registration, if there is one. If the authorization server no longer knows
    /// that client, registers anew.
    ///
    /// Most servers report an unknown client only on the login page, which then never redirects. So a registration is
    /// doubtful from when its page is shown until the login completes, and a doubtful one is not used for another
    /// login.
    async fn request_as_registered(
        &self,
        state: &mut State,
        kept: &mut Credentials,
        found: &Discovered,
        scopes: &[String],
    ) -> Result<(Client, Token), OAuthError> {
        let known = self.earlier_registration(state, kept, found).await?;
        let asked = self.ask(found, known.as_ref(), scopes).await;
        if let Err(error @ (OAuthError::Unreachable { .. } | OAuthError::Answer { .. })) = &asked
            && !self.needs_person()
        {
            state.failed_request = Some((Instant::now(), error.clone()));
        }
        match asked {
            Err(error) if known.is_some() && refusal(&error) == Some(Refusal::Client) => {
                tracing::warn!(server = self.options.server, "the client registers again: {error}");
                kept.forget(Refusal::Client);
                self.save(state, kept.clone()).await?;
                self.ask(found, None, scopes).await
            }
            Err(error @ OAuthError::Refused { what, .. }) if what != REGISTRATION => {
                if let Some(known) = &known
                    && let Err(problem) = self.is_known(state, known).await
                {
                    tracing::warn!(server = self.options.server, "{problem}");
                }
                Err(error)
            }
            asked => asked,
        }
    }

    /// Returns the earlier registration to request a token with, if any, and marks it doubtful if a person will see its
    /// page. A doubtful one is used only if the server has no registration endpoint.
    async fn earlier_registration(
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
        let _lock = self.options.store.lock(self.key()).await?;
        self.reload(state).await?;
        // Meanwhile another process may have refreshed the token, or logged in or out.
        let Some(now) = state.kept.clone().filter(|now| now.issuer == kept.issuer) else { return Ok(None) };
        *kept = now;
        let known = usable(kept);
        if known.is_some() {
            kept.is_doubtful = true;
            self.save(state, kept.clone()).await?;
        }
        Ok(known)
    }

    /// Records that the authorization server knows this client: it refused something else.
    async fn is_known(&self, state: &mut State, client: &Client) -> Result<(), OAuthError> {
        let _lock = self.options.store.lock(self.key()).await?;
        self.reload(state).await?;
        match state.kept.clone() {
            Some(mut now) if now.is_doubtful && now.client.as_ref() == Some(client) => {
                now.is_doubtful = false;
                self.save(state, now).await
            }
            _ => Ok(()),
        }
    }

    /// Credentials belong to one authorization server: those of another are deleted, and a configured secret is not
    /// sent to a later one.
    fn bind(&self, kept: &mut Credentials, found: &Discovered) -> Result<(), OAuthError> {
        let issuer = found.server.issuer.clone();
        match &kept.issuer {
            Some(known) if *known == issuer => return Ok(()),
            Some(known) if found.resource.is_none() && self.options.settings.authorization_server.is_none() => {
                return Err(OAuthError::Metadata(format!(
                    "the server's authorization server is `{known}`, and the metadata that said so is gone: without \
                     it nothing is sent to `{issuer}`; if that one is right, `toolwright mcp logout {}` and log in \
                     again",
                    self.options.server
                )));
            }
            Some(known) => {
                let proven = !matches!(self.options.settings.proof, ClientProof::None);
                if proven && self.options.settings.authorization_server.is_none() {
                    return Err(OAuthError::Metadata(format!(
                        "the server's authorization server was `{known}` and is now `{issuer}`; if that is right, \
                         set `oauth.authorization_server: {issuer}`: the client's secret is kept from it until then"
                    )));
                }
                tracing::warn!(
                    server = self.options.server,
                    "its authorization server was {known} and is now {issuer}"
                );
            }
            None => {}
        }
        *kept = Credentials { issuer: Some(issuer), ..self.empty_credentials() };
        Ok(())
    }

    fn record_step_up(&self, state: &mut State, scopes: &[String]) -> Result<(), OAuthError> {
        if state.stepped_up.iter().any(|asked| asked == scopes) || state.stepped_up.len() >= MAX_STEP_UPS {
            return Err(OAuthError::Metadata(format!(
                "the server wants more than it was given, and asking again for `{}` would not change that",
                scopes.join(" ")
            )));
        }
        state.stepped_up.push(scopes.to_vec());
        Ok(())
    }

    /// Stores what the server wants, for the login that it needs.
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
        OAuthError::LoginNeeded { server: self.options.server.clone(), reason: reason.to_owned() }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("options", &self.options).finish_non_exhaustive()
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

/// State of a session in this process.
#[derive(Default)]
pub(crate) struct State {
    /// The credentials, once loaded.
    pub(crate) kept: Option<Credentials>,
    /// Version of the stored credentials when they were loaded.
    stamp: CredentialsVersion,
    /// Scope sets already requested because the server wanted more.
    pub(crate) stepped_up: Vec<Vec<String>>,
    /// The last refresh, if it failed.
    pub(crate) failed_refresh: Option<(Instant, OAuthError)>,
    /// The last search for the authorization server, or request for a token without a person, if it failed.
    pub(crate) failed_request: Option<(Instant, OAuthError)>,
}

/// Account of the stored credentials, with their version.
#[derive(Default)]
pub(crate) struct Identity(Mutex<Option<(CredentialsVersion, String)>>);

impl Identity {
    fn lock(&self) -> MutexGuard<'_, Option<(CredentialsVersion, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Loads the stored credentials, if not loaded yet or changed since.
    ///
    /// # Errors
    /// [`OAuthError::Store`], only on the first load.
    pub(crate) async fn load(&self, state: &mut State) -> Result<(), OAuthError> {
        if state.kept.is_none() {
            return self.reload(state).await;
        }
        let stamp = self.options.store.stamp(self.key());
        if state.stamp != stamp
            && let Err(error) = self.reload(state).await
        {
            tracing::warn!(server = self.options.server, "the metadata that was read before is used: {error}");
            state.stamp = stamp;
        }
        Ok(())
    }

    /// Whether the stored credentials have changed since they were loaded. Checks one file's metadata.
    pub(crate) fn is_outdated(&self, state: &State) -> bool {
        state.stamp != self.options.store.stamp(self.key())
    }

    /// Loads the stored credentials.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub(crate) async fn reload(&self, state: &mut State) -> Result<(), OAuthError> {
        // Taken before reading: a concurrent change causes another load.
        let stamp = self.options.store.stamp(self.key());
        let kept = self.options.store.load(self.key()).await?;
        if let Some(credentials) = kept.as_ref().filter(|kept| state.kept.as_ref() != Some(kept)) {
            self.register_secrets(credentials);
        }
        let mut kept = kept.unwrap_or_else(|| self.empty_credentials());
        if kept.client.as_ref().is_some_and(|client| !self.options.settings.may_be(client)) {
            // The operator has changed the settings. The token stays in use until it expires, and is not refreshed.
            kept.client = None;
            kept.forget(Refusal::Grant);
        }
        (state.kept, state.stamp) = (Some(kept), stamp);
        Ok(())
    }

    /// Stores credentials. They are used in this process even if storing fails.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub(crate) async fn save(&self, state: &mut State, credentials: Credentials) -> Result<(), OAuthError> {
        self.register_secrets(&credentials);
        let identity = credentials.identity();
        state.kept = Some(credentials.clone());
        let saved = self.options.store.save(self.key(), credentials).await;
        // Another process may have written since, so the next use loads again. If storing failed, this process uses its
        // own copy until the store changes.
        state.stamp = CredentialsVersion::UNKNOWN;
        if saved.is_err() {
            state.stamp = self.options.store.stamp(self.key());
            *self.identity.lock() = Some((state.stamp, identity));
        }
        saved
    }

    /// Registers the secrets for redaction.
    pub(crate) fn register_secrets(&self, credentials: &Credentials) {
        let Some(learn) = &self.options.secrets else { return };
        let token = credentials.token.iter().flat_map(|token| [Some(&token.access), token.refresh.as_ref()]);
        let client = credentials.client.iter().map(|client| client.secret.as_ref());
        token.chain(client).flatten().for_each(|secret| learn(secret.expose().to_owned()));
    }

    /// Returns the account of the credentials stored now.
    pub(crate) fn identity_now(&self) -> String {
        let mut known = self.identity.lock();
        let stamp = self.options.store.stamp(self.key());
        if known.as_ref().is_none_or(|(of, _)| *of != stamp) {
            let identity = match self.options.store.peek(self.key()) {
                Ok(kept) => kept.map_or_else(String::new, |kept| kept.identity()),
                // Nobody's until it is known.
                Err(_) => format!("{:x}", RandomState::new().hash_one(&self.options.server)),
            };
            *known = Some((stamp, identity));
        }
        known.as_ref().map(|(_, identity)| identity.clone()).unwrap_or_default()
    }

    /// Credentials without anything in them.
    pub(crate) fn empty_credentials(&self) -> Credentials {
        Credentials { server_url: self.options.url.to_string(), ..Credentials::default() }
    }
}
