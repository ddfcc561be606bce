//! The one executor. Each call passes its stages in a fixed order; a stage with no
//! configuration passes through.

mod admission;
mod attempts;
mod background;
mod budget;
mod cache;
mod call_record;
mod cap;
mod checking;
mod conform;
mod detached;
mod elicitation_pause;
mod guards;
mod in_flight;
mod interceptors;
mod job_messages;
mod ledger_start;
mod limits;
mod llm_call;
mod manual;
mod model_call_record;
mod model_requests;
mod nested_calls;
mod panics;
mod partials;
mod pipeline;
mod recovery;
mod resumed_question;
mod rewrite;
mod run;
mod slot;
mod stage;
mod tool_task;
mod usage;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use toolwright_core::approval::Approver;
use toolwright_core::call::{Rejection, ToolCall, ValidCall};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::{Entry, Provider, Snapshot};
use toolwright_core::client::{CallClient, NoClient};
use toolwright_core::context::{PartialSink, Services, UsageRecorder};
use toolwright_core::job::{Follows, Turns};
use toolwright_core::model::PriceTable;
use toolwright_core::operation::{Lineage, Op, OpId, Origin};
use toolwright_core::outcome::Outcome;
use toolwright_core::output::ResultsFor;
use toolwright_core::plan::{DEFAULT_CALLS_PER_TURN, Plan, Planned, plan};
use toolwright_core::policy::{Policy, UserRequest};
use toolwright_core::session::{CallId, Session};
use toolwright_core::store::{ApprovalStore, LedgerMode, LedgerStore, RunStore};
use toolwright_core::tool_id::ToolId;
use toolwright_core::variables::Variables;

use self::panics::PanicSafeEvents;
use crate::jobs::JobManager;
use crate::queue::{Priority, Queues};
use crate::recorder::Recorder;

pub use self::background::PromotedTo;
pub use self::background::Promotion;
pub use self::budget::{BUDGET_EXCEEDED, ContextBudget};
pub use self::cache::ResponseCache;
pub use self::cap::{is_denied, readers};
pub use self::checking::{CheckedCalls, RepairOptions};
pub use self::guards::{GuardBinding, GuardContext, Guarded, InputGuard, ModelGuard, Verdict};
pub use self::interceptors::{Before, Interceptor};
pub use self::llm_call::LlmTerms;
pub use self::model_call_record::{Asked, ModelAsk, ModelCallRecord};
pub use self::model_requests::AuxiliaryRequests;
pub use self::nested_calls::NestedCallLimits;
pub use self::recovery::RecoveryTerms;

/// Settings and stores of the executor.
pub struct ExecutorOptions {
    /// Absolute limit of a call where nothing nearer sets one (by default five minutes).
    pub timeout: Duration,
    /// How long a call may go on without a report of progress where nothing nearer says so; `None`: as long as
    /// it may take at all.
    pub idle_timeout: Option<Duration>,
    /// How long a cancelled or timed-out call may take to stop by itself before it is abandoned.
    pub grace: Duration,
    /// Cap on the text of a result, in bytes, whoever gets it; `None`: as [`ResultsFor`] has it.
    pub max_output: Option<usize>,
    /// Cap on what goes on whole or not at all, in bytes of JSON: the structured result of a tool with an output schema,
    /// and what a protocol's method gives (`resources/read`, `prompts/get`).
    pub max_whole: usize,
    /// Calls that run in one turn.
    pub calls_per_turn: usize,
    /// Calls that one call may make in its turn.
    pub inner_calls: usize,
    /// The queues.
    pub queues: Queues,
    /// What running tools get.
    pub services: Arc<Services>,
    /// The ledger.
    pub ledger: Arc<dyn LedgerStore>,
    /// What happens to calls while it cannot be written.
    pub ledger_mode: LedgerMode,
    /// Standing approvals.
    pub approvals: Arc<dyn ApprovalStore>,
    /// Who mends the arguments of calls that are not valid; `None`: nobody, and the caller is told what is
    /// wrong with them.
    pub repair: Option<RepairOptions>,
    /// What may skip or change calls, in order.
    pub interceptors: Vec<Arc<dyn Interceptor>>,
    /// Input guards, in order.
    pub guards: Vec<GuardBinding>,
    /// The response cache.
    pub cache: Option<Arc<dyn ResponseCache>>,
    /// The jobs; without them every call is awaited, whatever its tool's mode.
    pub jobs: Option<Arc<JobManager>>,
    /// How long a call keeps its caller waiting, where nothing nearer says so, before it goes on as a job;
    /// `None`: as long as it takes.
    pub auto_background_after: Option<Duration>,
    /// What models cost.
    pub prices: PriceTable,
    /// Models that benchmarks recommend for an LLM-backed tool, best first; `provider/model`.
    pub compat: Recommends,
    /// The model of LLM-backed tools for which nothing else says one, `provider/model`; without it that of the run.
    pub default_model: Option<String>,
    /// Where requests to models are recorded, all of them.
    pub recorder: Recorder,
}

