//! Login by a person: the authorization code flow with PKCE (OAuth 2.1 section 4.1), the listener for the
//! redirect (RFC 8252 section 7.3), and its checks (RFC 9207).

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use crate::config::ClientProof;
use crate::credentials::{Client, Token};
use crate::discovery::Discovered;
use crate::discovery::OFFLINE_ACCESS;
use crate::token::{TokenRequest, request};
use crate::wire::OAuthHttp;
use crate::wire::{random_text, s256};
use crate::{OAuthError, excerpt};

/// Time limit for a person to log in.
const LOGIN_BOUND: Duration = Duration::from_secs(600);
/// How long the browser waits for the result after the person has logged in.
const PAGE_BOUND: Duration = Duration::from_secs(20);

const LOGGED_IN: &str = "You are logged in. You can close this page.";
const UNFINISHED: &str = "The login page has let you in, but no token came of it. See where you started it.";
const TOKEN_PENDING: &str = "The login page has let you in; its token has not come yet. See where you started it.";

const TIMED_OUT: &str = "nobody logged in within ten minutes; begin again, also where the page showed an error: a \
    client that the authorization server has forgotten then registers again";

/// Shows a person a login page.
#[async_trait]
pub trait Consent: Send + Sync {
    /// Shows the page at `url`. If the login redirects to an address that does not lead back to this machine, a person
    /// may paste that address; it is returned then. `None` leaves the answer to the listener on this machine. The
    /// future is dropped as soon as the listener has the answer.
    ///
    /// # Errors
    /// The page cannot be shown, or the person gave up.
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String>;
}

