//! The connections to one server: one for all sessions, or (`shared: false`) one per session. A server of both eras
//! gets a second connection, in the older era, once a call's client can only be asked that way: the server may not be
//! able to express a question during a call in the newer era.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use toolwright_core::backoff::Backoff;
use toolwright_core::client::AskStyle;
use toolwright_core::session::SessionId;

use super::Connection;
use super::connect::{Connector, EraPreference};
use super::handshake::ProbeResult;
use super::managed::{ManagedConnection, WaitPolicy};
use super::sessions::{InUseGuard, Sessions};
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
        if self.connector.version_probe.known_era().await != Some(Era::Modern) {
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
