//! Defines the ledger: one row for each operation, and the queries over them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::error::Unsupported;
use crate::event::operation::{Op, OpKind, ParentSessions};
use crate::identity::session::{CallId, SessionId};
use crate::model::exposure::ExposureRecord;
use crate::model::{ModelErrorKind, Usage};
use crate::output::head_and_tail;
use crate::output::provenance::Provenance;
use crate::secret::Redactor;

/// [`LedgerEntry::status`] of an operation that has begun and not ended.
pub const RUNNING: &str = "running";
/// [`LedgerEntry::status`] of an operation whose process ended first: its effect is unknown.
pub const UNKNOWN_OUTCOME: &str = "unknown";

/// What happens to calls while the ledger cannot be written, as on a full disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LedgerMode {
    /// They run, and the failure is told: in the log, in `/metrics` and by `/ready`.
    #[default]
    BestEffort,
    /// They are refused: no call runs before a row for it is on disk.
    Required,
}

/// A ledger row: an operation (a tool call, a model attempt, a job), successful or not.
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
    /// Tool id or `provider/model`; the name as written, for an unknown tool.
    pub name: Arc<str>,
    /// `ok` or the error kind; for a job its last state; [`RUNNING`] or [`UNKNOWN_OUTCOME`] without an end.
    pub status: Cow<'static, str>,
    /// Microseconds, including waits except those for people ([`LedgerEntry::person_us`]).
    pub latency_us: u64,
    /// Microseconds of the latency spent waiting for slot and lock.
    pub wait_us: u64,
    /// Further microseconds spent waiting for people: approvals, and questions of the tool.
    #[serde(default, skip_serializing_if = "crate::model::is_zero")]
    pub person_us: u64,
    /// Number of attempts; 0 if it never ran. Each attempt at a model request has its own entry with its number here.
    pub attempts: u32,
    /// Whether the result came from the response cache.
    pub cached: bool,
    /// Characters of input.
    pub characters_in: u64,
    /// Characters of output.
    pub characters_out: u64,
    /// Tokens, for a model.
    pub usage: Usage,
    /// Its cost in US dollars, if the price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// For a tool: whether the arguments were validated.
    pub validated: bool,
    /// What decided that it may run.
    pub decided_by: Cow<'static, str>,
    /// The person's decision, if one was asked: `approve`, `always`, `deny`, `skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Cow<'static, str>>,
    /// For a tool: changes made to name and arguments, redacted.
    #[serde(default, skip_serializing_if = "Provenance::is_plain")]
    pub provenance: Provenance,
    /// For a model: the tools shown in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ExposureRecord>,
    /// For a model behind a facade: parts of the request that its API cannot express.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Cow<'static, str>>,
    /// For a tool: the arguments as JSON, redacted; `None` if larger than [`MAX_KEPT`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<str>>,
    /// The beginning of the result's text, redacted, at most [`MAX_KEPT`] bytes; only for a successful call of a tool
    /// without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<str>>,
    /// Why it failed, or why its request shows these tools; redacted and short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Arc<str>>,
}

/// Bytes of a note.
const MAX_NOTE: usize = 600;

/// Redacts and shortens a text for the ledger; `None` if it is blank.
#[must_use]
pub fn note(text: &str, redactor: &dyn Redactor) -> Option<Arc<str>> {
    let text = redactor.redact(text.trim());
    (!text.is_empty()).then(|| head_and_tail(&text, MAX_NOTE).into())
}

/// Bytes of arguments, and of a result, kept per call.
pub const MAX_KEPT: usize = 2048;

impl LedgerEntry {
    /// A successful operation without further data.
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
            person_us: 0,
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
            lost: Vec::new(),
            arguments: None,
            result: None,
            note: None,
        }
    }

    /// Approximate start time, in microseconds since the epoch.
    #[must_use]
    pub fn started_us(&self) -> u64 {
        self.at_ms.saturating_mul(1000).saturating_sub(self.latency_us).saturating_sub(self.person_us)
    }

    /// Whether it may have costs missing in [`LedgerEntry::cost_usd`]: a model attempt without a known
    /// price or reported usage, unless it was refused before a model worked on it, or never began.
    #[must_use]
    pub fn may_miss_cost(&self) -> bool {
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
            OpKind::Job => !matches!(&*self.status, "ok" | "done" | RUNNING),
            // An objection is a guard's normal result.
            OpKind::Guard => false,
            OpKind::Tool | OpKind::Model => !matches!(&*self.status, "ok" | RUNNING),
        }
    }
}

