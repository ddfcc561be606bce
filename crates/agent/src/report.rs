//! The report of a run: its status, answer, calls and usage.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::arguments::Provenance;
use toolwright_core::context::Redactor;
use toolwright_core::error::ErrorKind;
use toolwright_core::model::Usage;
use toolwright_core::select::Choice;
use toolwright_core::{ApprovalRequest, Outcome};

use crate::run::TurnCall;
use crate::tools::{FINAL_REPORT_ID, FinalReport};

/// How the sentence begins that takes an answer's place.
pub(crate) const NO_ANSWER: &str = "There is no answer: ";

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The model gave its answer.
    Success,
    /// There is no answer: the model failed, refused or stayed silent.
    Failure,
    /// A limit or the loop guard ended it before the model was done, its answer was cut, or every call that it made failed
    /// or was denied.
    Partial,
    /// It was cancelled.
    Cancelled,
    /// It is not over: a person must decide first, and it can be resumed.
    Suspended,
}

impl Status {
    /// The status as it is written on the wire.
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
    /// The answer; of a run that did not get to one, what the model said last, or a sentence of ours.
    pub answer: String,
    /// Why the status is not `success`.
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
pub struct CallRecord {
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
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallFailure>,
    /// Milliseconds from start to end, waits included.
    pub latency_ms: u64,
}

impl CallRecord {
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
}

/// A call that waits for permission to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldCall {
    /// Its id, unique in the conversation.
    pub id: String,
    /// Wire name of the tool, or a stand-in for a name that no tool has.
    pub tool: String,
    /// Arguments as the model wrote them.
    pub arguments: Value,
}

impl HeldCall {
    pub(crate) fn of(call: &TurnCall) -> Option<Self> {
        let (id, tool) = (call.id.to_string(), call.wire_name.clone());
        call.is_held().then(|| Self { id, tool, arguments: call.argument_value() })
    }
}

/// The report of one task: from the user's message to the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// How it ended.
    pub status: Status,
    /// The answer, as in [`RunResult`]; empty while suspended.
    pub answer: String,
    /// Why the status is not `success`.
    pub reason: Option<String>,
    /// Model answers.
    pub turns: u32,
    /// Calls, in the order in which the model wrote them; failed and refused ones too.
    pub calls: Vec<CallRecord>,
    /// Tokens of all turns, and of a model that mended calls.
    pub usage: Usage,
    /// What a person must decide before a suspended run can go on.
    pub pending: Vec<ApprovalRequest>,
    /// What waits for leave to run; see [`crate::Dispatch::Manual`].
    pub held: Vec<HeldCall>,
    /// How the catalogue was put before the model, and why; `None` if it was never asked.
    pub exposure: Option<Choice>,
    /// The final report, where the run ended with one; `answer` is its text.
    pub final_report: Option<FinalReport>,
}

impl RunReport {
    /// Whether the answer came by a call, and not as text that was seen as it was written.
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        self.calls.iter().any(|call| call.ok && call.tool == FINAL_REPORT_ID)
    }

    /// Whether the model said anything: else the answer is a sentence of ours.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        !self.answer.is_empty() && !self.answer.starts_with(NO_ANSWER)
    }

    /// `{status, answer, turns, calls, usage}`, `exposure` and `exposure_reason` if the model was asked, `reason`,
    /// `pending` and `held` where there are any, and of a final report `format`, `content` or `content_json`,
    /// `metadata` and `warnings`.
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
            if let Some(reason) = &self.reason {
                object.insert("reason".into(), json!(reason));
            }
            if !self.pending.is_empty() {
                object.insert("pending".into(), json!(self.pending));
            }
            if let Some(Choice { exposure, reason }) = &self.exposure {
                object.insert("exposure".into(), json!(exposure));
                object.insert("exposure_reason".into(), json!(reason));
            }
            if !self.held.is_empty() {
                object.insert("held".into(), json!(self.held));
            }
            if let Some(Value::Object(mut report)) = self.final_report.as_ref().map(|report| json!(report)) {
                // How the run ended is more than what the model said of it.
                report.remove("status");
                object.extend(report);
            }
        }
        value
    }

    /// The report with secrets redacted, for use outside the process.
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
        self.pending = self.pending.into_iter().map(ApprovalRequest::only_shown).collect();
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
