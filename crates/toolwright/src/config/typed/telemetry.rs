//! `telemetry`: spans and metrics for others.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use toolwright_core::setting::Written;

/// `telemetry`. What is not given is as the environment variables of OpenTelemetry say (`OTEL_SERVICE_NAME`,
/// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_*`, `OTEL_TRACES_SAMPLER`); `OTEL_SDK_DISABLED=true` sends nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySection {
    /// Base address of an OpenTelemetry receiver that takes OTLP over HTTP, like `http://localhost:4318`: spans go to
    /// `/v1/traces` there, metrics to `/v1/metrics`. Nothing is sent where neither this nor
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` says where to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Headers of each request to it, keys best as `${VAR}`.
    pub headers: IndexMap<String, Written>,
    /// What this program is called there; `toolwright` if nothing else names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// Whether spans are sent.
    pub traces: bool,
    /// Whether metrics are sent. `/metrics` of `toolwright serve` has them in any case.
    pub metrics: bool,
    /// Whether spans carry arguments and error messages, redacted.
    pub content: bool,
    /// The share of traces that is sent, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_ratio: Option<f64>,
}

impl Default for TelemetrySection {
    fn default() -> Self {
        Self {
            endpoint: None,
            headers: IndexMap::new(),
            service_name: None,
            traces: true,
            metrics: true,
            content: false,
            sample_ratio: None,
        }
    }
}
