//! The connections to one server: one for all sessions, or (`shared: false`) one a session. A server that speaks both
//! generations gets a second one, of the older, once a call's client can be asked in the older's way alone: what a
//! server has to ask in the middle of a call it may not know how to ask in the newer way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::protocol::revision::Era;
use serde_json::{Map, Value};
use toolwright_core::client::Manner;
use toolwright_core::session::SessionId;

use super::config::McpTransport;
use super::connect::{Connector, Wish};
use super::connection::Connection;
use super::link::{Link, Patience};
use super::sessions::{InUse, Sessions};
use super::version_probe::Found;

/// Longest pause before a connection of the older generation that came to nothing is tried again; one that the server does
/// not speak is tried again after as long, since another may take its place unnoticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The connections to one server.
pub(crate) struct Links {
    /// That of all sessions; where each has its own, the one that lists.
    pub(crate) shared: Arc<Link>,
    older: Older,
    own: Option<Own>,
    closed: AtomicBool,
}

/// What makes the connection of the older generation, where the shared one is of the newer.
struct Older {
    connector: Connector,
    tried: Mutex<Tried>,
}

/// The connection of the older generation, as far as one was tried.
#[derive(Default)]
struct Tried {
    link: Option<Arc<Link>>,
    /// Whether there has been one.
    was_up: bool,
    /// How often in a row there was none.
    failures: u32,
    pause: Option<Pause>,
}

/// The time in which it is not tried again.
struct Pause {
    until: Instant,
    /// The program that it was tried with. Another version of it is tried at once.
    with: Option<Found>,
}

impl Pause {
    fn holds(&self, now: Instant, program: Option<&Found>) -> bool {
        now < self.until && self.with.as_ref() == program
    }
}

/// What a try that came to nothing says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// The server does not speak the older generation.
    Unspoken,
    /// Nothing of what it speaks.
    Nothing,
}

/// What makes a session's own connection.
struct Own {
    connector: Connector,
    sessions: Arc<Sessions>,
}

/// A connection for as long as this is held: a session's own one is not ended for being unused meanwhile.
pub(crate) struct Lent {
    /// The connection.
    pub(crate) connection: Arc<Connection>,
    #[expect(dead_code, reason = "it is in use until this is dropped")]
    in_use: Option<InUse>,
}

impl From<Arc<Connection>> for Lent {
    fn from(connection: Arc<Connection>) -> Self {
        Self { connection, in_use: None }
    }
}

impl Links {
    /// Connections that `connector` makes; `changed` is told when the one that lists has changed.
    pub(crate) fn new(connector: Connector, changed: Arc<dyn Fn() + Send + Sync>) -> Self {
        // What is followed is followed by the connection that lists.
        let apart = Connector { followed: Arc::default(), ..connector.clone() };
        let own = (!connector.spec.config.shared).then(|| Own { connector: apart.clone(), sessions: Arc::default() });
        let older =
            Older { connector: Connector { wanted: Some(Wish::Only(Era::Legacy)), ..apart }, tried: Mutex::default() };
        Self { shared: Link::new(connector, changed), older, own, closed: AtomicBool::new(false) }
    }

    /// The connection of a call of this session, whose client is asked in this manner. It is to be held until the call
    /// has ended. `of_session` says how the client of all calls of the session is asked: a connection of its own is for
    /// all of them, whichever comes first.
    ///
    /// # Errors
    /// Why there is none, in words; nothing was sent then.
    pub(crate) async fn connection(
        &self,
        session: &SessionId,
        manner: Manner,
        of_session: Manner,
    ) -> Result<Lent, String> {
        let Some(own) = &self.own else {
            // Once it was so slow to say that it speaks both that it is spoken to in the older way by all.
            let is_older = self.shared.current().is_some_and(|connection| connection.server().era == Era::Legacy);
            let older = if manner == Manner::Requests && !is_older {
                Box::pin(self.older.connection(&self.closed)).await
            } else {
                None
            };
            let connection = match older {
                Some(connection) => connection,
                None => self.shared.connection(Patience::FailFast).await?,
            };
            return Ok(connection.into());
        };
        let in_use = self.of(own, session, of_session)?;
        let connection = in_use.link.connection(Patience::FailFast).await?;
        Ok(Lent { connection, in_use: Some(in_use) })
    }

    /// Ends the connection that this session has of its own, with its last call.
    pub(crate) fn session_ended(&self, session: &SessionId) {
        if let Some(own) = &self.own {
            own.sessions.ended(session);
        }
    }

    /// Whether nothing runs that this session's requests would go to.
    pub(crate) fn is_idle(&self, session: &SessionId) -> bool {
        match &self.own {
            Some(own) => own.sessions.find(session).is_none_or(|link| link.is_idle()),
            None => self.shared.is_idle() && self.older.tried().link.as_ref().is_none_or(|link| link.is_idle()),
        }
    }

    /// Whether nothing runs at all: what does may have said that its lists are others.
    pub(crate) fn are_idle(&self) -> bool {
        self.shared.is_idle()
            && self.older.tried().link.as_ref().is_none_or(|link| link.is_idle())
            && self.own.as_ref().is_none_or(|own| own.sessions.are_idle())
    }

    /// Keeps how much is logged on the connection of this session (parameters of `logging/setLevel`) for when there is
    /// one. Whether it was idle; otherwise it is to be told.
    pub(crate) fn keep_level(&self, session: &SessionId, of_session: Manner, params: &Map<String, Value>) -> bool {
        if !self.is_idle(session) {
            return false;
        }
        let link = match self.own.as_ref().map(|own| self.of(own, session, of_session)) {
            Some(Ok(in_use)) => Arc::clone(&in_use.link),
            Some(Err(_)) => return false,
            None => Arc::clone(&self.shared),
        };
        link.log_level().keep(params.clone()).taken();
        // Who began to connect meanwhile may have looked before.
        if let Some(connection) = link.current() {
            connection.tell_level();
        }
        true
    }

