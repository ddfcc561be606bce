//! The connections of sessions that each have their own: how many there may be, and when one has gone unused for long
//! enough to be ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use toolwright_core::session::SessionId;

use super::link::Link;

/// Bound on the sessions that have a connection of their own at once.
const MAX_SESSIONS: usize = 64;
/// How long a session's own connection is kept without a call, from the end of its last one.
const IDLE: Duration = Duration::from_secs(600);
/// How often that is looked at.
const SWEEP: Duration = Duration::from_secs(60);

/// The connections that sessions have of their own.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<SessionId, Kept>>);

struct Kept {
    link: Arc<Link>,
    usage: Arc<Usage>,
}

/// A session's own connection, in use until this is dropped: it is ended by nobody but its server until then.
pub(crate) struct InUse {
    /// What keeps the connection.
    pub(crate) link: Arc<Link>,
    usage: Arc<Usage>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = self.usage.lock();
        state.running = state.running.saturating_sub(1);
        state.last_used = Some(Instant::now());
    }
}

/// How much a connection is used.
#[derive(Default)]
struct Usage(Mutex<Used>);

#[derive(Default, Clone, Copy)]
struct Used {
    /// Calls under way.
    running: usize,
    /// When the last call ended.
    last_used: Option<Instant>,
    /// Whether the session is over.
    has_ended: bool,
}

impl Used {
    /// Since when nothing has used it; `None` while something does.
    fn idle_since(self) -> Option<Instant> {
        self.last_used.filter(|_| self.running == 0)
    }

    /// Whether it is to be ended: nothing uses it, and nobody will or has for long.
    fn is_over(self, now: Instant) -> bool {
        let is_long_ago = |since: Instant| now.saturating_duration_since(since) >= IDLE;
        self.idle_since().is_some_and(|since| self.has_ended || is_long_ago(since))
    }
}

impl Usage {
    fn lock(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn used(&self) -> Used {
        *self.usage.lock()
    }

    /// One more use of it.
    fn in_use(&self) -> InUse {
        self.usage.lock().running += 1;
        InUse { link: Arc::clone(&self.link), usage: Arc::clone(&self.usage) }
    }
}

impl Sessions {
    /// The session's connection, made by `new` if it has none. Where all that there may be are there, the one that has
    /// gone unused for the longest time makes room. Must be called inside a runtime.
    ///
    /// # Errors
    /// All of them are in use, in words.
    pub(crate) fn of(self: &Arc<Self>, session: &SessionId, new: impl FnOnce() -> Arc<Link>) -> Result<InUse, String> {
        let mut sessions = self.lock();
        if let Some(kept) = sessions.get(session) {
            return Ok(kept.in_use());
        }
        if sessions.len() >= MAX_SESSIONS {
            let idle = sessions.iter().filter_map(|(session, kept)| Some((session, kept.used().idle_since()?)));
            let Some(longest) = idle.min_by_key(|(_, since)| *since).map(|(session, _)| session.clone()) else {
                return Err(format!("{MAX_SESSIONS} sessions have a connection of their own already, all in use"));
            };
            if let Some(kept) = sessions.remove(&longest) {
                kept.link.give_up();
            }
        }
        if sessions.is_empty() {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        let kept = Kept { link: new(), usage: Arc::default() };
        let in_use = kept.in_use();
        sessions.insert(session.clone(), kept);
        Ok(in_use)
    }

    /// The session's connection, if it has one.
    pub(crate) fn find(&self, session: &SessionId) -> Option<Arc<Link>> {
        self.lock().get(session).map(|kept| Arc::clone(&kept.link))
    }

    /// Ends the session's connection if it has one: now, or when it is looked at next after its last call.
    pub(crate) fn ended(&self, session: &SessionId) {
        if let Some(kept) = self.lock().get(session) {
            kept.usage.lock().has_ended = true;
        }
        self.end_idle(Instant::now());
    }

    /// Whether none of them was connected yet.
    pub(crate) fn are_idle(&self) -> bool {
        self.lock().values().all(|kept| kept.link.is_idle())
    }

    /// Takes all out.
    pub(crate) fn drain(&self) -> Vec<Arc<Link>> {
        self.lock().drain().map(|(_, kept)| kept.link).collect()
    }

    /// Ends what has gone unused for long enough. Whether nothing is left.
    fn end_idle(&self, now: Instant) -> bool {
        let mut sessions = self.lock();
        sessions.retain(|_, kept| {
            let is_over = kept.used().is_over(now);
            if is_over {
                kept.link.give_up();
            }
            !is_over
        });
        sessions.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the connections of sessions that have gone, until none is left.
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

    use super::super::config::{AsTools, McpTransport};
    use super::super::connect::Connector;
    use super::super::folders::Folders;
    use super::super::link::Patience;
    use super::super::listener::Listener;
    use super::super::spec::McpServerSpec;
    use super::super::version_probe::VersionProbe;
    use super::*;

    /// A link that nobody has connected yet.
    fn link() -> Arc<Link> {
        let transport = McpTransport::Http { url: "http://127.0.0.1:1/mcp".into(), headers: BTreeMap::new() };
        let connector = Connector {
            spec: Arc::new(McpServerSpec::new("s", transport)),
            events: Arc::new(NoEvents),
            listener: Listener::new("s".into(), Arc::new(NoEvents), Arc::new(|| {}), AsTools::No),
            followed: Arc::default(),
            log_level: Arc::default(),
            folders: Folders::new(Arc::default()),
            version_probe: VersionProbe::new(Arc::new(NoStore), "k".into()),
            wanted: None,
        };
        Link::new(connector, Arc::new(|| {}))
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
    async fn a_connection_in_use_makes_no_room_and_is_not_swept() {
        let sessions = Arc::new(Sessions::default());
        let of = |number: usize| sessions.of(&id(number), link);
        let long = of(0).expect("room");
        let mut others: Vec<_> = (1..MAX_SESSIONS).map(|number| of(number).expect("room")).collect();
        assert!(of(MAX_SESSIONS).is_err_and(|reason| reason.contains("all in use")));
        // The one whose last call ended first makes room, and not the one whose call began first.
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
    async fn the_end_of_a_session_ends_its_connection_with_its_last_call() {
        let sessions = Arc::new(Sessions::default());
        let of = |number: usize| sessions.of(&id(number), link).expect("room");
        let (idle, running) = (Arc::clone(&of(1).link), of(2));
        drop(of(3));
        for number in [1, 2, 4] {
            sessions.ended(&id(number));
        }
        assert_eq!(there(&sessions), [2, 3], "a call is under way, and another session is not over");
        assert!(idle.connection(Patience::FailFast).await.is_err_and(|why| why.to_string().contains("shut down")));
        drop(running);
        assert!(!sessions.end_idle(Instant::now()));
        assert_eq!(there(&sessions), [3]);
    }
}
