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
mod semconv;
mod spans;

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, mpsc};
use toolwright_core::cancel::Cancel;
use toolwright_core::event::Event;

pub use config::{Fault, Resolved, Telemetry, TelemetryConfig};
pub use instruments::{Family, Histogram, Instrument, Kind, Point};
pub use metrics::Metrics;
pub use prometheus::TextFormat;
use spans::BATCH_WINDOW;
pub use spans::{Attribute, Content, Span, SpanKind, SpanOptions, Spans, Value};

/// Feeds metrics, and spans where somebody takes them, from events. It waits for nobody but events: where it lags behind
/// or the taker of spans does, something is lost and counted, and that is all.
#[derive(Debug)]
pub struct Observer {
    metrics: Arc<Metrics>,
    spans: Option<(Spans, mpsc::Sender<Span>)>,
    ended: Vec<Span>,
}

impl Observer {
    /// An observer that counts.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, spans: None, ended: Vec::new() }
    }

    /// Makes spans too, and gives each that has ended to `taker`, or drops it when that is full.
    #[must_use]
    pub fn with_spans(mut self, spans: Spans, taker: mpsc::Sender<Span>) -> Self {
        self.spans = Some((spans, taker));
        self
    }

    /// Observes until `stop` or the end of events. What was sent before is taken still; then what is under way is
    /// given as it is, and the taker is let go.
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
        self.give();
    }

    /// Takes what is there. Whatever else happens meanwhile is not waited for.
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
        self.give();
    }

    fn give(&mut self) {
        let Some((_, taker)) = &self.spans else { return };
        let dropped = self.ended.drain(..).filter_map(|span| taker.try_send(span).err()).count();
        if dropped > 0 {
            self.metrics.spans_lost("dropped", dropped as u64);
        }
    }
}
