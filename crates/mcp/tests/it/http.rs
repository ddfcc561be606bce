//! Servers on sockets.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use serde_json::{Value, json};
use tokio::sync::{Barrier, Notify};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{Health, Provider as _};
use toolwright_core::error::ErrorKind;
use toolwright_core::event::Partial;
use toolwright_mcp::client::McpTransport;

use super::{Fixture, eventually};

/// Calls that the meeting tool waits for: more than rmcp has on their way by default.
const MEETING: usize = 40;

/// A server on a port of its own, and what it has been asked.
pub(super) struct Site {
    mode: Mutex<&'static str>,
    port: u16,
    requests: Mutex<Vec<(HeaderMap, Value)>>,
    connections: AtomicUsize,
    forgets: AtomicBool,
    meeting: Barrier,
    /// Lets one call on that waits at it.
    gate: Notify,
    /// How often the stream of a session has been opened.
    streams: AtomicUsize,
}

impl Site {
    pub(super) async fn start(mode: &'static str) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let site = Arc::new(Self {
            mode: Mutex::new(mode),
            port: listener.local_addr().expect("address").port(),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            forgets: AtomicBool::new(false),
            meeting: Barrier::new(MEETING),
            gate: Notify::new(),
            streams: AtomicUsize::new(0),
        });
        let app = axum::Router::new().route("/mcp", axum::routing::any(answer)).with_state(Arc::clone(&site));
        let counted = Arc::clone(&site);
        let listener = listener.tap_io(move |stream| {
            counted.connections.fetch_add(1, Ordering::Relaxed);
            stream.set_nodelay(true).expect("nodelay");
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        site
    }

    pub(super) fn transport(&self) -> McpTransport {
        let headers = BTreeMap::from([("X-Key".to_owned(), "hush".to_owned())]);
        McpTransport::Http { url: format!("http://127.0.0.1:{}/mcp", self.port), headers }
    }

    /// Another server takes this one's place.
    pub(super) fn becomes(&self, mode: &'static str) {
        *self.mode.lock().expect("mode") = mode;
    }

    fn fixture(&self) -> Fixture {
        Fixture::new(self.transport(), |options| options.config.max_message_bytes = 100_000)
    }

    fn methods(&self) -> Vec<String> {
        let requests = self.requests.lock().expect("requests");
        requests.iter().filter_map(|(_, message)| message["method"].as_str().map(str::to_owned)).collect()
    }

    pub(super) fn headers_of(&self, method: &str) -> HeaderMap {
        let requests = self.requests.lock().expect("requests");
        requests.iter().rev().find(|(_, message)| message["method"] == method).expect(method).0.clone()
    }

    pub(super) fn count(&self, method: &str) -> usize {
        self.methods().iter().filter(|name| *name == method).count()
    }
}

