//! Streamable HTTP, both generations (2025-11-25 basic/transports, 2026-07-28 basic/transports/http).
//!
//! A request is made by the task of its caller: the answer is handed over before [`Transport::send`] returns, so a
//! call costs no task and no channel of ours. Dropping that future closes the exchange.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::protocol::headers;
use crate::protocol::revision::{Era, MODERN_VERSIONS};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use reqwest::Response;
use tokio_util::task::AbortOnDropHandle;

use super::HttpFailure;
use super::events::{Events, TooLarge};
use super::events::{Waiting, deliver, error_for};
use super::sse::LegacySse;
use super::target::{BOTH_KINDS, EVENT_STREAM, JSON, Kind, Refusal, Target, excerpt, kind, not_mcp, read_rest};
use crate::transport::process::may_be_message;
use crate::transport::{CancelNotice, Incoming, Outgoing, OutgoingKind, RequestId, SendError, Transport};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static(headers::METHOD);
const NAME: HeaderName = HeaderName::from_static(headers::NAME);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Bound on a message that gets no answer.
const NOTIFY_BOUND: Duration = Duration::from_secs(10);
/// Bound on ending the session.
const CLOSE_BOUND: Duration = Duration::from_secs(2);
/// How long a stream may go on after its answer, so that its connection can be used again.
const AFTER_ANSWER: Duration = Duration::from_secs(1);
/// How long to wait before a stream is opened again, unless the server says.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest such wait, whatever the server says.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// How often in a row the stream of a request is opened again in vain.
const MAX_REOPENED: u32 = 5;

/// A server over streamable HTTP, or, where it turns out to be older than that, over HTTP with SSE.
pub(super) struct StreamableHttp {
    inner: Arc<Inner>,
}

struct Inner {
    target: Arc<Target>,
    incoming: Arc<dyn Incoming>,
    session: Mutex<Option<HeaderValue>>,
    /// The revision of a legacy session, for requests that carry no message.
    version: OnceLock<&'static str>,
    /// The stream on which a legacy server speaks unasked.
    listener: Mutex<Option<AbortOnDropHandle<()>>>,
    /// Requests whose streams are read: the answer may come over another one.
    streaming: Waiting,
    /// Set when the server is of 2024-11-05.
    older: OnceLock<LegacySse>,
}

impl StreamableHttp {
    /// A transport to `target`. Nothing is sent yet.
    pub(super) fn new(target: Arc<Target>, incoming: Arc<dyn Incoming>) -> Self {
        let inner = Inner {
            target,
            incoming,
            session: Mutex::default(),
            version: OnceLock::new(),
            listener: Mutex::default(),
            streaming: Waiting::default(),
            older: OnceLock::new(),
        };
        Self { inner: Arc::new(inner) }
    }
}

impl Drop for StreamableHttp {
    fn drop(&mut self) {
        self.inner.stop_listening();
    }
}

#[async_trait]
impl Transport for StreamableHttp {
    async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError> {
        if let Some(older) = self.inner.older.get() {
            return older.send(message).await;
        }
        match message.kind {
            OutgoingKind::Request { id, .. } => self.inner.request(id, message).await,
            OutgoingKind::Notification { .. } | OutgoingKind::Response => {
                let notified = tokio::time::timeout(NOTIFY_BOUND, self.inner.tell(message)).await;
                let timed_out = || HttpFailure::Other("it does not take messages: no response within 10 s".to_owned());
                Ok(notified.unwrap_or_else(|_| Err(timed_out()))?)
            }
        }
    }

    fn established(&self, era: Era, version: &'static str) {
        let is_older = self.inner.older.get().is_some();
        if era == Era::Modern || is_older || self.inner.version.set(version).is_err() {
            return;
        }
        let listening = tokio::spawn(Arc::clone(&self.inner).listen());
        *lock(&self.inner.listener) = Some(AbortOnDropHandle::new(listening));
    }

    fn abandon(&self, _id: RequestId) -> CancelNotice {
        // Its exchange ends with the future of `send`, and to a modern server that says it.
        let is_modern = self.inner.version.get().is_none() && self.inner.older.get().is_none();
        if is_modern { CancelNotice::Unneeded } else { CancelNotice::Needed }
    }

    async fn close(&self) {
        self.inner.stop_listening();
        if let Some(older) = self.inner.older.get() {
            return older.close().await;
        }
        if lock(&self.inner.session).is_none() {
            return;
        }
        let inner = &self.inner;
        let headers = inner.session_headers();
        let deletion = inner.target.request(Method::DELETE, &inner.target.url, headers, None);
        // A server may keep its sessions to itself (405), and one that has gone needs no farewell.
        let _ = tokio::time::timeout(CLOSE_BOUND, deletion).await;
    }
}

