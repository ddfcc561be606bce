//! Errors of the API: one shape, `{"error": {"kind", "message"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use toolwright_core::error::ErrorKind;
use toolwright_core::store::StoreError;

/// When a client that was told 503 may try again, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Why there is no other answer.
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
