//! Decides whether a call may run: one ordered rule list, in which the first match wins, and a profile for calls that
//! no rule matches.
//!
//! A matching `allow` rule also lets a call run whose arguments no schema validated, whatever its [`NoSchemaMode`]: a
//! person wrote the rule for that tool. Without a rule the mode precedes the profile, which cannot lift it, except for
//! the owner's own calls. The same applies to demands of a tool's author (`approval`, `threat_level`).
//!
//! A call that writes Toolwright's own configuration ([`CallScope::Configuration`]) needs approval under every profile
//! except the owner's. An `allow` rule lets it run only if its condition names `workspace.configuration`: a rule about
//! files in general does not cover the file with the rules.

mod always;
mod condition;
mod facts;
pub mod pins;
mod replay;
mod rights;
mod rule;
#[cfg(test)]
mod tests;
mod text_scan;
mod user_request;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::facts::{BatchedCall, Facts};
use self::rule::Coverage;
use crate::definition::CallScope;
use crate::definition::{Effects, NoSchemaMode, ProviderKind, ToolDefinition};
use crate::identity::session::Principal;
use crate::identity::taint::TaintedArgument;
use crate::identity::tool_id::ToolId;

pub use self::always::AlwaysRule;
pub use self::condition::{Condition, ConditionError, MAX_SOURCE};
pub use self::replay::{ChangedDecision, RuleHits};
pub use self::rights::{AgentLimits, Rights};
pub use self::rule::{EffectSelector, Rule, Selector, ToolNote};
pub use self::user_request::UserRequest;

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Run.
    Allow,
    /// Refuse.
    Deny,
    /// Ask a person.
    Ask,
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

    /// Rank of strictness: higher values let fewer calls run.
    pub(crate) fn strictness(self) -> u8 {
        match self {
            Self::Allow => 0,
            Self::Ask => 1,
            Self::Deny => 2,
        }
    }

    fn direction(self) -> RuleDirection {
        if self == Self::Allow { RuleDirection::Loosens } else { RuleDirection::Tightens }
    }
}

/// Whether a rule loosens or tightens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleDirection {
    /// It allows calls.
    Loosens,
    /// It restricts calls.
    Tightens,
}

/// Decides calls that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Read-only tools run, all others ask.
    #[default]
    Ask,
    /// The client has its own approval screen: everything runs that no rule denies or asks for.
    Client,
    /// As `ask`, and writes inside the workspace root run.
    Workspace,
    /// Everything runs that no rule denies or asks for, except calls that change Toolwright's own configuration.
    Trusted,
    /// The owner's own act (`toolwright call`): only a deny rule holds it back, if it is the first that matches. Nobody is
    /// asked.
    // No word of a configuration.
    #[schemars(skip)]
    Owner,
}

impl Profile {
    /// Every profile.
    const ALL: [Self; 5] = [Self::Ask, Self::Client, Self::Workspace, Self::Trusted, Self::Owner];

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

    /// The name of what decides.
    fn rule(self) -> &'static str {
        match self {
            Self::Ask => "profile ask",
            Self::Client => "profile client",
            Self::Workspace => "profile workspace",
            Self::Trusted => "profile trusted",
            Self::Owner => "profile owner",
        }
    }
}

/// Rules and profile.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Decides if no rule matches.
    #[serde(default)]
    pub profile: Profile,
    /// The rules in order; the first match decides.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// The operator's notes on tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolNote>,
    /// The policy of the parent agent, if any: the stricter of both decisions counts.
    #[serde(skip)]
    pub within: Option<Arc<Policy>>,
}

/// Trust in a provider's hints. A foreign read-only hint loosens nothing unless the provider is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintTrust {
    /// Our own tools, and providers marked `trusted`.
    Trusted,
    /// Another party's.
    Foreign,
}

