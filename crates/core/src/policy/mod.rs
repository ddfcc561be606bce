//! Decides whether a call may run: one ordered rule list, first match wins; a profile decides where no rule does.
//!
//! A call whose arguments no schema validated is no exception: an `allow` rule that matches it is a person's
//! word about that tool and lets it run, whatever its [`NoSchemaMode`]. Without a rule the mode comes before
//! the profile, which never lifts it; only the owner's own call is not held up. The same goes for what a tool's
//! author demands with `approval` or `threat_level`.
//!
//! What writes Toolwright's own configuration ([`CallScope::Configuration`]) asks under every profile but the owner's own.
//! An `allow` rule lets it run only if its condition names `workspace.configuration`: one that was written about files in
//! general is no word about the file that the rules themselves are in.

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

use self::facts::{Facts, Part};
use self::rule::Reaches;
use crate::definition::CallScope;
use crate::definition::{Effects, NoSchemaMode, ProviderKind, ToolDefinition};
use crate::identity::session::Principal;
use crate::identity::taint::Tainted;
use crate::identity::tool_id::ToolId;

pub use self::always::AlwaysRule;
pub use self::condition::{Condition, ConditionError, MAX_SOURCE};
pub use self::replay::{Changed, Hits};
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

    /// More for what lets less run.
    pub(crate) fn strictness(self) -> u8 {
        match self {
            Self::Allow => 0,
            Self::Ask => 1,
            Self::Deny => 2,
        }
    }

    fn tightening(self) -> Tightening {
        if self == Self::Allow { Tightening::Loosens } else { Tightening::Tightens }
    }
}

/// Which way a rule works on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tightening {
    /// It lets calls run.
    Loosens,
    /// It holds calls up.
    Tightens,
}

/// What happens where no rule matches.
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
    /// Everything runs that no rule denies or asks for, but for what changes Toolwright's own configuration.
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

    /// What decides where it does.
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
    /// Where no rule matches.
    #[serde(default)]
    pub profile: Profile,
    /// In order; the first match decides.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// What the operator says of tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolNote>,
    /// The policy of whoever started the agent that this one is of: the stricter verdict of the two counts.
    #[serde(skip)]
    pub within: Option<Arc<Policy>>,
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
    /// The caller.
    pub principal: &'a Principal,
    /// The workspace root.
    pub root: &'a Path,
    /// What the call would touch.
    pub scope: CallScope,
    /// How a call without schema validation may run; `None` when it was validated.
    pub unvalidated: Option<NoSchemaMode>,
    /// The resolved arguments.
    pub arguments: &'a Value,
    /// The user's own words, where they are known: in runs of an agent, not behind a gateway.
    pub request: Option<&'a Arc<UserRequest>>,
    /// The places of the arguments whose values came out of untrusted tools.
    pub tainted: &'a [Tainted],
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What to do.
    pub effect: Effect,
    /// What decided: `rule N` (from 1), `profile NAME`, or `tool` where its author wants a person asked.
    pub rule: Cow<'static, str>,
    /// Why, in words.
    pub reason: String,
}

/// What may become of calls of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prospects {
    /// Some may be let through.
    pub allows: bool,
    /// A person may be asked about some.
    pub asks: bool,
}

impl Prospects {
    fn add(&mut self, effect: Effect) {
        match effect {
            Effect::Allow => self.allows = true,
            Effect::Ask => self.asks = true,
            Effect::Deny => {}
        }
    }

    /// What both these and those of an outer policy leave.
    fn under(self, outer: Self) -> Self {
        let both = (self.allows || self.asks) && (outer.allows || outer.asks);
        Self { allows: self.allows && outer.allows, asks: (self.asks || outer.asks) && both }
    }
}

/// The namespaces of built-in tools that hand on what other tools returned, or what was written out of that.
const RELAYS: [&str; 5] = ["output", "job", "memory", "channel", "log"];
/// Id of the tool that changes the to-do list of a session. It returns the list.
pub const TODO_ID: &str = "agent:todo@1.0.0";

/// Whether a built-in tool hands on what others wrote.
fn relays(id: &ToolId) -> bool {
    RELAYS.contains(&id.namespace()) || id.as_str() == TODO_ID
}

/// The namespace of agents as tools, which no other source can take.
const AGENTS: &str = "agent";

