//! Streams events to HTTP clients as server-sent events. Each has a number, so that a client can resume after a
//! disconnect.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use toolwright_core::event::Event;
use toolwright_runtime::EventHub;

use super::Api;
use crate::http::ApiError;

/// Events that are kept for clients that reconnect.
const KEPT: usize = 4096;
/// The most events that one client gets at once.
const BATCH: usize = 256;
/// How long events are kept without a reader.
const LINGER: Duration = Duration::from_secs(120);
/// The most concurrent readers.
const STREAMS: usize = 64;
/// Silence after which a comment is sent to keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The last events, kept while there are readers.
#[derive(Debug)]
pub(crate) struct RecentEvents {
    hub: Arc<EventHub>,
    buffer: Mutex<EventBuffer>,
    /// Number of the last event.
    last: watch::Sender<u64>,
    streams: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct EventBuffer {
    events: VecDeque<(u64, Arc<Event>)>,
    last: u64,
    is_followed: bool,
}

impl RecentEvents {
    pub(crate) fn new(hub: Arc<EventHub>) -> Arc<Self> {
        Arc::new(Self {
            hub,
            buffer: Mutex::default(),
            last: watch::Sender::new(0),
            streams: Arc::new(Semaphore::new(STREAMS)),
        })
    }

    fn lock_buffer(&self) -> std::sync::MutexGuard<'_, EventBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects the events in its own task until there has been no reader for a while.
    fn follow(self: &Arc<Self>) {
        if std::mem::replace(&mut self.lock_buffer().is_followed, true) {
            return;
        }
        let (recent, mut events) = (Arc::clone(self), self.hub.subscribe_brief());
        tokio::spawn(async move {
            let mut read_at = Instant::now();
            while read_at.elapsed() < LINGER {
                match tokio::time::timeout(LINGER, events.recv()).await {
                    Ok(Ok(event)) => recent.keep(event),
                    Ok(Err(RecvError::Lagged(_))) | Err(_) => {}
                    Ok(Err(RecvError::Closed)) => break,
                }
                if recent.last.receiver_count() > 0 {
                    read_at = Instant::now();
                }
            }
            recent.lock_buffer().is_followed = false;
        });
    }

    fn keep(&self, event: Arc<Event>) {
        let last = {
            let mut buffer = self.lock_buffer();
            buffer.last += 1;
            let last = buffer.last;
            if buffer.events.len() == KEPT {
                buffer.events.pop_front();
            }
            buffer.events.push_back((last, event));
            last
        };
        self.last.send_replace(last);
    }

    /// Returns the first events after this number.
    fn after(&self, number: u64) -> Vec<(u64, Arc<Event>)> {
        self.lock_buffer().events.iter().filter(|(at, _)| *at > number).take(BATCH).cloned().collect()
    }
}

/// `GET /api/events`: from now on, or after the number in `Last-Event-ID`. Events that are no longer kept are skipped,
/// which leaves a gap in the numbers. The stream ends with the server.
pub(super) async fn events(State(api): State<Arc<Api>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let Some(recent) = api.events.clone() else {
        return Err(ApiError::not_found("this server streams no events"));
    };
    let permit = Arc::clone(&recent.streams)
        .try_acquire_owned()
        .map_err(|_| ApiError::busy(format!("{STREAMS} clients read events, which is the limit; try again")))?;
    recent.follow();
    let last_seen = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let latest = recent.lock_buffer().last;
    // A number from an earlier process may be behind ours or ahead; ahead means that the client has seen no event of
    // ours.
    let after = last_seen.map_or(latest, |number: u64| if number > latest { 0 } else { number });
    let changed = recent.last.subscribe();
    let start = ((recent, permit), changed, after, VecDeque::<(u64, Arc<Event>)>::new());
    let written = stream::unfold(start, move |((recent, permit), mut changed, mut after, mut waiting)| {
        let api = Arc::clone(&api);
        async move {
            loop {
                if let Some((number, event)) = waiting.pop_front() {
                    after = number;
                    let sent = sse(&api, number, &event);
                    return Some((Ok::<_, Infallible>(sent), ((recent, permit), changed, after, waiting)));
                }
                changed.mark_unchanged();
                waiting.extend(recent.after(after));
                if waiting.is_empty() && changed.changed().await.is_err() {
                    return None;
                }
            }
        }
    });
    Ok(Sse::new(written).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

fn sse(api: &Api, number: u64, event: &Event) -> axum::response::sse::Event {
    let value = serde_json::to_value(event).unwrap_or_default();
    let value = api.gateway.options.executor.services().redactor.redact_value(&value);
    axum::response::sse::Event::default().id(number.to_string()).data(value.to_string())
}
