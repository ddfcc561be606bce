//! Replays past calls against a draft of a policy: which rule would decide each call, and which decisions change.

use serde::Serialize;

use super::{Decision, Policy, PolicyQuery};

/// Number of calls decided by each rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RuleHits {
    /// Calls decided by each rule, in rule order.
    pub rules: Vec<u64>,
    /// Calls decided by no rule.
    pub otherwise: u64,
}

/// A call that a draft decides otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangedDecision {
    /// Its place among the calls.
    pub call: usize,
    /// The decision of the current policy.
    pub was: Decision,
    /// The decision of the draft.
    pub is: Decision,
}

impl Policy {
    /// Counts the calls that each rule decides.
    #[must_use]
    pub fn hits(&self, calls: &[PolicyQuery<'_>]) -> RuleHits {
        let mut hits = RuleHits { rules: vec![0; self.rules.len()], otherwise: 0 };
        for call in calls {
            let decided = self.decide(call);
            let number = decided.rule.strip_prefix("rule ").and_then(|number| number.parse::<usize>().ok());
            match number.and_then(|number| hits.rules.get_mut(number.checked_sub(1)?)) {
                Some(count) => *count += 1,
                None => hits.otherwise += 1,
            }
        }
        hits
    }

    /// Returns the calls whose effect differs under the draft.
    #[must_use]
    pub fn changed_by(&self, draft: &Self, calls: &[PolicyQuery<'_>]) -> Vec<ChangedDecision> {
        let change = |(call, query): (usize, &PolicyQuery<'_>)| {
            let (was, is) = (self.decide(query), draft.decide(query));
            (was.effect != is.effect).then_some(ChangedDecision { call, was, is })
        };
        calls.iter().enumerate().filter_map(change).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::definition::{CallScope, Effects, ToolDefinition};
    use crate::identity::session::Principal;
    use crate::identity::tool_id::ToolId;
    use crate::policy::{Effect, HintTrust, Profile, Rule};

    #[test]
    fn a_draft_is_replayed_on_recorded_calls() {
        let definition = |id: &str| ToolDefinition {
            effects: Effects::UNKNOWN,
            ..ToolDefinition::new(ToolId::parse(id).expect("id"), "", None)
        };
        let tools = ["shop:order@1.0.0", "notes:write@1.0.0", "shop:order@1.0.0"].map(definition);
        let principal = Principal::owner();
        let amounts = [1, 2, 900].map(|amount| json!({"amount": amount}));
        let calls: Vec<PolicyQuery<'_>> = tools
            .iter()
            .zip(&amounts)
            .map(|(definition, arguments)| PolicyQuery {
                definition,
                trust: HintTrust::Trusted,
                principal: &principal,
                root: Path::new("/w"),
                scope: CallScope::Anywhere,
                unvalidated: None,
                arguments,
                request: None,
                tainted: &[],
            })
            .collect();
        let policy: Policy = serde_json::from_value(json!({
            "profile": "client", "rules": [{"effect": "allow", "tool": "shop:*"}, {"effect": "deny", "tool": "web:*"}],
        }))
        .expect("policy");
        assert_eq!(policy.hits(&calls), RuleHits { rules: vec![2, 0], otherwise: 1 });
        let mut draft = policy.clone();
        draft.rules.insert(
            0,
            serde_json::from_value::<Rule>(json!({"effect": "ask", "when": "args.amount > 100"})).expect("rule"),
        );
        let changed = policy.changed_by(&draft, &calls);
        assert_eq!(changed.len(), 1);
        assert_eq!((changed[0].call, changed[0].was.effect, changed[0].is.effect), (2, Effect::Allow, Effect::Ask));
        assert_eq!(policy.changed_by(&Policy { profile: Profile::Trusted, ..policy.clone() }, &calls), []);
    }
}