    /// The link of this session's calls. A session has one client, and so one manner.
    fn of(&self, own: &Own, session: &SessionId, manner: Manner) -> Result<InUse, String> {
        let in_use = own.sessions.of(session, || {
            // What its tools are is told by the connection that lists.
            let connector = match manner {
                Manner::Either => own.connector.clone(),
                Manner::Requests => Connector { wanted: Some(Wish::Rather(Era::Legacy)), ..own.connector.clone() },
            };
            // Each session says for itself how much is logged, and nobody else hears it.
            let listener = Arc::new(connector.listener.of_session(session.clone()));
            Link::new(Connector { log_level: Arc::default(), listener, ..connector }, Arc::new(|| {}))
        })?;
        if self.closed.load(Ordering::Acquire) {
            // It says so.
            in_use.link.give_up();
        }
        Ok(in_use)
    }

    /// The connection of the older generation beside the shared one, if there is one now.
    pub(crate) fn beside(&self) -> Option<Arc<Connection>> {
        self.older.tried().link.as_ref().and_then(|link| link.current())
    }

    /// Closes all for good, without waiting.
    pub(crate) fn give_up(&self) {
        for link in self.all() {
            link.give_up();
        }
    }

    /// Closes all for good and waits for their ends, two seconds at most.
    pub(crate) async fn shut_down(&self) {
        futures_util::future::join_all(self.all().iter().map(|link| link.shut_down())).await;
    }

    /// All there are; no more are made.
    fn all(&self) -> Vec<Arc<Link>> {
        let mut all = vec![Arc::clone(&self.shared)];
        self.closed.store(true, Ordering::Release);
        all.extend(self.older.tried().link.clone());
        if let Some(own) = &self.own {
            all.extend(own.sessions.drain());
        }
        all
    }
}

/// The pause after so many failures: a second, doubled with each. A call waits for every try, which may take as long as
/// `connect_timeout`.
fn pause(failures: u32) -> Duration {
    let doubled = 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_secs(doubled).min(LONGEST_PAUSE)
}

impl Older {
    /// The connection of the older generation, where the server speaks both.
    async fn connection(&self, closed: &AtomicBool) -> Option<Arc<Connection>> {
        if self.connector.version_probe.known().await != Some(Era::Modern) {
            return None;
        }
        let link = self.link()?;
        if closed.load(Ordering::Acquire) {
            link.give_up();
        }
        let connection = link.connection(Patience::FailFast).await;
        match &connection {
            Ok(connection) if connection.server().era == Era::Legacy => self.came_up(),
            // It was tried, and the server speaks only the newer one.
            Ok(_) => {
                self.drop_failed(&link, Word::Unspoken);
                return None;
            }
            Err(_) if link.failure().is_some() => self.drop_failed(&link, Word::Nothing),
            // It is being made again, or was given up.
            Err(_) => {}
        }
        connection.ok()
    }

    /// The link there is, or a new one; `None` in the pause after one that failed.
    fn link(&self) -> Option<Arc<Link>> {
        let program = self.connector.version_probe.found();
        let mut tried = self.tried();
        let is_paused = tried.pause.as_ref().is_some_and(|pause| pause.holds(Instant::now(), program.as_ref()));
        if tried.link.is_none() && is_paused {
            return None;
        }
        let link = tried.link.get_or_insert_with(|| Link::new(self.connector.clone(), Arc::new(|| {})));
        Some(Arc::clone(link))
    }

    fn came_up(&self) {
        let mut tried = self.tried();
        (tried.was_up, tried.failures) = (true, 0);
    }

    /// Gives a link up that came to nothing: by itself it would try again for good, though no call may ever need it. Over
    /// HTTP that may pass; a process that ends or hangs is not started again and again to find out whether it speaks it.
    fn drop_failed(&self, link: &Arc<Link>, word: Word) {
        link.give_up();
        let is_process = matches!(self.connector.spec.config.transport, McpTransport::Stdio { .. });
        let with = self.connector.version_probe.found();
        let mut tried = self.tried();
        if tried.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            tried.link = None;
            tried.failures = tried.failures.saturating_add(1);
            let is_in_vain = word == Word::Unspoken || (is_process && !tried.was_up);
            let pause = if is_in_vain { LONGEST_PAUSE } else { pause(tried.failures) };
            tried.pause = Some(Pause { until: Instant::now() + pause, with });
        }
    }

    fn tried(&self) -> MutexGuard<'_, Tried> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_server_that_spoke_no_older_generation_is_met_anew_after_an_hour_or_as_another_program() {
        let program = |version: &str| -> Option<Found> {
            let found: Value = json!({"is_modern": true, "program": {"name": "s", "version": version}});
            serde_json::from_value(found).ok()
        };
        let now = Instant::now();
        let pause = Pause { until: now + LONGEST_PAUSE, with: program("1") };
        let second = Duration::from_secs(1);
        for (later, with, expect) in [
            (Duration::ZERO, program("1"), true),
            (LONGEST_PAUSE - second, program("1"), true),
            (LONGEST_PAUSE, program("1"), false),
            (second, program("2"), false),
            (second, None, false),
        ] {
            assert_eq!(pause.holds(now + later, with.as_ref()), expect, "{later:?} {with:?}");
        }
    }
}
