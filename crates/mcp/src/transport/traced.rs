//! Wraps a transport and shows its outgoing messages to a [`FrameSink`].

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::{CancelNotice, Outgoing, RequestId, SendError, Transport};
use crate::protocol::revision::Era;

/// Direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the server.
    Sent,
    /// From the server.
    Received,
}

/// Receives every message from and to MCP servers, as on the wire. Must not block for long.
pub trait FrameSink: fmt::Debug + Send + Sync {
    /// Shows a message.
    fn frame(&self, server: &str, direction: Direction, json: &[u8]);
}

/// A transport whose messages are shown.
pub(crate) struct Traced {
    pub(crate) inner: Arc<dyn Transport>,
    pub(crate) server: Arc<str>,
    pub(crate) frames: Arc<dyn FrameSink>,
}

#[async_trait]
impl Transport for Traced {
    async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError> {
        self.frames.frame(&self.server, Direction::Sent, &message.json);
        self.inner.send(message).await
    }

    fn established(&self, era: Era, version: &'static str) {
        self.inner.established(era, version);
    }

    fn abandon(&self, id: RequestId) -> CancelNotice {
        self.inner.abandon(id)
    }

    fn is_write_closed(&self) -> bool {
        self.inner.is_write_closed()
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    async fn end_reason(&self) -> Option<String> {
        self.inner.end_reason().await
    }
}
