//! Runs the calls of a turn through the executor: those of a complete answer, and those that start while it streams.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolwright_core::ValidCall;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, Approver};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::{Entry, ProviderKind, Snapshot};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::UsageRecorder;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::JobRecord;
use toolwright_core::model::{Cost, PriceTable, Usage};
use toolwright_core::operation::CallOrigin;
use toolwright_core::outcome::Outcome;
use toolwright_core::plan::{PlanApproval, plan};
use toolwright_core::session::{CallId, SessionId};
use toolwright_core::store::OutputStore;
use toolwright_runtime::executor::{ContextBudget, HandoffOptions};
use toolwright_runtime::{CallOrder, Executor, RunContext};

use super::{Driver, DriverError, RunOptions};
use crate::run::{Grant, RunState, ToolBatch, TransitionError};

/// The most jobs of one run whose usage is counted separately, the newest.
const MAX_JOBS: usize = 256;
/// The image types that models are shown.
const SHOWN_IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

impl Driver {
    /// Runs the calls of a turn through the executor, along with those that were started. Saves the repairs of their
    /// check before they run.
    pub(super) async fn run_calls(
        &self,
        state: &mut RunState,
        batch: ToolBatch,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
        in_flight: &mut InFlightCalls,
        cancel: &Cancel,
    ) -> Result<Vec<Outcome>, DriverError> {
        let mut run = self.call_context(state, snapshot, options, cancel, in_flight);
        run.started_before = in_flight.ids.len();
        in_flight.budget.update(state);
        if let Some(watcher) = &options.watcher {
            batch.calls.iter().for_each(|call| watcher.on_call_start(call));
        }
        if !batch.grants.is_empty() {
            run.approver = Arc::new(GrantedApprover::new(batch.grants.clone(), run.approver));
        }
        let call_ids: Vec<CallId> = batch.calls.iter().map(|call| call.id.clone()).collect();
        let (repairs_before, started) = (batch.repairs.clone(), batch.started.clone());
        let (calls, excluded) = batch.in_order();
        run.excluded = excluded.into();
        if let Some(approval) = state.plan().and_then(|plan| plan.approval().cloned()) {
            run.approver = Arc::new(PlanApprover { approval, fallback_approver: run.approver });
        }
        let running = async {
            // The usage of repairs is recorded with the repairs.
            let repairs = UsageMeter::of(options, self.prices(), &[]);
            let apart = RunContext { usage: Some(Arc::clone(&repairs) as _), ..run.clone() };
            let checked = self.executor.check_calls(calls, &repairs_before, &apart).await;
            state.on_cost(repairs.take().1);
            if state.on_checked(checked.usage, checked.model_repairs()) {
                self.save(state, options).await?;
            }
            Ok::<_, DriverError>(self.executor.run_checked(checked.calls, &run).await)
        };
        let (outcomes, joined) = tokio::join!(running, in_flight.join());
        let mut outcomes = outcomes?;
        outcomes.extend(joined);
        let is_known = |id: &CallId| outcomes.iter().any(|outcome| outcome.call_id == *id);
        let lost: Vec<Outcome> = started.into_iter().filter(|id| !is_known(id)).map(lost_outcome).collect();
        state.on_blocked(|id| call_ids.contains(id) && !is_known(id));
        outcomes.extend(lost);
        store_files(&mut outcomes, &*self.executor.services().outputs, &options.session.id).await;
        if let Some(watcher) = &options.watcher {
            outcomes.iter().for_each(|outcome| watcher.ended(outcome));
        }
        Ok(outcomes)
    }

