//! Writes spans and metrics as messages of OTLP, with the resource that they describe. The numbers of fields are those of
//! <https://github.com/open-telemetry/opentelemetry-proto>.

use std::time::SystemTime;

use crate::instruments::{Family, Histogram, Kind, Point};
use crate::metrics::Metrics;
use crate::protobuf::Message;
use crate::spans::{Attribute, Span, SpanKind, Value};

/// The resource and scope of spans and metrics.
#[derive(Debug)]
pub(super) struct Origin {
    /// An encoded `Resource`.
    resource: Vec<u8>,
    /// An encoded `InstrumentationScope`.
    scope: Vec<u8>,
}

impl Origin {
    pub(super) fn new(attributes: &[(String, String)]) -> Self {
        let (mut resource, mut scope) = (Message::default(), Message::default());
        for (key, value) in attributes {
            label(&mut resource, 1, key, value);
        }
        scope.bytes(1, b"toolwright");
        scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
        Self { resource: resource.into_bytes(), scope: scope.into_bytes() }
    }

    /// Returns an encoded `ExportTraceServiceRequest` with these spans.
    pub(super) fn spans(&self, spans: &[Span]) -> Vec<u8> {
        self.request(spans.len() * USUAL_SPAN, |scope_spans| {
            spans.iter().for_each(|span| scope_spans.message(2, |message| write_span(message, span)));
        })
    }

    /// Returns an encoded `ExportMetricsServiceRequest` with all metrics at `now`, cumulative since the start.
    pub(super) fn metrics(&self, counted: &Metrics, now: SystemTime) -> Vec<u8> {
        let times = (nanos(counted.since()), nanos(now));
        self.request(0, |scope_metrics| {
            let families = counted.families();
            families.iter().for_each(|family| scope_metrics.message(2, |message| write_metric(message, family, times)));
        })
    }

    /// Returns a request with one resource and one scope. Both kinds of requests have this form.
    fn request(&self, usual: usize, write: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut request = Message::with_capacity(usual + self.resource.len() + self.scope.len());
        request.message(1, |of_resource| {
            of_resource.bytes(1, &self.resource);
            of_resource.message(2, |of_scope| {
                of_scope.bytes(1, &self.scope);
                write(of_scope);
            });
        });
        request.into_bytes()
    }
}

/// Usual bytes of a span, so that the buffer seldom grows.
const USUAL_SPAN: usize = 768;

/// Writes a `Span`.
fn write_span(out: &mut Message, span: &Span) {
    /// The flag of a sampled span, as in `traceparent`.
    const SAMPLED: u32 = 1;
    const STATUS_ERROR: u64 = 2;
    out.bytes(1, &span.trace.get().to_be_bytes());
    out.bytes(2, &span.id.get().to_be_bytes());
    if let Some(parent) = span.parent {
        out.bytes(4, &parent.get().to_be_bytes());
    }
    out.bytes(5, span.name.as_bytes());
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Client => 3,
    };
    out.number(6, kind);
    out.fixed64(7, nanos(span.start));
    out.fixed64(8, nanos(span.end));
    for Attribute { key, value } in &span.attributes {
        write_attribute(out, 9, key, |any| write_value(any, value));
    }
    if let Some(failure) = &span.failure {
        out.message(15, |status| {
            if !failure.is_empty() {
                status.bytes(2, failure.as_bytes());
            }
            status.number(3, STATUS_ERROR);
        });
    }
    out.fixed32(16, SAMPLED);
}

/// Writes a `KeyValue` whose value `write` fills.
fn write_attribute(out: &mut Message, number: u32, key: &str, write: impl FnOnce(&mut Message)) {
    out.message(number, |attribute| {
        attribute.bytes(1, key.as_bytes());
        attribute.message(2, write);
    });
}

fn label(out: &mut Message, number: u32, key: &str, value: &str) {
    write_attribute(out, number, key, |any| any.bytes(1, value.as_bytes()));
}

/// Writes an `AnyValue`.
fn write_value(any: &mut Message, value: &Value) {
    match value {
        Value::Text(text) => any.bytes(1, text.as_bytes()),
        Value::Flag(flag) => any.number(2, u64::from(*flag)),
        Value::Number(number) => any.number(3, number.cast_unsigned()),
        Value::Texts(texts) => any.message(5, |array| {
            texts.iter().for_each(|text| array.message(1, |any| any.bytes(1, text.as_bytes())));
        }),
    }
}

/// Writes a `Metric` of the times `since` and `now`.
fn write_metric(out: &mut Message, family: &Family, times: (u64, u64)) {
    const CUMULATIVE: u64 = 2;
    let instrument = family.instrument();
    out.bytes(1, instrument.name.as_bytes());
    out.bytes(2, instrument.help.as_bytes());
    out.bytes(3, instrument.unit.as_bytes());
    let (number, bounds): (_, &[f64]) = match instrument.kind {
        Kind::Counter | Kind::Gauge => (7, &[]),
        Kind::Histogram(bounds) => (9, bounds),
    };
    out.message(number, |data| {
        for (labels, point) in family.series() {
            data.message(1, |message| match point {
                Point::Number(number) => write_number(message, &labels, *number, times),
                Point::Histogram(histogram) => write_histogram(message, &labels, histogram, bounds, times),
            });
        }
        data.number(2, CUMULATIVE);
        if instrument.kind == Kind::Counter {
            data.number(3, 1);
        }
    });
}

/// Writes a `NumberDataPoint`.
fn write_number(point: &mut Message, labels: &[(&str, &str)], value: i64, (since, now): (u64, u64)) {
    point.fixed64(2, since);
    point.fixed64(3, now);
    point.fixed64(6, value.cast_unsigned());
    labels.iter().for_each(|(key, value)| label(point, 7, key, value));
}

/// Writes a `HistogramDataPoint`.
fn write_histogram(
    point: &mut Message,
    labels: &[(&str, &str)],
    histogram: &Histogram,
    bounds: &[f64],
    (since, now): (u64, u64),
) {
    point.fixed64(2, since);
    point.fixed64(3, now);
    point.fixed64(4, histogram.count);
    point.fixed64(5, histogram.sum.to_bits());
    point.packed64(6, histogram.buckets.iter().copied());
    point.packed64(7, bounds.iter().map(|bound| bound.to_bits()));
    labels.iter().for_each(|(key, value)| label(point, 9, key, value));
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
