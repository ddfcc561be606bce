//! The server, which checks and records requests and sends the scripted answers.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::uri::Uri;
use axum::http::{HeaderMap, HeaderValue, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::check::{Checked, ensure};
use super::sending::{json_response, send};
use super::{Fault, RecordedRequest, Reply, Script, WireApi};

/// The largest request in bytes (Anthropic's limit).
const MAX_BODY: usize = 32 << 20;
/// The most requests recorded.
const MAX_RECORDED: usize = 10_000;

/// One request as received.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The API of the request.
    pub api: WireApi,
    /// Its path, with the query.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, byte for byte.
    pub bytes: Bytes,
    /// Its body as JSON; null if it is not JSON.
    pub body: Value,
}

impl Recorded {
    /// Returns the value of a header; empty if there is none.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

#[derive(Default)]
struct Log {
    requests: Vec<Recorded>,
    failures: Vec<String>,
    answered: usize,
    /// The number of the script's faults used.
    gone_wrong: usize,
}

struct Shared {
    script: Script,
    log: Mutex<Log>,
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running scripted server, which stops when it is dropped.
pub struct ScriptedModel {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedModel").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ScriptedModel {
    /// Starts on a free port of the loopback interface.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(script: impl Into<Script>) -> io::Result<Self> {
        Self::start_on(0, script).await
    }

    /// Starts on `port` of the loopback interface, zero for any free port.
    ///
    /// # Errors
    /// If the port cannot be bound.
    pub async fn start_on(port: u16, script: impl Into<Script>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { script: script.into(), log: Mutex::default() });
        let app = Router::new()
            .route("/v1/chat/completions", post(ask))
            .route("/v1/responses", post(ask))
            .route("/v1/messages", post(ask))
            .route("/v1beta/{*model}", post(ask).get(gemini_models))
            .route("/v1/models/{*model}", post(ask))
            .route("/api/chat", post(ask))
            .route("/v1/files/{file}/content", get(file))
            .route("/v1/containers/{container}/files/{file}/content", get(file))
            .route("/v1/models", get(v1_models))
            .route("/api/tags", get(ollama_tags))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(Arc::clone(&shared));
        let serve =
            axum::serve(axum::serve::ListenerExt::tap_io(listener, |socket| drop(socket.set_nodelay(true))), app);
        let task = tokio::spawn(async move { drop(serve.await) });
        Ok(Self { address, shared, task })
    }

    /// Serves until it is dropped.
    pub(super) async fn serving(mut self) {
        drop((&mut self.task).await);
    }

    /// Returns the root URL, `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the base URL for a client of `api`.
    #[must_use]
    pub fn base_url(&self, api: WireApi) -> String {
        match api {
            WireApi::OpenAi | WireApi::Responses => format!("{}/v1", self.url()),
            WireApi::Anthropic | WireApi::Gemini | WireApi::Ollama => self.url(),
        }
    }

    /// Returns every model request so far, including refused ones.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.log().requests.clone()
    }

    /// Returns the reasons of refused requests and unmet expectations; empty if there are none.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        self.shared.log().failures.clone()
    }

    /// Returns the number of turns answered.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.shared.log().answered
    }
}

type Served = State<Arc<Shared>>;

async fn ask(State(shared): Served, uri: Uri, headers: HeaderMap, bytes: Bytes) -> Response<Body> {
    let api = match uri.path() {
        "/v1/chat/completions" => WireApi::OpenAi,
        "/v1/responses" => WireApi::Responses,
        "/v1/messages" => WireApi::Anthropic,
        "/api/chat" => WireApi::Ollama,
        path if path.ends_with(":generateContent") || path.ends_with(":streamGenerateContent") => WireApi::Gemini,
        _ => return json_response(404, &WireApi::Gemini.error_body(404, "", "no such method")),
    };
    answer(&shared, api, uri.to_string(), headers, bytes).await
}

async fn gemini_models() -> Response<Body> {
    let methods = ["generateContent", "streamGenerateContent"];
    json_response(200, &json!({"models": [{"name": "models/scripted", "supportedGenerationMethods": methods}]}))
}

/// Serves a file that a provider's tool made, always the same table. Anthropic's API requires a beta header.
async fn file(uri: Uri, headers: HeaderMap) -> Response<Body> {
    let is_openai = uri.path().starts_with("/v1/containers/");
    let (api, beta) = if is_openai { (WireApi::Responses, "") } else { (WireApi::Anthropic, "files-api-2025-04-14") };
    let asked = headers.get("anthropic-beta").and_then(|value| value.to_str().ok()).unwrap_or_default();
    match authorized(api, &headers) {
        Err(reason) => json_response(401, &api.error_body(401, "", &reason)),
        Ok(()) if !asked.contains(beta) => json_response(400, &api.error_body(400, "", "anthropic-beta: missing")),
        Ok(()) => {
            let mut response = Response::new(Body::from("a,b\n1,2\n"));
            response.headers_mut().insert("content-type", HeaderValue::from_static("text/csv"));
            response
        }
    }
}

