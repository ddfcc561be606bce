//! Derives a rule that allows calls from now on from a call that a person was asked about.

use serde_json::Value;

use super::condition::Condition;
use super::rule::{Rule, Selector};
use super::{Effect, Policy, PolicyQuery, Profile};
use crate::definition::approval::{AlwaysScope, ApprovalRequest};
use crate::secret::MARK;

/// A rule with its position in a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct AlwaysRule {
    /// The rule.
    pub rule: Rule,
    /// Number of rules before it.
    pub place: usize,
}

impl Policy {
    /// Creates the rule that lets the call of `request`, and others covered by [`ApprovalRequest::always_covers`],
    /// run without a question. It precedes the rule that asks and copies its conditions, or follows all rules if
    /// a profile asks. So it allows only calls that would be asked about: calls denied by other rules stay denied.
    ///
    /// # Errors
    /// Why there is no such rule.
    pub fn always_rule(&self, query: &PolicyQuery<'_>, request: &ApprovalRequest) -> Result<AlwaysRule, String> {
        if request.asker.is_some() {
            return Err("a server asked for it, and a rule would apply to every caller".into());
        }
        let narrow = match request.always_covers() {
            AlwaysScope::Tool | AlwaysScope::ToolForAsker => None,
            AlwaysScope::ToolInWorkspace => Some("workspace.inside".to_owned()),
            AlwaysScope::ThisCall => Some(equal_to(&request.arguments)?),
        };
        // An agent may have a stricter profile than clients.
        let profiles = [self.profile, Profile::Ask, Profile::Workspace];
        let asking = profiles.iter().find_map(|&profile| {
            let policy = Self { profile, within: None, ..self.clone() };
            let decision = policy.decide(query);
            (decision.effect == Effect::Ask && decision.reason == request.reason).then_some((policy, decision.rule))
        });
        let Some((mut policy, asks)) = asking else {
            return Err("something besides the rules of this file asks".into());
        };
        let number = asks.strip_prefix("rule ").and_then(|number| number.parse::<usize>().ok());
        let rule = number.and_then(|number| policy.rules.get(number.checked_sub(1)?));
        let place = if rule.is_some() { number.unwrap_or(1) - 1 } else { policy.rules.len() };
        let asks = rule.map(|rule| rule.selector.clone()).unwrap_or_default();
        let when = match (asks.when.as_ref().map(Condition::source), narrow) {
            (Some(one), Some(other)) => Some(format!("({one}) && {other}")),
            (one, other) => one.map(str::to_owned).or(other),
        };
        let when = when.map(Condition::compile).transpose().map_err(|error| error.to_string())?;
        let selector =
            Selector { tool: Some(request.tool.without_version().to_owned()), namespace: None, when, ..asks };
        let rule = Rule { effect: Effect::Allow, selector, reason: Some("A person approved it for always.".into()) };
        policy.rules.insert(place, rule.clone());
        if policy.decide(query).effect == Effect::Allow {
            Ok(AlwaysRule { rule, place })
        } else {
            Err("no rule lets this call run without a question".into())
        }
    }
}

/// The condition of calls with these arguments and no others.
fn equal_to(arguments: &Value) -> Result<String, String> {
    let members = arguments.as_object().ok_or("its arguments are no object")?;
    let mut parts = vec![format!("size(args) == {}", members.len())];
    for (name, value) in members {
        if value.is_object() || value.is_array() || value.is_null() {
            return Err(format!("it may destroy something, and `{name}` is more than a text or number to compare"));
        }
        if value.as_str().is_some_and(|text| text.contains(MARK)) {
            return Err(format!("it may destroy something, and `{name}` is secret"));
        }
        parts.push(format!("args[{}] == {}", literal(&Value::from(name.as_str())), literal(value)));
    }
    Ok(parts.join(" && "))
}

