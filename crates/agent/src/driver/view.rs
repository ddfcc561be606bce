//! What one run sees of the catalogue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwright_core::catalogue::{Entry, Listing, Snapshot};
use toolwright_core::context::{EstimatedTokens, TokenCounter as _};
use toolwright_core::model::ShownTool;
use toolwright_core::names::Resolution;
use toolwright_core::pattern::glob_match;
use toolwright_core::session::Principal;
use toolwright_runtime::Catalogue;

use crate::run::Resolved;

/// Views that are kept; a driver rarely has runs of more kinds at once.
const MAX_KEPT: usize = 16;

/// The catalogue through a run's list of tools: a snapshot of its own, so that a tool outside the list
/// is unknown to the run by whatever name it is called; and what its model is shown.
pub(super) struct View {
    pub(super) snapshot: Arc<Snapshot>,
    /// The tools open to the run's principal that run here, in catalogue order.
    pub(super) tools: Arc<[ShownTool]>,
    /// Their estimated size.
    pub(super) tokens: usize,
}

impl View {
    fn new(whole: &Arc<Snapshot>, allowed: &[String], principal: &Principal) -> Self {
        let snapshot = if allowed.is_empty() { Arc::clone(whole) } else { Arc::new(filtered(whole, allowed)) };
        let tools: Arc<[ShownTool]> = shown(&snapshot, principal).map(|entry| shown_tool(entry)).collect();
        let size = |text: &str| EstimatedTokens.count(text).0;
        let tokens = tools.iter().map(|tool| size(&tool.description) + size(&tool.parameters.to_string())).sum();
        Self { snapshot, tools, tokens }
    }

    /// The tool that a written name means.
    pub(super) fn resolve(&self, written: &str) -> Option<Resolved> {
        let entry = entry(&self.snapshot, written)?;
        Some(Resolved { wire_name: entry.wire_name.clone(), definition: entry.tool.hash() })
    }
}

/// Makes each view once for a catalogue, so that requests with the same tools share them: the API's form
/// of shared tools is made once too.
#[derive(Default)]
pub(super) struct Views(Mutex<Vec<Kept>>);

struct Kept {
    whole: Arc<Snapshot>,
    allowed: Vec<String>,
    principal: Principal,
    view: Arc<View>,
}

impl Views {
    /// The catalogue as it is now, through the globs `allowed` (all tools when there are none), as
    /// `principal` sees it.
    pub(super) fn current(&self, catalogue: &Catalogue, allowed: &[String], principal: &Principal) -> Arc<View> {
        let whole = catalogue.snapshot();
        let find = |kept: &[Kept]| {
            let same = |kept: &&Kept| kept.allowed == allowed && kept.principal == *principal;
            kept.iter().filter(|kept| Arc::ptr_eq(&kept.whole, &whole)).find(same).map(|kept| Arc::clone(&kept.view))
        };
        if let Some(view) = find(&self.kept()) {
            return view;
        }
        let view = Arc::new(View::new(&whole, allowed, principal));
        let mut kept = self.kept();
        // Somebody else may have made it meanwhile; all are to share one.
        if let Some(theirs) = find(&kept) {
            return theirs;
        }
        kept.retain(|kept| Arc::ptr_eq(&kept.whole, &whole));
        if kept.len() == MAX_KEPT {
            kept.remove(0);
        }
        kept.push(Kept {
            whole: Arc::clone(&whole),
            allowed: allowed.to_vec(),
            principal: principal.clone(),
            view: Arc::clone(&view),
        });
        view
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn filtered(whole: &Snapshot, allowed: &[String]) -> Snapshot {
    let allows = |entry: &Entry| {
        let id = entry.id();
        let names = [id.as_str(), id.without_version(), &entry.wire_name];
        allowed.iter().any(|pattern| names.iter().any(|name| glob_match(pattern, name)))
    };
    let mut listings: Vec<Listing> = Vec::new();
    for entry in whole.list() {
        // Entries of one provider stand together: the catalogue lists provider by provider.
        if !listings.last().is_some_and(|listing| Arc::ptr_eq(&listing.provider, &entry.provider)) {
            let provider = Arc::clone(&entry.provider);
            listings.push(Listing { provider, tools: Vec::new(), error: None, withheld: Vec::new() });
        }
        if let Some(listing) = listings.last_mut() {
            if allows(entry) {
                listing.tools.push(Arc::clone(&entry.tool));
            } else {
                listing.withheld.push((entry.tool.raw_name().to_owned(), "not among the tools of this run".into()));
            }
        }
    }
    Snapshot::build(&listings)
}

/// The tools that a model is shown, in catalogue order: those open to the principal that run here.
pub(crate) fn shown<'a>(snapshot: &'a Snapshot, principal: &'a Principal) -> impl Iterator<Item = &'a Arc<Entry>> {
    snapshot.list().iter().filter(|entry| {
        let definition = entry.definition();
        principal.may_use(&definition.allowed_roles) && definition.provider_native.is_none()
    })
}

/// A tool as a request shows it. One without a schema is an open object, which no API can be strict about.
pub(crate) fn shown_tool(entry: &Entry) -> ShownTool {
    let definition = entry.definition();
    ShownTool {
        name: entry.wire_name.clone(),
        description: definition.description.clone(),
        parameters: definition.shown_schema(),
        strict: if definition.parameters.is_none() { Some(false) } else { definition.strict },
        body_argument: definition.body_argument.clone(),
        namespace: definition.id.namespace().to_owned(),
        ..ShownTool::default()
    }
}

/// The entry that a written name means.
pub(super) fn entry<'a>(snapshot: &'a Snapshot, written: &str) -> Option<&'a Arc<Entry>> {
    match snapshot.resolve(written) {
        Resolution::Found(index, _) => snapshot.list().get(index),
        Resolution::Unknown(_) => None,
    }
}
