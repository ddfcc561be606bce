//! A small MCP server side, written against the specification and without an SDK, so that a test
//! server can say exactly the bytes it wants, wrong ones included.
//!
//! Two generations: *legacy* (2025-11-25 and older: `initialize`, sessions) and *modern* (2026-07-28:
//! stateless, `server/discover`, everything about the client in `params._meta`). Two transports: one
//! JSON message a line on stdio, and streamable HTTP at `/mcp`.

mod host;
mod http;
mod modern;
mod stdio;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use host::{Host, Outlet};

/// The stateless protocol generation.
const MODERN: &str = "2026-07-28";
/// The generations that begin with `initialize`, newest first.
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// What the specification's own `_meta` keys begin with.
const META: &str = "io.modelcontextprotocol/";

/// Most bytes that one incoming message may have.
const MAX_MESSAGE: usize = 64 << 20;
/// Most requests of one session that may be running.
const MAX_RUNNING: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

#[derive(Debug)]
pub(crate) struct RpcError {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    pub(crate) const PARSE: i64 = -32700;
    pub(crate) const INVALID_REQUEST: i64 = -32600;
    pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
    pub(crate) const INVALID_PARAMS: i64 = -32602;
    pub(crate) const BUSY: i64 = -32000;
    pub(crate) const SESSION_NOT_FOUND: i64 = -32001;
    pub(crate) const HEADER_MISMATCH: i64 = -32020;
    pub(crate) const MISSING_CAPABILITY: i64 = -32021;
    pub(crate) const UNSUPPORTED_VERSION: i64 = -32022;

    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub(crate) fn unknown_method(method: &str) -> Self {
        Self::new(Self::METHOD_NOT_FOUND, format!("method not found: {method}"))
    }

    /// The whole message. An unknown id is left out: `null` is no legal id in MCP.
    fn into_message(self, id: Option<&Value>) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(data) = self.data {
            error["data"] = data;
        }
        match id {
            Some(id) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
            None => json!({"jsonrpc": "2.0", "error": error}),
        }
    }
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Result(Value),
    Error(RpcError),
    /// No answer, ever.
    Silence,
    /// The result is sent, then the process ends with this exit code.
    LastWords(Value, i32),
}

impl Answer {
    /// A tool result of one text block.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Result(text_result(text))
    }
}

impl From<RpcError> for Answer {
    fn from(error: RpcError) -> Self {
        Self::Error(error)
    }
}

pub(crate) fn text_result(text: impl Into<String>) -> Value {
    json!({"content": [{"type": "text", "text": text.into()}]})
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: Value,
    pub(crate) method: String,
    pub(crate) params: Map<String, Value>,
    pub(crate) era: Era,
}

impl Request {
    /// A string parameter, empty when absent.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.params.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// An argument of a `tools/call`.
    pub(crate) fn argument(&self, key: &str) -> Option<&Value> {
        self.params.get("arguments")?.get(key)
    }

    fn meta(&self, key: &str) -> Option<&Value> {
        self.params.get("_meta")?.get(key)
    }

    /// Whether the client asked for log messages with this request (modern only).
    pub(crate) fn wants_log(&self) -> bool {
        self.meta(&format!("{META}logLevel")).is_some()
    }
}

/// A message from the client, sorted by what it asks for.
enum Incoming {
    Request(Request),
    /// `notifications/cancelled` for the request with this id.
    Cancelled(Value),
    /// Other notifications, and answers to requests that nobody here sends.
    Other,
}

impl Incoming {
    /// Modern is a message whose `_meta` names a protocol version, whatever the transport says.
    fn sort(message: Value, transport_era: Era) -> Result<Self, RpcError> {
        let Value::Object(mut message) = message else {
            return Err(RpcError::new(RpcError::INVALID_REQUEST, "a message is one JSON object"));
        };
        let params = match message.remove("params") {
            Some(Value::Object(params)) => params,
            None => Map::new(),
            Some(_) => return Err(RpcError::new(RpcError::INVALID_PARAMS, "params is an object")),
        };
        let Some(Value::String(method)) = message.remove("method") else { return Ok(Self::Other) };
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

/// What a running request can do besides answering.
pub(crate) struct Exchange<'a> {
    host: &'a Host,
    outlet: Outlet,
    client_capabilities: Value,
    cancel: CancellationToken,
}

impl Exchange<'_> {
    /// Sends a notification that belongs to this request.
    pub(crate) async fn notify(&self, method: &str, params: Value) {
        self.outlet.message(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Reports progress if the client asked for it.
    pub(crate) async fn progress(&self, request: &Request, done: u64, total: u64) {
        if let Some(token) = request.meta("progressToken") {
            self.notify("notifications/progress", json!({"progressToken": token, "progress": done, "total": total}))
                .await;
        }
    }

    /// Writes bytes as they are into the stream that carries the answer.
    pub(crate) async fn raw(&self, bytes: &[u8]) {
        self.outlet.raw(bytes).await;
    }

    /// Tells every client that listens that the list of tools is another one now.
    pub(crate) async fn tools_changed(&self) {
        self.host.tools_changed().await;
    }

    pub(crate) fn client_has(&self, capability: &str) -> bool {
        self.client_capabilities.get(capability).is_some()
    }

    /// Whether the client has cancelled this request or hung up.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Resolves when the client cancels this request or hangs up.
    pub(crate) async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}

/// What one test server adds to the protocol's own methods (`initialize`, `ping`, `server/discover`,
/// `subscriptions/listen`), which are answered for it.
#[async_trait]
pub(crate) trait Server: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> Value;

    /// Whether it takes modern requests; one that does not refuses them as SDKs of before 2026 do.
    fn speaks_modern(&self) -> bool;

    /// A method that is read and never answered.
    fn ignores(&self, _method: &str) -> bool {
        false
    }

    async fn handle(&self, request: &Request, exchange: &Exchange<'_>) -> Answer;
}

/// Serves until standard input ends, or on loopback HTTP until the process is ended. Port 0 takes any
/// free one; `NAME: ready URL` on standard error says which.
pub(crate) async fn serve(server: impl Server, http_port: Option<u16>) -> io::Result<()> {
    let host = Arc::new(Host::new(server));
    match http_port {
        Some(port) => http::serve(host, port).await,
        None => stdio::serve(host).await,
    }
}
