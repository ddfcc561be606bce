//! Compares foreign definitions with their pins: the definition when it was first used or last approved.
//!
//! A pin is of the definition as its source gave it, by the source's own name for the tool: neither what an operator
//! calls it here nor the id it gets beside others enters the question whose it is. A source is a provider as one place
//! defines it ([`PinSource`]). All here is pure; the store keeps the rows, the catalogue asks.

mod diff;
mod schema_diff;
mod text_diff;

use std::cell::OnceCell;
use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::tool_id::ToolId;
use crate::json::canonical::ContentHash;

pub use diff::{Change, Weight, diff, renamed};
pub use text_diff::is_invisible;

/// What happens to a definition that was never seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FirstUse {
    /// It is pinned and offered: trust on first use.
    #[default]
    Pin,
    /// It is withheld until `toolwright pins approve`.
    Ask,
}

/// What happens to a definition that is not what was pinned.
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
    /// What happens to a definition that was never seen.
    pub first_use: FirstUse,
    /// What happens to a definition that is not what was pinned.
    pub drift: OnDrift,
}

/// One definition, by its hash, and when it was noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinMark {
    /// Hash of its contract, see [`crate::ToolDefinition::contract_hash`].
    pub hash: ContentHash,
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// What made it count: `first use` or who approved it; empty for one that waits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
}

/// Whose definitions are pinned: a provider by its name, as one place defines it. Providers of one name that different
/// places define know nothing of each other's pins.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PinSource {
    /// Name of the provider.
    pub provider: String,
    /// What defines it, see [`Provider::defined_in`](crate::catalogue::Provider::defined_in); empty where nothing is said of it.
    pub scope: String,
}

impl PinSource {
    /// A source of which nothing says what defines it.
    #[must_use]
    pub fn unscoped(provider: impl Into<String>) -> Self {
        Self { provider: provider.into(), scope: String::new() }
    }
}

/// What is pinned of one tool, without the definitions themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Whose it is.
    #[serde(flatten)]
    pub source: PinSource,
    /// The name at its source.
    pub tool: String,
    /// Its id, when it was last noted.
    pub id: ToolId,
    /// What may be offered; `None` when nothing of it is approved.
    pub approved: Option<PinMark>,
    /// What its source said instead, and nobody has approved.
    pub waiting: Option<PinMark>,
    /// The name that its source has for what waits, where that is another one.
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

    /// Its name as commands take it: `provider/tool`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.source.provider, self.tool)
    }

    /// The name that its source has for what waits.
    #[must_use]
    pub fn waiting_name(&self) -> &str {
        self.renamed.as_deref().unwrap_or(&self.tool)
    }

    /// Whether it is this that waits.
    fn awaits(&self, now: CurrentTool<'_>) -> bool {
        self.waiting_name() == now.tool && self.waiting.as_ref().is_some_and(|mark| mark.hash == now.hash)
    }
}

/// A definition, as its source says it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentTool<'a> {
    /// The name at its source.
    pub tool: &'a str,
    /// Hash of its contract as its source gave it.
    pub hash: ContentHash,
}

/// What a definition is beside its pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// What was pinned.
    Same,
    /// Nothing is known of it.
    New,
    /// It is known, and not approved.
    Unapproved,
    /// Not what was pinned.
    Drifted,
}

/// Judges a definition by its pin, or by the one whose place it takes, see [`PinIndex`]: under another name it is not the same,
/// whatever else it says.
#[must_use]
pub fn judge(pin: Option<&Pin>, now: CurrentTool<'_>) -> Verdict {
    let Some(pin) = pin else { return Verdict::New };
    match &pin.approved {
        None => Verdict::Unapproved,
        Some(approved) if approved.hash == now.hash && pin.tool == now.tool => Verdict::Same,
        Some(_) => Verdict::Drifted,
    }
}

/// What becomes of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is offered.
    pub offered: bool,
    /// What is to be noted.
    pub note: Note,
}

/// What the store is to note of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Nothing.
    Nothing,
    /// It is pinned as it is.
    Pin,
    /// It waits for approval.
    Wait,
    /// Nothing waits any more: the source says again what was pinned.
    Settle,
}

/// What becomes of a definition that was judged so, under these terms.
#[must_use]
pub fn decide(config: PinConfig, verdict: Verdict, pin: Option<&Pin>, now: CurrentTool<'_>) -> Decision {
    let waiting = pin.and_then(|pin| pin.waiting.as_ref());
    let wait = if pin.is_some_and(|pin| pin.awaits(now)) { Note::Nothing } else { Note::Wait };
    match verdict {
        Verdict::Same => Decision { offered: true, note: if waiting.is_some() { Note::Settle } else { Note::Nothing } },
        Verdict::New if config.first_use == FirstUse::Pin => Decision { offered: true, note: Note::Pin },
        Verdict::New | Verdict::Unapproved => Decision { offered: false, note: wait },
        Verdict::Drifted => Decision { offered: config.drift == OnDrift::Warn, note: wait },
    }
}

