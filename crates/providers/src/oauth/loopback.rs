//! Where the login page sends back to: a listener on this machine (RFC 8252 section 7.3).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

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

/// A listener that waits for one redirect.
pub(super) struct Loopback {
    listener: TcpListener,
    address: SocketAddr,
}

impl Loopback {
    /// Listens on `port` of 127.0.0.1, or on one that is free.
    ///
    /// # Errors
    /// [`OAuthError::Setting`].
    pub(super) async fn listen(port: Option<u16>) -> Result<Self, OAuthError> {
        let failed = |error: std::io::Error| {
            let port = port.map_or_else(String::new, |port| format!(" on port {port} (`oauth.redirect_port`)"));
            OAuthError::Setting(format!("cannot wait for the login page's answer{port}: {error}"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0))).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The address to give the login page.
    pub(super) fn redirect_uri(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Waits for the redirect that answers `expected`, and gives back its code. What else knocks is turned away:
    /// a page that guesses the port cannot end the wait.
    ///
    /// # Errors
    /// [`OAuthError::Redirect`] when the login page says no, or the answer is not its own.
    pub(super) async fn code(&self, expected: &Expected) -> Result<String, OAuthError> {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let served = tokio::time::timeout(CONNECTION_BOUND, self.serve(stream, expected)).await;
            if let Ok(Some(answer)) = served {
                return answer;
            }
        }
    }

    async fn serve(&self, mut stream: TcpStream, expected: &Expected) -> Option<Result<String, OAuthError>> {
        let head = head(&mut stream).await?;
        let target = head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next());
        let url = target.and_then(|target| Url::parse(&format!("http://{}{target}", self.address)).ok());
        let ours = url.filter(|url| url.path() == PATH && expected.is_answered_by(url));
        let answer = ours.map(|url| expected.code(&url));
        let (status, text) = match &answer {
            Some(Ok(_)) => ("200 OK", "You are logged in. You can close this page."),
            Some(Err(_)) => ("200 OK", "The login is not accepted. See where you started it."),
            None => ("404 Not Found", "Nothing is waited for here."),
        };
        // The text is fixed: nothing of the request is shown.
        let response = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{text}",
            text.len()
        );
        // Whether the browser shows it does not matter any more.
        let _ = stream.write_all(response.as_bytes()).await;
        let _ = stream.shutdown().await;
        answer
    }
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
