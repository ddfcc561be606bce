//! The caller of a request: its session, its running requests, and the state of a client up to 2025-11-25.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::client::AskStyle;
use toolwright_core::session::{PeerProcess, Session};
use toolwright_mcp::merge::{ItemOrigin, is_within, qualify};
use toolwright_runtime::CallOrder;

use super::message::{Id, Params, Response, RpcError};
use super::protocol::{LEGACY_VERSIONS, Level};
use crate::http::Connection;
use crate::view::{Expose, View};

/// Revisions whose clients may be asked by elicitation.
const ELICITING: [&str; 2] = ["2025-06-18", "2025-11-25"];
/// The revision whose clients resume streams and understand an event without data.
const RESUMING: &str = "2025-11-25";
/// Remembered pages of one session, and the longest id of a page in bytes.
const MAX_PAGES: usize = 256;
const MAX_PAGE_ID: usize = 1024;
/// The most resources that one session may subscribe to.
pub(crate) const MAX_SUBSCRIBED: usize = 1024;

/// The caller of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) session: Arc<Session>,
    pub(crate) view: View,
    /// The `?expose` of its address.
    pub(crate) expose_asked: Option<Expose>,
    /// Its running requests.
    pub(crate) running: Arc<RunningCalls>,
    /// The state of its client, if it has a session.
    pub(crate) client: Arc<ClientState>,
    /// Its running tasks.
    pub(crate) tasks: TaskTracker,
    /// The order of its calls.
    pub(crate) order: CallOrder,
    /// The recipient of questions about its calls.
    pub(crate) asker: Asker,
}

/// The program whose user is asked whether a call may run.
#[derive(Debug, Clone)]
pub(crate) enum Asker {
    /// The program that started this process.
    Parent,
    /// A program that connected over HTTP.
    Remote {
        connection: Connection,
        /// Whether it sent a token.
        has_token: bool,
    },
}

impl Asker {
    /// Returns whether its user may decide in the owner's name.
    pub(crate) async fn can_decide(&self) -> bool {
        match self {
            Self::Parent => true,
            Self::Remote { connection, has_token } => match connection.process().await {
                PeerProcess::Owners => true,
                PeerProcess::Nested => false,
                PeerProcess::Unknown => *has_token,
            },
        }
    }
}

impl Caller {
    pub(crate) fn new(session: Arc<Session>, view: View) -> Self {
        let (running, client, tasks) = (Arc::default(), Arc::default(), TaskTracker::new());
        let order = CallOrder::default();
        Self { session, view, expose_asked: None, running, client, tasks, order, asker: Asker::Parent }
    }

    /// Handles a notification of its client.
    pub(crate) fn notified(&self, method: &str, params: &Params) {
        if let ("notifications/cancelled", Some(id)) = (method, &params.request_id) {
            self.running.cancel(id);
        }
    }
}

/// Running requests of one session, by id.
#[derive(Debug)]
pub(crate) struct RunningCalls {
    /// Parent of all cancel tokens, because a paused call has no request.
    all: Cancel,
    by_id: Mutex<hashbrown::HashMap<Id, Cancel>>,
}

impl Default for RunningCalls {
    fn default() -> Self {
        Self { all: Cancel::new(), by_id: Mutex::default() }
    }
}

impl RunningCalls {
    /// Creates a cancel token for a call of this session.
    pub(crate) fn token(&self) -> Cancel {
        self.all.child()
    }

    /// Registers a request until the guard is dropped.
    ///
    /// # Errors
    /// A request with that id is running.
    pub(crate) fn enter(self: &Arc<Self>, id: &Id, cancel: &Cancel) -> Result<RunningCallEntry, RpcError> {
        let mut by_id = lock(&self.by_id);
        if by_id.contains_key(id) {
            return Err(RpcError::new(RpcError::INVALID_REQUEST, "a request with this id is still running"));
        }
        by_id.insert(id.clone(), cancel.clone());
        Ok(RunningCallEntry { running: Arc::clone(self), id: id.clone() })
    }

