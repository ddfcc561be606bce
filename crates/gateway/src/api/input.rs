//! What a request says, read strictly: an unknown field is named, not ignored.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toolwright_core::duration;

use super::error::ApiError;

/// The longest that an answer waits for a job.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The body, as JSON of this type.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        // It was read, and bounded, before the request was let in.
        let body = Bytes::from_request(request, state).await.map_err(|error| ApiError::internal(error.to_string()))?;
        let wrong = |error| ApiError::bad_request(format!("the body cannot be read: {error}"));
        // By way of an object, as a list of its values would be taken for one.
        let object: Map<String, Value> = serde_json::from_slice(&body).map_err(wrong)?;
        serde_json::from_value(object.into()).map(Self).map_err(wrong)
    }
}

/// The query of the address.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(asked)| Self(asked)).map_err(|error| ApiError::bad_request(error.body_text()))
    }
}

/// The part of the address that the path names.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let named = Path::from_request_parts(parts, state).await;
        named.map(|Path(name)| Self(name)).map_err(|error| ApiError::bad_request(error.body_text()))
    }
}

/// Whether the body is said to be JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let said = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    said.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

/// A span of time under this name, above nothing.
pub(super) fn span(name: &str, written: Option<&str>) -> Result<Option<Duration>, ApiError> {
    let wrong = |why: String| ApiError::bad_request(format!("`{name}`: {why}"));
    match written.map(duration::parse).transpose() {
        Ok(Some(span)) if span.is_zero() => Err(wrong("that leaves no time at all; give more, like 30s".into())),
        Ok(span) => Ok(span),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// How long to wait for a job: not at all where nothing is said, and never longer than [`MAX_WAIT`].
pub(super) fn wait(written: Option<&str>) -> Result<Duration, ApiError> {
    Ok(span("wait", written)?.unwrap_or_default().min(MAX_WAIT))
}
