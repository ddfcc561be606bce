//! The tools of a run: which it may use, how names resolve, and which tools each request shows the model.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::json;
use toolwright_core::RunInput;
use toolwright_core::StaticProvider;
use toolwright_core::agents::Router;
use toolwright_core::agents::prompt::{is_always_shown, tool_index};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::catalogue::shown_tokens;
use toolwright_core::catalogue::{CallScope, DefinitionOrigin, Entry, Provider, Snapshot};
use toolwright_core::context::NestedCalls;
use toolwright_core::exposure::{
    CALL_ID, ChosenExposure, DESCRIBE_ID, Exposure, ExposureCost, ExposureRecord, SEARCH_ID, choose,
};
use toolwright_core::indirect_call::wrapped_call;
use toolwright_core::model::call_meta::INSTANCE;
use toolwright_core::model::{RawToolCall, RequestTool, ToolVisibility};
use toolwright_core::name_table::Resolution;
use toolwright_core::output::is_output_tool;
use toolwright_core::policy::{Effect, PolicyQuery};
use toolwright_core::session::{CallId, Principal, Session};
use toolwright_runtime::Catalogue;
use toolwright_runtime::executor::RunContext;
use toolwright_search::{PickInput, ToolFinder, searchable};

use super::run_calls::UsageMeter;
use super::{Driver, RunOptions};
use crate::report::{FINAL_REPORT_ID, ReportConfig};
use crate::run::{ResolvedTool, RunConfig, RunState, instance_field, show_field};
use crate::tools::{AgentTools, run_tools};

/// The most cached views; a driver rarely has runs of more kinds at once.
const MAX_VIEWS: usize = 16;
/// The most request tools that a view caches.
const MAX_REQUEST_TOOLS: usize = 8;
/// The most tools that a later turn of a task picks. Each invalidates the provider's cache of the conversation.
const MAX_PICKED_LATER: usize = 1;
/// The divisor of all definitions' tokens that gives the budget of picked definitions, within these bounds.
const PICKED_SHARE: usize = 50;
const PICKED_TOKENS: std::ops::RangeInclusive<usize> = 500..=2000;

/// The catalogue restricted to a run's tools, as a separate snapshot: the run cannot call a tool outside of it by any
/// name.
pub(super) struct ToolView {
    /// The tools of the run, without the agent's own tools.
    tools: Arc<Snapshot>,
    /// The tools that the run's principal may use and that run here, in catalogue order.
    pub(super) usable: Vec<Arc<Entry>>,
    /// The tools that model providers run and the principal may use.
    natives: Vec<Arc<Entry>>,
    /// Whether its search finds tools that are marked unsafe.
    finds_unsafe: bool,
    /// The agent's own tools.
    own: Arc<StaticProvider>,
    /// The tools of the run with the agent's own.
    all: OnceLock<Arc<Snapshot>>,
    /// All tools with the search tools.
    searchable: OnceLock<Arc<Snapshot>>,
    cost: OnceLock<ExposureCost>,
    /// The latest request tools, the newest last; equal requests share them.
    requests: Mutex<Vec<CachedRequestTools>>,
}

/// The tools of a request.
#[derive(Clone, Default)]
pub(super) struct RequestTools {
    pub(super) tools: Arc<[RequestTool]>,
    pub(super) exposure_record: ExposureRecord,
    /// The reason why tools were picked, if any were.
    pub(super) note: Option<String>,
    /// Tools of the model's provider that are left out, with reasons.
    pub(super) left_out: Vec<(String, String)>,
}

struct CachedRequestTools {
    exposure: Exposure,
    order: Vec<String>,
    natives: Vec<Arc<Entry>>,
    request_tools: RequestTools,
}

/// Returns the tools of a request over many inputs. Built-in tools that do not work on the run itself get a parameter
/// for the input that a call is for.
pub(super) fn with_instances(tools: Arc<[RequestTool]>, input: &RunInput, snapshot: &Snapshot) -> Arc<[RequestTool]> {
    if input.instances.is_empty() {
        return tools;
    }
    let takes_one = |tool: &RequestTool| match snapshot.resolve(&tool.name) {
        Resolution::Found(place, _) => snapshot
            .list()
            .get(place)
            .is_some_and(|entry| entry.tool.origin() == DefinitionOrigin::Own && !entry.targets_run()),
        Resolution::Unknown(_) => false,
    };
    let field = instance_field(input);
    let shown = tools.iter().map(|tool| {
        let mut tool = tool.clone();
        if takes_one(&tool) {
            show_field(&mut tool, INSTANCE, field.clone());
        }
        tool
    });
    shown.collect()
}

