//! What leaves Toolwright for OpenTelemetry and Prometheus.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;
use toolwright::config::{Config, Severity};
use toolwright::telemetry::Content;
use toolwright_testkit::model_server::WireApi;

use crate::agents::agent::{ended, start, todo_script, with_model};
use crate::command_line::cli::{program, run, stderr};
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, until};

/// What may be seen nowhere.
const SECRET_MARK: &str = "planted-3f9c1";

/// One request as it came.
#[derive(Clone)]
struct Request {
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// Takes whatever it is sent, and says that it is well.
struct Peer {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Peer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let request = read(&stream);
                taken.lock().expect("requests").push(request);
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                (&stream).write_all(answer.as_bytes()).expect("answer");
            }
        });
        Self { url, requests }
    }

    fn requests(&self, path: &str) -> Vec<Request> {
        self.requests.lock().expect("requests").iter().filter(|request| request.path == path).cloned().collect()
    }

    /// The spans it got, each with what it is of.
    fn spans(&self) -> Vec<(Vec<KeyValue>, Span)> {
        let decode = |request: Request| ExportTraceServiceRequest::decode(&*request.body).expect("protobuf");
        let resources = self.requests("/v1/traces").into_iter().flat_map(|request| decode(request).resource_spans);
        let each = resources.flat_map(|resource| {
            let of = resource.resource.expect("a resource").attributes;
            resource.scope_spans.into_iter().flat_map(|scope| scope.spans).map(move |span| (of.clone(), span))
        });
        each.collect()
    }
}

fn read(stream: &TcpStream) -> Request {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).expect("a request");
    let mut headers = HashMap::new();
    for line in reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').expect("a header");
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().expect("a length"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    Request { path: first.split_whitespace().nth(1).expect("a path").to_owned(), headers, body }
}

fn text<'k>(attributes: &'k [KeyValue], key: &str) -> Option<&'k str> {
    match attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn peers_get_span_ids_and_no_secrets() {
    let (receiver, api) = (Peer::start(), Peer::start());
    let fixture = Fixture::with(&format!(
        "telemetry:\n  endpoint: {}\n  service_name: my-tools\n  headers: {{x-team: '${{RECEIVER_KEY}}'}}\n  content: true\n\
         restTools:\n  order:\n    description: x\n    method: POST\n    url: {}/orders\n    allow_private: true\n    \
         headers: {{x-key: '${{API_KEY}}'}}\n    parameters: {{type: object, properties: {{note: {{type: string}}}}}}\n",
        receiver.url, api.url
    ));
    let mut command = program(&fixture);
    command.env("RECEIVER_KEY", "the-receivers-key").env("API_KEY", SECRET_MARK);
    command.env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=a%20test,service.name=lost");
    let note = json!({"note": format!("keep {SECRET_MARK} to yourself")}).to_string();
    let output = command.args(["call", "rest__order", &note]).output().expect("the program runs");
    assert!(output.status.success(), "{}", stderr(&output));

    let spans = receiver.spans();
    let [(of, span)] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!(text(of, "service.name"), Some("my-tools"));
    assert_eq!(text(of, "deployment.environment.name"), Some("a test"));
    assert!(text(of, "service.instance.id").is_some());
    assert_eq!(span.name, "execute_tool rest__order");
    assert_eq!(text(&span.attributes, "toolwright.origin"), Some("owner"));
    let reported = &api.requests("/orders")[0].headers["traceparent"];
    assert_eq!(*reported, format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id)));
    assert!(text(&span.attributes, "gen_ai.tool.call.arguments").is_some_and(|said| said.contains("to yourself")));

    let sent = [receiver.requests("/v1/traces"), receiver.requests("/v1/metrics")].concat();
    assert!(sent.len() >= 2, "spans and metrics");
    for request in sent {
        assert_eq!(request.headers["x-team"], "the-receivers-key");
        let body = String::from_utf8_lossy(&request.body);
        assert!(!body.contains(SECRET_MARK) && !body.contains("the-receivers-key"), "{}", request.path);
    }
    let metrics = ExportMetricsServiceRequest::decode(&*receiver.requests("/v1/metrics")[0].body).expect("protobuf");
    let metrics = &metrics.resource_metrics[0].scope_metrics[0].metrics;
    assert!(metrics.iter().any(|metric| metric.name == "toolwright.tool.calls"), "{metrics:#?}");
    for said in [stderr(&output), crate::command_line::cli::ok(&fixture, &["config", "show", "--json"])] {
        assert!(!said.contains(SECRET_MARK) && !said.contains("the-receivers-key"), "{said}");
    }
}