/// Whether a stream that ends too early may be opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resumes {
    /// If its events have ids.
    ById,
    /// Streams of 2026-07-28 are not.
    Never,
}

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
enum StreamEnd {
    /// With the answer to its request.
    Answered,
    /// Without.
    Open,
}

impl Inner {
    /// One request to its end: the answer has been handed over, or will not come.
    async fn request(self: &Arc<Self>, id: RequestId, mut message: Outgoing<'_>) -> Result<(), SendError> {
        let method = message.kind.method().unwrap_or_default();
        let (is_initialize, is_discover) = (method == "initialize", method == "server/discover");
        let headers = self.headers_of(&message);
        let in_session = headers.contains_key(SESSION);
        let json = Bytes::from(std::mem::take(&mut message.json));
        let response = self.target.request(Method::POST, &self.target.url, headers, Some(json.clone())).await?;
        let status = response.status();
        if !status.is_success() {
            let refusal = Refusal::read(response).await;
            let is_agreed = !is_initialize && !is_discover;
            let is_denied = || refusal.denies_handshake(id, message.version.unwrap_or_default());
            if (in_session && refusal.forgets_session(Some(id))) || (is_agreed && is_denied()) {
                return Err(SendError::Expired);
            }
            if in_session && refusal.may_forget_session() {
                // The request may have been run all the same: what is said of it is its answer.
                self.incoming.doubted();
            }
            if !is_agreed && refusal.is_fault() {
                return Err(self.target.failure(refusal).into());
            }
            if let Some(error) = refusal.json().and_then(|body| error_for(id, body)) {
                self.incoming.message(&error, Some(id));
                return Ok(());
            }
            if is_initialize && matches!(status.as_u16(), 400 | 404 | 405) {
                message.json = json.into();
                return self.fall_back(refusal, message).await;
            }
            return Err(self.target.failure(refusal).into());
        }
        if is_initialize {
            *lock(&self.session) = response.headers().get(SESSION).cloned();
        }
        let resumes = if is_modern(&message) { Resumes::Never } else { Resumes::ById };
        match kind(&response) {
            Kind::Events => Ok(self.follow(id, response, resumes).await?),
            Kind::Json => Ok(self.whole(id, response).await?),
            Kind::Other if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) => {
                Err(HttpFailure::Other(format!("it took the request without an answer (HTTP {status})")).into())
            }
            Kind::Other => Err(not_mcp(&response).into()),
        }
    }

    /// A message that gets no answer.
    async fn tell(&self, message: Outgoing<'_>) -> Result<(), HttpFailure> {
        let headers = self.headers_of(&message);
        let in_session = headers.contains_key(SESSION);
        let response = self.target.request(Method::POST, &self.target.url, headers, Some(message.json.into())).await?;
        if response.status().is_success() {
            // Nothing is expected, whatever the server sends.
            read_rest(response).await;
            return Ok(());
        }
        let refusal = Refusal::read(response).await;
        Err(if in_session && refusal.forgets_session(None) {
            HttpFailure::SessionExpired
        } else {
            self.target.failure(refusal)
        })
    }

    /// Clients that know older servers try them after these statuses (2025-03-26, basic/transports, backwards
    /// compatibility). If this is none, its refusal stands.
    async fn fall_back(&self, refusal: Refusal, initialize: Outgoing<'_>) -> Result<(), SendError> {
        let Ok(older) = LegacySse::open(Arc::clone(&self.target), Arc::clone(&self.incoming)).await else {
            return Err(self.target.failure(refusal).into());
        };
        self.older.get_or_init(|| older).send(initialize).await
    }

    async fn whole(&self, id: RequestId, response: Response) -> Result<(), HttpFailure> {
        let body = self.target.body(response).await?;
        let delivered = deliver(&*self.incoming, &body, Some(id));
        if delivered.answered.contains(&id) {
            return Ok(());
        }
        Err(if delivered.garbage {
            HttpFailure::NotJsonRpc(excerpt(&body))
        } else {
            HttpFailure::Other("its response is no answer to the request".to_owned())
        })
    }

    /// Reads the stream of a request, opened again where it can be, until the answer has come over it or another.
    async fn follow(self: &Arc<Self>, id: RequestId, first: Response, resumes: Resumes) -> Result<(), HttpFailure> {
        let answered = self.streaming.begin(id);
        tokio::select! {
            end = self.read_to_answer(id, first, resumes) => end,
            () = answered => Ok(()),
        }
    }

    async fn read_to_answer(
        self: &Arc<Self>,
        id: RequestId,
        first: Response,
        resumes: Resumes,
    ) -> Result<(), HttpFailure> {
        let mut place = Place::default();
        let mut response = first;
        loop {
            let mut events = Events::new(self.target.max);
            match self.read(&mut response, &mut events, Some(id)).await {
                Ok(StreamEnd::Answered) => {
                    self.drain(id, response, events);
                    return Ok(());
                }
                Ok(StreamEnd::Open) | Err(HttpFailure::Broken(_)) => {}
                Err(failure) => return Err(failure),
            }
            place.after(&events);
            response = self.reopen(&mut place, resumes).await?;
        }
    }

    /// Opens the stream of a request again.
    async fn reopen(&self, place: &mut Place, resumes: Resumes) -> Result<Response, HttpFailure> {
        const CUT: &str = "the stream ended before the answer";
        if resumes == Resumes::Never || place.id.is_none() {
            return Err(HttpFailure::Broken(CUT.to_owned()));
        }
        loop {
            tokio::time::sleep(place.pause()).await;
            let problem = match self.get(place.id.as_ref()).await {
                Ok(response) => match (response.status(), kind(&response)) {
                    (StatusCode::OK, Kind::Events) => return Ok(response),
                    (status, _) if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                        format!("HTTP {status}")
                    }
                    (status, _) => {
                        return Err(HttpFailure::Broken(format!("{CUT}, and it is not given again (HTTP {status})")));
                    }
                },
                Err(HttpFailure::Broken(problem) | HttpFailure::Connect(problem)) => problem,
                Err(failure) => return Err(failure),
            };
            place.in_vain += 1;
            if place.in_vain >= MAX_REOPENED {
                return Err(HttpFailure::Broken(format!("{CUT}, and it cannot be opened again: {problem}")));
            }
        }
    }

    /// Reads a stream until it ends or, `during` a request, its answer has come.
    async fn read(
        &self,
        response: &mut Response,
        events: &mut Events,
        during: Option<RequestId>,
    ) -> Result<StreamEnd, HttpFailure> {
        while let Some(chunk) = response.chunk().await? {
            let (mut end, mut broken) = (StreamEnd::Open, None);
            let fed = events.feed(&chunk, &mut |event| {
                if !event.is_message() {
                    return;
                }
                let delivered = deliver(&*self.incoming, event.data, during);
                if delivered.garbage && may_be_message(event.data) {
                    broken = Some(excerpt(event.data));
                }
                for id in delivered.answered {
                    if Some(id) == during {
                        end = StreamEnd::Answered;
                    } else {
                        self.streaming.answered(id);
                    }
                }
            });
            if end == StreamEnd::Answered {
                return Ok(end);
            }
            fed.map_err(|TooLarge| HttpFailure::TooLarge(self.target.max))?;
            if let (Some(broken), Some(_)) = (broken, during) {
                // It was meant as the answer; without this the caller would wait for its time-out.
                return Err(HttpFailure::Other(format!("the server's answer is not a valid message: {broken}")));
            }
        }
        Ok(StreamEnd::Open)
    }

    /// Reads what a stream says after the answer: its end, as a rule, and then its connection is free.
    fn drain(self: &Arc<Self>, id: RequestId, mut response: Response, mut events: Events) {
        if let Some(Ok(None)) = response.chunk().now_or_never() {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            // It is of the request still, and must not pass for another's.
            let rest = inner.read(&mut response, &mut events, Some(id));
            // Nobody waits for it any more.
            let _ = tokio::time::timeout(AFTER_ANSWER, rest).await;
        });
    }

    /// Hears what a legacy server says unasked, for as long as there is such a stream.
    async fn listen(self: Arc<Self>) {
        let mut place = Place::default();
        let (mut was_open, mut is_gap) = (false, false);
        loop {
            let opened = Instant::now();
            match self.get(place.id.as_ref()).await {
                Ok(mut response) if response.status() == StatusCode::OK && kind(&response) == Kind::Events => {
                    if is_gap && place.id.is_none() {
                        // A server that does not number its events does not repeat them either.
                        self.incoming.missed();
                    }
                    was_open = true;
                    let mut events = Events::new(self.target.max);
                    let end = self.read(&mut response, &mut events, None).await;
                    place.after(&events);
                    if let Err(failure @ HttpFailure::TooLarge(_)) = end {
                        self.incoming.noise(&failure.to_string());
                        // It would be sent again.
                        place.id = None;
                    }
                    if opened.elapsed() > MAX_PAUSE / 2 {
                        place.in_vain = 0;
                    }
                }
                Ok(response) => {
                    let refusal = Refusal::read(response).await;
                    let in_session = lock(&self.session).is_some();
                    match refused_stream(&refusal, was_open, in_session) {
                        Refused::Again => place.in_vain = place.in_vain.saturating_add(1),
                        Refused::FromHere => {
                            place.id = None;
                            place.in_vain = place.in_vain.saturating_add(1);
                        }
                        Refused::Expired => return self.incoming.expired(),
                        Refused::Never => {
                            tracing::debug!(status = %refusal.status, "the server has no stream of its own");
                            return;
                        }
                    }
                }
                Err(_) => place.in_vain = place.in_vain.saturating_add(1),
            }
            is_gap = true;
            tokio::time::sleep(place.pause()).await;
        }
    }

    async fn get(&self, last_id: Option<&HeaderValue>) -> Result<Response, HttpFailure> {
        let mut headers = self.session_headers();
        headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        if let Some(id) = last_id {
            headers.insert(LAST_EVENT_ID, id.clone());
        }
        self.target.request(Method::GET, &self.target.url, headers, None).await
    }

    /// Headers of a request without a message.
    fn session_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.extend(lock(&self.session).clone().map(|session| (SESSION, session)));
        headers.extend(self.version.get().map(|version| (VERSION, HeaderValue::from_static(version))));
        headers
    }

    /// Headers of a message.
    fn headers_of(&self, message: &Outgoing<'_>) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(8 + message.headers.len());
        headers.insert(ACCEPT, HeaderValue::from_static(BOTH_KINDS));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers.extend(message.version.map(|version| (VERSION, HeaderValue::from_static(version))));
        if !is_modern(message) {
            headers.extend(lock(&self.session).clone().map(|session| (SESSION, session)));
            return headers;
        }
        let name = match &message.kind {
            OutgoingKind::Request { name, .. } => *name,
            OutgoingKind::Notification { .. } | OutgoingKind::Response => None,
        };
        headers.extend(message.kind.method().and_then(encoded).map(|method| (METHOD, method)));
        headers.extend(name.and_then(encoded).map(|name| (NAME, name)));
        headers.extend(message.headers.iter().cloned());
        headers
    }

    fn stop_listening(&self) {
        *lock(&self.listener) = None;
    }
}

