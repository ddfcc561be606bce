//! From checked calls to a plan: what runs, in which stage, and what is refused for being too much.

use crate::call::{Rejection, ValidCall};
use crate::error::{ErrorKind, ToolError};
use crate::session::CallId;

/// A turn runs at most this many calls unless configured otherwise (SPEC section 8).
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

/// Calls in stages: those of one stage run in parallel, stages one after another. Stages keep call
/// order, and so do the outcomes of the whole.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The stages.
    pub stages: Vec<Vec<Planned>>,
}

impl Plan {
    /// The number of calls, rejected ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stages.iter().map(Vec::len).sum()
    }

    /// Whether there is no call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Plans the calls of one turn. Calls without references are independent: one stage. Of more than
/// `limit` calls the first ones run, the rest are rejected as `limit_exceeded`; a rejected call does
/// not count.
#[must_use]
pub fn plan(checked: Vec<Result<ValidCall, Box<Rejection>>>, limit: usize) -> Plan {
    let mut running = 0;
    let stage: Vec<Planned> = checked
        .into_iter()
        .map(|checked| match checked {
            Ok(call) if running < limit => {
                running += 1;
                Planned::Run(Box::new(call))
            }
            Ok(call) => Planned::Reject(Box::new(Rejection {
                error: ToolError::new(
                    ErrorKind::LimitExceeded,
                    format!("only {limit} calls may run in one turn; call {} again in the next", call.entry.wire_name),
                ),
                call_id: call.id,
                name: call.entry.wire_name.clone(),
                arguments: call.arguments,
                entry: Some(call.entry),
                violations: Vec::new(),
            })),
            Err(rejection) => Planned::Reject(rejection),
        })
        .collect();
    Plan { stages: if stage.is_empty() { Vec::new() } else { vec![stage] } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{RawArguments, ToolCall, check};
    use crate::catalogue::Snapshot;
    use crate::session::Principal;
    use crate::testing::{definition, listing, own};
    use serde_json::json;

    #[test]
    fn rejected_calls_do_not_count_against_the_limit_and_order_is_kept() {
        let snapshot = Snapshot::build(&[listing("p", vec![own(definition("x:t@1.0.0"))])]);
        let call = |id: &str, name: &str| {
            let call = ToolCall { id: CallId::new(id), name: name.into(), arguments: RawArguments::Value(json!({})) };
            check(call, &snapshot, &Principal::owner())
        };
        let plan = plan(vec![call("a", "nope"), call("b", "x__t"), call("c", "x__t"), call("d", "x__t")], 2);
        let planned: Vec<_> = plan.stages[0]
            .iter()
            .map(|planned| (planned.call_id().as_str(), matches!(planned, Planned::Run(_))))
            .collect();
        assert_eq!(planned, [("a", false), ("b", true), ("c", true), ("d", false)]);
        assert_eq!(plan.len(), 4);
        assert!(super::plan(Vec::new(), 2).is_empty());
    }
}