    /// Returns the context of calls that the run's model makes.
    pub(super) fn call_context(
        &self,
        state: &RunState,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
        cancel: &Cancel,
        in_flight: &InFlightCalls,
    ) -> RunContext {
        RunContext {
            budget: in_flight.budget.budget.clone(),
            cancel: cancel.clone(),
            client: Arc::clone(&options.client),
            variables: options.variables.clone(),
            journal: self.journal(options),
            order: Some(in_flight.order.clone()),
            usage: Some(Arc::clone(&in_flight.meter) as _),
            is_plan: state.plan().is_some(),
            max_output: state.ends_with_plan().then(|| self.executor.whole_result_max_bytes()),
            ..self.run_context(state, snapshot, options)
        }
    }

    /// Returns what a run hands over if its agent has destinations. The tools are those of the run's starter.
    fn handoff_terms(&self, state: &RunState, options: &RunOptions) -> Option<HandoffOptions> {
        let config = state.config();
        let agent = config.agent.as_ref().filter(|agent| !agent.router.is_empty())?;
        let snapshot = match &options.parent {
            Some(parent) => Arc::clone(&parent.snapshot),
            None => self.catalogue.snapshot(),
        };
        // Restrictions by a person apply to every agent of the run.
        let narrowed = Some(&*config.tools).filter(|tools| agent.tools.as_deref() != Some(*tools)).unwrap_or_default();
        let rights = config.rights_tools();
        let snapshot = if narrowed.is_empty() && rights.is_none() {
            snapshot
        } else {
            let is_permitted = |entry: &Entry| rights.is_none_or(|tools| entry.is_named_by(tools));
            let keeps = |entry: &Entry| match entry.provider.kind() {
                ProviderKind::Agent => agent.router.destination(entry.id().name()).is_some() || is_permitted(entry),
                _ => (narrowed.is_empty() || entry.is_named_by(narrowed)) && is_permitted(entry),
            };
            // The same key for each turn.
            let key = json!(["handed over", narrowed, rights, agent.router]).to_string();
            snapshot.derived(&key, |snapshot| snapshot.only(keeps, "not among the tools of this run"))
        };
        Some(HandoffOptions { conversation: state.conversation(), snapshot })
    }

    /// Returns the context of any call of the run.
    pub(super) fn run_context(&self, state: &RunState, snapshot: &Arc<Snapshot>, options: &RunOptions) -> RunContext {
        let new = RunContext {
            lineage: options.lineage(state.turns()),
            origin: CallOrigin::Agent,
            // The run of a plan has no model.
            model: Some(state.config().model.as_str()).filter(|model| !model.is_empty()).map(Into::into),
            agent_budget: options.agent_budget.clone(),
            limits: state.config().all_limits(),
            reads_mailbox: options.reads_mailbox,
            hops: Arc::clone(&options.hops),
            handoff: self.handoff_terms(state, options).map(Arc::new),
            ..RunContext::new(
                Arc::clone(&options.session),
                Arc::clone(snapshot),
                Arc::clone(&options.policy),
                Arc::clone(&options.approver),
            )
        };
        match &options.parent {
            // The user's words, not those of the model that started the agent.
            Some(parent) => RunContext {
                request: parent.request.clone(),
                agents: Arc::clone(&parent.agents),
                priority: parent.priority,
                asker: parent.asker.clone(),
                read_taint: parent.read_taint.clone(),
                ..new
            },
            // A plan that was written before belongs to no user request.
            None if state.ends_with_plan() => RunContext { origin: CallOrigin::Owner, ..new },
            None => RunContext { request: Some(Arc::new(state.request())), ..new },
        }
    }

    /// Like [`Driver::calls_ended`]. A started call about which a guard asks runs again with its turn. Calls that the
    /// end of the program cut off stay open if they may run again.
    pub(super) fn started_ended(
        &self,
        state: &mut RunState,
        outcomes: Vec<Outcome>,
        options: &RunOptions,
    ) -> Result<(), TransitionError> {
        let is_open =
            |outcome: &Outcome| outcome.is_left || (outcome.pending.is_some() && state.is_started(&outcome.call_id));
        let (open, ended): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_open);
        state.requeue_started(|id| open.iter().any(|outcome| outcome.call_id == *id));
        if ended.is_empty() { Ok(()) } else { self.calls_ended(state, ended, options) }
    }

    /// Records how calls ended, in transcript and state.
    pub(super) fn calls_ended(
        &self,
        state: &mut RunState,
        outcomes: Vec<Outcome>,
        options: &RunOptions,
    ) -> Result<(), TransitionError> {
        self.record(options, || json!({"type": "outcomes", "turn": state.turns(), "outcomes": outcomes}));
        state.on_tools(outcomes)
    }
}