/// The names of the first rules: every call is told by which it runs.
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
    /// The one of two under which less runs.
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

    /// This policy within another: the stricter verdict of the two counts.
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

    /// The policy whose [`chain`](Self::chain) this is; `None` for an empty one.
    #[must_use]
    pub fn of_chain(chain: &[Self]) -> Option<Self> {
        chain.iter().rev().cloned().reduce(|outer, policy| policy.under(outer))
    }

    /// Decides. Pure and total: every call gets an answer. A rule whose condition fails on the call denies it.
    #[must_use]
    pub fn decide(&self, query: &PolicyQuery<'_>) -> Decision {
        let own = self.decide_alone(query);
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

    /// Whether this policy's profile decided, and left it to what is outside: a rule, or a stricter profile.
    fn is_wider(&self, own: &Decision, outer: &Decision) -> bool {
        let wider = Profile::ALL.iter().filter(|profile| self.profile.stricter(**profile) == self.profile);
        own.rule == self.profile.rule() && wider.map(|profile| profile.rule()).all(|rule| rule != outer.rule)
    }

    /// A call that is several calls of another tool is decided part by part, and the first of the strictest counts.
    fn decide_alone(&self, query: &PolicyQuery<'_>) -> Decision {
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

    fn decide_part(&self, facts: &Facts<'_>, part: Option<&Part<'_>>) -> Decision {
        let query = facts.query;
        for (index, rule) in self.rules.iter().enumerate() {
            let effect = self.effect_of(rule);
            if effect == Effect::Allow && self.reserves(query) && !rule.selector.names_configuration() {
                continue;
            }
            let name = || rule_name(index);
            match rule.selector.matches(facts, part, effect.tightening()) {
                Ok(false) => {}
                Ok(true) => {
                    let name = name();
                    let reason = rule.reason.clone();
                    let reason = reason.unwrap_or_else(|| [&*name, " says ", rule.effect.as_str()].concat());
                    return Decision { effect, rule: name, reason };
                }
                // What cannot be told shields no call of the owner, and holds none up.
                Err(_) if self.profile == Profile::Owner && effect != Effect::Deny => {}
                Err(why) => {
                    let reason = format!("the condition of {} cannot be told for this call: {why}", name());
                    return Decision { effect: Effect::Deny, rule: name(), reason };
                }
            }
        }
        let (effect, reason) = self.by_profile(facts);
        if let (Effect::Allow, true, Some(reason)) = (effect, self.profile != Profile::Owner, demand(query.definition))
        {
            return Decision { effect: Effect::Ask, rule: Cow::Borrowed("tool"), reason };
        }
        Decision { effect, rule: Cow::Borrowed(self.profile.rule()), reason: reason.to_owned() }
    }

    /// What may become of calls of the tool, whatever their arguments, which are not looked at: a rule with a condition
    /// may hold or not.
    #[must_use]
    pub fn prospects(&self, query: &PolicyQuery<'_>) -> Prospects {
        let own = self.prospects_alone(query);
        self.within.as_ref().map_or(own, |within| own.under(within.prospects(query)))
    }

    fn prospects_alone(&self, query: &PolicyQuery<'_>) -> Prospects {
        let facts = Facts::of(query, &self.tools);
        let mut prospects = Prospects::default();
        for rule in &self.rules {
            let effect = self.effect_of(rule);
            match rule.selector.reaches(&facts, effect.tightening()) {
                Reaches::None => {}
                Reaches::Some => prospects.add(effect),
                Reaches::All => {
                    prospects.add(effect);
                    return prospects;
                }
            }
        }
        prospects.add(match self.by_profile(&facts).0 {
            Effect::Allow if self.profile != Profile::Owner && demand(query.definition).is_some() => Effect::Ask,
            effect => effect,
        });
        prospects
    }

    /// The effects of the tool that somebody vouches for: the operator's note, else its definition if its provider is
    /// trusted. Any other tool may do anything, whatever it says of itself.
    #[must_use]
    pub fn vouched_effects(&self, query: &PolicyQuery<'_>) -> Effects {
        match &self.within {
            Some(within) => within.vouched_effects(query),
            None => Facts::of(query, &self.tools).vouched(),
        }
    }

    /// Whether anybody may have written what this tool returns, so that values out of it are tainted. It is so where the
    /// tool reaches beyond a closed world and nobody vouches for it, and where it hands on what others wrote before: stored
    /// outputs, jobs, notes, channels and answers of agents. A server that is marked `trusted` answers for what it
    /// returns; of any other tool, a note of the operator (`open_world: false`) or its own author does.
    #[must_use]
    pub fn taints(&self, query: &PolicyQuery<'_>, kind: ProviderKind) -> bool {
        match kind {
            ProviderKind::Mcp if query.trust == HintTrust::Trusted => false,
            ProviderKind::Agent => true,
            ProviderKind::Builtin if relays(&query.definition.id) => true,
            _ => self.vouched_effects(query).open_world,
        }
    }

    /// What a rule comes to under the profile: the owner is not asked about an own call.
    fn effect_of(&self, rule: &Rule) -> Effect {
        match (self.profile, rule.effect) {
            (Profile::Owner, Effect::Ask) => Effect::Allow,
            (_, effect) => effect,
        }
    }

    /// Whether the call is no rule's to let run that does not name it, and no profile's.
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

/// Why the tool's author wants a person asked, if so. The author's word can only tighten: what asks for less, or
/// is no word that is known to ask for less, is a demand.
fn demand(definition: &ToolDefinition) -> Option<String> {
    let says = |word: &Option<String>, mild: &[&str]| {
        word.clone().filter(|word| !mild.iter().any(|mild| word.eq_ignore_ascii_case(mild)))
    };
    if let Some(approval) = says(&definition.approval, &["never", "none", "auto", "policy"]) {
        return Some(format!("its author wants a person asked (approval: {approval})"));
    }
    let level = says(&definition.threat_level, &["none", "low", "medium", "moderate"])?;
    Some(format!("its author rates it as dangerous (threat_level: {level})"))
}
