//! The endpoints: models, and one handler that answers requests of every API.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use toolwright_core::cancel::CancelOnDrop;
use toolwright_core::model::ModelRequest;
use toolwright_core::tool_id::short_hash;
use toolwright_models::served::{Fault, References, ServedApi, ServedRequest, read_request};

use super::output::{Frame, Output};
use super::refusal::Refusal;
use super::stored_responses::{Parameters, check_parameters};
use super::{Facade, RecordKind, id_prefix, json as respond, text};
use crate::agents::RunTarget;
use crate::http::api_shape::REQUEST_ID;
use crate::http::body::{BodyError, BodyPermit};
use crate::http::{Connection, FACADES, Identity};

/// Response header: names the request fields that have no effect.
const IGNORED: HeaderName = HeaderName::from_static("x-toolwright-ignored");
/// Response header: names the features that the model's own API does not support.
const LOSSES: HeaderName = HeaderName::from_static("x-toolwright-losses");
/// Request header: the client's name of a session, whose requests share stored outputs and jobs.
const SESSION: &str = "x-toolwright-session";
/// A parameter that Anthropic's SDKs add to the URLs of their beta clients.
const BETA: &str = "beta";
/// The most models on one page, as in Anthropic's API.
const MAX_MODELS: usize = 1000;
/// Length of the hash that represents a session's name, in digits.
const SESSION_HASH: usize = 24;

/// Handles `POST` to the path of every API.
pub(super) async fn answer(
    State(facade): State<Arc<Facade>>,
    Extension(api): Extension<ServedApi>,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match begin(&facade, api, (&identity, &connection), &headers, body).await {
        Ok(response) => response,
        Err(refusal) => refusal.response(api),
    }
}

/// Handles `POST /v1/messages/count_tokens` with an estimate.
pub(super) async fn count_tokens(
    State(facade): State<Arc<Facade>>,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    body: Body,
) -> Response {
    let api = ServedApi::Messages;
    let count = async {
        let (request, ..) = facade.read(api, &identity.principal().id, body).await?;
        Ok(json!({"input_tokens": facade.tokens((&identity, &connection), request).await?}))
    };
    match count.await {
        Ok(counted) => respond(200, &counted),
        Err(refusal) => Refusal::response(&refusal, api),
    }
}

/// Handles `GET /v1/models` in the form of the requesting API. Anthropic's has pages.
pub(super) async fn models(
    State(facade): State<Arc<Facade>>,
    Extension(identity): Extension<Identity>,
    Query(query): Query<Parameters>,
    headers: HeaderMap,
) -> Response {
    let names = facade.source.names();
    let open = names.iter().filter(|name| facade.target(name, identity.principal()).is_ok());
    let api = api_of(&headers);
    let data: Vec<Value> = open.map(|name| listed(name, api)).collect();
    let list = || match api {
        ServedApi::Messages => {
            check_parameters(&query, &[BETA, "limit", "after_id", "before_id"])?;
            let (page, has_more) = page_of_models(&query, &data)?;
            let ends = [page.first(), page.last()].map(|model| model.map(|model| model["id"].clone()));
            Ok(json!({"data": page, "has_more": has_more, "first_id": ends[0], "last_id": ends[1]}))
        }
        ServedApi::Chat | ServedApi::Responses => {
            check_parameters(&query, &[])?;
            Ok(json!({"object": "list", "data": data}))
        }
    };
    list().map_or_else(|refusal| Refusal::response(&refusal, api), |list| respond(200, &list))
}

/// Selects the models that the URL's parameters ask for. Returns them, and whether there are more.
fn page_of_models<'m>(query: &[(String, String)], models: &'m [Value]) -> Result<(&'m [Value], bool), Refusal> {
    let wrong = |name: &str, why: String| Refusal::new(Fault::Invalid, format!("{name}: {why}")).with_field(name);
    let parameter = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let place = |name: &str| {
        let Some(id) = parameter(name) else { return Ok(None) };
        let at = models.iter().position(|model| model["id"] == id);
        at.map(Some).ok_or_else(|| wrong(name, format!("there is no model `{id}`")))
    };
    let limit = match parameter("limit").map(str::parse) {
        None => MAX_MODELS,
        Some(Ok(limit @ 1..=MAX_MODELS)) => limit,
        Some(_) => return Err(wrong("limit", format!("it is not a number from 1 to {MAX_MODELS}"))),
    };
    let (after, before) = (place("after_id")?, place("before_id")?);
    let between = &models[..before.unwrap_or(models.len())];
    let between = between.get(after.map_or(0, |at| at + 1)..).unwrap_or_default();
    let most = limit.min(between.len());
    let page = if before.is_some() { &between[between.len() - most..] } else { &between[..most] };
    Ok((page, most < between.len()))
}

