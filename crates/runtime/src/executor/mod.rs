//! The executor, and its calls in flight. A call passes its stages in a fixed order: `checking.rs`, then those of
//! `pipeline.rs`. A stage without configuration does nothing.

mod admission;
mod background;
mod call_record;
mod checking;
mod context;
mod flow;
mod llm_call;
mod output_limits;
mod pipeline;
mod run;
mod state;

use std::borrow::Cow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use tokio::sync::Notify;
use tokio::time::Instant;
use toolwright_core::call::{Rejection, ToolCall, ValidCall};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Provider;
use toolwright_core::context::Services;
use toolwright_core::error::ToolError;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use toolwright_core::operation::{Lineage, Op, OpId};
use toolwright_core::outcome::Outcome;
use toolwright_core::plan::{CallDisposition, Plan, plan, plan_excluding};
use toolwright_core::session::{Session, SessionId};
use toolwright_core::store::LedgerStore;

use self::background::DrivenRuns;
use self::flow::Flow;
use self::pipeline::PanicSafeEvents;
use crate::jobs::JobManager;
use crate::models::{ModelRequests, OnAnswer, RequestScope};
use crate::queue::{CallOrder, WorkspaceLocks};

pub use self::background::{DrivenRun, RecoveryOptions};
pub use self::call_record::ENDED_MS;
pub use self::checking::CheckedCalls;
pub use self::context::{
    CallDefaults, CallerNames, ExecutorOptions, GuardBinding, GuardConfig, GuardContext, GuardMode, GuardVerdict,
    HandoffOptions, HandoffSource, InnerTaint, InputGuard, Interceptor, InterceptorDecision, LlmOptions, ModelGuard,
    ModelJudge, ModelRecommender, NestedCallLimits, NestedContext, PartialSinkFactory, PromotedTo, Promotion,
    RepairOptions, RunContext,
};
pub use self::flow::EndedCall;
pub use self::output_limits::{BUDGET_EXCEEDED, is_denied, output_readers};
pub use crate::models::{AuxiliaryRequests, ModelAsk, ModelCallRecord, ModelQuestion};
pub use crate::outputs::cache::ResponseCache;
pub use crate::outputs::context_budget::ContextBudget;

/// The executor of all calls. Shared by `Arc`.
pub struct Executor {
    options: ExecutorOptions,
    models: Arc<ModelRequests>,
    locks: WorkspaceLocks,
    in_flight: Arc<InFlight>,
    driven: Arc<DrivenRuns>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

impl Executor {
    /// Creates an executor. An event observer that panics is logged and cannot break a call.
    #[must_use]
    pub fn new(mut options: ExecutorOptions) -> Arc<Self> {
        let events = Arc::new(PanicSafeEvents(Arc::clone(&options.services.events)));
        options.services = Arc::new(Services { events, ..(*options.services).clone() });
        let (services, ledger) = (Arc::clone(&options.services), Arc::clone(&options.ledger));
        let (prices, budgets) = (std::mem::take(&mut options.prices), options.budgets.take());
        let models = ModelRequests::new(services, ledger, prices, budgets);
        let locks = WorkspaceLocks::new(options.lock_dir.take());
        Arc::new(Self { options, models, locks, in_flight: Arc::default(), driven: Arc::default() })
    }

    /// Begins an operation.
    #[must_use]
    pub fn begin(&self, lineage: &Lineage) -> Op {
        self.models.ids.begin(lineage)
    }

    /// Until the returned guard is dropped, jobs that dead processes left in the session of run `id` resume under these
    /// terms.
    pub fn drive(&self, id: Arc<str>, terms: RunContext) -> DrivenRun {
        self.driven.enter(id, terms)
    }

    /// Returns the sender and recorder of requests to models.
    #[must_use]
    pub fn models(&self) -> &Arc<ModelRequests> {
        &self.models
    }

    /// Returns the services of running tools.
    #[must_use]
    pub fn services(&self) -> &Arc<Services> {
        &self.options.services
    }

    /// Returns the jobs, if enabled.
    #[must_use]
    pub fn jobs(&self) -> Option<&Arc<JobManager>> {
        self.options.jobs.as_ref()
    }

