//! Attributes messages of a server that name no call to the call or the session they belong to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use toolwright_core::session::Session;

use super::{Caller, Inbox, RequestPurpose, State};
use crate::transport::RequestId;

/// The call that a message without a call id belongs to.
pub(crate) enum Attribution {
    /// This call.
    Call(RequestId, Caller),
    /// This call, or another call of the same caller.
    Likely(RequestId, Caller),
    /// No call is in flight.
    Nobody,
    /// A request that has ended.
    Ended,
    /// Calls of several askers are in flight, or were until just now.
    Several,
}

impl Inbox {
    /// Attributes a message sent in the response stream of `during`, if the transport knows that. Otherwise, if all
    /// calls in flight are from one client, the newest one is assumed, preferably one that is not `busy`.
    pub(super) fn attribution(&self, during: Option<RequestId>, busy: &[RequestId]) -> Attribution {
        let state = self.lock();
        if let Some(id) = during {
            return match state.waiting.get(&id).map(|waiting| &waiting.purpose) {
                Some(RequestPurpose::Call(caller)) => Attribution::Call(id, caller.clone()),
                Some(RequestPurpose::Internal | RequestPurpose::Subscription(_)) => Attribution::Nobody,
                None => Attribution::Ended,
            };
        }
        let mut calls = state.calls();
        let Some(mut likely) = calls.next() else { return Attribution::Nobody };
        let mut is_only = true;
        for call in calls {
            if !likely.1.is_same_client(call.1) {
                return Attribution::Several;
            }
            is_only = false;
            if rank(call.0, busy) > rank(likely.0, busy) {
                likely = call;
            }
        }
        let (id, caller) = (likely.0, likely.1.clone());
        if is_only { Attribution::Call(id, caller) } else { Attribution::Likely(id, caller) }
    }

    /// The same for a question or log message, which must not reach another client: it may also belong to a call that
    /// has just ended.
    pub(super) fn asked_of(&self, during: Option<RequestId>, busy: &[RequestId]) -> Attribution {
        let attribution = self.attribution(during, busy);
        let may_be_anothers = match &attribution {
            Attribution::Call(_, caller) | Attribution::Likely(_, caller) => {
                during.is_none() && self.lock().recent_calls.may_belong_to_other(caller, Instant::now())
            }
            Attribution::Nobody | Attribution::Ended | Attribution::Several => false,
        };
        if may_be_anothers { Attribution::Several } else { attribution }
    }

    /// Returns the caller's call in flight that is likeliest to have asked.
    pub(super) fn call_of(&self, caller: &Caller, busy: &[RequestId]) -> Option<(RequestId, Caller)> {
        let state = self.lock();
        let calls = state.calls().filter(|(_, of)| of.is_same_client(caller));
        calls.max_by_key(|(id, _)| rank(*id, busy)).map(|(id, of)| (id, of.clone()))
    }
}

impl State {
    /// The calls that have not been forgotten.
    fn calls(&self) -> impl Iterator<Item = (RequestId, &Caller)> {
        self.waiting.iter().filter_map(|(id, waiting)| match &waiting.purpose {
            RequestPurpose::Call(caller) => Some((*id, caller)),
            RequestPurpose::Internal | RequestPurpose::Subscription(_) => None,
        })
    }
}

/// Ranks a call as the likely asker: newest first, but `busy` ones last.
fn rank(call: RequestId, busy: &[RequestId]) -> (bool, RequestId) {
    (!busy.contains(&call), call)
}

/// How long an abandoned, unanswered call counts; a server that obeys the cancellation sends nothing more for it.
const ABANDONED_BOUND: Duration = Duration::from_secs(120);
/// How long an ended call counts: its server may ask just after.
const ENDED: Duration = Duration::from_secs(3);
/// Bound on the entries of each kind.
const MAX: usize = 256;

/// The calls that count although they are over for us.
#[derive(Default)]
pub(super) struct RecentCalls {
    /// Abandoned calls, oldest first.
    abandoned: VecDeque<UnansweredCall>,
    /// Principals of ended calls, with the time of the last end.
    ended: Vec<(String, Instant)>,
}

