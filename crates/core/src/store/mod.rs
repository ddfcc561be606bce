//! Defines the traits of stores, for data that outlives a call: outputs, the ledger, pins, manifests, approvals, runs,
//! objects, the session log, and the search over it. `toolwright-runtime` implements them in the embedded store. A
//! method without an implementation answers `unsupported`.

mod budgets;
pub mod channel;
mod files;
pub mod group;
mod ledger;
mod outputs;
mod session_log;
pub mod todo;
pub mod trace;
mod values;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::approval::StandingApproval;
use crate::duration::iso;
use crate::error::Unsupported;
use crate::identity::session::{CallId, Session};
use crate::identity::tool_id::ToolId;
use crate::inbox::InboxStore;
use crate::json::canonical::ContentHash;
use crate::output::outcome::Outcome;
use crate::pins::{Pin, PinSource, PinUpdate};

pub use self::budgets::{BudgetPeriod, BudgetStore, BudgetedRequest};
pub use self::files::{FILES, FileNotes, FileTaint, FileUse, WRITES, WriteNote, WriteNotes, files_mailbox};
pub use self::ledger::{
    AppendStatus, LedgerEntry, LedgerHealth, LedgerMode, LedgerStore, LedgerTotals, MAX_KEPT, RUNNING, TraceCursor,
    TracePage, TraceSummary, TraceSums, UNKNOWN_OUTCOME, UsageBy, UsageRow, note,
};
pub use self::outputs::{LineRange, OpenOutput, OutputSlice, OutputStore, OutputWriter, ReadSeek, StoredOutput};
pub use self::session_log::{
    AppendedRow, Author, LogEntry, LogMessage, LogRow, MAX_HOPS, MAX_PRINCIPAL_BYTES, MAX_ROW_BYTES, MAX_SESSION_BYTES,
    MAX_WAITING, MessageKind, NewRow, NoSessionLog, SessionLog, VersionedValue,
};
pub use self::values::{
    Method, SCRATCH, STATE, SessionValues, ValueWatcher, WrittenValue, decoded_name, encoded_name, fold,
    fold_with_taint, is_below, log_path, state_path, superseded_values,
};
pub use crate::error::StoreError;

/// Prefix of manifest keys that are not only a cache: the last accepted version of a signed catalogue
/// excludes older ones. These manifests do not expire; they stay until they are removed.
pub const LASTING_MANIFESTS: &str = "catalogue:";

/// Cached tool lists of servers, so that a cold start lists tools at once. Manifests that are not used for long may
/// expire, except those under [`LASTING_MANIFESTS`].
#[async_trait]
pub trait ManifestCache: Send + Sync {
    /// The cached list for a server's configuration key.
    async fn manifest(&self, _key: &str) -> Result<Option<Value>, StoreError> {
        Err(Unsupported("the manifest cache").into())
    }
    /// Replaces a manifest.
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
    /// Whether `always` was given in this scope for the key.
    async fn is_approved(&self, _scope: &str, _tool: &ToolId, _key: ContentHash) -> Result<bool, StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Stores `always`. A repeated one keeps its first id.
    async fn approve_always(&self, _standing: &StandingApproval) -> Result<(), StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Returns the valid ones, newest first, at most `limit`.
    async fn list_standing(&self, _limit: usize) -> Result<Vec<StandingApproval>, StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Revokes one. Returns whether there was one with this id.
    async fn revoke(&self, _id: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the approval store").into())
    }
}

/// A change to record for one foreign definition.
#[derive(Debug, Clone, PartialEq)]
pub struct PinWrite {
    /// The name at its source; if it replaces a pinned tool, that tool's name.
    pub tool: String,
    /// The name at its source, if it replaces a pinned tool.
    pub renamed: Option<String>,
    /// Its id.
    pub id: ToolId,
    /// The change; never [`PinUpdate::Nothing`].
    pub note: PinUpdate,
    /// Hash of its original contract.
    pub hash: ContentHash,
    /// The contract.
    pub contract: Value,
}

/// The definitions behind a pin.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PinContracts {
    /// The approved contract.
    pub approved: Option<Value>,
    /// The contract that waits for approval.
    pub waiting: Option<Value>,
}

/// A person's decision on a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinDecision {
    /// Approve the waiting definition, only with this hash if given. A renamed tool is pinned under its new name.
    Approve(Option<ContentHash>),
    /// Withdraw the approval: the definition waits again.
    Revoke,
    /// It is as if it had never been seen.
    Forget,
}

