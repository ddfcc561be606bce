//! Sessions of HTTP clients up to 2025-11-25, by `Mcp-Session-Id`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::canonical::ContentHash;
use toolwright_core::session::SessionId;

use super::resumable_streams::{ENDED_BYTES, ReplayBudget, ResumableStreams};
use crate::mcp::session::Caller;

/// The open sessions.
pub(crate) struct Sessions {
    open: Mutex<HashMap<String, Arc<HttpSession>>>,
    max: usize,
    idle: Duration,
    /// Room for ended streams of all sessions.
    room: Arc<ReplayBudget>,
    /// Called with each ended session. Must not block.
    on_end: Box<dyn Fn(&SessionId) + Send + Sync>,
}

/// One session.
pub(crate) struct HttpSession {
    pub(crate) caller: Caller,
    /// Fires when the session ends.
    pub(crate) ended: Cancel,
    /// Its resumable streams.
    pub(super) replay: Arc<ResumableStreams>,
    state: Mutex<State>,
}

struct State {
    used: Instant,
    /// Open requests and streams.
    busy: usize,
    /// Cancels its notification stream.
    stream: Option<Cancel>,
    /// The tool list that the client has, if known.
    listed: Option<ContentHash>,
}

impl Sessions {
    pub(crate) fn new(max: usize, idle: Duration, on_end: Box<dyn Fn(&SessionId) + Send + Sync>) -> Self {
        Self { open: Mutex::new(HashMap::new()), max, idle, room: ReplayBudget::new(ENDED_BYTES), on_end }
    }

    /// Opens a session under the id of the caller's session. At the bound the longest idle session ends, so that
    /// abandoned sessions block nobody. `None` if all are in use.
    pub(crate) fn open(&self, caller: Caller) -> Option<Arc<HttpSession>> {
        let mut open = self.lock();
        if open.len() >= self.max {
            let idle = open.iter().filter(|(_, session)| !session.is_busy());
            let longest = idle.min_by_key(|(_, session)| session.lock().used).map(|(id, _)| id.clone())?;
            self.close(&*open.remove(&longest)?);
        }
        let state = State { used: Instant::now(), busy: 0, stream: None, listed: None };
        let id = caller.session.id.as_str().to_owned();
        let ended = Cancel::new();
        let replay = ResumableStreams::new(ended.clone(), Arc::clone(&self.room));
        let session = Arc::new(HttpSession { caller, ended, replay, state: Mutex::new(state) });
        open.insert(id, Arc::clone(&session));
        Some(session)
    }

    /// Returns the session of this id, if `fits` accepts it.
    pub(crate) fn find(&self, id: &str, fits: impl FnOnce(&Caller) -> bool) -> Option<Arc<HttpSession>> {
        self.lock().get(id).filter(|session| fits(&session.caller)).cloned()
    }

    /// Ends a session: its stream closes and its calls are cancelled.
    pub(crate) fn end(&self, session: &HttpSession) {
        self.lock().remove(session.caller.session.id.as_str());
        self.close(session);
    }

    fn close(&self, session: &HttpSession) {
        session.end();
        (self.on_end)(&session.caller.session.id);
    }

    /// Ends idle sessions.
    pub(crate) fn sweep(&self) {
        self.lock().retain(|_, session| {
            let live = session.is_busy() || session.lock().used.elapsed() < self.idle;
            if !live {
                self.close(session);
            }
            live
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<HttpSession>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpSession {
    /// Keeps the session from expiring while a request or stream is open.
    pub(crate) fn enter(self: &Arc<Self>) -> SessionInUse {
        self.lock().busy += 1;
        SessionInUse(Arc::clone(self))
    }

    /// Sets the cancel token of the session's notification stream, and ends the previous one: a client that opens a
    /// second has lost the first.
    pub(crate) fn replace_stream(&self, end: Cancel) {
        if let Some(before) = self.lock().stream.replace(end) {
            before.cancel(CancelCause::User);
        }
    }

    /// Records the tool list that the client received.
    pub(crate) fn has_listed(&self, fingerprint: ContentHash) {
        self.lock().listed = Some(fingerprint);
    }

    /// Returns the tool list that the client received last.
    pub(crate) fn listed(&self) -> Option<ContentHash> {
        self.lock().listed
    }

    fn is_busy(&self) -> bool {
        self.lock().busy > 0 || !self.caller.running.is_empty()
    }

    fn end(&self) {
        self.ended.cancel(CancelCause::User);
        self.caller.running.cancel_all();
        self.caller.client.close_subscriptions();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a session in use until dropped.
pub(crate) struct SessionInUse(Arc<HttpSession>);

impl SessionInUse {
    /// Returns the session.
    pub(super) fn session(&self) -> &Arc<HttpSession> {
        &self.0
    }
}

impl Drop for SessionInUse {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        state.used = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Expose, Scope, View};
    use toolwright_core::session::{Principal, Session};

    fn caller(id: &str) -> Caller {
        let session = Session { id: SessionId::new(id), principal: Principal::owner(), root: "/".into(), agent: None };
        let view = View { scope: Scope::Whole, expose: Expose::Direct };
        Caller::new(Arc::new(session), view)
    }

    #[test]
    fn idle_sessions_make_room_busy_ones_do_not() {
        let sessions = Sessions::new(2, Duration::from_secs(3600), Box::new(|_| ()));
        let is_open = |id: &str| sessions.find(id, |_| true).is_some();
        let first = sessions.open(caller("a")).expect("room");
        sessions.open(caller("b")).expect("room");
        // Its last request ended after `b` was opened.
        drop(first.enter());
        sessions.open(caller("c")).expect("the longest idle one goes");
        assert!(is_open("a") && !is_open("b") && is_open("c"));
        let busy = first.enter();
        let last = sessions.open(caller("d")).expect("the idle one goes");
        assert!(is_open("a") && !is_open("c"));
        let _held = last.enter();
        assert!(sessions.open(caller("e")).is_none(), "both are in use");
        drop(busy);
        sessions.open(caller("f")).expect("room again");
        assert!(!is_open("a") && first.ended.is_cancelled());
    }

    #[test]
    fn a_sweep_ends_idle_sessions() {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&ended);
        let on_end = move |session: &SessionId| all.lock().expect("lock").push(session.as_str().to_owned());
        let sessions = Sessions::new(2, Duration::ZERO, Box::new(on_end));
        let busy = sessions.open(caller("a")).expect("room").enter();
        sessions.open(caller("b")).expect("room");
        sessions.sweep();
        assert!(sessions.find("a", |_| true).is_some() && sessions.find("b", |_| true).is_none());
        drop(busy);
        sessions.end(&sessions.find("a", |_| true).expect("open"));
        assert!(sessions.find("a", |_| true).is_none());
        assert_eq!(*ended.lock().expect("lock"), ["b", "a"], "sources are told");
    }
}
