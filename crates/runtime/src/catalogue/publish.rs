//! Builds snapshots from the providers' lists, and swaps them in.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;
use toolwright_core::catalogue::{
    CatalogueIssue, ListKind, Listing, Provider, RegisteredTool, Snapshot, UnapprovedTool, WithheldTool,
};
use toolwright_core::context::INFO_ID;
use toolwright_core::definition::{Mode, ToolDefinition};
use toolwright_core::job::JOB_IDS;
use toolwright_core::output::EXTRACT_ID;
use toolwright_core::tool_id::wire_candidate;

use super::Catalogue;
use super::lists::SourceLists;
use super::provider_slot::{ProviderSlot, still_starting, unapproved_tools};

/// The state that readers see.
#[derive(Default)]
pub(super) struct CurrentSnapshot {
    snapshot: RwLock<Published>,
    pub(super) generation: watch::Sender<u64>,
    /// Publications so far. Each gets its number while the slots are locked.
    made: AtomicU64,
}

#[derive(Default)]
struct Published {
    snapshot: Arc<Snapshot>,
    sources: Sources,
    number: u64,
}

/// The providers of a snapshot.
#[derive(Clone, Default)]
pub(super) struct Sources {
    pub(super) all: Arc<[Arc<dyn Provider>]>,
    /// Providers whose tools are not known yet.
    pub(super) unlisted: Arc<[Arc<dyn Provider>]>,
    pub(super) lists: Arc<[SourceLists]>,
}

impl Sources {
    fn of(slots: &[ProviderSlot], before: &Self) -> Self {
        let provider = |slot: &ProviderSlot| Arc::clone(&slot.provider);
        let unlisted = slots.iter().filter(|slot| !slot.is_listed);
        let lists: Arc<[_]> = slots.iter().filter_map(SourceLists::of).collect();
        let is_same = lists.len() == before.lists.len()
            && lists.iter().zip(&*before.lists).all(|(now, before)| now.is_same(before));
        Self {
            all: slots.iter().map(provider).collect(),
            unlisted: unlisted.map(provider).collect(),
            lists: if is_same { Arc::clone(&before.lists) } else { lists },
        }
    }
}

impl CurrentSnapshot {
    /// Returns the current snapshot.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner).snapshot)
    }

    /// Returns the providers of the snapshot.
    pub(super) fn sources(&self) -> Sources {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).sources.clone()
    }

    /// Swaps the snapshot, unless a later one is in place.
    pub(super) fn put(&self, snapshot: Arc<Snapshot>, sources: Sources, number: u64) {
        {
            let mut current = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
            if current.number > number {
                return;
            }
            *current = Published { snapshot, sources, number };
        }
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl Catalogue {
    /// Returns the provider's own issues, and those of pins with its definitions: one by one, or as a sum.
    fn issues_of(&self, slot: &ProviderSlot) -> Vec<CatalogueIssue> {
        let provider = slot.provider.name();
        // The message contains a source's text, which must not begin a new line.
        let issue = |message: String| CatalogueIssue {
            provider: provider.to_owned(),
            message: self.redactor.redact(&message).replace(char::is_control, " "),
        };
        if slot.error.is_some() {
            return Vec::new();
        }
        let mut issues: Vec<CatalogueIssue> = slot.provider.issues().into_iter().map(issue).collect();
        for (kind, last) in ListKind::ALL.into_iter().zip(&slot.lists.last) {
            if let Some(error) = &last.error {
                issues.push(issue(format!("its {} could not be listed: {error}", kind.words())));
            }
        }
        match &slot.withheld_tools[..] {
            few @ ([] | [_] | [_, _] | [_, _, _]) => {
                issues.extend(few.iter().map(|held| issue(format!("`{}` is {}", held.tool.raw_name(), held.why))));
            }
            many => {
                let withheld = many.iter().filter(|held| held.withheld).count();
                issues.push(issue(format!(
                    "{} definitions are not the pinned ones, {withheld} are withheld for that: `toolwright pins ls {provider}` \
                     lists them, `toolwright pins approve {provider}` lets all of them in",
                    many.len()
                )));
            }
        }
        issues
    }

    /// Builds the snapshot of `slots` and swaps it in. Even if the tools are unchanged, watchers are woken, because
    /// other lists may have changed.
    pub(super) fn publish(&self, slots: &[ProviderSlot]) {
        let idle = withheld(slots, self.jobs.load(Ordering::Acquire), self.extraction.load(Ordering::Acquire));
        let is_idle = |tool: &RegisteredTool| idle.iter().find(|(id, _)| tool.definition().id.as_str() == *id);
        let listing = |slot: &ProviderSlot| Listing {
            provider: Arc::clone(&slot.provider),
            tools: slot.tools.iter().filter(|tool| is_idle(tool).is_none()).cloned().collect(),
            error: slot.error.clone(),
            withheld: {
                let held = unapproved_tools(slot).map(|held| WithheldTool::new(held.raw_name, held.why));
                slot.provider.withheld().into_iter().chain(held).collect()
            },
        };
        let unapproved: Vec<UnapprovedTool> = slots.iter().flat_map(unapproved_tools).collect();
        let listings: Vec<Listing> = slots.iter().map(listing).collect();
        let issues: Vec<CatalogueIssue> = slots.iter().flat_map(|slot| self.issues_of(slot)).collect();
        let mut absent = self.absent.read().unwrap_or_else(PoisonError::into_inner).clone();
        for tool in slots.iter().flat_map(|slot| &slot.tools) {
            if let Some((_, why)) = is_idle(tool) {
                let id = &tool.definition().id;
                absent.push((wire_candidate(id.namespace(), id.name()), (*why).to_owned()));
            }
        }
        absent.extend(slots.iter().filter_map(still_starting));
        let before = self.snapshot();
        let sources = Sources::of(slots, &self.current.sources());
        let number = self.current.made.fetch_add(1, Ordering::Relaxed) + 1;
        if before.is_of(&listings, &absent, &unapproved, &issues) {
            return self.current.put(before, sources, number);
        }
        let snapshot = Snapshot::build(&listings).with_absent(absent).with_unapproved(unapproved).with_issues(issues);
        self.current.put(Arc::new(snapshot), sources, number);
    }
}

/// Returns the tools that would be useless, and why: those that follow jobs if no tool runs as one, the manual tool if
/// no tool has a manual, and the extraction tool without a model. Each definition takes space in requests.
fn withheld(slots: &[ProviderSlot], jobs: bool, extraction: bool) -> Vec<(&'static str, &'static str)> {
    let definitions = || slots.iter().flat_map(|slot| &slot.tools).map(|tool| tool.definition());
    let runs_as_job = |tool: &ToolDefinition| tool.mode != Mode::Direct || tool.auto_background_after.is_some();
    let mut withheld = Vec::new();
    if !jobs && !definitions().any(runs_as_job) {
        withheld.extend(JOB_IDS.map(|id| (id, "it is offered once calls can go on as background jobs")));
    }
    if !definitions().any(|tool| tool.documentation.is_some()) {
        withheld.push((INFO_ID, "it is offered once a tool has a manual"));
    }
    if !extraction {
        withheld.push((EXTRACT_ID, "it is offered once a model is set: outputs.extract_model or models.default"));
    }
    withheld
}
