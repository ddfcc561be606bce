//! Compares foreign definitions with their pins: the definition when it was first used or last approved.
//!
//! A pin holds the definition as its source gave it, under the source's own name for the tool; the operator's name and
//! the id do not matter. A source is a provider as defined in one place ([`PinSource`]). This module is pure; the store
//! keeps the rows, the catalogue applies the decisions.

mod diff;
mod schema_diff;
mod text_diff;

use std::cell::OnceCell;
use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::identity::tool_id::ToolId;
use crate::json::canonical::ContentHash;

pub use diff::{Change, ChangeSeverity, diff, renamed};
pub use text_diff::is_invisible;

/// What happens to a definition that is seen for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FirstUse {
    /// It is pinned and offered: trust on first use.
    #[default]
    Pin,
    /// It is withheld until `toolwright pins approve`.
    Ask,
}

/// What happens to a definition that differs from the pinned one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDrift {
    /// It is withheld until `toolwright pins approve`.
    #[default]
    Withhold,
    /// It is offered as it is now, with a warning.
    Warn,
}

/// When foreign definitions are offered. Every definition of an MCP server, a document from elsewhere or a remote
/// catalogue is pinned by its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PinConfig {
    /// What happens to a definition that is seen for the first time.
    pub first_use: FirstUse,
    /// What happens to a definition that differs from the pinned one.
    pub drift: OnDrift,
}

/// Hash of a definition, and the time of its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinMark {
    /// Hash of its contract, see [`crate::ToolDefinition::contract_hash`].
    pub hash: ContentHash,
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// Why it counts: `first use` or who approved it; empty while it waits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
}

/// The source of pinned definitions: a provider's name and the place that defines it. Providers of equal name that are
/// defined in different places do not share pins.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PinSource {
    /// Name of the provider.
    pub provider: String,
    /// The defining place, see [`Provider::defined_in`](crate::catalogue::Provider::defined_in); may be empty.
    pub scope: String,
}

impl PinSource {
    /// A source without a defining place.
    #[must_use]
    pub fn unscoped(provider: impl Into<String>) -> Self {
        Self { provider: provider.into(), scope: String::new() }
    }
}

/// The pin of one tool, without the definitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Its source.
    #[serde(flatten)]
    pub source: PinSource,
    /// The name at its source.
    pub tool: String,
    /// Its id, when it was last noted.
    pub id: ToolId,
    /// The approved definition; `None` if none is approved.
    pub approved: Option<PinMark>,
    /// The changed definition that waits for approval.
    pub waiting: Option<PinMark>,
    /// The source's name for the waiting definition, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed: Option<String>,
}

impl Pin {
    /// `pinned`, `changed` or `unapproved`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match (&self.approved, &self.waiting) {
            (Some(_), None) => "pinned",
            (Some(_), Some(_)) => "changed",
            (None, _) => "unapproved",
        }
    }

    /// Its name in commands: `provider/tool`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.source.provider, self.tool)
    }

    /// Returns it as lists show it; times in milliseconds since the epoch.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "provider": self.source.provider,
            "tool": self.tool,
            "renamed": self.renamed,
            "id": self.id,
            "state": self.state(),
            "approved": self.approved,
            "waiting": self.waiting,
        })
    }

    /// Returns the source's name for the waiting definition.
    #[must_use]
    pub fn waiting_name(&self) -> &str {
        self.renamed.as_deref().unwrap_or(&self.tool)
    }

    /// Whether this definition is the waiting one.
    fn is_waiting_for(&self, now: CurrentTool<'_>) -> bool {
        self.waiting_name() == now.tool && self.waiting.as_ref().is_some_and(|mark| mark.hash == now.hash)
    }
}

/// The source's current definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentTool<'a> {
    /// The name at its source.
    pub tool: &'a str,
    /// Hash of its original contract.
    pub hash: ContentHash,
}

/// Result of comparing a definition with its pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinStatus {
    /// Equal to the pin.
    Same,
    /// Without a pin.
    New,
    /// It is known, and not approved.
    Unapproved,
    /// Different from the pin.
    Drifted,
}

