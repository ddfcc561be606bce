//! A receiver of spans that counts them and keeps nothing. It runs in this process and shares its processors.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;

use crate::Failure;

/// A server of OTLP over HTTP on its own port, until the program ends.
pub(super) struct Collector {
    addr: SocketAddr,
    traces: Arc<AtomicUsize>,
}

impl Collector {
    /// Starts listening.
    pub(super) fn start() -> Result<Self, Failure> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let traces = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&traces);
        let app = axum::Router::new()
            .route(
                "/v1/traces",
                post(async move |body: Bytes| {
                    counted.fetch_add(usize::from(!body.is_empty()), Ordering::Relaxed);
                }),
            )
            .route("/v1/metrics", post(async |_: Bytes| ()))
            .layer(DefaultBodyLimit::disable());
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                axum::serve(listener, app).await
            })
        });
        Ok(Self { addr, traces })
    }

    /// Returns the URL for spans.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the number of batches received.
    pub(super) fn batches(&self) -> usize {
        self.traces.load(Ordering::Relaxed)
    }
}
