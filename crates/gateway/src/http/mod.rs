//! What everything that is served over HTTP shares: options, connections, guards, bodies and errors.

pub(crate) mod body;
pub(crate) mod connections;
pub(crate) mod guard;
mod origin;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use toolwright_core::approval::InboxStore;
use toolwright_core::error::ErrorKind;
use toolwright_core::session::{PeerProcess, Principal};
use toolwright_core::store::{ApprovalStore, NoStore, StoreError};

pub(crate) use connections::Connection;
pub use connections::LookUpPeer;
pub(crate) use guard::Identity;
pub use guard::{Client, Token};

/// Where the API begins.
pub(crate) const API: &str = "/api";
/// Whether the process lives.
pub(crate) const HEALTH: &str = "/health";
/// Whether it takes calls.
pub(crate) const READY: &str = "/ready";
/// The paths that need no token: those that ask whether there is anybody.
pub(crate) const OPEN: [&str; 2] = [HEALTH, READY];

/// Where and for whom to listen.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Address; port 0 takes a free one.
    pub addr: SocketAddr,
    /// Every request but `/health` and `/ready` must bring it. Needed beyond loopback.
    pub token: Option<Token>,
    /// Opens everything too, but is needed for the API alone. Without this and `token` nobody gets to the API.
    pub api_token: Option<Token>,
    /// Who sends one of these tokens, or nothing where none is needed.
    pub principal: Principal,
    /// Clients with tokens of their own. Where there are any, nobody gets in without one.
    pub clients: Vec<Client>,
    /// Host names under which the server is reached, besides `localhost` and the address itself;
    /// without a port any port is meant.
    pub allowed_hosts: Vec<String>,
    /// Origins (`https://host[:port]`) of web pages that may call and read what is answered (CORS), besides the
    /// server's own. They send the token as any client does.
    pub allowed_origins: Vec<String>,
    /// Connections at once. A further one closes the longest idle; where none is idle it is one of 64 beyond the limit,
    /// of which one request is answered: `/health` and `/ready` as ever, all else 503. Of those too the longest idle goes
    /// when there are more. One that has only just come, or is being closed, is left alone for a quarter of a second;
    /// whoever comes meanwhile waits to be accepted. One that is closed for another while its
    /// request is still coming is answered 503 first, and has a second to read that; 256 of those at the most.
    pub max_connections: usize,
    /// A connection that has not sent its first request within this time is closed.
    pub first_request: Duration,
    /// A request whose body stops coming for this time is answered 408. One that is not there yet holds no place
    /// among `max_requests`, and its connection gives way as an idle one does.
    pub body_pause: Duration,
    /// A connection that has been idle between two requests for this time is closed.
    pub connection_idle: Duration,
    /// Bytes of the bodies of all requests that are not answered yet; what needs more is answered 503. The first 64 KiB
    /// of each are not counted, so that small requests always find room: with them, all bodies take no more than this
    /// and 64 KiB a connection. It is never less than the largest message
    /// ([`GatewayOptions::max_message`](crate::GatewayOptions::max_message)).
    pub max_body_bytes: usize,
    /// Requests at once; more are answered 503. `/health` and `/ready` are not counted.
    pub max_requests: usize,
    /// Sessions at once, and streams that wait for changes. A further session ends the longest idle; where
    /// none is idle, and for a further stream, the answer is 503.
    pub max_sessions: usize,
    /// Sessions unused for so long are ended.
    pub session_idle: Duration,
    /// Silence after which a stream says that it lives.
    pub keep_alive: Duration,
    /// What `/metrics` answers; nothing is there if `None`.
    pub metrics: Option<Arc<dyn MetricsSource>>,
    /// What `/api/approvals` works on.
    pub stores: ApiStores,
    /// Tells which program is at the other end of a connection. One that a Toolwright started decides nothing, with a
    /// token or without. Without a token only the owner's programs are asked about their own calls; what cannot be told
    /// is none of them.
    pub look_up_peer: LookUpPeer,
}

impl HttpOptions {
    /// Defaults for an address: no token, the owner as caller.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            token: None,
            api_token: None,
            principal: Principal::owner(),
            clients: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
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
            stores: ApiStores { inbox: Arc::new(NoStore), approvals: Arc::new(NoStore) },
            look_up_peer: |_, _| PeerProcess::Unknown,
        }
    }

    /// Checks that the address may be listened on as configured. [`serve_http`] does so too.
    ///
    /// # Errors
    /// [`HttpError::Exposed`] for an address beyond loopback without a token.
    pub fn validate(&self) -> Result<(), HttpError> {
        let guarded = self.token.is_some() || !self.clients.is_empty();
        if self.addr.ip().is_loopback() || guarded { Ok(()) } else { Err(HttpError::Exposed(self.addr)) }
    }
}

/// Why the server does not listen.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Anybody on the network could run tools.
    #[error("{0} can be reached from other machines and no token is set: set a token, or listen on 127.0.0.1")]
    Exposed(SocketAddr),
    /// The address cannot be bound.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
}

/// The stores that `/api/approvals` works on.
#[derive(Clone)]
pub struct ApiStores {
    /// The questions that wait for a person.
    pub inbox: Arc<dyn InboxStore>,
    /// What was approved for always.
    pub approvals: Arc<dyn ApprovalStore>,
}

impl fmt::Debug for ApiStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiStores").finish_non_exhaustive()
    }
}

/// Where `/metrics` has its text from.
pub trait MetricsSource: fmt::Debug + Send + Sync {
    /// The `Content-Type` and the text, in the format that this `Accept` header prefers.
    fn read(&self, accept: &str) -> (&'static str, String);
}

/// When a client that was told 503 may try again, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// An error as JSON, of one shape: `{"error": {"kind", "message"}}`.
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

    /// The request cannot be understood.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// No token, or a wrong one.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// The caller may not do this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// There is no such thing.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// There is no such tool.
    pub(crate) fn unknown_tool(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorKind::UnknownTool.as_str(), message)
    }

    /// The path is there, the method is not.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "this path has no such method; GET /api/openapi.json lists what there is";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    /// It is not in a state for this.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// The body is over `limit` bytes.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("a request has at most {limit} bytes"))
    }

    /// The body is no JSON.
    pub(crate) fn not_json() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "send application/json")
    }

    /// The body did not come.
    pub(crate) fn late() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not arrive in time")
    }

    /// There is no room now.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
    }

    /// Nothing begins any more.
    pub(crate) fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "the server is shutting down")
    }

    /// A fault of ours.
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

/// A JSON answer. A client that is told 503 is told when to try again.
pub(crate) fn respond(status: StatusCode, body: &Value) -> Response {
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    response
}
