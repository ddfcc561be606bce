//! Asking a person: the authorization code flow with PKCE (OAuth 2.1 section 4.1).

use std::pin::{Pin, pin};
use std::time::Duration;

use async_trait::async_trait;
use url::Url;

use super::credentials::{Client, Token};
use super::discovery::Discovered;
use super::error::OAuthError;
use super::loopback::{Brought, Loopback};
use super::random::{random_text, s256};
use super::redirect::Expected;
use super::scope::OFFLINE_ACCESS;
use super::settings::ClientProof;
use super::token::{TokenRequest, request};
use super::wire::Wire;

/// How long a person has to log in.
const LOGIN_BOUND: Duration = Duration::from_secs(600);
/// How long the browser of a person who has logged in waits for what comes of it.
const TOLD_BOUND: Duration = Duration::from_secs(20);

const LOGGED_IN: &str = "You are logged in. You can close this page.";
const UNFINISHED: &str = "The login page has let you in, but no token came of it. See where you started it.";
const UNKNOWN_YET: &str = "The login page has let you in; its token has not come yet. See where you started it.";

const LATE: &str = "nobody logged in within ten minutes; begin again, also where the page showed an error: a client that \
                    the authorization server has forgotten registers anew then";

/// Takes a person to a login page.
#[async_trait]
pub trait Consent: Send + Sync {
    /// Shows the page at `url`. Where the page ends at an address that does not lead back to this machine, a person
    /// may say it: then it is returned. `None` leaves the answer to the listener on this machine. Dropped as soon as
    /// that has it.
    ///
    /// # Errors
    /// Why the page cannot be shown, or that the person gave up.
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String>;
}

/// One login.
pub(crate) struct Login<'a> {
    pub(crate) wire: &'a Wire,
    pub(crate) found: &'a Discovered,
    pub(crate) client: &'a Client,
    pub(crate) proof: &'a ClientProof,
    pub(crate) scopes: &'a [String],
    pub(crate) loopback: &'a Loopback,
    pub(crate) consent: &'a dyn Consent,
}

impl Login<'_> {
    /// Shows the login page, waits for its answer, ten minutes at most, and turns it into a token.
    ///
    /// # Errors
    /// [`OAuthError`].
    pub(crate) async fn run(&self) -> Result<Token, OAuthError> {
        let (verifier, state) = (random_text()?, random_text()?);
        let redirect_uri = self.loopback.redirect_uri();
        let url = self.page(&verifier, &state, &redirect_uri)?;
        let server = &self.found.server;
        let expected = Expected {
            state,
            issuer: self.found.published.then(|| server.issuer.clone()),
            names_itself: server.authorization_response_iss_parameter_supported,
        };
        let answered = tokio::time::timeout(LOGIN_BOUND, self.answer(&url, &expected)).await;
        let brought = answered.map_err(|_| OAuthError::Abandoned(LATE.to_owned()))??;
        let code = brought.code.clone();
        let fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code.as_str()),
            ("redirect_uri", redirect_uri.as_str()),
            ("code_verifier", verifier.as_str()),
        ];
        let asked = TokenRequest {
            endpoint: token_endpoint(self.found)?,
            fields,
            resource: self.found.resource.as_deref(),
            scopes: &[],
            asked: self.scopes,
            audience: &server.issuer,
        };
        let exchange = pin!(request(self.wire, self.client, self.proof, asked));
        emit_end(brought, exchange).await
    }

    async fn answer(&self, url: &Url, expected: &Expected) -> Result<Brought, OAuthError> {
        let told = async {
            match self.consent.visit(url).await {
                Ok(Some(redirect)) => expected.code(&redirect).map(Brought::by_hand),
                Ok(None) => std::future::pending().await,
                Err(reason) => Err(OAuthError::Abandoned(reason)),
            }
        };
        tokio::select! {
            biased;
            code = self.loopback.code(expected) => code,
            code = told => code,
        }
    }

    /// The address of the login page.
    fn page(&self, verifier: &str, state: &str, redirect_uri: &str) -> Result<Url, OAuthError> {
        let server = &self.found.server;
        let s256_known = server.code_challenge_methods_supported.iter().any(|method| method == "S256");
        if self.found.published && !s256_known {
            return Err(OAuthError::Metadata(format!(
                "the authorization server `{}` does not offer PKCE with S256, without which a code can be stolen",
                self.found.issuer
            )));
        }
        let Some(endpoint) = &server.authorization_endpoint else {
            let message = format!("the authorization server `{}` has no login page", self.found.issuer);
            return Err(OAuthError::Metadata(message));
        };
        let mut url = self.wire.endpoint("authorization_endpoint", endpoint)?;
        let scope = self.scopes.join(" ");
        let mut query = url.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client.id)
            .append_pair("redirect_uri", redirect_uri)
            .append_pair("code_challenge", &s256(verifier))
            .append_pair("code_challenge_method", "S256")
            .append_pair("state", state);
        if let Some(resource) = &self.found.resource {
            query.append_pair("resource", resource);
        }
        if !scope.is_empty() {
            query.append_pair("scope", &scope);
        }
        if self.scopes.iter().any(|scope| scope == OFFLINE_ACCESS) {
            // OpenID Connect Core section 11: without it the scope may be ignored.
            query.append_pair("prompt", "consent");
        }
        drop(query);
        Ok(url)
    }
}

