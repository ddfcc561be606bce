//! The connections that sessions have of their own (`shared: false`): their number is bounded, and unused ones are ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use toolwright_core::session::SessionId;

use super::managed::ManagedConnection;

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
