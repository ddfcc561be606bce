//! The HTTP listener: address, guards and limits around what is served.

mod authority;
pub(crate) mod body;
mod connections;
mod cors;
mod guard;
mod metrics;
mod oauth;
mod peer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::session::{PeerProcess, Principal};
use toolwright_core::store::NoStore;

pub(crate) use guard::Identity;
pub use guard::{Client, Token};
pub use metrics::MetricsSource;
pub(crate) use peer::Connection;
pub use peer::LookUpPeer;

use crate::api::{self, Api, ApiError};
use crate::mcp::http::{Endpoint, part, whole};
use crate::{ApiStores, Gateway};
use body::Bodies;
use connections::Bounds;
use guard::Guard;

/// How often idle sessions are looked for.
const SWEEP: Duration = Duration::from_secs(30);
/// How long the last answers may take to go out once nothing runs.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

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

/// A server that listens. It answers while `serving` is polled.
pub struct HttpServer {
    /// The address, with the real port.
    pub addr: SocketAddr,
    /// Ends after a shutdown, when running calls have ended or have been cancelled.
    pub serving: BoxFuture<'static, std::io::Result<()>>,
}

/// Binds and prepares the server: MCP at `/mcp` (the whole catalogue) and `/mcp/{provider}` (one
/// provider under its own names), both with `?expose=search` or `?expose=direct`, the API at `/api/…` with its
/// OpenAPI document at `/api/openapi.json`, `/metrics`, `/health` and `/ready`.
///
/// Once `shutdown` fires, streams that wait for changes end, new calls are refused with 503, and what runs is drained
/// (see [`Gateway::drain`]); connections are taken and answered until then.
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
    let guard = Arc::new(Guard::new(&options, addr));
    let bounds =
        Bounds { max: options.max_connections, first_request: options.first_request, idle: options.connection_idle };
    let look_up_peer = options.look_up_peer;
    let scraped = options.metrics.clone();
    let requests = Arc::new(Semaphore::new(options.max_requests));
    let (owner, stores) = (options.principal.clone(), options.stores.clone());
    let limits = (requests, Arc::new(Bodies::new(gateway.options.max_message, &options)));
    let api = Api::new(Arc::clone(&gateway), owner, stores, limits.clone());
    let endpoint = Arc::new(Endpoint::new(Arc::clone(&gateway), options, limits, shutdown.clone()));
    let app = Router::new()
        .route("/mcp", any(whole))
        .route("/mcp/{part}", any(part))
        .with_state(Arc::clone(&endpoint))
        .route("/metrics", get(metrics::scrape).with_state(scraped))
        .merge(api::router(&api))
        .fallback(|| async { ApiError::not_found("there is no such path; MCP is at /mcp, the API at /api") })
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
    Ok(HttpServer { addr, serving: serving.boxed() })
}
