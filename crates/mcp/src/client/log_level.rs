//! How much a server up to 2025-11-25 is to log, whatever connection there is; a newer one is told with each request.
//!
//! What is kept comes before what is sent, and whoever has sent looks whether that is still the last word: requests that
//! overtake each other, and connections that begin meanwhile, end with the same level on both sides.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::protocol::revision::Era;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::handshake::ServerInfo;
use super::peer::{Peer, Request};

/// The method that tells it.
pub(crate) const SET_LEVEL: &str = "logging/setLevel";

/// The parameters of the last [`SET_LEVEL`] that was not refused, if there was one.
#[derive(Default)]
pub(crate) struct LogLevel(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// What a server has taken last, and the number of its proposal.
    taken: Option<(u64, Map<String, Value>)>,
    /// What servers have not said a word of, the newest last. Each is of a call that runs.
    proposed: Vec<(u64, Map<String, Value>)>,
    /// The number of the last proposal.
    last: u64,
}

impl Kept {
    /// What connections begin with.
    fn newest(&self) -> Option<&(u64, Map<String, Value>)> {
        self.proposed.last().or(self.taken.as_ref())
    }
}

/// A level that is kept until the server has said what it thinks of it. Dropped without its word, as where its call is
/// cancelled, it counts as refused: what was taken last is kept again, unless there is something newer.
pub(crate) struct Proposed<'a> {
    levels: &'a LogLevel,
    number: u64,
}

impl Proposed<'_> {
    /// The server takes it. Returns whether it is the last word.
    pub(crate) fn taken(self) -> bool {
        let mut kept = self.levels.lock();
        let Some(at) = kept.proposed.iter().position(|(number, _)| *number == self.number) else { return false };
        let params = kept.proposed.remove(at);
        if kept.taken.as_ref().is_none_or(|(number, _)| *number < self.number) {
            kept.taken = Some(params);
        }
        kept.newest().is_some_and(|(number, _)| *number == self.number)
    }
}

impl Drop for Proposed<'_> {
    fn drop(&mut self) {
        self.levels.lock().proposed.retain(|(number, _)| *number != self.number);
    }
}

impl LogLevel {
    /// From now on connections begin with this.
    pub(crate) fn keep(&self, params: Map<String, Value>) -> Proposed<'_> {
        let mut kept = self.lock();
        kept.last += 1;
        let number = kept.last;
        kept.proposed.push((number, params));
        Proposed { levels: self, number }
    }

    /// Tells a new session of an older server, which knows nothing of the last one; again, while there is something
    /// newer than `told`, the number of what was told last. Ends with the answer.
    pub(crate) async fn tell(&self, peer: &Peer, server: &ServerInfo, told: &mut Option<u64>) {
        if server.era != Era::Legacy || !server.offers("logging") {
            return;
        }
        loop {
            let newest = self.lock().newest().cloned();
            let Some((number, params)) = newest.filter(|(number, _)| *told != Some(*number)) else { return };
            *told = Some(number);
            if let Err(error) = peer.ask::<IgnoredAny>(Request::internal(SET_LEVEL), &mut params.into()).await {
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

    fn begins_with(levels: &LogLevel, name: &str) {
        assert_eq!(levels.lock().newest().map(|(_, params)| params.clone()), Some(level(name)));
    }

    #[test]
    fn a_refused_level_gives_way_to_the_last_that_was_taken_unless_there_is_a_newer() {
        let levels = LogLevel::default();
        let first = levels.keep(level("info"));
        begins_with(&levels, "info");
        assert!(first.taken());
        drop(levels.keep(level("loud")));
        begins_with(&levels, "info");
        let overtaken = levels.keep(level("loud"));
        let newer = levels.keep(level("error"));
        drop(overtaken);
        begins_with(&levels, "error");
        assert!(newer.taken());
        begins_with(&levels, "error");
    }

    #[test]
    fn of_two_levels_that_are_refused_at_once_none_is_kept() {
        for is_first_refused_first in [true, false] {
            let levels = LogLevel::default();
            levels.keep(level("info")).taken();
            let (one, two) = (levels.keep(level("loud")), levels.keep(level("louder")));
            if is_first_refused_first {
                drop(one);
                drop(two);
            } else {
                drop(two);
                drop(one);
            }
            begins_with(&levels, "info");
        }
        // The newer is refused, and the older taken after that.
        let levels = LogLevel::default();
        let (one, two) = (levels.keep(level("info")), levels.keep(level("loud")));
        drop(two);
        assert!(one.taken());
        begins_with(&levels, "info");
    }
}
