//! Encodes an answer as response bytes and injects faults.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use futures_util::stream;
use serde_json::Value;

use super::{Fault, Reply, WireApi};

/// The duration of a fault that hangs.
const HANG: Duration = Duration::from_secs(60);
/// A pause that lets earlier bytes reach the client: a break drops unflushed ones.
const FLUSH: Duration = Duration::from_millis(60);
/// The pause between two keep-alive signs.
const ALIVE: Duration = Duration::from_millis(20);
const JSON: &str = "application/json";
const PAGE: &str = "<!doctype html>\n<html><head><title>Sign in</title></head>\n<body>Please sign in.</body></html>\n";

/// A response to send.
pub(super) enum Sent {
    /// One JSON document.
    Whole(Value),
    /// Events or lines of a stream.
    Stream {
        /// The content type.
        media: &'static str,
        /// The frames, each with its terminator.
        frames: Vec<String>,
    },
    /// A failure.
    Error {
        /// The HTTP status.
        status: u16,
        /// The API's error body.
        body: Value,
        /// The seconds of `retry-after`.
        retry_after: Option<u64>,
    },
}

impl Sent {
    pub(super) fn error(reply: &Reply, body: fn(u16, &str, &str) -> Value) -> Self {
        match reply {
            Reply::Error { status, code, message, retry_after } => {
                Self::Error { status: *status, body: body(*status, code, message), retry_after: *retry_after }
            }
            Reply::Answer(_) => Self::Error { status: 500, body: body(500, "", "not an error"), retry_after: None },
        }
    }
}

/// Cuts a text into pieces of about `size` bytes, at character boundaries.
pub(super) fn pieces(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = (size.min(rest.len())..=rest.len()).find(|&end| rest.is_char_boundary(end))?;
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Builds the response to one request over `api`, with this fault.
pub(super) async fn send(sent: Sent, fault: Option<Fault>, api: WireApi) -> Response<Body> {
    let (media, frames) = match sent {
        Sent::Error { status, body, retry_after } => return refusal(status, &body, retry_after),
        Sent::Whole(body) => (JSON, vec![body.to_string()]),
        Sent::Stream { media, frames } => (media, frames),
    };
    match fault {
        Some(Fault::Status(status, retry_after)) => {
            return refusal(status, &api.error_body(status, "", "scripted failure"), retry_after);
        }
        Some(Fault::HangingStatus(status, seconds)) => {
            let mut response = refusal(status, &Value::Null, Some(seconds));
            *response.body_mut() = body(vec![Step::Pause(HANG)]);
            return response;
        }
        Some(Fault::Overload) => {
            let (status, words) = api.overload();
            return refusal(status, &api.error_body(status, "", words), None);
        }
        Some(Fault::Page) => return response("text/html; charset=utf-8", Body::from(PAGE)),
        Some(Fault::Empty) => return response(media, Body::empty()),
        Some(Fault::Hang) => tokio::time::sleep(HANG).await,
        _ => {}
    }
    let media = if fault == Some(Fault::Mislabel) { "text/plain; charset=utf-8" } else { media };
    response(media, body(steps(frames, fault, api)))
}

pub(super) fn json_response(status: u16, body: &Value) -> Response<Body> {
    let mut response = response(JSON, Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn refusal(status: u16, body: &Value, retry_after: Option<u64>) -> Response<Body> {
    let mut response = json_response(status, body);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn response(media: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// One step of sending a body.
enum Step {
    Bytes(Bytes),
    Pause(Duration),
    Break,
}

fn steps(mut frames: Vec<String>, fault: Option<Fault>, api: WireApi) -> Vec<Step> {
    if let Some(Fault::Drip(size, pause)) = fault {
        let (bytes, size) = (Bytes::from(frames.concat()), size.max(1));
        return (0..bytes.len())
            .step_by(size)
            .flat_map(|at| [Step::Bytes(bytes.slice(at..bytes.len().min(at + size))), Step::Pause(pause)])
            .collect();
    }
    let bytes = |text: String| Step::Bytes(text.into());
    let rest = match fault {
        Some(
            Fault::CutAfter(n)
            | Fault::CutWithin(n)
            | Fault::EndAfter(n)
            | Fault::HangAfter(n)
            | Fault::ErrorAfter(n)
            | Fault::KeepAlive(n)
            | Fault::Garble(n),
        ) => frames.split_off(n.min(frames.len())),
        _ => Vec::new(),
    };
    let mut steps: Vec<Step> = frames.into_iter().map(bytes).collect();
    match fault {
        Some(Fault::CutAfter(_)) => steps.extend([Step::Pause(FLUSH), Step::Break]),
        Some(Fault::CutWithin(_)) => {
            let half = rest.first().map(|frame| pieces(frame, frame.len() / 2).next().unwrap_or_default().to_owned());
            steps.extend([bytes(half.unwrap_or_default()), Step::Pause(FLUSH), Step::Break]);
        }
        Some(Fault::HangAfter(_)) => steps.push(Step::Pause(HANG)),
        Some(Fault::ErrorAfter(_)) => steps.push(bytes(api.error_frame())),
        Some(Fault::KeepAlive(_)) => {
            let signs = HANG.as_millis() / ALIVE.as_millis();
            let sign = if api == WireApi::Ollama { "\n" } else { ": keep-alive\n\n" };
            steps.extend(
                (0..signs).flat_map(|_| [Step::Pause(ALIVE), Step::Bytes(Bytes::from_static(sign.as_bytes()))]),
            );
        }
        Some(Fault::Garble(_)) => {
            // The brackets stay balanced, because clients repair missing ones.
            let garbled = rest.first().map(|frame| frame.replacen("\":", "\"=", 1));
            steps.extend(garbled.into_iter().chain(rest.into_iter().skip(1)).map(bytes));
        }
        _ => {}
    }
    steps
}

fn body(steps: Vec<Step>) -> Body {
    Body::from_stream(stream::unfold(steps.into_iter(), |mut steps| async move {
        loop {
            match steps.next()? {
                Step::Bytes(bytes) if bytes.is_empty() => {}
                Step::Bytes(bytes) => return Some((Ok(bytes), steps)),
                Step::Pause(pause) => tokio::time::sleep(pause).await,
                Step::Break => return Some((Err(io::Error::from(io::ErrorKind::ConnectionReset)), steps)),
            }
        }
    }))
}
