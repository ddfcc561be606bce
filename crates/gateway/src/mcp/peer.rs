//! The client of a session up to 2025-11-25: what it announced of itself, and what it is asked.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::oneshot;
use toolwright_core::client::Manner;
use toolwright_mcp::merge::Owned;

use super::message::{Id, Response, RpcError};
use super::protocol::{BATCHING, LEGACY_VERSIONS, Level};
use super::subscriptions::{Subscription, nearest};

/// Revisions whose clients may be asked by forms or addresses.
const ELICITING: [&str; 2] = ["2025-06-18", "2025-11-25"];
/// The revision whose clients take streams up again, and take an event without data for what it is.
const RESUMING: &str = "2025-11-25";
/// Pages of which one session's client is told that they are done, and bytes of the name of one.
const MAX_PAGES: usize = 256;
const MAX_PAGE_ID: usize = 1024;
/// Resources that one session is told of.
pub(crate) const MAX_SUBSCRIBED: usize = 1024;

/// What is kept of a session's client.
#[derive(Default)]
pub(crate) struct Peer {
    capabilities: Mutex<Arc<Map<String, Value>>>,
    resumes_streams: AtomicBool,
    sends_batches: AtomicBool,
    /// One more than the level that it has asked for; 0 where it has not.
    level: AtomicU8,
    asked: AtomicU64,
    /// How many output schemas were not announced any more when it last listed tools.
    unannounced: AtomicU64,
    open: Mutex<HashMap<Id, oneshot::Sender<Response>>>,
    subscribed: Mutex<Subscribed>,
    /// Pages that it was asked to open.
    pages: Mutex<VecDeque<Page>>,
    /// The revision that it speaks, once it has introduced itself.
    version: Mutex<Option<&'static str>>,
}

/// What it is told of.
#[derive(Default)]
struct Subscribed {
    /// By the addresses that it has for them.
    all: HashMap<String, Subscription>,
    /// Its session has ended.
    has_left: bool,
}

/// A page that a client was asked to open.
#[derive(PartialEq)]
struct Page {
    /// Whose it is, where that is known: the names are each source's own.
    source: Option<String>,
    name: String,
}

impl Peer {
    /// Notes what the client said of itself when it introduced itself under this revision.
    pub(crate) fn introduced(&self, version: &'static str, capabilities: Option<&Map<String, Value>>) {
        self.resumes_streams.store(version == RESUMING, Ordering::Relaxed);
        self.sends_batches.store(version == BATCHING, Ordering::Relaxed);
        let mut capabilities = capabilities.cloned().unwrap_or_default();
        if !ELICITING.contains(&version) {
            capabilities.remove("elicitation");
        }
        *lock(&self.capabilities) = Arc::new(capabilities);
        *lock(&self.version) = Some(version);
    }