/// The tools of the model's provider: those that a request declares, and the others with reasons.
#[derive(Default)]
pub(super) struct NativeTools {
    pub(super) declared: Vec<Arc<Entry>>,
    pub(super) left_out: Vec<(String, String)>,
}

impl ToolView {
    fn new(catalogue: &Arc<Snapshot>, config: &RunConfig, principal: &Principal, allow_unsafe: bool) -> Self {
        let (allowed, denied, rights) = (config.tools.as_slice(), config.denied.as_slice(), config.rights_tools());
        let tools = match (allowed, denied, rights) {
            ([], [], None) => Arc::clone(catalogue),
            _ => Arc::new(catalogue.only(|entry| config.has_tool(entry), "not among the tools of this run")),
        };
        // A tool that its author marks unsafe is shown only if it is requested by its name, however many tools there
        // are.
        let is_wanted = |entry: &&Arc<Entry>| {
            allow_unsafe
                || entry.definition().safe
                || entry.is_named_by(&config.pinned)
                || allowed.contains(&entry.wire_name)
        };
        let usable = usable_tools(&tools, principal).filter(is_wanted).cloned().collect();
        let is_native = |entry: &&Arc<Entry>| {
            let definition = entry.definition();
            definition.provider_native.is_some() && principal.may_use(&definition.allowed_roles)
        };
        let natives = tools.list().iter().filter(is_native).cloned().collect();
        Self {
            tools,
            usable,
            natives,
            finds_unsafe: allow_unsafe,
            own: Arc::new(run_tools(config.agent_tools.report.as_ref(), config.handoff())),
            all: OnceLock::new(),
            searchable: OnceLock::new(),
            cost: OnceLock::new(),
            requests: Mutex::default(),
        }
    }

    /// Returns the snapshot in which names resolve under `exposure`: the run's tools, with the search tools unless all
    /// are shown.
    pub(super) fn snapshot(&self, exposure: Option<Exposure>, finder: &ToolFinder) -> &Arc<Snapshot> {
        match exposure {
            None | Some(Exposure::Direct) => self.all(),
            Some(_) => self.searchable.get_or_init(|| self.with_own(&searchable(&self.tools, finder.clone()))),
        }
    }

    fn all(&self) -> &Arc<Snapshot> {
        self.all.get_or_init(|| self.with_own(&self.tools))
    }

    fn with_own(&self, tools: &Snapshot) -> Arc<Snapshot> {
        let provider: Arc<dyn Provider> = Arc::clone(&self.own) as _;
        Arc::new(tools.with(&provider, self.own.tools()))
    }

    /// Returns the agent's own tools that a run is shown.
    pub(super) fn own(&self, agent_tools: &AgentTools) -> impl Iterator<Item = &Arc<Entry>> {
        let ids = self.own.tools().iter().map(|tool| tool.definition().id.as_str());
        ids.filter(move |id| agent_tools.shows(id)).filter_map(|id| self.all().get(id))
    }

    /// Returns the cost of showing all usable tools.
    fn cost(&self) -> ExposureCost {
        let tokens = || self.usable.iter().map(|entry| entry.tokens()).sum();
        *self.cost.get_or_init(|| ExposureCost { tools: self.usable.len(), tokens: tokens() })
    }

    /// Returns the token budget of the definitions picked for a task.
    fn pick_budget(&self) -> usize {
        (self.cost().tokens / PICKED_SHARE).clamp(*PICKED_TOKENS.start(), *PICKED_TOKENS.end())
    }