    /// Cancels a request for its client. Ended requests are ignored.
    pub(crate) fn cancel(&self, id: &Id) {
        if let Some(cancel) = lock(&self.by_id).get(id) {
            cancel.cancel(CancelCause::User);
        }
    }

    /// Cancels all requests, because the client has disconnected.
    pub(crate) fn cancel_all(&self) {
        self.all.cancel(CancelCause::User);
    }

    /// Returns whether no request runs.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.by_id).is_empty()
    }
}

/// A request in [`RunningCalls`].
pub(crate) struct RunningCallEntry {
    running: Arc<RunningCalls>,
    id: Id,
}

impl RunningCallEntry {
    /// Returns the id of the request.
    pub(crate) fn id(&self) -> &Id {
        &self.id
    }
}

impl Drop for RunningCallEntry {
    fn drop(&mut self) {
        lock(&self.running.by_id).remove(&self.id);
    }
}

/// State of a session's client: its announcements, open questions and subscriptions.
#[derive(Default)]
pub(crate) struct ClientState(Mutex<State>);

#[derive(Default)]
struct State {
    /// The revision of its `initialize`.
    version: Option<&'static str>,
    capabilities: Arc<Map<String, Value>>,
    /// The log level that it set.
    level: Option<Level>,
    /// The number of output schemas missing from its last tool list.
    unannounced: u64,
    /// The number of questions asked so far, and the open ones.
    question_count: u64,
    open: HashMap<Id, oneshot::Sender<Response>>,
    /// Subscriptions by the addresses that the client uses.
    subscriptions: HashMap<String, Subscription>,
    /// Whether its session has ended.
    has_left: bool,
    /// Pages that the client was asked to open.
    pages: VecDeque<ElicitedPage>,
}

/// A page that a client was asked to open.
#[derive(PartialEq)]
struct ElicitedPage {
    /// The page's source, if known. Ids are unique per source only.
    source: Option<String>,
    name: String,
}

impl ClientState {
    /// Records the revision and capabilities of its `initialize`.
    pub(crate) fn initialized(&self, version: &'static str, capabilities: Option<&Map<String, Value>>) {
        let mut capabilities = capabilities.cloned().unwrap_or_default();
        if !ELICITING.contains(&version) {
            capabilities.remove("elicitation");
        }
        let mut state = self.lock();
        (state.version, state.capabilities) = (Some(version), Arc::new(capabilities));
    }

