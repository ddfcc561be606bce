//! Whose something is that a server says without naming a call.

use tokio::time::Instant;

use super::{Caller, Inbox, Purpose, State};
use crate::transport::RequestId;

/// What a message that names no call belongs to.
pub(crate) enum Attribution {
    /// To this call.
    Call(RequestId, Caller),
    /// To this call, or to another of its caller's.
    Likely(RequestId, Caller),
    /// No call is in flight.
    Nobody,
    /// To a request that has ended.
    Ended,
    /// Calls of several askers are in flight, or were until just now.
    Several,
}

impl Inbox {
    /// Whose a message is that the server sent in the answer's stream of `during`, where the transport knows. Else it is taken
    /// to be the newest's of the calls in flight, if all are one client's, and rather of one that is not `busy`.
    pub(super) fn attribution(&self, during: Option<RequestId>, busy: &[RequestId]) -> Attribution {
        let state = self.lock();
        if let Some(id) = during {
            return match state.waiting.get(&id).map(|waiting| &waiting.purpose) {
                Some(Purpose::Call(caller)) => Attribution::Call(id, caller.clone()),
                Some(Purpose::Internal | Purpose::Subscription(_)) => Attribution::Nobody,
                None => Attribution::Ended,
            };
        }
        let mut calls = state.calls();
        let Some(mut likely) = calls.next() else { return Attribution::Nobody };
        let mut is_only = true;
        for call in calls {
            if !likely.1.is_one_with(call.1) {
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

    /// The same of a question or a log message, which must not be another's: it may be of a call that is in flight no more,
    /// too.
    pub(super) fn asked_of(&self, during: Option<RequestId>, busy: &[RequestId]) -> Attribution {
        let attribution = self.attribution(during, busy);
        let may_be_anothers = match &attribution {
            Attribution::Call(_, caller) | Attribution::Likely(_, caller) => {
                during.is_none() && self.lock().recent_calls.may_be_of_another(caller, Instant::now())
            }
            Attribution::Nobody | Attribution::Ended | Attribution::Several => false,
        };
        if may_be_anothers { Attribution::Several } else { attribution }
    }

    /// A call of this caller's that is in flight, the likeliest to have asked.
    pub(super) fn call_of(&self, caller: &Caller, busy: &[RequestId]) -> Option<(RequestId, Caller)> {
        let state = self.lock();
        let calls = state.calls().filter(|(_, of)| of.is_one_with(caller));
        calls.max_by_key(|(id, _)| rank(*id, busy)).map(|(id, of)| (id, of.clone()))
    }
}

impl State {
    /// The calls that have not been forgotten.
    fn calls(&self) -> impl Iterator<Item = (RequestId, &Caller)> {
        self.waiting.iter().filter_map(|(id, waiting)| match &waiting.purpose {
            Purpose::Call(caller) => Some((*id, caller)),
            Purpose::Internal | Purpose::Subscription(_) => None,
        })
    }
}

/// How likely a call is to have asked: the newest is, but for those that are `busy` with a question.
fn rank(call: RequestId, busy: &[RequestId]) -> (bool, RequestId) {
    (!busy.contains(&call), call)
}
