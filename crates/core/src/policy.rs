//! May this call run? One ordered rule list, first match wins; a profile decides where no rule does.
//!
//! A call whose arguments no schema validated is no exception: an `allow` rule that matches it is a person's
//! word about that tool and lets it run, whatever its [`NoSchemaMode`]. Without a rule the mode comes before
//! the profile, which never lifts it; only the owner's own call is not held up.

use serde::{Deserialize, Serialize};

use crate::definition::{Effects, NoSchemaMode, ToolDefinition};
use crate::pattern::glob_match;

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Run.
    Allow,
    /// Refuse.
    Deny,
    /// Ask a person.
    Ask,
}

/// One rule. Every selector that is set must match; a rule without selectors matches every call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it does.
    pub effect: Effect,
    /// Glob on the canonical id, or on the id without its version (`fs:write`, `github:*`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Glob on the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A tag the tool has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Effects the tool has.
    #[serde(default, skip_serializing_if = "EffectSelector::is_empty")]
    pub effects: EffectSelector,
    /// A role the caller has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Shown when the rule decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Effects a rule asks for; an unset one does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectSelector {
    /// Reads only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// May destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destructive: Option<bool>,
    /// Same twice as once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// Reaches beyond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_world: Option<bool>,
}

impl EffectSelector {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn matches(self, effects: Effects) -> bool {
        let fits = |wanted: Option<bool>, has: bool| wanted.is_none_or(|wanted| wanted == has);
        fits(self.read_only, effects.read_only)
            && fits(self.destructive, effects.destructive)
            && fits(self.idempotent, effects.idempotent)
            && fits(self.open_world, effects.open_world)
    }
}

/// What happens where no rule matches (SPEC section 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Read-only tools run, all others ask.
    #[default]
    Ask,
    /// The client has its own approval screen: everything runs that no rule denies or asks for.
    Client,
    /// As `ask`, and writes inside the workspace root run.
    Workspace,
    /// Everything runs that no rule denies or asks for.
    Trusted,
    /// The owner's own act (`toolwright call`): only deny rules count.
    Owner,
}

impl Profile {
    /// The profile's name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Client => "client",
            Self::Workspace => "workspace",
            Self::Trusted => "trusted",
            Self::Owner => "owner",
        }
    }
}

/// Rules and profile.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Where no rule matches.
    #[serde(default)]
    pub profile: Profile,
    /// In order; the first match decides.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// Where a call's provider stands. A foreign read-only hint loosens nothing unless the provider is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintTrust {
    /// Our own tools, and providers marked `trusted`.
    Trusted,
    /// Anybody else's.
    Foreign,
}

/// One question to the policy, asked with the call's real arguments just before it runs.
#[derive(Debug, Clone, Copy)]
pub struct PolicyQuery<'a> {
    /// The tool.
    pub definition: &'a ToolDefinition,
    /// Whether its hints may loosen.
    pub trust: HintTrust,
    /// The caller's roles.
    pub roles: &'a [String],
    /// Whether all that the call writes is known to lie inside the workspace root.
    pub inside_workspace: bool,
    /// How a call without schema validation may run; `None` when it was validated.
    pub unvalidated: Option<NoSchemaMode>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What to do.
    pub effect: Effect,
    /// What decided: `rule N` (from 1), or `profile NAME`.
    pub rule: String,
    /// Why, in words.
    pub reason: String,
}

impl Policy {
    /// A policy without rules.
    #[must_use]
    pub fn of(profile: Profile) -> Self {
        Self { profile, rules: Vec::new() }
    }

    /// Decides. Pure and total: every call gets an answer.
    #[must_use]
    pub fn decide(&self, query: &PolicyQuery<'_>) -> Decision {
        for (index, rule) in self.rules.iter().enumerate() {
            let counts = self.profile != Profile::Owner || rule.effect == Effect::Deny;
            if counts && rule.matches(query) {
                let reason =
                    rule.reason.clone().unwrap_or_else(|| format!("rule {} says {}", index + 1, rule.effect.as_str()));
                return Decision { effect: rule.effect, rule: format!("rule {}", index + 1), reason };
            }
        }
        let (effect, reason) = self.by_profile(query);
        Decision { effect, rule: format!("profile {}", self.profile.as_str()), reason: reason.to_owned() }
    }