    /// Returns its revision; the newest legacy one before it is initialized.
    pub(crate) fn version(&self) -> &'static str {
        self.lock().version.unwrap_or(LEGACY_VERSIONS[0])
    }

    /// Returns whether it resumes HTTP streams after a disconnect.
    pub(crate) fn resumes_streams(&self) -> bool {
        self.lock().version == Some(RESUMING)
    }

    /// Returns its capabilities.
    pub(crate) fn capabilities(&self) -> Arc<Map<String, Value>> {
        Arc::clone(&self.lock().capabilities)
    }

    /// Returns how sources may ask it.
    pub(crate) fn ask_style(&self) -> AskStyle {
        if self.lock().capabilities.is_empty() { AskStyle::Either } else { AskStyle::Requests }
    }

    /// Records that it listed the tools, with this many output schemas left out.
    pub(crate) fn has_listed(&self, unannounced: u64) {
        let mut state = self.lock();
        state.unannounced = state.unannounced.max(unannounced);
    }

    /// Returns the number of output schemas missing from its last tool list.
    pub(crate) fn unannounced(&self) -> u64 {
        self.lock().unannounced
    }

    /// Sets its log level. Until then it gets all messages.
    pub(crate) fn set_level(&self, level: Level) {
        self.lock().level = Some(level);
    }

    /// Returns the log level that it set.
    pub(crate) fn level_asked(&self) -> Option<Level> {
        self.lock().level
    }

    /// Returns the least severe level of log messages that it gets.
    pub(crate) fn level(&self) -> Level {
        self.level_asked().unwrap_or(Level::Debug)
    }

    /// Returns whether it gets log messages of this level.
    pub(crate) fn wants(&self, level: Level) -> bool {
        level >= self.level()
    }

    /// Records that it was asked to open this page (parameters of `elicitation/create`), so that it is notified when
    /// the source reports completion. A question inside a call does not name its source.
    pub(crate) fn record_page_request(&self, source: Option<&str>, page: &Value) {
        let name = page.get("elicitationId").and_then(Value::as_str).filter(|name| name.len() <= MAX_PAGE_ID);
        let Some(name) = name else { return };
        let page = ElicitedPage { source: source.map(str::to_owned), name: name.to_owned() };
        let mut state = self.lock();
        state.pages.retain(|known| *known != page);
        if state.pages.len() == MAX_PAGES {
            state.pages.pop_front();
        }
        state.pages.push_back(page);
    }

    /// Records all pages that a refusal of this source names.
    pub(crate) fn refused(&self, source: Option<&str>, error: &RpcError) {
        if error.code == RpcError::PAGES_REQUIRED {
            let list = error.data.as_ref().and_then(|data| data.get("elicitations")).and_then(Value::as_array);
            list.into_iter().flatten().take(MAX_PAGES).for_each(|page| self.record_page_request(source, page));
        }
    }

    /// Forgets a completed page of a source. Returns whether this client was asked to open it.
    pub(crate) fn page_is_done(&self, source: &str, name: &str) -> bool {
        let mut state = self.lock();
        let is_meant =
            |page: &ElicitedPage| page.name == name && page.source.as_deref().is_none_or(|known| known == source);
        let at = state.pages.iter().position(is_meant);
        at.and_then(|at| state.pages.remove(at)).is_some()
    }

    /// Takes a client's response. A response that nobody waits for is dropped.
    pub(crate) fn take_response(&self, response: Response) {
        let waiting = response.id.as_ref().and_then(|id| self.lock().open.remove(id));
        if let Some(waiting) = waiting {
            // The call may have ended meanwhile.
            let _ = waiting.send(response);
        }
    }

    /// Opens a question, which is forgotten when the guard is dropped.
    pub(crate) fn question(self: &Arc<Self>) -> (Question, oneshot::Receiver<Response>) {
        let (settled, answer) = oneshot::channel();
        let mut state = self.lock();
        let id = Id::Text(format!("ask-{}", state.question_count));
        state.question_count += 1;
        state.open.insert(id.clone(), settled);
        (Question { client: Arc::clone(self), id }, answer)
    }

    /// Adds a subscription to a resource, unless the session has ended. `None` at the limit.
    pub(crate) fn subscribe(&self, uri: &str, subscription: Subscription) -> Option<()> {
        let mut state = self.lock();
        if state.has_left {
            return Some(());
        }
        if state.subscriptions.len() >= MAX_SUBSCRIBED && !state.subscriptions.contains_key(uri) {
            return None;
        }
        state.subscriptions.insert(uri.to_owned(), subscription);
        Some(())
    }

    /// Removes a subscription.
    pub(crate) fn unsubscribe(&self, uri: &str) -> Option<Subscription> {
        self.lock().subscriptions.remove(uri)
    }

    /// Returns its subscribed resources, by the addresses that the client uses.
    pub(crate) fn subscribed(&self) -> Vec<String> {
        self.lock().subscriptions.keys().cloned().collect()
    }

    /// Returns its subscribed resources, by the addresses of their sources.
    pub(crate) fn followed(&self) -> Vec<ItemOrigin> {
        self.lock().subscriptions.values().map(|subscription| subscription.owned().clone()).collect()
    }

    /// Drops all subscriptions and accepts no more, because its session has ended.
    pub(crate) fn close_subscriptions(&self) {
        let mut state = self.lock();
        state.has_left = true;
        let subscriptions = std::mem::take(&mut state.subscriptions);
        drop(state);
        drop(subscriptions);
    }

    /// Returns the client's address of this source's resource, if it is subscribed.
    pub(crate) fn subscribed_to(&self, provider: &str, uri: &str) -> Option<String> {
        nearest(self.lock().subscriptions.iter(), provider, uri)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

/// An open question.
pub(crate) struct Question {
    client: Arc<ClientState>,
    pub(crate) id: Id,
}

impl Question {
    /// Returns whether the question is still unanswered.
    pub(crate) fn is_open(&self) -> bool {
        self.client.lock().open.contains_key(&self.id)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.client.lock().open.remove(&self.id);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One subscriber's interest in a resource. It ends on drop.
pub(crate) struct Subscription {
    owned: ItemOrigin,
    on_end: Option<Box<dyn FnOnce(ItemOrigin) + Send + Sync>>,
}

impl Subscription {
    /// Creates an interest in this source's resource; `on_end` runs when it ends.
    pub(crate) fn new(owned: ItemOrigin, on_end: impl FnOnce(ItemOrigin) + Send + Sync + 'static) -> Self {
        Self { owned, on_end: Some(Box::new(on_end)) }
    }

    /// Returns the source and its own address.
    pub(crate) fn owned(&self) -> &ItemOrigin {
        &self.owned
    }

    /// Returns the subscriber's address of this source's resource, if the subscription, known to the subscriber as
    /// `listed_uri`, covers it. It covers the same address and those below it (MCP, `ResourceUpdatedNotification`: "This
    /// might be a sub-resource of the one that the client actually subscribed to").
    fn shown_address(&self, listed_uri: &str, provider: &str, uri: &str) -> Option<String> {
        if self.owned.server != provider || !is_within(&self.owned.own, uri) {
            return None;
        }
        if uri == self.owned.own {
            return Some(listed_uri.to_owned());
        }
        Some(if listed_uri == self.owned.own { uri.to_owned() } else { qualify(provider, uri) })
    }
}

/// Returns a client's address of this source's resource, by the nearest of its subscriptions that covers it.
pub(crate) fn nearest<'a>(
    all: impl Iterator<Item = (&'a String, &'a Subscription)>,
    provider: &str,
    uri: &str,
) -> Option<String> {
    let covering = all.filter_map(|(shown, at)| Some((at.owned.own.len(), at.shown_address(shown, provider, uri)?)));
    covering.max().map(|(_, shown)| shown)
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(on_end) = self.on_end.take() {
            on_end(self.owned.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_revisions_with_elicitation_are_asked() {
        for (version, expect) in [("2025-11-25", true), ("2025-06-18", true), ("2025-03-26", false)] {
            let client = ClientState::default();
            client.initialized(version, json!({"elicitation": {}, "roots": {}}).as_object());
            let found = client.capabilities();
            assert_eq!((found.contains_key("elicitation"), found.contains_key("roots")), (expect, true), "{version}");
        }
    }

    #[test]
    fn a_client_is_notified_only_of_its_pages() {
        let (one, two) = (ClientState::default(), ClientState::default());
        one.record_page_request(None, &json!({"mode": "url", "elicitationId": "1"}));
        let mut refusal = RpcError::new(RpcError::PAGES_REQUIRED, "log in");
        refusal.data = Some(Box::new(json!({"elicitations": [{"elicitationId": "2"}]})));
        two.refused(Some("a"), &refusal);
        assert!(!two.page_is_done("a", "1") && !one.page_is_done("a", "2"));
        assert!(one.page_is_done("a", "1") && !one.page_is_done("a", "1"));
        assert!(!two.page_is_done("b", "2"), "another source's page has the same name");
        assert!(two.page_is_done("a", "2"));
        (0..1000).for_each(|at| one.record_page_request(None, &json!({"elicitationId": at.to_string()})));
        assert_eq!(one.lock().pages.len(), MAX_PAGES);
    }

    #[test]
    fn log_messages_below_the_level_are_not_wanted() {
        let client = ClientState::default();
        assert!(client.wants(Level::Debug) && client.level_asked().is_none());
        for level in Level::ALL {
            client.set_level(level);
            assert_eq!((client.level_asked(), client.level()), (Some(level), level));
        }
        client.set_level(Level::Warning);
        assert!(!client.wants(Level::Notice) && client.wants(Level::Warning) && client.wants(Level::Emergency));
    }
}
