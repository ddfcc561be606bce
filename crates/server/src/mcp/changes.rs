//! Telling clients that their tool list has changed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use toolwright_core::canonical::ContentHash;

use super::call::Caller;
use super::message::notification;
use super::protocol::SUBSCRIPTION_ID;
use crate::Gateway;
use crate::mcp::message::Id;

/// Changes that follow each other within this time are told once.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Waits for changes of one caller's list: only those that the caller would see.
pub(crate) struct ListChanges {
    gateway: Arc<Gateway>,
    caller: Caller,
    changes: watch::Receiver<u64>,
    seen: ContentHash,
}

impl ListChanges {
    /// Changes from now on.
    pub(crate) fn new(gateway: &Arc<Gateway>, caller: &Caller) -> Self {
        let changes = gateway.options.catalogue.changes();
        let seen = gateway.tools(&caller.view, &caller.session).fingerprint;
        Self { gateway: Arc::clone(gateway), caller: caller.clone(), changes, seen }
    }

    /// Changes since the caller had the list of this fingerprint.
    pub(crate) fn since(mut self, seen: ContentHash) -> Self {
        if self.seen != seen {
            self.changes.mark_changed();
        }
        self.seen = seen;
        self
    }

    /// The next change; `None` when there will be no more. Not cancel-safe: poll it to its end.
    pub(crate) async fn next(&mut self) -> Option<()> {
        loop {
            self.changes.changed().await.ok()?;
            tokio::time::sleep(DEBOUNCE).await;
            self.changes.mark_unchanged();
            let now = self.gateway.tools(&self.caller.view, &self.caller.session).fingerprint;
            if now != self.seen {
                self.seen = now;
                return Some(());
            }
        }
    }
}

/// `notifications/tools/list_changed`; a subscription's carries its id.
pub(crate) fn list_changed(subscription: Option<&Id>) -> Bytes {
    notification("notifications/tools/list_changed", subscription.map(subscription_meta).as_ref())
}

/// Parameters that name a subscription.
pub(crate) fn subscription_meta(subscription: &Id) -> Value {
    json!({"_meta": {SUBSCRIPTION_ID: subscription}})
}

/// A notification for each change.
pub(crate) fn notifications(changes: ListChanges, subscription: Option<Id>) -> impl Stream<Item = Bytes> + Send {
    futures_util::stream::unfold((changes, subscription), |(mut changes, subscription)| async move {
        changes.next().await?;
        Some((list_changed(subscription.as_ref()), (changes, subscription)))
    })
}