/// Foreign definitions, pinned (see [`crate::pins`]).
#[async_trait]
pub trait PinStore: Send + Sync {
    /// The pins of a source, or of all, by provider, scope and tool.
    async fn pins(&self, source: Option<&PinSource>) -> Result<Vec<Pin>, StoreError>;
    /// Returns the definitions of some tools of a source, in their order; empty for unknown tools.
    async fn pin_contracts(&self, source: &PinSource, tools: &[String]) -> Result<Vec<PinContracts>, StoreError>;
    /// Records changes of a source's definitions, all or none. A tool that another process has pinned meanwhile keeps
    /// that pin.
    async fn note_pins(&self, source: &PinSource, notes: Vec<PinWrite>) -> Result<(), StoreError>;
    /// Decides on a pin in a person's name, for this source alone. Returns whether there was anything to decide.
    async fn decide_pin(
        &self,
        source: &PinSource,
        tool: &str,
        decision: PinDecision,
        by: &str,
    ) -> Result<bool, StoreError>;
    /// Returns a number that changes with each decision, in any process.
    async fn pin_decisions(&self) -> Result<u64, StoreError>;
}

/// A saved run: its state machine, and data on the calls in flight.
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
    /// Claims the right to drive a run, which need not exist yet. A claim of this process or of a
    /// dead one is taken over; drivers in one process are not distinguished.
    async fn claim(&self, _run: &str) -> Result<Claim, StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Releases this process's claim.
    async fn release(&self, _run: &str) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Saves the state between two steps and forgets the calls of the step before.
    async fn save_run(&self, _run: &str, _state: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Saves the state during a step, and keeps the data on its calls.
    async fn save_during_step(&self, _run: &str, _state: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// A run, if it exists.
    async fn run(&self, _run: &str) -> Result<Option<SavedRun>, StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Records that a call is about to be dispatched.
    async fn call_dispatched(&self, _run: &str, _call: &CallId) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Records the outcome of a call.
    async fn call_finished(&self, _run: &str, _outcome: &Outcome) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
}

/// An object to store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObject {
    /// Its kind.
    pub kind: &'static str,
    /// Its id, unique for its kind and owner.
    pub id: String,
    /// The object.
    pub object: Value,
    /// Whether it only replaces a stored object, so that a removed one stays removed.
    pub only_if_there: bool,
}

/// Stores objects that clients of model APIs refer to by id: responses, conversations, and runs that wait for the client.
/// Each is visible only to its owner.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Stores these objects in one transaction, and replaces those of the same kind and id.
    async fn put_objects(&self, _owner: &str, _objects: &[StoredObject]) -> Result<(), StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Stores one object, like [`ObjectStore::put_objects`].
    async fn put_object(&self, owner: &str, kind: &'static str, id: &str, object: Value) -> Result<(), StoreError> {
        self.put_objects(owner, &[StoredObject { kind, id: id.to_owned(), object, only_if_there: false }]).await
    }

    /// Replaces an object of this kind and id. Returns whether it existed; otherwise stores nothing.
    async fn replace_object(&self, _owner: &str, _kind: &str, _id: &str, _object: &Value) -> Result<bool, StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Returns the object, if it exists.
    async fn object(&self, _owner: &str, _kind: &str, _id: &str) -> Result<Option<Value>, StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Removes it; returns whether it existed.
    async fn remove_object(&self, _owner: &str, _kind: &str, _id: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the store of objects").into())
    }
}

/// How passages are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchMode {
    /// By the words of the query.
    Text,
    /// By the meaning of the query.
    Semantic,
    /// By both.
    #[default]
    Hybrid,
}

/// A piece of stored text or conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Passage {
    /// The author: `user`, `assistant` for the model, a tool, an agent, a channel's author.
    pub who: String,
    /// The place, like `run 7c2f` or `scratch.plan in session s`.
    pub place: String,
    /// The time, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The text.
    pub text: String,
}

impl Passage {
    /// Formats it as a line.
    #[must_use]
    pub fn line(&self) -> String {
        format!("[{}, {}, {}] {}", iso(self.at_ms), self.place, self.who, self.text)
    }

    /// Formats it for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({"who": self.who, "where": self.place, "at": iso(self.at_ms), "text": self.text})
    }
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundPassages {
    /// The best first.
    pub passages: Vec<Passage>,
    /// Why another ranking was used, if so.
    pub note: Option<String>,
}

/// Searches the session log and the saved runs of a principal.
#[async_trait]
pub trait Memory: Send + Sync {
    /// Returns the passages of the session's principal that fit a query best, at most `limit`. The session's own
    /// conversation is excluded: the asker has it.
    async fn search(
        &self,
        _session: &Session,
        _query: &str,
        _mode: SearchMode,
        _limit: usize,
    ) -> Result<FoundPassages, StoreError> {
        Err(Unsupported("searching the memory").into())
    }
}

/// Without memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMemory;

impl Memory for NoMemory {}

/// A store that keeps nothing: no outputs, ledger, manifests or approvals.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl OutputStore for NoStore {}
impl LedgerStore for NoStore {}
impl ManifestCache for NoStore {}
impl ApprovalStore for NoStore {}
impl InboxStore for NoStore {}
impl ObjectStore for NoStore {}
