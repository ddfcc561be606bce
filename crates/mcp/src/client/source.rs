//! One server: its connections, its known tools, and the times at which its lists are fetched again (after an announced
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

use super::config::McpServerOptions;
use super::connection::Connection;
use super::connection::inbox::listener::Listener;
use super::connection::managed::{WaitPolicy, back_off};
use super::connection::pool::{ConnectionPool, Lent};
use super::connection::subscription::Followed;
use super::exchange::transport;
use super::listing::Facts;

/// How long announcements of a changed list are collected before one is passed on.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The least and the most that a server may say a list may be kept for.
const TTL_BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));

/// One server.
pub(crate) struct Source {
    /// What is configured.
    pub(crate) spec: Arc<McpServerOptions>,
    /// Its connections.
    pub(crate) pool: ConnectionPool,
    /// Takes what it says by itself.
    pub(crate) listener: Arc<Listener>,
    /// Its resources that are followed.
    pub(crate) followed: Arc<Followed>,
    facts: Mutex<Arc<Facts>>,
}

/// Which of a server's connections a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionChoice {
    /// That of the call's session, where each has its own, or else one on which the server asks in this style.
    OfSession(AskStyle),
    /// The one that outlives sessions.
    Shared,
}

impl Source {
    /// A server that is not connected yet.
    pub(crate) fn new(
        spec: Arc<McpServerOptions>,
        pool: ConnectionPool,
        listener: Arc<Listener>,
        followed: Arc<Followed>,
    ) -> Arc<Self> {
        Arc::new(Self { spec, pool, listener, followed, facts: Mutex::default() })
    }

    /// The server as calls are told of it.
    pub(crate) fn peer(&self) -> McpPeer {
        let version = self.pool.shared.current().map(|connection| Cow::Borrowed(connection.server().version));
        McpPeer { server: Arc::clone(&self.listener.server), protocol_version: version, session: None }
    }

    /// What the last list told of its tools beyond their definitions.
    pub(crate) fn facts(&self) -> Arc<Facts> {
        Arc::clone(&self.locked())
    }

    /// Keeps what a list told.
    pub(crate) fn keep(&self, facts: Facts) {
        *self.locked() = Arc::new(facts);
    }

    fn locked(&self) -> MutexGuard<'_, Arc<Facts>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` on the connection that goes this way, until the call is cancelled. One that ran into its time limit
    /// has the server probed; one that was given up before has it watched, as callers' limits may be shorter than ours.
    ///
    /// # Errors
    /// Those of `work`; there is no connection; the call was cancelled.
    pub(crate) async fn during<T, W>(
        &self,
        context: &ToolContext,
        choice: ConnectionChoice,
        work: impl FnOnce(Arc<Connection>) -> W,
    ) -> Result<T, ToolError>
    where
        W: Future<Output = Result<T, ToolError>>,
    {
        let name = &self.spec.name;
        let failed = |reason: String| transport(name, &reason).retryable();
        let connection = async {
            match choice {
                ConnectionChoice::OfSession(ask_style) => {
                    let of_session = context.client.session_ask_style();
                    self.pool.connection(&context.session.id, ask_style, of_session).await
                }
                ConnectionChoice::Shared => self.pool.shared.connection(WaitPolicy::FailFast).await.map(Lent::from),
            }
        };
        let mut cancelled = std::pin::pin!(context.cancel.cancelled());
        // Held to the end: what the call works with is not ended for being unused.
        let lent = tokio::select! {
            biased;
            cause = &mut cancelled => return Err(ToolError::canceled(cause)),
            lent = connection => lent.map_err(failed)?,
        };
        let connection = &lent.connection;
        let cause = {
            let work = std::pin::pin!(work(Arc::clone(connection)));
            tokio::select! {
                biased;
                cause = cancelled => cause,
                result = work => return result,
            }
        };
        // The call has let go of the server, which is told so before it is probed.
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
pub(crate) struct Changes {
    notify: Mutex<Option<ChangeNotifier>>,
    collecting: AtomicBool,
}

impl Changes {
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
            // Before the notifier runs: what is announced from here on counts again.
            changes.collecting.store(false, Ordering::Release);
            let notify = changes.notify.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(notify) = notify {
                notify();
            }
        });
    }
}

/// Has failed lists asked for again, with growing pauses.
pub(crate) struct Relist {
    changes: Arc<Changes>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Failed lists in a row.
    failures: usize,
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

impl Relist {
    /// Announces to `changes` that a list is due.
    pub(crate) fn new(changes: Arc<Changes>) -> Self {
        Self { changes, state: Mutex::default() }
    }

    /// A list begins on `connection`.
    pub(crate) fn attempt(&self, connection: Arc<Connection>) -> Attempt<'_> {
        Attempt { relist: self, connection, was_answered: false, has_succeeded: false }
    }

    /// A list that may be kept for so long is due again after that; one that is said to be old at once is not asked
    /// for without need.
    pub(crate) fn due_after(&self, ttl: Option<Duration>) {
        if let Some(ttl) = ttl.filter(|ttl| !ttl.is_zero()) {
            self.announce_after(ttl.clamp(TTL_BOUNDS.0, TTL_BOUNDS.1));
        }
    }

    /// Nothing is announced from here on.
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
            back_off(state.failures)
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

/// A list under way. Dropped before it succeeded, it is asked for again; a server that was silent until then
/// is probed, and its connection made again if it does not answer that either.
pub(crate) struct Attempt<'a> {
    relist: &'a Relist,
    /// What it is asked on.
    pub(crate) connection: Arc<Connection>,
    /// Whether the server said anything to it, or cannot any more.
    pub(crate) was_answered: bool,
    has_succeeded: bool,
}

impl Attempt<'_> {
    /// The list need not be asked for again.
    pub(crate) fn succeeded(mut self) {
        self.has_succeeded = true;
        self.relist.succeeded();
    }
}

impl Drop for Attempt<'_> {
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

/// What a server announced.
type Said = Arc<Map<String, Value>>;

/// What is told of a server's announcement: one object for each, since connections are known by it.
#[derive(Default)]
pub(crate) struct Announced(Mutex<Option<(Said, Said)>>);

impl Announced {
    /// It without subscriptions to resources, for a server of which each session has a connection of its own: what one
    /// of them tells is of that session, and may end while others follow the same.
    pub(crate) fn without_subscriptions(&self, said: Said) -> Said {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, shown)) = last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &said)) {
            return Arc::clone(shown);
        }
        let mut shown = Map::clone(&said);
        if let Some(resources) = shown.get_mut("resources").and_then(Value::as_object_mut) {
            resources.shift_remove("subscribe");
        }
        let shown = Arc::new(shown);
        *last = Some((said, Arc::clone(&shown)));
        shown
    }
}
