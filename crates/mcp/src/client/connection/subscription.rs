//! Requests log messages and change notifications on each connection to a server: by one `subscriptions/listen` on
//! 2026-07-28, which older servers do not need; and follows single resources on either revision.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolwright_core::backoff::Backoff;
use toolwright_core::catalogue::SourceNotice;

use super::handshake::{ServerInfo, modern_meta};
use super::inbox::RequestPurpose;
use super::peer::{AskError, Params, Peer, Request};
use crate::protocol::message::RpcError;
use crate::protocol::revision::Era;

/// Pauses before a broken subscription is renewed.
const RENEWAL: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(60) };
/// Pauses between two catch-ups on missed announcements. A proxy may end streams every minute, and every catch-up lists
/// everything again: pauses grow until streams last.
const CATCH_UP: Backoff = Backoff { first: Duration::from_secs(30), most: Duration::from_secs(1800) };
/// Time limit for a server to accept a subscription.
const ACCEPT_BOUND: Duration = Duration::from_secs(10);
/// Bound on the resources of one server that are followed.
const MAX_FOLLOWED: usize = 1024;

/// Subscribed resources of one server, kept across connections.
pub(crate) struct FollowedResources {
    uris: watch::Sender<BTreeSet<String>>,
    /// URIs that the current connection's server accepted (2026-07-28), once it has answered.
    accepted: watch::Sender<Option<BTreeSet<String>>>,
}

impl Default for FollowedResources {
    fn default() -> Self {
        Self { uris: watch::Sender::new(BTreeSet::new()), accepted: watch::Sender::new(None) }
    }
}

impl FollowedResources {
    /// Whether this resource is subscribed.
    pub(crate) fn has(&self, uri: &str) -> bool {
        self.uris.borrow().contains(uri)
    }

    /// Adds a resource to the subscription.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn add(&self, uri: &str) -> Result<(), RpcError> {
        let mut is_full = false;
        self.uris.send_if_modified(|uris| {
            is_full = uris.len() >= MAX_FOLLOWED && !uris.contains(uri);
            !is_full && uris.insert(uri.to_owned())
        });
        if is_full {
            let text = format!("{MAX_FOLLOWED} resources of this server are followed already; unsubscribe from some");
            return Err(RpcError::new(RpcError::BUSY, text));
        }
        Ok(())
    }

    /// Removes a resource from the subscription.
    pub(crate) fn remove(&self, uri: &str) {
        self.uris.send_if_modified(|uris| uris.remove(uri));
    }

    /// Waits until the server (2026-07-28) has accepted the subscription to this resource.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub(crate) async fn accepted(&self, uri: &str) -> Result<(), RpcError> {
        let mut accepted = self.accepted.subscribe();
        let accepted_now = accepted.wait_for(|accepted| accepted.as_ref().is_some_and(|uris| uris.contains(uri)));
        match tokio::time::timeout(ACCEPT_BOUND, accepted_now).await {
            Ok(Ok(_)) => Ok(()),
            _ => {
                self.remove(uri);
                Err(RpcError::new(RpcError::INTERNAL, format!("the server does not announce changes of {uri}")))
            }
        }
    }
}

/// Receives announcements of the server until `over`.
pub(crate) async fn follow(
    peer: Arc<Peer>,
    server: ServerInfo,
    followed: Arc<FollowedResources>,
    over: CancellationToken,
) {
    let following = async {
        match server.era {
            Era::Legacy => {
                resume(&peer, &followed).await;
                catch_up(&peer, &server, &followed).await;
            }
            Era::Modern => tokio::select! {
                () = listen(&peer, &server, &followed) => {}
                () = catch_up(&peer, &server, &followed) => {}
            },
        }
    };
    tokio::select! {
        () = following => {}
        () = over.cancelled() => {}
    }
    followed.accepted.send_replace(None);
}

/// Subscribes again in a new session of an older server.
async fn resume(peer: &Peer, followed: &FollowedResources) {
    let uris: Vec<String> = followed.uris.borrow().iter().cloned().collect();
    for uri in uris {
        let params = Map::from_iter([("uri".to_owned(), uri.into())]);
        if let Err(error) = peer.ask::<IgnoredAny>(Request::internal("resources/subscribe"), &mut params.into()).await {
            tracing::debug!(server = &*peer.inbox.listener.server, "a resource is not followed any more: {error:?}");
        }
    }
}