/// Names the models that are recommended for a tool.
pub type Recommends = Arc<dyn Fn(&ToolId) -> Vec<String> + Send + Sync>;

impl ExecutorOptions {
    /// The defaults over the given services and stores.
    #[must_use]
    pub fn new(services: Arc<Services>, ledger: Arc<dyn LedgerStore>, approvals: Arc<dyn ApprovalStore>) -> Self {
        Self {
            timeout: Duration::from_secs(300),
            idle_timeout: None,
            grace: Duration::from_secs(2),
            max_output: None,
            max_whole: toolwright_core::output::DEFAULT_MAX_WHOLE,
            calls_per_turn: DEFAULT_CALLS_PER_TURN,
            inner_calls: DEFAULT_INNER_CALLS,
            queues: Queues::default(),
            services,
            ledger,
            ledger_mode: LedgerMode::default(),
            approvals,
            repair: None,
            interceptors: Vec::new(),
            guards: Vec::new(),
            cache: None,
            jobs: None,
            auto_background_after: None,
            prices: PriceTable::default(),
            compat: Arc::new(|_| Vec::new()),
            default_model: None,
            recorder: Recorder::default(),
        }
    }
}

/// Calls that one call may make unless configured otherwise.
const DEFAULT_INNER_CALLS: usize = 100;

/// Makes the sink that takes one call's progress.
pub type PartialsFor = Arc<dyn Fn(&CallId) -> Arc<dyn PartialSink> + Send + Sync>;

/// A caller's name for a tool; `None` if it cannot call it.
pub type CallerNames = Arc<dyn Fn(&Entry) -> Option<String> + Send + Sync>;

/// On whose behalf, under which policy, and how a batch of calls runs. Cheap to clone.
#[derive(Clone)]
pub struct RunContext {
    /// The session.
    pub session: Arc<Session>,
    /// What names in the calls mean: the catalogue that their author saw.
    pub snapshot: Arc<Snapshot>,
    /// Where the calls belong as operations.
    pub lineage: Lineage,
    /// Who makes them.
    pub origin: Origin,
    /// Cancels every call of the batch.
    pub cancel: Cancel,
    /// Decides for every call.
    pub policy: Arc<Policy>,
    /// Answers where policy asks.
    pub approver: Arc<dyn Approver>,
    /// The user's own words, where they are known: conditions of policy rules may ask what they name.
    pub request: Option<Arc<UserRequest>>,
    /// Who makes them, as something that a tool's source can ask back.
    pub client: Arc<dyn CallClient>,
    /// Where progress goes; `None`: to the events only.
    pub partials: Option<PartialsFor>,
    /// Limit of each call, nearer than the tool's and the executor's own.
    pub timeout: Option<Duration>,
    /// Cap on the text of each result in bytes, nearer than the tool's and the executor's own.
    pub max_output: Option<usize>,
    /// How long each call keeps its caller waiting, nearer than the tool's and the executor's own, before it goes
    /// on as a job; nothing at all makes each a job from the beginning.
    pub background_after: Option<Duration>,
    /// Whom their results are for.
    pub results_for: ResultsFor,
    /// Whether they may become jobs.
    pub promotion: Promotion,
    /// Whether their caller has tools that follow what becomes a job.
    pub follows: Follows,
    /// What references in arguments stand for; `None`: there are none, and every text is
    /// what it is.
    pub variables: Option<Arc<dyn Variables>>,
    /// Who goes first in a queue.
    pub priority: Priority,
    /// Whether guards look at the calls.
    pub guarded: Guarded,
    /// What bounds them, where a call makes them; set by the executor.
    pub inner: Option<Arc<NestedCallLimits>>,
    /// Calls of the same turn that started before this batch: they count against the turn's limit.
    pub started_before: usize,
    /// The run whose journal notes every dispatch and outcome, for `run --resume`.
    pub journal: Option<(Arc<dyn RunStore>, Arc<str>)>,
    /// Set for a job: who continues it step by step. A job waits for slot and lock as long as need be.
    pub job: Option<Arc<dyn Turns>>,
    /// The model of the run, `provider/model`.
    pub model: Option<Arc<str>>,
    /// How LLM-backed tools are run.
    pub llm: LlmTerms,
    /// Hears what each request to a model used that the calls make, failed ones too.
    pub usage: Option<Arc<dyn UsageRecorder>>,
    /// Room in the conversation that the outcomes go to; `None`: it is not bounded.
    pub budget: Option<Arc<ContextBudget>>,
    /// What becomes of them, where they may become jobs; set by the executor.
    pub became: Option<PromotedTo>,
    /// What the caller calls the tools of the snapshot; `None`: by their wire names.
    pub names: Option<CallerNames>,
    /// On whose wish they are made; see [`ApprovalRequest::asker`](toolwright_core::approval::ApprovalRequest::asker).
    pub asker: Option<Arc<str>>,
}

