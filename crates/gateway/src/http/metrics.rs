//! `/metrics`: what was counted, for Prometheus. The guard stands before it as before everything.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

/// Where `/metrics` has its text from.
pub trait MetricsSource: fmt::Debug + Send + Sync {
    /// The `Content-Type` and the text, in the format that this `Accept` header prefers.
    fn read(&self, accept: &str) -> (&'static str, String);
}

/// Answers a scraper; 404 where nothing is counted.
pub(super) async fn scrape(State(source): State<Option<Arc<dyn MetricsSource>>>, headers: HeaderMap) -> Response {
    let Some(source) = source else { return StatusCode::NOT_FOUND.into_response() };
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (content_type, text) = source.read(accept);
    ([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], text).into_response()
}
