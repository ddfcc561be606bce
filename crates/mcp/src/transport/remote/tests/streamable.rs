//! Streamable HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::protocol::revision::Era;
use http::{HeaderName, HeaderValue};

use super::super::StreamableHttp;
use super::*;
use crate::transport::{CancelNotice, Transport as _};

async fn open(site: &Site) -> (Arc<StreamableHttp>, Arc<Log>) {
    let log = Arc::new(Log::default());
    (Arc::new(StreamableHttp::new(site.target().await, Arc::clone(&log) as _)), log)
}

/// A server with a session; `handler` answers the other requests.
async fn in_session(
    handler: impl Fn(&SentRequest) -> Response + Send + Sync + 'static,
) -> (Site, Arc<StreamableHttp>, Arc<Log>) {
    let site = Site::start(move |asked| {
        if asked.message["method"] == "initialize" {
            return ([("mcp-session-id", "s1")], reply(asked)).into_response();
        }
        handler(asked)
    })
    .await;
    let (transport, log) = open(&site).await;
    soon(transport.send(request(1, "initialize", None))).await.expect("sent");
    (site, transport, log)
}

#[tokio::test]
async fn legacy_requests_carry_their_session() {
    let (site, transport, log) = in_session(|asked| match asked.method {
        Method::POST if asked.message.get("id").is_none() => status(202),
        Method::POST => reply(asked),
        Method::DELETE => status(200),
        _ => status(405),
    })
    .await;
    soon(transport.send(notification("notifications/initialized"))).await.expect("sent");
    transport.established(Era::Legacy, "2025-11-25");
    let mut call = request(2, "tools/call", LEGACY);
    call.kind = OutgoingKind::Request { id: 2, method: "tools/call", name: Some("t") };
    soon(transport.send(call)).await.expect("sent");
    assert_eq!(log.messages()[1], (result(2, json!({"of": "tools/call"})), Some(2)));
    eventually("the stream of the session is asked for", || site.asked().len() == 4).await;
    assert_eq!(transport.abandon(2), CancelNotice::Needed);
    soon(transport.close()).await;
    for asked in site.asked() {
        assert_eq!(asked.header("x-key"), Some("hush"), "{asked:?}");
        let is_initialize = asked.message["method"] == "initialize";
        let expect = if is_initialize { [None; 2] } else { [Some("s1"), Some("2025-11-25")] };
        assert_eq!([asked.header("mcp-session-id"), asked.header("mcp-protocol-version")], expect, "{asked:?}");
        assert_eq!((asked.header("mcp-method"), asked.header("mcp-name")), (None, None));
        let accept = match asked.method {
            Method::POST => Some("application/json, text/event-stream"),
            Method::GET => Some("text/event-stream"),
            _ => Some("*/*"),
        };
        assert_eq!(asked.header("accept"), accept);
    }
    assert_eq!(site.asked().last().expect("asked").method, Method::DELETE);
}

#[tokio::test]
async fn modern_requests_describe_themselves_in_headers() {
    let site = Site::start(reply).await;
    let (transport, _) = open(&site).await;
    for (name, expect) in [("plain", "plain"), ("größe", "=?base64?Z3LDtsOfZQ==?=")] {
        let mut call = request(1, "tools/call", MODERN);
        call.kind = OutgoingKind::Request { id: 1, method: "tools/call", name: Some(name) };
        call.headers = vec![(HeaderName::from_static("mcp-param-region"), HeaderValue::from_static("eu"))];
        soon(transport.send(call)).await.expect("sent");
        let asked = site.asked().pop().expect("asked");
        for (header, value) in [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", expect),
            ("mcp-param-region", "eu"),
            ("content-type", "application/json"),
        ] {
            assert_eq!(asked.header(header), Some(value), "{header}");
        }
    }
    transport.established(Era::Modern, "2026-07-28");
    assert_eq!(transport.abandon(1), CancelNotice::Unneeded);
    soon(transport.close()).await;
    assert!(site.asked().iter().all(|asked| asked.method == Method::POST), "neither a stream nor a session to end");
}

