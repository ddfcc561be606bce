//! What outlives a call: outputs, the ledger, pins, manifests, approvals, runs. The traits are
//! here, the embedded store in `toolwright-runtime`. A method without an implementation answers
//! `unsupported`.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arguments::Provenance;
use crate::canonical::ContentHash;
use crate::error::{ErrorKind, ToolError, Unsupported};
use crate::model::Usage;
use crate::name::ToolId;
use crate::operation::Op;
use crate::outcome::Outcome;
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
    pub principal: String,
    /// `tool`, `model` or `job`.
    pub kind: String,
    /// Call id, for a tool.
    pub call: Option<CallId>,
    /// Tool id or `provider/model`.
    pub name: String,
    /// `ok` or the error kind.
    pub status: String,
    /// Milliseconds.
    pub latency_ms: u64,
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
    pub decided_by: String,
    /// What was done to name and arguments, redacted, for a tool.
    #[serde(default, skip_serializing_if = "Provenance::is_plain")]
    pub provenance: Provenance,
    /// What the request showed of the catalogue, for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Showing>,
}

/// Totals of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LedgerTotals {
    /// Tool calls.
    pub tool_calls: u64,
    /// Of these, failed.
    pub tool_failures: u64,
    /// Model attempts.
    pub model_calls: u64,
}

/// The account. Appending never blocks a call: entries are batched and may be lost for at most 50 ms
/// of a crash.
#[async_trait]
pub trait LedgerStore: Send + Sync {
    /// Appends one entry.
    fn append(&self, _entry: LedgerEntry) {}
    /// Writes what is batched.
    async fn flush(&self) -> Result<(), StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Totals, after a flush.
    async fn totals(&self) -> Result<LedgerTotals, StoreError> {
        Err(Unsupported("the ledger").into())
    }
}

/// Definitions pinned by hash on first use.
#[async_trait]
pub trait PinStore: Send + Sync {
    /// The pinned hash of a tool of a provider.
    async fn pin(&self, _provider: &str, _tool: &ToolId) -> Result<Option<ContentHash>, StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// Pins, replacing an older pin.
    async fn set_pin(&self, _provider: &str, _tool: &ToolId, _hash: ContentHash) -> Result<(), StoreError> {
        Err(Unsupported("the pin store").into())
    }
}

/// Tool lists of servers, kept so that a cold start lists tools at once.
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
}

/// Standing approvals, bound to a definition's hash.
#[async_trait]
pub trait ApprovalStore: Send + Sync {
    /// Whether `always` was said for this definition in this scope.
    async fn is_approved(&self, _scope: &str, _tool: &ToolId, _definition: ContentHash) -> Result<bool, StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Remembers `always`.
    async fn approve_always(&self, _scope: &str, _tool: &ToolId, _definition: ContentHash) -> Result<(), StoreError> {
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
impl RunStore for NoStore {}
