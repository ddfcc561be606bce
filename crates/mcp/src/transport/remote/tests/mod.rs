//! Tests of the transports with servers on sockets.

mod authorizer;
mod older;
mod streamable;
mod websocket;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use url::Url;

use super::{RemoteKind, Target};
use crate::transport::{Incoming, Outgoing, OutgoingKind, RequestId, SendError};
use toolwright_net::Authorizer;

/// Bound on a message in these tests.
const MAX: usize = 10_000;
const LEGACY: Option<&str> = Some("2025-11-25");
const MODERN: Option<&str> = Some("2026-07-28");

/// The received messages.
#[derive(Default)]
struct Log {
    messages: Mutex<Vec<(Value, Option<RequestId>)>>,
    noise: Mutex<Vec<String>>,
    ended: Mutex<Vec<String>>,
    /// Reports of an expired session, and of missed messages.
    reported: Mutex<Vec<&'static str>>,
}

impl Incoming for Log {
    fn message(&self, json: &[u8], during: Option<RequestId>) {
        self.messages.lock().expect("log").push((serde_json::from_slice(json).expect("JSON"), during));
    }
    fn unreadable(&self, _json: &[u8]) -> bool {
        false
    }
    fn request_failed(&self, id: RequestId, error: SendError) {
        panic!("request {id} is lost: {error:?}");
    }
    fn unreadable_message(&self, what: &str) {
        self.noise.lock().expect("log").push(what.to_owned());
    }
    fn expired(&self) {
        self.reported.lock().expect("log").push("expired");
    }
    fn session_may_be_lost(&self) {
        self.reported.lock().expect("log").push("doubted");
    }
    fn messages_missed(&self) {
        self.reported.lock().expect("log").push("missed");
    }
    fn message_too_large(&self, too_large: String) {
        self.ended.lock().expect("log").push(too_large);
    }
    fn ended(&self, reason: String) {
        self.ended.lock().expect("log").push(reason);
    }
}

impl Log {
    fn messages(&self) -> Vec<(Value, Option<RequestId>)> {
        self.messages.lock().expect("log").clone()
    }

    fn reported(&self) -> Vec<&'static str> {
        self.reported.lock().expect("log").clone()
    }

    fn ended(&self) -> Vec<String> {
        self.ended.lock().expect("log").clone()
    }
}

/// A request as a server got it.
#[derive(Debug, Clone)]
struct SentRequest {
    method: Method,
    path: String,
    headers: HeaderMap,
    /// Null without a body.
    message: Value,
    at: Instant,
}

impl SentRequest {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }
}

type Handler = dyn Fn(&SentRequest) -> Response + Send + Sync;

/// A server that records its requests and answers as a test specifies.
struct Site {
    url: Url,
    asked: Arc<Mutex<Vec<SentRequest>>>,
}

#[derive(Clone)]
struct Served {
    asked: Arc<Mutex<Vec<SentRequest>>>,
    handler: Arc<Handler>,
}

impl Site {
    async fn start(handler: impl Fn(&SentRequest) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("address"));
        let served = Served { asked: Arc::default(), handler: Arc::new(handler) };
        let asked = Arc::clone(&served.asked);
        let app = axum::Router::new().fallback(answer).with_state(served);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url: url.parse().expect("url"), asked }
    }

    fn asked(&self) -> Vec<SentRequest> {
        self.asked.lock().expect("asked").clone()
    }

    async fn target(&self) -> Arc<Target> {
        self.target_with(None).await
    }

    async fn target_with(&self, authorizer: Option<Arc<dyn Authorizer>>) -> Arc<Target> {
        target(&self.url, authorizer).await
    }
}

async fn answer(State(served): State<Served>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let message = serde_json::from_slice(&body).unwrap_or_default();
    let asked = SentRequest { method, path: uri.to_string(), headers, message, at: Instant::now() };
    let response = (served.handler)(&asked);
    served.asked.lock().expect("asked").push(asked);
    response
}

async fn target(url: &Url, authorizer: Option<Arc<dyn Authorizer>>) -> Arc<Target> {
    let headers = HeaderMap::from_iter([("x-key".parse().expect("name"), "hush".parse().expect("value"))]);
    let kind = if url.scheme() == "ws" { RemoteKind::WebSocket } else { RemoteKind::Http };
    Target::new(kind, url.clone(), headers, authorizer, MAX).await.expect("target")
}

fn request<'a>(id: RequestId, method: &'a str, version: Option<&'static str>) -> Outgoing<'a> {
    let json = json!({"jsonrpc": "2.0", "id": id, "method": method}).to_string().into_bytes();
    let kind = OutgoingKind::Request { id, method, name: None };
    Outgoing { json, kind, version, headers: Vec::new() }
}

fn notification(method: &str) -> Outgoing<'_> {
    let json = json!({"jsonrpc": "2.0", "method": method}).to_string().into_bytes();
    let kind = OutgoingKind::Notification { method };
    Outgoing { json, kind, version: LEGACY, headers: Vec::new() }
}

fn result(id: RequestId, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// A JSON response to any request.
fn reply(asked: &SentRequest) -> Response {
    axum::Json(result(asked.message["id"].as_u64().expect("id"), json!({"of": asked.message["method"]})))
        .into_response()
}

fn status(code: u16) -> Response {
    Response::builder().status(code).body(Body::empty()).expect("response")
}

/// An event stream of these pieces, which then ends or stays open.
fn stream(pieces: Vec<String>, end: End) -> Response {
    use futures_util::StreamExt as _;
    let pieces =
        futures_util::stream::iter(pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))));
    let pieces = match end {
        End::Closed => pieces.boxed(),
        End::Open => pieces.chain(futures_util::stream::pending()).boxed(),
    };
    ([("content-type", "Text/Event-Stream; charset=utf-8")], Body::from_stream(pieces)).into_response()
}

enum End {
    Closed,
    Open,
}

fn event(message: &Value) -> String {
    format!("event: message\ndata: {message}\n\n")
}

/// Waits, some seconds at most, until `holds`.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(15);
    while !holds() {
        assert!(Instant::now() < end, "it never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a future that must not hang.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(15), work).await.expect("it hangs")
}
