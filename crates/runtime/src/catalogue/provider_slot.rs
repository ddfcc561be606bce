//! One provider's place in the live catalogue.

use std::collections::HashMap;
use std::sync::Arc;

use toolwright_core::catalogue::{Provider, RegisteredTool, UnapprovedTool};
use toolwright_core::pins::PinSource;

use super::lists::Lists;
use super::pins::{Pins, UnpinnedTool};

/// One provider, and its lists.
pub(super) struct ProviderSlot {
    /// The provider.
    pub(super) provider: Arc<dyn Provider>,
    /// The tools that it listed.
    pub(super) listed: Vec<Arc<RegisteredTool>>,
    /// The listed tools that are offered.
    pub(super) tools: Vec<Arc<RegisteredTool>>,
    /// The listed definitions that differ from the pinned ones.
    pub(super) withheld_tools: Vec<UnpinnedTool>,
    /// The error of its last list.
    pub(super) error: Option<String>,
    /// Number of list requests so far: an earlier request must not overwrite the result of a later one.
    pub(super) begun: u64,
    /// The last list that was taken.
    pub(super) finished: u64,
    /// Whether its tools are known: its list has arrived or failed, or a cached one exists.
    pub(super) is_listed: bool,
    /// Its lists other than tools.
    pub(super) lists: Lists,
}

impl ProviderSlot {
    /// Creates a slot with its cached list of an earlier run and its source's methods.
    pub(super) async fn new(provider: Arc<dyn Provider>) -> Self {
        let cached = provider.cached().await;
        Self {
            lists: Lists::new(&*provider).await,
            provider,
            is_listed: cached.is_some(),
            listed: cached.unwrap_or_default(),
            tools: Vec::new(),
            withheld_tools: Vec::new(),
            error: None,
            begun: 0,
            finished: 0,
        }
    }

    /// Returns a value that shows whether another check had the same result.
    pub(super) fn judgement(&self) -> (Vec<u64>, Vec<String>) {
        let offered = self.tools.iter().map(|tool| tool.serial()).collect();
        (offered, self.withheld_tools.iter().map(|held| held.why.clone()).collect())
    }

    /// Checks the listed definitions. Returns those that are newly held.
    pub(super) async fn judge(&mut self, pins: Option<&Pins>) -> Vec<UnpinnedTool> {
        let Some(pins) = pins else {
            self.tools.clone_from(&self.listed);
            return Vec::new();
        };
        let judged = pins.judge(&PinSource::of(&*self.provider), &self.listed).await;
        self.tools = judged.offered;
        let before = std::mem::replace(&mut self.withheld_tools, judged.withheld_tools);
        let known_tools: HashMap<&str, &UnpinnedTool> =
            before.iter().map(|held| (held.tool.raw_name(), held)).collect();
        let is_known = |held: &&UnpinnedTool| {
            let same = |before: &&UnpinnedTool| {
                before.tool.source_hash() == held.tool.source_hash() && before.withheld == held.withheld
            };
            known_tools.get(held.tool.raw_name()).is_some_and(same)
        };
        self.withheld_tools.iter().filter(|held| !is_known(held)).cloned().collect()
    }
}

/// Returns the definitions that pins withhold.
pub(super) fn unapproved_tools(slot: &ProviderSlot) -> impl Iterator<Item = UnapprovedTool> {
    let held = slot.withheld_tools.iter().filter(|held| held.withheld && slot.error.is_none());
    held.map(|held| UnapprovedTool {
        provider: slot.provider.name().to_owned(),
        raw_name: held.tool.raw_name().to_owned(),
        shown_name: held.tool.shown_name().to_owned(),
        why: held.why.clone(),
    })
}

/// Returns the reason why a tool of a provider that has not listed yet may be missing.
pub(super) fn still_starting(slot: &ProviderSlot) -> Option<(String, String)> {
    let name = slot.provider.name();
    let why = || format!("provider {name} is still starting, and its tools are not known yet");
    (!slot.is_listed).then(|| (name.to_owned(), why()))
}

/// Keeps the compiled validator of a tool whose contract and settings are unchanged.
pub(super) fn reuse(old: &[Arc<RegisteredTool>], new: Vec<Arc<RegisteredTool>>) -> Vec<Arc<RegisteredTool>> {
    let by_id: HashMap<_, _> = old.iter().map(|tool| (&tool.definition().id, tool)).collect();
    new.into_iter()
        .map(|tool| match by_id.get(&tool.definition().id) {
            Some(same) if is_same(same, &tool) => Arc::clone(same),
            _ => tool,
        })
        .collect()
}

fn is_same(old: &RegisteredTool, new: &RegisteredTool) -> bool {
    (old.hash(), old.source_hash(), old.raw_name(), old.shown_name())
        == (new.hash(), new.source_hash(), new.raw_name(), new.shown_name())
        && old.definition() == new.definition()
}
