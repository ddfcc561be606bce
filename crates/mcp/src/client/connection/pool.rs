//! The connections to one server: one for all sessions, or (`shared: false`) one per session. A server of both eras
//! gets a second connection, in the older era, once a call's client can only be asked that way: the server may not be
//! able to express a question during a call in the newer era.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use toolwright_core::backoff::Backoff;
use toolwright_core::client::AskStyle;
use toolwright_core::session::SessionId;

use super::Connection;
use super::connect::{Connector, EraPreference};
use super::handshake::ProbeResult;
use super::managed::{ManagedConnection, WaitPolicy};
use crate::config::McpTransport;
use crate::protocol::revision::Era;

/// Pauses before a failed connection of the older era is retried: a call waits for every attempt, for up to
/// `connect_timeout`. An unsupported era is retried after the longest, because another server may have replaced this one.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(3600) };

/// The connections to one server.
pub(crate) struct ConnectionPool {
    /// The connection of all sessions; if each has its own, the one that lists.
    pub(crate) shared: Arc<ManagedConnection>,
    older: LegacyConnector,
    own: Option<SessionConnector>,
    closed: AtomicBool,
}

/// Makes the connection of the older era, if the shared one is of the newer.
struct LegacyConnector {
    connector: Connector,
    tried: Mutex<LegacyAttempts>,
}

/// The connection of the older generation, if it was tried.
#[derive(Default)]
struct LegacyAttempts {
    managed: Option<Arc<ManagedConnection>>,
    /// Whether it was ever connected.
    was_up: bool,
    /// Number of consecutive failures.
    failures: u32,
    pause: Option<LegacyPause>,
}

/// The time without further attempts.
struct LegacyPause {
    until: Instant,
    /// The program of the failed attempt. Another version of it is tried at once.
    with: Option<ProbeResult>,
}

impl LegacyPause {
    fn holds(&self, now: Instant, program: Option<&ProbeResult>) -> bool {
        now < self.until && self.with.as_ref() == program
    }
}

/// How a failed attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SecondFailure {
    /// The server does not speak the older generation.
    NotSpoken,
    /// It is unknown whether the server supports the era.
    Unknown,
}

/// Makes a session's own connection.
struct SessionConnector {
    connector: Connector,
    sessions: Arc<Sessions>,
}

/// A connection for as long as this is held: a session's own one is not ended for being unused meanwhile.
pub(crate) struct ConnectionLease {
    /// The connection.
    pub(crate) connection: Arc<Connection>,
    #[expect(dead_code, reason = "it is in use until this is dropped")]
    in_use: Option<InUseGuard>,
}

impl From<Arc<Connection>> for ConnectionLease {
    fn from(connection: Arc<Connection>) -> Self {
        Self { connection, in_use: None }
    }
}

impl ConnectionPool {
    /// A pool with connections from `connector`; `changed` is called when the listing connection has changed.
    pub(crate) fn new(connector: Connector, changed: Arc<dyn Fn() + Send + Sync>) -> Self {
        // Only the listing connection has subscriptions.
        let apart = Connector { followed: Arc::default(), ..connector.clone() };
        let own = (!connector.options.config.shared)
            .then(|| SessionConnector { connector: apart.clone(), sessions: Arc::default() });
        let older = LegacyConnector {
            connector: Connector { wanted_era: Some(EraPreference::Only(Era::Legacy)), ..apart },
            tried: Mutex::default(),
        };
        Self { shared: ManagedConnection::new(connector, changed), older, own, closed: AtomicBool::new(false) }
    }