/// Compares a definition with its pin, or with the pin of the tool it replaces, see [`PinIndex`]. A definition under
/// another name is never equal.
#[must_use]
pub fn judge(pin: Option<&Pin>, now: CurrentTool<'_>) -> PinStatus {
    let Some(pin) = pin else { return PinStatus::New };
    match &pin.approved {
        None => PinStatus::Unapproved,
        Some(approved) if approved.hash == now.hash && pin.tool == now.tool => PinStatus::Same,
        Some(_) => PinStatus::Drifted,
    }
}

/// The decision on a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinOutcome {
    /// Whether it is offered.
    pub offered: bool,
    /// The change to record.
    pub note: PinUpdate,
}

/// The change that the store records for a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinUpdate {
    /// No change.
    Nothing,
    /// Pin the definition.
    Pin,
    /// It waits for approval.
    Wait,
    /// Drop the waiting definition: the source is back at the pinned one.
    Settle,
}

/// Decides about a definition with this verdict, under the configuration.
#[must_use]
pub fn decide(config: PinConfig, verdict: PinStatus, pin: Option<&Pin>, now: CurrentTool<'_>) -> PinOutcome {
    let waiting = pin.and_then(|pin| pin.waiting.as_ref());
    let wait = if pin.is_some_and(|pin| pin.is_waiting_for(now)) { PinUpdate::Nothing } else { PinUpdate::Wait };
    match verdict {
        PinStatus::Same => {
            PinOutcome { offered: true, note: if waiting.is_some() { PinUpdate::Settle } else { PinUpdate::Nothing } }
        }
        PinStatus::New if config.first_use == FirstUse::Pin => PinOutcome { offered: true, note: PinUpdate::Pin },
        PinStatus::New | PinStatus::Unapproved => PinOutcome { offered: false, note: wait },
        PinStatus::Drifted => PinOutcome { offered: config.drift == OnDrift::Warn, note: wait },
    }
}

/// Lookup of one source's pins.
///
/// Pins are keyed by the name at the source. Policy, scripts and people use ids, which several such names may share
/// (`get`, `Get`): an unpinned name with the id of a pinned tool replaces that tool, and is compared with its pin.
#[derive(Debug)]
pub struct PinIndex<'a> {
    pins: &'a [Pin],
    by_tool: HashMap<&'a str, &'a Pin>,
    by_id: OnceCell<HashMap<String, &'a Pin>>,
}

impl<'a> PinIndex<'a> {
    /// An index of these pins.
    #[must_use]
    pub fn new(pins: &'a [Pin]) -> Self {
        let by_tool = pins.iter().map(|pin| (pin.tool.as_str(), pin)).collect();
        Self { pins, by_tool, by_id: OnceCell::new() }
    }