    /// Returns the request tools in `order`, by wire name, from the cache if they were shown before.
    fn request_tools(
        &self,
        exposure: Exposure,
        order: &[String],
        natives: Vec<Arc<Entry>>,
        snapshot: &Snapshot,
    ) -> RequestTools {
        let mut cached = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let same_natives = |cached_natives: &[Arc<Entry>]| {
            cached_natives.len() == natives.len() && cached_natives.iter().zip(&natives).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        let is_same = |candidate: &&CachedRequestTools| {
            candidate.exposure == exposure && candidate.order == order && same_natives(&candidate.natives)
        };
        if let Some(hit) = cached.iter().find(is_same) {
            return hit.request_tools.clone();
        }
        let request_tools = self.make_request_tools(exposure, order, &natives, snapshot);
        if cached.len() == MAX_REQUEST_TOOLS {
            cached.remove(0);
        }
        cached.push(CachedRequestTools {
            exposure,
            order: order.to_vec(),
            natives,
            request_tools: request_tools.clone(),
        });
        request_tools
    }

    /// Builds the request tools: those of the model's provider, those in `order`, and then, if the API loads tools
    /// itself, all others as deferred.
    fn make_request_tools(
        &self,
        exposure: Exposure,
        order: &[String],
        natives: &[Arc<Entry>],
        snapshot: &Snapshot,
    ) -> RequestTools {
        let is_deferring = exposure == Exposure::Deferred;
        let ordered = order.iter().filter_map(|name| entry(snapshot, name)).map(|entry| {
            let is_search = is_deferring && entry.id().as_str() == SEARCH_ID;
            RequestTool {
                exposed: if is_search { ToolVisibility::Search } else { ToolVisibility::Shown },
                ..request_tool(entry)
            }
        });
        let mut tools: Vec<RequestTool> = natives.iter().map(|entry| request_tool(entry)).chain(ordered).collect();
        let tokens = tools.iter().map(shown_tokens).sum();
        let listed_count = tools.len();
        let first: HashSet<&str> = order.iter().map(String::as_str).collect();
        let others = || self.usable.iter().filter(|entry| !first.contains(&*entry.wire_name));
        let (mut deferred, mut excluded) = (0, others().count());
        if is_deferring {
            let findable = others;
            deferred = findable().count();
            excluded -= deferred;
            tools.extend(
                findable().map(|entry| RequestTool { exposed: ToolVisibility::Deferred, ..request_tool(entry) }),
            );
        }
        let exposure_record =
            ExposureRecord { exposure: Some(exposure), shown: listed_count, deferred, excluded, tokens };
        RequestTools { tools: tools.into(), exposure_record, note: None, left_out: Vec::new() }
    }
}

impl Driver {
    /// Returns the tools of a run in the present catalogue.
    pub(super) fn view(&self, config: &RunConfig, options: &RunOptions) -> Arc<ToolView> {
        self.views.current(&self.catalogue, config, &options.session.principal, self.finder.allows_unsafe())
    }