impl RunContext {
    /// Calls of nobody's turn, in a trace of the session: no limit of time but the tools' own, no references,
    /// no journal.
    #[must_use]
    pub fn new(
        session: Arc<Session>,
        snapshot: Arc<Snapshot>,
        policy: Arc<Policy>,
        approver: Arc<dyn Approver>,
    ) -> Self {
        Self::under(Lineage::named(session.id.as_str()), session, snapshot, policy, approver)
    }

    /// The same in another trace.
    #[must_use]
    pub fn under(
        lineage: Lineage,
        session: Arc<Session>,
        snapshot: Arc<Snapshot>,
        policy: Arc<Policy>,
        approver: Arc<dyn Approver>,
    ) -> Self {
        Self {
            lineage,
            origin: Origin::Owner,
            session,
            snapshot,
            cancel: Cancel::new(),
            policy,
            approver,
            request: None,
            client: NoClient::shared(),
            partials: None,
            timeout: None,
            max_output: None,
            background_after: None,
            results_for: ResultsFor::Conversation,
            promotion: Promotion::May,
            follows: Follows::Itself,
            variables: None,
            priority: Priority::Interactive,
            guarded: Guarded::Yes,
            inner: None,
            started_before: 0,
            journal: None,
            job: None,
            model: None,
            llm: LlmTerms::default(),
            usage: None,
            budget: None,
            became: None,
            names: None,
            asker: None,
        }
    }

    /// The terms of one call, which has a token of its own.
    fn of_one_call(&self) -> Self {
        Self { cancel: self.cancel.child(), became: Some(PromotedTo::default()), ..self.clone() }
    }

    /// Whether the call that these are the terms of goes on as a job, without its caller.
    pub(crate) fn is_job(&self) -> bool {
        self.became.as_ref().is_some_and(PromotedTo::is_job)
    }
}

/// The one executor. Shared by `Arc`.
pub struct Executor {
    options: ExecutorOptions,
    locks: slot::RootLocks,
    in_flight: Arc<in_flight::InFlight>,
    /// The next operation's id; ids of two processes hardly ever meet.
    next_op: AtomicU64,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

impl Executor {
    /// An executor. Observers of its services' events cannot break a call: one that panics is logged.
    #[must_use]
    pub fn new(mut options: ExecutorOptions) -> Arc<Self> {
        let events = Arc::new(PanicSafeEvents(Arc::clone(&options.services.events)));
        options.services = Arc::new(Services { events, ..(*options.services).clone() });
        Arc::new(Self {
            options,
            locks: slot::RootLocks::default(),
            in_flight: Arc::default(),
            next_op: AtomicU64::new(uuid::Uuid::new_v4().as_u64_pair().0),
        })
    }

    /// Begins an operation.
    #[must_use]
    pub fn begin(&self, lineage: &Lineage) -> Op {
        lineage.begin(OpId::new(self.next_op.fetch_add(1, Ordering::Relaxed)))
    }

    /// What running tools get.
    #[must_use]
    pub fn services(&self) -> &Arc<Services> {
        &self.options.services
    }

    /// What records requests to models.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.options.recorder
    }