/// Announces changes that may have been missed.
async fn catch_up(peer: &Peer, server: &ServerInfo, followed: &FollowedResources) {
    let mut pauses = 0;
    loop {
        let since = Instant::now();
        peer.inbox.has_missed.notified().await;
        announce_missed(peer, server, followed);
        tokio::time::sleep(next_pause(CATCH_UP, &mut pauses, since.elapsed())).await;
    }
}

/// Returns the next pause after so many `pauses`, which begin anew if all was well for the longest of them.
fn next_pause(backoff: Backoff, pauses: &mut u32, quiet: Duration) -> Duration {
    *pauses = if quiet < backoff.most { pauses.saturating_add(1) } else { 1 };
    backoff.pause(*pauses)
}

/// How a subscription ended.
enum SubscriptionEnd {
    /// The wanted resources changed.
    Changed,
    /// The server ended it, or it broke.
    Over,
    /// The server refuses it.
    Refused(String),
}

/// Keeps one subscription to everything wanted. A changed one is opened before the old one is closed.
async fn listen(peer: &Peer, server: &ServerInfo, followed: &FollowedResources) {
    let mut uris = followed.uris.subscribe();
    let mut pauses = 0;
    let mut former: Option<RunningSubscription<'_>> = None;
    loop {
        let filter = filter(server, &uris.borrow_and_update());
        if filter.is_empty() {
            drop(former.take());
            if uris.changed().await.is_err() {
                return;
            }
            continue;
        }
        let since = Instant::now();
        let (mut acceptance, mut running) = start(peer, filter);
        let mut is_accepted = false;
        let end = loop {
            tokio::select! {
                refusal = &mut running => break refusal.map_or(SubscriptionEnd::Over, SubscriptionEnd::Refused),
                accepted_now = acceptance.wait_for(Option::is_some), if !is_accepted => {
                    is_accepted = true;
                    if let Ok(accepted_now) = accepted_now {
                        followed.accepted.send_replace(Some(resources(accepted_now.as_ref())));
                        drop(former.take());
                    }
                }
                changed = uris.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    break SubscriptionEnd::Changed;
                }
            }
        };
        match end {
            SubscriptionEnd::Changed => former = Some(running),
            SubscriptionEnd::Refused(reason) => {
                tracing::debug!(server = &*peer.inbox.listener.server, "no announcements: {reason}");
                drop(former.take());
                // The server may accept another filter.
                if uris.changed().await.is_err() {
                    return;
                }
            }
            SubscriptionEnd::Over => {
                drop(former.take());
                tokio::time::sleep(next_pause(RENEWAL, &mut pauses, since.elapsed())).await;
                peer.inbox.has_missed.notify_one();
            }
        }
    }
}

/// Announces everything that may have been missed.
fn announce_missed(peer: &Peer, server: &ServerInfo, followed: &FollowedResources) {
    let listener = &peer.inbox.listener;
    if server.offers("tools.listChanged") {
        listener.tools_changed();
    }
    if server.offers("resources.listChanged") {
        listener.notice(SourceNotice::ResourcesChanged);
    }
    if server.offers("prompts.listChanged") {
        listener.notice(SourceNotice::PromptsChanged);
    }
    let uris: Vec<String> = followed.uris.borrow().iter().cloned().collect();
    for uri in uris {
        listener.notice(SourceNotice::ResourceUpdated { uri });
    }
}

fn filter(server: &ServerInfo, uris: &BTreeSet<String>) -> Map<String, Value> {
    let mut filter = Map::new();
    for (capability, key) in [
        ("tools.listChanged", "toolsListChanged"),
        ("prompts.listChanged", "promptsListChanged"),
        ("resources.listChanged", "resourcesListChanged"),
    ] {
        if server.offers(capability) {
            filter.insert(key.to_owned(), true.into());
        }
    }
    if !uris.is_empty() {
        filter.insert("resourceSubscriptions".to_owned(), uris.iter().map(String::as_str).collect());
    }
    filter
}

/// A running subscription, which resolves to the reason if the server refuses it. Dropping it cancels it at the server.
type RunningSubscription<'a> = Pin<Box<dyn Future<Output = Option<String>> + Send + 'a>>;

/// Starts a subscription; returns the accepted part and the running request.
fn start(peer: &Peer, filter: Map<String, Value>) -> (watch::Receiver<Option<Value>>, RunningSubscription<'_>) {
    let (sender, acceptance) = watch::channel(None);
    let answer = async move {
        let params = Params::from(Map::from_iter([("notifications".to_owned(), filter.into())]));
        let mut params = params.with(modern_meta(Map::new()).into());
        let request =
            Request { purpose: RequestPurpose::Subscription(sender), ..Request::internal("subscriptions/listen") };
        match peer.ask::<IgnoredAny>(request, &mut params).await {
            Err(AskError::Rpc(error)) => Some(error.message.into_owned()),
            _ => None,
        }
    };
    (acceptance, Box::pin(answer))
}