    /// Returns the connection for a call of this session, whose client is asked in this style. Hold it until the call
    /// has ended. `of_session` is the style for all calls of the session: a session's own connection serves
    /// all of them, whichever comes first.
    ///
    /// # Errors
    /// Why there is none; nothing was sent then.
    pub(crate) async fn connection(
        &self,
        session: &SessionId,
        ask_style: AskStyle,
        of_session: AskStyle,
    ) -> Result<ConnectionLease, String> {
        let Some(own) = &self.own else {
            // Once it was so slow to say that it speaks both that it is spoken to in the older way by all.
            let is_older = self.shared.current().is_some_and(|connection| connection.server().era == Era::Legacy);
            let older = if ask_style == AskStyle::Requests && !is_older {
                Box::pin(self.older.connection(&self.closed)).await
            } else {
                None
            };
            let connection = match older {
                Some(connection) => connection,
                None => self.shared.connection(WaitPolicy::FailFast).await?,
            };
            return Ok(connection.into());
        };
        let in_use = self.of(own, session, of_session)?;
        let connection = in_use.managed.connection(WaitPolicy::FailFast).await?;
        Ok(ConnectionLease { connection, in_use: Some(in_use) })
    }

    /// Ends this session's own connection with its last call.
    pub(crate) fn session_ended(&self, session: &SessionId) {
        if let Some(own) = &self.own {
            own.sessions.ended(session);
        }
    }

    /// Whether no connection runs that this session's requests would use.
    pub(crate) fn is_idle(&self, session: &SessionId) -> bool {
        match &self.own {
            Some(own) => own.sessions.find(session).is_none_or(|managed| managed.is_idle()),
            None => {
                self.shared.is_idle()
                    && self.older.legacy_attempts().managed.as_ref().is_none_or(|managed| managed.is_idle())
            }
        }
    }

    /// Whether no connection runs at all; a running one may have announced changed lists.
    pub(crate) fn are_idle(&self) -> bool {
        self.shared.is_idle()
            && self.older.legacy_attempts().managed.as_ref().is_none_or(|managed| managed.is_idle())
            && self.own.as_ref().is_none_or(|own| own.sessions.are_idle())
    }

    /// Stores the log level of this session's connection (parameters of `logging/setLevel`) for its next connection.
    /// Returns whether it is idle; otherwise the level must be sent.
    pub(crate) fn keep_level(&self, session: &SessionId, of_session: AskStyle, params: &Map<String, Value>) -> bool {
        if !self.is_idle(session) {
            return false;
        }
        let managed = match self.own.as_ref().map(|own| self.of(own, session, of_session)) {
            Some(Ok(in_use)) => Arc::clone(&in_use.managed),
            Some(Err(_)) => return false,
            None => Arc::clone(&self.shared),
        };
        managed.log_level().keep(params.clone()).taken();
        // A concurrent connect may have read the level before.
        if let Some(connection) = managed.current() {
            connection.send_level();
        }
        true
    }

    /// The connection of this session's calls. A session has one client, and so one style.
    fn of(&self, own: &SessionConnector, session: &SessionId, ask_style: AskStyle) -> Result<InUseGuard, String> {
        let in_use = own.sessions.of(session, || {
            // Only the listing connection reports tools.
            let connector = match ask_style {
                AskStyle::Either => own.connector.clone(),
                AskStyle::Requests => {
                    Connector { wanted_era: Some(EraPreference::Prefer(Era::Legacy)), ..own.connector.clone() }
                }
            };
            // Each session sets its own log level, and only it gets the messages.
            let listener = Arc::new(connector.listener.of_session(session.clone()));
            ManagedConnection::new(Connector { log_level: Arc::default(), listener, ..connector }, Arc::new(|| {}))
        })?;
        if self.closed.load(Ordering::Acquire) {
            // The connection reports it.
            in_use.managed.close_permanently();
        }
        Ok(in_use)
    }

    /// Returns the current connection of the older generation besides the shared one, if any.
    pub(crate) fn legacy_connection(&self) -> Option<Arc<Connection>> {
        self.older.legacy_attempts().managed.as_ref().and_then(|managed| managed.current())
    }

    /// Closes all for good, without waiting.
    pub(crate) fn close_permanently(&self) {
        for managed in self.all() {
            managed.close_permanently();
        }
    }

    /// Closes all for good and waits for their ends, two seconds at most.
    pub(crate) async fn shut_down(&self) {
        futures_util::future::join_all(self.all().iter().map(|managed| managed.shut_down())).await;
    }

