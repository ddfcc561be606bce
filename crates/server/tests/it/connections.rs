//! Connections that say nothing, and too many of them, on real sockets.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Events, House, Http, LONG, call, soon};

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
async fn a_connection_that_sends_no_whole_request_is_closed() {
    let house = House::new().await;
    let http = house
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
async fn a_connection_idle_after_its_answer_is_closed_and_a_stream_is_not() {
    let house = House::new().await;
    let http = house.http_with(|options| options.connection_idle = Duration::from_millis(200)).await;
    let (session, _) = http.initialize("/mcp").await;
    let mut stream = Events::of(http.request(Method::GET, "/mcp").header("mcp-session-id", &session)).await;
    assert!(rest(&mut connect(&http, HEALTH).await).await.ends_with("ok"));
    // The other connection was closed for its silence; the stream has been silent for as long.
    house.foreign.set(&["new"]);
    assert_eq!(stream.next().await.expect("a message")["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn silent_connections_give_way_to_a_request_the_longest_idle_first() {
    let house = House::new().await;
    let http = house
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

#[tokio::test]
async fn where_every_connection_is_busy_a_further_one_is_refused_at_once() {
    let house = House::new().await;
    let http = house.http_with(|options| options.max_connections = 2).await;
    let (session, _) = http.initialize("/mcp").await;
    let get = || http.request(Method::GET, "/mcp").header("mcp-session-id", &session);
    let _first = Events::of(get()).await;
    let waiting = tokio::spawn(http.in_session(&session, "/mcp", &call(1, "test__wait", json!({}))).send());
    soon(&house.watch.started).await;
    let refused = rest(&mut connect(&http, "").await).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    let (head, body) = refused.split_once("\r\n\r\n").expect("a whole answer");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{refused}");
    waiting.abort();
    let again = async { while !is_healthy(&http).await {} };
    tokio::time::timeout(LONG, again).await.expect("room again");
}

#[tokio::test]
async fn connections_that_send_half_a_body_give_way_to_a_request() {
    let house = House::new().await;
    let http = house
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
    assert_eq!(rest(&mut halves[0]).await, "", "the first one was closed");
    // The last one may still finish: what it sent is no message.
    halves[2].write_all(b"        ").await.expect("written");
    let mut answer = [0; 12];
    tokio::time::timeout(LONG, halves[2].read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 400");
}
