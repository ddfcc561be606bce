//! The endpoints that answer: models, and one for each API.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use toolwright_core::cancel::{Cancel, CancelOnDrop};
use toolwright_core::session::PeerProcess;
use toolwright_core::tool_id::short_hash;
use toolwright_models::served::{Fault, ResponseHead, ServedApi, ServedRequest, read_request};

use super::output::{Frame, Output, Refusal};
use super::source::{FacadeApprovals, OnDisconnect, Target};
use super::work::Work;
use super::{Facade, Live, json as respond, text};
use crate::http::body::{BodyError, BodyRoom};
use crate::http::{Connection, Identity};

/// Names the fields of a request that have no effect.
const IGNORED: HeaderName = HeaderName::from_static("x-toolwright-ignored");
/// Names what the model's own API has no word for.
const LOSSES: HeaderName = HeaderName::from_static("x-toolwright-losses");
/// The client's name of a session: stored outputs and jobs are shared by its requests.
const SESSION: &str = "x-toolwright-session";
/// Digits of the hash that stands for the name of a session.
const SESSION_HASH: usize = 24;

/// `POST /v1/chat/completions`.
pub(super) async fn chat(
    State(facade): State<Arc<Facade>>,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(facade, ServedApi::Chat, (identity, connection), headers, body).await
}

/// `POST /v1/messages`.
pub(super) async fn messages(
    State(facade): State<Arc<Facade>>,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(facade, ServedApi::Messages, (identity, connection), headers, body).await
}

/// `POST /v1/responses`.
pub(super) async fn responses(
    State(facade): State<Arc<Facade>>,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(facade, ServedApi::Responses, (identity, connection), headers, body).await
}

/// `POST /v1/messages/count_tokens`: an estimate.
pub(super) async fn count_tokens(State(facade): State<Arc<Facade>>, body: Body) -> Response {
    let api = ServedApi::Messages;
    match facade.read(api, body).await {
        Ok((request, _room)) => respond(200, &json!({"input_tokens": request.request.tokens()})),
        Err(refusal) => refusal.response(api),
    }
}

/// `GET /v1/models`, in the form of the API that asks.
pub(super) async fn models(
    State(facade): State<Arc<Facade>>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
) -> Response {
    let names = facade.source.names();
    let open = names.iter().filter(|name| facade.target(name, identity.principal()).is_ok());
    let is_anthropic = headers.contains_key("anthropic-version");
    let data: Vec<Value> = open.map(|name| listed(name, is_anthropic)).collect();
    let ends = [data.first(), data.last()].map(|model| model.map(|model| model["id"].clone()));
    let body = if is_anthropic {
        json!({"data": data, "has_more": false, "first_id": ends[0], "last_id": ends[1]})
    } else {
        json!({"object": "list", "data": data})
    };
    respond(200, &body)
}

/// `GET /v1/models/{name}`.
pub(super) async fn model(
    State(facade): State<Arc<Facade>>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let is_anthropic = headers.contains_key("anthropic-version");
    let api = if is_anthropic { ServedApi::Messages } else { ServedApi::Chat };
    match facade.target(&name, identity.principal()) {
        Ok(_) => respond(200, &listed(&name, is_anthropic)),
        Err(refusal) => refusal.response(api),
    }
}

fn listed(name: &str, is_anthropic: bool) -> Value {
    if is_anthropic {
        json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"})
    } else {
        json!({"id": name, "object": "model", "created": 0, "owned_by": "toolwright"})
    }
}

impl Facade {
    /// Reads a request.
    pub(super) async fn read(&self, api: ServedApi, body: Body) -> Result<(ServedRequest, BodyRoom), Refusal> {
        let (bytes, room) = self.body(body).await?;
        let read = read_request(api, &bytes);
        read.map(|request| (request, room)).map_err(|error| Refusal::new(Fault::Invalid, error.to_string()))
    }

