//! Connections that say nothing, and too many of them, on real sockets.

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::{API_TOKEN, Events, Fixture, Http, LONG, body, call, soon};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(600);
const HEALTH: &str = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";

async fn connect(http: &Http, send: &str) -> TcpStream {
    let mut stream = TcpStream::connect(http.addr).await.expect("connected");
    stream.write_all(send.as_bytes()).await.expect("written");
    stream
}

/// Everything that comes until the server closes, which it must do soon.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    // A reset ends a connection too.
    let _ = tokio::time::timeout(LONG, stream.read_to_string(&mut text)).await.expect("closed in time");
    text
}

async fn is_healthy(http: &Http) -> bool {
    let mut stream = connect(http, &HEALTH.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")).await;
    rest(&mut stream).await.starts_with("HTTP/1.1 200 ")
}

#[tokio::test]
async fn a_connection_without_a_whole_request_closes() {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.first_request = Duration::from_millis(200);
            options.connection_idle = NEVER;
        })
        .await;
    let mut kept = connect(&http, HEALTH).await;
    for sent in ["", "GET /health HTTP/1.1\r\nhost: local"] {
        assert_eq!(rest(&mut connect(&http, sent).await).await, "", "{sent:?}");
    }
    // One that has been served may be silent for longer.
    kept.write_all(HEALTH.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").as_bytes()).await.expect("written");
    assert_eq!(rest(&mut kept).await.matches("HTTP/1.1 200 ").count(), 2);
}

#[tokio::test]
async fn idle_connections_close_and_streams_stay() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.connection_idle = Duration::from_millis(200)).await;
    let (session, _) = http.initialize("/mcp").await;
    let mut stream = Events::of(http.request(Method::GET, "/mcp").header("mcp-session-id", &session)).await;
    assert!(rest(&mut connect(&http, HEALTH).await).await.ends_with("ok"));
    // The other connection was closed for its silence; the stream has been silent for as long.
    fixture.foreign.set(&["new"]);
    assert_eq!(stream.next().await.expect("a message")["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn the_longest_idle_connection_closes_first() {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.max_connections = 3;
            options.first_request = NEVER;
            options.connection_idle = NEVER;
        })
        .await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(connect(&http, "").await);
    }
    for round in 0..3 {
        assert!(is_healthy(&http).await, "{round}");
    }
    assert_eq!(rest(&mut silent[0]).await, "", "the first one was closed");
    silent[2].write_all(HEALTH.as_bytes()).await.expect("written");
    let mut answer = [0; 12];
    tokio::time::timeout(LONG, silent[2].read_exact(&mut answer))
        .await
        .expect("in time")
        .expect("the last one is open");
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// A server whose connections are all busy, until the call is aborted.
async fn all_connections_busy() -> (Fixture, Http, Events, JoinHandle<reqwest::Result<Response>>) {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.max_connections = 2;
            options.max_requests = 1;
            options.first_request = NEVER;
        })
        .await;
    let (session, _) = http.initialize("/mcp").await;
    let stream = Events::of(http.request(Method::GET, "/mcp").header("mcp-session-id", &session)).await;
    let waiting = tokio::spawn(http.in_session(&session, "/mcp", &call(1, "test__wait", json!({}))).send());
    soon(&fixture.watch.started).await;
    (fixture, http, stream, waiting)
}

#[tokio::test]
async fn a_busy_server_answers_only_probes() {
    let (_fixture, http, _stream, waiting) = all_connections_busy().await;
    let refused = rest(&mut connect(&http, &HEALTH.replace("health", "api/tools")).await).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    let (head, body) = refused.split_once("\r\n\r\n").expect("a whole answer");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{refused}");
    for (more, at) in [("", "/error/message"), ("anthropic-version: 2023-06-01\r\n", "/error/type")] {
        let request = HEALTH.replace("/health", "/v1/models").replace("\r\n\r\n", &format!("\r\n{more}\r\n"));
        let refused = rest(&mut connect(&http, &request).await).await;
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
        let body = refused.split_once("\r\n\r\n").expect("a whole answer").1;
        let body: Value = serde_json::from_str(body).expect("JSON of the API");
        assert!(body.pointer(at).is_some_and(Value::is_string), "{body}");
    }
    // More than there are spare connections: they keep nobody out, and the first of them has gone.
    let mut silent = Vec::new();
    for _ in 0..70 {
        silent.push(connect(&http, "").await);
    }
    for path in ["health", "ready"] {
        let answer = rest(&mut connect(&http, &HEALTH.replace("health", path)).await).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\nconnection: close\r\n"),
            "{path}: {answer}"
        );
    }
    assert_eq!(rest(&mut silent[0]).await, "");
    waiting.abort();
    let again = async { while !is_healthy(&http).await {} };
    tokio::time::timeout(LONG, again).await.expect("room again");
}

