//! What an OpenTelemetry receiver gets, byte for byte, and what it costs when there is none.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1 as trace;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::error::ErrorKind;
use toolwright_core::event::Event;
use toolwright_telemetry::otlp::{Exporter, OtlpError, OtlpOptions, Receiver, SPAN_QUEUE};
use toolwright_telemetry::{Metrics, Observer, Point, SpanOptions, Spans};

use crate::support::{SECRET_TEXT, answered, asked, finished, op, started};

const TOOL: &str = "x:echo@1.0.0";
const KEY: &str = "a-key-for-the-receiver";

type Requests = Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>;

/// A receiver that answers with these, then with 200.
async fn receiver(answers: Vec<StatusCode>) -> (String, Requests) {
    let requests = Requests::default();
    let take = |path: &'static str| {
        move |State((requests, answers)): State<(Requests, Arc<Mutex<Vec<StatusCode>>>)>,
              headers: HeaderMap,
              body: Bytes| async move {
            requests.lock().unwrap().push((path.to_owned(), headers, body));
            answers.lock().unwrap().pop().unwrap_or(StatusCode::OK)
        }
    };
    let app = Router::new()
        .route("/v1/traces", post(take("/v1/traces")))
        .route("/v1/metrics", post(take("/v1/metrics")))
        .with_state((Arc::clone(&requests), Arc::new(Mutex::new(answers))));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let base = format!("http://{}", listener.local_addr().expect("address"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (base, requests)
}

/// Metrics and spans of a hub, on their way to `base`.
struct Line {
    events: broadcast::Sender<Arc<Event>>,
    metrics: Arc<Metrics>,
    stop: Cancel,
    tasks: [JoinHandle<()>; 2],
}

impl Line {
    fn to(base: &str) -> Self {
        let headers = vec![("authorization".to_owned(), format!("Bearer {KEY}"))];
        let at = |path: &str| Receiver { url: format!("{base}{path}").parse().expect("url"), headers: headers.clone() };
        let options = OtlpOptions {
            traces: Some(at("/v1/traces")),
            metrics: Some(at("/v1/metrics")),
            timeout: Duration::from_millis(300),
            span_interval: Duration::from_millis(50),
            metric_interval: Duration::from_secs(3600),
            ..OtlpOptions::new(vec![("service.name".into(), "test".into())])
        };
        let (events, stop, metrics) = (broadcast::channel(4096).0, Cancel::new(), Arc::new(Metrics::default()));
        let (taker, spans) = mpsc::channel(SPAN_QUEUE);
        let observer = Observer::new(Arc::clone(&metrics)).with_spans(Spans::new(SpanOptions::default()), taker);
        let exporter = Exporter::new(options, Arc::clone(&metrics)).expect("options");
        let tasks = [tokio::spawn(observer.run(events.subscribe(), stop.clone())), tokio::spawn(exporter.run(spans))];
        Self { events, metrics, stop, tasks }
    }

    fn send(&self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.events.send(Arc::new(event)).expect("observed");
        }
    }

    async fn end(self) -> Arc<Metrics> {
        self.stop.cancel(CancelCause::Shutdown);
        for task in self.tasks {
            tokio::time::timeout(Duration::from_secs(20), task).await.expect("in time").expect("no panic");
        }
        self.metrics
    }
}

fn text<'k>(attributes: &'k [KeyValue], key: &str) -> Option<&'k str> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()?;
    match value {
        Any::StringValue(text) => Some(text),
        other => panic!("{key} is {other:?}"),
    }
}

/// Reads a message with OpenTelemetry's types, which write the same bytes.
fn decode<M: prost::Message + Default + std::fmt::Debug>(body: &Bytes) -> M {
    let message = M::decode(body.clone()).expect("protobuf");
    assert!(message.encode_to_vec() == *body, "{message:?}");
    message
}

