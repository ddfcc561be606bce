//! Server-sent events: one JSON message an event.

use std::convert::Infallible;
use std::fmt::Display;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// A stream of messages as a response. A comment goes out after each `keep_alive` of silence, so that
/// nothing between takes the connection for dead and a client that is gone is noticed.
pub(crate) fn response(messages: impl Stream<Item = Bytes> + Send + 'static, keep_alive: Duration) -> Response {
    framed(messages.map(|message| frame(&message)), keep_alive)
}

/// The same of messages that are events already.
pub(super) fn framed(frames: impl Stream<Item = Bytes> + Send + 'static, keep_alive: Duration) -> Response {
    let mut tick = interval_at(Instant::now() + keep_alive, keep_alive);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let frames = futures_util::stream::unfold((Box::pin(frames), tick), |(mut frames, mut tick)| async move {
        let frame = tokio::select! {
            biased;
            frame = frames.next() => {
                tick.reset();
                frame?
            }
            _ = tick.tick() => Bytes::from_static(b":\n\n"),
        };
        Some((Ok::<_, Infallible>(frame), (frames, tick)))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    // Asks nginx not to hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// An event with an id; one of an empty message has empty data.
pub(super) fn numbered(id: impl Display, message: &[u8]) -> Bytes {
    let mut frame = format!("id: {id}\ndata:").into_bytes();
    if !message.is_empty() {
        frame.push(b' ');
    }
    frame.extend_from_slice(message);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// A message never holds a line break: its JSON is written without space.
fn frame(message: &Bytes) -> Bytes {
    let mut frame = Vec::with_capacity(message.len() + 8);
    frame.extend_from_slice(b"data: ");
    frame.extend_from_slice(message);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}