    /// Reads a body within the bounds of the server.
    pub(super) async fn body(&self, body: Body) -> Result<(Bytes, BodyRoom), Refusal> {
        self.bodies.read(body).await.map_err(|error| match error {
            BodyError::TimedOut => Refusal::new(Fault::Invalid, "the body did not arrive in time"),
            BodyError::TooLarge => {
                Refusal::new(Fault::TooLarge, format!("a request has at most {} bytes", self.bodies.limit()))
            }
            BodyError::Full => Refusal::new(Fault::Overloaded, "too much is being sent at once; try again"),
        })
    }

    /// Room for one more request.
    fn admit(&self) -> Result<[OwnedSemaphorePermit; 2], Refusal> {
        if self.gateway.is_draining() {
            return Err(Refusal::new(Fault::Overloaded, "the server is shutting down"));
        }
        let full = |_| Refusal::new(Fault::Overloaded, "too many requests at once; try again");
        let request = Arc::clone(&self.requests).try_acquire_owned().map_err(full)?;
        let call = Arc::clone(&self.gateway.call_permits).try_acquire_owned().map_err(full)?;
        Ok([request, call])
    }
}

async fn answer(
    facade: Arc<Facade>,
    api: ServedApi,
    sender: (Identity, Connection),
    headers: HeaderMap,
    body: Body,
) -> Response {
    match begin(&facade, api, &sender, &headers, body).await {
        Ok(response) => response,
        Err(refusal) => refusal.response(api),
    }
}

async fn begin(
    facade: &Arc<Facade>,
    api: ServedApi,
    (identity, connection): &(Identity, Connection),
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let (bytes, room) = facade.body(body).await?;
    let mut request = match read_request(api, &bytes) {
        Ok(request) => request,
        Err(error) => return Ok(respond(400, &error.body(api))),
    };
    drop(bytes);
    let permits = facade.admit()?;
    let principal = identity.principal().clone();
    let target = facade.target(&request.model, &principal)?;
    let losses = losses(facade, api, &target, &request);
    let session = text(headers, SESSION).or(request.user.as_deref());
    // Names of clients are of any length.
    let session =
        session.map(|name| format!("{} at {}: {}", principal.id, super::ROOT, short_hash(name, SESSION_HASH)));
    let prefix = match api {
        ServedApi::Chat => "chatcmpl-",
        ServedApi::Responses => "resp_",
        ServedApi::Messages => "msg_",
    };
    let id = format!("{prefix}{}", uuid::Uuid::new_v4().simple());
    let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (is_stream, is_background) = (request.stream, request.background);
    let head = ResponseHead {
        id: id.clone(),
        model: request.model.clone(),
        created,
        include_usage: request.include_usage,
        echo: std::mem::take(&mut request.echo),
        custom_tools: request.custom_tools.clone(),
    };
    let (sender, frames) = unbounded_channel();
    let output = Arc::new(Output::new(api, head, request.wants_reasoning, is_stream.then_some(sender)));
    let ignored = request.ignored.join(", ");
    let is_kept = api == ServedApi::Responses && request.store;
    if is_background && !is_kept {
        return Err(Refusal { field: Some("background"), ..Refusal::new(Fault::Invalid, "it needs `store`") });
    }
    let cancel = Cancel::new();
    let approvals = match (facade.approvals(&principal), connection.process().await) {
        // A program that Toolwright started cannot approve its own calls.
        (FacadeApprovals::Tool, PeerProcess::Nested) => FacadeApprovals::Deny,
        (approvals, _) => approvals,
    };
    let work = Work {
        id: id.clone(),
        api,
        target,
        tools: facade.tools_of(identity),
        approvals,
        principal: principal.clone(),
        request,
        session,
        cancel: cancel.clone(),
        output: Arc::clone(&output),
    };
    // Whoever fetches it finds it at once, and after a restart.
    if is_background {
        facade.keep(&work, None).await?;
    }
    let live = Live { cancel: cancel.clone(), output: Arc::clone(&output) };
    facade.set_live(&principal.id, &id, is_kept.then_some(live));
    let (worker, owner, worked) = (Arc::clone(facade), principal.id.clone(), Arc::clone(&output));
    // In its own task, so that a shutdown waits for its end even if the client is gone.
    let working = facade.gateway.running.spawn(async move {
        let _permits = permits;
        let done = worker.work(&work).await;
        if let Err(refusal) = &done {
            worked.fail(refusal);
            if let Err(error) = worker.keep(&work, None).await {
                tracing::error!("response {} was not kept: {}", work.id, error.message);
            }
        }
        worker.set_live(&owner, &work.id, None);
        done
    });
    let guard = CancelOnDrop::new(&cancel);
    let goes_on = facade.config.on_disconnect == OnDisconnect::Continue || is_background;
    let guard = if goes_on {
        guard.disarm();
        None
    } else {
        Some(guard)
    };
    let mut response = if is_stream {
        stream_response(facade, api, frames, guard, room).await
    } else if is_background {
        respond(200, &output.body())
    } else {
        tokio::select! {
            done = working => {
                if let Some(guard) = guard {
                    guard.disarm();
                }
                match done {
                    Ok(Ok(())) => respond(200, &output.body()),
                    Ok(Err(refusal)) => refusal.response(api),
                    Err(error) => {
                        tracing::error!("a request ended without an answer: {error}");
                        Refusal::new(Fault::Internal, "the request ended without an answer; the server's log says why")
                            .response(api)
                    }
                }
            }
            // The response is pending until somebody has decided, and can be fetched.
            () = output.asked.notified(), if is_kept => {
                if let Some(guard) = guard {
                    guard.disarm();
                }
                respond(200, &output.body())
            }
        }
    };
    let headers = response.headers_mut();
    for (name, value) in [(IGNORED, ignored), (LOSSES, losses), (HeaderName::from_static("x-request-id"), id)] {
        if let Some(value) = HeaderValue::from_str(&value).ok().filter(|value| !value.is_empty()) {
            headers.insert(name, value);
        }
    }
    Ok(response)
}