#[tokio::test]
async fn many_connections_close_none_without_answer() {
    let (_fixture, http, _stream, waiting) = all_connections_busy().await;
    // Each with a body that nobody reads: closed with it unread, a connection would be reset and its answer lost.
    let request =
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let answers = futures_util::future::join_all((0..300).map(|_| async {
        let mut stream = connect(&http, request).await;
        rest(&mut stream).await
    }));
    for answer in answers.await {
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    }
    waiting.abort();
}

#[tokio::test]
async fn evicted_partial_requests_get_503() {
    let (_fixture, http, _stream, waiting) = all_connections_busy().await;
    let half = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-le";
    // One after the other, more than there is room for: each of the first ones gives way to a later one.
    let mut sent = Vec::new();
    for _ in 0..160 {
        sent.push(connect(&http, half).await);
    }
    for stream in &mut sent[..90] {
        let answer = rest(stream).await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("connection: close\r\n"), "{answer:?}");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
    }
    waiting.abort();
}

#[tokio::test]
async fn connections_within_the_bound_close_no_other() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.max_connections = 8).await;
    let close = HEALTH.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let answers = futures_util::future::join_all((0..200).map(|_| async {
        let mut stream = connect(&http, &close).await;
        rest(&mut stream).await
    }));
    for answer in answers.await {
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test]
async fn connections_with_partial_bodies_close_first() {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.max_connections = 3;
            options.body_pause = NEVER;
        })
        .await;
    let half = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let mut halves = Vec::new();
    for _ in 0..3 {
        halves.push(connect(&http, half).await);
    }
    // Until the heads are read they are idle anyway.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for round in 0..3 {
        assert!(is_healthy(&http).await, "{round}");
    }
    let refused = rest(&mut halves[0]).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.ends_with("try again\n"), "the first one: {refused}");
    // The last one may still finish: what it sent is no message.
    halves[2].write_all(b"        ").await.expect("written");
    let mut answer = [0; 12];
    tokio::time::timeout(LONG, halves[2].read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 400");
}

#[tokio::test]
async fn a_refusal_reaches_clients_still_sending_bodies() {
    let (_fixture, http, _stream, waiting) = all_connections_busy().await;
    let head =
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n";
    for round in 0..5 {
        let mut stream = connect(&http, head).await;
        // Time for the answer, and for a close.
        tokio::time::sleep(Duration::from_millis(100)).await;
        for _ in 0..2 {
            stream.write_all(&[b' '; 100_000]).await.expect("somebody reads");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{round}: {answer}");
    }
    waiting.abort();
}

#[tokio::test]
async fn unfinished_bodies_do_not_block_small_ones() {
    let fixture = Fixture::with(|options| options.max_message = 1 << 20).await;
    let http = fixture
        .http_with(|options| {
            options.max_body_bytes = 1 << 20;
            options.body_pause = NEVER;
        })
        .await;
    let large = |path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n");
        let head = head + &format!("authorization: Bearer {API_TOKEN}\r\n");
        let head = head + "content-type: application/json\r\nconnection: close\r\ncontent-length: 900000\r\n\r\n";
        head + &" ".repeat(800_000)
    };
    let mut first = connect(&http, &large("/api/call")).await;
    // Until it has taken its room.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for path in ["/api/call", "/mcp"] {
        let refused = rest(&mut connect(&http, &large(path)).await).await;
        assert!(
            refused.starts_with("HTTP/1.1 503 ") && refused.contains("\r\nretry-after: 1\r\n"),
            "{path}: {refused}"
        );
        let small = json!({"tool": "test__echo", "arguments": {"text": "x".repeat(50_000)}});
        assert_eq!(body(http.post("/api/call", &small), 200).await["ok"], true);
    }
    // What has come to its end, or is not wanted any more, gives its room back: what was sent is no call.
    for path in ["/api/call", "/mcp"] {
        first.write_all(&[b' '; 100_000]).await.expect("written");
        let answer = rest(&mut first).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        first = connect(&http, &large(path)).await;
    }
}
