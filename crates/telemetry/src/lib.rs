//! Telemetry: spans and metrics from events, by the OpenTelemetry semantic conventions for generative AI and MCP
//! (<https://github.com/open-telemetry/semantic-conventions-genai>, all of which is still `Development`).
//!
//! [`Spans`] builds spans from events and [`Metrics`] counts them. Both are pure; they receive the time as an argument.
//! [`Observer`] feeds them from the event hub. It never blocks a caller: if it cannot keep up, it drops events and
//! counts them. Prometheus scrapes [`Metrics::text`]; with the feature `otlp`, `otlp::Exporter` sends both.

mod config;
#[cfg(feature = "otlp")]
mod exporter;
mod instruments;
mod metrics;
pub mod otlp;
#[cfg(feature = "otlp")]
mod otlp_messages;
mod prometheus;
#[cfg(feature = "otlp")]
mod protobuf;
mod semconv;
mod spans;

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, mpsc};
use toolwright_core::cancel::Cancel;
use toolwright_core::event::Event;

pub use config::{ResolvedTelemetry, Telemetry, TelemetryConfig, TelemetryFault};
pub use instruments::{Family, Histogram, Instrument, Kind, Point};
pub use metrics::Metrics;
pub use prometheus::TextFormat;
use spans::BATCH_WINDOW;
pub use spans::{Attribute, Content, Span, SpanKind, SpanOptions, Spans, Value};

/// Feeds metrics, and optionally spans, from events. It never waits for a receiver: if it or the receiver of spans lags behind,
/// it drops events or spans and counts them.
#[derive(Debug)]
pub struct Observer {
    metrics: Arc<Metrics>,
    spans: Option<(Spans, mpsc::Sender<Span>)>,
    ended: Vec<Span>,
}

impl Observer {
    /// An observer that feeds metrics.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, spans: None, ended: Vec::new() }
    }

    /// Feeds spans too, and sends each that has ended to `receiver`, or drops it if that is full.
    #[must_use]
    pub fn with_spans(mut self, spans: Spans, receiver: mpsc::Sender<Span>) -> Self {
        self.spans = Some((spans, receiver));
        self
    }

    /// Observes until `stop` or the end of events. Then it reads the remaining events, ends open spans as
    /// unfinished, and closes the channel of spans.
    pub async fn run(mut self, mut events: broadcast::Receiver<Arc<Event>>, stop: Cancel) {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                _ = stop.cancelled() => break,
            };
            match event {
                Ok(event) => self.take(&event),
                Err(RecvError::Lagged(lost)) => self.metrics.lost(lost),
                Err(RecvError::Closed) => break,
            }
            self.take_waiting(&mut events);
            tokio::select! {
                () = tokio::time::sleep(BATCH_WINDOW) => {}
                _ = stop.cancelled() => break,
            }
        }
        self.take_waiting(&mut events);
        if let Some((spans, _)) = &mut self.spans {
            spans.close(SystemTime::now(), &mut self.ended);
        }
        self.send_ended();
    }

    /// Reads the available events.
    fn take_waiting(&mut self, events: &mut broadcast::Receiver<Arc<Event>>) {
        for _ in 0..events.len() {
            match events.try_recv() {
                Ok(event) => self.take(&event),
                Err(TryRecvError::Lagged(lost)) => self.metrics.lost(lost),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
    }

    fn take(&mut self, event: &Event) {
        self.metrics.observe(event);
        if let Some((spans, _)) = &mut self.spans {
            spans.observe(event, SystemTime::now(), &mut self.ended);
        }
        self.send_ended();
    }

    fn send_ended(&mut self) {
        let Some((_, receiver)) = &self.spans else { return };
        let dropped = self.ended.drain(..).filter_map(|span| receiver.try_send(span).err()).count();
        if dropped > 0 {
            self.metrics.spans_lost("dropped", dropped as u64);
        }
    }
}