fn spans_of(requests: &Requests) -> Vec<trace::Span> {
    let requests = requests.lock().unwrap();
    let bodies = requests.iter().filter(|(path, ..)| path == "/v1/traces").map(|(_, _, body)| body.clone());
    let mut spans = Vec::new();
    for body in bodies {
        for resource in decode::<ExportTraceServiceRequest>(&body).resource_spans {
            let about = resource.resource.expect("resource").attributes;
            assert_eq!(text(&about, "service.name"), Some("test"));
            for scope in resource.scope_spans {
                assert_eq!(scope.scope.expect("scope").name, "toolwright");
                spans.extend(scope.spans);
            }
        }
    }
    spans
}

#[tokio::test]
async fn a_receiver_gets_the_tree_as_it_was() {
    let (base, requests) = receiver(Vec::new()).await;
    let line = Line::to(&base);
    let (chat, outer, inner) = (op(1, 0), op(2, 1), op(3, 2));
    line.send([
        asked(&chat, "anthropic/claude"),
        started(&outer, TOOL),
        started(&inner, TOOL),
        finished(&inner, TOOL, Some(ErrorKind::ExecutionError), 7),
        finished(&outer, TOOL, None, 9),
        answered(&chat, "anthropic/claude", true, 20),
    ]);
    line.end().await;
    let spans = spans_of(&requests);
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["execute_tool x__echo", "execute_tool x__echo", "chat claude"]);
    let [inner_span, outer_span, chat_span] = &spans[..] else { panic!("{spans:#?}") };
    for (span, op) in [(inner_span, &inner), (outer_span, &outer), (chat_span, &chat)] {
        // The ids that `traceparent` tells peers.
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let reported = format!("00-{}-{}-{:02x}", hex(&span.trace_id), hex(&span.span_id), span.flags);
        assert_eq!(reported, *op.traceparent());
        let parent = op.lineage.parent.map(|parent| parent.to_string()).unwrap_or_default();
        assert_eq!(hex(&span.parent_span_id), parent);
        assert!(span.start_time_unix_nano > 0 && span.end_time_unix_nano >= span.start_time_unix_nano);
    }
    assert_eq!((chat_span.kind(), outer_span.kind()), (trace::span::SpanKind::Client, trace::span::SpanKind::Internal));
    assert_eq!(text(&inner_span.attributes, "error.type"), Some("execution_error"));
    assert_eq!(inner_span.status.as_ref().map(trace::Status::code), Some(trace::status::StatusCode::Error));
    assert_eq!(
        (outer_span.status.as_ref(), text(&outer_span.attributes, "gen_ai.tool.call.id")),
        (None, Some("call-2"))
    );
    assert_eq!(text(&chat_span.attributes, "gen_ai.provider.name"), Some("anthropic"));

    let requests = requests.lock().unwrap();
    for (path, headers, body) in requests.iter() {
        assert_eq!(headers["content-type"], "application/x-protobuf", "{path}");
        assert_eq!(headers["authorization"], format!("Bearer {KEY}"));
        let body = String::from_utf8_lossy(body);
        assert!(!body.contains(KEY) && !body.contains(SECRET_TEXT), "{path}");
    }
}

#[tokio::test]
async fn metrics_are_the_registry_counted_since_the_start() {
    let (base, requests) = receiver(Vec::new()).await;
    let line = Line::to(&base);
    line.send((1..=3).map(|n| finished(&op(n, 0), TOOL, None, 400)));
    line.end().await;
    let requests = requests.lock().unwrap();
    let (_, _, body) = requests.iter().find(|(path, ..)| path == "/v1/metrics").expect("metrics");
    let message = decode::<ExportMetricsServiceRequest>(body);
    let metrics = &message.resource_metrics[0].scope_metrics[0].metrics;
    let named = |name: &str| metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name}"));
    let Some(Data::Sum(calls)) = &named("toolwright.tool.calls").data else { panic!("a sum") };
    assert!(calls.is_monotonic && calls.aggregation_temporality == 2);
    let point = &calls.data_points[0];
    assert_eq!((text(&point.attributes, "tool"), text(&point.attributes, "status")), (Some("x__echo"), Some("ok")));
    assert_eq!(point.value, Some(opentelemetry_proto::tonic::metrics::v1::number_data_point::Value::AsInt(3)));
    assert!(point.start_time_unix_nano > 0 && point.time_unix_nano >= point.start_time_unix_nano);
    let duration = named("gen_ai.execute_tool.duration");
    assert_eq!(duration.unit, "s");
    let Some(Data::Histogram(histogram)) = &duration.data else { panic!("a histogram") };
    let point = &histogram.data_points[0];
    assert_eq!((point.count, point.sum.map(|sum| (sum * 1000.0).round())), (3, Some(1200.0)));
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    assert_eq!(point.bucket_counts.iter().sum::<u64>(), 3);
    assert_eq!((point.bucket_counts[6], point.explicit_bounds[5], point.explicit_bounds[6]), (3, 0.32, 0.64));
    assert_eq!(text(&point.attributes, "error.type"), None);
}