/// Handles `GET /v1/models/{name}`.
pub(super) async fn model(
    State(facade): State<Arc<Facade>>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(query): Query<Parameters>,
    headers: HeaderMap,
) -> Response {
    let api = api_of(&headers);
    let others: &[&str] = if api == ServedApi::Messages { &[BETA] } else { &[] };
    match check_parameters(&query, others).and_then(|()| facade.target(&name, identity.principal())) {
        Ok(_) => respond(200, &listed(&name, api)),
        Err(refusal) => refusal.response(api),
    }
}

/// Returns the API whose client asks for models.
fn api_of(headers: &HeaderMap) -> ServedApi {
    if headers.contains_key("anthropic-version") { ServedApi::Messages } else { ServedApi::Chat }
}

fn listed(name: &str, api: ServedApi) -> Value {
    if api == ServedApi::Messages {
        json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"})
    } else {
        json!({"id": name, "object": "model", "created": 0, "owned_by": "toolwright"})
    }
}

impl Facade {
    /// Estimates the tokens of the first request to the model, including an agent's prompt and tools.
    async fn tokens(&self, sender: (&Identity, &Connection), request: ServedRequest) -> Result<usize, Refusal> {
        let id = format!("count_{}", uuid::Uuid::new_v4().simple());
        let work = self.work_of(ServedApi::Messages, sender, request, (id.clone(), 0))?;
        let model_request = &work.request.request;
        if matches!(work.target, RunTarget::Raw(_)) {
            return Ok(model_request.tokens());
        }
        let (driver, options, config) = self.prepare(&work, id).await?;
        let preview = driver.preview(&config, &options).await;
        let (system, tools) = (preview.prompt.text(), config.client.with_tools(&preview.tools).into());
        Ok(ModelRequest { system, tools, ..model_request.clone() }.tokens())
    }

    /// Reads a request of `owner`.
    async fn read(
        &self,
        api: ServedApi,
        owner: &str,
        body: Body,
    ) -> Result<(ServedRequest, Bytes, BodyPermit), Refusal> {
        let (mut bytes, room) = self.body(body).await?;
        if api == ServedApi::Responses {
            bytes = self.with_items(owner, bytes).await?;
        }
        Ok((read_request(api, &bytes)?, bytes, room))
    }

    /// Resolves a Responses request's references to items of the owner's stored responses.
    async fn with_items(&self, owner: &str, bytes: Bytes) -> Result<Bytes, Refusal> {
        let Some(references) = References::of(&bytes) else { return Ok(bytes) };
        let (objects, mut found) = (self.source.objects(), HashMap::new());
        for id in references.responses()? {
            let Some(mut stored_response) = objects.object(owner, RecordKind::Response.as_str(), &id).await? else {
                continue;
            };
            for items in [stored_response["response"]["output"].take(), stored_response["input"].take()] {
                let Value::Array(items) = items else { continue };
                for item in items {
                    if let Some(id) = item["id"].as_str().map(str::to_owned) {
                        found.entry(id).or_insert(item);
                    }
                }
            }
        }
        let resolved = references.resolve(found)?;
        if resolved.len() > self.bodies.limit() { Err(self.too_large()) } else { Ok(resolved.into()) }
    }

    fn too_large(&self) -> Refusal {
        Refusal::new(Fault::TooLarge, format!("a request has at most {} bytes", self.bodies.limit()))
    }

    /// Reads a body within the bounds of the server.
    pub(super) async fn body(&self, body: Body) -> Result<(Bytes, BodyPermit), Refusal> {
        self.bodies.read(body).await.map_err(|error| match error {
            BodyError::TimedOut => Refusal::new(Fault::Invalid, "the body did not arrive in time"),
            BodyError::TooLarge => self.too_large(),
            BodyError::Full => Refusal::new(Fault::Overloaded, "too much is being sent at once; try again"),
        })
    }

