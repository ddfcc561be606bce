//! MCP over streamable HTTP, both generations on one address.

mod event_buffer;
mod headers;
mod resumable_streams;
mod sessions;
mod sse;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use toolwright_core::cancel::Cancel;
use toolwright_core::session::{Principal, SessionId};
use toolwright_mcp::batch::is_batch;

use self::event_buffer::{EventId, StreamKind};
use self::headers::Accepts;
use self::sessions::{HttpSession, Sessions};
use self::sse::{Events, Refusal, ResponseHold, event_stream, frame_stream, json};
use super::dispatch::{has_instructions, no_batches, subscription_acknowledgement};
use crate::http::body::{BodyError, BodyLimits, BodyPermit};
use crate::http::{Connection, Identity};
use crate::mcp::message::{self, Filter, Id, Message, Params, Request, RpcError};
use crate::mcp::protocol::{BATCHING, Era, check_modern, era_of};
use crate::mcp::response::{Event, Reply, ReplyTo};
use crate::mcp::session::{Asker, Caller};
use crate::mcp::sources::notifications::Notifications;
use crate::view::{Expose, Scope, View};
use crate::{Gateway, HttpOptions};

/// Messages of one call that wait for the client to read. Further progress is dropped.
const NOTES: usize = 64;
const TOO_MANY_REQUESTS: &str = "too many requests at once; try again";
const OVERLOADED: &str = "too much is being sent at once; try again";
const TOO_MANY_STREAMS: &str = "too many streams at once; close one or try again later";

/// The endpoint at `/mcp…`.
pub(crate) struct Endpoint {
    gateway: Arc<Gateway>,
    sessions: Sessions,
    requests: Arc<Semaphore>,
    /// Bounds streams, which live long and so do not count as requests.
    streams: Arc<Semaphore>,
    bodies: Arc<BodyLimits>,
    keep_alive: Duration,
    shutdown: Cancel,
}

/// The sender of a request, and its connection.
struct RequestSender {
    identity: Identity,
    connection: Connection,
}

impl RequestSender {
    fn principal(&self) -> &Principal {
        self.identity.principal()
    }

    /// Returns the caller, with the sender as the one who may be asked about its calls.
    fn as_asker(&self, caller: &Caller) -> Caller {
        let (connection, has_token) = (self.connection.clone(), self.identity.has_token());
        Caller { asker: Asker::Remote { connection, has_token }, ..caller.clone() }
    }
}

/// Held while a request is answered: its permit, and its body's room.
pub(super) struct RequestPermit {
    _permit: OwnedSemaphorePermit,
    _room: Option<BodyPermit>,
}

/// The address of a request.
struct RequestAddress {
    scope: Scope,
    /// Its `?expose`.
    expose: Option<Expose>,
}

impl RequestAddress {
    /// Returns the current view at this address.
    fn view(&self, gateway: &Gateway) -> View {
        let expose = self.expose.unwrap_or_else(|| gateway.usual_expose(&self.scope));
        View { scope: self.scope.clone(), expose }
    }

    /// Returns whether this caller came to the same address, or to one with the same view.
    fn is_of(&self, caller: &Caller, gateway: &Gateway) -> bool {
        let is_same = self.scope == caller.view.scope && self.expose == caller.expose_asked;
        is_same || self.view(gateway) == caller.view
    }
}

/// Handles `/mcp`.
pub(crate) async fn mcp_whole(State(endpoint): State<Arc<Endpoint>>, request: HttpRequest) -> Response {
    endpoint.respond(Scope::Whole, request).await
}

/// Handles `/mcp/{provider}` and `/mcp/{view}`.
pub(crate) async fn mcp_part(
    State(endpoint): State<Arc<Endpoint>>,
    Path(name): Path<String>,
    request: HttpRequest,
) -> Response {
    let sources = endpoint.gateway.options.catalogue.sources();
    let scope = match endpoint.gateway.view(&name) {
        Some(_) => Scope::View(name.into()),
        None if sources.iter().any(|provider| provider.name() == name) => Scope::Provider(name.into()),
        None => {
            let views = endpoint.gateway.views();
            let views = views.iter().map(|view| view.name.as_str());
            let names: Vec<&str> = sources.iter().map(|provider| provider.name()).chain(views).collect();
            let why = format!("there is no provider or view of this name; there are {}", names.join(", "));
            return Refusal::text(StatusCode::NOT_FOUND, &why).into_response();
        }
    };
    endpoint.respond(scope, request).await
}

