//! What a run is given, who hears of it, and why it may not go on.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use serde_json::Value;
use toolwright_core::agents::TreeLimit;
use toolwright_core::agents::prompt::Prompt;
use toolwright_core::approval::Approver;
use toolwright_core::call::ToolCall;
use toolwright_core::cancel::Cancel;
use toolwright_core::client::CallClient;
use toolwright_core::context::PartialSink;
use toolwright_core::exposure::ChosenExposure;
use toolwright_core::model::{ModelError, ModelResponse, RequestTool};
use toolwright_core::operation::{Lineage, Op, OpId};
use toolwright_core::outcome::Outcome;
use toolwright_core::policy::Policy;
use toolwright_core::session::Session;
use toolwright_core::store::StoreError;
use toolwright_core::variables::Variables;
use toolwright_runtime::{AgentBudget, RunContext};

use crate::run::{LoadError, TransitionError};

/// Receives the whole exchange as redacted records `{type, turn, …}` of the types
/// `request`, `response`, `model_error`, `outcomes`, `room` and `report`. Must not block for long.
pub trait Transcript: Send + Sync {
    /// Takes one record.
    fn record(&self, record: Value);
}

impl<F: Fn(Value) + Send + Sync> Transcript for F {
    fn record(&self, record: Value) {
        self(record);
    }
}

/// Receives a run's texts and calls, in order. Must not block. Secrets in text are redacted.
pub trait RunWatcher: Send + Sync {
    /// Called with a piece of the model's text.
    fn text(&self, piece: &str);

    /// Called with a piece of its reasoning.
    fn reasoning(&self, _piece: &str) {}

    /// Called with the parts that a request is sent without.
    fn lost(&self, _parts: &[&'static str]) {}

    /// Called when a model has answered or failed, after the pieces of its text.
    fn answered(&self, _answer: Result<&ModelResponse, &ModelError>) {}

    /// Called before a call runs.
    fn on_call_start(&self, _call: &ToolCall) {}

    /// Called when a call has ended, or waits for a person.
    fn ended(&self, _outcome: &Outcome) {}
}

/// What the first request of a run shows its model before the task.
#[derive(Debug, Clone)]
pub struct PromptPreview {
    /// The system prompt.
    pub prompt: Prompt,
    /// How the tools are shown, and why.
    pub exposure: Option<ChosenExposure>,
    /// The tools that the request declares.
    pub tools: Arc<[RequestTool]>,
    /// Tools that the model's provider would run and that are not declared, each with the reason.
    pub left_out: Vec<(String, String)>,
}

/// Options of a run.
#[derive(Clone)]
pub struct RunOptions {
    /// The id of the run in the store.
    pub run_id: Arc<str>,
    /// The session. A resumed run needs its earlier session id, because handles of stored outputs belong to it.
    pub session: Arc<Session>,
    /// The policy that decides about every call.
    pub policy: Arc<Policy>,
    /// Answers when the policy asks.
    pub approver: Arc<dyn Approver>,
    /// Answers requests of the tools' sources.
    pub client: Arc<dyn CallClient>,
    /// Cancels the run.
    pub cancel: Cancel,
    /// The values of references in arguments. Default, set by the driver: the run's input and what its session keeps.
    pub variables: Option<Arc<dyn Variables>>,
    /// Receives every message of the run.
    pub transcript: Option<Arc<dyn Transcript>>,
    /// The call that the run is inside of: the run of an agent that another started is a part of it.
    pub parent: Option<Arc<RunContext>>,
    /// Hears what the run does, turn by turn.
    pub progress: Option<Arc<dyn PartialSink>>,
    /// Hears what it says and calls, piece by piece.
    pub watcher: Option<Arc<dyn RunWatcher>>,
    /// Whether whoever runs it waits for its messages when it has answered, see [`Driver::receive`](super::Driver::receive).
    pub reads_mailbox: bool,
    /// Who pays for its requests to models; set by the driver.
    pub agent_budget: Option<Arc<AgentBudget>>,
    /// The messages and file changes that led to its work; set by the driver.
    pub hops: Arc<AtomicU32>,
    /// What its client goes without, whatever the model is sent, for the ledger.
    pub lost: Arc<[&'static str]>,
}

impl fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions")
            .field("run_id", &self.run_id)
            .field("session", &self.session.id)
            .finish_non_exhaustive()
    }
}

impl RunOptions {
    /// Options without a transcript, references and progress, for a run that no other started.
    #[must_use]
    pub fn new(
        run_id: Arc<str>,
        session: Arc<Session>,
        policy: Arc<Policy>,
        approver: Arc<dyn Approver>,
        client: Arc<dyn CallClient>,
        cancel: Cancel,
    ) -> Self {
        let (variables, transcript, parent, progress, watcher, agent_budget) = (None, None, None, None, None, None);
        Self {
            run_id,
            session,
            policy,
            approver,
            client,
            cancel,
            variables,
            transcript,
            parent,
            progress,
            watcher,
            reads_mailbox: false,
            agent_budget,
            hops: Arc::default(),
            lost: Arc::default(),
        }
    }

