//! Maintains one connection: connects on first use, and reconnects after its end with growing pauses.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolwright_core::backoff::Backoff;
use toolwright_core::duration;

use super::Connection;
use super::connect::Connector;
use super::inbox::LAST_CALLS;
use super::subscription::LogLevel;
use crate::config::McpTransport;

/// Pauses before reconnecting.
pub(crate) const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(60) };
/// A connection that held this long begins the pauses anew.
const STABLE: Duration = Duration::from_secs(30);

/// What a caller does while the connection is being restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// Waits for it, and will list as soon as it is there.
    WaitToList,
    /// Waits for it.
    Wait,
    /// Fails at once: for calls. Only the first connection is waited for.
    FailFast,
}

#[derive(Clone)]
enum State {
    /// Never used, or its session has expired.
    Idle,
    /// A task is connecting; `again` after an earlier connection has ended.
    Connecting { again: bool },
    /// Connected.
    Up(Arc<Connection>),
    /// Pausing.
    Down { reason: Arc<str>, until: Instant },
    /// Shut down.
    Closed,
}

/// The connection of one provider, and the tasks that maintain it.
pub(crate) struct ManagedConnection {
    connector: Connector,
    state: watch::Sender<State>,
    memory: Mutex<ConnectionHistory>,
    /// Callers that will list as soon as there is a connection.
    listers: AtomicUsize,
    /// Called when tools or health may have changed.
    changed: Arc<dyn Fn() + Send + Sync>,
    closing: CancellationToken,
}

#[derive(Default)]
struct ConnectionHistory {
    failures: u32,
    /// Start time of the current connection.
    since: Option<Instant>,
    /// The expired process that still has calls.
    retired: Weak<Connection>,
}

impl ConnectionHistory {
    /// Whether this is the first connection loss for a while.
    fn is_first_end(&mut self) -> bool {
        if self.since.take().is_some_and(|since| since.elapsed() >= STABLE) {
            self.failures = 0;
        }
        self.failures == 0
    }
}