/// Totals of the ledger.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LedgerTotals {
    /// Tool calls.
    pub tool_calls: u64,
    /// Number of failed tool calls.
    pub tool_failures: u64,
    /// Model attempts.
    pub model_calls: u64,
    /// Operations by kind and status: `{"tool": {"ok": 3, "timeout": 1}}`.
    pub by_status: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Totals of one run, or of one session's operations outside of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// The run, if an agent made them.
    pub run: Option<Arc<str>>,
    /// Session.
    pub session: SessionId,
    /// Principal.
    pub principal: Arc<str>,
    /// The sessions above it, if a call of another session started the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Arc<ParentSessions>>,
    /// Milliseconds since the epoch at the start of the first.
    pub started_ms: u64,
    /// Milliseconds since the epoch at the end of the last.
    pub ended_ms: u64,
    /// Whether it is active: a process drives the run, or an operation in it or below it is unfinished.
    #[serde(default)]
    pub live: bool,
    /// Turns of the run.
    pub turns: u32,
    /// Sums over them.
    #[serde(flatten)]
    pub sums: TraceSums,
}

impl TraceSummary {
    /// The run, or the session outside of runs.
    #[must_use]
    pub fn name(&self) -> &str {
        self.run.as_deref().unwrap_or_else(|| self.session.as_str())
    }
}

/// A part of the list of runs and sessions.
#[derive(Debug, Clone, Default)]
pub struct TracePage {
    /// A page of traces.
    pub traces: Vec<TraceSummary>,
    /// Number of traces in total.
    pub total: u64,
    /// The cursor of the next page, if any.
    pub next: Option<TraceCursor>,
}

/// A place in the list of runs and sessions: `END.NUMBER` as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceCursor {
    /// End time, in milliseconds since the epoch.
    pub ended_ms: u64,
    /// Distinguishes traces with the same end time.
    pub number: u64,
}

impl std::fmt::Display for TraceCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.ended_ms, self.number)
    }
}

impl std::str::FromStr for TraceCursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('.').and_then(|(ended, number)| Some((ended.parse().ok()?, number.parse().ok()?)));
        let (ended_ms, number) = parsed.ok_or_else(|| format!("`{text}` is no cursor: take `next` of an answer"))?;
        Ok(Self { ended_ms, number })
    }
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
    /// Total cost in US dollars as far as prices are known; `None` if none is.
    pub cost_usd: Option<f64>,
    /// Model attempts that may have had further costs; see [`LedgerEntry::may_miss_cost`].
    #[serde(default, skip_serializing_if = "crate::model::is_zero")]
    pub open_costs: u64,
}

impl TraceSums {
    /// Adds other totals.
    pub fn add_all(&mut self, other: &Self) {
        self.tool_calls += other.tool_calls;
        self.model_calls += other.model_calls;
        self.jobs += other.jobs;
        self.failures += other.failures;
        self.usage.add(other.usage);
        self.open_costs += other.open_costs;
        if let Some(cost) = other.cost_usd {
            *self.cost_usd.get_or_insert(0.0) += cost;
        }
    }

    /// Adds an operation.
    pub fn add(&mut self, entry: &LedgerEntry) {
        match entry.kind {
            OpKind::Tool => self.tool_calls += 1,
            OpKind::Model => self.model_calls += 1,
            OpKind::Job => self.jobs += 1,
            OpKind::Guard => {}
        }
        self.failures += u64::from(entry.failed());
        self.usage.add(entry.usage);
        self.open_costs += u64::from(entry.may_miss_cost());
        if let Some(cost) = entry.cost_usd {
            *self.cost_usd.get_or_insert(0.0) += cost;
        }
    }
}

/// The answer to [`LedgerStore::append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendStatus {
    /// There is room for more.
    Room,
    /// The entry is accepted, but callers that can wait should await [`LedgerStore::room`] first.
    Full,
}