    /// Returns the ledger.
    #[must_use]
    pub fn ledger(&self) -> &Arc<dyn LedgerStore> {
        &self.options.ledger
    }

    /// Returns how many calls may run in one turn.
    #[must_use]
    pub fn calls_per_turn(&self) -> usize {
        self.options.defaults.calls_per_turn
    }

    /// Returns the limit, in bytes, of results that are passed on whole or not at all.
    #[must_use]
    pub fn whole_result_max_bytes(&self) -> usize {
        self.options.defaults.whole_result_max_bytes
    }

    /// Checks, plans and executes the calls of one turn. Always returns one outcome per call, in call order.
    pub async fn run_calls(self: &Arc<Self>, calls: Vec<ToolCall>, run: &RunContext) -> Vec<Outcome> {
        let checked = pin!(self.check_calls(calls, &[], run)).await;
        pin!(self.run_checked(checked.calls, run)).await
    }

    /// Plans and executes the calls of one turn that [`Executor::check_calls`] has checked: the second half of
    /// [`Executor::run_calls`], for callers that keep the result of the check.
    pub async fn run_checked(
        self: &Arc<Self>,
        checked: Vec<Result<ValidCall, Box<Rejection>>>,
        run: &RunContext,
    ) -> Vec<Outcome> {
        let plan = match &run.inner {
            Some(bound) => plan(bound.apply(checked), usize::MAX, 0),
            None if run.is_plan => plan_excluding(checked, &run.excluded, usize::MAX, 0),
            None => plan_excluding(checked, &run.excluded, self.options.defaults.calls_per_turn, run.started_before),
        };
        pin!(self.execute(plan, run)).await
    }

    /// Refuses calls from now on, and ends all waits for a slot or a lock. Running calls continue.
    pub fn close(&self) {
        self.in_flight.close();
        self.options.queues.close(CancelCause::Shutdown);
        self.locks.close(CancelCause::Shutdown);
    }

    /// Shuts down: refuses new calls, fails waiting ones, cancels running ones, waits up to `grace` for them, abandons
    /// the rest, and writes the ledger. May be called again.
    pub async fn shut_down(&self, grace: Duration) {
        self.close();
        let left = self.in_flight.stop(grace).await;
        if left > 0 {
            tracing::warn!("{left} calls did not end when they were cancelled");
        }
        if let Err(error) = self.options.ledger.flush().await {
            tracing::warn!("the ledger was not written to its end: {error}");
        }
    }

    /// Executes a plan: each call starts as soon as the calls that it waits for have ended, and independent calls run
    /// in parallel. A call is not run if a value that it needs never arrives; its outcome gives the reason. Outcomes
    /// are in call order. Calls that wait for a person's decision have none yet. Dropping the future cancels the
    /// running calls, which still end properly.
    pub async fn execute(self: &Arc<Self>, mut plan: Plan, run: &RunContext) -> Vec<Outcome> {
        if plan.calls.len() == 1
            && plan.excluded.is_empty()
            && !plan.graph.is_open(0)
            && let Some(planned) = plan.calls.pop()
        {
            return vec![self.one(planned, run).await];
        }
        self.execute_timed(plan, run).await.into_iter().map(|call| call.outcome).collect()
    }

    /// Like [`Executor::execute`], with the start and end time of each call.
    pub async fn execute_timed(self: &Arc<Self>, plan: Plan, run: &RunContext) -> Vec<EndedCall> {
        // Calls of one batch keep their order too.
        let ordered;
        let run = if run.order.is_none() && plan.calls.len() > 1 {
            ordered = RunContext { order: Some(CallOrder::default()), ..run.clone() };
            &ordered
        } else {
            run
        };
        let mut flow = Flow::of(plan);
        let mut running = FuturesUnordered::new();
        loop {
            while let Some((index, planned)) = flow.next(running.is_empty(), run) {
                let call = self.one(planned, run);
                running.push(async move { (index, call.await) });
            }
            let Some((index, outcome)) = running.next().await else { break };
            flow.ended(index, outcome);
        }
        flow.outcomes.into_iter().flatten().collect()
    }

