//! Telemetry configuration, combined with OpenTelemetry's environment variables
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>,
//! <https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).

use std::time::Duration;

use indexmap::IndexMap;
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::setting::LiteralText;
use url::Url;

use crate::otlp::{OtlpOptions, Receiver};
use crate::spans::{Content, SpanOptions};

/// `telemetry`. What is not given is as the environment variables of OpenTelemetry say (`OTEL_SERVICE_NAME`,
/// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_*`, `OTEL_TRACES_SAMPLER`); `OTEL_SDK_DISABLED=true` sends nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Base address of an OpenTelemetry receiver that takes OTLP over HTTP, like `http://localhost:4318`: spans go to
    /// `/v1/traces` there, metrics to `/v1/metrics`. Nothing is sent if neither this nor `OTEL_EXPORTER_OTLP_ENDPOINT`
    /// is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-variables" = "setting"))]
    pub endpoint: Option<String>,
    /// Headers of each request to it, keys best as `${VAR}`.
    #[schemars(with = "IndexMap<String, LiteralText>", extend("x-variables" = "own_pair"))]
    pub headers: IndexMap<String, String>,
    /// The service name of this program; `toolwright` if nothing else sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-variables" = "setting"))]
    pub service_name: Option<String>,
    /// Whether spans are sent.
    pub traces: bool,
    /// Whether metrics are sent. `/metrics` of `toolwright serve` has them in any case.
    pub metrics: bool,
    /// Whether spans carry arguments and error messages, redacted.
    pub content: bool,
    /// Share of traces that is sent, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_ratio: Option<f64>,
}

impl Default for TelemetryConfig {
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

/// Resolved telemetry settings.
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// Receivers and intervals; nothing is sent if neither traces nor metrics have a receiver.
    pub otlp: OtlpOptions,
    /// Options of spans.
    pub spans: SpanOptions,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { otlp: OtlpOptions::new(Vec::new()), spans: SpanOptions::default() }
    }
}

impl Telemetry {
    /// Whether anything is exported.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.otlp.traces.is_some() || self.otlp.metrics.is_some()
    }
}

/// A resolved configuration.
#[derive(Debug, Default)]
pub struct ResolvedTelemetry {
    /// The settings.
    pub telemetry: Telemetry,
    /// Settings that cannot be used.
    pub faults: Vec<TelemetryFault>,
    /// Values that may hold keys of receivers.
    pub secrets: Vec<String>,
    /// Variables that hold such keys.
    pub key_variables: Vec<String>,
}

/// A setting or environment variable that cannot be used.
#[derive(Debug)]
pub struct TelemetryFault {
    /// The setting or variable.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
    /// The remedy.
    pub remedy: &'static str,
    /// Whether nothing is exported because of it.
    pub leaves_out: bool,
}

impl TelemetryConfig {
    /// Combines the configuration with the environment's `variables`.
    #[must_use]
    pub fn resolve(&self, variables: &dyn Fn(&str) -> Option<String>) -> ResolvedTelemetry {
        let mut resolver = Resolver { config: self, variables, resolved: ResolvedTelemetry::default() };
        resolver.resolved.telemetry = resolver.telemetry();
        resolver.resolved
    }
}

struct Resolver<'a> {
    config: &'a TelemetryConfig,
    variables: &'a dyn Fn(&str) -> Option<String>,
    resolved: ResolvedTelemetry,
}