/// Where a stream is, for opening it again.
#[derive(Debug, Default)]
struct Place {
    /// Id of the last event.
    id: Option<HeaderValue>,
    retry: Option<Duration>,
    /// How often in a row it has been opened without an event.
    in_vain: u32,
}

impl Place {
    /// Notes what has been read.
    fn after(&mut self, events: &Events) {
        self.id = events.last_id().cloned().or(self.id.take());
        self.retry = events.retry().or(self.retry);
        self.in_vain = if events.any() { 0 } else { self.in_vain.saturating_add(1) };
    }

    /// How long to wait before the next try.
    fn pause(&self) -> Duration {
        let doubled = 1_u32.checked_shl(self.in_vain.min(6)).unwrap_or(1);
        self.retry.unwrap_or(PAUSE).saturating_mul(doubled).min(MAX_PAUSE)
    }
}

/// What to do where the stream on which a server speaks unasked is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// Ask again, for what comes after the last event.
    Again,
    /// Ask again, for what comes from now on.
    FromHere,
    /// Begin a new session.
    Expired,
    /// There is none.
    Never,
}

/// A server without such a stream says 405 as it should, or any other refusal. One that has it refuses it while another
/// connection still has it (409, after something on the way cut that), and in a session that it has forgotten: both are
/// known only of a stream that was there, as there are servers that know no such path (404) from the beginning.
fn refused_stream(refusal: &Refusal, was_open: bool, in_session: bool) -> Refused {
    match refusal.status.as_u16() {
        408 | 409 | 425 | 429 | 500..=599 => Refused::Again,
        _ if !was_open => Refused::Never,
        _ if in_session && refusal.forgets_session(None) => Refused::Expired,
        405 => Refused::Never,
        _ => Refused::FromHere,
    }
}

/// A text as a header's value. What is encoded can be one.
fn encoded(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&headers::encode(text)).ok()
}

fn is_modern(message: &Outgoing<'_>) -> bool {
    message.version.is_some_and(|version| MODERN_VERSIONS.contains(&version))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
