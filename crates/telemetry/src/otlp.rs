//! Spans and metrics to an OpenTelemetry receiver: OTLP over HTTP, as protobuf
//! (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>).
//!
//! OpenTelemetry's own exporter only supports its own instruments, while this registry also serves `/metrics`.

use std::fmt;
use std::time::Duration;

use url::Url;

#[cfg(feature = "otlp")]
pub use crate::exporter::{Exporter, OtlpError, SPAN_QUEUE};

/// Options for export.
#[derive(Debug, Clone)]
pub struct OtlpOptions {
    /// The receiver of spans, if any.
    pub traces: Option<Receiver>,
    /// The receiver of metrics, if any.
    pub metrics: Option<Receiver>,
    /// Resource attributes: `service.name` and the like.
    pub resource: Vec<(String, String)>,
    /// Timeout of one request.
    pub timeout: Duration,
    /// How long spans are batched before they are sent.
    pub span_interval: Duration,
    /// Interval of metric exports.
    pub metric_interval: Duration,
}

impl OtlpOptions {
    /// No receivers, and OpenTelemetry's default times: 10 s, 5 s and 60 s.
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

/// A receiver of spans or metrics.
#[derive(Clone, PartialEq, Eq)]
pub struct Receiver {
    /// The whole address, like `http://localhost:4318/v1/traces`.
    pub url: Url,
    /// Headers of each request. Their values are secret.
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Receiver").field("url", &shown(&self.url)).field("headers", &names).finish()
    }
}

/// Formats an address without user, password and query, which may be secret.
pub(crate) fn shown(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}