async fn answer(State(site): State<Arc<Site>>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let mode = *site.mode.lock().expect("mode");
    match mode {
        "unauthorized" => return (StatusCode::UNAUTHORIZED, "who are you").into_response(),
        "html" => return ([("content-type", "text/html")], "<h1>hello</h1>").into_response(),
        "redirect" => {
            return (StatusCode::TEMPORARY_REDIRECT, [("location", "http://127.0.0.1:9/mcp")]).into_response();
        }
        _ => {}
    }
    if method == Method::GET {
        return match mode {
            // It is cut at first, and says nothing after that.
            "announces" if site.streams.fetch_add(1, Ordering::Relaxed) == 0 => {
                ([("content-type", "text/event-stream")], "retry: 1\ndata: \n\n").into_response()
            }
            "announces" => {
                let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
                ([("content-type", "text/event-stream")], Body::from_stream(never)).into_response()
            }
            _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        };
    }
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    site.requests.lock().expect("requests").push((headers.clone(), message.clone()));
    let Some(id) = message.get("id") else { return StatusCode::ACCEPTED.into_response() };
    let params = &message["params"];
    let session = headers.get("mcp-session-id").is_some();
    if session && site.forgets.load(Ordering::Relaxed) {
        return match mode {
            "forgetful" => refuse("server-error", -32000, "Bad Request: No valid session ID provided"),
            "own words" => missing(id, -32001, "no such session: begin with `initialize`"),
            _ => StatusCode::NOT_FOUND.into_response(),
        };
    }
    let method = message["method"].as_str().unwrap_or_default();
    let is_handshake = matches!(method, "server/discover" | "initialize");
    let speaks_modern = headers.get("mcp-protocol-version").is_some_and(|version| version == "2026-07-28");
    if !is_handshake && mode == "modern" && !speaks_modern {
        return refuse("server-error", -32022, "unsupported protocol version");
    }
    if !is_handshake && mode == "forgetful" && !session {
        return refuse("server-error", -32000, "Bad Request: Server not initialized");
    }
    match method {
        "server/discover"
            if matches!(mode, "modern" | "late" | "marks late" | "pages" | "both")
                || mode.ends_with("for old ones") =>
        {
            if mode == "late" {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            reply(
                id,
                json!({
                    "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private",
                }),
            )
        }
        "server/discover" if mode == "silent" => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            StatusCode::REQUEST_TIMEOUT.into_response()
        }
        "server/discover" if mode == "faulty for new ones" => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        "server/discover" => refuse("server-error", -32000, "not initialized"),
        "initialize" if mode == "busy for old ones" => StatusCode::TOO_MANY_REQUESTS.into_response(),
        "initialize" if mode == "closed for old ones" => StatusCode::FORBIDDEN.into_response(),
        "initialize" if mode == "mute for old ones" => std::future::pending().await,
        "initialize" if mode == "faulty for old ones" => StatusCode::BAD_GATEWAY.into_response(),
        "initialize" if mode == "faulty in JSON for old ones" => {
            let body = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32603, "message": "no database"}});
            (StatusCode::INTERNAL_SERVER_ERROR, axum::Json(body)).into_response()
        }
        "initialize" if mode == "modern" => refuse("server-error", -32022, "unsupported"),
        "initialize" => {
            site.forgets.store(false, Ordering::Relaxed);
            let capabilities = json!({"tools": {"listChanged": mode == "announces"}});
            let mut response = reply(
                id,
                json!({
                    "protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": {"name": "site", "version": "1"},
                }),
            );
            response.headers_mut().insert("mcp-session-id", "s1".parse().expect("header"));
            response
        }
        "tools/list" => {
            let region =
                json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
            if mode == "pages" || mode == "old pages" {
                let (name, next) = match params.get("cursor").and_then(Value::as_str) {
                    None => ("first", json!("")),
                    Some("") => ("second", json!("x")),
                    Some(_) => ("third", Value::Null),
                };
                let tools = json!([{"name": name, "inputSchema": {"type": "object"}}]);
                return reply(id, json!({"resultType": "complete", "tools": tools, "nextCursor": next}));
            }
            if mode == "lists nothing" {
                return missing(id, -32001, "no tools");
            }
            let is_first = site.count("tools/list") == 1;
            let schema = if mode == "marks late" && is_first { json!({"type": "object"}) } else { region };
            let mut tools = vec![json!({"name": "stream", "inputSchema": schema, "later": 1})];
            if mode == "modern" {
                tools.push(json!({"name": "marked", "inputSchema": {"type": "object", "x-mcp-header": "All"}}));
            }
            reply(id, json!({"resultType": "complete", "tools": tools}))
        }
        "tools/call" if mode == "marks late" && headers.get("mcp-param-region").is_none() => {
            refuse("server-error", -32020, "Mcp-Param-Region is missing")
        }
        "tools/call" => call(&site, id, params).await,
        _ => refuse("server-error", -32601, "no such method"),
    }
}