/// Whether a ledger can be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LedgerHealth {
    /// Writes that failed since the start.
    pub failures: u64,
    /// Number of entries lost because writing failed and the buffer was full.
    pub lost: u64,
    /// Entries kept in memory until they can be written.
    pub waiting: u64,
    /// Error of the last write, if it failed.
    pub failing: Option<String>,
}

/// The ledger. Entries are batched; a crash may lose the last 50 ms. Load never loses entries:
/// callers are held back instead. An operation with a possible effect is recorded before the effect
/// ([`LedgerStore::begin`]), even if the process is killed.
#[async_trait]
pub trait LedgerStore: Send + Sync {
    /// Records the start of an operation, under [`LedgerEntry::op`], where it outlives the process; its end is appended
    /// later. Until then it counts as [`RUNNING`], and as [`UNKNOWN_OUTCOME`] once the process is gone.
    ///
    /// # Errors
    /// The start is not on disk.
    async fn begin(&self, _entry: LedgerEntry) -> Result<(), StoreError> {
        Ok(())
    }
    /// Appends one entry, always, and without blocking.
    fn append(&self, _entry: LedgerEntry) -> AppendStatus {
        AppendStatus::Room
    }
    /// Waits until enough appended entries are written that there is room for more.
    async fn room(&self) {}
    /// Returns whether it can be written, without accessing the disk.
    fn condition(&self) -> LedgerHealth {
        LedgerHealth::default()
    }
    /// Checks whether it can be written now: after a failed write, tries again.
    ///
    /// # Errors
    /// Why it cannot be written.
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Writes the batched entries.
    async fn flush(&self) -> Result<(), StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Totals, after a flush.
    async fn totals(&self) -> Result<LedgerTotals, StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Returns the most recently ended root runs and sessions, newest first, at most `limit`, after a flush. Totals
    /// include their children.
    async fn traces(&self, limit: usize) -> Result<Vec<TraceSummary>, StoreError> {
        Ok(self.trace_page(None, limit).await?.traces)
    }
    /// Like `traces`, after the position in [`TracePage::next`].
    async fn trace_page(&self, _after: Option<TraceCursor>, _limit: usize) -> Result<TracePage, StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Finds the runs or sessions called `name`: a run id, a session id, a unique prefix, or a whole trace id;
    /// `last` is the newest. Empty if there is none.
    async fn find_traces(&self, _name: &str) -> Result<Vec<TraceSummary>, StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Returns a run or session with all its descendant runs.
    async fn trace_tree(&self, of: &TraceSummary) -> Result<Vec<TraceSummary>, StoreError> {
        Ok(vec![of.clone()])
    }
    /// Totals of operations that ended since `since_ms`, by group, sorted by group name. Guards' judgements do not
    /// count.
    async fn usage(&self, _by: UsageBy, _since_ms: u64) -> Result<Vec<UsageRow>, StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Returns the last tool calls of all sessions, newest first; of one tool (by id), those among the last 20,000
    /// operations.
    async fn recent_calls(&self, _tool: Option<&str>, _limit: usize) -> Result<Vec<LedgerEntry>, StoreError> {
        Err(Unsupported("the ledger").into())
    }
    /// Operations of a run or session in the order of their ends, at most the last `limit`.
    async fn operations(&self, _of: &TraceSummary, _limit: usize) -> Result<Vec<LedgerEntry>, StoreError> {
        Err(Unsupported("the ledger").into())
    }
}

/// How operations are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageBy {
    /// Tool id; only tool calls count.
    Tool,
    /// `provider/model`; only requests to models count.
    Model,
    /// The run, or the session outside of runs.
    Run,
    /// By the agent of the run; empty outside of runs of named agents.
    Agent,
    /// Principal.
    Principal,
    /// Day (UTC), as milliseconds since the epoch at its start.
    Day,
}

/// The sums of one group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UsageRow {
    /// Name of the group.
    pub name: String,
    /// Median latency in microseconds, without waits for people.
    pub p50_us: u64,
    /// The sums.
    #[serde(flatten)]
    pub sums: TraceSums,
}
