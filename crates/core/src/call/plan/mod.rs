//! Plans: calls that run together, each as soon as its dependencies have ended. A plan comes from a turn (here), or
//! from a document that is checked as a whole before anything runs.

mod approval;
mod check;
mod document;
mod graph;
mod per_input;
mod types;

use super::variables::{Completeness, ExceptPaths, NamedVariable, VariableKind, Variables, referenced_variables};
use super::{CallMeta, PendingCall, Rejection, ValidCall, resolve_pending};
use crate::error::{ErrorKind, ToolError};
use crate::identity::session::CallId;

pub use self::approval::{PlanApproval, PlanVerdict};
pub use self::check::{
    CheckedActivity, CheckedPlanCall, PlanCheck, PlanContext, PlanCost, check_plan, issues_of, unreadable,
};
pub use self::document::{IssueKind, MAX_CALLS, PlanCall, PlanDocument, PlanIssue, call_id, call_index, issue};
pub use self::graph::{DependencyKind, Edge, Graph, Node, Schedule, Write};
pub use self::per_input::check_per_input;

/// A turn runs at most this many calls unless configured otherwise.
pub const DEFAULT_CALLS_PER_TURN: usize = 10;

/// The planned result for one call.
#[derive(Debug, Clone)]
pub enum CallDisposition {
    /// It will run.
    Run(Box<ValidCall>),
    /// It is not; its error is its result.
    Reject(Box<Rejection>),
}

impl CallDisposition {
    /// The call's id.
    #[must_use]
    pub fn call_id(&self) -> &CallId {
        match self {
            Self::Run(call) => &call.id,
            Self::Reject(rejection) => &rejection.call_id,
        }
    }

    /// Its meta fields.
    #[must_use]
    pub fn meta(&self) -> &CallMeta {
        match self {
            Self::Run(call) => &call.meta,
            Self::Reject(rejection) => &rejection.meta,
        }
    }

    /// The tool's wire name, or the name as written if there is no such tool.
    #[must_use]
    pub fn tool(&self) -> &str {
        match self {
            Self::Run(call) => &call.entry.wire_name,
            Self::Reject(rejection) => &rejection.name,
        }
    }
}

/// Why a call of the plan does not run with the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExclusionReason {
    /// It waits for a person or for permission: its value may still come.
    Held,
    /// It has ended, and left no value: why, as in `which failed`.
    Lost(String),
}

/// The calls of one turn, in call order, and which wait for which.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The calls; outcomes have the same order.
    pub calls: Vec<CallDisposition>,
    /// Indices of the calls that will not run; others may wait for them.
    pub excluded: Vec<(usize, ExclusionReason)>,
    /// Dependencies between the calls.
    pub graph: Graph,
}

