//! Formats the registry as text for Prometheus. Names are derived from OpenTelemetry's by its specification
//! (compatibility/prometheus_and_openmetrics): `toolwright.tool.duration` in `s` is `toolwright_tool_duration_seconds`.

use std::fmt::Write as _;

use crate::instruments::{Family, Histogram, Instrument, Kind, Point};
use crate::metrics::Metrics;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus' own, version 0.0.4.
    Prometheus,
    /// `OpenMetrics`, version 1.0.0.
    OpenMetrics,
}

impl TextFormat {
    /// The format that an `Accept` header prefers; Prometheus' own if in doubt.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let (mut plain, mut open) = (0.0_f32, 0.0_f32);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0);
            match kind.as_str() {
                "application/openmetrics-text" => open = open.max(quality),
                "text/plain" | "text/*" => plain = plain.max(quality),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Its `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Metrics {
    /// All metrics as text, with `target_info` for the resource (`service.name` and the like).
    #[must_use]
    pub fn text(&self, format: TextFormat, target: &[(String, String)]) -> String {
        let mut out = Exposition { format, out: String::with_capacity(16 << 10) };
        out.target(target);
        for family in self.families() {
            out.family(&family);
        }
        if format == TextFormat::OpenMetrics {
            out.out.push_str("# EOF\n");
        }
        out.out
    }
}

struct Exposition {
    format: TextFormat,
    out: String,
}

impl Exposition {
    fn target(&mut self, target: &[(String, String)]) {
        let (name, kind) = match self.format {
            TextFormat::Prometheus => ("target_info", "gauge"),
            TextFormat::OpenMetrics => ("target", "info"),
        };
        self.head(name, kind, "", "What this is about.");
        let labels: Vec<_> = target.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        self.sample("target_info", "", &labels, "1");
    }

    fn family(&mut self, family: &Family) {
        let instrument = family.instrument();
        let name = family_name(instrument);
        let (kind, total) = match instrument.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram(_) => ("histogram", ""),
        };
        let unit = unit_suffix(instrument.unit);
        match self.format {
            // This format describes the sample, OpenMetrics the family.
            TextFormat::Prometheus => self.head(&format!("{name}{total}"), kind, unit, instrument.help),
            TextFormat::OpenMetrics => self.head(&name, kind, unit, instrument.help),
        }
        for (labels, point) in family.series() {
            match (point, instrument.kind) {
                (Point::Histogram(histogram), Kind::Histogram(bounds)) => {
                    self.histogram(&name, &labels, histogram, bounds);
                }
                (Point::Number(number), _) => self.sample(&name, total, &labels, &number.to_string()),
                (Point::Histogram(_), _) => {}
            }
        }
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram, bounds: &[f64]) {
        let mut below = 0;
        let bounds = bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        for (bound, values) in bounds.zip(&histogram.buckets) {
            below += values;
            let labels = [labels, &[("le", &bound)]].concat();
            self.sample(name, "_bucket", &labels, &below.to_string());
        }
        self.sample(name, "_sum", labels, &format!("{:?}", histogram.sum));
        self.sample(name, "_count", labels, &histogram.count.to_string());
    }

    fn head(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        if self.format == TextFormat::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    fn sample(&mut self, name: &str, suffix: &str, labels: &[(&str, &str)], value: &str) {
        self.out.push_str(name);
        self.out.push_str(suffix);
        let mut before = '{';
        for (key, value) in labels {
            let value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
            let _ = write!(self.out, "{before}{}=\"{value}\"", legal(key));
            before = ',';
        }
        let end = if before == ',' { "}" } else { "" };
        let _ = writeln!(self.out, "{end} {value}");
    }
}

/// The name of a family, unit included.
fn family_name(instrument: &Instrument) -> String {
    let (name, unit) = (legal(instrument.name), unit_suffix(instrument.unit));
    if unit.is_empty() { name } else { format!("{name}_{unit}") }
}

/// Suffix of a unit; annotations in braces have none.
fn unit_suffix(unit: &'static str) -> &'static str {
    match unit {
        "s" => "seconds",
        "By" => "bytes",
        _ => "",
    }
}

/// Letters, digits and `_` alone, and no digit first.
fn legal(name: &str) -> String {
    let first = name.starts_with(|c: char| c.is_ascii_digit()).then_some('_');
    let rest = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    first.into_iter().chain(rest).collect()
}