/// The pins of one source, to be looked up.
///
/// Pins go by the name at the source. Policy, scripts and people go by the id, which several such names may come to
/// (`get`, `Get`): a name without a pin whose id is that of a pinned tool takes that tool's place, and is judged by its pin.
#[derive(Debug)]
pub struct PinIndex<'a> {
    pins: &'a [Pin],
    by_tool: HashMap<&'a str, &'a Pin>,
    by_id: OnceCell<HashMap<String, &'a Pin>>,
}

impl<'a> PinIndex<'a> {
    /// Of these.
    #[must_use]
    pub fn new(pins: &'a [Pin]) -> Self {
        let by_tool = pins.iter().map(|pin| (pin.tool.as_str(), pin)).collect();
        Self { pins, by_tool, by_id: OnceCell::new() }
    }

    /// The pin by which a tool of this name and id is judged: its own, or that of the tool whose place it takes.
    #[must_use]
    pub fn of(&self, tool: &str, id: &ToolId) -> Option<&'a Pin> {
        let own = self.by_tool.get(tool).copied();
        // Most have one of their own.
        own.or_else(|| self.by_id.get_or_init(|| self.ids()).get(id.without_version()).copied())
    }

    /// By the ids that the pinned tools had, and by those that they would have while no other has theirs.
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
            (usual, None, "a", Verdict::New, true, Note::Pin),
            (strict, None, "a", Verdict::New, false, Note::Wait),
            (usual, Some(pin(Some("a"), None)), "a", Verdict::Same, true, Note::Nothing),
            (usual, Some(pin(Some("a"), Some("b"))), "a", Verdict::Same, true, Note::Settle),
            (usual, Some(pin(Some("a"), None)), "b", Verdict::Drifted, false, Note::Wait),
            (usual, Some(pin(Some("a"), Some("b"))), "b", Verdict::Drifted, false, Note::Nothing),
            (usual, Some(pin(Some("a"), Some("b"))), "c", Verdict::Drifted, false, Note::Wait),
            (lax, Some(pin(Some("a"), None)), "b", Verdict::Drifted, true, Note::Wait),
            // What was refused once is not let in because the terms are others now.
            (lax, Some(pin(None, Some("a"))), "a", Verdict::Unapproved, false, Note::Nothing),
            (usual, Some(pin(None, Some("a"))), "b", Verdict::Unapproved, false, Note::Wait),
        ] {
            let said = CurrentTool { tool: "t", hash: hash(now) };
            assert_eq!(judge(pin.as_ref(), said), verdict, "{pin:?} {now}");
            let decision = decide(config, verdict, pin.as_ref(), said);
            assert_eq!(decision, Decision { offered, note }, "{config:?} {pin:?} {now}");
        }
    }

    #[test]
    fn replacing_a_pinned_tool_counts_as_drift() {
        let renamed = |waiting, name: &str| Pin { renamed: Some(name.into()), ..pin(Some("a"), waiting) };
        for (pin, verdict, note) in [
            (pin(Some("a"), None), Verdict::Drifted, Note::Wait),
            (pin(Some("a"), Some("a")), Verdict::Drifted, Note::Wait),
            (renamed(Some("a"), "T"), Verdict::Drifted, Note::Nothing),
            (renamed(Some("a"), "tT"), Verdict::Drifted, Note::Wait),
            (renamed(Some("b"), "T"), Verdict::Drifted, Note::Wait),
            (pin(None, Some("a")), Verdict::Unapproved, Note::Wait),
        ] {
            let now = CurrentTool { tool: "T", hash: hash("a") };
            assert_eq!(judge(Some(&pin), now), verdict, "{pin:?}");
            let decision = decide(PinConfig::default(), verdict, Some(&pin), now);
            assert_eq!(decision, Decision { offered: false, note }, "{pin:?}");
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
            // Both were listed at once.
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
            // Listed beside `get`, it has an id of its own.
            ("Get", "s:get_33333333@0.0.0", None),
            ("Get", "s-admin:get@0.0.0", None),
            ("gets", "s:gets@0.0.0", None),
        ] {
            let id = ToolId::parse(id).expect("id");
            assert_eq!(index.of(tool, &id).map(|pin| pin.tool.as_str()), expect, "{tool} {id}");
        }
    }
}
