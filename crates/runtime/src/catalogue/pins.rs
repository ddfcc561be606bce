//! Decides by pins which third-party definitions of a provider may be offered.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;
use toolwright_core::catalogue::{DefinitionOrigin, RegisteredTool};
use toolwright_core::pins::{
    Change, ChangeSeverity, CurrentTool, Pin, PinConfig, PinIndex, PinOutcome, PinSource, PinStatus, PinUpdate, decide,
    diff, judge, renamed,
};
use toolwright_core::store::{PinStore, PinWrite};

/// The most pinned tools of one source. Further tools are withheld, so that a source with ever new names does not fill
/// the store.
const MAX_PINS: usize = 50_000;
/// The most changes that a reason names.
const NAMED_CHANGES: usize = 3;
/// The most characters of each change.
const CHANGE_LENGTH: usize = 160;

/// Checks definitions against their pins, and records new ones.
pub struct Pins {
    store: Arc<dyn PinStore>,
    config: RwLock<PinConfig>,
}

/// A definition that differs from its pin, or has none.
#[derive(Debug, Clone)]
pub(crate) struct UnpinnedTool {
    /// Name of its provider.
    pub(crate) provider: String,
    /// The tool.
    pub(crate) tool: Arc<RegisteredTool>,
    /// Whether it is withheld.
    pub(crate) withheld: bool,
    /// The reason with the remedy, as a clause with the tool as its subject: `withheld: …`.
    pub(crate) why: String,
    /// The changes since the pin.
    pub(crate) changes: Vec<Change>,
}

/// A provider's tools, checked.
#[derive(Debug, Default)]
pub(crate) struct JudgedTools {
    pub(crate) offered: Vec<Arc<RegisteredTool>>,
    pub(crate) withheld_tools: Vec<UnpinnedTool>,
}

/// A tool whose definition must be compared or recorded.
struct PinCandidate<'a> {
    tool: &'a Arc<RegisteredTool>,
    pin: Option<&'a Pin>,
    verdict: PinStatus,
    decision: PinOutcome,
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pins").field("config", &self.config()).finish_non_exhaustive()
    }
}

impl Pins {
    /// Creates pins in `store`, under `config`.
    #[must_use]
    pub fn new(store: Arc<dyn PinStore>, config: PinConfig) -> Arc<Self> {
        Arc::new(Self { store, config: RwLock::new(config) })
    }

