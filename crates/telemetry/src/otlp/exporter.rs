//! Sends batches of spans and metric readings to their receivers.

use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use toolwright_core::cancel::{Cancel, CancelCause};

use super::encode::Origin;
use super::send::Sender;
use super::{OtlpOptions, Receiver};
use crate::metrics::Metrics;
use crate::spans::Span;

/// Spans that may wait to be sent. There is no room for more.
pub const SPAN_QUEUE: usize = 2048;
/// Spans in one request.
const MAX_BATCH: usize = 512;

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
        let mut batch = self.origin.spans();
        let mut came = Vec::with_capacity(MAX_BATCH);
        while spans.recv_many(&mut came, MAX_BATCH).await > 0 {
            let over = sleep(self.span_interval);
            tokio::pin!(over);
            loop {
                for span in came.drain(..).filter(|_| self.traces.is_some()) {
                    batch.add(&span);
                }
                let room = MAX_BATCH.saturating_sub(batch.len());
                if room == 0 {
                    break;
                }
                // One timer for all of a batch: they come a few at a time.
                tokio::select! {
                    biased;
                    count = spans.recv_many(&mut came, room) => if count == 0 { break },
                    () = &mut over => break,
                }
            }
            let Some(sender) = &self.traces else { continue };
            let mut count = batch.len() as u64;
            let request = batch.request();
            // Who shuts down waits: then nothing is sent twice, and nothing more to one who does not take it.
            if sender.send(request, || !spans.is_closed()).await {
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
            let request = self.origin.metrics(&self.metrics, SystemTime::now()).encode_to_vec();
            // What is counted now is counted the next time too.
            sender.send(request.into(), || false).await;
        }
    }
}
