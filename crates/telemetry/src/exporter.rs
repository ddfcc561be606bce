//! Sends batches of spans and metric readings to their receivers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use toolwright_core::backoff::Backoff;
use toolwright_core::cancel::{Cancel, CancelCause};
use url::{Host, Url};

use crate::metrics::Metrics;
use crate::otlp::{OtlpOptions, Receiver, shown};
use crate::otlp_messages::Origin;
use crate::spans::Span;

/// The most spans that wait to be sent.
pub const SPAN_QUEUE: usize = 2048;
/// Spans in one request.
const MAX_BATCH: usize = 512;

/// Why the exporter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// An illegal HTTP header.
    #[error(
        "`{0}` is no header that can be sent; use letters, digits and `-` in its name and no line break in its value"
    )]
    Header(String),
    /// The client cannot be built.
    #[error("the HTTP client for telemetry cannot be built: {0}")]
    Client(#[source] reqwest::Error),
}

/// Sends spans and metrics until the channel of spans closes, then the rest once.
#[derive(Debug)]
pub struct Exporter {
    origin: Origin,
    traces: Option<Sender>,
    readings: Option<Sender>,
    metrics: Arc<Metrics>,
    span_interval: Duration,
    metric_interval: Duration,
}

impl Exporter {
    /// An exporter of `metrics` and of the spans that [`run`](Self::run) is given.
    ///
    /// # Errors
    /// [`OtlpError`].
    pub fn new(options: OtlpOptions, metrics: Arc<Metrics>) -> Result<Self, OtlpError> {
        let sender = |receiver: Option<Receiver>| receiver.map(|it| Sender::new(it, options.timeout)).transpose();
        Ok(Self {
            traces: sender(options.traces.clone())?,
            readings: sender(options.metrics.clone())?,
            origin: Origin::new(&options.resource),
            metrics,
            span_interval: options.span_interval,
            metric_interval: options.metric_interval,
        })
    }

    /// Sends until the channel closes. A receiver that fails or hangs loses its data and does not block others.
    pub async fn run(self, spans: mpsc::Receiver<Span>) {
        let over = Cancel::new();
        tokio::join!(
            async {
                self.send_spans(spans).await;
                over.cancel(CancelCause::Shutdown);
            },
            self.send_metrics(&over),
        );
    }

    async fn send_spans(&self, mut spans: mpsc::Receiver<Span>) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        while spans.recv_many(&mut batch, MAX_BATCH).await > 0 {
            let Some(sender) = &self.traces else {
                batch.clear();
                continue;
            };
            // One timer for the whole batch.
            let over = sleep(self.span_interval);
            tokio::pin!(over);
            while batch.len() < MAX_BATCH {
                let room = MAX_BATCH - batch.len();
                tokio::select! {
                    biased;
                    count = spans.recv_many(&mut batch, room) => if count == 0 { break },
                    () = &mut over => break,
                }
            }
            let mut count = batch.len() as u64;
            let request = self.origin.spans(&batch);
            batch.clear();
            // At shutdown there are no retries, and a receiver that fails gets nothing more.
            if sender.send(request.into(), || !spans.is_closed()).await {
                continue;
            }
            while spans.is_closed() && spans.try_recv().is_ok() {
                count += 1;
            }
            self.metrics.spans_lost("failed", count);
        }
    }

    async fn send_metrics(&self, over: &Cancel) {
        let Some(sender) = &self.readings else { return };
        let mut ticks = interval_at(Instant::now() + self.metric_interval, self.metric_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while over.cause().is_none() {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = over.cancelled() => {}
            }
            let request = self.origin.metrics(&self.metrics, SystemTime::now());
            // The next reading includes this one.
            sender.send(request.into(), || false).await;
        }
    }
}

/// Attempts for one request.
const MAX_ATTEMPTS: u32 = 3;
/// The waits between attempts. A receiver may ask for up to the longest: spans are queued meanwhile.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(30) };

#[derive(Debug)]
struct Sender {
    client: Client,
    url: Url,
    headers: HeaderMap,
    failing: AtomicBool,
}

/// Why a request failed, and when to retry.
struct Failed {
    message: String,
    again_after: Option<Duration>,
}

impl Sender {
    fn new(receiver: Receiver, timeout: Duration) -> Result<Self, OtlpError> {
        static PROVIDER: Once = Once::new();
        // An error means that another one is installed, which is fine.
        PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let builder = Client::builder()
            .user_agent(concat!("toolwright/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .timeout(timeout);
        // Proxies of the environment are used, but not for this machine.
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

    /// Sends a message, and retries up to twice, while `again` allows it, if the receiver was not reached or was busy. Returns
    /// whether the receiver accepted it. Logs the first failure and the recovery.
    async fn send(&self, body: bytes::Bytes, again: impl Fn() -> bool) -> bool {
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
                    tokio::time::sleep(asked.max(BACKOFF.pause(attempt))).await;
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
        // The body is not read: a partial rejection is not retried.
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
            again_after: busy.then(|| retry_after(&response).unwrap_or_default().min(BACKOFF.most)),
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

/// An error with its causes, in which reqwest has the details.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
