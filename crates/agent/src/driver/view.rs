//! What one run sees of the catalogue.

use std::sync::Arc;

use toolwright_core::catalogue::{Entry, Listing, Snapshot};
use toolwright_core::context::{EstimatedTokens, TokenCounter as _};
use toolwright_core::model::ShownTool;
use toolwright_core::pattern::glob_match;
use toolwright_core::session::Principal;

use crate::run::Resolved;

/// The catalogue through a run's list of tools: a snapshot of its own, so that a tool outside the list
/// is unknown to the run by whatever name it is called.
pub(super) struct View {
    allowed: Vec<String>,
    /// The catalogue's snapshot and what became of it.
    last: Option<(Arc<Snapshot>, Arc<Snapshot>)>,
}

impl View {
    /// Through these globs; all tools when there are none.
    pub(super) fn of(allowed: &[String]) -> Self {
        Self { allowed: allowed.to_vec(), last: None }
    }

    /// The catalogue as it is now.
    pub(super) fn current(&mut self, catalogue: &toolwright_runtime::Catalogue) -> Arc<Snapshot> {
        let whole = catalogue.snapshot();
        if self.allowed.is_empty() {
            return whole;
        }
        match &self.last {
            Some((base, view)) if Arc::ptr_eq(base, &whole) => Arc::clone(view),
            _ => {
                let view = Arc::new(self.filtered(&whole));
                self.last = Some((whole, Arc::clone(&view)));
                view
            }
        }
    }

    fn filtered(&self, whole: &Snapshot) -> Snapshot {
        let mut listings: Vec<Listing> = Vec::new();
        for entry in whole.list() {
            // Entries of one provider stand together: the catalogue lists provider by provider.
            if !listings.last().is_some_and(|listing| Arc::ptr_eq(&listing.provider, &entry.provider)) {
                let provider = Arc::clone(&entry.provider);
                listings.push(Listing { provider, tools: Vec::new(), error: None, withheld: Vec::new() });
            }
            if let Some(listing) = listings.last_mut() {
                if self.allows(entry) {
                    listing.tools.push(Arc::clone(&entry.tool));
                } else {
                    listing.withheld.push((entry.tool.raw_name().to_owned(), "not among the tools of this run".into()));
                }
            }
        }
        Snapshot::build(&listings)
    }

    fn allows(&self, entry: &Entry) -> bool {
        let id = entry.id();
        let names = [id.as_str(), id.without_version(), &entry.wire_name];
        self.allowed.iter().any(|pattern| names.iter().any(|name| glob_match(pattern, name)))
    }
}

/// The tools that a model is shown, in catalogue order: those open to the principal that run here.
pub(super) fn shown<'a>(snapshot: &'a Snapshot, principal: &'a Principal) -> impl Iterator<Item = &'a Arc<Entry>> {
    snapshot.list().iter().filter(|entry| {
        let definition = entry.definition();
        principal.may_use(&definition.allowed_roles) && definition.provider_native.is_none()
    })
}

/// A tool as a request shows it.
pub(super) fn shown_tool(entry: &Entry) -> ShownTool {
    let definition = entry.definition();
    ShownTool {
        name: entry.wire_name.clone(),
        description: definition.description.clone(),
        parameters: definition.shown_schema(),
        strict: definition.strict,
        body_argument: definition.body_argument.clone(),
    }
}

/// Estimated tokens of the tools that a model is shown.
pub(super) fn schema_tokens(snapshot: &Snapshot, principal: &Principal) -> usize {
    shown(snapshot, principal)
        .map(|entry| {
            let definition = entry.definition();
            let schema = definition.shown_schema().to_string();
            EstimatedTokens.count(&definition.description).0 + EstimatedTokens.count(&schema).0
        })
        .sum()
}

/// The tool that a written name means.
pub(super) fn resolve(snapshot: &Snapshot, written: &str) -> Option<Resolved> {
    let entry = entry(snapshot, written)?;
    Some(Resolved { wire_name: entry.wire_name.clone(), definition: entry.tool.hash() })
}

/// The entry that a written name means.
pub(super) fn entry<'a>(snapshot: &'a Snapshot, written: &str) -> Option<&'a Arc<Entry>> {
    match snapshot.resolve(written) {
        toolwright_core::names::Resolution::Found(index, _) => snapshot.list().get(index),
        toolwright_core::names::Resolution::Unknown(_) => None,
    }
}
