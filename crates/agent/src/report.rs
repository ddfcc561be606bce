//! The report of a run: its status, answer, calls and usage.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::arguments::Provenance;
use toolwright_core::context::Redactor;
use toolwright_core::error::ErrorKind;
use toolwright_core::exposure::ChosenExposure;
use toolwright_core::model::{Citation, NativeUse, Usage};
use toolwright_core::{ApprovalRequest, Outcome};

pub use crate::final_report::{FINAL_REPORT_ID, FinalReport, Format, ReportConfig};

/// The beginning of the sentence that replaces a missing answer.
pub(crate) const NO_ANSWER: &str = "There is no answer: ";

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The model gave its answer.
    Success,
    /// There is no answer: the model failed, refused or gave an empty answer.
    Failure,
    /// A limit or the loop guard ended it early, its answer was cut, or every call failed or was denied.
    Partial,
    /// It was cancelled.
    Cancelled,
    /// It is not over: a person must decide first, and it can be resumed.
    Suspended,
}

impl Status {
    /// Returns the name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Partial => "partial",
            Self::Cancelled => "cancelled",
            Self::Suspended => "suspended",
        }
    }
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResult {
    /// How it ended.
    pub status: Status,
    /// The answer; without one, the model's last text, or a sentence by Toolwright.
    pub answer: String,
    /// The reason if the status is not `success`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A call's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFailure {
    /// The kind of the failure.
    pub kind: ErrorKind,
    /// The message for the operator.
    pub message: String,
}

/// One call of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportedCall {
    /// Its id, unique in the conversation.
    pub id: String,
    /// Canonical id of the tool, or the name as written if no such tool exists.
    pub tool: String,
    /// Arguments as the model wrote them.
    pub arguments: Value,
    /// The arguments that it ran with, if they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_with: Option<Value>,
    /// How the name and the arguments were changed.
    #[serde(default, skip_serializing_if = "Provenance::is_plain")]
    pub provenance: Provenance,
    /// Whether it succeeded.
    pub ok: bool,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallFailure>,
    /// Milliseconds from start to end, including waits.
    pub latency_ms: u64,
}

impl ReportedCall {
    pub(crate) fn new(id: &str, written: &str, arguments: Value, outcome: &Outcome) -> Self {
        Self {
            id: id.to_owned(),
            tool: outcome.tool.as_ref().map_or_else(|| written.to_owned(), ToString::to_string),
            ran_with: outcome.ran_with.clone().filter(|ran_with| *ran_with != arguments),
            arguments,
            provenance: outcome.provenance.clone(),
            ok: outcome.ok,
            error: outcome.error.as_ref().map(|e| CallFailure { kind: e.kind(), message: e.message().to_owned() }),
            latency_ms: u64::try_from(outcome.latency.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Returns a use of a tool that the model's provider ran itself.
    pub(crate) fn native(used: &NativeUse) -> Self {
        let failed = || CallFailure {
            kind: ErrorKind::ExecutionError,
            message: "the model's provider reports that it failed".to_owned(),
        };
        Self {
            id: used.id.clone(),
            tool: used.tool.id().to_owned(),
            arguments: used.input.clone(),
            ran_with: None,
            provenance: Provenance::default(),
            ok: used.ok,
            error: (!used.ok).then(failed),
            latency_ms: 0,
        }
    }
}

/// A file that a tool of the model's provider created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducedFile {
    /// The provider's name for it; may be empty.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Handle of the stored file; `None` if it stays at the provider or could not be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// Its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A call that waits for permission to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldCall {
    /// Its id, unique in the conversation.
    pub id: String,
    /// Wire name of the tool, or a legal form of a name that no tool has.
    pub tool: String,
    /// Arguments as the model wrote them.
    pub arguments: Value,
    /// The present decision about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<HeldCallDecision>,
}

/// The decision of check and policy about a call before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCallDecision {
    /// `allow`, `ask` or `deny` by the policy; `invalid` if the check rejects it.
    pub effect: String,
    /// The reason.
    pub reason: String,
}

/// The report of one task: from the user's message to the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// How it ended.
    pub status: Status,
    /// The answer, as in [`RunResult`]; empty while suspended.
    pub answer: String,
    /// The reason if the status is not `success`.
    pub reason: Option<String>,
    /// Model answers.
    pub turns: u32,
    /// Calls in the order in which the model wrote them, including failed and refused ones.
    pub calls: Vec<ReportedCall>,
    /// Tokens of all turns, of repairs and of the calls' requests to models, including those of started agents.
    pub usage: Usage,
    /// Its cost in US dollars; `None` if a price is unknown.
    pub cost_usd: Option<f64>,
    /// The questions that a person must decide before a suspended run can continue.
    pub pending: Vec<ApprovalRequest>,
    /// The calls that wait for permission to run; see [`crate::Dispatch::Manual`].
    pub held: Vec<HeldCall>,
    /// How the model was shown the catalogue, and why; `None` if it was never asked.
    pub exposure: Option<ChosenExposure>,
    /// The final report, if the run ended with one; `answer` is its text.
    pub final_report: Option<FinalReport>,
    /// The background agents of the run that had not ended with it.
    pub children: Vec<UnfinishedChild>,
    /// The sources that answers cite.
    pub sources: Vec<Citation>,
    /// The files that tools of the model's provider created.
    pub files: Vec<ProducedFile>,
}

