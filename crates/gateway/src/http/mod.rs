//! Provides the parts that all HTTP endpoints share: options, connections, guards, bodies and errors.

pub(crate) mod api_shape;
pub(crate) mod body;
pub(crate) mod connections;
pub(crate) mod guard;
mod origin;
pub(crate) mod page_tokens;
pub(crate) mod webhooks;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use toolwright_core::error::ErrorKind;
use toolwright_core::inbox::InboxStore;
use toolwright_core::session::{PeerProcess, Principal};
use toolwright_core::store::{ApprovalStore, NoStore, StoreError};
use toolwright_models::served::ServedApi;
use toolwright_runtime::EventHub;

use crate::agents::AgentSource;
use crate::config::ServerConfig;
use crate::operator::Operator;

pub(crate) use connections::Connection;
pub use connections::LookUpPeer;
pub(crate) use guard::Identity;
pub use guard::Token;
pub use webhooks::{SecretSource, WebhookOptions};

/// The root of the API.
pub(crate) const API: &str = "/api";
/// The root of the facades.
pub(crate) const FACADES: &str = "/v1";
/// Liveness probe.
pub(crate) const HEALTH: &str = "/health";
/// Readiness probe.
pub(crate) const READY: &str = "/ready";
/// The paths that need no token.
pub(crate) const OPEN: [&str; 2] = [HEALTH, READY];

/// Returns the API whose form an answer at this path has; `None` outside of the facades.
pub(crate) fn facade_api(path: &str) -> Option<ServedApi> {
    path.strip_prefix(FACADES).filter(|rest| rest.starts_with('/'))?;
    Some(if path.starts_with(ServedApi::Messages.path()) { ServedApi::Messages } else { ServedApi::Chat })
}

/// The address, access rules and limits of an HTTP server.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Address. Port 0 takes a free port.
    pub addr: SocketAddr,
    /// Every request except `/health` and `/ready` must send it. Required beyond loopback.
    pub token: Option<Token>,
    /// Allows everything that `token` does, but only the API requires it. Without this and `token` nobody can use the
    /// API.
    pub api_token: Option<Token>,
    /// The principal of requests with one of these tokens, and of requests without a token if none is required.
    pub principal: Principal,
    /// Clients with their own tokens, and the allowed host names and origins. The `token` of this section is not read;
    /// the field above is.
    pub server: ServerConfig,
    /// Connections at once. A further connection closes the longest idle one. If none is idle, it becomes one of 64
    /// spare connections. A spare connection gets one answer: `/health` and `/ready` as usual, all others 503. When all
    /// spare ones are used, the longest idle of them closes. A new or closing connection is kept for at least a quarter
    /// of a second; meanwhile newcomers wait to be accepted. A connection that closes for another while its request is
    /// still arriving gets 503 and has one second to read it; at most 256 connections do so at once.
    pub max_connections: usize,
    /// Closes a connection that does not send its first request within this time.
    pub first_request: Duration,
    /// Answers 408 to a request whose body stalls for this time. A request whose body has not arrived does not count
    /// towards `max_requests`, and its connection counts as idle.
    pub body_pause: Duration,
    /// Closes a connection that is idle between two requests for this time.
    pub connection_idle: Duration,
    /// Total bytes of the bodies of unanswered requests; further requests are answered 503. The first 64 KiB of each
    /// body are not counted, so that small requests always fit. It is at least the largest message
    /// ([`GatewayOptions::max_message`](crate::GatewayOptions::max_message)).
    pub max_body_bytes: usize,
    /// Concurrent requests; further ones are answered 503. `/health` and `/ready` do not count.
    pub max_requests: usize,
    /// Concurrent sessions, and concurrent notification streams. A further session ends the longest idle one. If none
    /// is idle, and for a further stream, the answer is 503.
    pub max_sessions: usize,
    /// Ends sessions that are unused for this time.
    pub session_idle: Duration,
    /// A stream sends a comment after this much silence, to keep its connection open.
    pub keep_alive: Duration,
    /// The source of `/metrics`; `None`: 404.
    pub metrics: Option<Arc<dyn MetricsSource>>,
    /// The handler of `/webhooks/{trigger}`; `None`: 404.
    pub webhooks: Option<WebhookOptions>,
    /// The agents and models behind the facades; `None`: 404.
    pub agents: Option<Arc<dyn AgentSource>>,
    /// The API's access to the program around the gateway; `None`: 404.
    pub operator: Option<Arc<dyn Operator>>,
    /// The stores behind `/api/approvals`.
    pub stores: ApiStores,
    /// The source of `/api/events`; `None`: 404.
    pub events: Option<Arc<EventHub>>,
    /// Finds the program at the other end of a connection. A program that Toolwright started can approve nothing, even
    /// with a token. Without a token only the owner's programs are asked about their own calls; an unknown program is
    /// not.
    pub look_up_peer: LookUpPeer,
}

