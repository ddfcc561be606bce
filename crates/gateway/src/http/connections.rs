//! Accepts and serves connections, bounds their number and idle time, and closes the longest idle connection to make
//! room for a new one.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OnceCell};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::MissedTickBehavior;
use toolwright_core::cancel::Cancel;
use toolwright_core::session::PeerProcess;

use super::OPEN;
use super::api_shape::{api_of, refusal, shape};

/// Interval between checks for overdue connections.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections beyond the limit, on which only probes are answered.
const SPARE: usize = 64;
/// A new or closing connection is not closed for others before it has been idle this long.
const FRESH: Duration = Duration::from_millis(250);
/// Pause before looking again for an idle connection to close for a waiting one.
const WAIT: Duration = Duration::from_millis(20);
/// The most bytes that are read ahead of one request. A request head is never longer.
const READ_AHEAD: usize = 64 << 10;
/// The answer when there is no room and no idle connection.
const FULL: &str = "503: too many connections at once; try again\n";
/// The same for a connection whose request is incomplete and cannot be answered by HTTP.
const FULL_RESPONSE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 45\r\n\r\n503: too many connections at once; try again\n";
/// The most connections that were closed for others and may still be reading their answer.
const MAX_CLOSING: usize = 256;
/// How long, and up to how many bytes, input is discarded after the last answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: u64 = 1 << 20;

/// Bounds of connections. A connection is idle while no request is open on it: from its start, or the end of an answer,
/// until the next request's head is complete. While a body is awaited it counts as idle when room is needed; the reader
/// of the body limits that time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Connections at once, without the spare ones.
    pub(crate) max: usize,
    /// Limit on the arrival of the first request.
    pub(crate) first_request: Duration,
    /// Limit on the arrival of each later request.
    pub(crate) idle: Duration,
}

/// Finds the program at `peer`, the other end of a connection to `local` on this machine. May block.
pub type LookUpPeer = fn(peer: SocketAddr, local: SocketAddr) -> PeerProcess;

/// A connection, which every request carries as an extension.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Arc<ConnectionAddresses>);

#[derive(Debug)]
struct ConnectionAddresses {
    peer: SocketAddr,
    local: SocketAddr,
    look_up: LookUpPeer,
    found: OnceCell<PeerProcess>,
}

impl Connection {
    fn new(peer: SocketAddr, local: SocketAddr, look_up: LookUpPeer) -> Self {
        Self(Arc::new(ConnectionAddresses { peer, local, look_up, found: OnceCell::new() }))
    }

    /// Returns the program at its other end, which is looked up once.
    pub(crate) async fn process(&self) -> PeerProcess {
        let ConnectionAddresses { peer, local, look_up, .. } = *self.0;
        let look_up = move || look_up(peer, local);
        let found = self
            .0
            .found
            .get_or_init(|| async { tokio::task::spawn_blocking(look_up).await.unwrap_or(PeerProcess::Unknown) });
        *found.await
    }
}