#[tokio::test]
async fn stream_messages_belong_to_their_request_in_order() {
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}});
    let question = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"});
    let sent = [progress.clone(), question.clone()];
    let site = Site::start(move |_| {
        let mut pieces = vec![": hello\n\nevent: other\ndata: x\n\ndata: keep-alive\n\n".to_owned()];
        pieces.extend(sent.iter().map(event));
        // Cut inside a character.
        let answer = event(&result(5, json!({"z": "é"})));
        let (head, tail) = answer.split_at(answer.len() / 2);
        pieces.extend([head.to_owned(), tail.to_owned()]);
        stream(pieces, End::Open)
    })
    .await;
    let (transport, log) = open(&site).await;
    soon(transport.send(request(5, "tools/call", LEGACY))).await.expect("answered though the stream stays open");
    assert_eq!(log.messages(), [progress, question, result(5, json!({"z": "é"}))].map(|message| (message, Some(5))));
    assert_eq!(*log.noise.lock().expect("log"), ["not a JSON-RPC message: keep-alive"]);
}

#[tokio::test]
async fn broken_streams_resume_where_they_were() {
    let (site, transport, log) = in_session(|asked| match (&asked.method, asked.header("last-event-id")) {
        (&Method::POST, _) => stream(vec!["id: e1\nretry: 150\ndata: \n\n".into()], End::Closed),
        (_, Some("e1")) => stream(vec!["id: e2\ndata: \n\n".into()], End::Closed),
        (_, Some("e2")) => stream(vec![event(&result(2, json!({})))], End::Closed),
        _ => status(405),
    })
    .await;
    soon(transport.send(request(2, "tools/call", LEGACY))).await.expect("answered");
    assert_eq!(log.messages().len(), 2);
    let asked = site.asked();
    assert_eq!(asked.len(), 4, "nothing is posted twice: {asked:?}");
    assert!(asked[2..].iter().all(|asked| asked.method == Method::GET && asked.header("mcp-session-id") == Some("s1")));
    for pair in asked[1..].windows(2).take(1) {
        assert!(pair[1].at - pair[0].at >= Duration::from_millis(140), "the server asked for a pause");
    }
}

#[tokio::test]
async fn cut_events_are_requested_again() {
    let cut = |message: &Value| {
        let whole = message.to_string();
        format!("id: e2\ndata: {}", &whole[..whole.len() / 2])
    };
    let (whole, half) = (result(2, json!({"large": 1})), cut(&result(2, json!({"large": 1}))));
    let (site, transport, log) = in_session(move |asked| match (&asked.method, asked.header("last-event-id")) {
        (&Method::POST, _) => stream(vec!["id: e1\nretry: 1\ndata: \n\n".into(), half.clone()], End::Closed),
        // After the last complete event.
        (_, Some("e1")) => stream(vec![format!("id: e2\n{}", event(&whole))], End::Closed),
        // Nothing follows the answer.
        _ => stream(Vec::new(), End::Open),
    })
    .await;
    soon(transport.send(request(2, "tools/call", LEGACY))).await.expect("answered");
    assert_eq!(log.messages()[1..], [(result(2, json!({"large": 1})), Some(2))]);
    assert_eq!(site.asked().len(), 3);
    // The same for the stream of the session.
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let (whole, half) = (changed.clone(), cut(&changed));
    let (_site, transport, log) = in_session(move |asked| match asked.header("last-event-id") {
        None => stream(vec!["id: e1\nretry: 1\ndata: \n\n".into(), half.clone()], End::Closed),
        Some("e1") => stream(vec![format!("id: e2\n{}", event(&whole))], End::Open),
        Some(_) => stream(Vec::new(), End::Open),
    })
    .await;
    transport.established(Era::Legacy, "2025-11-25");
    eventually("the notice comes", || log.messages().contains(&(changed.clone(), None))).await;
}

