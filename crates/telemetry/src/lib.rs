//! Telemetry: spans and metrics from events, by the OpenTelemetry semantic conventions for generative AI and MCP
//! (<https://github.com/open-telemetry/semantic-conventions-genai>, all of which is still `Development`).
//!
//! [`Spans`] makes spans of events and [`Metrics`] counts them; both are pure but for the time they are told.
//! [`Observer`] feeds them from the event hub. It never holds anybody up: where it cannot keep up it loses events, and
//! counts them. [`Metrics::text`] is what Prometheus scrapes; with the feature `otlp`, `otlp::Exporter` sends both on.

mod metrics;
mod observer;
pub mod otlp;
mod prometheus;
mod semconv;
mod spans;

pub use metrics::{Family, Histogram, Instrument, Kind, Metrics, Point};
pub use observer::Observer;
pub use prometheus::TextFormat;
pub use spans::{Attribute, Content, Span, SpanKind, SpanOptions, Spans, Value};
