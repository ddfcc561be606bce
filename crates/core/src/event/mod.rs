//! Events for observers. Observers cannot break a run.

pub mod job;
pub mod operation;
mod sink;
pub mod trigger;

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ErrorKind;
use crate::event::job::JobState;
use crate::event::operation::{CallOrigin, Op};
use crate::identity::session::{CallId, SessionId};
use crate::identity::tool_id::ToolId;
use crate::model::exposure::Exposure;
use crate::model::{ModelErrorKind, StopReason, Usage};
use crate::output::provenance::{Provenance, RepairRecord};
use crate::pins::Change;

pub use self::sink::{CATALOGUE_KEPT, CompactionLayer, EventDetail, EventSink, NoEvents, Partial, RefusedCall};
pub use crate::definition::McpPeer;

/// Something that happened, for logs, consoles, ledgers and terminals. Events carry redacted text only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An agent's run begins or resumes.
    RunStarted {
        /// The run as an operation: its requests and calls name it as their parent.
        op: Op,
        /// Session.
        session: SessionId,
        /// The agent, if it has a name.
        agent: Option<String>,
        /// `provider/model`.
        model: String,
    },
    /// A run ended, or paused so that it can resume.
    RunFinished {
        /// The operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// The agent, if it has a name.
        agent: Option<String>,
        /// Whether it gave an answer.
        ok: bool,
        /// How it ended, as in its report.
        status: String,
        /// Microseconds from start to end.
        latency_us: u64,
        /// Its model usage, including runs before a resume.
        usage: Usage,
    },
    /// A call passed its checks and begins.
    ToolStarted {
        /// The operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// Its name on the wire.
        wire_name: Arc<str>,
        /// Name of its provider.
        provider: Arc<str>,
        /// Its peer, for a tool of an MCP server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mcp: Option<McpPeer>,
        /// Its protocol method (`resources/read`), if it is not a tool call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        method: Option<Arc<str>>,
        /// The caller.
        origin: CallOrigin,
        /// `provider/model` of the model that made the call; empty if none did.
        model: String,
        /// The attempt at it, from 1.
        attempt: u32,
        /// Redacted arguments; `null` if no observer reads them ([`EventDetail::Brief`]).
        arguments: Value,
        /// Changes made to name and arguments by the check, redacted.
        #[serde(default, skip_serializing_if = "Provenance::is_plain")]
        provenance: Provenance,
        /// Microseconds since the start, if the event is late ([`EventDetail::Brief`]).
        #[serde(default, skip_serializing_if = "crate::model::is_zero")]
        after_us: u64,
    },
    /// A model was asked to repair the arguments of a call.
    CallRepair {
        /// Session.
        session: SessionId,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// The result, redacted.
        record: Box<RepairRecord>,
    },
    /// A call waits for a queue slot or a lock.
    ToolWait {
        /// The operation.
        op: Op,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// The queue.
        queue: String,
    },
    /// A wait is over, also when it ends in an error.
    ToolWaited {
        /// The operation.
        op: Op,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// The queue.
        queue: String,
        /// Whether it got a slot.
        ok: bool,
        /// Microseconds.
        wait_us: u64,
    },
    /// The response cache had the call's result.
    CacheHit {
        /// The operation.
        op: Op,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
    },
    /// A running tool reports progress or a part of its result.
    ToolPartial {
        /// The operation.
        op: Op,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// The partial result.
        partial: Partial,
    },
    /// A call ended.
    ToolFinished {
        /// The operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Call.
        call: CallId,
        /// Tool, unless it was unknown.
        tool: Option<ToolId>,
        /// Its wire name, or the name as written for an unknown tool.
        wire_name: Arc<str>,
        /// The refused request, if the call never started.
        refused: Option<RefusedCall>,
        /// Namespace.
        namespace: String,
        /// Name of its provider; empty for an unknown tool.
        provider: Arc<str>,
        /// Its peer, for a tool of an MCP server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mcp: Option<McpPeer>,
        /// Its protocol method (`resources/read`), if it is not a tool call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        method: Option<Arc<str>>,
        /// The caller.
        origin: CallOrigin,
        /// `provider/model` of the model that made the call; empty if none did.
        model: String,
        /// Number of attempts; 0 if it never ran.
        attempts: u32,
        /// Whether it succeeded.
        ok: bool,
        /// Kind of failure.
        error: Option<ErrorKind>,
        /// The peer's error code, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<i64>,
        /// Redacted operator message.
        message: Option<String>,
        /// Microseconds from start to end, including waits except those for people.
        latency_us: u64,
        /// Microseconds of the latency spent waiting for slot and lock.
        wait_us: u64,
        /// Microseconds of other time spent waiting for people: approvals, and questions of the tool.
        #[serde(default, skip_serializing_if = "crate::model::is_zero")]
        person_us: u64,
        /// Microseconds of the latency since its tool began; 0 if it never did.
        #[serde(default)]
        run_us: u64,
        /// Its queue, if it came that far.
        queue: Option<Arc<str>>,
        /// Whether the result came from the response cache.
        cached: bool,
        /// What decided whether it may run.
        decided_by: Cow<'static, str>,
        /// Characters of arguments.
        characters_in: usize,
        /// Characters of result text after shaping.
        characters_out: usize,
    },
    /// A model is tried for a tool.
    LlmAttemptStarted {
        /// The call's operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// `provider/model`.
        model: String,
        /// Number of the model in this call, from 1.
        attempt: u32,
        /// Redacted arguments.
        arguments: Value,
    },
    /// A model produced a tool's result.
    LlmAttemptFinished {
        /// The call's operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// `provider/model`.
        model: String,
        /// Number of the model in this call, from 1.
        attempt: u32,
        /// The chosen variant, if the tool has several.
        variant: Option<String>,
        /// Microseconds of this attempt.
        latency_us: u64,
        /// Usage of this attempt.
        usage: Usage,
    },
    /// A model failed to produce a tool's result.
    LlmAttemptFailed {
        /// The call's operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// `provider/model`.
        model: String,
        /// Number of the model in this call, from 1.
        attempt: u32,
        /// The chosen variant, if the tool has several.
        variant: Option<String>,
        /// Kind of failure.
        kind: ErrorKind,
        /// Redacted operator message.
        message: String,
        /// The model that is tried next, if one is.
        next: Option<String>,
        /// Microseconds of this attempt.
        latency_us: u64,
        /// Usage of this attempt.
        usage: Usage,
    },
    /// A person is asked.
    ApprovalRequested {
        /// The operation.
        op: Op,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// Why.
        reason: String,
    },
    /// A person, or a rule, answered.
    ApprovalDecided {
        /// The operation.
        op: Op,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// `approve`, `always`, `deny`, `skip` or `later`.
        decision: String,
    },
    /// A result had no room in the conversation: its handle, or an error, took its place.
    BudgetExceeded {
        /// Session.
        session: SessionId,
        /// Call.
        call: CallId,
        /// Tool, unless it was unknown.
        tool: Option<ToolId>,
        /// Estimated tokens of the result.
        needed: u64,
        /// Tokens that were left.
        left: u64,
        /// Handle of the stored result, if any.
        handle: Option<String>,
    },
    /// Room was made in the conversation of a run.
    Compacted {
        /// The run as an operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// The model with the context window.
        model: String,
        /// The measure taken.
        layer: CompactionLayer,
        /// Estimated tokens of the next request before it.
        before: u64,
        /// Estimated tokens after it.
        after: u64,
        /// Tokens that a request may have.
        limit: u64,
        /// Whether the model's own tokenizer counted; otherwise counts are estimates, calibrated with the API's
        /// reports.
        exact: bool,
        /// Number of results removed.
        results: u64,
        /// Number of those that are stored: with their text if the run has a tool to read it; for files, all.
        #[serde(default)]
        kept: u64,
        /// Number of messages replaced by a summary.
        messages: u64,
        /// Handle of their stored text, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handle: Option<String>,
        /// Model usage of the compaction.
        usage: Usage,
    },
    /// A job was created, or taken over from a process that is gone.
    JobStarted {
        /// The job as an operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Its id.
        job: String,
        /// Tool.
        tool: ToolId,
    },
    /// A running call became a job.
    JobPromoted {
        /// The call's operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Its id.
        job: String,
        /// The call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// Its cause: `user` or `auto_background_after`.
        by: String,
    },
    /// A job changed its state.
    JobChanged {
        /// The job as an operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Its id.
        job: String,
        /// Tool.
        tool: ToolId,
        /// The state.
        state: JobState,
    },
    /// A job ended.
    JobFinished {
        /// The job as an operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// Its id.
        job: String,
        /// Tool.
        tool: ToolId,
        /// Its last state.
        state: JobState,
        /// Kind of failure.
        error: Option<ErrorKind>,
        /// Redacted operator message.
        message: Option<String>,
        /// Microseconds since it was made.
        latency_us: u64,
    },
    /// A model request begins.
    ModelStarted {
        /// The operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// `provider/model`.
        model: String,
        /// Turn of the run, from 1.
        turn: u32,
        /// Wire names of the tools shown.
        shown: Vec<String>,
        /// Number of the tools that are declared and not shown.
        #[serde(default)]
        deferred: usize,
        /// How tools are exposed to the model, if chosen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exposure: Option<Exposure>,
    },
    /// A piece of the model's text.
    ModelText {
        /// Session.
        session: SessionId,
        /// The piece.
        text: String,
    },
    /// A model request waits in a queue.
    ModelWait {
        /// The operation.
        op: Op,
        /// `provider/model`.
        model: String,
        /// The queue.
        queue: String,
    },
    /// A wait of a model request is over, also when it ends in an error.
    ModelWaited {
        /// The operation.
        op: Op,
        /// `provider/model`.
        model: String,
        /// The queue.
        queue: String,
        /// Whether it got a slot.
        ok: bool,
        /// Microseconds.
        wait_us: u64,
    },
    /// An attempt at a model request failed and will be repeated.
    ModelRetried {
        /// The operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// `provider/model`.
        model: String,
        /// The attempt, from 1.
        attempt: u32,
        /// Kind of failure.
        error: ModelErrorKind,
        /// Redacted operator message.
        message: String,
        /// Microseconds, its wait included.
        latency_us: u64,
        /// Its usage.
        usage: Usage,
        /// Its cost in US dollars, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
        /// Milliseconds until the next.
        again_in_ms: u64,
    },
    /// A model request ended: complete, or with an error.
    ModelFinished {
        /// The operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// `provider/model`.
        model: String,
        /// The attempt at it, from 1.
        attempt: u32,
        /// Whether it succeeded.
        ok: bool,
        /// Kind of failure.
        error: Option<ModelErrorKind>,
        /// Redacted operator message.
        message: Option<String>,
        /// Why the model stopped.
        stop: Option<StopReason>,
        /// Microseconds.
        latency_us: u64,
        /// Its usage.
        usage: Usage,
        /// Its cost in US dollars, if the price is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
        /// Characters of the request.
        characters_in: u64,
        /// Characters of the answer.
        characters_out: u64,
    },
    /// Something failed and was replaced: by another model, or a simpler way.
    Fallback {
        /// The purpose, like `model` or `output__extract`.
        what: String,
        /// The one that failed.
        from: String,
        /// Its replacement.
        to: String,
        /// Why, redacted.
        reason: String,
    },
    /// A provider's tools or health changed.
    ProviderChanged {
        /// Provider.
        provider: String,
        /// Number of its tools in the snapshot.
        tools: usize,
        /// Its last error.
        error: Option<String>,
    },
    /// A foreign definition differs from its pin, or waits for its first approval. Sent once for each definition.
    PinNotice {
        /// Provider.
        provider: String,
        /// The tool.
        tool: ToolId,
        /// Its name at its source.
        raw_name: String,
        /// Whether the tool is withheld for that reason.
        withheld: bool,
        /// The message with the remedy; redacted.
        message: String,
        /// The changes, dangerous ones first; redacted.
        changes: Vec<Change>,
    },
    /// Something an operator should know.
    Warning {
        /// Stable code, like `output_schema_mismatch`.
        code: String,
        /// The message.
        message: String,
    },
}