    /// Returns the configuration in force.
    #[must_use]
    pub fn config(&self) -> PinConfig {
        *self.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the configuration for later checks. Returns whether it differs.
    pub fn set_config(&self, config: PinConfig) -> bool {
        std::mem::replace(&mut *self.config.write().unwrap_or_else(PoisonError::into_inner), config) != config
    }

    /// Returns a number that changes with each decision about a pin in any process; `None` if the store cannot be read.
    pub async fn decisions(&self) -> Option<u64> {
        self.store.pin_decisions().await.ok()
    }

    /// Checks the tools of a source, and records new or waiting definitions. Built-in tools are not pinned. If the
    /// store cannot be read, third-party tools are withheld; if it cannot be written, they are not.
    pub(crate) async fn judge(&self, source: &PinSource, tools: &[Arc<RegisteredTool>]) -> JudgedTools {
        let provider = source.provider.as_str();
        if !tools.iter().any(is_foreign) {
            return JudgedTools { offered: tools.to_vec(), withheld_tools: Vec::new() };
        }
        let pins = match self.store.pins(Some(source)).await {
            Ok(pins) => pins,
            Err(error) => return unreadable(provider, tools, &error.to_string()),
        };
        let book = PinIndex::new(&pins);
        let config = self.config();
        let mut room = MAX_PINS.saturating_sub(pins.len());
        let mut judged = JudgedTools::default();
        let mut notes = Vec::new();
        let mut open = Vec::new();
        for tool in tools {
            if !is_foreign(tool) {
                judged.offered.push(Arc::clone(tool));
                continue;
            }
            let pin = book.of(tool.raw_name(), &tool.definition().id);
            let now = CurrentTool { tool: tool.raw_name(), hash: tool.source_hash() };
            let verdict = judge(pin, now);
            if verdict == PinStatus::New {
                if room == 0 {
                    judged.withheld_tools.push(too_many(provider, tool));
                    continue;
                }
                room -= 1;
            }
            let decision = decide(config, verdict, pin, now);
            match verdict {
                PinStatus::Drifted | PinStatus::Unapproved => open.push(PinCandidate { tool, pin, verdict, decision }),
                PinStatus::New if !decision.offered => open.push(PinCandidate { tool, pin, verdict, decision }),
                PinStatus::Same | PinStatus::New => judged.offered.push(Arc::clone(tool)),
            }
            if verdict != PinStatus::Drifted {
                notes.extend(pin_write(tool, pin, decision.note));
            }
        }
        let offered_in_order = open.is_empty();
        self.compare(source, open, &mut judged, &mut notes).await;
        if !offered_in_order {
            let place: HashMap<u64, usize> = tools.iter().enumerate().map(|(n, tool)| (tool.serial(), n)).collect();
            judged.offered.sort_by_key(|tool| place.get(&tool.serial()).copied());
        }
        if !notes.is_empty()
            && let Err(error) = self.store.note_pins(source, notes).await
        {
            tracing::warn!("the definitions of {provider} were not recorded: {error}");
        }
        judged
    }

    /// Compares definitions whose hash differs. Differences in form only are offered; others are held.
    async fn compare(
        &self,
        source: &PinSource,
        open: Vec<PinCandidate<'_>>,
        judged: &mut JudgedTools,
        notes: &mut Vec<PinWrite>,
    ) {
        if open.is_empty() {
            return;
        }
        let provider = &source.provider;
        let names: Vec<String> = open.iter().map(|one| pinned_name(one.tool, one.pin).to_owned()).collect();
        let contracts = self.store.pin_contracts(source, &names).await.unwrap_or_else(|error| {
            tracing::warn!("the pinned definitions of {provider} cannot be read: {error}");
            Vec::new()
        });
        let mut contracts = contracts.into_iter();
        for PinCandidate { tool, pin, verdict, decision } in open {
            let approved = contracts.next().unwrap_or_default().approved;
            let mut changes = match (verdict, &approved) {
                (PinStatus::Drifted, Some(approved)) => diff(approved, &tool.source_contract()),
                _ => Vec::new(),
            };
            let before = pinned_name(tool, pin);
            if before != tool.raw_name() {
                changes.insert(0, renamed(before, tool.raw_name()));
            }
            if verdict == PinStatus::Drifted && approved.is_some() && changes.is_empty() {
                judged.offered.push(Arc::clone(tool));
                // The waiting definition is no longer the source's.
                notes.extend(pin.filter(|pin| pin.waiting.is_some()).and_then(|pin| pin_update(tool, pin)));
                continue;
            }
            if verdict == PinStatus::Drifted {
                notes.extend(pin_write(tool, pin, decision.note));
            }
            if decision.offered {
                judged.offered.push(Arc::clone(tool));
            }
            let why = withheld_reason(tool, verdict, decision.offered, &changes);
            let (provider, tool) = (provider.clone(), Arc::clone(tool));
            judged.withheld_tools.push(UnpinnedTool { provider, tool, withheld: !decision.offered, why, changes });
        }
    }
}

fn is_foreign(tool: &Arc<RegisteredTool>) -> bool {
    tool.origin() == DefinitionOrigin::Foreign
}

/// Returns the name under which it is pinned.
fn pinned_name<'a>(tool: &'a RegisteredTool, pin: Option<&'a Pin>) -> &'a str {
    pin.map_or(tool.raw_name(), |pin| &pin.tool)
}

fn pin_write(tool: &RegisteredTool, pin: Option<&Pin>, note: PinUpdate) -> Option<PinWrite> {
    // The contract of a settled pin is known already.
    let contract = match note {
        PinUpdate::Nothing => return None,
        PinUpdate::Settle => Value::Null,
        PinUpdate::Pin | PinUpdate::Wait => tool.source_contract(),
    };
    let (name, id) = (pinned_name(tool, pin).to_owned(), tool.definition().id.clone());
    let renamed = (name != tool.raw_name()).then(|| tool.raw_name().to_owned());
    Some(PinWrite { tool: name, renamed, id, note, hash: tool.source_hash(), contract })
}

fn pin_update(tool: &RegisteredTool, pin: &Pin) -> Option<PinWrite> {
    let (name, hash, id) = (pin.tool.clone(), pin.approved.as_ref()?.hash, tool.definition().id.clone());
    Some(PinWrite { tool: name, renamed: None, id, note: PinUpdate::Settle, hash, contract: Value::Null })
}

fn unreadable(provider: &str, tools: &[Arc<RegisteredTool>], error: &str) -> JudgedTools {
    let (foreign, own): (Vec<_>, Vec<_>) = tools.iter().cloned().partition(is_foreign);
    let why = format!("withheld: its pins cannot be read: {error}");
    let held = |tool| UnpinnedTool {
        provider: provider.to_owned(),
        tool,
        withheld: true,
        why: why.clone(),
        changes: Vec::new(),
    };
    JudgedTools { offered: own, withheld_tools: foreign.into_iter().map(held).collect() }
}

fn too_many(provider: &str, tool: &Arc<RegisteredTool>) -> UnpinnedTool {
    let why = format!(
        "withheld: {MAX_PINS} definitions of {provider} are pinned already; `toolwright pins forget {provider}` forgets them"
    );
    UnpinnedTool { provider: provider.to_owned(), tool: Arc::clone(tool), withheld: true, why, changes: Vec::new() }
}

/// Returns the reason with the remedy. Commands name the tool by its id, which contains no character special to a
/// shell.
fn withheld_reason(tool: &RegisteredTool, verdict: PinStatus, offered: bool, changes: &[Change]) -> String {
    let name = tool.definition().id.without_version();
    if verdict != PinStatus::Drifted {
        return format!(
            "withheld: nobody has approved its definition; `toolwright pins show {name}` shows it, \
             `toolwright pins approve {name}` lets it in"
        );
    }
    let (state, remedy) = match offered {
        true => ("changed", "accepts it"),
        false => ("withheld", "lets it in"),
    };
    let dangers = changes.iter().filter(|change| change.weight == ChangeSeverity::Danger).count();
    let count = match (changes.len(), dangers) {
        (0, _) => String::new(),
        (1, 0) => " (1 change)".to_owned(),
        (1, _) => " (1 change, dangerous)".to_owned(),
        (all, 0) => format!(" ({all} changes)"),
        (all, dangers) => format!(" ({all} changes, {dangers} dangerous)"),
    };
    let cut = |change: &Change| change.to_string().chars().take(CHANGE_LENGTH).collect::<String>();
    let named: Vec<String> = changes.iter().take(NAMED_CHANGES).map(cut).collect();
    let named = if named.is_empty() { String::new() } else { format!(": {}", named.join("; ")) };
    format!(
        "{state}: its definition is not the one that was pinned{count}{named}; \
         `toolwright pins diff {name}` shows all, `toolwright pins approve {name}` {remedy}"
    )
}