    /// The revision that it speaks; the newest of its generation where it has not said.
    pub(crate) fn version(&self) -> &'static str {
        lock(&self.version).unwrap_or(LEGACY_VERSIONS[0])
    }

    /// Whether it takes streams over HTTP up again whose connection broke.
    pub(crate) fn resumes_streams(&self) -> bool {
        self.resumes_streams.load(Ordering::Relaxed)
    }

    /// Whether it may send several messages at once.
    pub(crate) fn sends_batches(&self) -> bool {
        self.sends_batches.load(Ordering::Relaxed)
    }

    /// What it can be asked.
    pub(crate) fn capabilities(&self) -> Arc<Map<String, Value>> {
        Arc::clone(&lock(&self.capabilities))
    }

    /// How it is asked by whatever runs for it.
    pub(crate) fn manner(&self) -> Manner {
        if lock(&self.capabilities).is_empty() { Manner::Either } else { Manner::Requests }
    }

    /// Notes that it has the list of tools in which this many output schemas are not announced any more.
    pub(crate) fn has_listed(&self, unannounced: u64) {
        self.unannounced.fetch_max(unannounced, Ordering::Relaxed);
    }

    /// How many output schemas were not announced any more in the last list that it has.
    pub(crate) fn unannounced(&self) -> u64 {
        self.unannounced.load(Ordering::Relaxed)
    }

    /// From now on it is told of log messages of this level and above; before it was told of all.
    pub(crate) fn set_level(&self, level: Level) {
        self.level.store(level as u8 + 1, Ordering::Relaxed);
    }

    /// The least severe log messages that it has asked for, if it has.
    pub(crate) fn said_level(&self) -> Option<Level> {
        let level = usize::from(self.level.load(Ordering::Relaxed)).checked_sub(1)?;
        Level::ALL.get(level).copied()
    }

    /// The least severe log messages that it wants.
    pub(crate) fn level(&self) -> Level {
        self.said_level().unwrap_or(Level::Debug)
    }

    /// Whether it wants log messages of this level.
    pub(crate) fn wants(&self, level: Level) -> bool {
        level >= self.level()
    }

    /// Notes that it is asked to open this page (parameters of `elicitation/create`), and is to be told when its source
    /// says that its user is done there. Whoever asks in the middle of a call does not say which source it is.
    pub(crate) fn shown(&self, source: Option<&str>, page: &Value) {
        let name = page.get("elicitationId").and_then(Value::as_str).filter(|name| name.len() <= MAX_PAGE_ID);
        let Some(name) = name else { return };
        let page = Page { source: source.map(str::to_owned), name: name.to_owned() };
        let mut pages = lock(&self.pages);
        pages.retain(|known| *known != page);
        if pages.len() == MAX_PAGES {
            pages.pop_front();
        }
        pages.push_back(page);
    }

    /// The same for all that a refusal of this source which goes to it names.
    pub(crate) fn refused(&self, source: Option<&str>, error: &RpcError) {
        if error.code == RpcError::PAGES_REQUIRED {
            let list = error.data.as_ref().and_then(|data| data.get("elicitations")).and_then(Value::as_array);
            list.into_iter().flatten().take(MAX_PAGES).for_each(|page| self.shown(source, page));
        }
    }

    /// Whether it was asked to open this page of a source. It is told once.
    pub(crate) fn is_told_of(&self, source: &str, name: &str) -> bool {
        let mut pages = lock(&self.pages);
        let is_meant = |page: &Page| page.name == name && page.source.as_deref().is_none_or(|known| known == source);
        let at = pages.iter().position(is_meant);
        at.and_then(|at| pages.remove(at)).is_some()
    }

    /// Takes a client's response. What was not asked, or no longer matters, is dropped.
    pub(crate) fn settle(&self, response: Response) {
        let waiting = response.id.as_ref().and_then(|id| lock(&self.open).remove(id));
        if let Some(waiting) = waiting {
            // Whoever asked may have gone meanwhile.
            let _ = waiting.send(response);
        }
    }

    /// A question of ours; it is forgotten when the guard goes.
    pub(crate) fn question(self: &Arc<Self>) -> (Question, oneshot::Receiver<Response>) {
        let id = Id::Text(format!("ask-{}", self.asked.fetch_add(1, Ordering::Relaxed)));
        let (settled, answer) = oneshot::channel();
        lock(&self.open).insert(id.clone(), settled);
        (Question { peer: Arc::clone(self), id }, answer)
    }

    /// Notes that it is to be told when this resource changes, unless it has left meanwhile. `None` when it has
    /// subscribed to too many.
    pub(crate) fn subscribe(&self, uri: &str, subscription: Subscription) -> Option<()> {
        let mut subscribed = lock(&self.subscribed);
        if subscribed.has_left {
            return Some(());
        }
        if subscribed.all.len() >= MAX_SUBSCRIBED && !subscribed.all.contains_key(uri) {
            return None;
        }
        subscribed.all.insert(uri.to_owned(), subscription);
        Some(())
    }

    /// It need not be told any more.
    pub(crate) fn unsubscribe(&self, uri: &str) -> Option<Subscription> {
        lock(&self.subscribed).all.remove(uri)
    }

    /// What it is to be told of, under the addresses that it has for them.
    pub(crate) fn subscribed(&self) -> Vec<String> {
        lock(&self.subscribed).all.keys().cloned().collect()
    }

    /// The same as their sources have them.
    pub(crate) fn followed(&self) -> Vec<Owned> {
        lock(&self.subscribed).all.values().map(|subscription| subscription.owned().clone()).collect()
    }

    /// Its session has ended: it need not be told of anything any more, whatever still runs for it.
    pub(crate) fn leave(&self) {
        let left = Subscribed { all: HashMap::new(), has_left: true };
        let subscribed = std::mem::replace(&mut *lock(&self.subscribed), left);
        drop(subscribed);
    }

    /// Under which address it is to be told of a change at the source, if it is.
    pub(crate) fn subscribed_to(&self, provider: &str, uri: &str) -> Option<String> {
        let subscribed = lock(&self.subscribed);
        nearest(subscribed.all.iter(), provider, uri)
    }
}

/// A question whose answer is awaited.
pub(crate) struct Question {
    peer: Arc<Peer>,
    pub(crate) id: Id,
}

impl Question {
    /// Whether nobody has answered yet.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.peer.open).contains_key(&self.id)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        lock(&self.peer.open).remove(&self.id);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_revisions_that_have_elicitation_are_asked_by_it() {
        for (version, expect) in [("2025-11-25", true), ("2025-06-18", true), ("2025-03-26", false)] {
            let peer = Peer::default();
            peer.introduced(version, json!({"elicitation": {}, "roots": {}}).as_object());
            let found = peer.capabilities();
            assert_eq!((found.contains_key("elicitation"), found.contains_key("roots")), (expect, true), "{version}");
        }
    }

    #[test]
    fn only_whose_user_was_asked_to_open_a_page_is_told_that_it_is_done() {
        let (one, two) = (Peer::default(), Peer::default());
        one.shown(None, &json!({"mode": "url", "elicitationId": "1"}));
        let mut refusal = RpcError::new(RpcError::PAGES_REQUIRED, "log in");
        refusal.data = Some(Box::new(json!({"elicitations": [{"elicitationId": "2"}]})));
        two.refused(Some("a"), &refusal);
        assert!(!two.is_told_of("a", "1") && !one.is_told_of("a", "2"));
        assert!(one.is_told_of("a", "1") && !one.is_told_of("a", "1"));
        assert!(!two.is_told_of("b", "2"), "another source's page has the same name");
        assert!(two.is_told_of("a", "2"));
        (0..1000).for_each(|at| one.shown(None, &json!({"elicitationId": at.to_string()})));
        assert_eq!(lock(&one.pages).len(), MAX_PAGES);
    }

    #[test]
    fn log_messages_below_the_level_are_not_wanted() {
        let peer = Peer::default();
        assert!(peer.wants(Level::Debug) && peer.said_level().is_none());
        for level in Level::ALL {
            peer.set_level(level);
            assert_eq!((peer.said_level(), peer.level()), (Some(level), level));
        }
        peer.set_level(Level::Warning);
        assert!(!peer.wants(Level::Notice) && peer.wants(Level::Warning) && peer.wants(Level::Emergency));
    }
}
