//! The output of one request or one listener, and event streams that outlive their connection (2025-11-25,
//! resumability). Every event of such a stream has an id and is kept for a while; the first one is empty, so that the
//! client has an id from the start. A client that returns with `Last-Event-ID` gets the rest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use serde_json::Value;
use tokio::io::{AsyncWriteExt as _, Stdout};
use tokio::sync::mpsc;

use super::{Answer, lock};

/// The most frames of one response that wait for the client.
pub(super) const MAX_WAITING_FRAMES: usize = 64;

#[derive(Clone)]
pub(super) enum Outlet {
    Stdout(Arc<tokio::sync::Mutex<Stdout>>),
    /// The shared way to a client over another kind of connection.
    Shared(mpsc::Sender<Piece>),
    /// The body of one HTTP response, as an event stream.
    Stream(mpsc::Sender<Frame>),
    /// The same for a session that can resume a lost response.
    Resumable(Arc<EventLog>),
}

pub(super) enum Frame {
    Event(Bytes),
    Last(Answer),
}

/// A message or raw bytes for a shared connection, which does its own framing.
pub(super) enum Piece {
    Message(String),
    Raw(Bytes),
}

impl Outlet {
    /// Sends a message. Returns whether the client is still connected or can resume.
    pub(super) async fn message(&self, message: &Value) -> bool {
        match self {
            Self::Stdout(_) => self.raw(format!("{message}\n").as_bytes()).await,
            Self::Shared(pieces) => pieces.send(Piece::Message(message.to_string())).await.is_ok(),
            Self::Stream(_) => self.raw(&event(&message.to_string())).await,
            Self::Resumable(log) => {
                log.send(message).await;
                true
            }
        }
    }

    /// Sends the answer, which is the last message.
    pub(super) async fn finish(&self, answer: Answer, id: &Value) {
        match self {
            Self::Stdout(_) | Self::Shared(_) => {
                if let Some(message) = answer.into_message(id) {
                    self.message(&message).await;
                }
            }
            // A failed send means that the client has gone.
            Self::Stream(frames) => drop(frames.send(Frame::Last(answer)).await),
            Self::Resumable(log) => log.finish(answer, id).await,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Stdout(_) | Self::Resumable(_) => true,
            Self::Shared(pieces) => !pieces.is_closed(),
            Self::Stream(frames) => !frames.is_closed(),
        }
    }

    /// Sends raw bytes; a resumable stream does not keep them.
    pub(super) async fn raw(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Stdout(stdout) => {
                let mut stdout = stdout.lock().await;
                stdout.write_all(bytes).await.is_ok() && stdout.flush().await.is_ok()
            }
            Self::Shared(pieces) => pieces.send(Piece::Raw(Bytes::copy_from_slice(bytes))).await.is_ok(),
            Self::Stream(frames) => frames.send(Frame::Event(Bytes::copy_from_slice(bytes))).await.is_ok(),
            Self::Resumable(log) => log.raw(bytes).await,
        }
    }
}

pub(super) fn event(message: &str) -> Vec<u8> {
    format!("event: message\ndata: {message}\n\n").into_bytes()
}

/// The most events kept for one stream; the oldest is dropped first.
const MAX_EVENTS: usize = 256;
/// The time that clients are told to wait before they reconnect.
const RETRY_MS: u64 = 300;

pub(super) struct EventLog {
    id: String,
    state: Mutex<State>,
}

struct State {
    events: VecDeque<(u64, Bytes)>,
    next: u64,
    live: Option<mpsc::Sender<Frame>>,
    finished: bool,
}

impl EventLog {
    pub(super) fn new(live: mpsc::Sender<Frame>) -> Self {
        let state = State { events: VecDeque::new(), next: 0, live: Some(live), finished: false };
        Self { id: uuid::Uuid::new_v4().simple().to_string(), state: Mutex::new(state) }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Keeps an event and sends it to the connected client, if any.
    pub(super) async fn send(&self, message: &Value) {
        self.begin().await;
        self.append(|id| format!("id: {id}\nevent: message\ndata: {message}\n\n")).await;
    }

    /// Sends the empty first event, once.
    async fn begin(&self) {
        if lock(&self.state).next == 0 {
            self.append(|id| format!("id: {id}\nretry: {RETRY_MS}\ndata: \n\n")).await;
        }
    }

    async fn append(&self, event: impl FnOnce(String) -> String) {
        let (bytes, live) = {
            let mut state = lock(&self.state);
            let number = state.next;
            state.next += 1;
            let bytes = Bytes::from(event(format!("{}_{number}", self.id)));
            if state.events.len() >= MAX_EVENTS {
                state.events.pop_front();
            }
            state.events.push_back((number, bytes.clone()));
            (bytes, state.live.clone())
        };
        if let Some(live) = live
            && live.send(Frame::Event(bytes)).await.is_err()
        {
            lock(&self.state).live = None;
        }
    }

    /// Ends the connection but not the request: later events are kept for the client's return.
    pub(super) async fn disconnect(&self) {
        self.begin().await;
        lock(&self.state).live = None;
    }

    /// Sends raw bytes to the connected client; they are not kept.
    pub(super) async fn raw(&self, bytes: &[u8]) -> bool {
        let live = lock(&self.state).live.clone();
        match live {
            Some(live) => live.send(Frame::Event(Bytes::copy_from_slice(bytes))).await.is_ok(),
            None => false,
        }
    }

    /// Sends the answer: as an event, or as the whole response if there were no events.
    pub(super) async fn finish(&self, answer: Answer, id: &Value) {
        let live = {
            let state = lock(&self.state);
            if state.next == 0 { state.live.clone() } else { None }
        };
        match live {
            // A failed send means that the client has gone.
            Some(live) => drop(live.send(Frame::Last(answer)).await),
            None => {
                if let Some(message) = answer.into_message(id) {
                    self.send(&message).await;
                }
            }
        }
        let mut state = lock(&self.state);
        state.finished = true;
        state.live = None;
    }

    /// Returns the events after this one and all later ones.
    pub(super) fn resume(&self, after: u64) -> mpsc::Receiver<Frame> {
        let mut state = lock(&self.state);
        let (sender, frames) = mpsc::channel(MAX_WAITING_FRAMES + MAX_EVENTS);
        for (_, event) in state.events.iter().filter(|(number, _)| *number > after) {
            // The channel has room for all kept events.
            let _ = sender.try_send(Frame::Event(event.clone()));
        }
        if !state.finished {
            state.live = Some(sender);
        }
        frames
    }
}
