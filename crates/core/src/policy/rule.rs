//! Defines rules and their selectors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::condition::Condition;
use super::facts::{BatchedCall, Facts};
use super::{Effect, PolicyQuery, RuleDirection};
use crate::definition::{Effects, ToolDefinition};
use crate::identity::tool_id::{ToolId, wire_candidate};
use crate::pattern::glob_match;

/// One rule: every selector that is given must match. A rule without selectors matches every call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it does.
    pub effect: Effect,
    /// Which calls it is for.
    #[serde(flatten)]
    pub selector: Selector,
    /// The reason that is given when the rule decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Which calls are meant: all that is set must match; with nothing set, every call is meant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Selector {
    /// Glob on the tool's id, with or without its version (`fs:write`, `github:*`), or on its name (`fs__write`).
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
    /// Condition on the call: a CEL expression over `args`, `tool`, `effects`, `principal`, `workspace` and `request`,
    /// like `has(args.amount) && args.amount > 100`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
}

impl Rule {
    /// Calls of these tools run: `tool` is a glob on ids (`fs:read`) or on the names that models use (`fs__*`).
    #[must_use]
    pub fn allow(tool: impl Into<String>) -> Self {
        Self::of_tool(Effect::Allow, tool.into())
    }

    /// Calls of these tools are refused.
    #[must_use]
    pub fn deny(tool: impl Into<String>) -> Self {
        Self::of_tool(Effect::Deny, tool.into())
    }

    /// A rule that asks a person about calls of these tools.
    #[must_use]
    pub fn ask(tool: impl Into<String>) -> Self {
        Self::of_tool(Effect::Ask, tool.into())
    }

    /// Adds a reason for the rule's decisions.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    fn of_tool(effect: Effect, tool: String) -> Self {
        Self { effect, selector: Selector { tool: Some(tool), ..Selector::default() }, reason: None }
    }
}

impl Selector {
    /// Whether a call is selected, for a tightening use (a guard, a limit): a foreign tool's own hints
    /// cannot exclude it, the operator's notes can.
    ///
    /// # Errors
    /// The reason why its condition cannot be evaluated. The caller must then choose the safe side.
    pub fn selects(&self, query: &PolicyQuery<'_>, notes: &[ToolNote]) -> Result<bool, String> {
        let facts = Facts::of(query, notes);
        match &*facts.parts() {
            [] => self.matches(&facts, None, RuleDirection::Tightens),
            parts => parts.iter().try_fold(false, |is_meant, part| {
                Ok(is_meant || self.matches(&facts, Some(part), RuleDirection::Tightens)?)
            }),
        }
    }

    /// Whether its condition is about calls that change Toolwright's own configuration.
    pub(super) fn names_configuration(&self) -> bool {
        self.when.as_ref().is_some_and(Condition::names_configuration)
    }