    /// Returns the snapshot in which a run's names resolve.
    pub(super) fn snapshot<'v>(&self, state: &RunState, view: &'v ToolView) -> &'v Arc<Snapshot> {
        view.snapshot(state.exposure().map(|choice| choice.exposure), &self.finder)
    }

    /// Chooses how the model of `config` is shown the tools of `view`.
    pub(super) fn choice(&self, config: &RunConfig, view: &ToolView) -> ChosenExposure {
        choose(config.exposure, view.cost(), config.window, self.model.has_tool_search(&config.model))
    }

    /// Returns the tools of the next request. The first turn chooses how the model is shown them. The tools that read
    /// stored outputs are included once the session has stored an output. `meter` counts requests to models that pick
    /// tools; `None` if no run is in progress.
    pub(super) async fn request_tools(
        &self,
        state: &mut RunState,
        view: &ToolView,
        options: &RunOptions,
        meter: Option<&Arc<UsageMeter>>,
    ) -> RequestTools {
        let session: &Session = &options.session;
        let choice = match state.exposure() {
            Some(choice) => choice.clone(),
            None => {
                let choice = self.choice(state.config(), view);
                state.expose(choice.clone(), tool_index(choice.exposure, &view.usable));
                choice
            }
        };
        let (exposure, note) = match choice.exposure {
            Exposure::Pick => self.pick(state, view, options, meter).await,
            other => (other, None),
        };
        let snapshot = view.snapshot(Some(exposure), &self.finder);
        let picked_entries = match last_report(state, snapshot) {
            // Tools that the API has loaded must stay in the request.
            Some(report) if exposure != Exposure::Deferred => vec![report],
            _ => {
                let has_outputs = self.executor.services().outputs.has_outputs(&session.id);
                tools_to_pick(exposure, has_outputs, state, view, snapshot)
            }
        };
        let picked_names: Vec<&str> = picked_entries.iter().map(|entry| entry.wire_name.as_str()).collect();
        let natives = self.natives(state.config(), view, options, !picked_names.is_empty());
        let mut request_tools =
            view.request_tools(exposure, state.order_tools(&picked_names), natives.declared, snapshot);
        // The model also reads the definitions that results have loaded.
        let loaded: HashSet<&str> = state.loaded_by_results().collect();
        let loaded = request_tools
            .tools
            .iter()
            .filter(|tool| tool.exposed == ToolVisibility::Deferred && loaded.contains(&*tool.name));
        request_tools.exposure_record.tokens += loaded.map(shown_tokens).sum::<usize>();
        (request_tools.note, request_tools.left_out) = (note, natives.left_out);
        request_tools
    }

    /// Returns the tools of the model's provider. Nobody can be asked about their uses, so the policy decides before
    /// they are declared.
    pub(super) fn natives(
        &self,
        config: &RunConfig,
        view: &ToolView,
        options: &RunOptions,
        beside_others: bool,
    ) -> NativeTools {
        let mut natives = NativeTools::default();
        let nothing = json!({});
        for entry in &view.natives {
            let decision = options.policy.decide(&PolicyQuery {
                definition: entry.definition(),
                trust: entry.provider.trust(),
                principal: &options.session.principal,
                root: &options.session.root,
                scope: CallScope::Anywhere,
                unvalidated: None,
                arguments: &nothing,
                request: None,
                tainted: &[],
            });
            let refused = match decision.effect {
                Effect::Allow => self.model.lacks_native(&config.model, &request_tool(entry), beside_others),
                Effect::Deny => Some(format!("the policy denies it: {}", decision.reason)),
                Effect::Ask => Some(format!(
                    "the policy asks about it ({}), and its provider asks nobody: allow it under `policy.rules`",
                    decision.reason
                )),
            };
            match refused {
                None => natives.declared.push(Arc::clone(entry)),
                Some(why) => natives.left_out.push((entry.wire_name.clone(), why)),
            }
        }
        natives
    }

    /// Loads the tools that fit the model's next work. If none fits the task, the run changes to searching.
    async fn pick(
        &self,
        state: &mut RunState,
        view: &ToolView,
        options: &RunOptions,
        meter: Option<&Arc<UsageMeter>>,
    ) -> (Exposure, Option<String>) {
        let texts = state.recent_texts();
        if texts.is_empty() {
            return (Exposure::Pick, None);
        }
        let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
        let is_first = state.turns() == 0;
        let pick_size = state.config().pick_size;
        let limit = if is_first { pick_size } else { MAX_PICKED_LATER.min(pick_size) };
        let calls = meter.map(|meter| {
            self.executor.inner_caller(RunContext {
                lineage: options.lineage(state.turns() + 1),
                cancel: options.cancel.clone(),
                usage: Some(Arc::clone(meter) as _),
                ..self.run_context(state, &view.tools, options)
            })
        });
        let input = PickInput::turns(&texts).on_behalf_of(calls.as_ref().map(|calls| calls as &dyn NestedCalls));
        let principal = &options.session.principal;
        let found = self.finder.find_with_reasons(input, &view.tools, limit, principal, None).await;
        for (scorer, why) in found.failed.iter().filter(|_| is_first) {
            self.warn("scorer_failed", format!("tools were picked without {scorer}, which failed: {why}"));
        }
        if let Some(meter) = meter {
            meter.count(state);
        }
        let failed = found.failed.iter().map(|(scorer, why)| format!("without {scorer}, which failed: {why}"));
        let reasons: Vec<String> = failed.chain(found.reasons).collect();
        let note = (!reasons.is_empty()).then(|| format!("picked {}", reasons.join("; ")));
        let names = fit_into_tokens(&found.entries, view.pick_budget() * limit / pick_size.max(1));
        let nothing = is_first && names.is_empty() && state.loaded(|_| true).is_empty();
        if nothing && !view.usable.iter().any(|entry| entry.is_named_by(&state.config().pinned)) {
            let reason = "pick was asked for, but no tool fits the task: the model searches them".into();
            let choice = ChosenExposure { exposure: Exposure::Search, reason };
            state.expose(choice, tool_index(Exposure::Search, &view.usable));
            return (Exposure::Search, note);
        }
        state.load(names);
        (Exposure::Pick, note)
    }
}