    fn by_profile(&self, query: &PolicyQuery<'_>) -> (Effect, &'static str) {
        let effects = query.definition.effects;
        let reads = effects.read_only && query.trust == HintTrust::Trusted;
        if self.profile == Profile::Owner {
            return (Effect::Allow, "the owner's own call");
        }
        match query.unvalidated {
            Some(NoSchemaMode::HumanApproval) => {
                return (Effect::Ask, "its arguments cannot be validated: a person decides");
            }
            Some(NoSchemaMode::ReadOnly) if !reads => {
                return (Effect::Ask, "its arguments cannot be validated and it may write");
            }
            _ => {}
        }
        match self.profile {
            Profile::Client => (Effect::Allow, "the client decides"),
            Profile::Trusted => (Effect::Allow, "everything is trusted"),
            _ if reads => (Effect::Allow, "it only reads"),
            Profile::Workspace if query.inside_workspace && query.trust == HintTrust::Trusted => {
                (Effect::Allow, "it writes inside the workspace only")
            }
            Profile::Workspace => {
                (Effect::Ask, "it may write outside the workspace, or to files that decide what runs")
            }
            _ if query.trust == HintTrust::Foreign && effects.read_only => {
                (Effect::Ask, "it says that it only reads, but its provider is not marked trusted")
            }
            _ => (Effect::Ask, "it may change something"),
        }
    }
}

impl Effect {
    /// The effect's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        }
    }
}