    fn one(self: &Arc<Self>, planned: CallDisposition, run: &RunContext) -> pipeline::Detached {
        match planned {
            CallDisposition::Run(call) => self.run_one(*call, run),
            CallDisposition::Reject(rejection) => self.reject_one(*rejection, run),
        }
    }

    /// Asks `model` as an operation in the lineage of `run`, until that is cancelled or for at most `limit`. Requests
    /// of background calls have lower priority. Every attempt is reported and recorded.
    ///
    /// # Errors
    /// [`ModelError`] of the model client; `Canceled` if `run` is cancelled, `Unavailable` at the limit.
    pub async fn ask_model(
        &self,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        run: &RunContext,
    ) -> Result<ModelResponse, ModelError> {
        self.ask_model_observed(model, request, limit, run, &|_| {}).await
    }

    /// Like [`Executor::ask_model`]; `on_answer` gets the answer first, to learn its secrets.
    async fn ask_model_observed(
        &self,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        run: &RunContext,
        on_answer: OnAnswer<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let priority = request.priority.max(run.priority.into());
        let room = if run.llm.requests.is_endless() { &request.room } else { &run.llm.requests };
        let request = if priority == request.priority && *room == request.room {
            Cow::Borrowed(request)
        } else {
            Cow::Owned(ModelRequest { priority, room: room.clone(), ..request.clone() })
        };
        let room = match &run.agent_budget {
            Some(agent_budget) => {
                Some(agent_budget.reserve(&*self.options.services.model, model, &request).await.map_err(over)?)
            }
            None => None,
        };
        let note = run.llm.variant.as_ref().map(|variant| format!("variant {variant}"));
        let scope = RequestScope { lineage: &run.lineage, session: &run.session, limit, cancel: &run.cancel, note };
        let answer = self.models.ask(scope, model, &request, on_answer).await;
        let used = answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage);
        room.into_iter().for_each(|room| room.settle(used));
        if let Some(recorder) = &run.usage {
            recorder.record(model, used);
        }
        answer
    }

    /// Like [`Executor::ask_model`], in this lineage and on behalf of this session.
    ///
    /// # Errors
    /// As [`Executor::ask_model`].
    pub async fn ask_as(
        &self,
        lineage: &Lineage,
        session: &Session,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        self.models.ask(RequestScope { lineage, session, limit, cancel, note: None }, model, request, &|_| {}).await
    }
}

/// Returns the error of a request that a limit of the agent's tree forbids.
fn over(error: ToolError) -> ModelError {
    ModelError::new(ModelErrorKind::Quota, error.message())
}

/// How long an abandoned call may take to be written to the ledger.
const LEDGER_TIME: Duration = Duration::from_secs(1);
/// How often a closing application checks whether its calls have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Calls in flight, by operation.
#[derive(Debug, Default)]
struct InFlight(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    calls: HashMap<OpId, Arc<CallInFlight>>,
    is_closed: bool,
    /// The grace period of running calls once the application is closed.
    grace: Duration,
}

/// A call in flight.
#[derive(Debug)]
struct CallInFlight {
    /// The provider's identity: an old and a new provider of the same name differ.
    provider: usize,
    cancel: Cancel,
    session: SessionId,
    /// Whether another process may run it again.
    is_repeatable: bool,
    /// Whether it can become a job.
    is_promotable: AtomicBool,
    /// Notified when the call should become a job.
    promotion_requested: Notify,
}

impl CallInFlight {
    /// Allows turning the call into a job until the guard is dropped.
    fn promotable(&self) -> PromotionGuard<'_> {
        self.is_promotable.store(true, Ordering::Release);
        PromotionGuard(self)
    }

    fn is_promotable(&self) -> bool {
        self.is_promotable.load(Ordering::Acquire)
    }
}

/// A call that can become a job.
struct PromotionGuard<'a>(&'a CallInFlight);

impl PromotionGuard<'_> {
    /// Waits until the call should become a job.
    async fn promotion_requested(&self) {
        self.0.promotion_requested.notified().await;
    }
}

