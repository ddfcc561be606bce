//! The terms of a batch of calls: on whose behalf they run, under which policy, limits and order.

use super::guards::GuardMode;
use super::nested::{InnerTaint, NestedCallLimits};
use super::options::LlmOptions;
use crate::jobs::LiveJob;
use crate::models::AgentBudget;
use crate::outputs::context_budget::ContextBudget;
use crate::queue::{CallOrder, Priority, WorkspaceTurn};
use serde_json::{Map, Value};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use toolwright_core::agents::AgentLimits;
use toolwright_core::agents::handoff::Conversation;
use toolwright_core::approval::{AgentStep, Approver};
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::{CallScope, Entry, Snapshot};
use toolwright_core::client::{CallClient, NoClient};
use toolwright_core::context::{PartialSink, UsageRecorder};
use toolwright_core::job::{JobFollower, Turns};
use toolwright_core::operation::{CallOrigin, Lineage};
use toolwright_core::output::ResultAudience;
use toolwright_core::plan::ExclusionReason;
use toolwright_core::policy::{Policy, PolicyQuery, UserRequest};
use toolwright_core::session::{CallId, Session};
use toolwright_core::store::RunStore;
use toolwright_core::taint::Taint;
use toolwright_core::variables::Variables;

/// Whether calls may become jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promotion {
    /// They do if their tool, their duration or a person requires it.
    #[default]
    May,
    /// They are always awaited, because the caller could not use a job's id.
    Never,
}

/// The job that a call has become, if any: the target of its progress and its end.
#[derive(Clone, Default)]
pub struct PromotedTo(Arc<OnceLock<Arc<LiveJob>>>);

impl PromotedTo {
    /// Returns whether the call has become a job.
    pub(in crate::executor) fn is_job(&self) -> bool {
        self.job().is_some()
    }

    /// The job.
    pub(in crate::executor) fn job(&self) -> Option<&Arc<LiveJob>> {
        self.0.get()
    }

    pub(in crate::executor) fn set(&self, job: &Arc<LiveJob>) {
        // Set only once, by the waiter of the call.
        let _ = self.0.set(Arc::clone(job));
    }
}

/// Creates the sink of one call's progress.
pub type PartialSinkFactory = Arc<dyn Fn(&CallId) -> Arc<dyn PartialSink> + Send + Sync>;

/// Returns a caller's name for a tool; `None` if it cannot call the tool.
pub type CallerNames = Arc<dyn Fn(&Entry) -> Option<String> + Send + Sync>;

/// Data of a run that an agent needs to hand over the user's request.
#[derive(Debug)]
pub struct HandoffOptions {
    /// The conversation so far.
    pub conversation: Conversation,
    /// The tools of the agent's caller. The agent that takes over works with its own tools among these.
    pub snapshot: Arc<Snapshot>,
}

/// Describes a handed-over request.
#[derive(Debug, Clone)]
pub struct HandoffSource {
    /// The agent that handed it over.
    pub by: Arc<str>,
    /// Whether that agent may get the request back.
    pub may_return: bool,
}