impl Resolver<'_> {
    fn telemetry(&mut self) -> Telemetry {
        let config = self.config;
        let mut otlp = OtlpOptions::new(self.resource());
        if let Some(ms) = self.number("OTEL_EXPORTER_OTLP_TIMEOUT").filter(|ms| *ms >= 1.0) {
            otlp.timeout = Duration::from_secs_f64((ms / 1000.0).min(600.0));
        }
        if !self.is("OTEL_SDK_DISABLED", "true") {
            if config.traces && !self.is("OTEL_TRACES_EXPORTER", "none") {
                otlp.traces = self.receiver(Signal::Traces);
            }
            if config.metrics && !self.is("OTEL_METRICS_EXPORTER", "none") {
                otlp.metrics = self.receiver(Signal::Metrics);
            }
        }
        let spans = SpanOptions {
            content: if config.content { Content::Recorded } else { Content::Omitted },
            sample_ratio: match config.sample_ratio {
                _ if otlp.traces.is_none() => 0.0,
                Some(ratio) => ratio,
                None => self.sampler(),
            },
            ..SpanOptions::default()
        };
        Telemetry { otlp, spans }
    }

    fn receiver(&mut self, signal: Signal) -> Option<Receiver> {
        let below = |base: &str| format!("{}{}", base.trim_end_matches('/'), signal.path());
        // An unset variable with an empty default leaves an empty text.
        let (address, from) = match self.config.endpoint.as_ref().filter(|base| !base.is_empty()) {
            Some(base) => (below(base), "telemetry.endpoint".to_owned()),
            None => match self.variable(&signal.variable("ENDPOINT")) {
                Some(whole) => (whole, signal.variable("ENDPOINT")),
                None => {
                    let general = "OTEL_EXPORTER_OTLP_ENDPOINT";
                    (below(&self.variable(general)?), general.to_owned())
                }
            },
        };
        let url = match Url::parse(&address) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => url,
            _ => {
                let message = "it is not an http:// or https:// address".to_owned();
                let remedy = "write http://localhost:4318";
                self.resolved.faults.push(TelemetryFault { field: from, message, remedy, leaves_out: true });
                return None;
            }
        };
        for name in [signal.variable("PROTOCOL"), "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned()] {
            if let Some(protocol) = self.variable(&name).filter(|protocol| protocol != "http/protobuf") {
                let message =
                    format!("{name} asks for {protocol}, which this program does not speak: it sends http/protobuf");
                self.warn(message, "give the receiver's address for OTLP over HTTP, mostly on port 4318");
                break;
            }
        }
        let mut headers: Vec<(String, String)> = Vec::new();
        for name in ["OTEL_EXPORTER_OTLP_HEADERS".to_owned(), signal.variable("HEADERS")] {
            let given = self.pairs(&name);
            if !given.is_empty() {
                self.resolved.key_variables.push(name);
            }
            given.into_iter().for_each(|(key, value)| put(&mut headers, key, value));
        }
        for (key, value) in &self.config.headers {
            put(&mut headers, key.clone(), value.clone());
        }
        self.resolved.secrets.extend(headers.iter().map(|(_, value)| value.clone()));
        self.resolved.secrets.extend(url.password().map(ToOwned::to_owned));
        Some(Receiver { url, headers })
    }

    /// Attributes that describe this program to the receiver.
    fn resource(&mut self) -> Vec<(String, String)> {
        let mut resource = vec![
            ("service.name".to_owned(), "toolwright".to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ];
        for (key, value) in self.pairs("OTEL_RESOURCE_ATTRIBUTES") {
            put(&mut resource, key, value);
        }
        let name = self.config.service_name.clone().filter(|name| !name.is_empty());
        if let Some(name) = name.or_else(|| self.variable("OTEL_SERVICE_NAME")) {
            put(&mut resource, "service.name".to_owned(), name);
        }
        resource
    }

    fn sampler(&mut self) -> f64 {
        match self.variable("OTEL_TRACES_SAMPLER").as_deref() {
            Some("always_off" | "parentbased_always_off") => 0.0,
            Some("traceidratio" | "parentbased_traceidratio") => {
                self.number("OTEL_TRACES_SAMPLER_ARG").unwrap_or(1.0).clamp(0.0, 1.0)
            }
            _ => 1.0,
        }
    }

    /// An empty variable counts as not set.
    fn variable(&self, name: &str) -> Option<String> {
        (self.variables)(name).filter(|value| !value.trim().is_empty())
    }

    fn is(&self, name: &str, word: &str) -> bool {
        self.variable(name).is_some_and(|value| value.trim().eq_ignore_ascii_case(word))
    }

    fn number(&mut self, name: &str) -> Option<f64> {
        let value = self.variable(name)?;
        let number = value.trim().parse::<f64>().ok().filter(|number| number.is_finite());
        if number.is_none() {
            self.warn(format!("{name} is not a number: it has no effect"), "write digits");
        }
        number
    }

    /// Parses `key=value,key=value`, values percent-encoded. Malformed pairs are skipped.
    fn pairs(&mut self, name: &str) -> Vec<(String, String)> {
        let Some(text) = self.variable(name) else { return Vec::new() };
        let mut pairs = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let decoded = |text: &str| percent_decode_str(text.trim()).decode_utf8().map(String::from);
            match pair.split_once('=').map(|(key, value)| (key.trim(), decoded(value))) {
                Some((key, Ok(value))) if !key.is_empty() => pairs.push((key.to_owned(), value)),
                // The text is not shown: it may be part of a key.
                _ => self
                    .warn(format!("{name} has a part that is not a pair: it is left out"), "write key=value,key=value"),
            }
        }
        pairs
    }

    fn warn(&mut self, message: String, remedy: &'static str) {
        self.resolved.faults.push(TelemetryFault { field: "telemetry".to_owned(), message, remedy, leaves_out: false });
    }
}

/// Kind of exported data.
#[derive(Clone, Copy)]
enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    /// Name of the variable `OTEL_EXPORTER_OTLP_{signal}_{what}`.
    fn variable(self, what: &str) -> String {
        let name = match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
        };
        format!("OTEL_EXPORTER_OTLP_{name}_{what}")
    }

    fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }
}

/// Replaces a pair of the same name, or appends it.
fn put(pairs: &mut Vec<(String, String)>, key: String, value: String) {
    match pairs.iter_mut().find(|(have, _)| have.eq_ignore_ascii_case(&key)) {
        Some((_, old)) => *old = value,
        None => pairs.push((key, value)),
    }
}