impl Endpoint {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        options: HttpOptions,
        (requests, bodies): (Arc<Semaphore>, Arc<BodyLimits>),
        shutdown: Cancel,
    ) -> Self {
        let catalogue = Arc::clone(&gateway.options.catalogue);
        let session_ended = move |session: &SessionId| {
            catalogue.sources().iter().for_each(|provider| provider.session_ended(session));
        };
        Self {
            gateway,
            sessions: Sessions::new(options.max_sessions, options.session_idle, Box::new(session_ended)),
            streams: Arc::new(Semaphore::new(options.max_sessions)),
            requests,
            bodies,
            keep_alive: options.keep_alive,
            shutdown,
        }
    }

    /// Ends idle sessions.
    pub(crate) fn sweep(&self) {
        self.sessions.sweep();
    }

    async fn respond(&self, scope: Scope, request: HttpRequest) -> Response {
        self.handle(scope, request).await.unwrap_or_else(Refusal::into_response)
    }

    async fn handle(&self, scope: Scope, request: HttpRequest) -> Result<Response, Refusal> {
        let expose = Expose::in_query(request.uri().query().unwrap_or_default())
            .map_err(|why| Refusal::text(StatusCode::BAD_REQUEST, &why))?;
        let extensions = request.extensions();
        let (Some(identity), Some(connection)) = (extensions.get().cloned(), extensions.get().cloned()) else {
            return Err(Refusal::text(StatusCode::UNAUTHORIZED, "this server does not know who sends this"));
        };
        let sender = RequestSender { identity, connection };
        if let Scope::View(name) = &scope
            && self.gateway.view(name).is_some_and(|view| !sender.principal().may_use(&view.roles))
        {
            return Err(Refusal::text(StatusCode::FORBIDDEN, "this view is for other roles"));
        }
        let at = RequestAddress { scope, expose };
        let method = request.method();
        if method == Method::POST {
            return self.post(&sender, &at, request).await;
        }
        let _permit = self.admit()?;
        if (method == Method::GET || method == Method::DELETE) && headers::may_be_legacy(request.headers()) {
            let session = self.session(sender.principal(), &at, request.headers(), None)?;
            if method == Method::GET {
                return self.stream(&session, request.headers());
            }
            self.sessions.end(&session);
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        Ok((StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST, GET, DELETE")]).into_response())
    }

    async fn post(&self, sender: &RequestSender, at: &RequestAddress, http: HttpRequest) -> Result<Response, Refusal> {
        let principal = sender.principal();
        let (parts, body) = http.into_parts();
        let accepts = Accepts::of(&parts.headers).ok_or_else(|| {
            Refusal::text(StatusCode::NOT_ACCEPTABLE, "accept application/json, text/event-stream or both")
        })?;
        if !headers::is_json(&parts.headers) {
            return Err(Refusal::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send application/json"));
        }
        let (body, room) = self.body(body).await?;
        // Taken after the body has arrived, so that a client that stops sending does not block others.
        let place = RequestPermit { _permit: self.admit()?, _room: Some(room) };
        if is_batch(&body) {
            return self.batch(sender, at, &parts.headers, accepts, &body, place).await;
        }
        let mut request = match message::parse(&body) {
            Ok(Message::Request(request)) => request,
            Ok(Message::Notification { method, params, .. }) => {
                if headers::may_be_legacy(&parts.headers) {
                    self.notified(principal, at, &parts.headers, &method, &params)?;
                }
                return Ok(StatusCode::ACCEPTED.into_response());
            }
            Ok(Message::Response(response)) => {
                if headers::may_be_legacy(&parts.headers) {
                    self.session(principal, at, &parts.headers, None)?.caller.client.take_response(response);
                }
                return Ok(StatusCode::ACCEPTED.into_response());
            }
            Err(refused) => return Err(Refusal::rpc(StatusCode::BAD_REQUEST, refused.id.as_ref(), &refused.error)),
        };
        headers::add_traceparent(&parts.headers, &mut request);
        match era_of(&request, headers::version(&parts.headers)) {
            Era::Modern => {
                check_modern(&request, Some(&headers::standard(&parts.headers)))
                    .map_err(|error| Refusal::of(Era::Modern, &request.id, &error))?;
                let caller = self.caller(principal, &format!("{} at {}", principal.id, at.scope.path()), at);
                headers::check_mirrored(&self.gateway, &caller, &request, &parts.headers)
                    .map_err(|error| Refusal::of(Era::Modern, &request.id, &error))?;
                self.answer(&sender.as_asker(&caller), Era::Modern, accepts, request, (place, None)).await
            }
            Era::Legacy if request.method == "initialize" => {
                if self.gateway.is_draining() {
                    return Err(Refusal::of(Era::Legacy, &request.id, &shutting_down()));
                }
                let caller = self.caller(principal, &uuid::Uuid::new_v4().to_string(), at);
                let session = self.sessions.open(caller).ok_or_else(|| {
                    let why = "too many sessions; end one with DELETE, or try again later";
                    Refusal::text(StatusCode::SERVICE_UNAVAILABLE, why)
                })?;
                let id = session.caller.session.id.clone();
                let mut response = self.in_session(&session, sender, accepts, request, place).await?;
                if let Ok(id) = HeaderValue::from_str(id.as_str()) {
                    response.headers_mut().insert(headers::SESSION, id);
                }
                Ok(response)
            }
            Era::Legacy => {
                let session = self.session(principal, at, &parts.headers, Some(&request.id))?;
                self.in_session(&session, sender, accepts, request, place).await
            }
        }
    }

    fn admit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        permit(&self.requests, TOO_MANY_REQUESTS)
    }

    async fn body(&self, body: Body) -> Result<(Bytes, BodyPermit), Refusal> {
        self.bodies.read(body).await.map_err(|error| match error {
            BodyError::TimedOut => Refusal::text(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
            BodyError::TooLarge => {
                let why = format!("a message has at most {} bytes", self.bodies.limit());
                Refusal::text(StatusCode::PAYLOAD_TOO_LARGE, &why)
            }
            BodyError::Full => Refusal::text(StatusCode::SERVICE_UNAVAILABLE, OVERLOADED),
        })
    }

    fn caller(&self, principal: &Principal, session: &str, at: &RequestAddress) -> Caller {
        let session = self.gateway.session(session, principal.clone());
        Caller { expose_asked: at.expose, ..Caller::new(session, at.view(&self.gateway)) }
    }

    /// Returns the request's session, if it exists and belongs to this principal and address. A session keeps its
    /// exposure.
    fn session(
        &self,
        principal: &Principal,
        at: &RequestAddress,
        headers: &HeaderMap,
        id: Option<&Id>,
    ) -> Result<Arc<HttpSession>, Refusal> {
        let refuse =
            |status, why: &'static str| Refusal::rpc(status, id, &RpcError::new(RpcError::INVALID_REQUEST, why));
        let sent = headers::text(headers, &headers::SESSION)
            .ok_or_else(|| refuse(StatusCode::BAD_REQUEST, "no Mcp-Session-Id: begin with initialize"))?;
        self.sessions
            .find(sent, |caller| at.is_of(caller, &self.gateway) && caller.session.principal == *principal)
            .ok_or_else(|| refuse(StatusCode::NOT_FOUND, "this session does not exist or has ended: initialize again"))
    }

    fn notified(
        &self,
        principal: &Principal,
        at: &RequestAddress,
        headers: &HeaderMap,
        method: &str,
        params: &Params,
    ) -> Result<(), Refusal> {
        let session = self.session(principal, at, headers, None)?;
        session.caller.notified(method, params);
        Ok(())
    }

    async fn in_session(
        &self,
        session: &Arc<HttpSession>,
        sender: &RequestSender,
        accepts: Accepts,
        request: Request,
        place: RequestPermit,
    ) -> Result<Response, Refusal> {
        self.note_list(session, &request);
        let held = (place, Some(session.enter()));
        self.answer(&sender.as_asker(&session.caller), Era::Legacy, accepts, request, held).await
    }

    /// Handles a batch of a session, which counts as one request.
    async fn batch(
        &self,
        sender: &RequestSender,
        at: &RequestAddress,
        headers: &HeaderMap,
        accepts: Accepts,
        body: &[u8],
        place: RequestPermit,
    ) -> Result<Response, Refusal> {
        let refuse = |error: RpcError| Refusal::rpc(StatusCode::BAD_REQUEST, None, &error);
        let session = self.session(sender.principal(), at, headers, None)?;
        // Clients of that revision send no version header.
        if headers::version(headers).is_some_and(|version| version != BATCHING) {
            return Err(refuse(no_batches()));
        }
        let _held = (place, session.enter());
        let batch = self.gateway.batch(&sender.as_asker(&session.caller), body, |request| {
            headers::add_traceparent(headers, request);
            self.note_list(&session, request);
        });
        let batch = batch.map_err(refuse)?;
        let has_requests = batch.has_requests;
        Ok(match batch.answers().await {
            Some(answers) if has_requests => self.whole_answer(accepts, answers),
            // The batch contained no request.
            Some(errors) => (StatusCode::BAD_REQUEST, json(errors)).into_response(),
            None => StatusCode::ACCEPTED.into_response(),
        })
    }

    /// Records what a request means for its session.
    fn note_list(&self, session: &HttpSession, request: &Request) {
        // A list that still waits for sources may differ from this one, so its client is notified later.
        if request.method == "tools/list" && !self.gateway.is_awaiting_lists(&session.caller.view.scope) {
            session.has_listed(self.gateway.tools(&session.caller.view, &session.caller.session).fingerprint);
        }
    }

    async fn answer(
        &self,
        caller: &Caller,
        era: Era,
        accepts: Accepts,
        request: Request,
        held: ResponseHold,
    ) -> Result<Response, Refusal> {
        let id = request.id.clone();
        if has_instructions(&request.method) {
            self.gateway.await_capabilities(&caller.view.scope).await;
        }
        let (send, sent) = mpsc::channel(NOTES);
        let to = if accepts.events { ReplyTo::Stream(send) } else { ReplyTo::Whole(send) };
        match self.gateway.reply(caller, era, request, to) {
            Reply::Result(result) => Ok(self.whole_answer(accepts, message::result(&id, &result))),
            Reply::Error(error) => Err(Refusal::of(era, &id, &error)),
            Reply::Running(waiting) => self.running(era, accepts, Events::new(waiting, sent, held)).await,
            Reply::Listen(asked) if accepts.events => self.listen(caller, id, asked).await,
            Reply::Listen(_) => {
                Err(Refusal::text(StatusCode::NOT_ACCEPTABLE, "a subscription needs Accept: text/event-stream"))
            }
        }
    }

    /// Answers with plain JSON if the end comes first; with an event stream from the first progress or question, or
    /// after a long silence.
    async fn running(&self, era: Era, accepts: Accepts, mut events: Events) -> Result<Response, Refusal> {
        let first = tokio::select! {
            event = events.next() => Some(event),
            () = tokio::time::sleep(self.keep_alive), if accepts.events => None,
        };
        let note = match first {
            Some(Event::End(None)) => return Ok(StatusCode::ACCEPTED.into_response()),
            Some(Event::End(Some(Ok(result)))) => {
                return Ok(self.whole_answer(accepts, message::result(events.id(), &result)));
            }
            Some(Event::End(Some(Err(error)))) => return Err(Refusal::of(era, events.id(), &error)),
            Some(Event::Note(note)) => Some(note),
            None => None,
        };
        let resumable = events.resumable().and_then(|session| Some((session, events.release()?)));
        let messages = stream::iter(note).chain(events.messages());
        Ok(match resumable {
            Some((session, held)) => {
                frame_stream(session.replay.begin(StreamKind::Answer, messages, held), self.keep_alive)
            }
            None => event_stream(messages, self.keep_alive),
        })
    }

    fn whole_answer(&self, accepts: Accepts, message: Bytes) -> Response {
        if accepts.json { json(message) } else { event_stream(stream::iter([message]), self.keep_alive) }
    }

    /// Returns the notification stream of a legacy session, or a stream that its client resumes.
    fn stream(&self, session: &Arc<HttpSession>, headers: &HeaderMap) -> Result<Response, Refusal> {
        if !Accepts::of(headers).is_some_and(|accepts| accepts.events) {
            return Err(Refusal::text(StatusCode::NOT_ACCEPTABLE, "accept text/event-stream"));
        }
        let mut held = (permit(&self.streams, TOO_MANY_STREAMS)?, session.enter());
        let resumes = session.caller.client.resumes_streams();
        if let Some(last) = headers::text(headers, &headers::LAST_EVENT_ID).filter(|_| resumes) {
            let unknown = || Refusal::text(StatusCode::BAD_REQUEST, "the stream of this Last-Event-ID is not kept");
            let after = EventId::parse(last).ok_or_else(unknown)?;
            held = match session.replay.resume(after, held) {
                Ok(frames) => return Ok(frame_stream(frames, self.keep_alive)),
                Err(held) if after.kind == StreamKind::Session => held,
                // Another stream must not get the events of this one.
                Err(_) => return Err(unknown()),
            };
        }
        let end = session.ended.child();
        session.replace_stream(end.clone());
        let mut notifications = Notifications::of_session(&self.gateway, &session.caller);
        if let Some(tools_fingerprint) = session.listed() {
            notifications = notifications.since(tools_fingerprint);
        }
        let (shutdown, gateway, caller) = (self.shutdown.clone(), Arc::clone(&self.gateway), session.caller.clone());
        let ended = async move {
            tokio::select! {
                _ = end.cancelled() => {}
                _ = shutdown.cancelled() => {}
                () = gateway.wait_until_revoked(&caller.view.scope, &caller.session.principal) => {}
            }
        };
        let messages = notifications.stream().take_until(Box::pin(ended));
        if resumes {
            return Ok(frame_stream(session.replay.begin(StreamKind::Session, messages, held), self.keep_alive));
        }
        // The stream holds its permit until it ends.
        let messages = messages.inspect(move |_| {
            let _held = &held;
        });
        Ok(event_stream(messages, self.keep_alive))
    }

    /// Serves a modern subscription: grants it, sends notifications, and answers when the server ends it.
    async fn listen(&self, caller: &Caller, id: Id, filter: Filter) -> Result<Response, Refusal> {
        let held = permit(&self.streams, TOO_MANY_STREAMS)?;
        let last = stream::iter([message::result(&id, &self.gateway.listen_result(&id))]);
        let granted = self.gateway.grant(caller, id, filter).await;
        let first = stream::iter([subscription_acknowledgement(&granted)]);
        let notifications = Notifications::of_subscription(&self.gateway, caller, granted).stream();
        let (shutdown, gateway, caller) = (self.shutdown.clone(), Arc::clone(&self.gateway), caller.clone());
        let ended = async move {
            let _held = held;
            tokio::select! {
                _ = shutdown.cancelled() => {}
                () = gateway.wait_until_revoked(&caller.view.scope, &caller.session.principal) => {}
            }
        };
        Ok(event_stream(first.chain(notifications.take_until(Box::pin(ended))).chain(last), self.keep_alive))
    }
}

fn shutting_down() -> RpcError {
    RpcError::new(RpcError::BUSY, "the server is shutting down")
}

fn permit(of: &Arc<Semaphore>, why_not: &str) -> Result<OwnedSemaphorePermit, Refusal> {
    Arc::clone(of).try_acquire_owned().map_err(|_| Refusal::text(StatusCode::SERVICE_UNAVAILABLE, why_not))
}