#[tokio::test]
async fn a_run_is_one_tree() {
    let receiver = Peer::start();
    let (_server, variables) = with_model(WireApi::OpenAi, todo_script()).await;
    let fixture = Fixture::new();
    fixture.write("project/a.rs", "// TODO one\n// TODO two\n");
    let mut variables = variables.to_vec();
    variables.push(("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.clone()));
    let output = ended(start(&fixture, &variables, &["run", "count the TODOs", "--policy", "workspace"])).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let spans: Vec<Span> = receiver.spans().into_iter().map(|(_, span)| span).collect();
    let named = |prefix: &str| spans.iter().filter(|span| span.name.starts_with(prefix)).collect::<Vec<_>>();
    let (runs, chats, tools) = (named("invoke_agent"), named("chat "), named("execute_tool fs__"));
    assert_eq!((runs.len(), chats.len(), tools.len()), (1, 3, 3), "{spans:#?}");
    for part in chats.iter().chain(&tools) {
        assert_eq!((&part.trace_id, &part.parent_span_id), (&runs[0].trace_id, &runs[0].span_id), "{part:#?}");
        assert!(part.start_time_unix_nano >= runs[0].start_time_unix_nano);
        assert!(part.end_time_unix_nano <= runs[0].end_time_unix_nano);
    }
    assert_eq!(text(&chats[0].attributes, "gen_ai.provider.name"), Some("openai"));
    let body = receiver.requests("/v1/traces").iter().map(|request| request.body.clone()).collect::<Vec<_>>().concat();
    assert!(!String::from_utf8_lossy(&body).contains("TODO"), "nothing that was said is sent unasked");
}

#[test]
fn a_dead_receiver_delays_no_call() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("port");
    let gone = TcpListener::bind("127.0.0.1:0").expect("port").local_addr().expect("address");
    for address in [silent.local_addr().expect("address"), gone] {
        let fixture = Fixture::with(&format!("telemetry:\n  endpoint: http://{address}\n"));
        fixture.write("project/a.txt", "hello");
        let start = Instant::now();
        let output = run(&fixture, &["call", "fs__read", r#"{"path": "a.txt"}"#]);
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("hello"));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[test]
fn a_gateway_counts_for_prometheus() {
    let fixture = Fixture::with("server:\n  token: tok-123456789\n");
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    let address = gateway.address();
    let get = |token: &str, accept: &str| {
        let mut stream = TcpStream::connect(&address).expect("connect");
        let head =
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n{token}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answer");
        answer
    };
    assert!(get("", "*/*").starts_with("HTTP/1.1 401"));
    let token = "Authorization: Bearer tok-123456789\r\n";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "nobody__has_this", "arguments": {}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}}});
    let body = call.to_string();
    let mut stream = TcpStream::connect(&address).expect("connect");
    write!(stream, "POST /mcp HTTP/1.1\r\nHost: {address}\r\n{token}Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: nobody__has_this\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("request");
    stream.read_to_string(&mut String::new()).expect("answer");
    until("the call is counted", || get(token, "*/*").contains("toolwright_tool_calls_total{tool=\"unknown\""));
    let plain = get(token, "*/*");
    assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{plain}");
    assert!(plain.contains("service_name=\"toolwright\""), "{plain}");
    let open = get(token, "application/openmetrics-text");
    assert!(open.contains("application/openmetrics-text") && open.trim_end().ends_with("# EOF"), "{open}");
}

/// Where spans and metrics go, and what was wrong.
fn resolved(text: &str, variables: &[(&str, &str)]) -> (Config, Option<String>, Option<String>, Vec<String>) {
    let fixture = variables.iter().fold(Fixture::with(text), |fixture, (name, value)| fixture.set(name, value));
    let config = fixture.load();
    let url = |receiver: &Option<toolwright::telemetry::otlp::Receiver>| receiver.as_ref().map(|it| it.url.to_string());
    let (traces, metrics) = (url(&config.telemetry.otlp.traces), url(&config.telemetry.otlp.metrics));
    let problems = config.problems.iter().map(ToString::to_string).collect();
    (config, traces, metrics, problems)
}

#[test]
fn telemetry_endpoints_follow_configuration_and_environment() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
    let section = "telemetry:\n  endpoint: https://mine.example/otlp\n";
    let check = |text: &str, variables: &[(&str, &str)], traces: Option<&str>, metrics: Option<&str>| {
        let (_, to, also, problems) = resolved(text, variables);
        assert_eq!((to.as_deref(), also.as_deref()), (traces, metrics), "{text} {variables:?}: {problems:?}");
        assert_eq!(problems, [""; 0]);
    };
    let (c_traces, c_metrics) = (Some("http://c:4318/v1/traces"), Some("http://c:4318/v1/metrics"));
    check("", &[], None, None);
    check("", &[endpoint], c_traces, c_metrics);
    check("", &[endpoint, ("OTEL_SDK_DISABLED", "TRUE")], None, None);
    check("", &[endpoint, ("OTEL_TRACES_EXPORTER", "none")], None, c_metrics);
    check("", &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/x")], Some("http://t/x"), None);
    check("", &[endpoint, ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m/")], c_traces, Some("http://m/"));
    check("telemetry:\n  metrics: false\n", &[endpoint], c_traces, None);
    let (mine_traces, mine_metrics) =
        (Some("https://mine.example/otlp/v1/traces"), Some("https://mine.example/otlp/v1/metrics"));
    check(section, &[endpoint, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/")], mine_traces, mine_metrics);
    check("telemetry:\n  endpoint: ${NONE:-}\n", &[], None, None);
}

#[test]
fn faulty_telemetry_is_left_out_with_notice() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
    for (text, variables, words) in [
        ("telemetry:\n  endpoint: ${MISSING}\n", &[][..], "telemetry.endpoint: the variable MISSING is not set"),
        (
            "telemetry:\n  endpoint: localhost:4318\n",
            &[],
            "telemetry.endpoint: it is not an http:// or https:// address",
        ),
        ("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318")], "OTEL_EXPORTER_OTLP_ENDPOINT: it is not an http://"),
        ("telemetry:\n  headers: {a: '${MISSING}'}\n", &[endpoint], "telemetry.headers.a: the variable MISSING"),
    ] {
        let (config, traces, metrics, problems) = resolved(text, variables);
        assert_eq!((traces, metrics), (None, None), "{text}");
        assert!(problems.iter().any(|problem| problem.contains(words)), "{text}: {problems:?}");
        assert!(!config.is_unusable());
    }
    for (variable, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "nopair-with-a-key"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
    ] {
        let (config, traces, _, problems) = resolved("", &[endpoint, (variable, value)]);
        assert!(traces.is_some() && config.problems.iter().all(|problem| problem.severity == Severity::Warning));
        assert!(problems.iter().any(|problem| problem.contains(variable)), "{problems:?}");
        assert!(!problems.concat().contains("nopair-with-a-key"));
    }
    for (text, words) in [
        ("telemetry:\n  sample_ratio: 2\n", "too large"),
        ("telemetry:\n  endpoints: x\n", "did you mean `endpoint`?"),
        ("telemetry:\n  traces: maybe\n", "expected true or false"),
    ] {
        let (config, _, _, problems) = resolved(text, &[]);
        assert!(config.is_unusable() && problems.concat().contains(words), "{problems:?}");
    }
}

#[test]
fn telemetry_merges_configuration_and_environment() {
    let (config, ..) = resolved(
        "telemetry:\n  headers: {X-Team: '${KEY}', b: from-the-file}\n  content: true\n",
        &[
            ("KEY", "the-teams-key"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:the-password@c:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=one%20two, B=from-the-environment ,authorization=Bearer%20the-token"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a=for-metrics"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_RESOURCE_ATTRIBUTES", "host.name=h,service.name=lost"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
        ],
    );
    let telemetry = &config.telemetry;
    let headers = |receiver: &Option<toolwright::telemetry::otlp::Receiver>| {
        receiver
            .as_ref()
            .expect("a receiver")
            .headers
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        headers(&telemetry.otlp.traces),
        ["a=one two", "B=from-the-file", "authorization=Bearer the-token", "X-Team=the-teams-key"]
    );
    assert_eq!(headers(&telemetry.otlp.metrics)[0], "a=for-metrics");
    for secret in ["the-teams-key", "the-password", "the-token", "one two", "for-metrics"] {
        assert!(config.secrets.iter().any(|have| have == secret), "{secret}: {:?}", config.secrets);
    }
    for variable in ["KEY", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"] {
        assert!(config.key_variables.iter().any(|have| have == variable), "{variable}");
    }
    let resource: Vec<_> = telemetry.otlp.resource.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!((resource[0].as_str(), resource[2].as_str()), ("service.name=mine", "host.name=h"));
    assert_eq!((telemetry.spans.sample_ratio, telemetry.spans.content), (0.25, Content::Recorded));
    assert_eq!(telemetry.otlp.timeout, Duration::from_millis(2500));
}