/// Calls that were started while their answer streamed.
pub(super) struct InFlightCalls {
    /// The cancel token of the request that returned them.
    pub(super) cancel: Cancel,
    /// The token budget of the results of their turn.
    pub(super) budget: TurnBudget,
    /// Records the calls' requests to models.
    pub(super) meter: Arc<UsageMeter>,
    /// The order of the calls of their turn.
    order: CallOrder,
    ids: Vec<CallId>,
    tasks: JoinSet<Vec<Outcome>>,
}

impl InFlightCalls {
    /// Creates it without calls.
    pub(super) fn new(cancel: Cancel, budget: TurnBudget, meter: &Arc<UsageMeter>) -> Self {
        let order = CallOrder::default();
        Self { cancel, budget, meter: Arc::clone(meter), order, ids: Vec::new(), tasks: JoinSet::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Starts a call that [`Executor::startable`] has let through.
    pub(super) fn start(&mut self, executor: &Arc<Executor>, call: ValidCall, run: &RunContext) {
        self.ids.push(call.id.clone());
        // A guard may still ask, but nobody answers before the turn is complete.
        let run = RunContext { approver: Arc::new(DeferringApprover), cancel: self.cancel.clone(), ..run.clone() };
        let executor = Arc::clone(executor);
        self.tasks.spawn(async move { executor.execute(plan(vec![Ok(call)], 1, 0), &run).await });
    }

    /// Waits for all of them. Returns one outcome each.
    pub(super) async fn join(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(self.ids.len());
        while let Some(joined) = self.tasks.join_next().await {
            match joined {
                Ok(ended) => outcomes.extend(ended),
                Err(error) => tracing::error!("a started call was lost: {error}"),
            }
        }
        for id in std::mem::take(&mut self.ids) {
            if !outcomes.iter().any(|outcome| outcome.call_id == id) {
                outcomes.push(lost_outcome(id));
            }
        }
        outcomes
    }
}

/// Returns the outcome of a started call that was lost.
fn lost_outcome(id: CallId) -> Outcome {
    let message = "unknown: the call started, and what became of it was lost; it may or may not have taken effect. Check before you call it again";
    Outcome::failed(id, ToolError::new(ErrorKind::ExecutionError, message))
}

/// Defers every question to the end of the turn.
struct DeferringApprover;

#[async_trait]
impl Approver for DeferringApprover {
    async fn ask(&self, _request: &ApprovalRequest) -> ApprovalDecision {
        ApprovalDecision::Later
    }
}

/// Answers with the decisions that people made while the run was suspended, and passes all other questions on.
struct GrantedApprover {
    grants: Vec<Grant>,
    fallback_approver: Arc<dyn Approver>,
}

impl GrantedApprover {
    fn new(grants: Vec<Grant>, fallback_approver: Arc<dyn Approver>) -> Self {
        Self { grants, fallback_approver }
    }
}

#[async_trait]
impl Approver for GrantedApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        // A decision applies only to the call that the person was asked about. An agent's question was asked as its
        // caller's, under the id of that call.
        let is_asked = |answered: &ApprovalRequest| {
            (answered.call_id == request.call_id || !request.agents.is_empty())
                && answered.agents == request.agents
                && answered.tool == request.tool
                && answered.definition == request.definition
                && answered.binds_to.is_some()
                && answered.binds_to == request.binds_to
        };
        match self.grants.iter().find(|grant| is_asked(&grant.request)) {
            Some(grant) => grant.decision.clone(),
            None => self.fallback_approver.ask(request).await,
        }
    }
}

