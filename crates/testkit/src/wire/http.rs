//! Streamable HTTP on one URL for both generations. An answer is plain JSON unless another message comes before it;
//! then the response is an event stream.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use super::host::Host;
use super::outlet::{EventLog, Frame, MAX_WAITING_FRAMES, Outlet, event};
use super::session::Session;
use super::stdio::FINAL_ANSWER_GRACE;
use super::{Answer, Era, Incoming, LEGACY, MAX_MESSAGE, Request, RpcError, lock};

const SESSION_ID: &str = "mcp-session-id";
/// The most sessions; further `initialize` requests are refused.
const MAX_SESSIONS: usize = 1024;

struct Http {
    host: Arc<Host>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
}

pub(super) async fn serve(host: Arc<Host>, port: u16) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    writeln!(io::stderr(), "{}: ready http://{}/mcp", host.name(), listener.local_addr()?)?;
    let http = Arc::new(Http { host, sessions: Mutex::default() });
    let app = Router::new().route("/mcp", any(handle)).layer(DefaultBodyLimit::max(MAX_MESSAGE)).with_state(http);
    axum::serve(listener, app).await
}

async fn handle(State(http): State<Arc<Http>>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    if !is_local(&headers) {
        let error = RpcError::new(RpcError::INVALID_REQUEST, "this Host or Origin is not allowed");
        return json_response(StatusCode::FORBIDDEN, &error.into_message(None));
    }
    match method {
        Method::POST => http.post(&headers, &body).await,
        Method::GET => http.get(&headers),
        Method::DELETE => match text(&headers, SESSION_ID) {
            Some(id) if lock(&http.sessions).remove(id).is_some() => StatusCode::OK.into_response(),
            Some(_) => StatusCode::NOT_FOUND.into_response(),
            None => StatusCode::BAD_REQUEST.into_response(),
        },
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

impl Http {
    async fn post(&self, headers: &HeaderMap, body: &[u8]) -> Response {
        let era = match text(headers, "mcp-protocol-version") {
            Some(version) if !LEGACY.contains(&version) => Era::Modern,
            _ => Era::Legacy,
        };
        let message = serde_json::from_slice(body).map_err(|e| RpcError::new(RpcError::PARSE, e.to_string()));
        let incoming = match message.and_then(|message: Value| Incoming::sort(message, era)) {
            Ok(incoming) => incoming,
            Err(error) => return json_response(StatusCode::BAD_REQUEST, &error.into_message(None)),
        };
        let request = match incoming {
            Incoming::Request(request) => request,
            Incoming::Cancelled(id) => {
                if let Some(session) = self.session(headers) {
                    session.cancel(&id);
                }
                return StatusCode::ACCEPTED.into_response();
            }
            Incoming::Answered(id, answer) => {
                if let Some(session) = self.session(headers) {
                    session.answered(&id, answer);
                }
                return StatusCode::ACCEPTED.into_response();
            }
            Incoming::Other => return StatusCode::ACCEPTED.into_response(),
        };
        match (request.era, request.method.as_str()) {
            (Era::Modern, method) if method != "server/discover" && !self.host.speaks_modern() => {
                // SDKs before 2026-07-28 check for a session first.
                let error = RpcError::new(RpcError::BUSY, "Bad Request: Server not initialized");
                json_response(StatusCode::BAD_REQUEST, &error.into_message(None))
            }
            (Era::Modern, _) => self.run(Arc::default(), request, headers).await,
            (Era::Legacy, "initialize") => {
                let (id, session) = (uuid::Uuid::new_v4().to_string(), Arc::<Session>::default());
                if lock(&self.sessions).len() >= MAX_SESSIONS {
                    return StatusCode::SERVICE_UNAVAILABLE.into_response();
                }
                lock(&self.sessions).insert(id.clone(), Arc::clone(&session));
                let response = self.run(session, request, headers).await;
                ([(SESSION_ID, id)], response).into_response()
            }
            (Era::Legacy, _) => match self.session(headers) {
                Some(session) => self.run(session, request, headers).await,
                None => {
                    let named = headers.contains_key(SESSION_ID);
                    let status = if named { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
                    let error = RpcError::new(RpcError::SESSION_NOT_FOUND, "no such session: begin with `initialize`");
                    json_response(status, &error.into_message(Some(&request.id)))
                }
            },
        }
    }

    /// Opens the event stream of a legacy session, or resumes a lost one.
    fn get(&self, headers: &HeaderMap) -> Response {
        let Some(session) = self.session(headers) else { return StatusCode::METHOD_NOT_ALLOWED.into_response() };
        if let Some(last) = text(headers, "last-event-id") {
            return match session.stream_of(last) {
                Some((log, number)) => stream(None, log.resume(number), Value::Null, None),
                None => StatusCode::BAD_REQUEST.into_response(),
            };
        }
        let (sender, frames) = mpsc::channel(MAX_WAITING_FRAMES);
        if !self.host.add_listener(Outlet::Stream(sender), &session) {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        stream(None, frames, Value::Null, None)
    }

    fn session(&self, headers: &HeaderMap) -> Option<Arc<Session>> {
        lock(&self.sessions).get(text(headers, SESSION_ID)?).cloned()
    }

    async fn run(&self, session: Arc<Session>, request: Request, headers: &HeaderMap) -> Response {
        let id = request.id.clone();
        let Some(cancel) = session.begin(&id) else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
        let (sender, mut frames) = mpsc::channel(MAX_WAITING_FRAMES);
        let resumable = request.era == Era::Legacy && self.host.is_resumable(&session);
        let (guard, outlet) = if resumable {
            let log = Arc::new(EventLog::new(sender));
            session.keep_stream(&log);
            (None, Outlet::Resumable(log))
        } else {
            // The response body owns the guard, so that a client that hangs up cancels the request.
            (Some(cancel.clone().drop_guard()), Outlet::Stream(sender))
        };
        let (host, headers, era) = (Arc::clone(&self.host), headers.clone(), request.era);
        tokio::spawn(async move {
            let answer = host.answer(&session, &request, cancel, outlet.clone(), Some(&headers)).await;
            session.end(&request.id);
            let last_words = if let Answer::LastWords(_, code) = answer { Some(code) } else { None };
            outlet.finish(answer, &request.id).await;
            if let Some(code) = last_words {
                tokio::time::sleep(FINAL_ANSWER_GRACE).await;
                std::process::exit(code);
            }
        });
        match frames.recv().await {
            Some(Frame::Last(answer)) => {
                let status = status(era, &answer);
                match answer.into_message(&id) {
                    Some(message) => json_response(status, &message),
                    // On HTTP, silence still sends the headers.
                    None => stream(None, frames, id, guard),
                }
            }
            Some(Frame::Event(first)) => stream(Some(first), frames, id, guard),
            None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// Returns an event stream of these frames, which ends with the request's answer.
fn stream(first: Option<Bytes>, frames: mpsc::Receiver<Frame>, id: Value, guard: Option<DropGuard>) -> Response {
    let rest = futures_util::stream::unfold((first, frames, id, guard), |(first, mut frames, id, guard)| async move {
        let bytes = match first {
            Some(first) => first,
            None => match frames.recv().await? {
                Frame::Event(bytes) => bytes,
                Frame::Last(answer) => Bytes::from(event(&answer.into_message(&id)?.to_string())),
            },
        };
        Some((Ok::<_, Infallible>(bytes), (None, frames, id, guard)))
    });
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], Body::from_stream(rest))
        .into_response()
}

/// Returns the status; modern answers report errors there too.
fn status(era: Era, answer: &Answer) -> StatusCode {
    match (era, answer) {
        (Era::Modern, Answer::Error(error)) => match error.code {
            RpcError::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
            RpcError::PARSE
            | RpcError::INVALID_REQUEST
            | RpcError::INVALID_PARAMS
            | RpcError::HEADER_MISMATCH
            | RpcError::MISSING_CAPABILITY
            | RpcError::UNSUPPORTED_VERSION => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        },
        _ => StatusCode::OK,
    }
}

fn json_response(status: StatusCode, message: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], message.to_string()).into_response()
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Whether Host, and Origin if sent, name this machine (DNS rebinding).
fn is_local(headers: &HeaderMap) -> bool {
    let local = |authority: &str| {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            _ => authority,
        };
        ["localhost", "127.0.0.1", "[::1]"].contains(&host)
    };
    text(headers, "host").is_some_and(local)
        && text(headers, "origin").is_none_or(|origin| origin.split_once("://").is_some_and(|(_, host)| local(host)))
}