fn lost(metrics: &Metrics) -> i64 {
    let families = metrics.families();
    let lost = families.iter().filter(|family| family.instrument().name == "toolwright.spans.lost");
    lost.flat_map(|family| {
        family.series().map(|(_, point)| match point {
            Point::Number(number) => *number,
            Point::Histogram(_) => 0,
        })
    })
    .sum()
}

#[tokio::test]
async fn busy_receiver_is_retried_refusal_is_final() {
    for (answer, expect_requests, expect_lost) in
        [(StatusCode::SERVICE_UNAVAILABLE, 2, 0), (StatusCode::UNAUTHORIZED, 1, 1), (StatusCode::FOUND, 1, 1)]
    {
        let (base, requests) = receiver(vec![answer]).await;
        let line = Line::to(&base);
        line.send([finished(&op(1, 0), TOOL, None, 1)]);
        let metrics = Arc::clone(&line.metrics);
        let settled = async {
            while spans_of(&requests).len() < expect_requests || (expect_lost > 0 && lost(&metrics) == 0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), settled).await.expect("in time");
        assert_eq!((spans_of(&requests).len(), lost(&*line.end().await)), (expect_requests, expect_lost), "{answer}");
    }
}

#[tokio::test]
async fn unreachable_receiver_only_loses_spans() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        listener.local_addr().expect("address")
    };
    for address in [silent.local_addr().expect("address"), closed] {
        let line = Line::to(&format!("http://{address}"));
        let start = Instant::now();
        for n in 1..=20_000 {
            // The hub takes it whoever hangs.
            line.events.send(Arc::new(finished(&op(n, 0), TOOL, None, 1))).expect("observed");
            if n % 500 == 0 {
                tokio::task::yield_now().await;
            }
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let metrics = line.end().await;
        let families = metrics.families();
        let of = |name: &str| families.iter().find(|family| family.instrument().name == name);
        let Some(Point::Number(calls)) =
            of("toolwright.tool.calls").and_then(|family| family.series().next()).map(|(_, point)| point.clone())
        else {
            panic!("no calls")
        };
        assert_eq!(lost(&metrics), calls, "every span of a call that was counted is counted as lost");
    }
}

#[tokio::test]
async fn headers_are_checked_and_never_shown() {
    let with = |name: &str, value: &str| Receiver {
        url: "https://user:pass@host.example/v1/traces?key=abc".parse().expect("url"),
        headers: vec![(name.to_owned(), value.to_owned())],
    };
    let receiver = with("x-api-key", KEY);
    let shown = format!("{receiver:?}");
    assert!(shown.contains("https://host.example/v1/traces") && shown.contains("x-api-key"), "{shown}");
    for secret in [KEY, "pass", "abc"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    for (name, value) in [("no name", KEY), ("x-key", "line\nbreak")] {
        let options = OtlpOptions { traces: Some(with(name, value)), ..OtlpOptions::new(Vec::new()) };
        let error = Exporter::new(options, Arc::default()).expect_err("refused");
        assert!(matches!(&error, OtlpError::Header(of) if of == name), "{error}");
        assert!(!error.to_string().contains(value), "{error}");
    }
}