/// Answers the questions that the approval of a plan covers.
struct PlanApprover {
    approval: PlanApproval,
    fallback_approver: Arc<dyn Approver>,
}

#[async_trait]
impl Approver for PlanApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        if self.approval.covers(request) {
            return ApprovalDecision::Approve;
        }
        self.fallback_approver.ask(request).await
    }
}

/// The token budget for the results of a turn.
pub(super) struct TurnBudget {
    /// `None` if the context window is unknown.
    budget: Option<Arc<ContextBudget>>,
    /// Tokens of the shown tool definitions.
    tools: usize,
}

impl TurnBudget {
    /// Creates it for the current turn of `state`, with definitions of `tools` tokens.
    pub(super) fn of(state: &RunState, tools: usize) -> Self {
        let budget = state.context_limit().map(|limit| Arc::new(ContextBudget::new(limit)));
        let budget = Self { budget, tools };
        budget.update(state);
        budget
    }

    /// Updates it after the conversation has changed, apart from results of this turn.
    fn update(&self, state: &RunState) {
        if let Some(budget) = &self.budget {
            budget.holds(state.context_tokens() + self.tools, state.removable_tokens());
        }
    }
}

/// Counts the model usage of calls, apart from the run's own requests.
pub(super) struct UsageMeter {
    total: Mutex<(Usage, Cost)>,
    /// The total usage of each call's job, and how much of it the saved run has counted.
    of_jobs: Mutex<Vec<(CallId, Usage)>>,
    prices: PriceTable,
    /// The recorder of the call that the run is part of.
    caller_usage: Option<Arc<dyn UsageRecorder>>,
    /// A reference to itself.
    shared: Weak<Self>,
}

impl UsageMeter {
    /// Creates the meter of a run that has counted this much of its jobs.
    pub(super) fn of(options: &RunOptions, prices: &PriceTable, of_jobs: &[(CallId, Usage)]) -> Arc<Self> {
        let above = options.parent.as_ref().and_then(|parent| parent.usage.clone());
        Arc::new_cyclic(|shared| Self {
            total: Mutex::default(),
            of_jobs: Mutex::new(of_jobs.to_vec()),
            prices: prices.clone(),
            caller_usage: above,
            shared: Weak::clone(shared),
        })
    }