async fn call(site: &Site, id: &Value, params: &Value) -> Response {
    let result = |text: &str| {
        let block = json!({"type": "text", "text": text, "later": 1});
        json!({"resultType": "complete", "content": [block], "unknown": 1})
    };
    let events = |messages: Vec<Value>| {
        let text: String = messages.iter().map(|message| format!("event: message\ndata: {message}\n\n")).collect();
        ([("content-type", "text/event-stream")], text).into_response()
    };
    let message = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
    match params["name"].as_str().unwrap_or_default() {
        "stream" => {
            let progress = |n: u32| {
                let params = json!({"progressToken": params["_meta"]["progressToken"], "progress": n});
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            };
            events(vec![progress(1), progress(2), message(result("streamed"))])
        }
        "huge_stream" => events(vec![message(result(&"x".repeat(200_000)))]),
        "huge" => reply(id, result(&"x".repeat(200_000))),
        "deluge" => large_result(id, params, "application/json", ["", ""]),
        "deluge_stream" => large_result(id, params, "text/event-stream", ["event: message\ndata: ", "\n\n"]),
        "meet" => {
            site.meeting.wait().await;
            reply(id, result("met"))
        }
        "gated" => {
            site.gate.notified().await;
            reply(id, result("gated"))
        }
        "missing" => missing(id, -32602, "Unknown tool"),
        "lost_tab" => {
            let error = json!({"code": params["arguments"]["code"], "message": "Session not found: tab-3"});
            let body = json!({"jsonrpc": "2.0", "id": id, "error": error});
            (StatusCode::BAD_REQUEST, axum::Json(body)).into_response()
        }
        "hang" => {
            let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
            ([("content-type", "text/event-stream")], Body::from_stream(never)).into_response()
        }
        "cut" => events(vec![]),
        "crash" => (StatusCode::INTERNAL_SERVER_ERROR, "stack trace").into_response(),
        "busy" => StatusCode::TOO_MANY_REQUESTS.into_response(),
        "put_off" if params.get("requestState").is_none() => {
            reply(id, json!({"resultType": "input_required", "requestState": "s"}))
        }
        "put_off" => StatusCode::TOO_MANY_REQUESTS.into_response(),
        "fail" => refuse("server-error", -32602, "Unknown tool"),
        _ => reply(id, result("plain")),
    }
}

/// A result of as many bytes as are asked for, as they come.
fn large_result(id: &Value, params: &Value, kind: &'static str, around: [&str; 2]) -> Response {
    let bytes = params["arguments"]["bytes"].as_u64().expect("bytes");
    let head = format!(
        "{}{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":\"",
        around[0]
    );
    let tail = format!("\"}}]}}}}{}", around[1]);
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    let pieces = usize::try_from(bytes >> 20).expect("small");
    let body = [Bytes::from(head)].into_iter().chain(std::iter::repeat_n(piece, pieces)).chain([Bytes::from(tail)]);
    let body = futures_util::stream::iter(body.map(Ok::<_, std::io::Error>));
    ([("content-type", kind)], Body::from_stream(body)).into_response()
}

fn reply(id: &Value, result: Value) -> Response {
    axum::Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response()
}

/// Middleware cannot know the request's id.
/// A 404 that answers the very request.
fn missing(id: &Value, code: i32, text: &str) -> Response {
    let body = json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}});
    (StatusCode::NOT_FOUND, axum::Json(body)).into_response()
}

fn refuse(id: &str, code: i32, text: &str) -> Response {
    let body = json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}});
    (StatusCode::BAD_REQUEST, axum::Json(body)).into_response()
}

#[tokio::test]
async fn old_http_servers_keep_session_and_connections() {
    let site = Site::start("legacy").await;
    let fixture = site.fixture();
    assert_eq!(fixture.names().await, ["stream"]);
    assert_eq!(site.methods()[..3], ["server/discover", "initialize", "notifications/initialized"]);
    for tool in ["stream", "plain"].repeat(10) {
        let output = fixture.call(tool, json!({})).await.expect("output");
        let content = serde_json::to_value(&output.content).expect("json");
        assert_eq!(content[0]["later"], 1);
        assert_eq!(output.extras["mcp_result"], json!({"unknown": 1}));
    }
    let partials = fixture.world.partials.lock().expect("partials").clone();
    let expect = |n: f64| Partial::Progress { progress: n, total: None, message: None, more: serde_json::Map::new() };
    assert_eq!(partials[..2], [expect(1.0), expect(2.0)], "in order, and before the result");
    assert_eq!(partials.len(), 20);
    let headers = site.headers_of("tools/call");
    assert_eq!(
        (&headers["x-key"], &headers["mcp-session-id"]),
        (&"hush".parse().expect("v"), &"s1".parse().expect("v"))
    );
    assert_eq!(site.count("initialize"), 1);
    let connections = site.connections.load(Ordering::Relaxed);
    assert!(connections <= 6, "{connections} connections for 20 calls");
    fixture.provider.shut_down().await;
}