/// Returns the wire names of the tools among `found`, best first, whose definitions fit into `tokens` together. A
/// definition that is too large is skipped for smaller ones. The best tool is always included.
fn fit_into_tokens(found: &[Arc<Entry>], tokens: usize) -> Vec<String> {
    let mut left = tokens;
    let mut names = Vec::with_capacity(found.len());
    for entry in found {
        let cost = entry.tokens();
        if names.is_empty() || cost <= left {
            left = left.saturating_sub(cost);
            names.push(entry.wire_name.clone());
        }
    }
    names
}

/// Returns the final report tool, if the model may call no other now.
fn last_report<'a>(state: &RunState, snapshot: &'a Snapshot) -> Option<&'a Arc<Entry>> {
    let is_required = state.is_last_turn() && state.config().agent_tools.report.is_some();
    snapshot.get(FINAL_REPORT_ID).filter(|_| is_required)
}

/// Returns the tools whose definitions the request shows, each once: search tools, the agent's own, pinned ones, those
/// loaded during the run, and those for stored outputs if there are any.
fn tools_to_pick<'a>(
    exposure: Exposure,
    has_outputs: bool,
    state: &mut RunState,
    view: &'a ToolView,
    snapshot: &'a Snapshot,
) -> Vec<&'a Arc<Entry>> {
    let own: Vec<_> = view.own(&state.config().agent_tools).collect();
    let finders: &[&str] = match exposure {
        Exposure::Direct => {
            let is_useful = |entry: &&Arc<Entry>| has_outputs || !is_output_tool(entry.id());
            return view.usable.iter().filter(is_useful).chain(own).collect();
        }
        Exposure::Search => &[SEARCH_ID, DESCRIBE_ID, CALL_ID],
        Exposure::Pick | Exposure::Deferred => &[SEARCH_ID],
    };
    let finders = finders.iter().filter_map(|id| snapshot.get(id));
    let pinned = state.config().pinned.clone();
    // A tool that is marked unsafe and named by its run is not found by search, so it is shown.
    let is_shown = |entry: &&Arc<Entry>| {
        entry.is_named_by(&pinned) || is_always_shown(entry) || !entry.definition().safe && !view.finds_unsafe
    };
    let pinned = view.usable.iter().filter(is_shown);
    let loaded = state.loaded(|name| entry(snapshot, name).is_some_and(|entry| entry.wire_name == name));
    let loaded = loaded.iter().filter_map(|name| entry(snapshot, name));
    let readers = view.usable.iter().filter(|entry| has_outputs && is_output_tool(entry.id()));
    let all = finders.chain(own).chain(pinned).chain(loaded).chain(readers);
    let mut names = HashSet::new();
    all.filter(|entry| names.insert(&*entry.wire_name)).collect()
}

/// Builds each view once for a catalogue, so that requests with the same tools share them and their encoding for the
/// API.
#[derive(Default)]
pub(crate) struct ToolViewCache(Mutex<Vec<CachedView>>);

struct CachedView {
    catalogue: Arc<Snapshot>,
    allowed: Vec<String>,
    denied: Vec<String>,
    rights: Option<Vec<String>>,
    pinned: Vec<String>,
    report: Option<ReportConfig>,
    router: Router,
    hands_back_to: Option<String>,
    principal: Principal,
    view: Arc<ToolView>,
}

