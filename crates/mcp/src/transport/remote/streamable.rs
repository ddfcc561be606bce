//! Streamable HTTP, both generations (2025-11-25 basic/transports, 2026-07-28 basic/transports/http).
//!
//! A request runs in its caller's task: the answer is passed on before [`Transport::send`] returns, so a
//! call needs no other task or channel. Dropping that future closes the exchange.

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
use toolwright_core::backoff::Backoff;
use toolwright_core::sse::{Events, TooLong};

use super::HttpFailure;
use super::delivery::{WaitingRequests, deliver, error_for, is_message};
use super::sse::LegacySse;
use super::target::{BOTH_KINDS, EVENT_STREAM, JSON, Kind, Refusal, Target, excerpt, kind, not_mcp, read_rest};
use crate::transport::child_process::may_be_message;
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
/// How long a stream is read after its answer, so that its connection can be reused.
const AFTER_ANSWER: Duration = Duration::from_secs(1);
/// Pauses before a stream is reopened. A server may request another first one.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(60) };
/// Bound on consecutive failed attempts to reopen a request's stream.
const MAX_REOPENED: u32 = 5;

/// A server over streamable HTTP, or over HTTP with SSE if it turns out to be older.
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
    /// Requests with open streams; the answer may arrive on another one.
    streaming: WaitingRequests,
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
            streaming: WaitingRequests::default(),
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
                let notified = tokio::time::timeout(NOTIFY_BOUND, self.inner.send_notification(message)).await;
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
        // Dropping the future of `send` ends its exchange, which tells a modern server.
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
        // A server may not support ending sessions (405), and one that is gone needs no request.
        let _ = tokio::time::timeout(CLOSE_BOUND, deletion).await;
    }
}

/// Whether a stream that ended too early may be reopened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resumability {
    /// If its events have ids.
    ById,
    /// Streams of 2026-07-28 are not.
    Never,
}

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
enum StreamEnd {
    /// After the answer to its request.
    Answered,
    /// Without an answer.
    Open,
}

impl Inner {
    /// Runs a request to its end: its answer was passed on, or will not come.
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
            if (in_session && refusal.is_session_refusal(Some(id))) || (is_agreed && is_denied()) {
                return Err(SendError::Expired);
            }
            if in_session && refusal.may_concern_session() {
                // The request may have run: its response is accepted as the answer.
                self.incoming.session_may_be_lost();
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
        let resumes = if is_modern(&message) { Resumability::Never } else { Resumability::ById };
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
    async fn send_notification(&self, message: Outgoing<'_>) -> Result<(), HttpFailure> {
        let headers = self.headers_of(&message);
        let in_session = headers.contains_key(SESSION);
        let response = self.target.request(Method::POST, &self.target.url, headers, Some(message.json.into())).await?;
        if response.status().is_success() {
            // No response is expected.
            read_rest(response).await;
            return Ok(());
        }
        let refusal = Refusal::read(response).await;
        Err(if in_session && refusal.is_session_refusal(None) {
            HttpFailure::SessionExpired
        } else {
            self.target.failure(refusal)
        })
    }

    /// Statuses after which clients try the older transport (2025-03-26, basic/transports, backwards
    /// compatibility). If the server does not support that either, its first refusal counts.
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

    /// Reads a request's stream, reopened where possible, until the answer has arrived on it or another.
    async fn follow(
        self: &Arc<Self>,
        id: RequestId,
        first: Response,
        resumes: Resumability,
    ) -> Result<(), HttpFailure> {
        let answered = self.streaming.begin(id);
        tokio::select! {
            end = self.read_until_answer(id, first, resumes) => end,
            () = answered => Ok(()),
        }
    }

    async fn read_until_answer(
        self: &Arc<Self>,
        id: RequestId,
        first: Response,
        resumes: Resumability,
    ) -> Result<(), HttpFailure> {
        let mut place = StreamPosition::default();
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

    /// Reopens a request's stream.
    async fn reopen(&self, place: &mut StreamPosition, resumes: Resumability) -> Result<Response, HttpFailure> {
        const CUT: &str = "the stream ended before the answer";
        if resumes == Resumability::Never || place.id.is_none() {
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
                        return Err(HttpFailure::Broken(format!(
                            "{CUT}, and the server does not repeat it (HTTP \
                            {status})"
                        )));
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
                if !is_message(&event) {
                    return Ok(());
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
                Ok(())
            });
            if end == StreamEnd::Answered {
                return Ok(end);
            }
            fed.map_err(|TooLong(_)| HttpFailure::TooLarge(self.target.max))?;
            if let (Some(broken), Some(_)) = (broken, during) {
                // It was meant as the answer; otherwise the caller would wait for its timeout.
                return Err(HttpFailure::Other(format!("the server's answer is not a valid message: {broken}")));
            }
        }
        Ok(StreamEnd::Open)
    }

    /// Reads the rest of a stream after the answer, usually its end, so that its connection becomes free.
    fn drain(self: &Arc<Self>, id: RequestId, mut response: Response, mut events: Events) {
        if let Some(Ok(None)) = response.chunk().now_or_never() {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            // The rest belongs to this request, and must not count for another.
            let rest = inner.read(&mut response, &mut events, Some(id));
            // It is not awaited any more.
            let _ = tokio::time::timeout(AFTER_ANSWER, rest).await;
        });
    }