    /// Returns the pin for a tool of this name and id: its own, or that of the tool it replaces.
    #[must_use]
    pub fn of(&self, tool: &str, id: &ToolId) -> Option<&'a Pin> {
        let own = self.by_tool.get(tool).copied();
        // Most tools have their own pin.
        own.or_else(|| self.by_id.get_or_init(|| self.ids()).get(id.without_version()).copied())
    }

    /// Maps pins by the ids of the pinned tools, and by the ids they would have without collisions.
    fn ids(&self) -> HashMap<String, &'a Pin> {
        let mut by_id: HashMap<String, &Pin> = HashMap::with_capacity(self.pins.len());
        for pin in self.pins {
            by_id.entry(pin.id.without_version().to_owned()).or_insert(pin);
        }
        for pin in self.pins {
            if let Ok(plain) = ToolId::foreign(pin.id.namespace(), &pin.tool) {
                by_id.entry(plain.without_version().to_owned()).or_insert(pin);
            }
        }
        by_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(text: &str) -> ContentHash {
        ContentHash::of_bytes(text.as_bytes())
    }

    fn pin(approved: Option<&str>, waiting: Option<&str>) -> Pin {
        let mark = |text: &str| PinMark { hash: hash(text), at_ms: 1, by: String::new() };
        let id = ToolId::parse("p:t@0.0.0").expect("id");
        let (source, tool) = (PinSource::unscoped("p"), "t".into());
        Pin { source, tool, id, approved: approved.map(mark), waiting: waiting.map(mark), renamed: None }
    }

    #[test]
    fn pin_and_options_decide_what_is_offered() {
        let lax = PinConfig { first_use: FirstUse::Pin, drift: OnDrift::Warn };
        let strict = PinConfig { first_use: FirstUse::Ask, drift: OnDrift::Withhold };
        let usual = PinConfig::default();
        for (config, pin, now, verdict, offered, note) in [
            (usual, None, "a", PinStatus::New, true, PinUpdate::Pin),
            (strict, None, "a", PinStatus::New, false, PinUpdate::Wait),
            (usual, Some(pin(Some("a"), None)), "a", PinStatus::Same, true, PinUpdate::Nothing),
            (usual, Some(pin(Some("a"), Some("b"))), "a", PinStatus::Same, true, PinUpdate::Settle),
            (usual, Some(pin(Some("a"), None)), "b", PinStatus::Drifted, false, PinUpdate::Wait),
            (usual, Some(pin(Some("a"), Some("b"))), "b", PinStatus::Drifted, false, PinUpdate::Nothing),
            (usual, Some(pin(Some("a"), Some("b"))), "c", PinStatus::Drifted, false, PinUpdate::Wait),
            (lax, Some(pin(Some("a"), None)), "b", PinStatus::Drifted, true, PinUpdate::Wait),
            // A refused definition stays refused when the configuration changes.
            (lax, Some(pin(None, Some("a"))), "a", PinStatus::Unapproved, false, PinUpdate::Nothing),
            (usual, Some(pin(None, Some("a"))), "b", PinStatus::Unapproved, false, PinUpdate::Wait),
        ] {
            let said = CurrentTool { tool: "t", hash: hash(now) };
            assert_eq!(judge(pin.as_ref(), said), verdict, "{pin:?} {now}");
            let decision = decide(config, verdict, pin.as_ref(), said);
            assert_eq!(decision, PinOutcome { offered, note }, "{config:?} {pin:?} {now}");
        }
    }

    #[test]
    fn replacing_a_pinned_tool_counts_as_drift() {
        let renamed = |waiting, name: &str| Pin { renamed: Some(name.into()), ..pin(Some("a"), waiting) };
        for (pin, verdict, note) in [
            (pin(Some("a"), None), PinStatus::Drifted, PinUpdate::Wait),
            (pin(Some("a"), Some("a")), PinStatus::Drifted, PinUpdate::Wait),
            (renamed(Some("a"), "T"), PinStatus::Drifted, PinUpdate::Nothing),
            (renamed(Some("a"), "tT"), PinStatus::Drifted, PinUpdate::Wait),
            (renamed(Some("b"), "T"), PinStatus::Drifted, PinUpdate::Wait),
            (pin(None, Some("a")), PinStatus::Unapproved, PinUpdate::Wait),
        ] {
            let now = CurrentTool { tool: "T", hash: hash("a") };
            assert_eq!(judge(Some(&pin), now), verdict, "{pin:?}");
            let decision = decide(PinConfig::default(), verdict, Some(&pin), now);
            assert_eq!(decision, PinOutcome { offered: false, note }, "{pin:?}");
        }
    }

    #[test]
    fn unpinned_name_uses_pin_of_same_id() {
        let pin = |tool: &str, id: &str| Pin {
            source: PinSource::unscoped("s"),
            tool: tool.into(),
            id: ToolId::parse(id).expect("id"),
            approved: None,
            waiting: None,
            renamed: None,
        };
        let pins = [
            pin("get", "s:get@0.0.0"),
            // Both were listed at the same time.
            pin("Put", "s:put_11111111@0.0.0"),
            pin("put", "s:put_22222222@0.0.0"),
            pin("a.b", "s:a_b@0.0.0"),
            pin("greet", "s:greet@1.0.0"),
        ];
        let index = PinIndex::new(&pins);
        for (tool, id, expect) in [
            ("get", "s:get@0.0.0", Some("get")),
            ("Get", "s:get@0.0.0", Some("get")),
            ("put", "s:put@0.0.0", Some("put")),
            ("PUT", "s:put@0.0.0", Some("Put")),
            ("put_22222222", "s:put_22222222@0.0.0", Some("put")),
            ("a b", "s:a_b@0.0.0", Some("a.b")),
            ("Greet", "s:greet@2.0.0", Some("greet")),
            // If listed beside `get`, it has its own id.
            ("Get", "s:get_33333333@0.0.0", None),
            ("Get", "s-admin:get@0.0.0", None),
            ("gets", "s:gets@0.0.0", None),
        ] {
            let id = ToolId::parse(id).expect("id");
            assert_eq!(index.of(tool, &id).map(|pin| pin.tool.as_str()), expect, "{tool} {id}");
        }
    }
}
