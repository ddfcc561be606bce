//! Where the login page sends back to: a listener on this machine (RFC 8252 section 7.3).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use super::error::OAuthError;
use super::redirect::Expected;

/// Path that the login page sends back to.
const PATH: &str = "/callback";
/// Bound on the head of one request.
const MAX_HEAD: usize = 16 << 10;
/// Bound on one connection.
const CONNECTION_BOUND: Duration = Duration::from_secs(5);
/// Connections that are served at once. Browsers open some ahead, and say nothing on them.
const MAX_CONNECTIONS: usize = 64;
/// Bound on what a browser is told that waits for the end of its login.
const TELL_BOUND: Duration = Duration::from_secs(2);

/// A listener that waits for one redirect.
pub(crate) struct Loopback {
    listener: TcpListener,
    address: SocketAddr,
}

/// A code, and the browser that brought it: it waits to be told what came of it.
pub(crate) struct Brought {
    /// The code.
    pub(crate) code: String,
    browser: Option<TcpStream>,
}

impl Brought {
    /// A code that a person brought, where no browser waits.
    pub(crate) fn by_hand(code: String) -> Self {
        Self { code, browser: None }
    }

    /// Tells the browser, if one waits, and takes two seconds at most.
    pub(crate) async fn tell(self, text: &str) {
        if let Some(browser) = self.browser {
            // Whether it still shows it does not matter any more.
            let _ = tokio::time::timeout(TELL_BOUND, answer(browser, "200 OK", text)).await;
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

    /// The address to give the login page.
    pub(crate) fn redirect_uri(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Waits for the redirect that answers `expected`, and gives back its code; its browser is not answered yet. What
    /// else knocks is turned away, and nobody waits for it: a page that guesses the port cannot end the wait.
    ///
    /// # Errors
    /// [`OAuthError::Redirect`] when the login page says no, or the answer is not its own.
    pub(crate) async fn code(&self, expected: &Expected) -> Result<Brought, OAuthError> {
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

    async fn serve(&self, mut stream: TcpStream, expected: &Expected) -> Option<Result<Brought, OAuthError>> {
        let head = head(&mut stream).await?;
        let target = head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next());
        let url = target.and_then(|target| Url::parse(&format!("http://{}{target}", self.address)).ok());
        let ours = url.filter(|url| url.path() == PATH && expected.is_answered_by(url));
        match ours.map(|url| expected.code(&url)) {
            Some(Ok(code)) => Some(Ok(Brought { code, browser: Some(stream) })),
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

/// Answers a request. Texts are fixed: nothing of a request is shown.
async fn answer(mut stream: TcpStream, status: &str, text: &str) {
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    // Whether the browser shows it does not matter any more.
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
