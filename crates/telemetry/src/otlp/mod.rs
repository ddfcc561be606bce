//! Spans and metrics to an OpenTelemetry receiver: OTLP over HTTP, as protobuf
//! (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>).
//!
//! The messages are OpenTelemetry's own crate; batches and requests are made here. Its exporter would take metrics from
//! its own instruments alone, and the registry is one for `/metrics` and this.

mod encode;
mod send;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout_at};
use toolwright_core::cancel::{Cancel, CancelCause};
use url::Url;

use crate::metrics::Metrics;
use crate::spans::Span;
use encode::Origin;
use send::Sender;

/// Spans that may wait to be sent. There is no room for more.
pub const SPAN_QUEUE: usize = 2048;
/// Spans in one request.
const MAX_BATCH: usize = 512;

/// What is sent where.
#[derive(Debug, Clone)]
pub struct OtlpOptions {
    /// Who takes spans; nobody if `None`.
    pub traces: Option<Receiver>,
    /// Who takes metrics; nobody if `None`.
    pub metrics: Option<Receiver>,
    /// What spans and metrics are of: `service.name` and the like.
    pub resource: Vec<(String, String)>,
    /// Limit of one request.
    pub timeout: Duration,
    /// How long a span waits for others, to go with them.
    pub span_interval: Duration,
    /// How often metrics are sent.
    pub metric_interval: Duration,
}

impl OtlpOptions {
    /// Nothing is sent yet; times are OpenTelemetry's defaults: 10 s, 5 s and 60 s.
    #[must_use]
    pub fn new(resource: Vec<(String, String)>) -> Self {
        Self {
            traces: None,
            metrics: None,
            resource,
            timeout: Duration::from_secs(10),
            span_interval: Duration::from_secs(5),
            metric_interval: Duration::from_secs(60),
        }
    }
}

/// Who takes spans or metrics.
#[derive(Clone, PartialEq, Eq)]
pub struct Receiver {
    /// The whole address, like `http://localhost:4318/v1/traces`.
    pub url: Url,
    /// Headers of each request. Their values are never shown.
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Receiver").field("url", &send::shown(&self.url)).field("headers", &names).finish()
    }
}

/// Why nothing can be sent.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// A header that HTTP does not have.
    #[error(
        "`{0}` is no header that can be sent; use letters, digits and `-` in its name and no line break in its value"
    )]
    Header(String),
    /// The client cannot be built.
    #[error("the HTTP client for telemetry cannot be built: {0}")]
    Client(#[source] reqwest::Error),
}

/// Sends spans and metrics on until nobody gives spans any more, then what is left, once.
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

    /// Sends. A receiver that fails or hangs costs what it should have got, and holds up nobody else.
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
            let until = Instant::now() + self.span_interval;
            while batch.len() < MAX_BATCH {
                let room = MAX_BATCH - batch.len();
                match timeout_at(until, spans.recv_many(&mut batch, room)).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => break,
                }
            }
            let Some(sender) = &self.traces else {
                batch.clear();
                continue;
            };
            let count = batch.len() as u64;
            let request = self.origin.spans(batch.drain(..)).encode_to_vec();
            // Who shuts down waits.
            let again = !spans.is_closed();
            if !sender.send(request.into(), again).await {
                self.metrics.spans_lost("failed", count);
            }
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
            let request = self.origin.metrics(&self.metrics, SystemTime::now()).encode_to_vec();
            // What is counted now is counted the next time too.
            sender.send(request.into(), false).await;
        }
    }
}