#[tokio::test]
async fn a_stateless_server_gets_its_headers() {
    let site = Site::start("modern").await;
    let fixture = site.fixture();
    assert_eq!(fixture.names().await, ["stream"]);
    let withheld = fixture.provider.withheld();
    assert!(withheld[0].name == "marked" && withheld[0].why.contains("x-mcp-header"), "{withheld:?}");
    let output = fixture.call("stream", json!({"region": "eu"})).await.expect("output");
    assert_eq!(output.content[0].as_text(), Some("streamed"));
    let headers = site.headers_of("tools/call");
    for (name, value) in [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "stream"),
        ("mcp-param-region", "eu"),
    ] {
        assert_eq!(headers.get(name).map(|value| value.to_str().expect("text")), Some(value), "{name}");
    }
    assert_eq!(site.count("initialize"), 0);
}

#[tokio::test]
async fn silent_servers_get_the_old_handshake() {
    let site = Site::start("silent").await;
    let fixture = Fixture::new(site.transport(), |options| options.config.connect_timeout = Duration::from_secs(3));
    assert_eq!(fixture.names().await, ["stream"]);
}

#[tokio::test]
async fn slow_new_servers_are_not_treated_as_old() {
    let site = Site::start("late").await;
    assert_eq!(site.fixture().names().await, ["stream"]);
    assert_eq!((site.count("server/discover"), site.count("initialize")), (1, 0));
}

#[tokio::test]
async fn slow_calls_do_not_delay_others() {
    let site = Site::start("legacy").await;
    let fixture = site.fixture();
    let calls = (0..MEETING).map(|_| fixture.call("meet", json!({})));
    for output in futures_util::future::join_all(calls).await {
        assert_eq!(output.expect("output").content[0].as_text(), Some("met"));
    }
}

#[tokio::test]
async fn expired_sessions_renew_without_resending() {
    for mode in ["legacy", "forgetful"] {
        let site = Site::start(mode).await;
        let fixture = site.fixture();
        fixture.call("plain", json!({})).await.expect("output");
        site.forgets.store(true, Ordering::Relaxed);
        let error = fixture.call("plain", json!({})).await.expect_err("expired");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, true), "{error}");
        assert_eq!(site.count("tools/call"), 2);
        fixture.call("plain", json!({})).await.expect("a new session");
        assert_eq!((site.count("tools/call"), site.count("initialize")), (3, 2));
        site.forgets.store(true, Ordering::Relaxed);
        assert_eq!(fixture.names().await, ["stream"], "a list may be sent again");
    }
}

#[tokio::test]
async fn unusual_session_errors_renew_the_session() {
    let site = Site::start("own words").await;
    let fixture = site.fixture();
    fixture.call("plain", json!({})).await.expect("output");
    let error = fixture.call("missing", json!({})).await.expect_err("no such tool");
    assert_eq!(error.model_message(), "Unknown tool");
    fixture.call("plain", json!({})).await.expect("output");
    assert_eq!(site.count("initialize"), 1, "it was the tool that is not there");
    site.forgets.store(true, Ordering::Relaxed);
    let error = fixture.call("plain", json!({})).await.expect_err("forgotten");
    // It may be the word of a tool that was run.
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::ExecutionError, false), "{error}");
    assert_eq!(error.model_message(), "no such session: begin with `initialize`");
    fixture.call("plain", json!({})).await.expect("a new session");
    assert_eq!(site.count("initialize"), 2);
    site.forgets.store(true, Ordering::Relaxed);
    assert_eq!(fixture.names().await, ["stream"], "a list may be sent again");
    assert_eq!(site.count("initialize"), 3);
    // One that refuses it in every session has its word after one more.
    site.becomes("lists nothing");
    let error = fixture.provider.list().await.expect_err("no list").to_string();
    assert!(error.contains("no tools"), "{error}");
    assert_eq!(site.count("initialize"), 4);
}