    /// Returns the usage since the last time, and its cost.
    pub(super) fn take(&self) -> (Usage, Cost) {
        std::mem::take(&mut *self.total.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the usage since the last time to the run's. Returns whether there is any.
    pub(super) fn count(&self, state: &mut RunState) -> bool {
        // Usage that arrives meanwhile is counted the next time.
        let of_jobs = self.of_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let (used, cost) = self.take();
        if used == Usage::default() && cost == Cost::default() {
            return false;
        }
        state.on_used(used, cost);
        state.on_used_by_jobs(&of_jobs);
        true
    }

    /// Counts the rest of an ended job's usage. Its record has the total, including that of a process that died before
    /// the run was saved.
    pub(super) fn job_ended(&self, model: &str, job: &JobRecord) {
        let (used, cost) = usage_of(&job.outcome);
        let mut of_jobs = self.of_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = of_jobs.iter().find(|(call, _)| *call == job.call).map(|(_, total)| *total).unwrap_or_default();
        let more = used.saturating_sub(counted);
        if more == Usage::default() {
            return;
        }
        add_to(&mut of_jobs, &job.call, more);
        let mut total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        total.0.add(more);
        total.1.add(if counted == Usage::default() { cost } else { Cost::of_usage(more, self.prices.of(model)) });
        drop(total);
        self.report(model, more);
    }

    /// Reports the run's own usage to those above it only.
    pub(super) fn report(&self, model: &str, usage: Usage) {
        if let Some(above) = &self.caller_usage {
            above.record(model, usage);
        }
    }
}

impl UsageRecorder for UsageMeter {
    fn of_job(&self, call: &CallId) -> Option<Arc<dyn UsageRecorder>> {
        Some(Arc::new(JobUsageMeter { run: self.shared.upgrade()?, call: call.clone() }))
    }

    fn record(&self, model: &str, usage: Usage) {
        let mut total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        total.0.add(usage);
        total.1.add(Cost::of_usage(usage, self.prices.of(model)));
        drop(total);
        self.report(model, usage);
    }
}

/// Adds to the usage of a call's job.
fn add_to(of_jobs: &mut Vec<(CallId, Usage)>, job: &CallId, usage: Usage) {
    match of_jobs.iter_mut().find(|(call, _)| call == job) {
        Some((_, total)) => total.add(usage),
        None => {
            if of_jobs.len() >= MAX_JOBS {
                of_jobs.remove(0);
            }
            of_jobs.push((job.clone(), usage));
        }
    }
}

/// Counts the model usage of one job.
struct JobUsageMeter {
    run: Arc<UsageMeter>,
    call: CallId,
}

impl UsageRecorder for JobUsageMeter {
    fn record(&self, model: &str, usage: Usage) {
        let mut of_jobs = self.run.of_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        add_to(&mut of_jobs, &self.call, usage);
        self.run.record(model, usage);
    }

    fn resumed(&self, model: &str, usage: Usage) {
        let of_jobs = self.run.of_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = of_jobs.iter().find(|(call, _)| *call == self.call).map(|(_, total)| *total);
        drop(of_jobs);
        self.record(model, usage.saturating_sub(counted.unwrap_or_default()));
    }
}

/// Returns the calls' model usage and its cost by their outcomes, which is all that is known after an interruption.
pub(super) fn usage_of<'o>(outcomes: impl IntoIterator<Item = &'o Outcome>) -> (Usage, Cost) {
    let mut total = (Usage::default(), Cost::default());
    for Outcome { extras, .. } in outcomes {
        let Some(Ok(used)) = extras.get("usage").map(Usage::deserialize) else { continue };
        total.0.add(used);
        total.1.add(Cost::of(extras.get("cost_usd").and_then(Value::as_f64)));
    }
    total
}

/// Stores the binary blocks that models are not shown as files, and replaces them by handles. A block that cannot be
/// stored stays, and the conversation says that it is not shown.
async fn store_files(outcomes: &mut [Outcome], outputs: &dyn OutputStore, session: &SessionId) {
    for block in outcomes.iter_mut().flat_map(|outcome| &mut outcome.content) {
        let Some((what, data, media_type)) = hidden_binary(block) else { continue };
        let Ok(bytes) = BASE64_STANDARD.decode(data) else { continue };
        match outputs.put_artifact(session, &bytes, media_type).await {
            Ok(stored) => {
                let text = format!(
                    "[{what}, {media_type}, {} bytes: not shown, kept as a file under the handle {}]",
                    stored.bytes, stored.handle
                );
                *block = ContentBlock::text(text);
            }
            Err(error) => tracing::warn!("a binary result was not kept: {error}"),
        }
    }
}

/// Returns kind, base64 and media type of a binary block that models are not shown.
fn hidden_binary(block: &ContentBlock) -> Option<(String, &str, &str)> {
    match block {
        ContentBlock::Image { data, mime_type, .. } if !SHOWN_IMAGES.contains(&mime_type.as_str()) => {
            Some(("image".into(), data, mime_type))
        }
        ContentBlock::Audio { data, mime_type, .. } => Some(("audio".into(), data, mime_type)),
        ContentBlock::Resource { resource, .. } => {
            let part = |key| resource.get(key).and_then(Value::as_str);
            let what = format!("resource {}", part("uri").unwrap_or("unnamed"));
            Some((what, part("blob")?, part("mimeType").unwrap_or("application/octet-stream")))
        }
        _ => None,
    }
}