/// Waits for the end of an exchange, and tells the browser what came of it; of one that takes long, that.
async fn emit_end<T, E>(brought: Brought, mut exchange: Pin<&mut impl Future<Output = Result<T, E>>>) -> Result<T, E> {
    match tokio::time::timeout(TOLD_BOUND, exchange.as_mut()).await {
        Ok(ended) => {
            brought.tell(if ended.is_ok() { LOGGED_IN } else { UNFINISHED }).await;
            ended
        }
        Err(_) => {
            brought.tell(UNKNOWN_YET).await;
            exchange.await
        }
    }
}

/// The endpoint that tokens come from.
///
/// # Errors
/// [`OAuthError::Metadata`].
pub(crate) fn token_endpoint(found: &Discovered) -> Result<&str, OAuthError> {
    found.server.token_endpoint.as_deref().ok_or_else(|| {
        OAuthError::Metadata(format!("the authorization server `{}` has no token endpoint", found.issuer))
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn connections_that_say_nothing_do_not_hold_up_the_answer() {
        let loopback = Loopback::listen(None).await.expect("a port");
        let port = Url::parse(&loopback.redirect_uri()).expect("a url").port().expect("a port");
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(("127.0.0.1", port)).await.expect("connected"));
        }
        let mut browser = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
        browser.write_all(b"GET /callback?code=c&state=s HTTP/1.1\r\n\r\n").await.expect("sent");
        let expected = Expected { state: "s".into(), issuer: None, names_itself: false };
        // One after the other they would take 100 s.
        let brought = tokio::time::timeout(Duration::from_secs(30), loopback.code(&expected)).await;
        assert_eq!(brought.expect("it does not hang").expect("a code").code, "c");
    }

    #[tokio::test]
    async fn a_browser_waits_for_what_comes_of_its_login_and_is_told_that() {
        for (ends, expect) in [(Ok(()), LOGGED_IN), (Err("503"), UNFINISHED)] {
            let loopback = Loopback::listen(None).await.expect("a port");
            let uri = Url::parse(&loopback.redirect_uri()).expect("a url");
            let port = uri.port().expect("a port");
            let mut browser = tokio::spawn(async move {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
                stream.write_all(b"GET /callback?code=c&state=s HTTP/1.1\r\n\r\n").await.expect("sent");
                let mut text = String::new();
                stream.read_to_string(&mut text).await.expect("answered");
                text
            });
            let expected = Expected { state: "s".into(), issuer: None, names_itself: false };
            let brought = loopback.code(&expected).await.expect("a code");
            let (end, ended) = oneshot::channel();
            let told = tokio::spawn(async move {
                let exchange = pin!(async { ended.await.expect("it ends") });
                emit_end(brought, exchange).await
            });
            let early = tokio::time::timeout(Duration::from_millis(100), &mut browser).await;
            assert!(early.is_err(), "it is told nothing before: {early:?}");
            end.send(ends).expect("awaited");
            assert_eq!(told.await.expect("no panic"), ends);
            let page = browser.await.expect("no panic");
            assert!(page.starts_with("HTTP/1.1 200 OK") && page.ends_with(expect), "{page}");
        }
    }
}