/// Serves `app` until `closing` fires, then completes open requests. Dropping it closes every connection.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    bounds: ConnectionLimits,
    look_up_peer: LookUpPeer,
    closing: Cancel,
) {
    let mut tasks = JoinSet::new();
    let (mut open, mut spare, mut leaving) =
        (OpenConnections::default(), OpenConnections::default(), ClosingConnections::default());
    let spare_app = app.clone().layer(from_fn(only_probes));
    let mut look = tokio::time::interval(POLL_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = pin!(closing.cancelled());
    let at = listener.local_addr().unwrap_or_else(|_| ([0, 0, 0, 0], 0).into());
    loop {
        let may_come = match open.room(bounds.max) {
            Capacity::Now => true,
            Capacity::Soon => false,
            Capacity::No => spare.room(SPARE) == Capacity::Now,
        };
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            Some(ended) = tasks.join_next_with_id() => {
                let ended = ended.map_or_else(|error| error.id(), |(id, ())| id);
                open.forget(ended);
                spare.forget(ended);
            }
            _ = look.tick() => {
                open.close_overdue(&bounds);
                spare.close_overdue(&bounds);
            }
            // New connections wait in the system's queue until there is room.
            () = tokio::time::sleep(WAIT), if !may_come => {}
            accepted = listener.accept(), if may_come => {
                let (stream, connection) = match accepted {
                    Ok((stream, peer)) => {
                        let local = stream.local_addr().unwrap_or(at);
                        (stream, Connection::new(peer, local, look_up_peer))
                    }
                    Err(error) => {
                        open.not_accepted(&error).await;
                        continue;
                    }
                };
                let (place, app) = if open.make_room(bounds.max, &mut leaving) {
                    (&mut open, &app)
                } else {
                    spare.make_room(SPARE, &mut leaving);
                    (&mut spare, &spare_app)
                };
                let activity = Activity::new();
                let answered = answer(stream, app.clone(), connection, activity.clone(), closing.clone());
                let task = tasks.spawn(answered);
                place.0.insert(task.id(), (activity, task));
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// Answers the requests of one connection.
async fn answer(mut stream: TcpStream, app: Router, connection: Connection, activity: Activity, closing: Cancel) {
    // An answer is often two small writes. Nagle's algorithm would delay the second by some 40 ms, until the peer's
    // delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("TCP_NODELAY could not be set: {error}");
    }
    let (app, closed) = (TowerToHyperService::new(app), activity.clone());
    let watched = WatchedStream { stream: &mut stream, activity: activity.clone() };
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let busy = activity.enter();
        request.extensions_mut().insert(connection.clone());
        let answer = app.call(request.map(|body| RequestBody::new(body, activity.clone())));
        async move { Ok::<_, Infallible>(answer.await?.map(|body| ResponseBody { body, _busy: busy })) }
    });
    let mut evicted = None;
    let ended = {
        let mut connection =
            pin!(http1::Builder::new().max_buf_size(READ_AHEAD).serve_connection(TokioIo::new(watched), service));
        tokio::select! {
            biased;
            () = closed.0.evicted.notified() => {
                if closed.is_idle() {
                    evicted = Some(closed.has_partial_request());
                    Ok(())
                } else {
                    // A request arrived after the connection was chosen: it is still answered, as the last one.
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
            ended = connection.as_mut() => ended,
            _ = closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection broke off: {error}");
    }
    closed.lock().is_closing = true;
    match evicted {
        None => {}
        Some(false) => return,
        // Bytes that the system does not take at once are lost: a client that reads nothing is not waited for.
        Some(true) => drop(stream.try_write(FULL_RESPONSE)),
    }
    tokio::select! {
        () = linger(stream) => {}
        _ = closing.cancelled() => {}
    }
}

/// The stream of a connection, which records when a request begins to arrive.
struct WatchedStream<'a> {
    stream: &'a mut TcpStream,
    activity: Activity,
}

impl AsyncRead for WatchedStream<'_> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut *self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.lock().has_begun = true;
        }
        polled
    }
}

impl AsyncWrite for WatchedStream<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}

/// Closes a connection so that its client sees the last answer. Closing with unread input would reset the connection
/// and lose the answer. It counts as idle meanwhile.
async fn linger(mut stream: TcpStream) {
    let last = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES), &mut tokio::io::sink()).await
    };
    // A client that is gone, or keeps sending, finds the connection closed.
    let _ = tokio::time::timeout(LINGER, last).await;
}

/// Answers one request of a spare connection: probes as usual, others with 503.
async fn only_probes(request: Request, next: Next) -> Response {
    let mut response = if OPEN.contains(&request.uri().path()) {
        next.run(request).await
    } else if let Some(api) = api_of(request.uri().path(), request.headers()) {
        let full = refusal(api, StatusCode::SERVICE_UNAVAILABLE, FULL.trim_end());
        shape(api, request.method(), request.uri().path(), full).await
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], FULL).into_response()
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Connections closed for others, oldest first. Some may still be sending their answer.
#[derive(Default)]
struct ClosingConnections(VecDeque<AbortHandle>);

impl ClosingConnections {
    fn evict_connection(&mut self, activity: &Activity, task: AbortHandle) {
        self.0.retain(|task| !task.is_finished());
        if self.0.len() >= MAX_CLOSING
            && let Some(first) = self.0.pop_front()
        {
            first.abort();
        }
        activity.evict();
        self.0.push_back(task);
    }
}

/// The open connections.
#[derive(Default)]
struct OpenConnections(HashMap<Id, (Activity, AbortHandle)>);

impl OpenConnections {
    fn forget(&mut self, ended: Id) {
        self.0.remove(&ended);
    }

