//! The one event enum. Observers read it; none can break a run.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arguments::Provenance;
use crate::error::ErrorKind;
use crate::model::Usage;
use crate::name::ToolId;
use crate::operation::Op;
use crate::repair::RepairRecord;
use crate::select::Exposure;
use crate::session::{CallId, SessionId};

/// Something that happened, for logs, consoles, ledgers and terminals. Events carry redacted text only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
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
        /// Redacted arguments.
        arguments: Value,
        /// What was done to name and arguments to get there, redacted.
        #[serde(default, skip_serializing_if = "Provenance::is_plain")]
        provenance: Provenance,
    },
    /// A model was asked to mend the arguments of a call.
    CallRepair {
        /// Session.
        session: SessionId,
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// What came of it, redacted.
        record: Box<RepairRecord>,
    },
    /// A call waits for a queue slot or a lock.
    ToolWait {
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// What for.
        queue: String,
    },
    /// A running tool reports progress or a part of its result.
    ToolPartial {
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// What it said.
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
        /// What was asked for, when the call never started.
        refused: Option<Refused>,
        /// Namespace.
        namespace: String,
        /// Whether it succeeded.
        ok: bool,
        /// Kind of failure.
        error: Option<ErrorKind>,
        /// Redacted operator message.
        message: Option<String>,
        /// Milliseconds from start to end.
        latency_ms: u64,
        /// Characters of arguments.
        characters_in: usize,
        /// Characters of result text after shaping.
        characters_out: usize,
    },
    /// A person is asked.
    ApprovalRequested {
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// Why.
        reason: String,
    },
    /// A person, or a rule, answered.
    ApprovalDecided {
        /// Call.
        call: CallId,
        /// Tool.
        tool: ToolId,
        /// `approve`, `always`, `deny`, `skip` or `later`.
        decision: String,
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
        /// How the catalogue is put before the model, where that was chosen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exposure: Option<Exposure>,
    },
    /// A piece of the model's text.
    ModelText {
        /// The piece.
        text: String,
    },
    /// A model request ended.
    ModelFinished {
        /// The operation.
        op: Op,
        /// Session.
        session: SessionId,
        /// `provider/model`.
        model: String,
        /// Whether it succeeded.
        ok: bool,
        /// Redacted operator message.
        message: Option<String>,
        /// Milliseconds.
        latency_ms: u64,
        /// What it used.
        usage: Usage,
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
    /// Something an operator should know.
    Warning {
        /// Stable code, like `output_schema_mismatch`.
        code: String,
        /// In words.
        message: String,
    },
}

/// A call that never started, as it was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The tool's name.
    pub name: String,
    /// Redacted arguments; null if they could not be read.
    pub arguments: Value,
}

/// A progress report or a piece of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partial {
    /// Progress, as MCP's `notifications/progress` gives it.
    Progress {
        /// How far.
        progress: f64,
        /// Of how much.
        total: Option<f64>,
        /// In words.
        message: Option<String>,
    },
    /// A piece of text.
    Text(String),
}

/// Where events go. `emit` never blocks and never fails: a full sink drops and counts.
pub trait EventSink: Send + Sync {
    /// Takes one event.
    fn emit(&self, event: Event);

    /// Whether anybody takes events: what is only made for them need not be made otherwise.
    fn is_observed(&self) -> bool {
        true
    }

    /// How many events were dropped because the sink was full.
    fn dropped(&self) -> u64 {
        0
    }
}

/// Drops everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn emit(&self, _event: Event) {}

    fn is_observed(&self) -> bool {
        false
    }
}
