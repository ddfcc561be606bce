//! The output of one request or one listener.

use std::sync::Arc;

use axum::body::Bytes;
use serde_json::Value;
use tokio::io::{AsyncWriteExt as _, Stdout};
use tokio::sync::mpsc;

use super::Answer;
use super::resume::EventLog;

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