/// A query to the policy, with the call's real arguments, just before it runs.
#[derive(Debug, Clone, Copy)]
pub struct PolicyQuery<'a> {
    /// The tool.
    pub definition: &'a ToolDefinition,
    /// Whether its hints may loosen policy.
    pub trust: HintTrust,
    /// The caller.
    pub principal: &'a Principal,
    /// The workspace root.
    pub root: &'a Path,
    /// The resources that the call would touch.
    pub scope: CallScope,
    /// How a call without schema validation may run; `None` if it was validated.
    pub unvalidated: Option<NoSchemaMode>,
    /// The resolved arguments.
    pub arguments: &'a Value,
    /// The user's own words, if known: in runs of an agent, not behind a gateway.
    pub request: Option<&'a Arc<UserRequest>>,
    /// Places of the arguments whose values came from untrusted tools.
    pub tainted: &'a [TaintedArgument],
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The effect.
    pub effect: Effect,
    /// The deciding part: `rule N` (from 1), `profile NAME`, or `tool` if its author demands approval.
    pub rule: Cow<'static, str>,
    /// Why, in words.
    pub reason: String,
}

/// Possible decisions on calls of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PossibleDecisions {
    /// Some calls may be allowed.
    pub allows: bool,
    /// Some calls may need approval.
    pub asks: bool,
}

impl PossibleDecisions {
    fn add(&mut self, effect: Effect) {
        match effect {
            Effect::Allow => self.allows = true,
            Effect::Ask => self.asks = true,
            Effect::Deny => {}
        }
    }

    /// Combines with the possible decisions of an outer policy.
    fn under(self, outer: Self) -> Self {
        let both = (self.allows || self.asks) && (outer.allows || outer.asks);
        Self { allows: self.allows && outer.allows, asks: (self.asks || outer.asks) && both }
    }
}

/// Namespaces of built-in tools that relay other tools' results, or text based on them.
const RELAYS: [&str; 5] = ["output", "job", "memory", "channel", "log"];
/// Id of the tool that changes the to-do list of a session. It returns the list.
pub const TODO_ID: &str = "agent:todo@1.0.0";

/// Whether a built-in tool relays text of others.
fn relays(id: &ToolId) -> bool {
    RELAYS.contains(&id.namespace()) || id.as_str() == TODO_ID
}

/// The namespace of agents as tools, which is reserved.
const AGENTS: &str = "agent";

/// Names of the first rules, preallocated because every decision has one.
const RULE_NAMES: [&str; 16] = [
    "rule 1", "rule 2", "rule 3", "rule 4", "rule 5", "rule 6", "rule 7", "rule 8", "rule 9", "rule 10", "rule 11",
    "rule 12", "rule 13", "rule 14", "rule 15", "rule 16",
];

fn rule_name(index: usize) -> Cow<'static, str> {
    match RULE_NAMES.get(index) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("rule {}", index + 1)),
    }
}

impl Profile {
    /// Returns the profile that allows fewer calls.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let rank = |profile| match profile {
            Self::Ask => 0,
            Self::Workspace => 1,
            Self::Client => 2,
            Self::Trusted => 3,
            Self::Owner => 4,
        };
        if rank(other) < rank(self) { other } else { self }
    }
}

impl Policy {
    /// A policy without rules.
    #[must_use]
    pub fn of(profile: Profile) -> Self {
        Self { profile, ..Self::default() }
    }

    /// Nests this policy in another: the stricter of both decisions counts.
    #[must_use]
    pub fn under(self, outer: Self) -> Self {
        let within = match self.within {
            Some(within) => Arc::unwrap_or_clone(within).under(outer),
            None => outer,
        };
        Self { within: Some(Arc::new(within)), ..self }
    }

    /// This policy and each that it is within, each alone.
    #[must_use]
    pub fn chain(&self) -> Vec<Self> {
        let all = std::iter::successors(Some(self), |policy| policy.within.as_deref());
        all.map(|policy| Self { within: None, ..policy.clone() }).collect()
    }

    /// Builds the policy with this [`chain`](Self::chain); `None` for an empty one.
    #[must_use]
    pub fn of_chain(chain: &[Self]) -> Option<Self> {
        chain.iter().rev().cloned().reduce(|outer, policy| policy.under(outer))
    }