#[tokio::test]
async fn unresumable_streams_break_their_call() {
    let once_more = |code| {
        move |asked: &SentRequest| match asked.method {
            Method::POST => stream(vec!["id: e1\nretry: 1\ndata: \n\n".into()], End::Closed),
            _ => status(code),
        }
    };
    type Answer = Box<dyn Fn(&SentRequest) -> Response + Send + Sync>;
    let cases: [(Answer, Option<&str>, &str, usize); 5] = [
        (
            Box::new(|_: &SentRequest| stream(vec![event(&json!({"method": "x"}))], End::Closed)),
            LEGACY,
            "ended before the answer",
            1,
        ),
        (Box::new(once_more(200)), MODERN, "ended before the answer", 1),
        (Box::new(once_more(405)), LEGACY, "HTTP 405", 2),
        (Box::new(once_more(503)), LEGACY, "HTTP 503", 6),
        (
            Box::new(|_: &SentRequest| stream(vec!["data: {\"id\":2,\"result\":[}\n\n".into()], End::Open)),
            LEGACY,
            "not a valid message",
            1,
        ),
    ];
    for (answer, version, expect, requests) in cases {
        let site = Site::start(answer).await;
        let (transport, _) = open(&site).await;
        let error = soon(transport.send(request(2, "tools/call", version))).await.expect_err(expect);
        let SendError::Broken(reason) = error else { panic!("{error:?}") };
        assert!(reason.contains(expect), "{reason}");
        assert_eq!(site.asked().len(), requests, "{expect}");
    }
}

#[tokio::test]
async fn reopened_session_streams_may_bring_answers() {
    let gets = AtomicUsize::new(0);
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let first = changed.clone();
    let (site, transport, log) = in_session(move |asked| {
        if asked.method == Method::POST {
            // Its own stream stays silent: the answer comes on the other one.
            return stream(vec!["id: p\nretry: 60000\ndata: \n\n".into()], End::Open);
        }
        match gets.fetch_add(1, Ordering::Relaxed) {
            0 => stream(vec![format!("id: g\nretry: 1\ndata: {first}\n\n")], End::Closed),
            1 => status(502),
            2 => stream(vec![format!("data: {}\n\n", "x".repeat(2 * MAX))], End::Closed),
            _ => stream(vec![event(&result(2, json!({})))], End::Open),
        }
    })
    .await;
    let sent = tokio::spawn({
        let transport = Arc::clone(&transport);
        async move { transport.send(request(2, "tools/call", LEGACY)).await }
    });
    eventually("the call has arrived", || site.asked().len() == 2).await;
    transport.established(Era::Legacy, "2025-11-25");
    soon(sent).await.expect("task").expect("answered");
    assert_eq!(log.messages()[1..], [(changed, None), (result(2, json!({})), None)]);
    let ids: Vec<_> = site.asked()[2..].iter().map(|asked| asked.header("last-event-id").map(str::to_owned)).collect();
    assert_eq!(ids, [None, Some("g".into()), Some("g".into()), None], "what was too large is not asked for again");
    assert_eq!(*log.noise.lock().expect("log"), [format!("message over max_message_bytes ({MAX})")]);
}