/// Returns the resources that a server accepted.
fn resources(accepted: Option<&Value>) -> BTreeSet<String> {
    let uris = accepted.and_then(|accepted| accepted.get("resourceSubscriptions")).and_then(Value::as_array);
    uris.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The method that sets it.
pub(crate) const SET_LEVEL: &str = "logging/setLevel";

/// The parameters of the last [`SET_LEVEL`] that was not refused, if there was one.
#[derive(Default)]
pub(crate) struct LogLevel(Mutex<LogLevelState>);

#[derive(Default)]
struct LogLevelState {
    /// The level that a server last accepted, with its number.
    taken: Option<(u64, Map<String, Value>)>,
    /// Levels without an answer yet, newest last. Each belongs to a running call.
    proposed: Vec<(u64, Map<String, Value>)>,
    /// The number of the last proposal.
    last: u64,
}

impl LogLevelState {
    /// Returns the level for new connections.
    fn newest(&self) -> Option<&(u64, Map<String, Value>)> {
        self.proposed.last().or(self.taken.as_ref())
    }
}

/// A proposed level until the server has answered. If dropped without an answer, as when its call is
/// cancelled, it counts as refused: the last accepted level applies again, unless there is a newer one.
pub(crate) struct ProposedLevel<'a> {
    levels: &'a LogLevel,
    number: u64,
}

impl ProposedLevel<'_> {
    /// The server accepted the level. Returns whether it is still the newest.
    pub(crate) fn taken(self) -> bool {
        let mut levels = self.levels.lock();
        let Some(at) = levels.proposed.iter().position(|(number, _)| *number == self.number) else { return false };
        let params = levels.proposed.remove(at);
        if levels.taken.as_ref().is_none_or(|(number, _)| *number < self.number) {
            levels.taken = Some(params);
        }
        levels.newest().is_some_and(|(number, _)| *number == self.number)
    }
}

impl Drop for ProposedLevel<'_> {
    fn drop(&mut self) {
        self.levels.lock().proposed.retain(|(number, _)| *number != self.number);
    }
}

impl LogLevel {
    /// Proposes a level, which new connections use from now on.
    pub(crate) fn keep(&self, params: Map<String, Value>) -> ProposedLevel<'_> {
        let mut levels = self.lock();
        levels.last += 1;
        let number = levels.last;
        levels.proposed.push((number, params));
        ProposedLevel { levels: self, number }
    }

    /// Sends the level to a new session of an older server; again while there is a newer one than
    /// `last`, the number of the level sent last. Ends with the answer.
    pub(crate) async fn send_level(&self, peer: &Peer, server: &ServerInfo, last: &mut Option<u64>) {
        if server.era != Era::Legacy || !server.offers("logging") {
            return;
        }
        loop {
            let newest = self.lock().newest().cloned();
            let Some((number, params)) = newest.filter(|(number, _)| *last != Some(*number)) else { return };
            *last = Some(number);
            if let Err(error) = peer.ask::<IgnoredAny>(Request::internal(SET_LEVEL), &mut params.into()).await {
                tracing::debug!(server = &*peer.inbox.listener.server, "the log level was not taken: {error:?}");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LogLevelState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_updates_are_requested_with_growing_pauses() {
        let mut pauses = 0;
        let secs = Duration::from_secs;
        for (quiet, expect) in
            [(0, 30), (30, 60), (0, 120), (599, 240), (0, 480), (0, 960), (0, 1800), (0, 1800), (1800, 30)]
        {
            assert_eq!(next_pause(CATCH_UP, &mut pauses, secs(quiet)), secs(expect), "{quiet}");
        }
    }
}

#[cfg(test)]
mod log_level_tests {
    use serde_json::json;

    use super::*;

    fn level(name: &str) -> Map<String, Value> {
        Map::from_iter([("level".to_owned(), json!(name))])
    }

    fn begins_with(levels: &LogLevel, name: &str) {
        assert_eq!(levels.lock().newest().map(|(_, params)| params.clone()), Some(level(name)));
    }

    #[test]
    fn refused_levels_fall_back_to_the_last_accepted() {
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
    fn two_refused_levels_leave_none() {
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
        // The newer one is refused, and the older one accepted after that.
        let levels = LogLevel::default();
        let (one, two) = (levels.keep(level("info")), levels.keep(level("loud")));
        drop(two);
        assert!(one.taken());
        begins_with(&levels, "info");
    }
}