    /// Whether it is a part of the session of its caller, which sees nothing of it but its calls and requests.
    pub(super) fn is_part(&self) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.session.id == self.session.id)
    }

    /// Whether it is a part of its caller's work in a session that is only its own.
    pub(super) fn has_own_session(&self) -> bool {
        self.parent.is_some() && !self.is_part()
    }

    /// The run as an operation, the same when it is resumed: one trace, and its root, or a part of the call that it is
    /// inside of.
    pub(super) fn op(&self) -> Op {
        let named = Lineage::named(&self.run_id);
        // Half of a hash is a hash, too.
        let half = u64::try_from(named.trace.get() >> 64).unwrap_or_default();
        let lineage = match &self.parent {
            Some(parent) if self.is_part() => parent.lineage.clone(),
            Some(parent) => parent.lineage.of_child(&parent.session.id, &self.run_id),
            None => Lineage { run: Some(Arc::clone(&self.run_id)), ..named },
        };
        lineage.begin(OpId::new(half))
    }

    /// The lineage of the operations of a turn.
    pub(super) fn lineage(&self, turn: u32) -> Lineage {
        let op = self.op();
        // The ledger has no row for a run: the operations of one that is inside a call are parts of that.
        match self.parent {
            Some(_) if self.is_part() => op.lineage,
            Some(_) => Lineage { turn, ..op.lineage },
            None => Lineage { turn, ..op.inside() },
        }
    }
}

/// Why a run could not continue. The saved state can be resumed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The state could not be saved or read. The run stops here: otherwise the saved state would be wrong,
    /// and a later resume would repeat calls.
    #[error("the run cannot be kept: {0}")]
    Store(#[from] StoreError),
    /// There is no such run.
    #[error("no run `{0}` was saved")]
    NotFound(Arc<str>),
    /// Another process drives the run. Two drivers would repeat each other's calls.
    #[error("run `{run}` is being driven by {driver}: wait for it to end, or stop it")]
    Taken {
        /// The run.
        run: Arc<str>,
        /// Who drives it, in words.
        driver: String,
    },
    /// The program ends while the run, which has its answer, waits for agents that it started.
    #[error("the program ends; the run goes on when it is resumed")]
    ProgramEnds,
    /// The saved state cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The state cannot be written as JSON.
    #[error("the state of the run cannot be saved: {0}")]
    Save(#[from] serde_json::Error),
    /// A limit of the tree of agents keeps the run from beginning.
    #[error(transparent)]
    Limit(#[from] TreeLimit),
    /// A bug in Toolwright: an outcome for a call that was not pending.
    #[error(transparent)]
    Transition(#[from] TransitionError),
}
