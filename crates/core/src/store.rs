//! What outlives a call: outputs, the ledger, pins, manifests, approvals, runs. The traits are
//! here, the embedded store in `toolwright-runtime`. A method without an implementation answers
//! `unsupported`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::approval::{InboxStore, Standing};
use crate::arguments::Provenance;
use crate::canonical::ContentHash;
use crate::error::{ErrorKind, ToolError, Unsupported};
use crate::model::{ModelErrorKind, Usage};
use crate::name::ToolId;
use crate::operation::{Op, OpKind};
use crate::outcome::Outcome;
use crate::pins::{Note, Pin};
use crate::select::Showing;
use crate::session::{CallId, SessionId};

/// A failed store operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// This store does not do that.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// No such row, or it belongs to somebody else.
    #[error("{0} was not found")]
    NotFound(String),
    /// A quota is used up.
    #[error("{0}")]
    Quota(String),
    /// It is there, and not in a state for this; in words.
    #[error("{0}")]
    Refused(String),
    /// It is not text, and text was asked for.
    #[error("the stored output is binary ({media_type}, {bytes} bytes)")]
    Binary {
        /// Its media type.
        media_type: String,
        /// Its size.
        bytes: u64,
    },
    /// The store failed.
    #[error("the store failed to {doing}: {source}")]
    Failed {
        /// What it was doing.
        doing: String,
        /// Cause.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    /// Wraps a cause.
    pub fn failed(doing: impl Into<String>, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed { doing: doing.into(), source: Arc::new(source) }
    }
}

impl From<StoreError> for ToolError {
    fn from(error: StoreError) -> Self {
        Self::new(ErrorKind::InternalError, error.to_string()).with_source(error)
    }
}

/// What is known of a stored output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredOutput {
    /// `session-<uuid>/<file-uuid>`; the only way to name it.
    pub handle: String,
    /// Bytes.
    pub bytes: u64,
    /// Lines.
    pub lines: u64,
    /// Tokens, estimated at four bytes each.
    pub tokens: u64,
}

/// A range of a stored output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSlice {
    /// The text; cut at character boundaries.
    pub text: String,
    /// Byte offset after the last byte returned.
    pub next_offset: u64,
    /// Size of the whole.
    pub total_bytes: u64,
}

/// Lines of a stored output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineRange {
    /// The first one, from 1.
    pub first: u64,
    /// How many at most.
    pub count: u64,
}

/// Bytes that can be read from anywhere. Reading blocks.
pub trait ReadSeek: std::io::Read + std::io::Seek + Send {}

impl<T: std::io::Read + std::io::Seek + Send> ReadSeek for T {}

/// A stored output, open at its beginning. It is not deleted meanwhile.
pub struct OpenOutput {
    /// Its bytes. Reading blocks: off the async threads.
    pub reader: Box<dyn ReadSeek>,
    /// How many.
    pub bytes: u64,
    /// Its media type, if it is not text.
    pub binary: Option<String>,
}

/// An output on its way to the store. Dropped before [`OutputWriter::finish`], nothing is kept.
#[async_trait]
pub trait OutputWriter: Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// [`StoreError::Quota`] when the store has no more room; what was written is given up.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;
    /// Ends it and gives it its handle.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be kept.
    async fn finish(self: Box<Self>) -> Result<StoredOutput, StoreError>;
}