    /// Closes the pool and returns all connections.
    fn all(&self) -> Vec<Arc<ManagedConnection>> {
        let mut all = vec![Arc::clone(&self.shared)];
        self.closed.store(true, Ordering::Release);
        all.extend(self.older.legacy_attempts().managed.clone());
        if let Some(own) = &self.own {
            all.extend(own.sessions.drain());
        }
        all
    }
}

impl LegacyConnector {
    /// Returns the connection of the older generation, if the server supports both.
    async fn connection(&self, closed: &AtomicBool) -> Option<Arc<Connection>> {
        if self.connector.version_probe.known().await != Some(Era::Modern) {
            return None;
        }
        let managed = self.managed()?;
        if closed.load(Ordering::Acquire) {
            managed.close_permanently();
        }
        let connection = managed.connection(WaitPolicy::FailFast).await;
        match &connection {
            Ok(connection) if connection.server().era == Era::Legacy => self.note_connected(),
            // It was tried, and the server speaks only the newer one.
            Ok(_) => {
                self.drop_failed(&managed, SecondFailure::NotSpoken);
                return None;
            }
            Err(_) if managed.failure().is_some() => self.drop_failed(&managed, SecondFailure::Unknown),
            // It is reconnecting, or was dropped.
            Err(_) => {}
        }
        connection.ok()
    }

    /// Returns the current connection, or a new one; `None` during the pause after a failure.
    fn managed(&self) -> Option<Arc<ManagedConnection>> {
        let program = self.connector.version_probe.found();
        let mut tried = self.legacy_attempts();
        let is_paused = tried.pause.as_ref().is_some_and(|pause| pause.holds(Instant::now(), program.as_ref()));
        if tried.managed.is_none() && is_paused {
            return None;
        }
        let managed =
            tried.managed.get_or_insert_with(|| ManagedConnection::new(self.connector.clone(), Arc::new(|| {})));
        Some(Arc::clone(managed))
    }

    fn note_connected(&self) {
        let mut tried = self.legacy_attempts();
        (tried.was_up, tried.failures) = (true, 0);
    }

    /// Drops a failed connection: it would retry for ever, though no call may need it. Over
    /// HTTP a failure may be temporary; a process that ends or hangs is not restarted just to learn its era.
    fn drop_failed(&self, managed: &Arc<ManagedConnection>, failure: SecondFailure) {
        managed.close_permanently();
        let is_process = matches!(self.connector.options.config.transport, McpTransport::Stdio { .. });
        let with = self.connector.version_probe.found();
        let mut tried = self.legacy_attempts();
        if tried.managed.as_ref().is_some_and(|current| Arc::ptr_eq(current, managed)) {
            tried.managed = None;
            tried.failures = tried.failures.saturating_add(1);
            let is_in_vain = failure == SecondFailure::NotSpoken || (is_process && !tried.was_up);
            let pause = if is_in_vain { BACKOFF.most } else { BACKOFF.pause(tried.failures) };
            tried.pause = Some(LegacyPause { until: Instant::now() + pause, with });
        }
    }

    fn legacy_attempts(&self) -> MutexGuard<'_, LegacyAttempts> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bound on the sessions that have a connection of their own at once.
const MAX_SESSIONS: usize = 64;
/// How long a session's own connection stays without calls.
const IDLE: Duration = Duration::from_secs(600);
/// Interval of the check for that.
const SWEEP: Duration = Duration::from_secs(60);

/// The connections that sessions have of their own.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<SessionId, SessionConnection>>);

struct SessionConnection {
    managed: Arc<ManagedConnection>,
    usage: Arc<Usage>,
}

/// A session's own connection in use: until this is dropped, only its server can end it.
pub(crate) struct InUseGuard {
    /// Keeps the connection open.
    pub(crate) managed: Arc<ManagedConnection>,
    usage: Arc<Usage>,
}

impl Drop for InUseGuard {
    fn drop(&mut self) {
        let mut state = self.usage.lock();
        state.running = state.running.saturating_sub(1);
        state.last_used = Some(Instant::now());
    }
}

/// Counts the uses of a connection.
#[derive(Default)]
struct Usage(Mutex<UsageState>);

#[derive(Default, Clone, Copy)]
struct UsageState {
    /// Calls under way.
    running: usize,
    /// End of the last call.
    last_used: Option<Instant>,
    /// Whether the session has ended.
    has_ended: bool,
}

impl UsageState {
    /// Time since it is unused; `None` while in use.
    fn idle_since(self) -> Option<Instant> {
        self.last_used.filter(|_| self.running == 0)
    }