    /// Decides. Pure and total: every call gets a decision. A rule whose condition fails on the call denies it.
    #[must_use]
    pub fn decide(&self, query: &PolicyQuery<'_>) -> Decision {
        let own = self.decide_by_parts(query);
        match &self.within {
            Some(within) if own.effect != Effect::Deny => {
                let outer = within.decide(query);
                let is_tie = outer.effect == own.effect;
                let is_stricter = outer.effect.strictness() > own.effect.strictness();
                if is_stricter || (is_tie && self.is_wider(&own, &outer)) { outer } else { own }
            }
            _ => own,
        }
    }

    /// Whether this policy's profile allowed it and leaves the decision to the outer policy: its rule or stricter
    /// profile.
    fn is_wider(&self, own: &Decision, outer: &Decision) -> bool {
        let wider = Profile::ALL.iter().filter(|profile| self.profile.stricter(**profile) == self.profile);
        own.rule == self.profile.rule() && wider.map(|profile| profile.rule()).all(|rule| rule != outer.rule)
    }

    /// Decides a call that stands for several part by part; the first of the strictest decisions counts.
    fn decide_by_parts(&self, query: &PolicyQuery<'_>) -> Decision {
        let facts = Facts::of(query, &self.tools);
        let parts = facts.parts();
        let decisions = parts.iter().map(|part| {
            let decision = self.decide_part(&facts, Some(part));
            match &decision.rule {
                rule if rule.starts_with("rule ") => {
                    Decision { reason: format!("{}: {}", part.name(), decision.reason), ..decision }
                }
                _ => decision,
            }
        });
        let stricter = |one: Decision, other: Decision| {
            if other.effect.strictness() > one.effect.strictness() { other } else { one }
        };
        decisions.reduce(stricter).unwrap_or_else(|| self.decide_part(&facts, None))
    }

    fn decide_part(&self, facts: &Facts<'_>, part: Option<&BatchedCall<'_>>) -> Decision {
        let query = facts.query;
        for (index, rule) in self.rules.iter().enumerate() {
            let effect = self.effect_of(rule);
            if effect == Effect::Allow && self.reserves(query) && !rule.selector.names_configuration() {
                continue;
            }
            let name = || rule_name(index);
            match rule.selector.matches(facts, part, effect.direction()) {
                Ok(false) => {}
                Ok(true) => {
                    let name = name();
                    let reason = rule.reason.clone();
                    let reason = reason.unwrap_or_else(|| [&*name, " says ", rule.effect.as_str()].concat());
                    return Decision { effect, rule: name, reason };
                }
                // A failed condition neither protects nor delays the owner's own call.
                Err(_) if self.profile == Profile::Owner && effect != Effect::Deny => {}
                Err(why) => {
                    let reason = format!("the condition of {} cannot be evaluated for this call: {why}", name());
                    return Decision { effect: Effect::Deny, rule: name(), reason };
                }
            }
        }
        let (effect, reason) = self.by_profile(facts);
        if let (Effect::Allow, true, Some(reason)) =
            (effect, self.profile != Profile::Owner, author_demand(query.definition))
        {
            return Decision { effect: Effect::Ask, rule: Cow::Borrowed("tool"), reason };
        }
        Decision { effect, rule: Cow::Borrowed(self.profile.rule()), reason: reason.to_owned() }
    }

    /// Returns the possible decisions on calls of the tool with any arguments: a rule with a condition
    /// may match or not.
    #[must_use]
    pub fn possible_decisions(&self, query: &PolicyQuery<'_>) -> PossibleDecisions {
        let own = self.own_possible_decisions(query);
        self.within.as_ref().map_or(own, |within| own.under(within.possible_decisions(query)))
    }

    fn own_possible_decisions(&self, query: &PolicyQuery<'_>) -> PossibleDecisions {
        let facts = Facts::of(query, &self.tools);
        let mut prospects = PossibleDecisions::default();
        for rule in &self.rules {
            let effect = self.effect_of(rule);
            match rule.selector.coverage(&facts, effect.direction()) {
                Coverage::None => {}
                Coverage::Some => prospects.add(effect),
                Coverage::All => {
                    prospects.add(effect);
                    return prospects;
                }
            }
        }
        prospects.add(match self.by_profile(&facts).0 {
            Effect::Allow if self.profile != Profile::Owner && author_demand(query.definition).is_some() => Effect::Ask,
            effect => effect,
        });
        prospects
    }