    /// Handles a failed accept. Unless the peer is gone, descriptors or memory have run out, and closing an idle
    /// connection may help.
    async fn not_accepted(&mut self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
            let made_room = self.take_longest_idle(Duration::ZERO).inspect(|(_, task)| task.abort()).is_some();
            tracing::error!(made_room, "a connection could not be accepted: {error}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn close_overdue(&mut self, bounds: &ConnectionLimits) {
        self.0.retain(|_, (activity, task)| {
            let overdue = activity.is_overdue(bounds);
            if overdue {
                task.abort();
            }
            !overdue
        });
    }

    /// Returns whether there is room for one more under `max`, or an idle connection could be closed.
    fn room(&self, max: usize) -> Capacity {
        if self.0.len() < max || self.longest_idle(FRESH).is_some() {
            Capacity::Now
        } else if self.longest_idle(Duration::ZERO).is_some() {
            Capacity::Soon
        } else {
            Capacity::No
        }
    }

    /// Makes room for one more under `max`. Returns whether it did.
    fn make_room(&mut self, max: usize, leaving: &mut ClosingConnections) -> bool {
        if self.0.len() < max {
            return true;
        }
        let longest = self.take_longest_idle(FRESH);
        longest.map(|(activity, task)| leaving.evict_connection(&activity, task)).is_some()
    }

    /// Removes the longest idle connection, if it has been idle for `fresh`.
    fn take_longest_idle(&mut self, fresh: Duration) -> Option<(Activity, AbortHandle)> {
        self.longest_idle(fresh).and_then(|id| self.0.remove(&id))
    }

    fn longest_idle(&self, fresh: Duration) -> Option<Id> {
        let idle = self.0.iter().filter_map(|(id, (activity, _))| Some((activity.may_go(fresh)?, *id)));
        idle.min_by_key(|(since, _)| *since).map(|(_, id)| id)
    }
}

/// Whether one more connection fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Capacity {
    /// There is room, or an idle connection can be closed.
    Now,
    /// An idle one can be closed in a moment.
    Soon,
    /// All are busy.
    No,
}

/// The activity of one connection.
#[derive(Clone)]
struct Activity(Arc<ActivityInner>);

struct ActivityInner {
    state: Mutex<State>,
    evicted: Notify,
}

struct State {
    /// When the server began to wait for the client's input; `None` while the server works.
    idle_since: Option<Instant>,
    /// Whether a request is open.
    is_open: bool,
    has_served: bool,
    /// Whether the last answer was sent and the client may not have read it yet.
    is_closing: bool,
    /// Whether a part of the next or the open request has arrived.
    has_begun: bool,
}

impl Activity {
    fn new() -> Self {
        let state = State {
            idle_since: Some(Instant::now()),
            is_open: false,
            has_served: false,
            is_closing: false,
            has_begun: false,
        };
        Self(Arc::new(ActivityInner { state: Mutex::new(state), evicted: Notify::new() }))
    }

    /// Closes the connection for others, unless it is closing already.
    fn evict(&self) {
        self.0.evicted.notify_one();
    }

    /// Returns whether the server waits for the client's input.
    fn is_idle(&self) -> bool {
        self.lock().idle_since.is_some()
    }

    /// Returns whether a request has begun to arrive and is incomplete.
    fn has_partial_request(&self) -> bool {
        let state = self.lock();
        state.has_begun && state.idle_since.is_some()
    }

    /// Opens a request until the guard is dropped.
    fn enter(&self) -> OpenRequest {
        let mut state = self.lock();
        state.idle_since = None;
        state.is_open = true;
        OpenRequest(self.clone())
    }

    /// Sets whether the server waits for the body of the open request.
    fn wait_for_body(&self, waiting: bool) {
        let mut state = self.lock();
        if state.is_open {
            state.idle_since = waiting.then(Instant::now);
        }
    }

    /// Returns the start of its idle time, if it may be closed for others.
    fn may_go(&self, fresh: Duration) -> Option<Instant> {
        let state = self.lock();
        let is_kept = state.has_served && !state.is_closing;
        state.idle_since.filter(|since| is_kept || since.elapsed() >= fresh)
    }

    fn is_overdue(&self, bounds: &ConnectionLimits) -> bool {
        let state = self.lock();
        let limit = if state.has_served { bounds.idle } else { bounds.first_request };
        !state.is_open && state.idle_since.is_some_and(|since| since.elapsed() >= limit)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open request.
struct OpenRequest(Activity);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.idle_since = Some(Instant::now());
        state.is_open = false;
        state.has_served = true;
        state.has_begun = false;
    }
}

/// The body of a request. The connection waits for input until the body has arrived or is dropped.
struct RequestBody {
    body: Incoming,
    activity: Activity,
}

impl RequestBody {
    fn new(body: Incoming, activity: Activity) -> Self {
        activity.wait_for_body(!body.is_end_stream());
        Self { body, activity }
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(frame) = &polled {
            self.activity.wait_for_body(frame.is_some() && !self.body.is_end_stream());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.activity.wait_for_body(false);
    }
}

/// The body of an answer. Its request stays open until it is sent.
struct ResponseBody {
    body: Body,
    _busy: OpenRequest,
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
