//! Serves everything over HTTP: MCP, the API, metrics and health behind one guard on one listener.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use toolwright_core::cancel::{Cancel, CancelCause};

use crate::Gateway;
use crate::api::{self, Api};
use crate::console;
use crate::facade::{self, Facade};
use crate::http::body::BodyLimits;
use crate::http::connections::{self, ConnectionLimits};
use crate::http::guard::{self, Guard};
use crate::http::page_tokens::PageTokens;
use crate::http::{ApiError, HttpError, HttpOptions, Identity, MetricsSource, facade_api, webhooks};
use crate::mcp::transport::http::{Endpoint, mcp_part, mcp_whole};

/// How often idle sessions are ended.
const SWEEP: Duration = Duration::from_secs(30);
/// How long the last answers may take to go out after all work has ended.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// A listening server. It answers while `serving` is polled.
pub struct HttpServer {
    /// The address, with the real port.
    pub addr: std::net::SocketAddr,
    /// The path that opens the web console, once.
    pub console: String,
    /// Completes after a shutdown, when running calls have ended or were cancelled.
    pub serving: BoxFuture<'static, std::io::Result<()>>,
}

/// Binds the address and prepares the server: MCP at `/mcp` (the whole catalogue) and at `/mcp/{name}` (a view, or one
/// provider under its own names), both with `?expose=search` or `?expose=direct`; the API at `/api/…` with its OpenAPI
/// document at `/api/openapi.json`; the APIs of `OpenAI` and Anthropic at `/v1/…`; webhooks at `/webhooks/{trigger}`;
/// the web console at `/`; `/metrics`, `/health` and `/ready`.
///
/// When `shutdown` fires, notification streams end, new calls are answered 503, and the gateway drains (see
/// [`Gateway::drain`]). Connections are accepted and answered until the drain is complete.
///
/// # Errors
/// [`HttpError`], before anything is served.
pub async fn serve_http(
    gateway: Arc<Gateway>,
    options: HttpOptions,
    shutdown: Cancel,
) -> Result<HttpServer, HttpError> {
    options.validate()?;
    let failed = |source| HttpError::Bind { addr: options.addr, source };
    let listener = TcpListener::bind(options.addr).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    let pages = Arc::new(PageTokens::new(Identity::owner(&options.principal)));
    let guard = Arc::new(Guard::new(&options, addr, Arc::clone(&pages)));
    let bounds = ConnectionLimits {
        max: options.max_connections,
        first_request: options.first_request,
        idle: options.connection_idle,
    };
    let look_up_peer = options.look_up_peer;
    let scraped = options.metrics.clone();
    let requests = Arc::new(Semaphore::new(options.max_requests));
    let (owner, stores) = (options.principal.clone(), options.stores.clone());
    let (events, operator) = (options.events.clone(), options.operator.clone());
    let hooks = webhooks::router(options.webhooks.clone(), Arc::clone(&requests));
    let limits = (requests, Arc::new(BodyLimits::new(gateway.options.max_message, &options)));
    let api = Api::new(Arc::clone(&gateway), owner, stores, events, Arc::clone(&pages), operator, limits.clone());
    let agents = options.agents.clone().filter(|_| gateway.options.server.facades.enabled);
    let facade = agents.map(|agents| Facade::new(Arc::clone(&gateway), agents, limits.clone(), options.keep_alive));
    let endpoint = Arc::new(Endpoint::new(Arc::clone(&gateway), options, limits, shutdown.clone()));
    let app = Router::new()
        .route("/mcp", any(mcp_whole))
        .route("/mcp/{part}", any(mcp_part))
        .with_state(Arc::clone(&endpoint))
        .route("/metrics", get(scrape).with_state(scraped))
        .merge(hooks)
        .merge(console::router(Arc::clone(&pages)))
        .merge(api::router(&api))
        .merge(facade::router(facade))
        .fallback(|uri: Uri| async move {
            let why = "there is no such path; MCP is at /mcp, the API at /api, agents are at /v1";
            match facade_api(uri.path()) {
                Some(_) => (StatusCode::NOT_FOUND, why).into_response(),
                None => ApiError::not_found(why).into_response(),
            }
        })
        .layer(from_fn_with_state(guard, guard::check));
    let drained = Cancel::new();
    let server = connections::serve(listener, app, bounds, look_up_peer, drained.clone());
    let serving = async move {
        let closed = async {
            shutdown.cancelled().await;
            gateway.drain().await;
            drained.cancel(CancelCause::Shutdown);
            tokio::time::sleep(CLOSE_LIMIT).await;
        };
        let sweep = async {
            loop {
                tokio::time::sleep(SWEEP).await;
                endpoint.sweep();
            }
        };
        tokio::select! {
            () = server => {}
            () = closed => {}
            () = sweep => {}
        }
        Ok(())
    };
    Ok(HttpServer { addr, console: pages.link(), serving: serving.boxed() })
}

/// Handles `GET /metrics`; 404 without a source.
async fn scrape(State(source): State<Option<Arc<dyn MetricsSource>>>, headers: HeaderMap) -> Response {
    let Some(source) = source else { return StatusCode::NOT_FOUND.into_response() };
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (content_type, text) = source.read(accept);
    ([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], text).into_response()
}
