//! Spans and metrics as the messages of OTLP, and the resource that both are of.

use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{self as metrics, AggregationTemporality};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1 as trace;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::instruments::{Family, Kind, Point};
use crate::metrics::Metrics;
use crate::spans::{Attribute, Span, SpanKind, Value};

/// The resource and scope of spans and metrics.
#[derive(Debug)]
pub(super) struct Origin {
    resource: Resource,
    scope: InstrumentationScope,
}

impl Origin {
    pub(super) fn new(resource: &[(String, String)]) -> Self {
        Self {
            resource: Resource {
                attributes: resource.iter().map(|(key, value)| text(key, value)).collect(),
                ..Resource::default()
            },
            scope: InstrumentationScope {
                name: "toolwright".into(),
                version: env!("CARGO_PKG_VERSION").into(),
                ..InstrumentationScope::default()
            },
        }
    }

    /// Returns an encoded `ExportTraceServiceRequest` with these spans.
    pub(super) fn spans(&self, spans: &[Span]) -> Vec<u8> {
        let mut scope_spans = Vec::with_capacity(spans.len() * USUAL_SPAN);
        put(&mut scope_spans, 1, &self.scope.encode_to_vec());
        let mut message = Vec::with_capacity(USUAL_SPAN);
        for span in spans {
            message.clear();
            span_message(span).encode_raw(&mut message);
            span.attributes.iter().for_each(|attribute| put_attribute(&mut message, attribute));
            put(&mut scope_spans, 2, &message);
        }
        let mut resource_spans = Vec::with_capacity(scope_spans.len() + USUAL_SPAN);
        put(&mut resource_spans, 1, &self.resource.encode_to_vec());
        put(&mut resource_spans, 2, &scope_spans);
        let mut request = Vec::with_capacity(resource_spans.len() + USUAL_SPAN);
        put(&mut request, 1, &resource_spans);
        request
    }

    /// All metrics at `now`, cumulative since the start.
    pub(super) fn metrics(&self, counted: &Metrics, now: SystemTime) -> ExportMetricsServiceRequest {
        let (since, now) = (nanos(counted.since()), nanos(now));
        let scope_metrics = metrics::ScopeMetrics {
            scope: Some(self.scope.clone()),
            metrics: counted.families().iter().map(|family| metric(family, since, now)).collect(),
            ..metrics::ScopeMetrics::default()
        };
        ExportMetricsServiceRequest {
            resource_metrics: vec![metrics::ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![scope_metrics],
                ..metrics::ResourceMetrics::default()
            }],
        }
    }
}

/// The flag of a sampled span, as in `traceparent`.
const SAMPLED: u32 = 1;

/// Usual bytes of a span, so that the buffer seldom grows.
const USUAL_SPAN: usize = 768;

/// Writes field `number` of a message: text, bytes or an encoded message.
fn put(out: &mut Vec<u8>, number: u8, content: &[u8]) {
    put_head(out, number, content.len());
    out.extend_from_slice(content);
}

/// Writes what comes before a field of this length.
fn put_head(out: &mut Vec<u8>, number: u8, length: usize) {
    const LENGTH_DELIMITED: u8 = 2;
    out.push(number << 3 | LENGTH_DELIMITED);
    encode_varint(length as u64, out);
}

/// Returns the length of a field with so many bytes of content.
fn field_len(content: usize) -> usize {
    1 + encoded_len_varint(content as u64) + content
}

/// Writes an attribute of a span. There are many, so a text is written from where it lies: as messages, the attributes of
/// a span would be copied, and measured at each level, which costs more than all else that is done for the span.
fn put_attribute(out: &mut Vec<u8>, Attribute { key, value }: &Attribute) {
    const ATTRIBUTES: u8 = 9;
    let text = |text: &String| AnyValue { value: Some(Any::StringValue(text.clone())) };
    let value = match value {
        Value::Text(text) => {
            let any = field_len(text.len());
            put_head(out, ATTRIBUTES, field_len(key.len()) + field_len(any));
            put(out, 1, key.as_bytes());
            put_head(out, 2, any);
            return put(out, 1, text.as_bytes());
        }
        Value::Texts(values) => Any::ArrayValue(ArrayValue { values: values.iter().map(text).collect() }),
        Value::Number(number) => Any::IntValue(*number),
        Value::Flag(flag) => Any::BoolValue(*flag),
    };
    let value = Some(AnyValue { value: Some(value) });
    let message = KeyValue { key: (*key).to_owned(), value, ..KeyValue::default() };
    put(out, ATTRIBUTES, &message.encode_to_vec());
}

/// Returns a span without its attributes.
fn span_message(span: &Span) -> trace::Span {
    let kind = match span.kind {
        SpanKind::Client => trace::span::SpanKind::Client,
        SpanKind::Internal => trace::span::SpanKind::Internal,
    };
    let status = |message: &String| trace::Status { message: message.clone(), code: StatusCode::Error.into() };
    trace::Span {
        trace_id: span.trace.get().to_be_bytes().to_vec(),
        span_id: span.id.get().to_be_bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.get().to_be_bytes().to_vec()).unwrap_or_default(),
        flags: SAMPLED,
        name: span.name.clone(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        status: span.failure.as_ref().map(status),
        ..trace::Span::default()
    }
}

fn metric(family: &Family, since: u64, now: u64) -> metrics::Metric {
    let instrument = family.instrument();
    let temporality = AggregationTemporality::Cumulative.into();
    let labels = |labels: Vec<(&str, &str)>| labels.into_iter().map(|(key, value)| text(key, value)).collect();
    let data = match instrument.kind {
        Kind::Counter | Kind::Gauge => {
            let points = family.series().filter_map(|(of, point)| match point {
                Point::Number(number) => Some(metrics::NumberDataPoint {
                    attributes: labels(of),
                    start_time_unix_nano: since,
                    time_unix_nano: now,
                    value: Some(Number::AsInt(*number)),
                    ..metrics::NumberDataPoint::default()
                }),
                Point::Histogram(_) => None,
            });
            Data::Sum(metrics::Sum {
                data_points: points.collect(),
                aggregation_temporality: temporality,
                is_monotonic: instrument.kind == Kind::Counter,
            })
        }
        Kind::Histogram(bounds) => {
            let points = family.series().filter_map(|(of, point)| match point {
                Point::Histogram(histogram) => Some(metrics::HistogramDataPoint {
                    attributes: labels(of),
                    start_time_unix_nano: since,
                    time_unix_nano: now,
                    count: histogram.count,
                    sum: Some(histogram.sum),
                    bucket_counts: histogram.buckets.clone(),
                    explicit_bounds: bounds.to_vec(),
                    ..metrics::HistogramDataPoint::default()
                }),
                Point::Number(_) => None,
            });
            Data::Histogram(metrics::Histogram { data_points: points.collect(), aggregation_temporality: temporality })
        }
    };
    metrics::Metric {
        name: instrument.name.into(),
        description: instrument.help.into(),
        unit: instrument.unit.into(),
        data: Some(data),
        ..metrics::Metric::default()
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Any::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