    /// Receives unsolicited messages of a legacy server while it offers such a stream.
    async fn listen(self: Arc<Self>) {
        let mut place = StreamPosition::default();
        let (mut was_open, mut is_gap) = (false, false);
        loop {
            let opened = Instant::now();
            match self.get(place.id.as_ref()).await {
                Ok(mut response) if response.status() == StatusCode::OK && kind(&response) == Kind::Events => {
                    if is_gap && place.id.is_none() {
                        // A server without event ids does not repeat events.
                        self.incoming.messages_missed();
                    }
                    was_open = true;
                    let mut events = Events::new(self.target.max);
                    let end = self.read(&mut response, &mut events, None).await;
                    place.after(&events);
                    if let Err(failure @ HttpFailure::TooLarge(_)) = end {
                        self.incoming.unreadable_message(&failure.to_string());
                        // It would be sent again.
                        place.id = None;
                    }
                    if opened.elapsed() > BACKOFF.most / 2 {
                        place.in_vain = 0;
                    }
                }
                Ok(response) => {
                    let refusal = Refusal::read(response).await;
                    let in_session = lock(&self.session).is_some();
                    match refused_stream(&refusal, was_open, in_session) {
                        RefusalAction::Again => place.in_vain = place.in_vain.saturating_add(1),
                        RefusalAction::FromHere => {
                            place.id = None;
                            place.in_vain = place.in_vain.saturating_add(1);
                        }
                        RefusalAction::Expired => return self.incoming.expired(),
                        RefusalAction::Never => {
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

/// A position in a stream, for reopening it.
#[derive(Debug, Default)]
struct StreamPosition {
    /// Id of the last event.
    id: Option<HeaderValue>,
    retry: Option<Duration>,
    /// Number of consecutive openings without an event.
    in_vain: u32,
}

impl StreamPosition {
    /// Updates the position.
    fn after(&mut self, events: &Events) {
        self.id = events.last_id().and_then(|id| HeaderValue::from_bytes(id).ok()).or(self.id.take());
        self.retry = events.retry().or(self.retry);
        self.in_vain = if events.any() { 0 } else { self.in_vain.saturating_add(1) };
    }

    /// Returns the pause before the next attempt.
    fn pause(&self) -> Duration {
        Backoff { first: self.retry.unwrap_or(BACKOFF.first), ..BACKOFF }.pause(self.in_vain.saturating_add(1))
    }
}

/// What to do after a refusal of the stream for unsolicited messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusalAction {
    /// Reopen it after the last event.
    Again,
    /// Reopen it from now on.
    FromHere,
    /// Begin a new session.
    Expired,
    /// The server has no such stream.
    Never,
}

/// Classifies a refusal of the stream. A server without it answers 405, as it should, or otherwise. A server with it
/// refuses it while another connection has it (409, after a proxy cut that connection), and in a forgotten session. The
/// latter two apply only to a stream that existed before: some servers answer 404 on this path from the beginning.
fn refused_stream(refusal: &Refusal, was_open: bool, in_session: bool) -> RefusalAction {
    match refusal.status.as_u16() {
        408 | 409 | 425 | 429 | 500..=599 => RefusalAction::Again,
        _ if !was_open => RefusalAction::Never,
        _ if in_session && refusal.is_session_refusal(None) => RefusalAction::Expired,
        405 => RefusalAction::Never,
        _ => RefusalAction::FromHere,
    }
}

/// Converts a text to a header value, encoded if needed.
fn encoded(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&headers::encode(text)).ok()
}

fn is_modern(message: &Outgoing<'_>) -> bool {
    message.version.is_some_and(|version| MODERN_VERSIONS.contains(&version))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
