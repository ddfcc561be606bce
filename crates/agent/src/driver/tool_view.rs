//! The view of the catalogue that one run can use, and the cache of such views.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use toolwright_core::StaticProvider;
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::catalogue::{Entry, Provider, Snapshot};
use toolwright_core::indirect_call::carried;
use toolwright_core::model::{ShownTool, WrittenCall};
use toolwright_core::name_table::Resolution;
use toolwright_core::select::{Cost, Exposure};
use toolwright_core::session::{CallId, Principal};
use toolwright_runtime::{Catalogue, ToolFinder, searchable};

use super::request_tools::RequestToolsCache;
use crate::run::{Resolved, RunSpec};
use crate::tools::{AgentTools, ReportSpec, of_run};

/// Views that are kept; a driver rarely has runs of more kinds at once.
const MAX_KEPT: usize = 16;

/// The catalogue through a run's list of tools: a snapshot of its own, so that a tool outside the list
/// is unknown to the run by whatever name it is called.
pub(super) struct ToolView {
    /// The tools of the run, and no others, without those of the agent itself.
    pub(super) tools: Arc<Snapshot>,
    /// Those open to the run's principal that run here, in catalogue order.
    pub(super) open: Vec<Arc<Entry>>,
    /// What requests were shown of them.
    pub(super) lists: RequestToolsCache,
    /// The tools of the agent itself.
    own: Arc<StaticProvider>,
    whole: OnceLock<Arc<Snapshot>>,
    searchable: OnceLock<Arc<Snapshot>>,
    cost: OnceLock<Cost>,
}

impl ToolView {
    /// `before` is an older view, whose index tells much of this one's.
    fn new(whole: &Arc<Snapshot>, spec: &RunSpec, principal: &Principal, before: Option<&Self>) -> Self {
        let allowed = spec.tools.as_slice();
        let tools = match allowed {
            [] => Arc::clone(whole),
            _ => {
                let tools = whole.only(|entry| entry.is_named_by(allowed), "not among the tools of this run");
                Arc::new(match before.filter(|_| !whole.is_indexed()) {
                    Some(before) => tools.with_index_of(&before.tools),
                    None => tools,
                })
            }
        };
        let open = shown(&tools, principal).cloned().collect();
        Self {
            tools,
            open,
            lists: RequestToolsCache::default(),
            own: Arc::new(of_run(spec.agent_tools.report.as_ref())),
            whole: OnceLock::new(),
            searchable: OnceLock::new(),
            cost: OnceLock::new(),
        }
    }

    /// What names mean under `exposure`: the tools of the run, and unless all are shown, those that find them.
    pub(super) fn snapshot(&self, exposure: Option<Exposure>, finder: &ToolFinder) -> &Arc<Snapshot> {
        match exposure {
            None | Some(Exposure::Direct) => self.whole(),
            Some(_) => self.searchable.get_or_init(|| self.with_own(&searchable(&self.tools, finder.clone()))),
        }
    }

    fn whole(&self) -> &Arc<Snapshot> {
        self.whole.get_or_init(|| self.with_own(&self.tools))
    }

    fn with_own(&self, tools: &Snapshot) -> Arc<Snapshot> {
        let provider: Arc<dyn Provider> = Arc::clone(&self.own) as _;
        Arc::new(tools.with(&provider, self.own.tools()))
    }

    /// The tools of the agent itself that a run is shown.
    pub(super) fn own(&self, shown: &AgentTools) -> impl Iterator<Item = &Arc<Entry>> {
        let ids = self.own.tools().iter().map(|tool| tool.definition().id.as_str());
        ids.filter(move |id| shown.shows(id)).filter_map(|id| self.whole().get(id))
    }

    /// What it costs to show all that is open.
    pub(super) fn cost(&self) -> Cost {
        *self
            .cost
            .get_or_init(|| Cost { tools: self.open.len(), tokens: self.open.iter().map(|entry| entry.tokens()).sum() })
    }
}

/// The tool that a written call means.
pub(super) fn resolve(snapshot: &Snapshot, written: &WrittenCall) -> Option<Resolved> {
    let called = entry(snapshot, &written.name)?;
    let arguments = RawArguments::Text(written.arguments.clone());
    let call = ToolCall { id: CallId::new(written.id.as_str()), name: written.name.clone(), arguments };
    let runs = meant(snapshot, &call).unwrap_or(called);
    Some(Resolved { wire_name: called.wire_name.clone(), definition: runs.tool.hash() })
}

/// The entry that a call is to run on, as far as its name tells: the one inside, if it carries another call.
pub(super) fn meant<'a>(snapshot: &'a Snapshot, call: &ToolCall) -> Option<&'a Arc<Entry>> {
    match carried(call, snapshot) {
        Some(inside) => entry(snapshot, &inside.name),
        None => entry(snapshot, &call.name),
    }
}

/// Makes each view once for a catalogue, so that requests with the same tools share them: the API's form
/// of shared tools is made once too.
#[derive(Default)]
pub(super) struct ToolViewCache(Mutex<Vec<Kept>>);

struct Kept {
    whole: Arc<Snapshot>,
    allowed: Vec<String>,
    report: Option<ReportSpec>,
    principal: Principal,
    view: Arc<ToolView>,
}

impl ToolViewCache {
    /// The catalogue as it is now, through the globs of `spec` (all tools when there are none), as
    /// `principal` sees it.
    pub(super) fn current(&self, catalogue: &Catalogue, spec: &RunSpec, principal: &Principal) -> Arc<ToolView> {
        let (allowed, report) = (&spec.tools, &spec.agent_tools.report);
        let whole = catalogue.snapshot();
        let find = |kept: &[Kept]| {
            let same =
                |kept: &&Kept| kept.allowed == *allowed && kept.report == *report && kept.principal == *principal;
            kept.iter().filter(|kept| Arc::ptr_eq(&kept.whole, &whole)).find(same).map(|kept| Arc::clone(&kept.view))
        };
        if let Some(view) = find(&self.kept()) {
            return view;
        }
        let before = self.kept().iter().rev().find(|kept| kept.allowed == *allowed).map(|kept| Arc::clone(&kept.view));
        let view = Arc::new(ToolView::new(&whole, spec, principal, before.as_deref()));
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
            allowed: allowed.clone(),
            report: report.clone(),
            principal: principal.clone(),
            view: Arc::clone(&view),
        });
        view
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tools that a model can use, in catalogue order: those open to the principal that run here.
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
