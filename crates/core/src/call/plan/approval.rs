//! A person's approval of a whole plan: decides which calls it covers as they run.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::check::PlanCheck;
use super::document::PlanDocument;
use crate::approval::ApprovalRequest;
use crate::call::ValidCall;
use crate::call::redact::shown_arguments;
use crate::definition::CallScope;
use crate::identity::session::CallId;
use crate::identity::taint::TaintedArgument;
use crate::identity::tool_id::ToolId;
use crate::json::canonical::ContentHash;
use crate::json::pointer::{self, is_within};
use crate::policy::{Decision, Effect};
use crate::secret::Redactor;

/// A person's approval of a plan as displayed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanApproval {
    /// The plan.
    pub digest: ContentHash,
    /// The displayed decisions on the calls that the policy asks about.
    pub calls: Vec<PlanVerdict>,
}

/// The displayed decision on one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanVerdict {
    /// The call.
    pub id: CallId,
    /// Its tool.
    pub tool: ToolId,
    /// The tool's definition.
    pub definition: ContentHash,
    /// Its arguments, references in their places, without secrets.
    pub arguments: Value,
    /// JSON Pointers to the references.
    pub holes: Vec<String>,
    /// The resources it would touch.
    pub scope: CallScope,
    /// The policy's reason to ask.
    pub reason: String,
}

impl PlanApproval {
    /// Returns what an approval of the plan covers, under the policy of the check.
    #[must_use]
    pub fn of(plan: &PlanDocument, check: &PlanCheck, redactor: &dyn Redactor) -> Self {
        let verdict = |call: &ValidCall, decision: Option<&Decision>, scope| {
            let entry = &call.entry;
            let decision = decision.filter(|decision| decision.effect == Effect::Ask)?;
            Some(PlanVerdict {
                id: call.id.clone(),
                tool: entry.id().clone(),
                definition: entry.tool.hash(),
                arguments: shown_arguments(entry, &call.arguments, redactor),
                holes: call.pending.iter().map(|hole| hole.path.clone()).collect(),
                scope,
                reason: redactor.redact(&decision.reason).into_owned(),
            })
        };
        let verdicts = |checked: &super::CheckedPlanCall| {
            let Ok(call) = &checked.call else { return [None, None] };
            let own = verdict(call, checked.verdict.as_ref(), checked.scope);
            let inner = checked.activity.as_ref();
            let inner = inner.and_then(|activity| verdict(&activity.call, activity.verdict.as_ref(), activity.scope));
            [own, inner]
        };
        Self { digest: plan.digest(), calls: check.calls.iter().flat_map(verdicts).flatten().collect() }
    }

    /// Whether the approval covers this request: same call, tool and definition; every argument that was written out is
    /// as shown; the policy asks for no other reason. Values of references are covered too. If they came from untrusted
    /// tools, the call must only read, or return them to their source; a person must see any other use.
    #[must_use]
    pub fn covers(&self, request: &ApprovalRequest) -> bool {
        self.calls.iter().any(|verdict| {
            verdict.id == request.call_id
                && request.agents.is_empty()
                && request.tainted.iter().all(|place| is_covered(place, verdict, request))
                && verdict.tool == request.tool
                && verdict.definition == request.definition
                && verdict.scope == request.scope
                && verdict.reason == request.reason
                && without_references(&verdict.arguments, &verdict.holes)
                    == without_references(&request.arguments, &verdict.holes)
        })
    }
}

fn is_covered(place: &TaintedArgument, verdict: &PlanVerdict, request: &ApprovalRequest) -> bool {
    let is_hole = verdict.holes.iter().any(|hole| is_within(&place.path, hole));
    is_hole && (request.effects.read_only || place.from.is_of(verdict.tool.namespace()))
}

/// The arguments without the values at `holes`.
fn without_references(arguments: &Value, holes: &[String]) -> Value {
    let mut rest = arguments.clone();
    for hole in holes {
        if !pointer::remove_member(&mut rest, hole)
            && let Some(place) = rest.pointer_mut(hole)
        {
            *place = Value::Null;
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::definition::Effects;
    use crate::identity::session::SessionId;
    use crate::identity::taint::Taint;

    #[test]
    fn an_approval_covers_what_was_shown() {
        let tool = ToolId::parse("x:t@1.0.0").expect("id");
        let hash = ContentHash::of_value(&json!(1));
        let shown = PlanVerdict {
            id: CallId::new("call_0"),
            tool: tool.clone(),
            definition: hash,
            arguments: json!({"to": "ada", "text": "†state.x", "list": ["†state.y", 1]}),
            holes: vec!["/text".into(), "/list/0".into()],
            scope: CallScope::Anywhere,
            reason: "profile ask".into(),
        };
        let approval = PlanApproval { digest: hash, calls: vec![shown] };
        let asked = |change: &dyn Fn(&mut ApprovalRequest)| {
            let mut request = ApprovalRequest {
                call_id: CallId::new("call_0"),
                run: None,
                session: SessionId::new("s"),
                principal: "owner".into(),
                tool: tool.clone(),
                definition: hash,
                arguments: json!({"to": "ada", "text": "hello", "list": [[2], 1]}),
                binds_to: None,
                effects: Effects::default(),
                scope: CallScope::Anywhere,
                reason: "profile ask".into(),
                tainted: Vec::new(),
                named: Vec::new(),
                asker: None,
                agents: Vec::new(),
            };
            change(&mut request);
            approval.covers(&request)
        };
        assert!(asked(&|_| {}));
        assert!(asked(&|request| request.arguments = json!({"to": "ada", "list": [null, 1]})));
        assert!(!asked(&|request| request.arguments["to"] = json!("eve")));
        assert!(!asked(&|request| request.arguments["list"][1] = json!(2)));
        assert!(!asked(&|request| request.call_id = CallId::new("call_1")));
        assert!(!asked(&|request| request.scope = CallScope::Configuration));
        assert!(!asked(&|request| request.reason = "rule 1: the text is tainted".into()));
        let tainted = |path: &str, source: &str| {
            let from = Taint::of(&ToolId::parse(source).expect("id"));
            vec![TaintedArgument { path: path.to_owned(), from }]
        };
        // To its source, or to a tool that only reads.
        assert!(asked(&|request| request.tainted = tainted("/text", "x:other@1.0.0")));
        assert!(asked(&|request| request.tainted = tainted("/list/0/1", "x:other@1.0.0")));
        assert!(!asked(&|request| request.tainted = tainted("/text", "web:get@1.0.0")));
        assert!(asked(&|request| {
            request.tainted = tainted("/text", "web:get@1.0.0");
            request.effects.read_only = true;
        }));
        // Written arguments have no taint, unless their author had read tainted data.
        assert!(!asked(&|request| request.tainted = tainted("/to", "x:other@1.0.0")));
        assert!(!asked(&|request| request.tainted = tainted("", "x:other@1.0.0")));
    }
}