    /// Admits one more request, or refuses it.
    pub(super) fn admit(&self) -> Result<[OwnedSemaphorePermit; 2], Refusal> {
        if self.gateway.is_draining() {
            return Err(Refusal::new(Fault::Overloaded, "the server is shutting down"));
        }
        let full = |_| Refusal::new(Fault::Overloaded, "too many requests at once; try again");
        let request = Arc::clone(&self.requests).try_acquire_owned().map_err(full)?;
        let call = Arc::clone(&self.gateway.call_permits).try_acquire_owned().map_err(full)?;
        Ok([request, call])
    }
}

/// Returns the id of the session that a client names. The name may have any length.
pub(super) fn session_name(owner: &str, name: &str) -> String {
    format!("{owner} at {FACADES}: {}", short_hash(name, SESSION_HASH))
}

async fn begin(
    facade: &Arc<Facade>,
    api: ServedApi,
    (identity, connection): (&Identity, &Connection),
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let (mut request, bytes, room) = facade.read(api, &identity.principal().id, body).await?;
    let permits = facade.admit()?;
    let (is_stream, is_background) = (request.stream, request.background);
    let is_kept = api == ServedApi::Responses && request.store;
    if is_background && !is_kept {
        return Err(Refusal::new(Fault::Invalid, "it needs `store`").with_field("background"));
    }
    let is_raw = matches!(facade.target(&request.model, identity.principal())?, RunTarget::Raw(_));
    let mut earlier = facade.find_continuation(&identity.principal().id, &request).await?;
    if is_raw {
        (earlier.repeated_id, earlier.repeated_answer) = (None, None);
    }
    request.request.system = earlier.system(&request.request.system);
    // A repeated answer to the same calls gets the same run, under its id.
    let id =
        earlier.repeated_id.clone().unwrap_or_else(|| format!("{}{}", id_prefix(api), uuid::Uuid::new_v4().simple()));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let created = earlier.repeated_answer.as_ref().and_then(|said| said["created"].as_u64()).unwrap_or(now);
    let ignored = request.ignored.join(", ");
    let mut work = facade.work_of(api, (identity, connection), request, (id.clone(), created))?;
    let session = text(headers, SESSION).or(work.request.user.as_deref());
    work.session = session.map(|name| session_name(&work.principal.id, name));
    work.body = if is_kept || work.is_left() { bytes } else { Bytes::new() };
    let work = Arc::new(work);
    // The client of a background response learns its id at once.
    if is_background && earlier.repeated_answer.is_none() {
        facade.record_start(&work, None).await?;
    }
    let working = facade.start(Arc::clone(&work), permits, earlier, None);
    let output = Arc::clone(&work.output);
    let guard = CancelOnDrop::new(&work.cancel);
    let guard = if work.survives_disconnect {
        guard.disarm();
        None
    } else {
        Some(guard)
    };
    let mut response = if is_stream {
        stream_response(api, Arc::clone(&output), facade.keep_alive, (guard, room)).await
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
            // The response stays pending, and can be fetched, until a person decides.
            () = output.pending.notified(), if is_kept => {
                if let Some(guard) = guard {
                    guard.disarm();
                }
                respond(200, &output.body())
            }
        }
    };
    let losses = [output.lost(), work.lost.clone()].concat().join(", ");
    let headers = response.headers_mut();
    for (name, value) in [(IGNORED, ignored), (LOSSES, losses), (REQUEST_ID, id)] {
        if let Some(value) = HeaderValue::from_str(&value).ok().filter(|value| !value.is_empty()) {
            headers.insert(name, value);
        }
    }
    Ok(response)
}

/// A stream that a client reads. Dropping it detaches the reader.
struct Streaming<H> {
    output: Arc<Output>,
    first: Option<String>,
    begun: bool,
    api: ServedApi,
    keep_alive: Duration,
    _held: H,
}

impl<H> Drop for Streaming<H> {
    fn drop(&mut self) {
        self.output.detach_reader();
    }
}