impl Rule {
    fn matches(&self, query: &PolicyQuery<'_>) -> bool {
        let id = &query.definition.id;
        let fits = |pattern: &Option<String>, test: &dyn Fn(&str) -> bool| pattern.as_deref().is_none_or(test);
        // A foreign tool's own word that it is harmless must not make an `allow` rule match.
        let effects = if self.effect == Effect::Allow && query.trust == HintTrust::Foreign {
            Effects::UNKNOWN
        } else {
            query.definition.effects
        };
        fits(&self.tool, &|p| glob_match(p, id.as_str()) || glob_match(p, id.without_version()))
            && fits(&self.namespace, &|p| glob_match(p, id.namespace()))
            && fits(&self.tag, &|t| query.definition.tags.iter().any(|tag| tag == t))
            && fits(&self.role, &|r| query.roles.iter().any(|role| role == r))
            && self.effects.matches(effects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::ToolId;
    use serde_json::json;

    fn tool(id: &str, effects: Effects) -> ToolDefinition {
        let mut definition = ToolDefinition::new(ToolId::parse(id).expect("id"), "", None);
        definition.effects = effects;
        definition.tags = vec!["t".into()];
        definition
    }

    fn query(definition: &ToolDefinition, trust: HintTrust) -> PolicyQuery<'_> {
        PolicyQuery { definition, trust, roles: &[], inside_workspace: false, unvalidated: None }
    }

    fn check(policy: &Policy, query: &PolicyQuery<'_>, effect: Effect, rule: &str) {
        let decision = policy.decide(query);
        assert_eq!((decision.effect, decision.rule.as_str()), (effect, rule), "{}", decision.reason);
    }

    #[test]
    fn profiles_decide_where_no_rule_does() {
        let read = tool("fs:read@1.0.0", Effects::READ);
        let write = tool("fs:write@1.0.0", Effects::WRITE);
        let own = |d| query(d, HintTrust::Trusted);
        for (profile, reads, writes) in [
            (Profile::Ask, Effect::Allow, Effect::Ask),
            (Profile::Workspace, Effect::Allow, Effect::Ask),
            (Profile::Client, Effect::Allow, Effect::Allow),
            (Profile::Trusted, Effect::Allow, Effect::Allow),
            (Profile::Owner, Effect::Allow, Effect::Allow),
        ] {
            let name = format!("profile {}", profile.as_str());
            check(&Policy::of(profile), &own(&read), reads, &name);
            check(&Policy::of(profile), &own(&write), writes, &name);
        }
        let inside = PolicyQuery { inside_workspace: true, ..own(&write) };
        check(&Policy::of(Profile::Workspace), &inside, Effect::Allow, "profile workspace");
        check(&Policy::of(Profile::Ask), &inside, Effect::Ask, "profile ask");
    }

    #[test]
    fn foreign_hints_only_tighten() {
        let read = tool("gh:read@0.0.0", Effects::READ);
        let foreign = query(&read, HintTrust::Foreign);
        check(&Policy::of(Profile::Ask), &foreign, Effect::Ask, "profile ask");
        let mut policy = Policy::of(Profile::Ask);
        policy.rules =
            serde_json::from_value(json!([{"effect": "allow", "effects": {"read_only": true}}])).expect("rules");
        check(&policy, &foreign, Effect::Ask, "profile ask");
        policy.rules =
            serde_json::from_value(json!([{"effect": "deny", "effects": {"read_only": true}}])).expect("rules");
        check(&policy, &foreign, Effect::Deny, "rule 1");
    }

    #[test]
    fn the_first_matching_rule_wins_by_every_selector() {
        let write = tool("fs:write@1.0.0", Effects::WRITE);
        let roles = ["dev".to_owned()];
        let own = PolicyQuery { roles: &roles, ..query(&write, HintTrust::Trusted) };
        for (selector, matches) in [
            (json!({"tool": "fs:write"}), true),
            (json!({"tool": "fs:write@1.0.0"}), true),
            (json!({"tool": "fs:*"}), true),
            (json!({"tool": "fs:read"}), false),
            (json!({"namespace": "f?"}), true),
            (json!({"namespace": "web"}), false),
            (json!({"tag": "t"}), true),
            (json!({"tag": "u"}), false),
            (json!({"role": "dev"}), true),
            (json!({"role": "ops"}), false),
            (json!({"effects": {"destructive": true, "open_world": false}}), true),
            (json!({"effects": {"open_world": true}}), false),
            (json!({"tool": "fs:*", "tag": "u"}), false),
        ] {
            let mut rule = selector.clone();
            rule["effect"] = json!("deny");
            let policy: Policy =
                serde_json::from_value(json!({"profile": "trusted", "rules": [rule, {"effect": "ask"}]}))
                    .expect("policy");
            check(
                &policy,
                &own,
                if matches { Effect::Deny } else { Effect::Ask },
                if matches { "rule 1" } else { "rule 2" },
            );
        }
    }

    #[test]
    fn the_owner_is_bound_by_deny_rules_only() {
        let write = tool("fs:write@1.0.0", Effects::WRITE);
        let policy: Policy = serde_json::from_value(
            json!({"profile": "owner", "rules": [{"effect": "ask"}, {"effect": "deny", "tool": "fs:write"}]}),
        )
        .expect("policy");
        check(&policy, &query(&write, HintTrust::Trusted), Effect::Deny, "rule 2");
    }

    #[test]
    fn calls_without_a_schema_follow_their_mode() {
        let write = tool("x:t@1.0.0", Effects::WRITE);
        let read = tool("x:r@1.0.0", Effects::READ);
        let with = |d, mode| PolicyQuery { unvalidated: Some(mode), ..query(d, HintTrust::Trusted) };
        let trusted = Policy::of(Profile::Trusted);
        check(&trusted, &with(&write, NoSchemaMode::ReadOnly), Effect::Ask, "profile trusted");
        check(&trusted, &with(&read, NoSchemaMode::ReadOnly), Effect::Allow, "profile trusted");
        check(&trusted, &with(&read, NoSchemaMode::HumanApproval), Effect::Ask, "profile trusted");
        check(&trusted, &with(&write, NoSchemaMode::Full), Effect::Allow, "profile trusted");
    }

    #[test]
    fn an_allow_rule_lifts_the_mode_of_a_tool_without_a_schema_and_a_profile_never_does() {
        let write = tool("x:t@1.0.0", Effects::WRITE);
        for mode in [NoSchemaMode::HumanApproval, NoSchemaMode::ReadOnly] {
            let unvalidated =
                PolicyQuery { unvalidated: Some(mode), inside_workspace: true, ..query(&write, HintTrust::Trusted) };
            for profile in [Profile::Ask, Profile::Client, Profile::Workspace, Profile::Trusted] {
                let name = format!("profile {}", profile.as_str());
                check(&Policy::of(profile), &unvalidated, Effect::Ask, &name);
                let with = |rules| Policy { profile, rules: serde_json::from_value(rules).expect("rules") };
                let allow = json!({"effect": "allow", "tool": "x:*"});
                check(&with(json!([allow])), &unvalidated, Effect::Allow, "rule 1");
                check(&with(json!([{"effect": "deny", "tool": "x:t"}, allow])), &unvalidated, Effect::Deny, "rule 1");
                check(&with(json!([{"effect": "allow", "tool": "y:*"}])), &unvalidated, Effect::Ask, &name);
            }
            check(&Policy::of(Profile::Owner), &unvalidated, Effect::Allow, "profile owner");
        }
    }
}