/// A text, number or truth value as CEL has it, in the quotes that read best in YAML.
fn literal(value: &Value) -> String {
    let is_plain = |text: &&str| !text.contains(['\'', '\\']) && !text.contains(char::is_control);
    value.as_str().filter(is_plain).map_or_else(|| value.to_string(), |text| format!("'{text}'"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::definition::{CallScope, Effects, ToolDefinition};
    use crate::identity::session::{CallId, Principal, SessionId};
    use crate::identity::tool_id::ToolId;
    use crate::json::canonical::ContentHash;
    use crate::policy::HintTrust;

    /// Returns the rule that the policy offers for a call of `shop:order` asked about for this reason, with its place,
    /// or why there is none.
    fn offered(policy: Value, effects: Effects, scope: CallScope, reason: &str) -> Result<Value, String> {
        let policy: Policy = serde_json::from_value(policy).expect("policy");
        let tool = ToolId::parse("shop:order@1.0.0").expect("id");
        let definition = ToolDefinition { effects, ..ToolDefinition::new(tool.clone(), "", None) };
        let (arguments, principal) = (json!({"quantity": 6}), Principal::owner());
        let request = ApprovalRequest {
            call_id: CallId::new("c"),
            run: None,
            session: SessionId::new("s"),
            principal: principal.id.clone(),
            tool,
            definition: ContentHash::of_bytes(b"d"),
            arguments: arguments.clone(),
            binds_to: None,
            effects,
            scope,
            reason: reason.to_owned(),
            tainted: Vec::new(),
            named: Vec::new(),
            asker: None,
            agents: Vec::new(),
        };
        let query = PolicyQuery {
            definition: &definition,
            trust: HintTrust::Trusted,
            principal: &principal,
            root: Path::new("/w"),
            scope,
            unvalidated: None,
            arguments: &arguments,
            request: None,
            tainted: &[],
        };
        let found = policy.always_rule(&query, &request)?;
        let mut rule = json!(found.rule);
        rule.as_object_mut().expect("rule").remove("reason");
        Ok(json!([found.place, rule]))
    }

    #[test]
    fn an_always_rule_narrows_the_asking_rule() {
        let mild = Effects { destructive: false, ..Effects::UNKNOWN };
        let rule = |place: usize, when: Option<&str>| match when {
            Some(when) => json!([place, {"effect": "allow", "tool": "shop:order", "when": when}]),
            None => json!([place, {"effect": "allow", "tool": "shop:order"}]),
        };
        let deny = json!({"effect": "deny", "tool": "shop:order", "when": "args.quantity > 20"});
        let ask = json!({"effect": "ask", "namespace": "shop", "when": "args.quantity > 5", "reason": "Paid."});
        let with_agent_rules = json!({"profile": "client", "rules": [deny, ask, {"effect": "deny", "tool": "shop:*"}]});
        let check = |policy: &Value, effects, scope, reason: &str, expect: Result<Value, &str>| {
            let found = offered(policy.clone(), effects, scope, reason);
            assert_eq!(found.as_ref().map_err(|why| &why[..20]), expect.as_ref().map_err(|why| &why[..20]), "{reason}");
        };
        use CallScope::{Anywhere, Workspace};
        check(&with_agent_rules, mild, Anywhere, "Paid.", Ok(rule(1, Some("args.quantity > 5"))));
        let both = "(args.quantity > 5) && workspace.inside";
        check(&with_agent_rules, mild, Workspace, "Paid.", Ok(rule(1, Some(both))));
        let asks = json!({"profile": "client", "rules": [{"effect": "deny", "tool": "web:*"}]});
        check(&asks, mild, Anywhere, "it may change something", Ok(rule(1, None)));
        check(&asks, mild, Anywhere, "a guard asks", Err("something besides the rules"));
        let equal = "(args.quantity > 5) && size(args) == 1 && args['quantity'] == 6";
        check(&with_agent_rules, Effects::UNKNOWN, Anywhere, "Paid.", Ok(rule(1, Some(equal))));
        assert_eq!(
            equal_to(&json!({"a'b": "x\ny", "c": true})).as_deref(),
            Ok(r#"size(args) == 2 && args["a'b"] == "x\ny" && args['c'] == true"#)
        );
        assert!(equal_to(&json!({"a": [1]})).is_err() && equal_to(&json!({"a": MARK})).is_err());
        let own = "it changes Toolwright's own configuration: a person decides under every profile";
        check(&asks, mild, CallScope::Configuration, own, Err("no rule lets this call"));
    }
}