/// A stream, or the refusal that came before its first event. `held` is dropped at the end of the stream, or when its
/// client disconnects.
async fn stream_response<H: Send + 'static>(
    api: ServedApi,
    output: Arc<Output>,
    keep_alive: Duration,
    held: H,
) -> Response {
    let mut state = Streaming { output, first: None, begun: false, api, keep_alive, _held: held };
    match tokio::time::timeout(keep_alive, state.output.next()).await {
        Ok(Some(Frame::Refused(refusal, _))) => return refusal.response(api),
        Ok(Some(Frame::Events(events))) => state.first = Some(events),
        Ok(None) => return Refusal::new(Fault::Internal, "the request ended without an answer").response(api),
        Err(_) => {}
    }
    let events = stream::unfold(state, |mut state| async move {
        let events = match state.first.take() {
            Some(first) => first,
            None => match tokio::time::timeout(state.keep_alive, state.output.next()).await {
                Ok(Some(Frame::Events(events) | Frame::Refused(_, events))) => events,
                Ok(None) => return None,
                Err(_) if state.begun && state.api == ServedApi::Messages => {
                    "event: ping\ndata: {\"type\":\"ping\"}\n\n".to_owned()
                }
                Err(_) => return Some((Ok::<_, Infallible>(Bytes::from_static(b": ping\n\n")), state)),
            },
        };
        state.begun = true;
        Some((Ok(Bytes::from(events)), state))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use toolwright_core::cancel::{Cancel, CancelCause};
    use toolwright_core::model::ModelEvent;
    use toolwright_core::model::ModelEvents as _;
    use toolwright_models::served::{ResponseEnd, ResponseHead};
    use toolwright_testkit::stream_order::check_stream;

    use super::super::output::ResponseIncludes;
    use super::*;

    const KEEP_ALIVE: Duration = Duration::from_secs(15);

    fn output(api: ServedApi) -> Arc<Output> {
        Arc::new(Output::new(api, ResponseHead::default(), ResponseIncludes::default(), true))
    }

    #[tokio::test(start_paused = true)]
    async fn silent_streams_send_pings() {
        for (api, later) in [
            (ServedApi::Chat, ": ping\n\n"),
            (ServedApi::Responses, ": ping\n\n"),
            (ServedApi::Messages, "event: ping\ndata: {\"type\":\"ping\"}\n\n"),
        ] {
            let output = output(api);
            let response = stream_response(api, Arc::clone(&output), KEEP_ALIVE, ()).await;
            let mut read = response.into_body().into_data_stream();
            let mut whole = Vec::new();
            let mut next = async || {
                let bytes = read.next().await.map(|bytes| bytes.expect("events"));
                whole.extend(bytes.iter().flatten());
                bytes
            };
            assert_eq!(next().await.as_deref(), Some(&b": ping\n\n"[..]), "before the first event");
            output.on_event(ModelEvent::Text("hi".into()));
            assert!(next().await.is_some_and(|events| String::from_utf8_lossy(&events).contains("hi")));
            assert_eq!(next().await.as_deref(), Some(later.as_bytes()), "{api}");
            output.end(ResponseEnd::default())();
            assert!(next().await.is_some());
            assert_eq!(next().await, None);
            check_stream(api.path(), &String::from_utf8_lossy(&whole)).unwrap_or_else(|error| panic!("{api}: {error}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_after_a_ping_are_events() {
        for api in ServedApi::ALL {
            let output = output(api);
            let response = stream_response(api, Arc::clone(&output), KEEP_ALIVE, ()).await;
            output.fail(&Refusal::new(Fault::RateLimited, "too much"));
            let mut read = response.into_body().into_data_stream();
            let mut text = String::new();
            while let Some(bytes) = read.next().await {
                text.push_str(&String::from_utf8_lossy(&bytes.expect("events")));
            }
            check_stream(api.path(), &text).unwrap_or_else(|error| panic!("{api}: {error}\n{text}"));
            assert!(text.contains("too much"), "{api}: {text}");
        }
    }

    #[tokio::test]
    async fn clients_that_disconnect_cancel_their_request() {
        let (cancel, output) = (Cancel::new(), output(ServedApi::Chat));
        output.on_event(ModelEvent::Text("hi".into()));
        let held = CancelOnDrop::new(&cancel);
        let response = stream_response(ServedApi::Chat, Arc::clone(&output), KEEP_ALIVE, held).await;
        drop(response);
        assert_eq!(cancel.cause(), Some(CancelCause::CallerGone));
        output
            .run_at_reader_pace(async { output.on_event(ModelEvent::Text("x".repeat(1 << 20))) }, &cancel, false)
            .await;
    }
}
