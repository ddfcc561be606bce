//! Defines the traits of stores, for data that outlives a call: outputs, the ledger, pins, manifests, approvals, runs,
//! the session log. `toolwright-runtime` implements them in the embedded store. A method without an implementation
//! answers `unsupported`.

mod budgets;
pub mod channel;
mod files;
pub mod group;
mod ledger;
mod memory;
mod objects;
mod outputs;
mod session_log;
mod state;
pub mod todo;
pub mod trace;
pub mod usage;
mod values;

use async_trait::async_trait;
use serde_json::Value;

use crate::approval::StandingApproval;
use crate::error::Unsupported;
use crate::identity::session::CallId;
use crate::identity::tool_id::ToolId;
use crate::inbox::InboxStore;
use crate::json::canonical::ContentHash;
use crate::output::outcome::Outcome;
use crate::pins::{Note, Pin, PinSource};

pub use self::budgets::{BudgetPeriod, BudgetStore, BudgetedRequest};
pub use self::files::{FILES, FileNotes, FileTaint, FileUse, files_mailbox};
pub use self::ledger::{
    Appended, LedgerCondition, LedgerEntry, LedgerMode, LedgerStore, LedgerTotals, MAX_KEPT, RUNNING, TraceCursor,
    TracePage, TraceSummary, TraceSums, UNKNOWN_OUTCOME, note,
};
pub use self::memory::{Found, Memory, NoMemory, Passage, SearchMode};
pub use self::objects::ObjectStore;
pub use self::outputs::{LineRange, OpenOutput, OutputSlice, OutputStore, OutputWriter, ReadSeek, StoredOutput};
pub use self::session_log::{
    AppendedRow, Author, LogEntry, LogMessage, LogRow, MAX_HOPS, MAX_PRINCIPAL_BYTES, MAX_ROW_BYTES, MAX_SESSION_BYTES,
    MAX_WAITING, MessageKind, NewRow, NoSessionLog, SessionLog, ValueAt,
};
pub use self::state::{SCRATCH, STATE, SessionValues, ValueWatcher, log_path, state_path};
pub use self::values::{Method, Written, decoded_name, encoded_name, fold, fold_with_taint, is_below, superseded};
pub use crate::error::StoreError;

/// What the keys of manifests begin with that are more than a cache: which version of a signed catalogue was accepted
/// last keeps older ones out, for as long as it is known. They are kept until they are removed, and no age ends them.
pub const LASTING_MANIFESTS: &str = "catalogue:";

/// Tool lists of servers, kept so that a cold start lists tools at once. Those that nobody has read or replaced for long may
/// be forgotten, but for those under [`LASTING_MANIFESTS`].
#[async_trait]
pub trait ManifestCache: Send + Sync {
    /// The cached list for a server's configuration key.
    async fn manifest(&self, _key: &str) -> Result<Option<Value>, StoreError> {
        Err(Unsupported("the manifest cache").into())
    }
    /// Replaces it.
    async fn set_manifest(&self, _key: &str, _manifest: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the manifest cache").into())
    }
    /// Forgets it; returns whether there was one.
    async fn remove_manifest(&self, _key: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the manifest cache").into())
    }
}

/// Standing approvals, bound to a definition's hash.
#[async_trait]
pub trait ApprovalStore: Send + Sync {
    /// Whether `always` was said in this scope for what the key stands for.
    async fn is_approved(&self, _scope: &str, _tool: &ToolId, _key: ContentHash) -> Result<bool, StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Remembers `always`. Said again, it keeps its first id.
    async fn approve_always(&self, _standing: &StandingApproval) -> Result<(), StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Those that hold, newest first, at most `limit`.
    async fn standing(&self, _limit: usize) -> Result<Vec<StandingApproval>, StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Takes one back; whether there was one with this id.
    async fn revoke(&self, _id: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the approval store").into())
    }
}

/// What is to be noted of one foreign definition.
#[derive(Debug, Clone, PartialEq)]
pub struct PinNote {
    /// The name at its source; where it takes the place of a pinned tool, that one's.
    pub tool: String,
    /// The name at its source, where it takes the place of a pinned tool.
    pub renamed: Option<String>,
    /// Its id.
    pub id: ToolId,
    /// What is noted: anything but [`Note::Nothing`], which notes nothing.
    pub note: Note,
    /// Hash of its contract as its source gave it.
    pub hash: ContentHash,
    /// That contract.
    pub contract: Value,
}

/// The definitions behind a pin.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PinContracts {
    /// What is approved.
    pub approved: Option<Value>,
    /// What waits for approval.
    pub waiting: Option<Value>,
}

/// What somebody decides about a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinDecision {
    /// What waits is approved; only this one, where a hash is given. What has another name is pinned under that.
    Approve(Option<ContentHash>),
    /// Nothing of it is approved any more: it waits.
    Revoke,
    /// It is as if it had never been seen.
    Forget,
}

/// Foreign definitions, pinned (see [`crate::pins`]).
#[async_trait]
pub trait PinStore: Send + Sync {
    /// The pins of a source, or of all, by provider, scope and tool.
    async fn pins(&self, source: Option<&PinSource>) -> Result<Vec<Pin>, StoreError>;
    /// The definitions of some tools of a source, in their order; empty where there is none.
    async fn pin_contracts(&self, source: &PinSource, tools: &[String]) -> Result<Vec<PinContracts>, StoreError>;
    /// Notes what was seen of a source, all of it or nothing. A tool that another process has pinned meanwhile keeps
    /// that pin.
    async fn note_pins(&self, source: &PinSource, notes: Vec<PinNote>) -> Result<(), StoreError>;
    /// Decides about a pin in somebody's name, for this source alone; whether there was what was decided about.
    async fn decide_pin(
        &self,
        source: &PinSource,
        tool: &str,
        decision: PinDecision,
        by: &str,
    ) -> Result<bool, StoreError>;
    /// A number that is another after each decision, of any process.
    async fn pin_decisions(&self) -> Result<u64, StoreError>;
}

/// A saved run: its state machine, and what is known of the calls in flight.
#[derive(Debug, Clone, Default)]
pub struct SavedRun {
    /// The state machine as JSON.
    pub state: Value,
    /// Calls that were dispatched after that state was saved, with their outcome once finished.
    pub calls: Vec<(CallId, Option<Outcome>)>,
}

/// The answer to [`RunStore::claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// This process may drive the run.
    Held,
    /// A living process drives it; who, in words.
    TakenBy(String),
}

/// Runs that can be resumed. Every method commits before it returns.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Claims the right to drive a run, which need not exist yet. A claim of this very process or of a
    /// dead one is taken over; drivers inside one process are not kept apart.
    async fn claim(&self, _run: &str) -> Result<Claim, StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Gives this process's claim back.
    async fn release(&self, _run: &str) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Saves the state between two steps and forgets the calls of the step before.
    async fn save_run(&self, _run: &str, _state: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Saves the state amid a step, and keeps what is known of its calls.
    async fn save_amid(&self, _run: &str, _state: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// A run, if it exists.
    async fn run(&self, _run: &str) -> Result<Option<SavedRun>, StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Notes that a call is about to be dispatched.
    async fn call_dispatched(&self, _run: &str, _call: &CallId) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Notes its outcome.
    async fn call_finished(&self, _run: &str, _outcome: &Outcome) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
}

/// A store that keeps nothing: no outputs, ledger, manifests or approvals.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl OutputStore for NoStore {}
impl LedgerStore for NoStore {}
impl ManifestCache for NoStore {}
impl ApprovalStore for NoStore {}
impl InboxStore for NoStore {}