    /// Whether it can be ended: it is unused, and its session has ended or was idle for long.
    fn is_over(self, now: Instant) -> bool {
        let is_long_ago = |since: Instant| now.saturating_duration_since(since) >= IDLE;
        self.idle_since().is_some_and(|since| self.has_ended || is_long_ago(since))
    }
}

impl Usage {
    fn lock(&self) -> MutexGuard<'_, UsageState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionConnection {
    fn used(&self) -> UsageState {
        *self.usage.lock()
    }

    /// Adds a use.
    fn in_use(&self) -> InUseGuard {
        self.usage.lock().running += 1;
        InUseGuard { managed: Arc::clone(&self.managed), usage: Arc::clone(&self.usage) }
    }
}

impl Sessions {
    /// Returns the session's connection, made by `new` if there is none. At the limit, the connection unused for the
    /// longest time is ended. Must be called inside a runtime.
    ///
    /// # Errors
    /// All connections are in use.
    pub(crate) fn of(
        self: &Arc<Self>,
        session: &SessionId,
        new: impl FnOnce() -> Arc<ManagedConnection>,
    ) -> Result<InUseGuard, String> {
        let mut sessions = self.lock();
        if let Some(entry) = sessions.get(session) {
            return Ok(entry.in_use());
        }
        if sessions.len() >= MAX_SESSIONS {
            let idle = sessions.iter().filter_map(|(session, entry)| Some((session, entry.used().idle_since()?)));
            let Some(longest) = idle.min_by_key(|(_, since)| *since).map(|(session, _)| session.clone()) else {
                return Err(format!("{MAX_SESSIONS} sessions have a connection of their own already, all in use"));
            };
            if let Some(entry) = sessions.remove(&longest) {
                entry.managed.close_permanently();
            }
        }
        if sessions.is_empty() {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        let entry = SessionConnection { managed: new(), usage: Arc::default() };
        let in_use = entry.in_use();
        sessions.insert(session.clone(), entry);
        Ok(in_use)
    }

    /// The session's connection, if it has one.
    pub(crate) fn find(&self, session: &SessionId) -> Option<Arc<ManagedConnection>> {
        self.lock().get(session).map(|entry| Arc::clone(&entry.managed))
    }

    /// Ends the session's connection, if any: now, or at the next check after its last call.
    pub(crate) fn ended(&self, session: &SessionId) {
        if let Some(entry) = self.lock().get(session) {
            entry.usage.lock().has_ended = true;
        }
        self.end_idle(Instant::now());
    }

    /// Whether no connection was used yet.
    pub(crate) fn are_idle(&self) -> bool {
        self.lock().values().all(|entry| entry.managed.is_idle())
    }

    /// Removes all.
    pub(crate) fn drain(&self) -> Vec<Arc<ManagedConnection>> {
        self.lock().drain().map(|(_, entry)| entry.managed).collect()
    }

    /// Ends connections that were unused for long enough. Returns whether none is left.
    fn end_idle(&self, now: Instant) -> bool {
        let mut sessions = self.lock();
        sessions.retain(|_, entry| {
            let is_over = entry.used().is_over(now);
            if is_over {
                entry.managed.close_permanently();
            }
            !is_over
        });
        sessions.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, SessionConnection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends idle connections of sessions, until none is left.
async fn sweep(sessions: Weak<Sessions>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(sessions) = sessions.upgrade() else { return };
        if sessions.end_idle(Instant::now()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn legacy_attempts_resume_after_an_hour_or_upgrade() {
        let program = |version: &str| -> Option<ProbeResult> {
            let found: Value = json!({"is_modern": true, "program": {"name": "s", "version": version}});
            serde_json::from_value(found).ok()
        };
        let now = Instant::now();
        let pause = LegacyPause { until: now + BACKOFF.most, with: program("1") };
        let second = Duration::from_secs(1);
        for (later, with, expect) in [
            (Duration::ZERO, program("1"), true),
            (BACKOFF.most - second, program("1"), true),
            (BACKOFF.most, program("1"), false),
            (second, program("2"), false),
            (second, None, false),
        ] {
            assert_eq!(pause.holds(now + later, with.as_ref()), expect, "{later:?} {with:?}");
        }
    }
}

#[cfg(test)]
mod sessions_tests {
    use std::collections::BTreeMap;

    use toolwright_core::event::NoEvents;
    use toolwright_core::store::NoStore;

    use super::super::connect::Connector;
    use super::super::handshake::VersionProbe;
    use super::super::inbox::listener::{Listener, ServerRoots};
    use super::super::managed::WaitPolicy;
    use super::*;
    use crate::config::McpServerOptions;
    use crate::config::{AsTools, McpTransport};

    /// A connection that was not made yet.
    fn managed() -> Arc<ManagedConnection> {
        let transport = McpTransport::Http { url: "http://127.0.0.1:1/mcp".into(), headers: BTreeMap::new() };
        let connector = Connector {
            options: Arc::new(McpServerOptions::new("s", transport)),
            events: Arc::new(NoEvents),
            listener: Listener::new("s".into(), Arc::new(NoEvents), Arc::new(|| {}), AsTools::No),
            followed: Arc::default(),
            log_level: Arc::default(),
            folders: ServerRoots::new(Arc::default()),
            version_probe: VersionProbe::new(Arc::new(NoStore), "k".into()),
            wanted_era: None,
        };
        ManagedConnection::new(connector, Arc::new(|| {}))
    }

    fn id(number: usize) -> SessionId {
        SessionId::new(number.to_string())
    }

    fn there(sessions: &Sessions) -> Vec<usize> {
        let mut there: Vec<_> = sessions.lock().keys().map(|id| id.as_str().parse().expect("a number")).collect();
        there.sort_unstable();
        there
    }

    #[tokio::test]
    async fn connections_in_use_are_not_evicted() {
        let sessions = Arc::new(Sessions::default());
        let of = |number: usize| sessions.of(&id(number), managed);
        let long = of(0).expect("room");
        let mut others: Vec<_> = (1..MAX_SESSIONS).map(|number| of(number).expect("room")).collect();
        assert!(of(MAX_SESSIONS).is_err_and(|reason| reason.contains("all in use")));
        // Evicts by the end of the last call, not by its start.
        drop(others.remove(1));
        drop(others.remove(0));
        drop(of(2).expect("the same one again"));
        let newest = of(MAX_SESSIONS).expect("room");
        let expect: Vec<_> = (0..=MAX_SESSIONS).filter(|number| *number != 1).collect();
        assert_eq!(there(&sessions), expect);

        drop(others);
        assert!(!sessions.end_idle(Instant::now() + IDLE - Duration::from_secs(1)));
        assert_eq!(there(&sessions), expect, "the time counts from the end of the last call");
        let far = Instant::now() + 10 * IDLE;
        assert!(!sessions.end_idle(far));
        assert_eq!(there(&sessions), [0, MAX_SESSIONS], "calls under way keep theirs, however long they take");
        drop((long, newest));
        assert!(!sessions.end_idle(Instant::now()) && sessions.end_idle(far));
    }

    #[tokio::test]
    async fn ended_sessions_close_after_their_last_call() {
        let sessions = Arc::new(Sessions::default());
        let of = |number: usize| sessions.of(&id(number), managed).expect("room");
        let (idle, running) = (Arc::clone(&of(1).managed), of(2));
        drop(of(3));
        for number in [1, 2, 4] {
            sessions.ended(&id(number));
        }
        assert_eq!(there(&sessions), [2, 3], "a call is under way, and another session is not over");
        assert!(idle.connection(WaitPolicy::FailFast).await.is_err_and(|why| why.to_string().contains("shut down")));
        drop(running);
        assert!(!sessions.end_idle(Instant::now()));
        assert_eq!(there(&sessions), [3]);
    }
}
