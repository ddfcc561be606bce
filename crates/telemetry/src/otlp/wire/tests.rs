//! Tests: compare the encoder with OpenTelemetry's own messages.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1 as trace;
use proptest::prelude::*;
use toolwright_core::operation::{OpId, TraceId};

use super::*;

fn key_value(key: &str, value: Any) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn attribute_message(attribute: &Attribute) -> KeyValue {
    let value = match &attribute.value {
        Value::Text(text) => Any::StringValue(text.to_string()),
        Value::Texts(texts) => {
            let values = texts.iter().map(|text| AnyValue { value: Some(Any::StringValue(text.clone())) });
            Any::ArrayValue(ArrayValue { values: values.collect() })
        }
        Value::Number(number) => Any::IntValue(*number),
        Value::Flag(flag) => Any::BoolValue(*flag),
    };
    key_value(attribute.key, value)
}

fn span_message(span: &Span) -> trace::Span {
    let kind = match span.kind {
        SpanKind::Client => trace::span::SpanKind::Client,
        SpanKind::Internal => trace::span::SpanKind::Internal,
    };
    let status = |message| trace::Status { message, code: StatusCode::Error.into() };
    trace::Span {
        trace_id: span.trace.get().to_be_bytes().to_vec(),
        span_id: span.id.get().to_be_bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.get().to_be_bytes().to_vec()).unwrap_or_default(),
        flags: 1,
        name: span.name.clone(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: span.attributes.iter().map(attribute_message).collect(),
        status: span.failure.clone().map(status),
        ..trace::Span::default()
    }
}

fn request_message(spans: &[Span], resource: &Resource, scope: &InstrumentationScope) -> ExportTraceServiceRequest {
    let scope_spans = trace::ScopeSpans {
        scope: Some(scope.clone()),
        spans: spans.iter().map(span_message).collect(),
        ..trace::ScopeSpans::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![trace::ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![scope_spans],
            ..trace::ResourceSpans::default()
        }],
    }
}

/// Any text: none, of many bytes a character, around the lengths from which a length has one byte more.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "(?s).{0,12}",
        1 => (0_usize..4).prop_flat_map(|of| prop_oneof![Just([120, 100, 16_370, 16_384][of]), Just([127, 128, 16_383, 5][of])])
            .prop_map(|len| "a".repeat(len)),
    ]
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        texts().prop_map(|text| Value::Text(text.into())),
        Just(Value::Text("a word".into())),
        prop::collection::vec(texts(), 0..4).prop_map(Value::Texts),
        any::<i64>().prop_map(Value::Number),
        prop::sample::select(vec![0, 1, -1, 127, 128, i64::MIN, i64::MAX]).prop_map(Value::Number),
        any::<bool>().prop_map(Value::Flag),
    ]
}

fn attributes() -> impl Strategy<Value = Vec<Attribute>> {
    let keys = prop::sample::select(vec!["", "a", "gen_ai.tool.name", "toolwright.mcp.server"]);
    prop::collection::vec((keys, values()).prop_map(|(key, value)| Attribute { key, value }), 0..16)
}

fn times() -> impl Strategy<Value = SystemTime> {
    prop_oneof![
        any::<u64>().prop_map(|nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)),
        Just(SystemTime::UNIX_EPOCH),
        Just(SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
    ]
}

fn spans() -> impl Strategy<Value = Span> {
    let ids = (any::<u128>(), any::<u64>(), any::<Option<u64>>());
    let rest = (any::<bool>(), times(), times(), attributes(), prop::option::of(texts()));
    (ids, texts(), rest).prop_map(|((trace, id, parent), name, (client, start, end, attributes, failure))| Span {
        trace: TraceId::new(trace),
        id: OpId::new(id),
        parent: parent.map(OpId::new),
        name,
        kind: if client { SpanKind::Client } else { SpanKind::Internal },
        start,
        end,
        attributes,
        failure,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_written_is_what_their_messages_are(
        batches in prop::collection::vec(prop::collection::vec(spans(), 0..5), 1..3),
        resource in prop::collection::vec((texts(), texts()), 0..4),
        scope in texts(),
    ) {
        let attributes = resource.iter().map(|(key, value)| key_value(key, Any::StringValue(value.clone()))).collect();
        let resource = Resource { attributes, ..Resource::default() };
        let scope = InstrumentationScope { name: scope, ..InstrumentationScope::default() };
        // One after the other: what was sent is not sent again.
        let mut batch = Batch::new(&resource, &scope);
        for spans in batches {
            spans.iter().for_each(|span| batch.add(span));
            prop_assert_eq!(batch.len(), spans.len());
            let written = batch.request();
            let expect = request_message(&spans, &resource, &scope);
            prop_assert_eq!(&ExportTraceServiceRequest::decode(&*written).expect("protobuf"), &expect);
            prop_assert_eq!(written, expect.encode_to_vec());
        }
    }
}
