//! A small MCP server side, written against the specification and without an SDK, so that a test server controls every
//! byte that it sends, wrong ones included.
//!
//! Two generations: *legacy* (2025-11-25 and older: `initialize`, sessions) and *modern* (2026-07-28: stateless,
//! `server/discover`, everything about the client in `params._meta`). Four transports: one JSON message a line on
//! stdio, streamable HTTP at `/mcp`, HTTP with server-sent events at `/sse`, and WebSocket at `/ws`.

mod answer;
mod exchange;
mod host;
mod http;
mod listen;
mod modern;
mod outlet;
mod session;
mod sse;
mod stdio;
mod websocket;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::{Map, Value};

pub(crate) use answer::{Answer, RpcError, text_result};
pub(crate) use exchange::{Exchange, Level};
use host::Host;
pub(crate) use listen::{Change, Listeners};

/// The stateless protocol generation.
const MODERN: &str = "2026-07-28";
/// The protocol revisions that begin with `initialize`, newest first.
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The prefix of the specification's own `_meta` keys.
pub(crate) const META: &str = "io.modelcontextprotocol/";

/// The most bytes of one incoming message.
const MAX_MESSAGE: usize = 64 << 20;
/// The most running requests of one session.
const MAX_RUNNING: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) id: Value,
    pub(crate) method: String,
    pub(crate) params: Map<String, Value>,
    pub(crate) era: Era,
}

impl Request {
    /// Returns a string parameter, empty if absent.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.params.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns an argument of a `tools/call` or a `prompts/get`.
    pub(crate) fn argument(&self, key: &str) -> Option<&Value> {
        self.params.get("arguments")?.get(key)
    }

    fn meta(&self, key: &str) -> Option<&Value> {
        self.params.get("_meta")?.get(key)
    }
}

/// A message from the client, by kind.
enum Incoming {
    Request(Request),
    /// `notifications/cancelled` for the request with this id.
    Cancelled(Value),
    /// The answer to a request of the server.
    Answered(Value, Result<Value, RpcError>),
    /// Any other notification.
    Other,
}

impl Incoming {
    /// Sorts a message. A request whose `_meta` names a protocol version is modern, on every transport.
    fn sort(message: Value, transport_era: Era) -> Result<Self, RpcError> {
        let Value::Object(mut message) = message else {
            return Err(RpcError::new(RpcError::INVALID_REQUEST, "a message is one JSON object"));
        };
        let params = match message.remove("params") {
            Some(Value::Object(params)) => params,
            None => Map::new(),
            Some(_) => return Err(RpcError::invalid("params is an object")),
        };
        let Some(Value::String(method)) = message.remove("method") else {
            let id = message.remove("id").unwrap_or_default();
            return Ok(match (message.remove("result"), message.remove("error")) {
                (Some(result), None) => Self::Answered(id, Ok(result)),
                (_, Some(error)) => Self::Answered(id, Err(RpcError::of_client(&error))),
                (None, None) => Self::Other,
            });
        };
        let Some(id) = message.remove("id") else {
            return Ok(match params.get("requestId") {
                Some(id) if method == "notifications/cancelled" => Self::Cancelled(id.clone()),
                _ => Self::Other,
            });
        };
        let mut request = Request { id, method, params, era: transport_era };
        if request.meta(&format!("{META}protocolVersion")).is_some() {
            request.era = Era::Modern;
        }
        Ok(Self::Request(request))
    }
}

/// The part of a test server beside the protocol's own methods, which [`serve`] answers: `initialize`, `ping`,
/// `logging/setLevel`, `resources/subscribe` and `unsubscribe` (if its capabilities have them), `server/discover`,
/// `subscriptions/listen`.
#[async_trait]
pub(crate) trait Server: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    fn capabilities(&self, era: Era) -> Value;

    /// The server's instructions to clients.
    fn instructions(&self) -> Option<&'static str> {
        None
    }

    /// Whether the server takes modern requests; if not, it refuses them as SDKs before 2026 do.
    fn speaks_modern(&self) -> bool;

    /// Whether legacy HTTP clients can resume a lost stream, so that hanging up cancels nothing.
    fn is_resumable(&self) -> bool {
        false
    }

    /// Whether requests of this method are read and never answered.
    fn ignores(&self, _method: &str) -> bool {
        false
    }

    /// The schema of a tool's arguments, for tools with arguments that are also sent as headers.
    fn input_schema(&self, _tool: &str) -> Option<Value> {
        None
    }

    /// The cache lifetime in milliseconds and the cache scope of this method's modern results.
    fn caching(&self, _method: &str) -> (u64, &'static str) {
        (0, "private")
    }

    /// Called once before anything else, with the listeners for changes that no request makes.
    fn meet(&self, _listeners: &Arc<Listeners>) {}

    async fn handle(&self, request: &Request, exchange: &Exchange) -> Answer;
}

/// The transport: standard input and output, or a loopback port (0 for any free port).
#[derive(Debug, Clone, Copy)]
pub(crate) enum ServedTransport {
    Stdio,
    Http(u16),
    Sse(u16),
    WebSocket(u16),
}

/// Serves until standard input ends, or on a port until the process is ended. Prints `NAME: ready URL` on standard
/// error when it listens on a port.
pub(crate) async fn serve(server: impl Server, door: ServedTransport) -> io::Result<()> {
    let host = Arc::new(Host::new(server));
    match door {
        ServedTransport::Stdio => stdio::serve(host).await,
        ServedTransport::Http(port) => http::serve(host, port).await,
        ServedTransport::Sse(port) => sse::serve(host, port).await,
        ServedTransport::WebSocket(port) => websocket::serve(host, port).await,
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