#[tokio::test]
async fn servers_changing_generation_are_probed_again() {
    for (before, after) in [("modern", "forgetful"), ("forgetful", "modern")] {
        let site = Site::start(before).await;
        let fixture = site.fixture();
        fixture.call("plain", json!({})).await.expect("output");
        site.becomes(after);
        let error = fixture.call("plain", json!({})).await.expect_err("it is another one");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, true), "{before}: {error}");
        fixture.call("plain", json!({})).await.expect("a new handshake");
        site.becomes(before);
        assert_eq!(fixture.names().await, ["stream"], "{before}: a list may be sent again");
    }
}

#[tokio::test]
async fn handshake_faults_do_not_decide_the_generation() {
    for (mode, discovers) in [("legacy", 1), ("faulty for new ones", 2)] {
        let site = Site::start(mode).await;
        let fixture = site.fixture();
        assert_eq!(fixture.names().await, ["stream"], "{mode}: it speaks the older");
        fixture.provider.shut_down().await;
        // What was found is kept for the next start; a fault finds nothing.
        let again = Fixture::within(Arc::clone(&fixture.world), site.transport(), |_| {});
        assert_eq!(again.names().await, ["stream"], "{mode}");
        assert_eq!(site.count("server/discover"), discovers, "{mode}");
    }
}

#[tokio::test]
async fn calls_in_flight_survive_one_refusal() {
    // Behind one address there may be servers of two generations, or such that know a session and such that do not.
    for (before, other) in [("modern", "forgetful"), ("forgetful", "forgetful")] {
        let site = Site::start(before).await;
        let fixture = site.fixture();
        fixture.provider.warm_up().await.expect("connected");
        let (gated, ()) = tokio::join!(fixture.call("gated", json!({})), async {
            eventually("the call has arrived", || site.count("tools/call") == 1).await;
            site.becomes(other);
            site.forgets.store(before == other, Ordering::Relaxed);
            let error = fixture.call("plain", json!({})).await.expect_err("it is another one");
            assert!(error.is_retryable(), "{before}: {error}");
            site.becomes(before);
            fixture.call("plain", json!({})).await.expect("a new handshake");
            // What an end of the old connection would have broken is broken by now.
            tokio::time::sleep(Duration::from_millis(200)).await;
            site.gate.notify_one();
        });
        assert_eq!(gated.expect("an answer").content[0].as_text(), Some("gated"), "{before}");
    }
}

#[tokio::test]
async fn tool_errors_about_sessions_stay_answers() {
    for (mode, code) in [("modern", -32000), ("modern", -32022), ("legacy", -32000), ("legacy", -32022)] {
        let site = Site::start(mode).await;
        let fixture = site.fixture();
        let error = fixture.call("lost_tab", json!({"code": code})).await.expect_err("an error");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::ExecutionError, false), "{mode} {code}: {error}");
        assert_eq!(error.model_message(), "Session not found: tab-3", "{mode} {code}");
        fixture.call("plain", json!({})).await.expect("it can be called");
        assert_eq!(site.count("tools/call"), 2, "{mode} {code}");
    }
}

#[tokio::test]
async fn empty_cursors_lead_on_since_2026() {
    for (mode, expect) in [("pages", &["first", "second", "third"][..]), ("old pages", &["first"])] {
        assert_eq!(Site::start(mode).await.fixture().names().await, expect, "{mode}");
    }
}

#[tokio::test]
async fn tools_gaining_a_header_are_called_again() {
    let site = Site::start("marks late").await;
    let fixture = site.fixture();
    assert_eq!(fixture.names().await, ["stream"]);
    let notified = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&notified);
    fixture.provider.on_change(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let output = fixture.call("stream", json!({"region": "eu"})).await.expect("output");
    assert_eq!(output.content[0].as_text(), Some("streamed"));
    assert_eq!((site.count("tools/call"), site.count("tools/list")), (2, 2));
    eventually("the catalogue is told", || notified.load(Ordering::Relaxed) == 1).await;
    // What no list explains is the answer, and the call is not made again and again.
    let error = fixture.call("stream", json!({})).await.expect_err("refused");
    assert!(error.message().contains("Mcp-Param-Region"), "{error}");
    assert_eq!((site.count("tools/call"), site.count("tools/list")), (3, 3));
}