/// The fate of an agent that was still running when its starting run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedChild {
    /// Its name.
    pub agent: String,
    /// Its job.
    pub job: String,
    /// Its fate.
    pub end: ChildEnd,
}

/// The fate of an agent that still ran at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildEnd {
    /// It was cancelled.
    Cancelled,
    /// It goes on without the run, in a process that lives.
    Detached,
}

impl RunReport {
    /// Returns whether the answer was given by a call, and not as streamed text.
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        self.calls.iter().any(|call| call.ok && call.tool == FINAL_REPORT_ID)
    }

    /// Returns whether the model gave any text. Otherwise the answer is a sentence by Toolwright.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        !self.answer.is_empty() && !self.answer.starts_with(NO_ANSWER)
    }

    /// `{status, answer, turns, calls, usage}`; `cost_usd` if known; `exposure` and `exposure_reason` if the model was
    /// asked; `reason`, `pending`, `held` and `children` if not empty; with a final report `format`, `content` or
    /// `content_json`, `metadata` and `warnings`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "status": self.status,
            "answer": self.answer,
            "turns": self.turns,
            "calls": self.calls,
            "usage": self.usage,
        });
        if let Some(object) = value.as_object_mut() {
            if let Some(usd) = self.cost_usd {
                object.insert("cost_usd".into(), json!(usd));
            }
            if let Some(reason) = &self.reason {
                object.insert("reason".into(), json!(reason));
            }
            if !self.pending.is_empty() {
                object.insert("pending".into(), json!(self.pending));
            }
            if let Some(ChosenExposure { exposure, reason }) = &self.exposure {
                object.insert("exposure".into(), json!(exposure));
                object.insert("exposure_reason".into(), json!(reason));
            }
            if !self.sources.is_empty() {
                object.insert("sources".into(), json!(self.sources));
            }
            if !self.files.is_empty() {
                object.insert("files".into(), json!(self.files));
            }
            if !self.held.is_empty() {
                object.insert("held".into(), json!(self.held));
            }
            if !self.children.is_empty() {
                object.insert("children".into(), json!(self.children));
            }
            if let Some(Value::Object(mut report)) = self.final_report.as_ref().map(|report| json!(report)) {
                // The status of the run counts, not that of the model's report.
                report.remove("status");
                object.extend(report);
            }
        }
        value
    }

    /// Returns the report with secrets redacted, for use outside the process.
    #[must_use]
    pub(crate) fn redacted(mut self, redactor: &dyn Redactor) -> Self {
        let clean = |text: &mut String| {
            if let std::borrow::Cow::Owned(redacted) = redactor.redact(text) {
                *text = redacted;
            }
        };
        clean(&mut self.answer);
        self.reason.iter_mut().for_each(clean);
        for call in &mut self.calls {
            call.arguments = redactor.redact_value(&call.arguments);
            call.ran_with = call.ran_with.take().map(|ran_with| redactor.redact_value(&ran_with));
            call.error.iter_mut().for_each(|error| clean(&mut error.message));
        }
        self.pending = self.pending.into_iter().map(ApprovalRequest::for_display).collect();
        for call in &mut self.held {
            call.arguments = redactor.redact_value(&call.arguments);
        }
        if let Some(report) = &mut self.final_report {
            report.content.iter_mut().for_each(clean);
            report.content_json = report.content_json.take().map(|value| redactor.redact_value(&value));
            report.metadata.values_mut().for_each(|value| *value = redactor.redact_value(value));
            report.warnings.iter_mut().for_each(clean);
        }
        self
    }
}