    /// Returns trusted effects of the tool: the operator's note, else its definition if its provider is
    /// trusted. Other tools may do anything, whatever their hints.
    #[must_use]
    pub fn effects_if_trusted(&self, query: &PolicyQuery<'_>) -> Effects {
        match &self.within {
            Some(within) => within.effects_if_trusted(query),
            None => Facts::of(query, &self.tools).trusted_effects(),
        }
    }

    /// Whether values from this tool's results are tainted. They are if the
    /// tool reaches an open world and nobody vouches for it, or relays text of others: stored
    /// outputs, jobs, notes, channels and answers of agents. Marking a server `trusted` vouches for its results; for
    /// other tools, an operator's note (`open_world: false`) or the built-in tool's author does.
    #[must_use]
    pub fn taints(&self, query: &PolicyQuery<'_>, kind: ProviderKind) -> bool {
        match kind {
            ProviderKind::Mcp if query.trust == HintTrust::Trusted => false,
            ProviderKind::Agent => true,
            ProviderKind::Builtin if relays(&query.definition.id) => true,
            _ => self.effects_if_trusted(query).open_world,
        }
    }

    /// Returns the effect of a rule under the profile: the owner is not asked about own calls.
    fn effect_of(&self, rule: &Rule) -> Effect {
        match (self.profile, rule.effect) {
            (Profile::Owner, Effect::Ask) => Effect::Allow,
            (_, effect) => effect,
        }
    }

    /// Whether only a rule that names it may allow the call, and no profile.
    fn reserves(&self, query: &PolicyQuery<'_>) -> bool {
        query.scope == CallScope::Configuration && self.profile != Profile::Owner
    }

    fn by_profile(&self, facts: &Facts<'_>) -> (Effect, &'static str) {
        let query = facts.query;
        let reads = facts.effects.read_only && facts.trusted;
        if self.profile == Profile::Owner {
            return (Effect::Allow, "the owner's own call");
        }
        if self.reserves(query) {
            return (Effect::Ask, "it changes Toolwright's own configuration: a person decides under every profile");
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
        let is_agent = query.trust == HintTrust::Trusted && query.definition.id.namespace() == AGENTS;
        match self.profile {
            Profile::Client => (Effect::Allow, "the client decides"),
            Profile::Trusted => (Effect::Allow, "everything is trusted"),
            _ if reads => (Effect::Allow, "it only reads"),
            _ if is_agent => (Effect::Allow, "each call of an agent is decided by itself"),
            Profile::Workspace if query.scope == CallScope::Workspace && query.trust == HintTrust::Trusted => {
                (Effect::Allow, "it writes inside the workspace only")
            }
            Profile::Workspace => {
                (Effect::Ask, "it may write outside the workspace, or to files that decide what runs")
            }
            _ if !facts.trusted && facts.effects.read_only => {
                (Effect::Ask, "it says that it only reads, but its provider is not marked trusted")
            }
            _ => (Effect::Ask, "it may change something"),
        }
    }
}

/// Returns the reason if the tool's author demands approval. The author can only tighten: any text not known
/// to mean less counts as a demand.
fn author_demand(definition: &ToolDefinition) -> Option<String> {
    let says = |word: &Option<String>, mild: &[&str]| {
        word.clone().filter(|word| !mild.iter().any(|mild| word.eq_ignore_ascii_case(mild)))
    };
    if let Some(approval) = says(&definition.approval, &["never", "none", "auto", "policy"]) {
        return Some(format!("its author wants a person asked (approval: {approval})"));
    }
    let level = says(&definition.threat_level, &["none", "low", "medium", "moderate"])?;
    Some(format!("its author rates it as dangerous (threat_level: {level})"))
}