#[tokio::test]
async fn changes_missed_by_cut_streams_are_requested() {
    let site = Site::start("announces").await;
    let fixture = site.fixture();
    let notified = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&notified);
    fixture.provider.list().await.expect("listed");
    fixture.provider.on_change(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    eventually("the catalogue is told", || notified.load(Ordering::Relaxed) == 1).await;
    assert_eq!(site.streams.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_there() {
    for (mode, reported) in [("legacy", true), ("modern", false)] {
        let site = Site::start(mode).await;
        let fixture = site.fixture();
        fixture.provider.warm_up().await.expect("connected");
        let (error, ()) = tokio::join!(fixture.call("hang", json!({})), async {
            eventually("the call has arrived", || site.count("tools/call") == 1).await;
            fixture.cancel.cancel(CancelCause::User);
        });
        assert_eq!(error.expect_err("canceled").kind(), ErrorKind::Canceled);
        if reported {
            eventually("the server hears of it", || site.count("notifications/cancelled") == 1).await;
        }
    }
}

#[tokio::test]
async fn begun_calls_are_not_repeated() {
    let site = Site::start("modern").await;
    let error = site.fixture().call("put_off", json!({})).await.expect_err("refused");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{error}");
    assert_eq!(site.count("tools/call"), 2);
}

#[tokio::test]
async fn failed_calls_state_whether_they_are_repeatable() {
    let site = Site::start("legacy").await;
    let fixture = site.fixture();
    for (tool, kind, fragment, retryable) in [
        ("huge", ErrorKind::TransportError, "message over max_message_bytes", false),
        ("huge_stream", ErrorKind::TransportError, "message over max_message_bytes", false),
        ("cut", ErrorKind::TransportError, "", false),
        ("crash", ErrorKind::TransportError, "HTTP 500", false),
        ("busy", ErrorKind::TransportError, "HTTP 429", true),
        ("fail", ErrorKind::ExecutionError, "Unknown tool", false),
    ] {
        let error = fixture.call(tool, json!({})).await.expect_err(tool);
        assert_eq!((error.kind(), error.is_retryable()), (kind, retryable), "{tool}: {error}");
        assert!(error.message().contains(fragment), "{tool}: {error}");
    }
    fixture.call("plain", json!({})).await.expect("the connection lives");
    assert_eq!(site.count("initialize"), 1);
}

#[tokio::test]
async fn refused_keys_do_not_trigger_a_login() {
    let site = Site::start("unauthorized").await;
    let McpTransport::Http { url, mut headers } = site.transport() else { unreachable!("it is at an address") };
    headers.insert("authorization".to_owned(), "Bearer hush".to_owned());
    let fixture = Fixture::new(McpTransport::Http { url, headers }, |_| {});
    let error = fixture.provider.list().await.expect_err("refused").to_string();
    assert!(error.contains("HTTP 401: it refuses what `headers.Authorization` is set to"), "{error}");
    assert!(error.contains("who are you") && !error.contains("hush") && !error.contains("${TOKEN}"), "{error}");
}

#[tokio::test]
async fn unreachable_servers_name_cause_and_remedy() {
    for (mode, fragments) in [
        ("unauthorized", &["HTTP 401", "headers.Authorization"][..]),
        ("html", &["text/html", "/mcp"]),
        ("redirect", &["redirects to http://127.0.0.1:9/mcp"]),
    ] {
        let site = Site::start(mode).await;
        let fixture = site.fixture();
        let error = fixture.provider.list().await.expect_err(mode).to_string();
        assert!(fragments.iter().all(|part| error.contains(part)) && !error.contains("hush"), "{error}");
        assert!(matches!(fixture.provider.health(), Health::Failed { .. }));
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("port");
    for (url, fragment) in [
        (format!("http://{closed}/mcp"), "is the server running"),
        ("not a url".to_owned(), "not a URL"),
        ("http://host.invalid/mcp".to_owned(), "cannot connect"),
    ] {
        let fixture = Fixture::new(McpTransport::Http { url: url.clone(), headers: BTreeMap::new() }, |_| {});
        let error = fixture.provider.list().await.expect_err("unreachable").to_string();
        assert!(error.contains(fragment), "{url}: {error}");
    }
}