/// Outputs too large for a conversation, as files of their session. Handles of other sessions are
/// not found.
#[async_trait]
pub trait OutputStore: Send + Sync {
    /// Stores a whole output.
    async fn put(&self, _session: &SessionId, _bytes: &[u8]) -> Result<StoredOutput, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Stores bytes that are not text.
    async fn put_artifact(
        &self,
        _session: &SessionId,
        _bytes: &[u8],
        _media_type: &str,
    ) -> Result<StoredOutput, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Stores an output as it comes, whose size is not known yet.
    async fn writer(&self, _session: &SessionId) -> Result<Box<dyn OutputWriter>, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Reads at most `limit` bytes from byte `offset`, or one character where that is longer.
    async fn read(
        &self,
        _session: &SessionId,
        _handle: &str,
        _offset: u64,
        _limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Reads lines, at most `limit` bytes of them: the last may be cut.
    async fn read_lines(
        &self,
        _session: &SessionId,
        _handle: &str,
        _range: LineRange,
        _limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Opens an output as a whole.
    async fn open(&self, _session: &SessionId, _handle: &str) -> Result<OpenOutput, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Whether the session has stored anything, so that the reading tools are worth listing.
    fn has_outputs(&self, _session: &SessionId) -> bool {
        false
    }
}

/// One line of the account: an operation (a tool call, a model attempt, a job), failures too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The operation.
    #[serde(flatten)]
    pub op: Op,
    /// Milliseconds since the epoch at its end.
    pub at_ms: u64,
    /// Session.
    pub session: SessionId,
    /// Principal.
    pub principal: Arc<str>,
    /// Kind of operation.
    pub kind: OpKind,
    /// Call id, for a tool; job id, for a job.
    pub call: Option<CallId>,
    /// Tool id or `provider/model`; the name as it was called, for an unknown tool.
    pub name: Arc<str>,
    /// `ok` or the error kind; the last state, for a job.
    pub status: Cow<'static, str>,
    /// Microseconds, waits included.
    pub latency_us: u64,
    /// Microseconds of it that it waited for slot and lock.
    pub wait_us: u64,
    /// How many attempts were made; 0 when it never ran. Each attempt at a request to a model has its own entry, and
    /// this is its number.
    pub attempts: u32,
    /// Whether the result came out of the response cache.
    pub cached: bool,
    /// Characters of input.
    pub characters_in: u64,
    /// Characters of output.
    pub characters_out: u64,
    /// Tokens, for a model.
    pub usage: Usage,
    /// What it cost, in US dollars, where the price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Whether the arguments were validated, for a tool.
    pub validated: bool,
    /// What decided that it may run.
    pub decided_by: Cow<'static, str>,
    /// What a person said, where one was asked: `approve`, `always`, `deny`, `skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Cow<'static, str>>,
    /// What was done to name and arguments, redacted, for a tool.
    #[serde(default, skip_serializing_if = "Provenance::is_plain")]
    pub provenance: Provenance,
    /// What the request showed of the catalogue, for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Showing>,
}

impl LedgerEntry {
    /// An operation that went well and of which no more is known.
    #[must_use]
    pub fn new(op: Op, at_ms: u64, session: SessionId, principal: Arc<str>, kind: OpKind, name: Arc<str>) -> Self {
        Self {
            op,
            at_ms,
            session,
            principal,
            kind,
            call: None,
            name,
            status: Cow::Borrowed("ok"),
            latency_us: 0,
            wait_us: 0,
            attempts: 1,
            cached: false,
            characters_in: 0,
            characters_out: 0,
            usage: Usage::default(),
            cost_usd: None,
            validated: false,
            decided_by: Cow::Borrowed(""),
            approval: None,
            provenance: Provenance::default(),
            tools: None,
        }
    }

    /// Whether it may have cost something that [`LedgerEntry::cost_usd`] does not say: an attempt at a model without a
    /// price, or of which nobody said what it used, unless it was refused before a model worked on it, or never began.
    #[must_use]
    pub fn cost_is_open(&self) -> bool {
        if self.kind != OpKind::Model || self.cost_usd.is_some() || self.attempts == 0 {
            return false;
        }
        let failure = StrDeserializer::<serde::de::value::Error>::new(&self.status);
        let may_be_charged = || ModelErrorKind::deserialize(failure).is_ok_and(ModelErrorKind::may_be_charged);
        self.status == "ok" || self.usage != Usage::default() || may_be_charged()
    }

    /// Whether it failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        match self.kind {
            OpKind::Job => !matches!(&*self.status, "ok" | "done"),
            // That a guard objects is its work.
            OpKind::Guard => false,
            OpKind::Tool | OpKind::Model => self.status != "ok",
        }
    }
}

/// Totals of the ledger.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LedgerTotals {
    /// Tool calls.
    pub tool_calls: u64,
    /// Of these, failed.
    pub tool_failures: u64,
    /// Model attempts.
    pub model_calls: u64,
    /// Operations by kind and status: `{"tool": {"ok": 3, "timeout": 1}}`.
    pub by_status: BTreeMap<String, BTreeMap<String, u64>>,
}

/// What operations of one run, or of one session outside of runs, come to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// The run, where an agent made them.
    pub run: Option<Arc<str>>,
    /// Session.
    pub session: SessionId,
    /// Principal.
    pub principal: Arc<str>,
    /// Milliseconds since the epoch at the start of the first.
    pub started_ms: u64,
    /// Milliseconds since the epoch at the end of the last.
    pub ended_ms: u64,
    /// Turns of the run.
    pub turns: u32,
    /// Sums over them.
    #[serde(flatten)]
    pub sums: TraceSums,
}

/// Sums over operations.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TraceSums {
    /// Tool calls.
    pub tool_calls: u64,
    /// Model attempts.
    pub model_calls: u64,
    /// Jobs.
    pub jobs: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Tokens.
    pub usage: Usage,
    /// What they cost, in US dollars, as far as prices are known; `None` where none is.
    pub cost_usd: Option<f64>,
    /// Model attempts that may have cost something beside that; see [`LedgerEntry::cost_is_open`].
    #[serde(default, skip_serializing_if = "is_none_of_them")]
    pub open_costs: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_none_of_them(count: &u64) -> bool {
    *count == 0
}

