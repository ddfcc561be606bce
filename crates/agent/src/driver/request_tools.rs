//! Selects the tools of each request to the model.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::model::{Exposed, ShownTool};
use toolwright_core::output::is_output_tool;
use toolwright_core::select::{
    CALL_ID, Choice, DESCRIBE_ID, Exposure, PickInput, SEARCH_ID, Showing, choose, namespaces, shown_tokens,
};
use toolwright_core::session::{Principal, Session};

use super::Driver;
use super::tool_view::{ToolView, entry, shown_tool};
use crate::run::{RunSpec, RunState};
use crate::tools::FINAL_REPORT_ID;

/// Lists of tools that a view keeps, so that requests with the same tools share one.
const MAX_LISTS: usize = 8;
/// Tools that a later turn of a task picks at most: each of them makes its provider read the conversation anew.
const MAX_PICKED_LATER: usize = 1;
/// What the definitions that are picked for a task may have: this part of what all have, and tokens in any case.
const PICKED_SHARE: usize = 50;
const PICKED_TOKENS: std::ops::RangeInclusive<usize> = 500..=2000;

/// The tools of a request.
#[derive(Clone, Default)]
pub(super) struct RequestTools {
    pub(super) tools: Arc<[ShownTool]>,
    pub(super) showing: Showing,
}

impl Driver {
    /// Chooses how the tools of `view` are put before the model of `spec`.
    pub(super) fn choice(&self, spec: &RunSpec, view: &ToolView) -> Choice {
        choose(spec.exposure, view.cost(), spec.window, self.model.has_tool_search(&spec.model))
    }

    /// The tools of the next request. In the first turn it is settled how they are put before the model.
    /// Those that read stored outputs are among them once the session has stored one.
    pub(super) async fn show(&self, state: &mut RunState, view: &ToolView, session: &Session) -> RequestTools {
        let stored = match self.executor.services().outputs.has_outputs(&session.id) {
            true => Stored::Some,
            false => Stored::Nothing,
        };
        let choice = match state.exposure() {
            Some(choice) => choice.clone(),
            None => {
                let choice = self.choice(state.spec(), view);
                state.expose(choice.clone(), index(choice.exposure, view));
                choice
            }
        };
        let exposure = match choice.exposure {
            Exposure::Pick => self.pick(state, view, &session.principal).await,
            other => other,
        };
        let snapshot = view.snapshot(Some(exposure), &self.finder);
        let wanted = match last_report(state, snapshot) {
            // What was loaded on the way must stay where the API loads tools.
            Some(report) if exposure != Exposure::Deferred => vec![report],
            _ => wanted(exposure, stored, state, view, snapshot),
        };
        let wanted: Vec<&str> = wanted.iter().map(|entry| entry.wire_name.as_str()).collect();
        let order = state.order_tools(&wanted);
        let mut shown = view.lists.get(exposure, order, view, snapshot);
        // What was loaded into the conversation is read there.
        let loaded: HashSet<&str> = state.loads().collect();
        let loaded =
            shown.tools.iter().filter(|tool| tool.exposed == Exposed::Deferred && loaded.contains(&*tool.name));
        shown.showing.tokens += loaded.map(shown_tokens).sum::<usize>();
        shown
    }

    /// Takes the tools that fit what the model is about to do. Where there are none for a task, the run goes over
    /// to searching.
    async fn pick(&self, state: &mut RunState, view: &ToolView, principal: &Principal) -> Exposure {
        let turns = state.said_last();
        if turns.is_empty() {
            return Exposure::Pick;
        }
        let turns: Vec<&str> = turns.iter().map(|turn| &**turn).collect();
        let first = state.turns() == 0;
        let limit = if first { state.spec().pick_size } else { MAX_PICKED_LATER.min(state.spec().pick_size) };
        let found = self.finder.find(PickInput::turns(&turns), &view.tools, limit, principal, None).await;
        let names = affordable(&found, budget(view) * limit / state.spec().pick_size.max(1));
        let nothing = first && names.is_empty() && state.loaded(|_| true).is_empty();
        if nothing && !view.open.iter().any(|entry| entry.is_named_by(&state.spec().pinned)) {
            let reason = "pick was asked for, but no tool fits the task: the model searches them".into();
            let choice = Choice { exposure: Exposure::Search, reason };
            state.expose(choice, index(Exposure::Search, view));
            return Exposure::Search;
        }
        state.load(names);
        Exposure::Pick
    }
}

/// Tokens that the definitions picked for a task may have.
fn budget(view: &ToolView) -> usize {
    (view.cost().tokens / PICKED_SHARE).clamp(*PICKED_TOKENS.start(), *PICKED_TOKENS.end())
}

/// The wire names of the tools among `found`, best first, whose definitions fit into `tokens` together: a large one
/// leaves its place to smaller ones behind it. The best of all is always there.
fn affordable(found: &[Arc<Entry>], tokens: usize) -> Vec<String> {
    let mut left = tokens;
    let mut taken = Vec::with_capacity(found.len());
    for entry in found {
        let cost = entry.tokens();
        if taken.is_empty() || cost <= left {
            left = left.saturating_sub(cost);
            taken.push(entry.wire_name.clone());
        }
    }
    taken
}

