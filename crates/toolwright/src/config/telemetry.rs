//! From written settings of telemetry, and OpenTelemetry's environment variables, to what is sent where
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>,
//! <https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).

use std::time::Duration;

use percent_encoding::percent_decode_str;
use toolwright_telemetry::otlp::{OtlpOptions, Receiver};
use toolwright_telemetry::{Content, SpanOptions};
use url::Url;

use super::fill::{Holds, Scope};
use super::problem::{At, Problem, Severity};
use super::secrets::without_scheme;
use super::typed::{TelemetrySection, Written};

/// What the operator's tools are told.
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// What is sent where; nothing, where neither traces nor metrics have a receiver.
    pub otlp: OtlpOptions,
    /// What spans are made of.
    pub spans: SpanOptions,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { otlp: OtlpOptions::new(Vec::new()), spans: SpanOptions::default() }
    }
}

impl Telemetry {
    /// Whether anything is sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.otlp.traces.is_some() || self.otlp.metrics.is_some()
    }
}

/// Resolves the section; `at` is where it stands. What cannot be used is left out, with the reason among the problems.
pub(crate) fn telemetry(written: &TelemetrySection, at: &At, scope: &mut Scope<'_>) -> Telemetry {
    let mut section = written.clone();
    let before = scope.problems.len();
    for (key, text) in [("endpoint", &mut section.endpoint), ("service_name", &mut section.service_name)] {
        // An empty text is what an unset variable with an empty default leaves.
        if let Some(given) = text {
            scope.fill(at, &format!("telemetry.{key}"), given, Holds::Setting);
            text.take_if(|given| given.is_empty());
        }
    }
    for (name, Written(value)) in &mut section.headers {
        scope.fill(at, &format!("telemetry.headers.{name}"), value, Holds::OwnKey(name));
    }
    let broken = scope.problems.len() > before;
    let mut otlp = OtlpOptions::new(resource(section.service_name.take(), at, scope));
    if let Some(ms) = number(scope, "OTEL_EXPORTER_OTLP_TIMEOUT", at).filter(|ms| *ms >= 1.0) {
        otlp.timeout = Duration::from_secs_f64((ms / 1000.0).min(600.0));
    }
    if !broken && !is(scope, "OTEL_SDK_DISABLED", "true") {
        let receiver = |scope: &mut Scope<'_>, wanted: bool, signal| match wanted {
            true => receiver(&section, signal, at, scope),
            false => None,
        };
        let traces = section.traces && !is(scope, "OTEL_TRACES_EXPORTER", "none");
        let metrics = section.metrics && !is(scope, "OTEL_METRICS_EXPORTER", "none");
        otlp.traces = receiver(scope, traces, Signal::Traces);
        otlp.metrics = receiver(scope, metrics, Signal::Metrics);
    }
    let spans = SpanOptions {
        content: if section.content { Content::Recorded } else { Content::Omitted },
        sample_ratio: match section.sample_ratio {
            _ if otlp.traces.is_none() => 0.0,
            Some(ratio) => ratio,
            None => sampler(scope, at),
        },
        ..SpanOptions::default()
    };
    let telemetry = Telemetry { otlp, spans };
    if telemetry.is_sent() && cfg!(not(feature = "telemetry")) {
        let message = "this program was built without the feature `telemetry`: nothing is sent".to_owned();
        warn(scope, at, message, "build it with `cargo build --release -p toolwright-cli --features telemetry`");
    }
    telemetry
}

/// What is sent apart from the rest.
#[derive(Clone, Copy)]
enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    /// `OTEL_EXPORTER_OTLP_{its name}_{what}`.
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