impl Drop for PromotionGuard<'_> {
    fn drop(&mut self) {
        self.0.is_promotable.store(false, Ordering::Release);
    }
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call as in flight until the guard is dropped.
    fn enter(self: &Arc<Self>, op: OpId, call: &ValidCall, run: &RunContext) -> InFlightGuard {
        let call = Arc::new(CallInFlight {
            provider: identity(&call.entry.provider),
            cancel: run.cancel.clone(),
            session: run.session.id.clone(),
            is_repeatable: call.entry.is_resumable(),
            is_promotable: AtomicBool::new(false),
            promotion_requested: Notify::new(),
        });
        self.state().calls.insert(op, Arc::clone(&call));
        InFlightGuard { calls: Arc::clone(self), op, call }
    }

    /// Stops accepting calls.
    fn close(&self) {
        self.state().is_closed = true;
    }

    /// Checks that calls may begin.
    ///
    /// # Errors
    /// `canceled`, retryable, once the application is closed.
    fn is_open(&self) -> Result<(), ToolError> {
        if self.state().is_closed { Err(ToolError::canceled(CancelCause::Shutdown).retryable()) } else { Ok(()) }
    }

    /// Returns how long a call that was cancelled for `cause` may take to stop by itself.
    fn grace(&self, cause: CancelCause, usual: Duration) -> Duration {
        if cause == CancelCause::Shutdown { usual.max(self.state().grace) } else { usual }
    }

    /// Cancels all calls and waits for them for at most `grace`. Returns how many are still running.
    async fn stop(&self, grace: Duration) -> usize {
        let running: Vec<_> = {
            let mut state = self.state();
            state.is_closed = true;
            state.grace = grace;
            state.calls.values().cloned().collect()
        };
        running.iter().for_each(|call| call.cancel.cancel(CancelCause::Shutdown));
        // Abandoned calls end after the grace period and are then still written to the ledger.
        let until = Instant::now() + grace + LEDGER_TIME;
        loop {
            let left = self.state().calls.len();
            if left == 0 || Instant::now() >= until {
                return left;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn promote(&self, is_selected: impl Fn(&CallInFlight) -> bool) -> Vec<Arc<CallInFlight>> {
        let is_wanted = |call: &&Arc<CallInFlight>| call.is_promotable() && is_selected(call);
        let calls: Vec<_> = self.state().calls.values().filter(is_wanted).cloned().collect();
        calls.iter().for_each(|call| call.promotion_requested.notify_one());
        calls
    }
}

impl Executor {
    /// Returns the number of calls in flight on exactly this provider, including waiting ones.
    #[must_use]
    pub fn calls_on(&self, provider: &Arc<dyn Provider>) -> usize {
        let provider = identity(provider);
        self.in_flight.state().calls.values().filter(|call| call.provider == provider).count()
    }

    /// Turns every running call of a session into a job, on behalf of a person. The callers get the jobs' ids. Returns
    /// the number of calls. Never call this on a model's request.
    pub fn promote_all(&self, session: &SessionId) -> usize {
        self.in_flight.promote(|call| call.session == *session).len()
    }

    /// Turns every running call that another process may repeat into a job, for a process that is ending. The callers
    /// get the jobs' ids. Waits at most `limit`. Returns how many calls became jobs.
    pub async fn convert_calls_to_jobs(&self, limit: Duration) -> usize {
        let promoted_calls = self.in_flight.promote(|call| call.is_repeatable);
        let until = Instant::now() + limit;
        loop {
            // A call that does not become a job in time is cancelled like the others.
            let left = promoted_calls.iter().filter(|call| call.is_promotable()).count();
            if left == 0 || Instant::now() >= until {
                return promoted_calls.len() - left;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Counts a call until it is dropped.
#[derive(Debug)]
struct InFlightGuard {
    calls: Arc<InFlight>,
    op: OpId,
    call: Arc<CallInFlight>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.calls.state().calls.remove(&self.op);
    }
}

fn identity(provider: &Arc<dyn Provider>) -> usize {
    Arc::as_ptr(provider).cast::<()>().addr()
}
