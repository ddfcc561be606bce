//! How much a server up to 2025-11-25 is to log, whatever connection there is; a newer one is told with each request.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use toolwright_mcp::revision::Era;

use super::handshake::ServerInfo;
use super::peer::{Peer, Request};

/// The method that tells it.
pub(super) const SET_LEVEL: &str = "logging/setLevel";

/// The parameters of the last [`SET_LEVEL`], if there was one.
#[derive(Default)]
pub(super) struct LogLevel(Mutex<Option<Map<String, Value>>>);

impl LogLevel {
    /// From now on connections begin with this.
    pub(super) fn keep(&self, params: Map<String, Value>) {
        *self.lock() = Some(params);
    }

    /// Tells a new session of an older server, which knows nothing of the last one. Ends with the answer.
    pub(super) async fn tell(&self, peer: &Peer, server: &ServerInfo) {
        let kept = self.lock().clone();
        let Some(mut params) = kept.filter(|_| server.era == Era::Legacy && server.offers("logging")) else { return };
        if let Err(error) = peer.ask(Request::house(SET_LEVEL), &mut params).await {
            tracing::debug!(server = &*peer.inbox.listener.server, "the log level was not taken: {error:?}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Map<String, Value>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