impl TraceSums {
    /// Counts one operation in.
    pub fn add(&mut self, entry: &LedgerEntry) {
        match entry.kind {
            OpKind::Tool => self.tool_calls += 1,
            OpKind::Model => self.model_calls += 1,
            OpKind::Job => self.jobs += 1,
            OpKind::Guard => {}
        }
        self.failures += u64::from(entry.failed());
        self.usage.add(entry.usage);
        self.open_costs += u64::from(entry.cost_is_open());
        if let Some(cost) = entry.cost_usd {
            *self.cost_usd.get_or_insert(0.0) += cost;
        }
    }
}

/// The answer to [`LedgerStore::append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// There is room for more.
    Room,
    /// The entry is taken, but whoever can wait should await [`LedgerStore::room`] before making another.
    Full,
}

/// The account. Entries are batched and may be lost for at most 50 ms of a crash; none is lost because there
/// are many: callers are held back instead.
#[async_trait]
pub trait LedgerStore: Send + Sync {
    /// Appends one entry, always, and without blocking.
    fn append(&self, _entry: LedgerEntry) -> Appended {
        Appended::Room
    }
    /// Waits until what was appended has been written, as far as it must be for more to have room.
    async fn room(&self) {}
    /// Entries that could not be written, as on a full disk.
    fn lost(&self) -> u64 {
        0
    }
    /// Writes what is batched.
    async fn flush(&self) -> Result<(), StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Totals, after a flush.
    async fn totals(&self) -> Result<LedgerTotals, StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// The runs and sessions that ended last, newest first, at most `limit`, after a flush.
    async fn traces(&self, _limit: usize) -> Result<Vec<TraceSummary>, StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// The runs or sessions that `name` means: run id, session id, or the beginning of only one, or a whole trace id;
    /// `last` is the newest. Empty where there is none.
    async fn find_traces(&self, _name: &str) -> Result<Vec<TraceSummary>, StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Operations of a run or session in the order of their ends, at most the last `limit`.
    async fn operations(&self, _of: &TraceSummary, _limit: usize) -> Result<Vec<LedgerEntry>, StoreError> {
        Err(Unsupported("the ledger").into())
    }
}

/// What is to be noted of one foreign definition.
#[derive(Debug, Clone, PartialEq)]
pub struct PinNote {
    /// The name at its source.
    pub tool: String,
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
    /// What waits is approved; only this one, where a hash is given.
    Approve(Option<ContentHash>),
    /// Nothing of it is approved any more: it waits.
    Revoke,
    /// It is as if it had never been seen.
    Forget,
}

/// Foreign definitions, pinned (see [`crate::pins`]).
#[async_trait]
pub trait PinStore: Send + Sync {
    /// The pins of a provider, or of all, by provider and tool.
    async fn pins(&self, _provider: Option<&str>) -> Result<Vec<Pin>, StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// The definitions of some tools of a provider, in their order; empty where there is no pin.
    async fn pin_contracts(&self, _provider: &str, _tools: &[String]) -> Result<Vec<PinContracts>, StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// Notes what was seen of a provider, all of it or nothing. A tool that another process has pinned meanwhile keeps
    /// that pin.
    async fn note_pins(&self, _provider: &str, _notes: Vec<PinNote>) -> Result<(), StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// Decides about a pin in somebody's name; whether there was what was decided about.
    async fn decide_pin(
        &self,
        _provider: &str,
        _tool: &str,
        _decision: PinDecision,
        _by: &str,
    ) -> Result<bool, StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// A number that is another after each decision, of any process.
    async fn pin_decisions(&self) -> Result<u64, StoreError> {
        Err(Unsupported("the pin store").into())
    }
}

/// What the keys of manifests begin with that are more than a cache: which version of a signed catalogue was accepted
/// last keeps older ones out, for as long as it is known. They are kept until they are removed, and no age ends them.
pub const LASTING_MANIFESTS: &str = "catalogue:";

/// Tool lists of servers, kept so that a cold start lists tools at once. Old ones may be forgotten, but for those under
/// [`LASTING_MANIFESTS`].
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
    async fn approve_always(&self, _standing: &Standing) -> Result<(), StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Those that hold, newest first, at most `limit`.
    async fn standing(&self, _limit: usize) -> Result<Vec<Standing>, StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Takes one back; whether there was one with this id.
    async fn revoke(&self, _id: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the approval store").into())
    }
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

/// A store that has none of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl OutputStore for NoStore {}
impl LedgerStore for NoStore {}
impl PinStore for NoStore {}
impl ManifestCache for NoStore {}
impl ApprovalStore for NoStore {}
impl InboxStore for NoStore {}
impl RunStore for NoStore {}
