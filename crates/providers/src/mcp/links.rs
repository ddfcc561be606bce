//! The connections to one server: one for all sessions, or (`shared: false`) one a session. A server that speaks both
//! generations gets a second one, of the older, once a call's client can be asked in the older's way alone: what a
//! server has to ask in the middle of a call it may not know how to ask in the newer way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use toolwright_core::client::Manner;
use toolwright_core::session::SessionId;
use toolwright_mcp::revision::Era;

use super::connect::Connector;
use super::connection::Connection;
use super::link::{Link, Patience};

/// Bound on the sessions that have a connection of their own at once.
const MAX_SESSIONS: usize = 64;
/// How long a session's own connection is kept without a call.
const IDLE: Duration = Duration::from_secs(600);
/// How often that is looked at.
const SWEEP: Duration = Duration::from_secs(60);

/// The connections to one server.
pub(super) struct Links {
    /// That of all sessions; where each has its own, the one that lists.
    pub(super) shared: Arc<Link>,
    older: Older,
    own: Option<Own>,
    closed: AtomicBool,
}

/// What makes the connection of the older generation, where the shared one is of the newer.
struct Older {
    connector: Connector,
    link: OnceLock<Arc<Link>>,
    /// The server does not speak it.
    is_unspoken: AtomicBool,
}

/// What makes a session's own connection.
struct Own {
    connector: Connector,
    sessions: Arc<Sessions>,
}

#[derive(Default)]
struct Sessions(Mutex<HashMap<SessionId, Kept>>);

struct Kept {
    link: Arc<Link>,
    used: Instant,
}

impl Links {
    /// Connections that `connector` makes; `changed` is told when the one that lists has changed.
    pub(super) fn new(connector: Connector, changed: Arc<dyn Fn() + Send + Sync>) -> Self {
        // What is followed is followed by the connection that lists.
        let apart = Connector { followed: Arc::default(), ..connector.clone() };
        let own = (!connector.spec.shared).then(|| Own { connector: apart.clone(), sessions: Arc::default() });
        let older = Older {
            connector: Connector { wanted: Some(Era::Legacy), ..apart },
            link: OnceLock::new(),
            is_unspoken: AtomicBool::new(false),
        };
        Self { shared: Link::new(connector, changed), older, own, closed: AtomicBool::new(false) }
    }

    /// The connection of a call of this session, whose client is asked in this manner.
    ///
    /// # Errors
    /// Why there is none, in words; nothing was sent then.
    pub(super) async fn connection(&self, session: &SessionId, manner: Manner) -> Result<Arc<Connection>, String> {
        let Some(own) = &self.own else {
            let older =
                if manner == Manner::Requests { Box::pin(self.older.connection(&self.closed)).await } else { None };
            return match older {
                Some(connection) => Ok(connection),
                None => self.shared.connection(Patience::FailFast).await,
            };
        };
        self.of(own, session, manner)?.connection(Patience::FailFast).await
    }

    /// The link of this session's calls. A session has one client, and so one manner.
    fn of(&self, own: &Own, session: &SessionId, manner: Manner) -> Result<Arc<Link>, String> {
        let now = Instant::now();
        let mut sessions = own.sessions.lock();
        if self.closed.load(Ordering::Acquire) {
            // It says so.
            return Ok(Arc::clone(&self.shared));
        }
        if let Some(kept) = sessions.get_mut(session) {
            kept.used = now;
            return Ok(Arc::clone(&kept.link));
        }
        if sessions.len() >= MAX_SESSIONS {
            let idle = sessions.iter().filter(|(_, kept)| kept.is_idle()).min_by_key(|(_, kept)| kept.used);
            let Some(longest) = idle.map(|(session, _)| session.clone()) else {
                return Err(format!("{MAX_SESSIONS} sessions have a connection of their own already, all in use"));
            };
            if let Some(kept) = sessions.remove(&longest) {
                kept.link.give_up();
            }
        }
        // What its tools are is told by the connection that lists.
        let connector = match manner {
            Manner::Either => own.connector.clone(),
            Manner::Requests => self.older.connector.clone(),
        };
        // Each session says for itself how much is logged.
        let connector = Connector { log_level: Arc::default(), ..connector };
        let link = Link::new(connector, Arc::new(|| {}));
        if sessions.is_empty() {
            tokio::spawn(sweep(Arc::downgrade(&own.sessions)));
        }
        sessions.insert(session.clone(), Kept { link: Arc::clone(&link), used: now });
        Ok(link)
    }

    /// The connection of the older generation beside the shared one, if there is one now.
    pub(super) fn beside(&self) -> Option<Arc<Connection>> {
        self.older.link.get().and_then(|link| link.current())
    }

    /// Closes all for good, without waiting.
    pub(super) fn give_up(&self) {
        for link in self.all() {
            link.give_up();
        }
    }

    /// Closes all for good and waits for their ends, two seconds at most.
    pub(super) async fn shut_down(&self) {
        futures_util::future::join_all(self.all().iter().map(|link| link.shut_down())).await;
    }

    /// All there are; no more are made.
    fn all(&self) -> Vec<Arc<Link>> {
        let mut all = vec![Arc::clone(&self.shared)];
        self.closed.store(true, Ordering::Release);
        all.extend(self.older.link.get().cloned());
        if let Some(own) = &self.own {
            all.extend(own.sessions.lock().drain().map(|(_, kept)| kept.link));
        }
        all
    }
}

impl Older {
    /// The connection of the older generation, where the server speaks both.
    async fn connection(&self, closed: &AtomicBool) -> Option<Arc<Connection>> {
        if self.is_unspoken.load(Ordering::Acquire) || self.connector.generation.known().await != Some(Era::Modern) {
            return None;
        }
        let link = self.link.get_or_init(|| Link::new(self.connector.clone(), Arc::new(|| {})));
        if closed.load(Ordering::Acquire) {
            link.give_up();
        }
        let connection = link.connection(Patience::FailFast).await.ok();
        let older = connection.filter(|connection| connection.server().era == Era::Legacy);
        if older.is_none() && !link.was_up_as(Era::Legacy) {
            self.is_unspoken.store(true, Ordering::Release);
            link.give_up();
        }
        older
    }
}

impl Kept {
    /// Whether nobody holds it but this.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.link) == 1
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the connections of sessions that have gone, until none is left.
async fn sweep(sessions: Weak<Sessions>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(sessions) = sessions.upgrade() else { return };
        let mut kept = sessions.lock();
        kept.retain(|_, kept| {
            let stays = !kept.is_idle() || kept.used.elapsed() < IDLE;
            if !stays {
                kept.link.give_up();
            }
            stays
        });
        if kept.is_empty() {
            return;
        }
    }
}