/// The terms of a batch of calls: principal, policy and limits. Cheap to clone.
#[derive(Clone)]
pub struct RunContext {
    /// The session.
    pub session: Arc<Session>,
    /// The catalogue that the author of the calls saw, in which names are resolved.
    pub snapshot: Arc<Snapshot>,
    /// The place of the calls in the tree of operations.
    pub lineage: Lineage,
    /// The kind of caller.
    pub origin: CallOrigin,
    /// Cancels every call of the batch.
    pub cancel: Cancel,
    /// The policy of every call.
    pub policy: Arc<Policy>,
    /// Answers if policy asks.
    pub approver: Arc<dyn Approver>,
    /// The user's own words, if known. Conditions of policy rules may check what they name.
    pub request: Option<Arc<UserRequest>>,
    /// The caller, as a client that a tool's source can ask.
    pub client: Arc<dyn CallClient>,
    /// The sink of progress; `None`: events only.
    pub partials: Option<PartialSinkFactory>,
    /// Time limit of each call; overrides the tool's and the executor's.
    pub timeout: Option<Duration>,
    /// Limit of each result's text in bytes; overrides the tool's and the executor's.
    pub max_output: Option<usize>,
    /// How long each call may keep its caller waiting before it becomes a job; overrides the tool's and the executor's.
    /// Zero makes each call a job from the start.
    pub background_after: Option<Duration>,
    /// The recipient of the results.
    pub results_for: ResultAudience,
    /// Whether the calls may become jobs.
    pub promotion: Promotion,
    /// Whether the caller has tools that follow jobs.
    pub follows: JobFollower,
    /// Resolves references in arguments; `None`: arguments have no references, and every text is literal.
    pub variables: Option<Arc<dyn Variables>>,
    /// The priority in queues.
    pub priority: Priority,
    /// The order of the calls in the workspace, such as that of their connection; `None`: the order of their batch.
    pub order: Option<CallOrder>,
    /// The call's turn in that order, for a single call that arrived before the executor got it.
    pub turn: Option<Arc<WorkspaceTurn>>,
    /// Whether guards check the calls.
    pub guarded: GuardMode,
    /// The limits of calls made by a call; set by the executor.
    pub inner: Option<Arc<NestedCallLimits>>,
    /// Collects the taint of the outputs of each call's inner calls; set by the executor.
    pub inner_taint: InnerTaint,
    /// Calls of the same turn that started earlier and count towards its limit.
    pub started_before: usize,
    /// The untrusted tools whose output the caller has read. Every argument may derive from them.
    pub read_taint: Taint,
    /// The scopes shown to the call that these calls serve as activities.
    pub granted: Arc<Map<String, Value>>,
    /// Ids of calls that are not run here, but that others wait for.
    pub excluded: Arc<[(CallId, ExclusionReason)]>,
    /// Whether the calls form a plan: all of them may run in one turn, and their outcomes have end times.
    pub is_plan: bool,
    /// The run whose journal records every dispatch and outcome, for `run --resume`.
    pub journal: Option<(Arc<dyn RunStore>, Arc<str>)>,
    /// Continues a job step by step; set for jobs. A job waits for slot and lock without a limit.
    pub job: Option<Arc<dyn Turns>>,
    /// The model of the run, `provider/model`.
    pub model: Option<Arc<str>>,
    /// How LLM-backed tools are run.
    pub llm: LlmOptions,
    /// Hears what each request to a model used that the calls make, failed ones too.
    pub usage: Option<Arc<dyn UsageRecorder>>,
    /// The room in the conversation that gets the outcomes; `None`: unbounded.
    pub budget: Option<Arc<ContextBudget>>,
    /// Set when a call has become a job; managed by the executor.
    pub became: Option<PromotedTo>,
    /// The caller's names of the snapshot's tools; `None`: their wire names.
    pub names: Option<CallerNames>,
    /// The agent or user that asks for the calls; see
    /// [`ApprovalRequest::asker`](toolwright_core::approval::ApprovalRequest::asker).
    pub asker: Option<Arc<str>>,
    /// The agents from the root run's first agent to the one that makes the calls.
    pub agents: Arc<[AgentStep]>,
    /// Data for handing the user's request to another agent, if that is allowed.
    pub handoff: Option<Arc<HandoffOptions>>,
    /// Set if a call hands an agent the user's request.
    pub handed_over: Option<HandoffSource>,
    /// The limits of the calls' run.
    pub limits: AgentLimits,
    /// Whether the run reads its mailbox after it has answered.
    pub reads_mailbox: bool,
    /// The messages and file changes that led to the run's work, as [`SessionLog::hops`] counts them; the run's driver
    /// updates them when the run reads messages.
    ///
    /// [`SessionLog::hops`]: toolwright_core::store::SessionLog::hops
    pub hops: Arc<AtomicU32>,
    /// The budget of the agent that pays for the calls' requests to models; `None`: no accounting.
    pub agent_budget: Option<Arc<AgentBudget>>,
}

impl RunContext {
    /// Creates terms of calls outside of a turn, in a trace of the session: only the tools' own time limits, no
    /// references, no journal.
    #[must_use]
    pub fn new(
        session: Arc<Session>,
        snapshot: Arc<Snapshot>,
        policy: Arc<Policy>,
        approver: Arc<dyn Approver>,
    ) -> Self {
        Self::in_trace(Lineage::named(session.id.as_str()), session, snapshot, policy, approver)
    }

    /// Creates the same in another trace.
    #[must_use]
    pub fn in_trace(
        lineage: Lineage,
        session: Arc<Session>,
        snapshot: Arc<Snapshot>,
        policy: Arc<Policy>,
        approver: Arc<dyn Approver>,
    ) -> Self {
        Self {
            lineage,
            origin: CallOrigin::Owner,
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
            results_for: ResultAudience::Conversation,
            promotion: Promotion::May,
            follows: JobFollower::Itself,
            variables: None,
            priority: Priority::Interactive,
            order: None,
            turn: None,
            guarded: GuardMode::Yes,
            inner: None,
            inner_taint: InnerTaint::default(),
            started_before: 0,
            read_taint: Taint::default(),
            granted: Arc::default(),
            excluded: Arc::default(),
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
            hops: Arc::default(),
            agent_budget: None,
        }
    }

    /// Returns the terms of one call, with its own cancel token.
    pub(in crate::executor) fn for_one_call(&self) -> Self {
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

    /// Returns whether the call continues as a job, without its caller.
    pub(crate) fn is_job(&self) -> bool {
        self.became.as_ref().is_some_and(PromotedTo::is_job)
    }

    /// Returns a call as policy and selectors see it.
    pub(in crate::executor) fn query<'c>(&'c self, call: &'c ValidCall, scope: CallScope) -> PolicyQuery<'c> {
        let entry = &call.entry;
        PolicyQuery {
            definition: entry.definition(),
            trust: entry.provider.trust(),
            principal: &self.session.principal,
            root: &self.session.root,
            scope,
            unvalidated: call.unvalidated,
            arguments: &call.arguments,
            request: self.request.as_ref(),
            tainted: &call.provenance.tainted,
        }
    }
}