/// A login in progress.
pub(crate) struct Login<'a> {
    pub(crate) wire: &'a OAuthHttp,
    pub(crate) discovered: &'a Discovered,
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
        let server = &self.discovered.server;
        let expected = ExpectedRedirect {
            state,
            issuer: self.discovered.published.then(|| server.issuer.clone()),
            names_itself: server.authorization_response_iss_parameter_supported,
        };
        let answered = tokio::time::timeout(LOGIN_BOUND, self.answer(&url, &expected)).await;
        let brought = answered.map_err(|_| OAuthError::Abandoned(TIMED_OUT.to_owned()))??;
        let code = brought.code.clone();
        let fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code.as_str()),
            ("redirect_uri", redirect_uri.as_str()),
            ("code_verifier", verifier.as_str()),
        ];
        let asked = TokenRequest {
            endpoint: token_endpoint(self.discovered)?,
            fields,
            resource: self.discovered.resource.as_deref(),
            scopes: &[],
            asked: self.scopes,
            audience: &server.issuer,
        };
        let exchange = pin!(request(self.wire, self.client, self.proof, asked));
        emit_end(brought, exchange).await
    }

    async fn answer(&self, url: &Url, expected: &ExpectedRedirect) -> Result<ReceivedCode, OAuthError> {
        let reported = async {
            match self.consent.visit(url).await {
                Ok(Some(redirect)) => expected.code(&redirect).map(ReceivedCode::by_hand),
                Ok(None) => std::future::pending().await,
                Err(reason) => Err(OAuthError::Abandoned(reason)),
            }
        };
        tokio::select! {
            biased;
            code = self.loopback.code(expected) => code,
            code = reported => code,
        }
    }

    /// The address of the login page.
    fn page(&self, verifier: &str, state: &str, redirect_uri: &str) -> Result<Url, OAuthError> {
        let server = &self.discovered.server;
        let s256_known = server.code_challenge_methods_supported.iter().any(|method| method == "S256");
        if self.discovered.published && !s256_known {
            return Err(OAuthError::Metadata(format!(
                "the authorization server `{}` does not offer PKCE with S256, without which a code can be stolen",
                self.discovered.issuer
            )));
        }
        let Some(endpoint) = &server.authorization_endpoint else {
            let message = format!("the authorization server `{}` has no login page", self.discovered.issuer);
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
        if let Some(resource) = &self.discovered.resource {
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

/// Waits for the end of an exchange and shows the result in the browser, or, after [`PAGE_BOUND`], that it is not known
/// yet.
async fn emit_end<T, E>(
    brought: ReceivedCode,
    mut exchange: Pin<&mut impl Future<Output = Result<T, E>>>,
) -> Result<T, E> {
    match tokio::time::timeout(PAGE_BOUND, exchange.as_mut()).await {
        Ok(ended) => {
            brought.show_result(if ended.is_ok() { LOGGED_IN } else { UNFINISHED }).await;
            ended
        }
        Err(_) => {
            brought.show_result(TOKEN_PENDING).await;
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

/// Expected values of the redirect that ends a login.
#[derive(Debug, Clone)]
pub(crate) struct ExpectedRedirect {
    /// `state` of the request.
    pub(crate) state: String,
    /// The authorization server's own name, if published.
    pub(crate) issuer: Option<String>,
    /// Whether the server sends `iss` in every answer.
    pub(crate) names_itself: bool,
}

impl ExpectedRedirect {
    /// Whether the redirect's `state` is that of this login.
    pub(crate) fn is_answered_by(&self, redirect: &Url) -> bool {
        parameter(redirect, "state").is_some_and(|state| state == self.state)
    }

    /// Returns the code in a redirect.
    ///
    /// # Errors
    /// [`OAuthError::Redirect`] for another login or from another server, and
    /// [`OAuthError::Refused`] if the login was refused.
    pub(crate) fn code(&self, redirect: &Url) -> Result<String, OAuthError> {
        let refused = |reason: String| Err(OAuthError::Redirect(reason));
        if !self.is_answered_by(redirect) {
            return refused("its `state` is not that of this login".to_owned());
        }
        // Check the issuer before trusting anything else in the redirect, even an error text. Names are compared
        // literally.
        match (parameter(redirect, "iss"), &self.issuer) {
            (Some(iss), Some(issuer)) if iss != *issuer => {
                return refused(format!("it comes from `{}`, not from `{issuer}` (`iss`)", excerpt(&iss)));
            }
            (None, _) if self.names_itself => {
                return refused("it does not say whom it comes from (`iss`), though the server promises to".to_owned());
            }
            _ => {}
        }
        if let Some(error) = parameter(redirect, "error") {
            let description = parameter(redirect, "error_description").map(|text| excerpt(&text));
            return Err(OAuthError::Refused { what: "login", error: excerpt(&error), description });
        }
        match parameter(redirect, "code") {
            Some(code) if !code.is_empty() => Ok(code),
            _ => refused("it has no `code`".to_owned()),
        }
    }
}

fn parameter(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Path that the login page sends back to.
const PATH: &str = "/callback";
/// Bound on the head of one request.
const MAX_HEAD: usize = 16 << 10;
/// Bound on one connection.
const CONNECTION_BOUND: Duration = Duration::from_secs(5);
/// Connections served at once. Browsers open some in advance and send nothing on them.
const MAX_CONNECTIONS: usize = 64;
/// Time limit for sending the result to a waiting browser.
const BROWSER_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// A listener that waits for one redirect.
pub(crate) struct Loopback {
    listener: TcpListener,
    address: SocketAddr,
}

/// A code, and the browser connection that brought it and waits for the result.
pub(crate) struct ReceivedCode {
    /// The code.
    pub(crate) code: String,
    browser: Option<TcpStream>,
}

impl ReceivedCode {
    /// A code pasted by a person, without a waiting browser.
    pub(crate) fn by_hand(code: String) -> Self {
        Self { code, browser: None }
    }

    /// Shows the result in the browser, if one waits; takes two seconds at most.
    pub(crate) async fn show_result(self, text: &str) {
        if let Some(browser) = self.browser {
            // The login does not depend on the browser showing it.
            let _ = tokio::time::timeout(BROWSER_REPLY_TIMEOUT, answer(browser, "200 OK", text)).await;
        }
    }
}

impl Loopback {
    /// Listens on `port` of 127.0.0.1, or on one that is free.
    ///
    /// # Errors
    /// [`OAuthError::Setting`].
    pub(crate) async fn listen(port: Option<u16>) -> Result<Self, OAuthError> {
        let failed = |error: std::io::Error| {
            let port = port.map_or_else(String::new, |port| format!(" on port {port} (`oauth.redirect_port`)"));
            OAuthError::Setting(format!("cannot wait for the login page's answer{port}: {error}"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0))).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The redirect URI for the login page.
    pub(crate) fn redirect_uri(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Waits for the redirect that matches `expected` and returns its code; the browser is not answered yet. Other
    /// requests are rejected without ending the wait, so a page that guesses the port cannot end it.
    ///
    /// # Errors
    /// [`OAuthError::Redirect`] when the login page refuses, or the redirect comes from another server.
    pub(crate) async fn code(&self, expected: &ExpectedRedirect) -> Result<ReceivedCode, OAuthError> {
        let mut served = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(ended) = served.next() => {
                    if let Ok(Some(answer)) = ended {
                        return answer;
                    }
                }
                accepted = self.listener.accept(), if served.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        served.push(tokio::time::timeout(CONNECTION_BOUND, self.serve(stream, expected)));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }

    async fn serve(
        &self,
        mut stream: TcpStream,
        expected: &ExpectedRedirect,
    ) -> Option<Result<ReceivedCode, OAuthError>> {
        let head = head(&mut stream).await?;
        let target = head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next());
        let url = target.and_then(|target| Url::parse(&format!("http://{}{target}", self.address)).ok());
        let ours = url.filter(|url| url.path() == PATH && expected.is_answered_by(url));
        match ours.map(|url| expected.code(&url)) {
            Some(Ok(code)) => Some(Ok(ReceivedCode { code, browser: Some(stream) })),
            Some(Err(error)) => {
                answer(stream, "200 OK", "The login is not accepted. See where you started it.").await;
                Some(Err(error))
            }
            None => {
                answer(stream, "404 Not Found", "Nothing is waited for here.").await;
                None
            }
        }
    }
}

/// Answers a request with a fixed text: no part of the request is echoed.
async fn answer(mut stream: TcpStream, status: &str, text: &str) {
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    // The result does not depend on the browser showing it.
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// The head of a request, to the blank line.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        head.extend_from_slice(&buffer[..read]);
        if memchr::memmem::find(&head, b"\r\n\r\n").is_some() {
            return String::from_utf8(head).ok();
        }
        if head.len() > MAX_HEAD {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn silent_connections_do_not_delay_the_answer() {
        let loopback = Loopback::listen(None).await.expect("a port");
        let port = Url::parse(&loopback.redirect_uri()).expect("a url").port().expect("a port");
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(("127.0.0.1", port)).await.expect("connected"));
        }
        let mut browser = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
        browser.write_all(b"GET /callback?code=c&state=s HTTP/1.1\r\n\r\n").await.expect("sent");
        let expected = ExpectedRedirect { state: "s".into(), issuer: None, names_itself: false };
        // Served one after the other, they would take 100 s.
        let brought = tokio::time::timeout(Duration::from_secs(30), loopback.code(&expected)).await;
        assert_eq!(brought.expect("it does not hang").expect("a code").code, "c");
    }

    #[tokio::test]
    async fn browsers_are_shown_how_the_login_ended() {
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
            let expected = ExpectedRedirect { state: "s".into(), issuer: None, names_itself: false };
            let brought = loopback.code(&expected).await.expect("a code");
            let (end, ended) = oneshot::channel();
            let reported = tokio::spawn(async move {
                let exchange = pin!(async { ended.await.expect("it ends") });
                emit_end(brought, exchange).await
            });
            let early = tokio::time::timeout(Duration::from_millis(100), &mut browser).await;
            assert!(early.is_err(), "it is told nothing before: {early:?}");
            end.send(ends).expect("awaited");
            assert_eq!(reported.await.expect("no panic"), ends);
            let page = browser.await.expect("no panic");
            assert!(page.starts_with("HTTP/1.1 200 OK") && page.ends_with(expect), "{page}");
        }
    }

    #[test]
    fn an_answer_must_match_client_and_server() {
        for (issuer, names_itself, query, expect) in [
            (Some("https://as"), true, "code=c&state=s&iss=https://as", Ok("c")),
            (Some("https://as"), false, "code=c&state=s", Ok("c")),
            (Some("https://as"), false, "code=c&state=s&iss=https://as", Ok("c")),
            (None, false, "code=c&state=s&iss=x", Ok("c")),
            (Some("https://as"), true, "code=c&state=s", Err("does not say whom")),
            (Some("https://as"), true, "code=c&state=s&iss=https://as/", Err("comes from")),
            (Some("https://as"), true, "code=c&state=s&iss=https://AS", Err("comes from")),
            (Some("https://as"), false, "code=c&state=s&iss=https://evil", Err("comes from")),
            (Some("https://as"), false, "error=x&state=s&iss=https://evil", Err("comes from")),
            (Some("https://as"), false, "error=access_denied&error_description=no&state=s", Err("access_denied (no)")),
            (Some("https://as"), false, "code=c&state=other", Err("state")),
            (Some("https://as"), false, "code=c", Err("state")),
            (Some("https://as"), false, "code=&state=s", Err("no `code`")),
        ] {
            let expected = ExpectedRedirect { state: "s".into(), issuer: issuer.map(str::to_owned), names_itself };
            let url = Url::parse(&format!("http://127.0.0.1:1/callback?{query}")).expect("a URL");
            match (expected.code(&url), expect) {
                (Ok(code), Ok(expect)) => assert_eq!(code, expect, "{query}"),
                (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{query}: {error}"),
                (got, _) => panic!("{query}: {got:?}"),
            }
        }
    }
}
