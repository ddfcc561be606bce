//! One server: its connections, its known tools, and the refresh of its lists (after an announced
//! change, and after a failure).

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::task::AbortHandle;
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::ChangeNotifier;
use toolwright_core::client::AskStyle;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::event::McpPeer;

use super::connection::Connection;
use super::connection::inbox::listener::Listener;
use super::connection::managed::{BACKOFF, WaitPolicy};
use super::connection::pool::{ConnectionLease, ConnectionPool};
use super::connection::subscription::FollowedResources;
use super::exchange::transport;
use super::listing::ToolFacts;
use crate::config::McpServerOptions;

/// How long announcements of a changed list are collected before one is passed on.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Bounds of the cache lifetime that a server may state for a list.
const TTL_BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));

/// A server.
pub(crate) struct Source {
    /// The configuration.
    pub(crate) options: Arc<McpServerOptions>,
    /// Its connections.
    pub(crate) pool: ConnectionPool,
    /// Handles its messages outside of calls.
    pub(crate) listener: Arc<Listener>,
    /// Its resources that are followed.
    pub(crate) followed: Arc<FollowedResources>,
    facts: Mutex<Arc<ToolFacts>>,
}

/// The choice of connection for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionChoice {
    /// The session's own connection if sessions have them, else one on which the server asks in this style.
    OfSession(AskStyle),
    /// The one that outlives sessions.
    Shared,
}

impl Source {
    /// A server that is not connected yet.
    pub(crate) fn new(
        options: Arc<McpServerOptions>,
        pool: ConnectionPool,
        listener: Arc<Listener>,
        followed: Arc<FollowedResources>,
    ) -> Arc<Self> {
        Arc::new(Self { options, pool, listener, followed, facts: Mutex::default() })
    }

    /// Returns the server's identity for calls.
    pub(crate) fn peer(&self) -> McpPeer {
        let version = self.pool.shared.current().map(|connection| Cow::Borrowed(connection.server().version));
        McpPeer { server: Arc::clone(&self.listener.server), protocol_version: version, session: None }
    }

    /// Returns facts about its tools from the last list, beyond their definitions.
    pub(crate) fn facts(&self) -> Arc<ToolFacts> {
        Arc::clone(&self.locked())
    }

    /// Stores facts from a list.
    pub(crate) fn keep(&self, facts: ToolFacts) {
        *self.locked() = Arc::new(facts);
    }

    fn locked(&self) -> MutexGuard<'_, Arc<ToolFacts>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the chosen connection until the call is cancelled. After a timeout
    /// the server is probed; if the caller gave up earlier it is watched, because callers' limits may be shorter than
    /// ours.
    ///
    /// # Errors
    /// Those of `work`; there is no connection; the call was cancelled.
    pub(crate) async fn run_on_connection<T, W>(
        &self,
        context: &ToolContext,
        choice: ConnectionChoice,
        work: impl FnOnce(Arc<Connection>) -> W,
    ) -> Result<T, ToolError>
    where
        W: Future<Output = Result<T, ToolError>>,
    {
        let name = &self.options.name;
        let failed = |reason: String| transport(name, &reason).retryable();
        let connection = async {
            match choice {
                ConnectionChoice::OfSession(ask_style) => {
                    let of_session = context.client.session_ask_style();
                    self.pool.connection(&context.session.id, ask_style, of_session).await
                }
                ConnectionChoice::Shared => {
                    self.pool.shared.connection(WaitPolicy::FailFast).await.map(ConnectionLease::from)
                }
            }
        };
        let mut cancelled = std::pin::pin!(context.cancel.cancelled());
        // Held to the end, so that the connection does not count as idle.
        let lease = tokio::select! {
            biased;
            cause = &mut cancelled => return Err(ToolError::canceled(cause)),
            lease = connection => lease.map_err(failed)?,
        };
        let connection = &lease.connection;
        let cause = {
            let work = std::pin::pin!(work(Arc::clone(connection)));
            tokio::select! {
                biased;
                cause = cancelled => cause,
                result = work => return result,
            }
        };
        // The call is cancelled at the server before the server is probed.
        match cause {
            CancelCause::Deadline => connection.probe(),
            CancelCause::Shutdown => {}
            CancelCause::User | CancelCause::CallerGone | CancelCause::Sibling | CancelCause::RunLimit => {
                connection.watch();
            }
        }
        Err(ToolError::canceled(cause))
    }
}