/// A call that its server has not answered.
struct UnansweredCall {
    id: RequestId,
    session: Arc<Session>,
    identity: Option<String>,
    since: Instant,
}

impl UnansweredCall {
    fn is_of(&self, caller: &Caller) -> bool {
        self.session.id == caller.session.id && self.identity == caller.client.identity()
    }
}

impl RecentCalls {
    /// Records an abandoned call that the server has not answered.
    pub(super) fn record_abandoned(&mut self, id: RequestId, caller: &Caller, now: Instant) {
        self.abandoned.retain(|one| now.duration_since(one.since) < ABANDONED_BOUND);
        if self.abandoned.len() >= MAX {
            // A principal with many abandoned calls displaces its own.
            let principal = &caller.session.principal.id;
            let own = self.abandoned.iter().position(|one| one.session.principal.id == *principal);
            self.abandoned.remove(own.unwrap_or_default());
        }
        let (session, identity) = (Arc::clone(&caller.session), caller.client.identity());
        self.abandoned.push_back(UnansweredCall { id, session, identity, since: now });
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

    /// Whether this call was abandoned and not answered.
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.abandoned.iter().any(|one| one.id == id)
    }

    /// Records the late answer to an abandoned call.
    pub(super) fn answered(&mut self, id: RequestId, now: Instant) {
        let at = self.abandoned.iter().position(|one| one.id == id);
        if let Some(one) = at.and_then(|at| self.abandoned.remove(at)) {
            self.end(&one.session, now);
        }
    }

    /// Removes a call that never reached the server, or for which it asks nothing more.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.abandoned.retain(|one| one.id != id);
    }

    /// Whether a question may belong to another caller: another client with an unfinished call,
    /// or another principal with a call that has just ended.
    pub(super) fn may_belong_to_other(&self, caller: &Caller, now: Instant) -> bool {
        let principal = &caller.session.principal.id;
        self.ended.iter().any(|(of, at)| of != principal && now.duration_since(*at) < ENDED)
            || self.abandoned.iter().any(|one| now.duration_since(one.since) < ABANDONED_BOUND && !one.is_of(caller))
    }
}

#[cfg(test)]
mod recent_calls_tests {
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
    fn ended_calls_count_for_some_seconds() {
        let (al, also_al, bo) = (of("al", "1"), of("al", "2"), of("bo", "3"));
        let now = Instant::now();
        let mut recent_calls = RecentCalls::default();
        recent_calls.record_abandoned(7, &al, now);
        for (caller, expect) in [(&al, false), (&also_al, true), (&bo, true)] {
            assert_eq!(recent_calls.may_belong_to_other(caller, now), expect, "another session is another client");
        }
        assert!(!recent_calls.may_belong_to_other(&bo, now + ABANDONED_BOUND), "not for ever");
        recent_calls.answered(8, now);
        assert!(recent_calls.has(7));
        recent_calls.answered(7, now);
        for (caller, later, expect) in
            [(&bo, Duration::ZERO, true), (&also_al, Duration::ZERO, false), (&bo, ENDED, false)]
        {
            assert_eq!(recent_calls.may_belong_to_other(caller, now + later), expect, "{later:?}");
        }
        recent_calls.record_abandoned(9, &al, now + ENDED);
        recent_calls.forget(9);
        assert!(!recent_calls.may_belong_to_other(&bo, now + ENDED), "it was never sent");
    }

    #[test]
    fn abandoned_calls_evict_their_principals_oldest() {
        let (al, bo) = (of("al", "1"), of("bo", "2"));
        let now = Instant::now();
        let mut recent_calls = RecentCalls::default();
        recent_calls.record_abandoned(0, &al, now);
        for id in 1..1000 {
            recent_calls.record_abandoned(id, &bo, now);
        }
        assert!(recent_calls.has(0) && recent_calls.has(999) && recent_calls.abandoned.len() == MAX);
        for principal in 0..1000 {
            recent_calls.end(&of(&principal.to_string(), "s").session, now);
        }
        assert_eq!(recent_calls.ended.len(), MAX);
    }
}