impl ManagedConnection {
    /// A connection that is not made yet.
    pub(crate) fn new(connector: Connector, changed: Arc<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            connector,
            state: watch::Sender::new(State::Idle),
            memory: Mutex::default(),
            listers: AtomicUsize::new(0),
            changed,
            closing: CancellationToken::new(),
        })
    }

    /// Returns the connection, made now if there is none.
    ///
    /// # Errors
    /// Why there is none; nothing was sent then.
    pub(crate) async fn connection(self: &Arc<Self>, wait: WaitPolicy) -> Result<Arc<Connection>, String> {
        if let Some(connection) = self.current()
            && !connection.is_expired()
        {
            return Ok(connection);
        }
        Box::pin(self.wait_connected(wait)).await
    }

    /// Waits for the connection.
    async fn wait_connected(self: &Arc<Self>, wait: WaitPolicy) -> Result<Arc<Connection>, String> {
        let _lister = (wait == WaitPolicy::WaitToList).then(|| PendingLister::new(self));
        let mut state = self.state.subscribe();
        loop {
            let current_state = state.borrow_and_update().clone();
            match current_state {
                State::Up(connection) if !connection.is_closed() => {
                    if !connection.is_expired() {
                        return Ok(connection);
                    }
                    self.renew(&connection);
                }
                State::Idle => self.start(false),
                State::Up(_) | State::Connecting { again: true } if wait == WaitPolicy::FailFast => {
                    return Err("the server is being restarted; try again in a moment".to_owned());
                }
                State::Down { reason, until } if wait == WaitPolicy::FailFast => {
                    let pause = until.saturating_duration_since(Instant::now()).as_secs() + 1;
                    return Err(format!("{reason} (tried again in {})", duration::format(Duration::from_secs(pause))));
                }
                // There may be nobody to try again.
                State::Down { reason, .. } => return Err(reason.to_string()),
                State::Closed => return Err("the server was shut down".to_owned()),
                // Its end is being noted, or a task is connecting: the state changes soon.
                State::Up(_) | State::Connecting { .. } => {
                    if state.changed().await.is_err() {
                        return Err("the server was shut down".to_owned());
                    }
                }
            }
        }
    }

    /// Returns the current connection, if any.
    pub(crate) fn current(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            State::Up(connection) if !connection.is_closed() => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// Whether it was never used.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(&*self.state.borrow(), State::Idle)
    }

    /// The log level of its connections.
    pub(crate) fn log_level(&self) -> &LogLevel {
        &self.connector.log_level
    }

    /// Returns why there is no connection, during a pause.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        match &*self.state.borrow() {
            State::Down { reason, .. } => Some(Arc::clone(reason)),
            _ => None,
        }
    }

    /// Closes the connection for good, without waiting.
    pub(crate) fn close_permanently(&self) {
        for connection in self.closed() {
            connection.close_now();
        }
    }

    /// Closes the connection for good and waits for its end, two seconds at most.
    pub(crate) async fn shut_down(&self) {
        let closed = self.closed();
        futures_util::future::join_all(closed.iter().map(|connection| connection.close("it was shut down"))).await;
    }

    /// Closes it for good. Returns the current connection and the earlier expired one.
    fn closed(&self) -> Vec<Arc<Connection>> {
        self.closing.cancel();
        let current = match self.state.send_replace(State::Closed) {
            State::Up(connection) => Some(connection),
            _ => None,
        };
        current.into_iter().chain(self.memory().retired.upgrade()).collect()
    }

    /// Makes the next caller perform a new handshake. Calls on the expired connection continue: behind one address
    /// other servers may still know the session, and a process with closed input may still answer. The expired
    /// connection ends with its last call, at the latest after [`LAST_CALLS`]. Only one such process exists at a time,
    /// and its expiry counts as an end for the back-off.
    fn renew(self: &Arc<Self>, expired: &Arc<Connection>) {
        let is_process = matches!(self.connector.options.config.transport, McpTransport::Stdio { .. });
        let mut begins_pause = false;
        let replaced = self.state.send_if_modified(|state| {
            let same = matches!(state, State::Up(connection) if Arc::ptr_eq(connection, expired));
            if same {
                if is_process {
                    let mut memory = self.memory();
                    begins_pause = !memory.is_first_end();
                    memory.failures = memory.failures.max(1);
                }
                *state = if begins_pause { State::Connecting { again: true } } else { State::Idle };
            }
            same
        });
        if replaced {
            if begins_pause {
                self.pause("the server closed its standard input".into());
            }
            if is_process {
                let former = std::mem::replace(&mut self.memory().retired, Arc::downgrade(expired));
                if let Some(former) = former.upgrade() {
                    tokio::spawn(async move { former.close("another process has taken its place").await });
                }
                if self.closing.is_cancelled() {
                    expired.close_now();
                }
            }
            tracing::info!(
                server = &*self.connector.options.name,
                "a new handshake is made: the former connection takes no more calls"
            );
            expired.retire();
            let (ended, expired) = (expired.ending(), Arc::downgrade(expired));
            tokio::spawn(async move {
                if tokio::time::timeout(LAST_CALLS, ended).await.is_err()
                    && let Some(expired) = expired.upgrade()
                {
                    expired.close("it takes no more calls").await;
                }
            });
        }
    }

    /// Starts connecting unless another task did.
    fn start(self: &Arc<Self>, again: bool) {
        let started = self.state.send_if_modified(|state| {
            let may = matches!(state, State::Idle | State::Down { .. });
            if may {
                *state = State::Connecting { again };
            }
            may
        });
        if started {
            let managed = Arc::clone(self);
            tokio::spawn(async move { managed.connect().await });
        }
    }

    async fn connect(self: Arc<Self>) {
        let connected = tokio::select! {
            connected = self.connector.connect() => connected,
            // Dropping the attempt ends a started process.
            () = self.closing.cancelled() => return,
        };
        match connected {
            Ok(connection) => self.connected(connection).await,
            Err(reason) => self.pause(reason.into()),
        }
    }

    async fn connected(self: &Arc<Self>, connection: Arc<Connection>) {
        let is_accepted = self.state.send_if_modified(|state| {
            let is_connecting = matches!(state, State::Connecting { .. });
            if is_connecting {
                self.memory().since = Some(Instant::now());
                *state = State::Up(Arc::clone(&connection));
            }
            is_connecting
        });
        if !is_accepted {
            connection.close("it was shut down").await;
            return;
        }
        let managed = Arc::downgrade(self);
        // Only its users hold an expired connection, so it ends with the last of them.
        let (ended, connection) = (connection.ending(), Arc::downgrade(&connection));
        tokio::spawn(async move {
            let reason = ended.await;
            if let (Some(managed), Some(connection)) = (managed.upgrade(), connection.upgrade()) {
                managed.ended(&connection, reason);
            }
        });
        if self.listers.load(Ordering::Acquire) == 0 {
            (self.changed)();
        }
    }

    /// Notes the end of the connection and begins the next.
    fn ended(self: &Arc<Self>, connection: &Arc<Connection>, reason: Arc<str>) {
        tracing::warn!(server = &*self.connector.options.name, "{reason}");
        let mut first = false;
        let was_current = self.state.send_if_modified(|state| {
            let same = matches!(state, State::Up(current) if Arc::ptr_eq(current, connection));
            if same {
                first = self.memory().is_first_end();
                *state = State::Connecting { again: true };
            }
            same
        });
        if !was_current {
            return;
        }
        if first {
            self.memory().failures = 1;
            let managed = Arc::clone(self);
            tokio::spawn(async move { managed.connect().await });
        } else {
            self.pause(reason);
        }
        (self.changed)();
    }

    /// Waits before the next attempt.
    fn pause(self: &Arc<Self>, reason: Arc<str>) {
        let pause = {
            let mut memory = self.memory();
            // Only the attempt right after an end has no pause; either it was made, or there was no end.
            memory.failures = memory.failures.max(1).saturating_add(1);
            BACKOFF.pause(memory.failures - 1)
        };
        let paused = self.state.send_if_modified(|state| {
            let is_in_use = !matches!(state, State::Closed | State::Idle);
            if is_in_use {
                *state = State::Down { reason, until: Instant::now() + pause };
            }
            is_in_use
        });
        if !paused {
            return;
        }
        tracing::info!(server = &*self.connector.options.name, "tried again in {}", duration::format(pause));
        let managed = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            if let Some(managed) = managed.upgrade() {
                managed.start(true);
            }
        });
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, ConnectionHistory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a caller that will list, so that it gets no change notice.
struct PendingLister<'a>(&'a ManagedConnection);

impl<'a> PendingLister<'a> {
    fn new(managed: &'a ManagedConnection) -> Self {
        managed.listers.fetch_add(1, Ordering::AcqRel);
        Self(managed)
    }
}

impl Drop for PendingLister<'_> {
    fn drop(&mut self) {
        self.0.listers.fetch_sub(1, Ordering::AcqRel);
    }
}