/// What the API of the model behind a raw request has no word for, of what the request asks.
fn losses(facade: &Facade, api: ServedApi, target: &Target, request: &ServedRequest) -> String {
    let Target::Raw(model) = target else { return String::new() };
    let Some(upstream) = facade.source.api(model).filter(|upstream| *upstream != api.api()) else {
        return String::new();
    };
    toolwright_models::served::losses(upstream, &request.request).join(", ")
}

/// What a stream of frames holds.
struct Streaming {
    frames: UnboundedReceiver<Frame>,
    first: Option<String>,
    begun: bool,
    api: ServedApi,
    keep_alive: std::time::Duration,
    _guard: Option<CancelOnDrop>,
    _room: BodyRoom,
}

/// A stream, or the refusal that came before its first event.
async fn stream_response(
    facade: &Facade,
    api: ServedApi,
    mut frames: UnboundedReceiver<Frame>,
    guard: Option<CancelOnDrop>,
    room: BodyRoom,
) -> Response {
    let first = match tokio::time::timeout(facade.keep_alive, frames.recv()).await {
        Ok(Some(Frame::Refused(refusal))) => return refusal.response(api),
        Ok(Some(Frame::Events(events))) => Some(events),
        Ok(None) => return Refusal::new(Fault::Internal, "the request ended without an answer").response(api),
        Err(_) => None,
    };
    let keep_alive = facade.keep_alive;
    let state = Streaming { frames, first, begun: false, api, keep_alive, _guard: guard, _room: room };
    let events = stream::unfold(state, |mut state| async move {
        let events = match state.first.take() {
            Some(first) => first,
            None => match tokio::time::timeout(state.keep_alive, state.frames.recv()).await {
                Ok(Some(Frame::Events(events))) => events,
                Ok(Some(Frame::Refused(refusal))) => {
                    format!("event: error\ndata: {}\n\n", refusal.body(state.api))
                }
                Ok(None) => return None,
                Err(_) if state.begun && state.api == ServedApi::Messages => {
                    "event: ping\ndata: {\"type\":\"ping\"}\n\n".to_owned()
                }
                Err(_) => return Some((Ok::<_, Infallible>(Bytes::from_static(b": ping\n\n")), state)),
            },
        };
        state.begun = true;
        // What waits goes out with it.
        let mut events = events;
        while let Ok(Frame::Events(more)) = state.frames.try_recv() {
            events.push_str(&more);
        }
        Some((Ok(Bytes::from(events)), state))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}