fn receiver(section: &TelemetrySection, signal: Signal, at: &At, scope: &mut Scope<'_>) -> Option<Receiver> {
    let below = |base: &str| format!("{}{}", base.trim_end_matches('/'), signal.path());
    let general = || variable(scope, "OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| below(&base));
    let (address, from) = match &section.endpoint {
        Some(base) => (below(base), "telemetry.endpoint".to_owned()),
        None => match variable(scope, &signal.variable("ENDPOINT")) {
            Some(whole) => (whole, signal.variable("ENDPOINT")),
            None => (general()?, "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned()),
        },
    };
    let url = match Url::parse(&address) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => url,
        _ => {
            scope.leave_out(
                at,
                &from,
                "it is not an http:// or https:// address".into(),
                "write http://localhost:4318",
            );
            return None;
        }
    };
    for name in [signal.variable("PROTOCOL"), "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned()] {
        if let Some(protocol) = variable(scope, &name).filter(|protocol| protocol != "http/protobuf") {
            let message =
                format!("{name} asks for {protocol}, which this program does not speak: it sends http/protobuf");
            warn(scope, at, message, "give the receiver's address for OTLP over HTTP, mostly on port 4318");
            break;
        }
    }
    let mut headers: Vec<(String, String)> = Vec::new();
    for name in ["OTEL_EXPORTER_OTLP_HEADERS".to_owned(), signal.variable("HEADERS")] {
        let given = pairs(&name, at, scope);
        if !given.is_empty() {
            // What goes to our receiver is not for children.
            scope.key_variables.push(name);
        }
        given.into_iter().for_each(|(key, value)| put(&mut headers, key, value));
    }
    for (key, Written(value)) in &section.headers {
        put(&mut headers, key.clone(), value.clone());
    }
    // Receivers have keys of any name.
    let keys = headers.iter().map(|(_, value)| without_scheme(value)).chain(url.password());
    scope.secrets.extend(keys.filter(|key| !key.is_empty()).map(ToOwned::to_owned));
    Some(Receiver { url, headers })
}

/// What this program is to the receiver.
fn resource(service_name: Option<String>, at: &At, scope: &mut Scope<'_>) -> Vec<(String, String)> {
    let mut resource = vec![
        ("service.name".to_owned(), "toolwright".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ];
    for (key, value) in pairs("OTEL_RESOURCE_ATTRIBUTES", at, scope) {
        put(&mut resource, key, value);
    }
    if let Some(name) = service_name.or_else(|| variable(scope, "OTEL_SERVICE_NAME")) {
        put(&mut resource, "service.name".to_owned(), name);
    }
    resource
}

fn sampler(scope: &mut Scope<'_>, at: &At) -> f64 {
    match variable(scope, "OTEL_TRACES_SAMPLER").as_deref() {
        Some("always_off" | "parentbased_always_off") => 0.0,
        Some("traceidratio" | "parentbased_traceidratio") => {
            number(scope, "OTEL_TRACES_SAMPLER_ARG", at).unwrap_or(1.0).clamp(0.0, 1.0)
        }
        _ => 1.0,
    }
}

/// Puts a pair in the place of one of the same name, or at the end.
fn put(pairs: &mut Vec<(String, String)>, key: String, value: String) {
    match pairs.iter_mut().find(|(have, _)| have.eq_ignore_ascii_case(&key)) {
        Some((_, old)) => *old = value,
        None => pairs.push((key, value)),
    }
}

/// An empty variable counts as not set.
fn variable(scope: &Scope<'_>, name: &str) -> Option<String> {
    (scope.variables)(name).filter(|value| !value.trim().is_empty())
}

fn is(scope: &Scope<'_>, name: &str, word: &str) -> bool {
    variable(scope, name).is_some_and(|value| value.trim().eq_ignore_ascii_case(word))
}

fn number(scope: &mut Scope<'_>, name: &str, at: &At) -> Option<f64> {
    let value = variable(scope, name)?;
    let number = value.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    if number.is_none() {
        warn(scope, at, format!("{name} is not a number: it has no effect"), "write digits");
    }
    number
}

/// `key=value,key=value`, values percent-encoded. A pair that is none is left out.
fn pairs(name: &str, at: &At, scope: &mut Scope<'_>) -> Vec<(String, String)> {
    let Some(text) = variable(scope, name) else { return Vec::new() };
    let mut pairs = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let decoded = |text: &str| percent_decode_str(text.trim()).decode_utf8().map(String::from);
        match pair.split_once('=').map(|(key, value)| (key.trim(), decoded(value))) {
            Some((key, Ok(value))) if !key.is_empty() => pairs.push((key.to_owned(), value)),
            // Not shown: it may be a part of a key.
            _ => warn(
                scope,
                at,
                format!("{name} has a part that is no pair: it is left out"),
                "write key=value,key=value",
            ),
        }
    }
    pairs
}

fn warn(scope: &mut Scope<'_>, at: &At, message: String, remedy: &str) {
    scope.problems.push(Problem::new(Severity::Warning, at, "telemetry", message, remedy));
}
