//! The connections to one server: one for all sessions, or (`shared: false`) one a session.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use toolwright_core::session::SessionId;

use super::connect::Connector;
use super::link::Link;

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
    own: Option<Own>,
    closed: AtomicBool,
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
        let own = (!connector.spec.shared).then(|| Own {
            // What is followed is followed by the connection that lists.
            connector: Connector { followed: Arc::default(), ..connector.clone() },
            sessions: Arc::default(),
        });
        Self { shared: Link::new(connector, changed), own, closed: AtomicBool::new(false) }
    }

    /// The link of this session's calls.
    ///
    /// # Errors
    /// Too many sessions are at work.
    pub(super) fn of(&self, session: &SessionId) -> Result<Arc<Link>, String> {
        let Some(own) = &self.own else { return Ok(Arc::clone(&self.shared)) };
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
        let link = Link::new(own.connector.clone(), Arc::new(|| {}));
        if sessions.is_empty() {
            tokio::spawn(sweep(Arc::downgrade(&own.sessions)));
        }
        sessions.insert(session.clone(), Kept { link: Arc::clone(&link), used: now });
        Ok(link)
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
        if let Some(own) = &self.own {
            all.extend(own.sessions.lock().drain().map(|(_, kept)| kept.link));
        }
        all
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
