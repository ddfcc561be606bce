//! Whose calls are in flight no more while the server may be at them still: what it asks then may be for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use toolwright_core::session::Session;

use super::Caller;
use crate::transport::RequestId;

/// How long a call counts that was given up and is not answered: a server that heeds the cancel says nothing more of it.
const GIVEN_UP: Duration = Duration::from_secs(120);
/// How long those count whose call has ended: its server may ask just after.
const ENDED: Duration = Duration::from_secs(3);
/// Bound on what is kept of either kind.
const MAX: usize = 256;

/// The calls that count although they are over for us.
#[derive(Default)]
pub(super) struct RecentCalls {
    /// Those that were given up, the oldest first.
    given_up: VecDeque<GivenUp>,
    /// The principals whose calls have ended, and when they last did.
    ended: Vec<(String, Instant)>,
}

/// A call that its server has not answered.
struct GivenUp {
    id: RequestId,
    session: Arc<Session>,
    identity: Option<String>,
    since: Instant,
}

impl GivenUp {
    fn is_of(&self, caller: &Caller) -> bool {
        self.session.id == caller.session.id && self.identity == caller.client.identity()
    }
}

impl RecentCalls {
    /// Nobody waits for this call any more, and the server has not answered it.
    pub(super) fn give_up(&mut self, id: RequestId, caller: &Caller, now: Instant) {
        self.given_up.retain(|one| now.duration_since(one.since) < GIVEN_UP);
        if self.given_up.len() >= MAX {
            // Who gives up many of them makes room among their own.
            let principal = &caller.session.principal.id;
            let own = self.given_up.iter().position(|one| one.session.principal.id == *principal);
            self.given_up.remove(own.unwrap_or_default());
        }
        let (session, identity) = (Arc::clone(&caller.session), caller.client.identity());
        self.given_up.push_back(GivenUp { id, session, identity, since: now });
    }

    /// A call of this session has ended.
    pub(super) fn end(&mut self, session: &Session, now: Instant) {
        let principal = &session.principal.id;
        if let Some((_, at)) = self.ended.iter_mut().find(|(of, _)| of == principal) {
            *at = now;
            return;
        }
        self.ended.retain(|(_, at)| now.duration_since(*at) < ENDED);
        if self.ended.len() < MAX {
            self.ended.push((principal.clone(), now));
        }
    }

    /// Whether this call was given up, and is not answered.
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.given_up.iter().any(|one| one.id == id)
    }

    /// The server has answered a call after all, if it is one of these: it has ended.
    pub(super) fn answered(&mut self, id: RequestId, now: Instant) {
        let at = self.given_up.iter().position(|one| one.id == id);
        if let Some(one) = at.and_then(|at| self.given_up.remove(at)) {
            self.end(&one.session, now);
        }
    }

    /// The server has never heard of this call, or asks nothing for it any more.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.given_up.retain(|one| one.id != id);
    }

    /// Whether a question may be for somebody else than this caller: for another client whose call the server may be at,
    /// or for another principal whose call has just ended.
    pub(super) fn may_be_of_another(&self, caller: &Caller, now: Instant) -> bool {
        let principal = &caller.session.principal.id;
        self.ended.iter().any(|(of, at)| of != principal && now.duration_since(*at) < ENDED)
            || self.given_up.iter().any(|one| now.duration_since(one.since) < GIVEN_UP && !one.is_of(caller))
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::client::NoClient;
    use toolwright_core::context::NoPartials;
    use toolwright_core::session::{Principal, SessionId};

    use super::*;

    fn of(principal: &str, session: &str) -> Caller {
        let principal = Principal { id: principal.to_owned(), owner: false, roles: Vec::new() };
        let session = Session { id: SessionId::new(session), principal, root: ".".into(), agent: None };
        Caller { partials: Arc::new(NoPartials), client: Arc::new(NoClient), session: Arc::new(session) }
    }

    #[test]
    fn a_call_counts_until_it_is_answered_and_its_principal_for_seconds_more() {
        let (al, also_al, bo) = (of("al", "1"), of("al", "2"), of("bo", "3"));
        let now = Instant::now();
        let mut recent_calls = RecentCalls::default();
        recent_calls.give_up(7, &al, now);
        for (caller, expect) in [(&al, false), (&also_al, true), (&bo, true)] {
            assert_eq!(recent_calls.may_be_of_another(caller, now), expect, "another session is another client");
        }
        assert!(!recent_calls.may_be_of_another(&bo, now + GIVEN_UP), "not for ever");
        recent_calls.answered(8, now);
        assert!(recent_calls.has(7));
        recent_calls.answered(7, now);
        for (caller, later, expect) in
            [(&bo, Duration::ZERO, true), (&also_al, Duration::ZERO, false), (&bo, ENDED, false)]
        {
            assert_eq!(recent_calls.may_be_of_another(caller, now + later), expect, "{later:?}");
        }
        recent_calls.give_up(9, &al, now + ENDED);
        recent_calls.forget(9);
        assert!(!recent_calls.may_be_of_another(&bo, now + ENDED), "it was never sent");
    }

    #[test]
    fn who_gives_up_many_calls_makes_room_among_their_own() {
        let (al, bo) = (of("al", "1"), of("bo", "2"));
        let now = Instant::now();
        let mut recent_calls = RecentCalls::default();
        recent_calls.give_up(0, &al, now);
        for id in 1..1000 {
            recent_calls.give_up(id, &bo, now);
        }
        assert!(recent_calls.has(0) && recent_calls.has(999) && recent_calls.given_up.len() == MAX);
        for principal in 0..1000 {
            recent_calls.end(&of(&principal.to_string(), "s").session, now);
        }
        assert_eq!(recent_calls.ended.len(), MAX);
    }
}