impl HttpOptions {
    /// Returns the defaults for an address: no token, and every caller is the owner.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            token: None,
            api_token: None,
            principal: Principal::owner(),
            server: ServerConfig::default(),
            max_connections: 512,
            first_request: Duration::from_secs(10),
            body_pause: Duration::from_secs(10),
            connection_idle: Duration::from_secs(120),
            max_body_bytes: 64 << 20,
            max_requests: 512,
            max_sessions: 1024,
            session_idle: Duration::from_secs(3600),
            keep_alive: Duration::from_secs(15),
            metrics: None,
            webhooks: None,
            events: None,
            agents: None,
            operator: None,
            stores: ApiStores { inbox: Arc::new(NoStore), approvals: Arc::new(NoStore) },
            look_up_peer: |_, _| PeerProcess::Unknown,
        }
    }

    /// Checks that listening at this address is safe. [`serve_http`](crate::serve_http) checks it too.
    ///
    /// # Errors
    /// [`HttpError::Exposed`] for an address beyond loopback without a token.
    pub fn validate(&self) -> Result<(), HttpError> {
        let guarded = self.token.is_some() || !self.server.tokens.is_empty();
        if self.addr.ip().is_loopback() || guarded { Ok(()) } else { Err(HttpError::Exposed(self.addr)) }
    }
}

/// The reason why an HTTP server does not start.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address is reachable from the network and no token is set.
    #[error("{0} can be reached from other machines and no token is set: set a token, or listen on 127.0.0.1")]
    Exposed(SocketAddr),
    /// Binding the address failed.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
}

/// The stores behind `/api/approvals`.
#[derive(Clone)]
pub struct ApiStores {
    /// Returns the questions that wait for a person.
    pub inbox: Arc<dyn InboxStore>,
    /// Standing approvals.
    pub approvals: Arc<dyn ApprovalStore>,
}

impl fmt::Debug for ApiStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiStores").finish_non_exhaustive()
    }
}

/// The source of `/metrics`.
pub trait MetricsSource: fmt::Debug + Send + Sync {
    /// Returns the `Content-Type` and the text in the format that this `Accept` header prefers.
    fn read(&self, accept: &str) -> (&'static str, String);
}

/// Seconds after which a client may retry after a 503.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// An error as JSON: `{"error": {"kind", "message"}}`.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into() }
    }

    /// The request is malformed.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// The token is missing or wrong.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// The caller may not do this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// The requested object does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The requested tool does not exist.
    pub(crate) fn unknown_tool(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorKind::UnknownTool.as_str(), message)
    }

    /// The path exists, but not with this method.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "this path has no such method; GET /api/openapi.json lists what there is";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    /// The current state does not allow the operation.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// The body is over `limit` bytes.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("a request has at most {limit} bytes"))
    }

    /// The content type is not JSON.
    pub(crate) fn not_json() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "send application/json")
    }

    /// The body did not arrive in time.
    pub(crate) fn timed_out() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not arrive in time")
    }

    /// A bound was reached; retry later.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
    }

    /// The server is shutting down.
    pub(crate) fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "the server is shutting down")
    }

    /// A fault of the server.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::InternalError.as_str(), message)
    }

    fn to_json(&self) -> Value {
        json!({"error": {"kind": self.kind, "message": self.message}})
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::NotFound(_) => Self::not_found(message),
            StoreError::Refused(_) => Self::conflict(message),
            StoreError::Quota(_) => Self::busy(message),
            StoreError::Unsupported(_) => Self::new(StatusCode::NOT_IMPLEMENTED, "unsupported", message),
            StoreError::Binary { .. } | StoreError::Failed { .. } => {
                tracing::error!("a request could not be answered: {error}");
                Self::internal(message)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        respond(self.status, &self.to_json())
    }
}

/// Returns a JSON answer. A 503 includes `Retry-After`.
pub(crate) fn respond(status: StatusCode, body: &Value) -> Response {
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    response
}