/// Announcements of changes, many in a short time passed on as one.
#[derive(Default)]
pub(crate) struct ChangeAnnouncer {
    notify: Mutex<Option<ChangeNotifier>>,
    collecting: AtomicBool,
}

impl ChangeAnnouncer {
    /// Passes announcements on to `notify` from here on.
    pub(crate) fn listen(&self, notify: ChangeNotifier) {
        *self.notify.lock().unwrap_or_else(PoisonError::into_inner) = Some(notify);
    }

    /// Notes a change. Must be called inside a runtime.
    pub(crate) fn announce(self: &Arc<Self>) {
        if self.collecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let changes = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(DEBOUNCE).await;
            // Reset before the notifier runs, so that later announcements count.
            changes.collecting.store(false, Ordering::Release);
            let notify = changes.notify.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(notify) = notify {
                notify();
            }
        });
    }
}

/// Repeats failed lists, with growing pauses.
pub(crate) struct ListRetry {
    changes: Arc<ChangeAnnouncer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Failed lists in a row.
    failures: u32,
    /// The one that waits for its pause to end.
    pending: Option<AbortHandle>,
    closed: bool,
}

impl State {
    fn forget_pending(&mut self) {
        if let Some(pending) = self.pending.take() {
            pending.abort();
        }
    }
}

impl ListRetry {
    /// Announces to `changes` that a list is due.
    pub(crate) fn new(changes: Arc<ChangeAnnouncer>) -> Self {
        Self { changes, state: Mutex::default() }
    }

    /// A list begins on `connection`.
    pub(crate) fn attempt(&self, connection: Arc<Connection>) -> ListAttempt<'_> {
        ListAttempt { relist: self, connection, was_answered: false, has_succeeded: false }
    }

    /// Schedules a refresh after a list's lifetime; a list that is stale at once is not refreshed
    /// without need.
    pub(crate) fn schedule_after(&self, ttl: Option<Duration>) {
        if let Some(ttl) = ttl.filter(|ttl| !ttl.is_zero()) {
            self.announce_after(ttl.clamp(TTL_BOUNDS.0, TTL_BOUNDS.1));
        }
    }

    /// Stops announcements.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.forget_pending();
    }

    fn succeeded(&self) {
        let mut state = self.state();
        state.failures = 0;
        state.forget_pending();
    }

    fn failed(&self) {
        let pause = {
            let mut state = self.state();
            state.failures = state.failures.saturating_add(1);
            BACKOFF.pause(state.failures)
        };
        self.announce_after(pause);
    }

    fn announce_after(&self, pause: Duration) {
        // Outside of a runtime everything is over.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.forget_pending();
        let changes = Arc::clone(&self.changes);
        let pending = runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            changes.announce();
        });
        state.pending = Some(pending.abort_handle());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A list in progress. If dropped before it succeeded, it is repeated; a server that was silent until then
/// is probed, and reconnected if it does not answer that either.
pub(crate) struct ListAttempt<'a> {
    relist: &'a ListRetry,
    /// The connection.
    pub(crate) connection: Arc<Connection>,
    /// Whether the server sent anything for it, or cannot any more.
    pub(crate) was_answered: bool,
    has_succeeded: bool,
}

impl ListAttempt<'_> {
    /// Marks the list as successful.
    pub(crate) fn succeeded(mut self) {
        self.has_succeeded = true;
        self.relist.succeeded();
    }
}

impl Drop for ListAttempt<'_> {
    fn drop(&mut self) {
        if self.has_succeeded {
            return;
        }
        if !self.was_answered {
            self.connection.probe();
        }
        self.relist.failed();
    }
}

/// A server's announced capabilities.
type AnnouncedObject = Arc<Map<String, Value>>;

/// Capabilities shown to others: one object per announcement, because connections are told apart by it.
#[derive(Default)]
pub(crate) struct Announcement(Mutex<Option<(AnnouncedObject, AnnouncedObject)>>);

impl Announcement {
    /// Returns them without resource subscriptions, for a server with a connection per session: an update belongs to
    /// one session, whose connection may end while other sessions are subscribed to the same resource.
    pub(crate) fn without_subscriptions(&self, capabilities: AnnouncedObject) -> AnnouncedObject {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, announced)) = last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &capabilities)) {
            return Arc::clone(announced);
        }
        let mut announced = Map::clone(&capabilities);
        if let Some(resources) = announced.get_mut("resources").and_then(Value::as_object_mut) {
            resources.shift_remove("subscribe");
        }
        let announced = Arc::new(announced);
        *last = Some((capabilities, Arc::clone(&announced)));
        announced
    }
}
