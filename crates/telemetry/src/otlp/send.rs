//! Sends requests to one receiver.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use url::{Host, Url};

use super::{OtlpError, Receiver, shown};

/// How often one request is sent at most.
const MAX_ATTEMPTS: u32 = 3;
/// The wait before the second attempt; before the third it is twice as long.
const BACKOFF: Duration = Duration::from_secs(1);
/// The longest wait that a receiver may ask for. A longer one is cut: spans wait meanwhile, and more come.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Sender {
    client: Client,
    url: Url,
    headers: HeaderMap,
    failing: AtomicBool,
}

/// Why a request failed, and when to try again.
struct Failed {
    message: String,
    again_after: Option<Duration>,
}

impl Sender {
    pub(super) fn new(receiver: Receiver, timeout: Duration) -> Result<Self, OtlpError> {
        static PROVIDER: Once = Once::new();
        // An error means that somebody else has installed one, which is as good.
        PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let builder = Client::builder()
            .user_agent(concat!("toolwright/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .timeout(timeout);
        // Proxies of the environment are honoured, but never for the machine itself.
        let builder = if is_loopback(&receiver.url) { builder.no_proxy() } else { builder };
        let mut headers = HeaderMap::new();
        for (name, value) in receiver.headers {
            let header = HeaderName::try_from(&name).ok().zip(HeaderValue::try_from(value).ok());
            let (key, mut value) = header.ok_or(OtlpError::Header(name))?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let client = builder.build().map_err(OtlpError::Client)?;
        Ok(Self { client, url: receiver.url, headers, failing: AtomicBool::new(false) })
    }

    /// Sends a message, and while `again` allows it once or twice more when the receiver was not reached or busy.
    /// Whether the receiver accepted it. Logs the first failure and the recovery for the operator.
    pub(super) async fn send(&self, body: bytes::Bytes, again: impl Fn() -> bool) -> bool {
        let mut attempt = 1;
        loop {
            let failed = match self.post(body.clone()).await {
                Ok(()) => {
                    if self.failing.swap(false, Ordering::Relaxed) {
                        tracing::info!("telemetry reaches {} again", shown(&self.url));
                    }
                    return true;
                }
                Err(failed) => failed,
            };
            match failed.again_after {
                Some(asked) if attempt < MAX_ATTEMPTS && again() => {
                    tokio::time::sleep(asked.max(BACKOFF * attempt)).await;
                }
                _ => {
                    if !self.failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!("telemetry does not reach {}: {}", shown(&self.url), failed.message);
                    }
                    return false;
                }
            }
            attempt += 1;
        }
    }

    async fn post(&self, body: bytes::Bytes) -> Result<(), Failed> {
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body);
        let response = request
            .send()
            .await
            .map_err(|error| Failed { message: causes(&error.without_url()), again_after: Some(Duration::ZERO) })?;
        // Nothing in the body is worth reading it: what was rejected in part is not sent again either.
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let busy = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(Failed {
            message: format!("it answers {status}; check telemetry.endpoint and telemetry.headers"),
            again_after: busy.then(|| retry_after(&response).unwrap_or_default().min(MAX_RETRY_AFTER)),
        })
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    match text.trim().parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok(),
    }
}

/// An error with what caused it, which is where reqwest says what happened.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