impl ToolViewCache {
    /// Returns the present catalogue filtered by the globs of `config` (all tools without globs), for `principal`.
    fn current(
        &self,
        catalogue: &Catalogue,
        config: &RunConfig,
        principal: &Principal,
        allow_unsafe: bool,
    ) -> Arc<ToolView> {
        let (allowed, denied, report) = (&config.tools, &config.denied, &config.agent_tools.report);
        let catalogue = catalogue.snapshot();
        let find = |cached: &[CachedView]| {
            let is_same = |cached: &&CachedView| {
                Arc::ptr_eq(&cached.catalogue, &catalogue)
                    && cached.allowed == *allowed
                    && cached.denied == *denied
                    && cached.rights.as_deref() == config.rights_tools()
                    && cached.pinned == config.pinned
                    && cached.report == *report
                    && cached.router == *config.router()
                    && cached.hands_back_to == config.agent_tools.hands_back_to
                    && cached.principal == *principal
            };
            cached.iter().find(is_same).map(|cached| Arc::clone(&cached.view))
        };
        if let Some(view) = find(&self.cached()) {
            return view;
        }
        let view = Arc::new(ToolView::new(&catalogue, config, principal, allow_unsafe));
        let mut cached = self.cached();
        // Another run may have built it meanwhile; all share one.
        if let Some(view) = find(&cached) {
            return view;
        }
        cached.retain(|cached| Arc::ptr_eq(&cached.catalogue, &catalogue));
        if cached.len() == MAX_VIEWS {
            cached.remove(0);
        }
        cached.push(CachedView {
            catalogue,
            allowed: allowed.clone(),
            denied: denied.clone(),
            rights: config.rights_tools().map(<[_]>::to_vec),
            pinned: config.pinned.clone(),
            report: report.clone(),
            router: config.router().clone(),
            hands_back_to: config.agent_tools.hands_back_to.clone(),
            principal: principal.clone(),
            view: Arc::clone(&view),
        });
        view
    }

    fn cached(&self) -> MutexGuard<'_, Vec<CachedView>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tools that a model can use, in catalogue order: those that the principal may use and that run here.
pub(crate) fn usable_tools<'a>(
    snapshot: &'a Snapshot,
    principal: &'a Principal,
) -> impl Iterator<Item = &'a Arc<Entry>> {
    snapshot.list().iter().filter(|entry| {
        let definition = entry.definition();
        let is_for_models = definition.provider_native.is_none() && !entry.is_activity();
        principal.may_use(&definition.allowed_roles) && is_for_models
    })
}

/// Returns a tool as a request shows it. A tool without a schema takes an open object, for which no API can be strict.
pub(crate) fn request_tool(entry: &Entry) -> RequestTool {
    let definition = entry.definition();
    RequestTool {
        name: entry.wire_name.clone(),
        description: definition.description.clone(),
        parameters: entry.shown_schema(),
        strict: if definition.parameters.is_none() { Some(false) } else { definition.strict },
        body_argument: definition.body_argument.clone(),
        namespace: definition.id.namespace().to_owned(),
        native: definition.provider_native.as_ref().and_then(|native| native.as_object()).cloned(),
        ..RequestTool::default()
    }
}

/// Resolves a written call to its tool.
pub(super) fn resolve(snapshot: &Snapshot, written: &RawToolCall) -> Option<ResolvedTool> {
    let called = entry(snapshot, &written.name)?;
    let arguments = RawArguments::Text(written.arguments.clone());
    let call = ToolCall::new(CallId::new(written.id.as_str()), written.name.clone(), arguments);
    let runs = called_entry(snapshot, &call).unwrap_or(called);
    Some(ResolvedTool { wire_name: called.wire_name.clone(), definition: runs.tool.hash() })
}

/// Returns the tool that a call will run, by its name: the inner call's, if it carries one.
pub(super) fn called_entry<'a>(snapshot: &'a Snapshot, call: &ToolCall) -> Option<&'a Arc<Entry>> {
    match wrapped_call(call, snapshot) {
        Some(inner) => entry(snapshot, &inner.name),
        None => entry(snapshot, &call.name),
    }
}

/// Returns the entry of a written name.
pub(super) fn entry<'a>(snapshot: &'a Snapshot, written: &str) -> Option<&'a Arc<Entry>> {
    match snapshot.resolve(written) {
        Resolution::Found(index, _) => snapshot.list().get(index),
        Resolution::Unknown(_) => None,
    }
}
