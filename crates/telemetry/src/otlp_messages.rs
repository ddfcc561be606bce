//! Spans and metrics as the messages of OTLP, and the resource that both are of.

use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{self as metrics, AggregationTemporality};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1 as trace;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

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

    /// A request with these spans.
    pub(super) fn spans(&self, spans: impl Iterator<Item = Span>) -> ExportTraceServiceRequest {
        let scope_spans = trace::ScopeSpans {
            scope: Some(self.scope.clone()),
            spans: spans.map(span_message).collect(),
            ..trace::ScopeSpans::default()
        };
        ExportTraceServiceRequest {
            resource_spans: vec![trace::ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![scope_spans],
                ..trace::ResourceSpans::default()
            }],
        }
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

fn span_message(span: Span) -> trace::Span {
    let kind = match span.kind {
        SpanKind::Client => trace::span::SpanKind::Client,
        SpanKind::Internal => trace::span::SpanKind::Internal,
    };
    trace::Span {
        trace_id: span.trace.get().to_be_bytes().to_vec(),
        span_id: span.id.get().to_be_bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.get().to_be_bytes().to_vec()).unwrap_or_default(),
        flags: SAMPLED,
        name: span.name,
        kind: kind.into(),
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: span.attributes.into_iter().map(attribute).collect(),
        status: span.failure.map(|message| trace::Status { message, code: StatusCode::Error.into() }),
        ..trace::Span::default()
    }
}

fn attribute(Attribute { key, value }: Attribute) -> KeyValue {
    let text = |text| AnyValue { value: Some(Any::StringValue(text)) };
    let value = match value {
        Value::Text(value) => Any::StringValue(value.into_owned()),
        Value::Texts(values) => Any::ArrayValue(ArrayValue { values: values.into_iter().map(text).collect() }),
        Value::Number(number) => Any::IntValue(number),
        Value::Flag(flag) => Any::BoolValue(flag),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
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
