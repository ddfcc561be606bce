//! Telemetry: spans and metrics from events, by the OpenTelemetry semantic conventions for generative AI and MCP
//! (<https://github.com/open-telemetry/semantic-conventions-genai>, all of which is still `Development`).
//!
//! [`Spans`] builds spans from events and [`Metrics`] counts them. Both are pure; they receive the time as an argument.
//! [`Observer`] feeds them from the event hub. It never blocks a caller: if it cannot keep up, it drops events and
//! counts them. Prometheus scrapes [`Metrics::text`]; with the feature `otlp`, `otlp::Exporter` sends both.

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
