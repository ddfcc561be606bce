//! The HTTP API: tools, calls, jobs, approvals and health as plain JSON, beside MCP on the same listener. The router
//! and the OpenAPI document are both made from the table in `routes`. Answers equal the command line's with `--json`.

mod approvals;
pub(crate) mod events;
mod health;
mod jobs;
mod ledger;
mod operate;
mod routes;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use toolwright_core::duration;
use toolwright_core::session::{Principal, Session};
use toolwright_runtime::EventHub;

use self::events::RecentEvents;
use crate::Gateway;
use crate::http::body::{BodyError, BodyLimits};
use crate::http::page_tokens::PageTokens;
use crate::http::{API, ApiError, ApiStores, Identity, respond};
use crate::operator::Operator;
use routes::{Route, document, routes};

/// State that all API requests share.
pub(crate) struct Api {
    gateway: Arc<Gateway>,
    principal: Principal,
    stores: ApiStores,
    /// Bounds concurrent requests, including MCP's.
    requests: Arc<Semaphore>,
    bodies: Arc<BodyLimits>,
    document: Value,
    /// The source of `/api/events`; `None`: 404.
    events: Option<Arc<RecentEvents>>,
    pages: Arc<PageTokens>,
    operator: Option<Arc<dyn Operator>>,
}

/// A response, or an error.
type ApiResult = Result<Response, ApiError>;

impl Api {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        principal: Principal,
        stores: ApiStores,
        events: Option<Arc<EventHub>>,
        pages: Arc<PageTokens>,
        operator: Option<Arc<dyn Operator>>,
        (requests, bodies): (Arc<Semaphore>, Arc<BodyLimits>),
    ) -> Arc<Self> {
        let document = document(&routes(), &gateway.options.info);
        let events = events.map(RecentEvents::new);
        Arc::new(Self { gateway, principal, stores, requests, bodies, document, events, pages, operator })
    }

    /// Returns a response with this body, with secrets redacted.
    fn ok(&self, body: &Value) -> ApiResult {
        Ok(respond(StatusCode::OK, &self.gateway.options.executor.services().redactor.redact_value(body)))
    }

    /// Returns the caller's session, which owns output handles, jobs and file reads across calls.
    fn session(&self) -> Arc<Session> {
        self.gateway.session(format!("{} at {API}", self.principal.id), self.principal.clone())
    }
}

/// Returns the routes of the table. Those below [`API`] pass through `admit`.
pub(crate) fn router(api: &Arc<Api>) -> Router {
    let mut outside = Router::new();
    let mut inside = Router::new();
    for Route { operation, handler } in routes() {
        match operation.path.strip_prefix(API) {
            Some(path) => inside = inside.route(path, handler),
            None => outside = outside.route(operation.path, handler),
        }
    }
    let inside = inside
        .fallback(|| async { ApiError::not_found("there is no such path; GET /api/openapi.json lists what there is") })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        // `admit` bounds bodies; the default limit of the extractors is far lower.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(api), admit));
    outside.nest(API, inside).with_state(Arc::clone(api))
}

/// Passes a request on once its body has arrived, so that slow clients do not block others.
async fn admit(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // The room is released with the answer.
    let (body, _room) = match api.bodies.read(body).await {
        Ok(read) => read,
        Err(BodyError::TimedOut) => return ApiError::timed_out().into_response(),
        Err(BodyError::TooLarge) => return ApiError::too_large(api.bodies.limit()).into_response(),
        Err(BodyError::Full) => return ApiError::busy("too much is being sent at once; try again").into_response(),
    };
    if parts.method == Method::POST && !body.is_empty() && !is_json(&parts.headers) {
        return ApiError::not_json().into_response();
    }
    let Ok(_permit) = Arc::clone(&api.requests).try_acquire_owned() else {
        return ApiError::busy("too many requests at once; try again").into_response();
    };
    next.run(Request::from_parts(parts, Body::from(body))).await
}

/// Handles `GET /api/openapi.json`.
async fn openapi(State(api): State<Arc<Api>>) -> Response {
    respond(StatusCode::OK, &api.document)
}

/// Handles `POST /api/console`: returns the console's address with a token that opens it once.
async fn open_console(State(api): State<Arc<Api>>, Extension(identity): Extension<Identity>) -> ApiResult {
    Ok(respond(StatusCode::OK, &json!({"path": api.pages.link_for(identity)})))
}

/// The longest wait for a job.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Extracts the body as JSON of this type.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        // `admit` has already read and bounded it.
        let body = Bytes::from_request(request, state).await.map_err(|error| ApiError::internal(error.to_string()))?;
        let wrong = |error| ApiError::bad_request(format!("the body cannot be read: {error}"));
        // Through an object, because serde would accept a list of field values.
        let object: Map<String, Value> = serde_json::from_slice(&body).map_err(wrong)?;
        serde_json::from_value(object.into()).map(Self).map_err(wrong)
    }
}

/// Extracts the query as this type.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(asked)| Self(asked)).map_err(|error| ApiError::bad_request(error.body_text()))
    }
}

/// Extracts the path parameter.
pub(super) struct PathParam(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathParam {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let named = Path::from_request_parts(parts, state).await;
        named.map(|Path(name)| Self(name)).map_err(|error| ApiError::bad_request(error.body_text()))
    }
}

/// Returns whether the content type is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

/// Parses a positive duration from the field of this name.
pub(super) fn span(name: &str, written: Option<&str>) -> Result<Option<Duration>, ApiError> {
    let wrong = |why: String| ApiError::bad_request(format!("`{name}`: {why}"));
    match written.map(duration::parse).transpose() {
        Ok(Some(span)) if span.is_zero() => Err(wrong("that leaves no time at all; give more, like 30s".into())),
        Ok(span) => Ok(span),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// Returns how long to wait for a job: zero by default, and at most [`MAX_WAIT`].
pub(super) fn wait(written: Option<&str>) -> Result<Duration, ApiError> {
    Ok(span("wait", written)?.unwrap_or_default().min(MAX_WAIT))
}

/// Checks a number of the query, which must be from 1 to `most`; `usual` is the default.
pub(super) fn bounded(name: &str, requested: Option<usize>, usual: usize, most: usize) -> Result<usize, ApiError> {
    let number = requested.unwrap_or(usual);
    let fits = (1..=most).contains(&number);
    if fits { Ok(number) } else { Err(ApiError::bad_request(format!("`{name}` is from 1 to {most}"))) }
}
