//! The folders of the one client of a connection, for sources that ask outside of calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::roots::Roots;
use toolwright_mcp::asking::ROOTS;

use super::Connection;
use crate::mcp::message::request;

/// Notifications after which a client is asked for its folders.
const MAY_HAVE_CHANGED: [&str; 2] = ["notifications/initialized", "notifications/roots/list_changed"];
/// How long it has to tell them.
const ANSWER: Duration = Duration::from_secs(30);

impl Connection {
    /// Asks the client for its folders after a notification by which they may be others.
    pub(super) fn learn_roots_after(&self, notification: &str) {
        if MAY_HAVE_CHANGED.contains(&notification) {
            self.learn_roots();
        }
    }

    /// Asks the client for its folders, if it has any to tell, and has sources told.
    fn learn_roots(&self) {
        let Some(roots) = self.gateway.options.roots.clone() else { return };
        let newest = Arc::clone(&self.roots_asked);
        let own = newest.fetch_add(1, Ordering::AcqRel) + 1;
        if !self.caller.peer.capabilities().contains_key("roots") {
            return roots.set(Roots::none());
        }
        let (peer, outbox, closed) = (Arc::clone(&self.caller.peer), self.outbox.clone(), self.closed.clone());
        self.watchers.spawn(async move {
            let (question, answer) = peer.question();
            if outbox.send(request(&question.id, ROOTS, &json!({}))).await.is_err() {
                return;
            }
            let answered = tokio::select! {
                answered = tokio::time::timeout(ANSWER, answer) => answered,
                _ = closed.cancelled() => return,
            };
            // What was asked later says more, answered or not yet.
            if newest.load(Ordering::Acquire) != own {
                return;
            }
            let result = answered.ok().and_then(Result::ok).and_then(|response| response.outcome.ok());
            roots.set(result.filter(|result| result.get("roots").is_some_and(Value::is_array)).unwrap_or_else(|| {
                tracing::warn!("the client offers roots and did not list them: sources are told that there are none");
                Roots::none()
            }));
        });
    }

    /// A client whose requests stand alone is asked within its calls only.
    pub(super) fn has_no_roots(&self) {
        if let Some(roots) = self.gateway.options.roots.as_ref().filter(|roots| roots.is_awaited()) {
            roots.withhold();
        }
    }
}