/// Lists models for OpenAI and Anthropic, which share the path; a version header marks Anthropic's clients.
async fn v1_models(headers: HeaderMap) -> Response<Body> {
    let list = if headers.contains_key("anthropic-version") {
        let model = json!({
            "type": "model", "id": "scripted", "display_name": "Scripted", "created_at": "2026-11-20T00:00:00Z",
        });
        json!({"data": [model], "has_more": false, "first_id": "scripted", "last_id": "scripted"})
    } else {
        let model = json!({"id": "scripted", "object": "model", "created": 1_700_000_000, "owned_by": "toolwright"});
        json!({"object": "list", "data": [model]})
    };
    json_response(200, &list)
}

async fn ollama_tags() -> Response<Body> {
    json_response(
        200,
        &json!({"models": [{
            "name": "scripted:latest", "model": "scripted:latest", "modified_at": "2026-11-20T09:00:00Z",
            "size": 1, "digest": "0",
            "details": {"format": "gguf", "family": "scripted", "parameter_size": "1B", "quantization_level": "Q4_0"},
        }]}),
    )
}

async fn answer(shared: &Shared, api: WireApi, path: String, headers: HeaderMap, bytes: Bytes) -> Response<Body> {
    let body = serde_json::from_slice::<Value>(&bytes).unwrap_or_default();
    let mut asked = RecordedRequest { api, path: path.clone(), body: body.clone(), tokens: 10 };
    if let Some(count) = &shared.script.count {
        asked.tokens = count(&asked);
    }
    if let Some(text) = shared.script.aside.as_ref().filter(|_| asked.tool_names().is_empty()) {
        return send(api.speak(&asked, &Reply::text(text), 0), None, api).await;
    }
    let keyed = authorized(api, &headers);
    let checked = if shared.script.aside.is_none() { check(api, &headers, &body) } else { Ok(()) };
    let picked = {
        let mut log = shared.log();
        if log.requests.len() < MAX_RECORDED {
            log.requests.push(Recorded { api, path: path.clone(), headers, bytes, body });
        }
        let refusal = keyed.map_err(|reason| (401, reason)).and_then(|()| checked.map_err(|reason| (400, reason)));
        match refusal {
            Err((status, reason)) => {
                log.failures.push(format!("{path} refused with {status}: {reason}"));
                Err((status, reason))
            }
            Ok(()) => pick(shared, &mut log, &asked).map_err(|reason| (500, reason)),
        }
    };
    let PickedReply { mut reply, number, fault } = match picked {
        Ok(picked) => picked,
        Err((status, reason)) => return json_response(status, &api.error_body(status, "", &reason)),
    };
    if let (Some(_), Reply::Answer(answer)) = (&shared.script.count, &mut reply) {
        answer.tokens.input = asked.tokens;
    }
    let turn = &shared.script.turns[number % shared.script.turns.len()];
    tokio::time::sleep(turn.delay).await;
    let asked = if turn.whole { asked.unstreamed() } else { asked };
    send(api.speak(&asked, &reply, number + 1), fault.or(turn.fault), api).await
}

/// The reply to a request.
struct PickedReply {
    reply: Reply,
    /// The index of its turn, from zero.
    number: usize,
    /// A fault that replaces the turn's own.
    fault: Option<Fault>,
}

/// Returns the next turn's answer. A failed script stays failed, so that a client cannot retry past the failure.
fn pick(shared: &Shared, log: &mut Log, asked: &RecordedRequest) -> Result<PickedReply, String> {
    let turns = &shared.script.turns;
    let number = log.answered;
    let turn = match turns.len() {
        0 => None,
        count if shared.script.repeat => turns.get(number % count),
        _ => turns.get(number),
    };
    let answered = match (log.failures.last(), turn) {
        (Some(failure), _) if failure.starts_with("script: ") => return Err(failure.clone()),
        (_, None) => Err(format!("the script has only {} turns, and this is one request more", turns.len())),
        (_, Some(turn)) => turn.answer(asked),
    };
    match answered {
        Ok(reply) => {
            let fault = shared.script.faults.get(log.gone_wrong).copied();
            log.gone_wrong += usize::from(fault.is_some());
            log.answered += usize::from(fault.is_none_or(Fault::is_harmless));
            Ok(PickedReply { reply, number, fault })
        }
        Err(reason) => {
            let failure = format!("script: turn {}: {reason}", number + 1);
            log.failures.push(failure.clone());
            Err(failure)
        }
    }
}

/// Checks the API key: OpenAI wants a bearer token, Anthropic an `x-api-key` or a bearer token, Google an
/// `x-goog-api-key`.
fn authorized(api: WireApi, headers: &HeaderMap) -> Checked {
    let bearer = headers
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("Bearer "));
    match api {
        WireApi::OpenAi | WireApi::Responses => {
            ensure(bearer, || "You didn't provide an API key: expected `Authorization: Bearer …`".into())
        }
        WireApi::Anthropic => {
            ensure(bearer || headers.contains_key("x-api-key"), || "x-api-key header is required".into())
        }
        WireApi::Gemini => ensure(headers.contains_key("x-goog-api-key"), || "API key not valid".into()),
        WireApi::Ollama => Ok(()),
    }
}

fn check(api: WireApi, headers: &HeaderMap, body: &Value) -> Checked {
    ensure(body.is_object(), || "the body is not a JSON object".into())?;
    let versioned = api != WireApi::Anthropic || headers.contains_key("anthropic-version");
    ensure(versioned, || "anthropic-version: header is required".into())?;
    api.check(body)
}
