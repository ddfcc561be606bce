//! HTTP with server-sent events of 2024-11-05: one stream for each session at `/sse`, whose first event names the URL
//! for messages.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use tokio::sync::mpsc;

use super::host::Host;
use super::outlet::{MAX_WAITING_FRAMES, Outlet, Piece, event};
use super::session::Session;
use super::{MAX_MESSAGE, lock, stdio};

/// The most open streams; further ones are refused.
const MAX_STREAMS: usize = 64;

struct Sse {
    host: Arc<Host>,
    streams: Mutex<HashMap<String, Client>>,
}

#[derive(Clone)]
struct Client {
    session: Arc<Session>,
    outlet: Outlet,
}

pub(super) async fn serve(host: Arc<Host>, port: u16) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    writeln!(io::stderr(), "{}: ready http://{}/sse", host.name(), listener.local_addr()?)?;
    let sse = Arc::new(Sse { host, streams: Mutex::default() });
    let app = Router::new()
        .route("/sse", get(open))
        .route("/messages", post(take))
        .layer(DefaultBodyLimit::max(MAX_MESSAGE))
        .with_state(sse);
    axum::serve(listener, app).await
}

async fn open(State(sse): State<Arc<Sse>>) -> Response {
    let (sender, pieces) = mpsc::channel(MAX_WAITING_FRAMES);
    let id = uuid::Uuid::new_v4().to_string();
    {
        let mut streams = lock(&sse.streams);
        streams.retain(|_, client| client.outlet.is_open());
        if streams.len() >= MAX_STREAMS {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        streams.insert(id.clone(), Client { session: Arc::default(), outlet: Outlet::Shared(sender) });
    }
    let endpoint = Bytes::from(format!("event: endpoint\ndata: /messages?session={id}\n\n"));
    let rest = futures_util::stream::unfold((Some(endpoint), pieces), |(first, mut pieces)| async move {
        let bytes = match first {
            Some(first) => first,
            None => match pieces.recv().await? {
                Piece::Message(text) => Bytes::from(event(&text)),
                Piece::Raw(bytes) => bytes,
            },
        };
        Some((Ok::<_, Infallible>(bytes), (None, pieces)))
    });
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], Body::from_stream(rest))
        .into_response()
}

async fn take(State(sse): State<Arc<Sse>>, RawQuery(query): RawQuery, body: Bytes) -> Response {
    let id = query.as_deref().and_then(|query| query.strip_prefix("session=")).unwrap_or_default();
    let Some(client) = lock(&sse.streams).get(id).cloned() else {
        return (StatusCode::NOT_FOUND, "Could not find session").into_response();
    };
    stdio::take(&sse.host, &client.session, &client.outlet, &body).await;
    (StatusCode::ACCEPTED, "Accepted").into_response()
}