/// Whether the session has stored outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    Nothing,
    Some,
}

/// The final report, if it is all that the model may call now.
fn last_report<'a>(state: &RunState, snapshot: &'a Snapshot) -> Option<&'a Arc<Entry>> {
    let asked = state.is_last_turn() && state.spec().agent_tools.report.is_some();
    snapshot.get(FINAL_REPORT_ID).filter(|_| asked)
}

/// The tools that are to be shown whole, each once: the ones that find others, those of the agent itself, those
/// that are pinned, those that came before the model on the way, those for stored outputs where there are any.
fn wanted<'a>(
    exposure: Exposure,
    stored: Stored,
    state: &mut RunState,
    view: &'a ToolView,
    snapshot: &'a Snapshot,
) -> Vec<&'a Arc<Entry>> {
    let own: Vec<_> = view.own(&state.spec().agent_tools).collect();
    let finders: &[&str] = match exposure {
        Exposure::Direct => {
            let of_use = |entry: &&Arc<Entry>| stored == Stored::Some || !is_output_tool(entry.id());
            return view.open.iter().filter(of_use).chain(own).collect();
        }
        Exposure::Search => &[SEARCH_ID, DESCRIBE_ID, CALL_ID],
        Exposure::Pick | Exposure::Deferred => &[SEARCH_ID],
    };
    let finders = finders.iter().filter_map(|id| snapshot.get(id));
    let pinned = state.spec().pinned.clone();
    let pinned = view.open.iter().filter(|entry| entry.is_named_by(&pinned));
    let loaded = state.loaded(|name| entry(snapshot, name).is_some_and(|entry| entry.wire_name == name));
    let loaded = loaded.iter().filter_map(|name| entry(snapshot, name));
    let mut there = HashSet::new();
    let readers = view.open.iter().filter(|entry| stored == Stored::Some && is_output_tool(entry.id()));
    let all = finders.chain(own).chain(pinned).chain(loaded).chain(readers);
    all.filter(|entry| there.insert(&*entry.wire_name)).collect()
}

/// What the system prompt says of the tools that are not shown: one line, the same for equal catalogues.
fn index(exposure: Exposure, view: &ToolView) -> String {
    let how = match exposure {
        Exposure::Direct | Exposure::Pick => return String::new(),
        Exposure::Deferred => "the tool search",
        Exposure::Search => "tools__search",
    };
    let found = || view.open.iter().filter(|entry| entry.definition().safe).map(|entry| &**entry);
    if found().next().is_none() {
        return String::new();
    }
    format!("Further tools can be found with {how}: {}", namespaces(found()))
}

/// The lists of tools that requests of a view were shown, the latest last.
#[derive(Default)]
pub(super) struct RequestToolsCache(Mutex<Vec<CachedRequestTools>>);

struct CachedRequestTools {
    exposure: Exposure,
    order: Vec<String>,
    shown: RequestTools,
}

impl RequestToolsCache {
    fn get(&self, exposure: Exposure, order: &[String], view: &ToolView, snapshot: &Snapshot) -> RequestTools {
        let find = |lists: &[CachedRequestTools]| {
            let same = |list: &&CachedRequestTools| list.exposure == exposure && list.order == order;
            lists.iter().find(same).map(|list| list.shown.clone())
        };
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = find(&lists) {
            return shown;
        }
        let shown = list(exposure, order, view, snapshot);
        if lists.len() == MAX_LISTS {
            lists.remove(0);
        }
        lists.push(CachedRequestTools { exposure, order: order.to_vec(), shown: shown.clone() });
        shown
    }
}

/// The tools in `order`, by wire name, and where the API loads the others, these behind them.
fn list(exposure: Exposure, order: &[String], view: &ToolView, snapshot: &Snapshot) -> RequestTools {
    let deferring = exposure == Exposure::Deferred;
    let mut tools: Vec<ShownTool> = order
        .iter()
        .filter_map(|name| entry(snapshot, name))
        .map(|entry| {
            let exposed = if deferring && entry.id().as_str() == SEARCH_ID { Exposed::Search } else { Exposed::Shown };
            ShownTool { exposed, ..shown_tool(entry) }
        })
        .collect();
    let tokens = tools.iter().map(shown_tokens).sum();
    let shown = tools.len();
    let first: HashSet<&str> = order.iter().map(String::as_str).collect();
    let others = || view.open.iter().filter(|entry| !first.contains(&*entry.wire_name));
    let (mut deferred, mut excluded) = (0, others().count());
    if deferring {
        // What is marked unsafe is not to be found.
        let found = || others().filter(|entry| entry.definition().safe);
        deferred = found().count();
        excluded -= deferred;
        tools.extend(found().map(|entry| ShownTool { exposed: Exposed::Deferred, ..shown_tool(entry) }));
    }
    let showing = Showing { exposure: Some(exposure), shown, deferred, excluded, tokens };
    RequestTools { tools: tools.into(), showing }
}
