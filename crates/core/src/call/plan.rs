//! From checked calls to a plan: what runs, in which stage, and what is refused for being too much.

use super::{Rejection, ValidCall};
use crate::error::{ErrorKind, ToolError};
use crate::identity::session::CallId;

/// A turn runs at most this many calls unless configured otherwise.
pub const DEFAULT_CALLS_PER_TURN: usize = 10;

/// What becomes of one call.
#[derive(Debug, Clone)]
pub enum Planned {
    /// It is to run.
    Run(Box<ValidCall>),
    /// It is not; its error is its result.
    Reject(Box<Rejection>),
}

impl Planned {
    /// The call's id.
    #[must_use]
    pub fn call_id(&self) -> &CallId {
        match self {
            Self::Run(call) => &call.id,
            Self::Reject(rejection) => &rejection.call_id,
        }
    }
}

/// The calls of one turn, in call order, and when each runs.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The calls; outcomes come in the same order.
    pub calls: Vec<Planned>,
    /// Indices of `calls`: those of one stage run in parallel, stages one after another.
    pub stages: Vec<Vec<usize>>,
    /// Indices of the calls that wait for values which others write: after the stages, those run whose
    /// values are there, and again, until none is left or nothing more comes.
    pub waiting: Vec<usize>,
}

impl Plan {
    /// The number of calls, rejected ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there is no call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

/// Plans the calls of one turn, of which `started_before` run already. Calls without pending references are
/// independent: one stage. Of more than `limit` calls of the turn the first ones run, the rest are rejected
/// as `limit_exceeded`; a rejected call does not count.
#[must_use]
pub fn plan(checked: Vec<Result<ValidCall, Box<Rejection>>>, limit: usize, started_before: usize) -> Plan {
    let mut running = started_before;
    let mut plan = Plan::default();
    let mut stage = Vec::with_capacity(checked.len());
    for (index, checked) in checked.into_iter().enumerate() {
        let planned = match checked {
            Ok(call) if running < limit => {
                running += 1;
                Planned::Run(Box::new(call))
            }
            Ok(call) => Planned::Reject(Box::new(over_limit(call, limit))),
            Err(rejection) => Planned::Reject(rejection),
        };
        match &planned {
            Planned::Run(call) if !call.pending.is_empty() => plan.waiting.push(index),
            _ => stage.push(index),
        }
        plan.calls.push(planned);
    }
    if !stage.is_empty() {
        plan.stages.push(stage);
    }
    plan
}

fn over_limit(call: ValidCall, limit: usize) -> Rejection {
    let name = call.entry.wire_name.clone();
    let message = format!("only {limit} calls may run in one turn; call {name} again in the next");
    Rejection {
        call_id: call.id,
        name,
        arguments: call.arguments,
        entry: Some(call.entry),
        error: ToolError::new(ErrorKind::LimitExceeded, message),
        meta: call.meta,
        violations: Vec::new(),
        provenance: call.provenance,
        pending: call.pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::variables::Values;
    use crate::call::{Caller, RawArguments, ToolCall, check};
    use crate::catalogue::Snapshot;
    use crate::identity::session::Principal;
    use crate::testing::{definition, listing, own};
    use serde_json::{Value, json};

    #[test]
    fn rejected_calls_do_not_count_against_the_limit() {
        let snapshot = Snapshot::build(&[listing("p", vec![own(definition("x:t@1.0.0"))])]);
        let call = |id: &str, name: &str, arguments: Value| {
            let call = ToolCall::new(CallId::new(id), name, RawArguments::Value(arguments));
            let owner = Principal::owner();
            check(call, &snapshot, Caller { principal: &owner, variables: Some(&Values::default()) })
        };
        let checked = vec![
            call("a", "nope", json!({})),
            call("b", "x__t", json!({"v": "†state.v"})),
            call("c", "x__t", json!({})),
            call("d", "x__t", json!({})),
        ];
        let plan = plan(checked.clone(), 2, 0);
        let planned: Vec<_> =
            plan.calls.iter().map(|planned| (planned.call_id().as_str(), matches!(planned, Planned::Run(_)))).collect();
        assert_eq!(planned, [("a", false), ("b", true), ("c", true), ("d", false)]);
        assert_eq!((plan.stages, plan.waiting), (vec![vec![0, 2, 3]], vec![1]));
        assert!(super::plan(Vec::new(), 2, 0).is_empty());
        let beside_others = super::plan(checked, 3, 2);
        let Planned::Reject(rejection) = &beside_others.calls[2] else { panic!("the third place is taken by b") };
        assert!(rejection.to_string().contains("only 3 calls may run in one turn"), "{rejection}");
    }
}
