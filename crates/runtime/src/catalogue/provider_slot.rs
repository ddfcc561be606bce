//! One provider's place in the live catalogue.

use std::collections::HashMap;
use std::sync::Arc;

use toolwright_core::catalogue::{Provider, RegisteredTool, Unapproved};
use toolwright_core::pins::PinSource;

use super::lists::Lists;
use super::pins::{Pins, UnpinnedTool};

/// One provider, and what it listed.
pub(super) struct ProviderSlot {
    /// The provider.
    pub(super) provider: Arc<dyn Provider>,
    /// What it listed.
    pub(super) listed: Vec<Arc<RegisteredTool>>,
    /// What of it is offered.
    pub(super) tools: Vec<Arc<RegisteredTool>>,
    /// What of it is not the pinned definition.
    pub(super) held: Vec<UnpinnedTool>,
    /// Why its last list failed.
    pub(super) error: Option<String>,
    /// Lists that began earlier must not overwrite what a later one brought.
    pub(super) begun: u64,
    /// The last list that was taken.
    pub(super) finished: u64,
    /// Whether it is known what it has: its last list is there, or has failed, or that of an earlier run.
    pub(super) is_listed: bool,
    /// What it lists besides its tools.
    pub(super) lists: Lists,
}

impl ProviderSlot {
    /// With what it had listed in an earlier run.
    pub(super) async fn new(provider: Arc<dyn Provider>) -> Self {
        let cached = provider.cached().await;
        Self {
            provider,
            is_listed: cached.is_some(),
            listed: cached.unwrap_or_default(),
            tools: Vec::new(),
            held: Vec::new(),
            error: None,
            begun: 0,
            lists: Lists::default(),
            finished: 0,
        }
    }

    /// What tells whether another judgement came to the same.
    pub(super) fn judgement(&self) -> (Vec<u64>, Vec<String>) {
        let offered = self.tools.iter().map(|tool| tool.serial()).collect();
        (offered, self.held.iter().map(|held| held.why.clone()).collect())
    }

    /// Judges what it listed. What is newly held is told of.
    pub(super) async fn judge(&mut self, pins: Option<&Pins>) -> Vec<UnpinnedTool> {
        let Some(pins) = pins else {
            self.tools.clone_from(&self.listed);
            return Vec::new();
        };
        let judged = pins.judge(&PinSource::of(&*self.provider), &self.listed).await;
        self.tools = judged.offered;
        let before = std::mem::replace(&mut self.held, judged.held);
        let known: HashMap<&str, &UnpinnedTool> = before.iter().map(|held| (held.tool.raw_name(), held)).collect();
        let is_known = |held: &&UnpinnedTool| {
            let same = |before: &&UnpinnedTool| {
                before.tool.source_hash() == held.tool.source_hash() && before.withheld == held.withheld
            };
            known.get(held.tool.raw_name()).is_some_and(same)
        };
        self.held.iter().filter(|held| !is_known(held)).cloned().collect()
    }
}

/// What pins keep back.
pub(super) fn held_back(slot: &ProviderSlot) -> impl Iterator<Item = Unapproved> {
    let held = slot.held.iter().filter(|held| held.withheld && slot.error.is_none());
    held.map(|held| Unapproved {
        provider: slot.provider.name().to_owned(),
        raw_name: held.tool.raw_name().to_owned(),
        shown_name: held.tool.shown_name().to_owned(),
        why: held.why.clone(),
    })
}

/// Why a tool of a provider that has not listed yet may be missing.
pub(super) fn still_starting(slot: &ProviderSlot) -> Option<(String, String)> {
    let name = slot.provider.name();
    let why = || format!("provider {name} is still starting, and nobody knows its tools yet");
    (!slot.is_listed).then(|| (name.to_owned(), why()))
}

/// A tool whose contract and settings did not change keeps its compiled validator.
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