impl Event {
    /// The operation it belongs to, if any.
    #[must_use]
    pub fn op(&self) -> Option<&Op> {
        match self {
            Self::RunStarted { op, .. }
            | Self::RunFinished { op, .. }
            | Self::ToolStarted { op, .. }
            | Self::ToolWait { op, .. }
            | Self::ToolWaited { op, .. }
            | Self::CacheHit { op, .. }
            | Self::ToolPartial { op, .. }
            | Self::ToolFinished { op, .. }
            | Self::LlmAttemptStarted { op, .. }
            | Self::LlmAttemptFinished { op, .. }
            | Self::LlmAttemptFailed { op, .. }
            | Self::ApprovalRequested { op, .. }
            | Self::ApprovalDecided { op, .. }
            | Self::Compacted { op, .. }
            | Self::JobStarted { op, .. }
            | Self::JobPromoted { op, .. }
            | Self::JobChanged { op, .. }
            | Self::JobFinished { op, .. }
            | Self::ModelStarted { op, .. }
            | Self::ModelWait { op, .. }
            | Self::ModelWaited { op, .. }
            | Self::ModelRetried { op, .. }
            | Self::ModelFinished { op, .. } => Some(op),
            Self::CallRepair { .. }
            | Self::BudgetExceeded { .. }
            | Self::ModelText { .. }
            | Self::Fallback { .. }
            | Self::ProviderChanged { .. }
            | Self::PinNotice { .. }
            | Self::Warning { .. } => None,
        }
    }

    /// Whether it belongs to the run `run` in the session `session`, or to no run, like notices of providers and
    /// warnings.
    #[must_use]
    pub fn concerns(&self, run: &str, session: &SessionId) -> bool {
        match self {
            Self::CallRepair { session: of, .. }
            | Self::BudgetExceeded { session: of, .. }
            | Self::ModelText { session: of, .. } => of == session,
            _ => self.op().is_none_or(|op| op.lineage.run.as_deref() == Some(run)),
        }
    }
}