    /// The queues, for settings that name one.
    #[must_use]
    pub fn queues(&self) -> &Queues {
        &self.options.queues
    }

    /// Calls of this very provider that are under way, waiting ones included.
    #[must_use]
    pub fn calls_on(&self, provider: &Arc<dyn Provider>) -> usize {
        self.in_flight.count(provider)
    }

    /// The jobs, where there are any.
    #[must_use]
    pub fn jobs(&self) -> Option<&Arc<JobManager>> {
        self.options.jobs.as_ref()
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Arc<dyn LedgerStore> {
        &self.options.ledger
    }

    /// Calls that may run in one turn.
    #[must_use]
    pub fn calls_per_turn(&self) -> usize {
        self.options.calls_per_turn
    }

    /// Checks, plans and executes the calls of one turn:
    /// one outcome a call, in call order, whatever happens.
    pub async fn run_calls(self: &Arc<Self>, calls: Vec<ToolCall>, run: &RunContext) -> Vec<Outcome> {
        let checked = pin!(self.check_calls(calls, &[], run)).await;
        pin!(self.run_checked(checked.calls, run)).await
    }

    /// Plans and executes the calls of one turn that [`Executor::check_calls`] has checked: the rest of
    /// [`Executor::run_calls`], for callers that keep what the check came to.
    pub async fn run_checked(
        self: &Arc<Self>,
        checked: Vec<Result<ValidCall, Box<Rejection>>>,
        run: &RunContext,
    ) -> Vec<Outcome> {
        let plan = match &run.inner {
            Some(bound) => plan(bound.apply(checked), usize::MAX, 0),
            None => plan(checked, self.options.calls_per_turn, run.started_before),
        };
        pin!(self.execute(plan, run)).await
    }

    /// Refuses calls from now on, and ends all waits for a slot or a lock; running calls go on.
    pub fn close(&self) {
        self.in_flight.close();
        self.options.queues.close(CancelCause::Shutdown);
        self.locks.close(CancelCause::Shutdown);
    }

    /// Ends in good order: refuses calls, fails those that wait, cancels those that run, gives them `grace` to
    /// stop by themselves, abandons the rest, and writes the ledger. May be called again.
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

    /// Executes a plan: stages in turn, then what waits for values, as they come; calls that can run at
    /// once run in parallel; outcomes in call order. A rejected call skips to its end. Dropping the future
    /// cancels what runs, which ends in good order by itself.
    pub async fn execute(self: &Arc<Self>, plan: Plan, run: &RunContext) -> Vec<Outcome> {
        let mut calls: Vec<Option<Planned>> = plan.calls.into_iter().map(Some).collect();
        let mut outcomes: Vec<Option<Outcome>> = vec![None; calls.len()];
        let mut take = |index: usize| calls.get_mut(index).and_then(Option::take);
        for stage in plan.stages {
            let ready = stage.into_iter().filter_map(|index| Some((index, take(index)?))).collect();
            pin!(self.stage(ready, &mut outcomes, run)).await;
        }
        let pending = |index: usize| match take(index) {
            Some(Planned::Run(call)) => Some((index, *call)),
            _ => None,
        };
        let mut waiting: checking::Indexed<ValidCall> = plan.waiting.into_iter().filter_map(pending).collect();
        while !waiting.is_empty() {
            let (ready, rest) = checking::landed(waiting, run);
            pin!(self.stage(ready, &mut outcomes, run)).await;
            waiting = rest;
        }
        outcomes.into_iter().flatten().collect()
    }

    async fn stage(
        self: &Arc<Self>,
        mut ready: checking::Indexed<Planned>,
        outcomes: &mut [Option<Outcome>],
        run: &RunContext,
    ) {
        if ready.len() == 1
            && let Some((index, planned)) = ready.pop()
        {
            outcomes[index] = Some(self.one(planned, run).await);
            return;
        }
        let calls = ready.into_iter().map(|(index, planned)| async move { (index, self.one(planned, run).await) });
        for (index, outcome) in join_all(calls).await {
            outcomes[index] = Some(outcome);
        }
    }

    fn one(self: &Arc<Self>, planned: Planned, run: &RunContext) -> detached::Detached {
        match planned {
            Planned::Run(call) => self.run_one(*call, run),
            Planned::Reject(rejection) => self.reject_one(*rejection, run),
        }
    }
}
