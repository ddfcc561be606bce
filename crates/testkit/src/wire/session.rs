//! The state kept between the requests of one client.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::outlet::EventLog;
use super::{MAX_RUNNING, RpcError, lock};

/// The most resource subscriptions of one session.
const MAX_SUBSCRIPTIONS: usize = 256;
/// The most resumable streams of a session; the oldest is dropped first.
const MAX_STREAMS: usize = 64;

/// A session: the whole process on stdio, one `Mcp-Session-Id` on legacy HTTP, a single request on modern HTTP.
#[derive(Default)]
pub(super) struct Session {
    state: Mutex<State>,
    running: Mutex<HashMap<String, CancellationToken>>,
    asked: Mutex<HashMap<String, oneshot::Sender<Result<Value, RpcError>>>>,
    next_ask: AtomicU64,
    streams: Mutex<VecDeque<Arc<EventLog>>>,
}

#[derive(Default)]
struct State {
    capabilities: Value,
    version: String,
    log_level: Option<String>,
    subscriptions: HashSet<String>,
}

impl Session {
    pub(super) fn introduce(&self, capabilities: Value, version: &str) {
        let mut state = lock(&self.state);
        state.capabilities = capabilities;
        version.clone_into(&mut state.version);
    }

    pub(super) fn capabilities(&self) -> Value {
        lock(&self.state).capabilities.clone()
    }

    /// Returns the negotiated version; empty before the handshake.
    pub(super) fn version(&self) -> String {
        lock(&self.state).version.clone()
    }

    pub(super) fn set_log_level(&self, level: &str) {
        lock(&self.state).log_level = Some(level.to_owned());
    }

    pub(super) fn log_level(&self) -> Option<String> {
        lock(&self.state).log_level.clone()
    }

    /// Subscribes to a resource; false if there are too many subscriptions.
    pub(super) fn subscribe(&self, uri: &str) -> bool {
        let subscriptions = &mut lock(&self.state).subscriptions;
        subscriptions.contains(uri) || (subscriptions.len() < MAX_SUBSCRIPTIONS && subscriptions.insert(uri.to_owned()))
    }

    pub(super) fn unsubscribe(&self, uri: &str) {
        lock(&self.state).subscriptions.remove(uri);
    }

    pub(super) fn is_subscribed(&self, uri: &str) -> bool {
        lock(&self.state).subscriptions.contains(uri)
    }

    /// Registers a running request; `None` if too many are running.
    pub(super) fn begin(&self, id: &Value) -> Option<CancellationToken> {
        let mut running = lock(&self.running);
        (running.len() < MAX_RUNNING).then(|| running.entry(id.to_string()).or_default().clone())
    }

    pub(super) fn end(&self, id: &Value) {
        lock(&self.running).remove(&id.to_string());
    }

    pub(super) fn cancel(&self, id: &Value) {
        if let Some(cancel) = lock(&self.running).get(&id.to_string()) {
            cancel.cancel();
        }
    }

    /// Returns an id for a request to the client and the receiver of its answer; `None` if too many are open.
    pub(super) fn begin_ask(&self) -> Option<(String, oneshot::Receiver<Result<Value, RpcError>>)> {
        let mut asked = lock(&self.asked);
        if asked.len() >= MAX_RUNNING {
            return None;
        }
        let id = format!("ask-{}", self.next_ask.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = oneshot::channel();
        asked.insert(id.clone(), sender);
        Some((id, answer))
    }

    pub(super) fn forget_ask(&self, id: &str) {
        lock(&self.asked).remove(id);
    }

    /// Passes on the client's answer to a request; without a waiting request, drops it.
    pub(super) fn answered(&self, id: &Value, answer: Result<Value, RpcError>) {
        let waiting = id.as_str().and_then(|id| lock(&self.asked).remove(id));
        if let Some(waiting) = waiting {
            // A failed send means that the asking request has ended.
            let _ = waiting.send(answer);
        }
    }

    pub(super) fn keep_stream(&self, log: &Arc<EventLog>) {
        let mut streams = lock(&self.streams);
        if streams.len() >= MAX_STREAMS {
            streams.pop_front();
        }
        streams.push_back(Arc::clone(log));
    }

    /// Returns the stream that sent this event, and the event's number in it.
    pub(super) fn stream_of(&self, event_id: &str) -> Option<(Arc<EventLog>, u64)> {
        let (stream, number) = event_id.rsplit_once('_')?;
        let number = number.parse().ok()?;
        let log = lock(&self.streams).iter().find(|log| log.id() == stream).cloned()?;
        Some((log, number))
    }
}