impl Plan {
    /// Number of calls, including rejected ones.
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

/// Plans the calls of one turn, of which `started_before` are already running. Calls are independent unless one reads
/// or writes what another writes. Beyond `limit` valid calls a turn, calls are rejected as `limit_exceeded`.
#[must_use]
pub fn plan(checked: Vec<Result<ValidCall, Box<Rejection>>>, limit: usize, started_before: usize) -> Plan {
    plan_excluding(checked, &[], limit, started_before)
}

/// Like [`plan`], with some calls that will not run.
#[must_use]
pub fn plan_excluding(
    checked: Vec<Result<ValidCall, Box<Rejection>>>,
    excluded: &[(CallId, ExclusionReason)],
    limit: usize,
    started_before: usize,
) -> Plan {
    let mut running = started_before;
    let is_excluded = |id: &CallId| excluded.iter().any(|(known, _)| known == id);
    let planned = |checked: Result<ValidCall, Box<Rejection>>| match checked {
        Ok(call) if is_excluded(&call.id) => CallDisposition::Run(Box::new(call)),
        Ok(call) if running < limit => {
            running += 1;
            CallDisposition::Run(Box::new(call))
        }
        Ok(call) => CallDisposition::Reject(Box::new(over_limit(call, limit))),
        Err(rejection) => CallDisposition::Reject(rejection),
    };
    let calls: Vec<CallDisposition> = checked.into_iter().map(planned).collect();
    let graph = graph_of(&calls);
    let place = |(id, end): &(CallId, ExclusionReason)| {
        Some((calls.iter().position(|planned| planned.call_id() == id)?, end.clone()))
    };
    let excluded = excluded.iter().filter_map(place).collect();
    Plan { calls, excluded, graph }
}

fn graph_of(calls: &[CallDisposition]) -> Graph {
    let waits = |planned: &CallDisposition| matches!(planned, CallDisposition::Run(call) if !call.pending.is_empty() || !call.meta.scopes.is_empty());
    let writers = calls.iter().filter(|planned| planned.meta().output_path.is_some()).count();
    if !calls.iter().any(waits) && writers < 2 {
        return Graph::independent(calls.len());
    }
    let named: Vec<_> = calls
        .iter()
        .map(|planned| match planned {
            CallDisposition::Run(call) => {
                call.pending.iter().flat_map(|hole| referenced_variables(&hole.reference)).collect()
            }
            CallDisposition::Reject(_) => Vec::new(),
        })
        .collect();
    let nodes: Vec<Node<'_>> = calls.iter().zip(&named).map(|(planned, named)| node(planned.meta(), named)).collect();
    Graph::of(&nodes)
}

fn node<'a>(meta: &'a CallMeta, named: &'a [NamedVariable]) -> Node<'a> {
    let state = named.iter().filter(|named| named.kind == VariableKind::State);
    Node {
        reads: state.map(|named| named.path.iter().map(String::as_str).collect()).collect(),
        sees: meta.seen_state().collect(),
        writes: written(meta),
        instance: meta.instance.as_deref(),
        reads_elsewhere: named.iter().any(|named| named.kind != VariableKind::State),
    }
}

fn written(meta: &CallMeta) -> Option<Write<'_>> {
    let (path, _) = meta.writes()?;
    Some(Write { path: path.split('.').collect(), replaces: meta.output_method.replaces() })
}

/// A call that has no value although others wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedCall {
    /// The call.
    pub id: CallId,
    /// Its tool, as a model knows it.
    pub tool: String,
    /// The path of its missing value.
    pub path: Option<String>,
    /// The instance that it was for.
    pub instance: Option<String>,
    /// The reason, as in `which failed`.
    pub why: String,
}

/// Replaces the pending references of a call. The output of a failed call is absent: a reference to it falls back,
/// or the call is not run.
///
/// # Errors
/// As [`resolve_pending`]; the message names the failed calls.
pub fn land(
    call: ValidCall,
    variables: Option<&dyn Variables>,
    completeness: Completeness,
    failed: &[FailedCall],
) -> Result<PendingCall, Box<Rejection>> {
    if failed.is_empty() {
        return resolve_pending(call, variables, completeness);
    }
    let places = failed.iter().filter_map(|failed| Some((failed.path.as_deref()?, failed.instance.as_deref())));
    let without = variables.map(|variables| ExceptPaths::new(variables, places));
    let landed = resolve_pending(call, without.as_ref().map(|without| without as _), Completeness::Closed);
    landed.map_err(|mut rejection| {
        if rejection.violations.iter().any(|violation| violation.keyword == "reference") {
            let names: Vec<String> = failed
                .iter()
                .map(|failed| format!("{} ({}), {}", failed.id.as_str(), failed.tool, failed.why))
                .collect();
            let message = format!("not run: it needs the result of {}", names.join(", and of "));
            rejection.error = ToolError::new(ErrorKind::InvalidParameters, message);
        }
        rejection
    })
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
        let planned: Vec<_> = plan
            .calls
            .iter()
            .map(|planned| (planned.call_id().as_str(), matches!(planned, CallDisposition::Run(_))))
            .collect();
        assert_eq!(planned, [("a", false), ("b", true), ("c", true), ("d", false)]);
        assert_eq!((plan.graph.levels(), plan.graph.is_open(1)), (vec![vec![0, 1, 2, 3]], true));
        assert!(super::plan(Vec::new(), 2, 0).is_empty());
        let after_others = super::plan(checked, 3, 2);
        let CallDisposition::Reject(rejection) = &after_others.calls[2] else {
            panic!("the third place is taken by b")
        };
        assert!(rejection.to_string().contains("only 3 calls may run in one turn"), "{rejection}");
    }
}
