//! Defines the parts of the executor, and the context of the calls that it runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolwright_core::agents::AgentLimits;
use toolwright_core::agents::handoff::Conversation;
use toolwright_core::approval::{AgentStep, Approver};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::client::{CallClient, NoClient};
use toolwright_core::context::{PartialSink, Services, UsageRecorder};
use toolwright_core::duration;
use toolwright_core::job::{Follows, Turns};
use toolwright_core::model::PriceTable;
use toolwright_core::operation::{Lineage, Origin};
use toolwright_core::output::{DEFAULT_MAX_WHOLE, ResultsFor};
use toolwright_core::plan::{Beside, DEFAULT_CALLS_PER_TURN};
use toolwright_core::policy::{Policy, UserRequest};
use toolwright_core::session::{CallId, Session};
use toolwright_core::setting::TimeSpan;
use toolwright_core::store::{ApprovalStore, LedgerMode, LedgerStore, RunStore};
use toolwright_core::taint::Taint;
use toolwright_core::tool_id::ToolId;
use toolwright_core::variables::Variables;

use super::admission::{GuardBinding, Guarded, Interceptor};
use super::background::{PromotedTo, Promotion};
use super::checking::RepairOptions;
use super::llm_call::LlmOptions;
use super::tool_context::{InnerTaint, NestedCallLimits};
use crate::jobs::JobManager;
use crate::models::{AgentBudget, Budgets};
use crate::outputs::budget::ContextBudget;
use crate::outputs::cache::ResponseCache;
use crate::queue::{CallOrder, Priority, Queues, WorkspaceTurn};

/// What holds for calls where neither tool nor server says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CallDefaults {
    /// Absolute limit of one call, where neither tool nor server sets one.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub tool_timeout: Duration,
    /// How long a call may go on without a report of progress, where neither tool nor server says so. Default:
    /// as long as it may take at all. Changing it needs a restart.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSpan>")]
    pub idle_timeout: Option<Duration>,
    /// Cap on the text of a result, in bytes; what is over it goes to the output store. Default: 12288 in runs of
    /// models, 49152 for MCP clients and programs, who get more of a tool whose server announces it
    /// (`anthropic/maxResultSizeChars`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub tool_response_max_bytes: Option<usize>,
    /// Cap on what is passed on whole or not at all, in bytes of JSON: structured results of tools with an output
    /// schema, and what MCP clients get of `resources/read`, `prompts/get` and the like. What is over it is an error
    /// that says so. Changing it needs a restart.
    #[schemars(range(min = 4096))]
    pub whole_result_max_bytes: usize,
    /// Calls that may run in one turn of a model.
    #[schemars(range(min = 1))]
    pub calls_per_turn: usize,
    /// How long a call keeps its caller waiting before it goes on as a background job, where neither tool nor server
    /// says so. Default: as long as it takes. Changing it needs a restart.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSpan>")]
    pub auto_background_after: Option<Duration>,
    /// What happens to calls while the ledger cannot be written, as on a full disk: with `best_effort` they run, and
    /// the log, `/metrics` and `/ready` tell; with `required` they are refused, and no call runs before a row for it is on
    /// disk. Changing it needs a restart.
    pub ledger: LedgerMode,
}

impl Default for CallDefaults {
    fn default() -> Self {
        Self {
            tool_timeout: Duration::from_secs(300),
            idle_timeout: None,
            tool_response_max_bytes: None,
            whole_result_max_bytes: DEFAULT_MAX_WHOLE,
            calls_per_turn: DEFAULT_CALLS_PER_TURN,
            auto_background_after: None,
            ledger: LedgerMode::BestEffort,
        }
    }
}

/// Settings and stores of the executor.
pub struct ExecutorOptions {
    /// What holds for calls where nothing nearer says otherwise.
    pub defaults: CallDefaults,
    /// How long a cancelled or timed-out call may take to stop by itself before it is abandoned.
    pub grace: Duration,
    /// Calls that one call may make in its turn.
    pub inner_calls: usize,
    /// The queues.
    pub queues: Queues,
    /// Where the files are by which processes keep each other out of a workspace while an exclusive call runs; `None`:
    /// exclusive calls wait for those of this executor alone.
    pub lock_dir: Option<PathBuf>,
    /// What running tools get.
    pub services: Arc<Services>,
    /// The ledger.
    pub ledger: Arc<dyn LedgerStore>,
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
    /// What models cost.
    pub prices: PriceTable,
    /// What principals may spend on models; `None`: nobody has a budget.
    pub budgets: Option<Budgets>,
    /// Models that benchmarks recommend for an LLM-backed tool, best first; `provider/model`.
    pub compat: Recommends,
    /// The model of LLM-backed tools for which nothing else says one, `provider/model`; without it that of the run.
    pub default_model: Option<String>,
}

/// Names the models that are recommended for a tool.
pub type Recommends = Arc<dyn Fn(&ToolId) -> Vec<String> + Send + Sync>;