    pub(super) fn matches(
        &self,
        facts: &Facts<'_>,
        part: Option<&BatchedCall<'_>>,
        rule: RuleDirection,
    ) -> Result<bool, String> {
        if !self.names(facts) {
            return Ok(false);
        }
        for effects in facts.views(rule).filter(|effects| self.effects.matches(*effects)) {
            let holds = match &self.when {
                Some(condition) => facts.meets(condition, effects, part)?,
                None => true,
            };
            if holds {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether it may select calls of a tool with unknown arguments.
    pub(super) fn coverage(&self, facts: &Facts<'_>, rule: RuleDirection) -> Coverage {
        if !self.names(facts) || !facts.views(rule).any(|effects| self.effects.matches(effects)) {
            Coverage::None
        } else if self.when.is_some() {
            Coverage::Some
        } else {
            Coverage::All
        }
    }

    /// Whether it may select calls of a tool, for some caller and arguments: by names and tags only, including
    /// tags from `notes`.
    #[must_use]
    pub fn concerns(&self, definition: &ToolDefinition, notes: &[ToolNote]) -> bool {
        let noted = || notes.iter().filter(|note| note.covers(&definition.id)).flat_map(|note| &note.tags);
        self.names_tool(definition, &|tag| definition.tags.iter().chain(noted()).any(|has| has == tag))
    }

    /// Whether names, tags and roles match the tool and the caller.
    fn names(&self, facts: &Facts<'_>) -> bool {
        let has_role = |role: &str| facts.query.principal.roles.iter().any(|has| has == role);
        self.names_tool(facts.query.definition, &|tag| facts.has_tag(tag)) && self.role.as_deref().is_none_or(has_role)
    }

    fn names_tool(&self, definition: &ToolDefinition, has_tag: &dyn Fn(&str) -> bool) -> bool {
        let fits = |pattern: &Option<String>, test: &dyn Fn(&str) -> bool| pattern.as_deref().is_none_or(test);
        let id = &definition.id;
        fits(&self.tool, &|p| {
            is_named(p, id) || definition.parts.as_ref().is_some_and(|parts| is_named(p, &parts.tool))
        }) && fits(&self.namespace, &|p| glob_match(p, id.namespace()))
            && fits(&self.tag, has_tag)
    }
}

/// Whether a glob fits an id, with or without its version.
fn fits_id(pattern: &str, id: &ToolId) -> bool {
    let (id_alone, whole) = (id.without_version(), id.as_str());
    glob_match(pattern, id_alone) || whole.len() > id_alone.len() && glob_match(pattern, whole)
}

fn is_named(pattern: &str, id: &ToolId) -> bool {
    fits_id(pattern, id)
        || pattern.as_bytes().windows(2).any(|pair| pair == b"__")
            && glob_match(pattern, &wire_candidate(id.namespace(), id.name()))
}

/// The calls of a tool that a selector matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coverage {
    /// No calls.
    None,
    /// The calls that meet its condition.
    Some,
    /// All calls.
    All,
}

/// What a tool may do, hint by hint. In a rule, one that is not given does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EffectSelector {
    /// It only reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// It may destroy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive: Option<bool>,
    /// A second call with the same arguments changes nothing more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// It reaches beyond this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world: Option<bool>,
}

impl EffectSelector {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn matches(self, effects: Effects) -> bool {
        let fits = |wanted: Option<bool>, has: bool| wanted.is_none_or(|wanted| wanted == has);
        fits(self.read_only, effects.read_only)
            && fits(self.destructive, effects.destructive)
            && fits(self.idempotent, effects.idempotent)
            && fits(self.open_world, effects.open_world)
    }

    /// Fills missing values from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            read_only: self.read_only.or(others.read_only),
            destructive: self.destructive.or(others.destructive),
            idempotent: self.idempotent.or(others.idempotent),
            open_world: self.open_world.or(others.open_world),
        }
    }

    /// Overrides `others` with the set values. A read-only tool is also not destructive and is idempotent, unless
    /// that is set too.
    #[must_use]
    pub fn over(self, others: Effects) -> Effects {
        let others = match self.read_only {
            Some(true) => Effects { open_world: others.open_world, ..Effects::READ },
            _ => others,
        };
        Effects {
            read_only: self.read_only.unwrap_or(others.read_only),
            destructive: self.destructive.unwrap_or(others.destructive),
            idempotent: self.idempotent.unwrap_or(others.idempotent),
            open_world: self.open_world.unwrap_or(others.open_world),
        }
    }
}

/// What the operator says of tools whose servers say nothing, or not enough. Of several notes on one tool, each
/// effect is that of the first which sets it, and all tags count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolNote {
    /// Glob on the tool's id, with or without its version (`mail:get_*`).
    pub tool: String,
    /// What the tool may do. An effect that is not set stays as it is. Rules and profiles believe these effects as they
    /// believe a trusted server's.
    #[serde(default, skip_serializing_if = "EffectSelector::is_empty")]
    pub effects: EffectSelector,
    /// Tags, besides its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

impl ToolNote {
    /// Whether it covers a tool.
    #[must_use]
    pub fn covers(&self, id: &ToolId) -> bool {
        fits_id(&self.tool, id)
    }
}
