//! How much a server up to 2025-11-25 is to log, whatever connection there is; a newer one is told with each request.
//!
//! What is kept comes before what is sent, and whoever has sent looks whether that is still the last word: requests that
//! overtake each other, and connections that begin meanwhile, end with the same level on both sides.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use toolwright_mcp::revision::Era;

use super::handshake::ServerInfo;
use super::peer::{Peer, Request};

/// The method that tells it.
pub(super) const SET_LEVEL: &str = "logging/setLevel";

/// The parameters of the last [`SET_LEVEL`], if there was one.
#[derive(Default)]
pub(super) struct LogLevel(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    params: Option<Map<String, Value>>,
    /// Counts what was kept.
    version: u64,
}

/// A level that is kept until the server has said what it thinks of it.
pub(super) struct Proposed {
    version: u64,
    before: Option<Map<String, Value>>,
}

impl LogLevel {
    /// From now on connections begin with this.
    pub(super) fn keep(&self, params: Map<String, Value>) -> Proposed {
        let mut kept = self.lock();
        kept.version += 1;
        Proposed { version: kept.version, before: kept.params.replace(params) }
    }

    /// The server refuses it: what was there before is kept again, unless there is something newer.
    pub(super) fn take_back(&self, proposed: Proposed) {
        let mut kept = self.lock();
        if kept.version == proposed.version {
            kept.version += 1;
            kept.params = proposed.before;
        }
    }

    /// Whether this is still the last word.
    pub(super) fn is_last(&self, proposed: &Proposed) -> bool {
        self.lock().version == proposed.version
    }

    /// Tells a new session of an older server, which knows nothing of the last one; again, while there is something
    /// newer. Ends with the answer.
    pub(super) async fn tell(&self, peer: &Peer, server: &ServerInfo) {
        if server.era != Era::Legacy || !server.offers("logging") {
            return;
        }
        let mut told = None;
        loop {
            let (version, params) = {
                let kept = self.lock();
                (kept.version, kept.params.clone())
            };
            let Some(mut params) = params.filter(|_| told != Some(version)) else { return };
            told = Some(version);
            if let Err(error) = peer.ask(Request::house(SET_LEVEL), &mut params).await {
                tracing::debug!(server = &*peer.inbox.listener.server, "the log level was not taken: {error:?}");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn level(name: &str) -> Map<String, Value> {
        Map::from_iter([("level".to_owned(), json!(name))])
    }

    #[test]
    fn a_refused_level_gives_way_to_the_one_before_unless_there_is_a_newer() {
        let levels = LogLevel::default();
        let first = levels.keep(level("info"));
        assert!(levels.is_last(&first));
        let refused = levels.keep(level("loud"));
        levels.take_back(refused);
        assert_eq!(levels.lock().params, Some(level("info")));
        let overtaken = levels.keep(level("loud"));
        let newer = levels.keep(level("error"));
        assert!(!levels.is_last(&overtaken) && levels.is_last(&newer));
        levels.take_back(overtaken);
        assert_eq!(levels.lock().params, Some(level("error")));
    }
}
