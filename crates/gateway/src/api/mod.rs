//! The gateway's HTTP API: tools, calls, jobs, approvals and health as plain JSON, beside MCP on the same listener.
//!
//! `routes` is the one table of what there is: the router is made of it, and so is the OpenAPI document. Answers are
//! what the command line prints with `--json`, written by the same functions. Errors have one shape (`error`).

mod approvals;
mod call;
mod document;
mod error;
mod health;
mod input;
mod jobs;
mod routes;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use tokio::sync::Semaphore;
use toolwright_core::approval::InboxStore;
use toolwright_core::session::{Principal, Session};
use toolwright_core::store::ApprovalStore;

use crate::Gateway;
use crate::http::body::{Bodies, BodyError};
pub(crate) use error::{ApiError, respond};
use routes::{Route, routes};

/// Where the API begins.
pub(crate) const ROOT: &str = "/api";
/// Whether the process lives.
pub(crate) const HEALTH: &str = "/health";
/// Whether it takes calls.
pub(crate) const READY: &str = "/ready";

/// The stores that `/api/approvals` works on.
#[derive(Clone)]
pub struct ApiStores {
    /// The questions that wait for a person.
    pub inbox: Arc<dyn InboxStore>,
    /// What was approved for always.
    pub approvals: Arc<dyn ApprovalStore>,
}

impl std::fmt::Debug for ApiStores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiStores").finish_non_exhaustive()
    }
}

/// What all requests of the API share.
pub(crate) struct Api {
    gateway: Arc<Gateway>,
    principal: Principal,
    stores: ApiStores,
    /// Requests at once, MCP's included.
    requests: Arc<Semaphore>,
    bodies: Arc<Bodies>,
    document: Value,
}

/// An answer, or why there is none.
type Answer = Result<Response, ApiError>;

impl Api {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        principal: Principal,
        stores: ApiStores,
        (requests, bodies): (Arc<Semaphore>, Arc<Bodies>),
    ) -> Arc<Self> {
        let document = document::of(&routes(), &gateway.options.info);
        Arc::new(Self { gateway, principal, stores, requests, bodies, document })
    }

    /// A good answer, without secrets.
    fn ok(&self, body: &Value) -> Answer {
        Ok(respond(StatusCode::OK, &self.gateway.options.executor.services().redactor.redact_value(body)))
    }

    /// The session of the caller: handles, jobs and what was read before a write follow it from call to call.
    fn session(&self) -> Arc<Session> {
        self.gateway.session(format!("{} at {ROOT}", self.principal.id), self.principal.clone())
    }
}

/// The routes of the table, those below [`ROOT`] behind the bounds of requests.
pub(crate) fn router(api: &Arc<Api>) -> Router {
    let mut outside = Router::new();
    let mut inside = Router::new();
    for Route { operation, handler } in routes() {
        match operation.path.strip_prefix(ROOT) {
            Some(path) => inside = inside.route(path, handler),
            None => outside = outside.route(operation.path, handler),
        }
    }
    let inside = inside
        .fallback(|| async { ApiError::not_found("there is no such path; GET /api/openapi.json lists what there is") })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        // `admit` bounds bodies: the extractors' own limit is far below the one that is told.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(api), admit));
    outside.nest(ROOT, inside).with_state(Arc::clone(api))
}

/// Lets a request in once it is there to its last byte: who does not go on must not keep others out.
async fn admit(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // The room is given back with the answer.
    let (body, _room) = match api.bodies.read(body).await {
        Ok(read) => read,
        Err(BodyError::Late) => return ApiError::late().into_response(),
        Err(BodyError::TooLarge) => return ApiError::too_large(api.bodies.limit()).into_response(),
        Err(BodyError::Full) => return ApiError::busy("too much is being sent at once; try again").into_response(),
    };
    if parts.method == Method::POST && !body.is_empty() && !input::is_json(&parts.headers) {
        return ApiError::not_json().into_response();
    }
    let Ok(_permit) = Arc::clone(&api.requests).try_acquire_owned() else {
        return ApiError::busy("too many requests at once; try again").into_response();
    };
    next.run(Request::from_parts(parts, Body::from(body))).await
}

/// `GET /api/openapi.json`.
async fn openapi(State(api): State<Arc<Api>>) -> Response {
    respond(StatusCode::OK, &api.document)
}