impl ExecutorOptions {
    /// The defaults over the given services and stores.
    #[must_use]
    pub fn new(services: Arc<Services>, ledger: Arc<dyn LedgerStore>, approvals: Arc<dyn ApprovalStore>) -> Self {
        Self {
            defaults: CallDefaults::default(),
            grace: Duration::from_secs(2),
            inner_calls: DEFAULT_INNER_CALLS,
            queues: Queues::default(),
            lock_dir: None,
            services,
            ledger,
            approvals,
            repair: None,
            interceptors: Vec::new(),
            guards: Vec::new(),
            cache: None,
            jobs: None,
            prices: PriceTable::default(),
            budgets: None,
            compat: Arc::new(|_| Vec::new()),
            default_model: None,
        }
    }
}

/// Calls that one call may make unless configured otherwise.
const DEFAULT_INNER_CALLS: usize = 100;

/// Makes the sink that takes one call's progress.
pub type PartialsFor = Arc<dyn Fn(&CallId) -> Arc<dyn PartialSink> + Send + Sync>;

/// A caller's name for a tool; `None` if it cannot call it.
pub type CallerNames = Arc<dyn Fn(&Entry) -> Option<String> + Send + Sync>;

/// What an agent that hands the user's request over gives along.
#[derive(Debug)]
pub struct HandoffOptions {
    /// The conversation so far.
    pub conversation: Conversation,
    /// The tools of whoever started the agent: the one that takes its place works with its own among these.
    pub snapshot: Arc<Snapshot>,
}

/// Who handed a request over.
#[derive(Debug, Clone)]
pub struct HandedOver {
    /// The agent.
    pub by: Arc<str>,
    /// Whether it takes the request back.
    pub may_return: bool,
}

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
    /// The order that the calls keep where they use the workspace, like that of their connection; `None`: that of
    /// their batch.
    pub order: Option<CallOrder>,
    /// The turn of the one call that these are the terms of, where it arrived before the executor has it.
    pub turn: Option<Arc<WorkspaceTurn>>,
    /// Whether guards look at the calls.
    pub guarded: Guarded,
    /// What bounds them, where a call makes them; set by the executor.
    pub inner: Option<Arc<NestedCallLimits>>,
    /// Where the outputs of the calls came from that each makes; set by the executor.
    pub inner_taint: InnerTaint,
    /// Calls of the same turn that started before this batch: they count against the turn's limit.
    pub started_before: usize,
    /// The untrusted tools that whoever makes the calls has read: every argument may come out of these.
    pub read_taint: Taint,
    /// What the scopes of the call show that they answer as activities.
    pub granted: Arc<Map<String, Value>>,
    /// Calls among them that are not to run, by their ids: others wait for them.
    pub beside: Arc<[(CallId, Beside)]>,
    /// Whether they are a plan: as many as it has may run in one turn, and their outcomes say when they ended.
    pub is_plan: bool,
    /// The run whose journal notes every dispatch and outcome, for `run --resume`.
    pub journal: Option<(Arc<dyn RunStore>, Arc<str>)>,
    /// Set for a job: who continues it step by step. A job waits for slot and lock as long as need be.
    pub job: Option<Arc<dyn Turns>>,
    /// The model of the run, `provider/model`.
    pub model: Option<Arc<str>>,
    /// How LLM-backed tools are run.
    pub llm: LlmOptions,
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
    /// The agents on whose way they are made, from the one that the root run started to the one that makes them.
    pub agents: Arc<[AgentStep]>,
    /// What a call needs that hands the user's request to another agent, where they may.
    pub handoff: Option<Arc<HandoffOptions>>,
    /// Set where a call of an agent hands it the user's request.
    pub handed_over: Option<HandedOver>,
    /// The limits of their run.
    pub limits: AgentLimits,
    /// Whether their run reads its mailbox when it has answered.
    pub reads_mailbox: bool,
    /// The agent that pays for the requests to models that they make; `None`: nobody keeps count.
    pub agent_budget: Option<Arc<AgentBudget>>,
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
            order: None,
            turn: None,
            guarded: Guarded::Yes,
            inner: None,
            inner_taint: InnerTaint::default(),
            started_before: 0,
            read_taint: Taint::default(),
            granted: Arc::default(),
            beside: Arc::default(),
            is_plan: false,
            journal: None,
            job: None,
            model: None,
            llm: LlmOptions::default(),
            usage: None,
            budget: None,
            became: None,
            names: None,
            asker: None,
            agents: Arc::default(),
            handoff: None,
            handed_over: None,
            limits: AgentLimits::default(),
            reads_mailbox: false,
            agent_budget: None,
        }
    }

    /// The terms of one call, which has a token of its own.
    pub(super) fn for_one_call(&self) -> Self {
        let turn = self.turn.clone().or_else(|| self.order.as_ref().map(CallOrder::arrive)).unwrap_or_default();
        let inner_taint = InnerTaint::default();
        Self {
            cancel: self.cancel.child(),
            became: Some(PromotedTo::default()),
            turn: Some(turn),
            inner_taint,
            ..self.clone()
        }
    }

    /// Whether the call that these are the terms of goes on as a job, without its caller.
    pub(crate) fn is_job(&self) -> bool {
        self.became.as_ref().is_some_and(PromotedTo::is_job)
    }
}