#[tokio::test]
async fn session_streams_are_retried_until_surely_absent() {
    let quick = || stream(vec!["retry: 1\ndata: \n\n".into()], End::Closed);
    let in_words =
        |code: u16, body: &'static str| (axum::http::StatusCode::from_u16(code).expect("code"), body).into_response();
    // The server's answers to requests for the stream by number, the number of requests, and the reports.
    type StreamAnswer = Box<dyn Fn(usize) -> Response + Send + Sync>;
    let cases: [(&str, StreamAnswer, usize, &[&str]); 8] = [
        ("it has none", Box::new(|_| status(405)), 1, &[]),
        ("it has no such path", Box::new(|_| status(404)), 1, &[]),
        ("what it says of its path is no session's end", Box::new(move |_| in_words(404, "Session not found")), 1, &[]),
        ("the session is forgotten", Box::new(move |n| if n == 0 { quick() } else { status(404) }), 2, &["expired"]),
        (
            "the session is forgotten in the words of an SDK",
            Box::new(
                move |n| if n == 0 { quick() } else { in_words(400, "Bad Request: No valid session ID provided") },
            ),
            2,
            &["expired"],
        ),
        (
            "another connection has it still",
            Box::new(move |n| match n {
                0 => quick(),
                1 => in_words(409, "Conflict: Only one SSE stream is allowed per session"),
                _ => stream(Vec::new(), End::Open),
            }),
            3,
            &["missed"],
        ),
        (
            "an event that it does not know any more",
            Box::new(move |n| match n {
                0 => stream(vec!["id: e\nretry: 1\ndata: \n\n".into()], End::Closed),
                1 => in_words(400, "Invalid event ID format"),
                _ => stream(Vec::new(), End::Open),
            }),
            3,
            &["missed"],
        ),
        (
            "it goes on where it was",
            Box::new(move |n| match n {
                0 => stream(vec!["id: e\nretry: 1\ndata: \n\n".into()], End::Closed),
                _ => stream(Vec::new(), End::Open),
            }),
            2,
            &[],
        ),
    ];
    for (what, says, asked, reported) in cases {
        let gets = AtomicUsize::new(0);
        let (site, transport, log) = in_session(move |_| says(gets.fetch_add(1, Ordering::Relaxed))).await;
        transport.established(Era::Legacy, "2025-11-25");
        let asks = || site.asked().iter().filter(|asked| asked.method == Method::GET).count();
        eventually(what, || asks() >= asked && log.reported().len() >= reported.len()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!((asks(), &*log.reported()), (asked, reported), "{what}");
    }
}

#[tokio::test]
async fn failures_name_effect_and_remedy() {
    let large = || "x".repeat(MAX);
    let site = Site::start(move |asked| {
        let json = |code: u16, body: String| {
            (axum::http::StatusCode::from_u16(code).expect("code"), [("content-type", "application/json")], body)
                .into_response()
        };
        match asked.message["method"].as_str().expect("method") {
            "large" => json(200, result(2, json!(large())).to_string()),
            "large_stream" => stream(vec![event(&result(2, json!(large())))], End::Open),
            "html" => ([("content-type", "text/html")], "<h1>").into_response(),
            "no_json" => json(200, "{".into()),
            "no_message" => json(200, "{\"error\":\"nope\"}".into()),
            "other_id" => json(200, result(3, json!({})).to_string()),
            "accepted" => status(202),
            "unauthorized" => json(401, json!({"jsonrpc": "2.0", "error": {"code": 1, "message": "m"}}).to_string()),
            "moved" => {
                (axum::http::StatusCode::TEMPORARY_REDIRECT, [("location", "http://127.0.0.1:9/x")]).into_response()
            }
            "crash" => (axum::http::StatusCode::INTERNAL_SERVER_ERROR, "stack  trace").into_response(),
            "busy" => status(429),
            _ => status(404),
        }
    })
    .await;
    let (transport, _) = open(&site).await;
    let kinds: [fn(String) -> SendError; 4] =
        [SendError::Broken, SendError::Fault, SendError::Final, SendError::NotSent];
    let [broken, fault, last, unsent] = kinds;
    for (method, kind, expect) in [
        ("large", broken, "message over max_message_bytes (10000)"),
        ("large_stream", broken, "message over max_message_bytes (10000)"),
        ("html", broken, "`text/html`, which is not MCP"),
        ("no_json", broken, "not an MCP message: {"),
        ("other_id", broken, "no answer to the request"),
        ("accepted", broken, "without an answer (HTTP 202"),
        ("unauthorized", last, "headers.Authorization"),
        ("moved", last, "redirects to http://127.0.0.1:9/x"),
        ("crash", fault, "see its log (it says: stack trace)"),
        ("busy", unsent, "try again later"),
        ("missing", broken, "often it ends in /mcp"),
    ] {
        let error = soon(transport.send(request(2, method, LEGACY))).await.expect_err(method);
        let (SendError::Broken(text) | SendError::Fault(text) | SendError::Final(text) | SendError::NotSent(text)) =
            error.clone()
        else {
            panic!("{method}: {error:?}")
        };
        assert_eq!(error, kind(text.clone()), "{method}");
        assert!(text.contains(expect) && !text.contains("hush"), "{method}: {text}");
    }
    assert_eq!(site.asked().len(), 11, "nothing is sent twice");
    let nowhere = Url::parse("http://127.0.0.1:1/mcp").expect("url");
    let transport = StreamableHttp::new(target(&nowhere, None).await, Arc::new(Log::default()));
    let error = soon(transport.send(request(2, "initialize", None))).await.expect_err("refused");
    assert!(matches!(&error, SendError::NotSent(text) if text.contains("is the server running")), "{error:?}");
}

#[tokio::test]
async fn errors_in_failed_responses_are_the_answer() {
    let site = Site::start(|asked| {
        let body = json!({"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32020, "message": "m", "data": asked.message}});
        (axum::http::StatusCode::BAD_REQUEST, axum::Json(body)).into_response()
    })
    .await;
    let (transport, log) = open(&site).await;
    soon(transport.send(request(9, "server/discover", MODERN))).await.expect("answered");
    let (message, during) = log.messages().remove(0);
    assert_eq!((&message["id"], &message["error"]["code"], during), (&json!(9), &json!(-32020), Some(9)));
    assert_eq!(message["error"]["data"]["id"], 9);
}

#[tokio::test]
async fn forgotten_sessions_differ_from_wrong_paths() {
    for (code, body) in [(404, ""), (400, "Bad Request: No valid Session ID provided")] {
        let (site, transport, log) =
            in_session(move |_| (axum::http::StatusCode::from_u16(code).expect("code"), body).into_response()).await;
        let error = soon(transport.send(request(2, "tools/call", LEGACY))).await.expect_err("expired");
        assert_eq!(error, SendError::Expired);
        assert_eq!(soon(transport.send(notification("x"))).await, Err(SendError::Expired));
        assert_eq!((site.asked().len(), log.messages().len()), (3, 1));
    }
}

#[tokio::test]
async fn connections_are_reused_after_any_answer() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = Url::parse(&format!("http://{}/mcp", listener.local_addr().expect("address"))).expect("url");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let handler = |body: Bytes| async move {
        let message: Value = serde_json::from_slice(&body).expect("JSON");
        let Some(id) = message["id"].as_u64() else {
            return (axum::http::StatusCode::ACCEPTED, "Accepted").into_response();
        };
        match id % 2 {
            0 => axum::Json(result(id, json!({}))).into_response(),
            _ => stream(vec![event(&result(id, json!({}))), ": bye\n\n".into()], End::Closed),
        }
    };
    let app = axum::Router::new().fallback(handler);
    tokio::spawn(async move {
        use axum::serve::ListenerExt as _;
        let listener = listener.tap_io(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
        axum::serve(listener, app).await
    });
    let transport = StreamableHttp::new(target(&url, None).await, Arc::new(Log::default()));
    for id in 0..30 {
        soon(transport.send(request(id, "x", LEGACY))).await.expect("answered");
        soon(transport.send(notification("y"))).await.expect("told");
    }
    let connections = connections.load(Ordering::Relaxed);
    assert!(connections <= 4, "{connections} connections for 60 exchanges, one after the other");
}

#[tokio::test]
async fn a_dropped_request_closes_its_exchange() {
    struct CountOnDrop(Arc<AtomicUsize>);
    impl Drop for CountOnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let gone = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&gone);
    let site = Site::start(move |_| {
        let gone = CountOnDrop(Arc::clone(&counted));
        let never = futures_util::stream::once(async move {
            let _gone = gone;
            std::future::pending::<Result<Bytes, std::io::Error>>().await
        });
        ([("content-type", "text/event-stream")], Body::from_stream(never)).into_response()
    })
    .await;
    let (transport, _) = open(&site).await;
    let sent = tokio::time::timeout(Duration::from_millis(200), transport.send(request(1, "tools/call", MODERN))).await;
    assert!(sent.is_err(), "it hangs");
    eventually("the server sees it", || gone.load(Ordering::Relaxed) == 1).await;
}
