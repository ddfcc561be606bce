//! The report of a run: its status, answer, calls and usage; and the final report by which a model may give its answer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolwright_core::arguments::{Provenance, fit};
use toolwright_core::context::Redactor;
use toolwright_core::error::ErrorKind;
use toolwright_core::exposure::ChosenExposure;
use toolwright_core::json::repair;
use toolwright_core::model::{Citation, NativeUse, Usage};
use toolwright_core::schema::{CompiledSchema, SchemaError, Violation};
use toolwright_core::{ApprovalRequest, Outcome};

/// Id of the tool that ends a run.
pub const FINAL_REPORT_ID: &str = "agent:final_report@1.0.0";
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

/// Maximum violations of an output schema in a message to the model.
const MAX_VIOLATIONS: usize = 10;

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Plain text.
    #[default]
    Text,
    /// Markdown.
    Markdown,
    /// A JSON value.
    Json,
    /// Text for a terminal, with ANSI colours at most.
    Tty,
    /// Slack's own markup.
    Slack,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Text, Self::Markdown, Self::Json, Self::Tty, Self::Slack];

    /// Returns the name of the format.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Markdown => "markdown",
            Self::Json => "json",
            Self::Tty => "tty",
            Self::Slack => "slack",
        }
    }

    fn of(written: &str) -> Option<Self> {
        let written = written.trim();
        Self::ALL.into_iter().find(|format| format.as_str().eq_ignore_ascii_case(written))
    }
}

/// The report with which a run must end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportConfig {
    format: Format,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
}

impl ReportConfig {
    /// A report in `format`.
    #[must_use]
    pub fn in_format(format: Format) -> Self {
        Self { format, schema: None }
    }

    /// A report in JSON that `schema` describes.
    ///
    /// # Errors
    /// [`SchemaError`] if the schema does not compile.
    pub fn by_schema(schema: Value) -> Result<Self, SchemaError> {
        CompiledSchema::compile(&schema)?;
        Ok(Self { format: Format::Json, schema: Some(schema) })
    }

    /// Returns the format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the JSON Schema of its content.
    #[must_use]
    pub fn schema(&self) -> Option<&Value> {
        self.schema.as_ref()
    }
}

/// An accepted final report: `content_json` for JSON, `content` for every other format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinalReport {
    /// `success`, `failure` or `partial`.
    pub status: Status,
    /// The format.
    pub format: Format,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_json: Option<Value>,
    /// Further data from the model.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Conversions of content that did not have the requested form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl FinalReport {
    /// Returns the content as text.
    #[must_use]
    pub fn text(&self) -> String {
        match (&self.content, &self.content_json) {
            (Some(content), _) => content.clone(),
            (None, Some(value)) => format!("{value:#}"),
            (None, None) => String::new(),
        }
    }

    /// Reads the report in the arguments of a call. Without `config`, any format is accepted.
    ///
    /// # Errors
    /// The reason why they contain no report, and what to write instead.
    pub(crate) fn accept(arguments: &Value, config: Option<&ReportConfig>) -> Result<Self, String> {
        let status = match arguments.get("status").and_then(Value::as_str) {
            Some("failure") => Status::Failure,
            Some("partial") => Status::Partial,
            _ => Status::Success,
        };
        let mut warnings = Vec::new();
        let written = arguments.get("format").and_then(Value::as_str);
        let given = written.and_then(Format::of);
        let format = config.map(|config| config.format).or(given).unwrap_or_default();
        if let Some(written) = written.filter(|_| given != Some(format)) {
            warnings.push(format!("the format {written:?} was taken for {}", format.as_str()));
        }
        let member = |name: &str| arguments.get(name).filter(|value| !value.is_null());
        let (content, json) = (member("content"), member("content_json"));
        let (content, content_json) = match format {
            Format::Json => {
                let value = match (json, content) {
                    (Some(value), _) => value,
                    (None, Some(value)) => {
                        warnings.push("`content` was taken for `content_json`".into());
                        value
                    }
                    (None, None) => return Err("the report needs `content_json`: the value itself, not a text".into()),
                };
                let schema = config.and_then(ReportConfig::schema);
                (None, Some(fitted(value, schema, &mut warnings)?))
            }
            _ => (Some(text(content, json, &mut warnings)?), None),
        };
        let metadata = member("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
        Ok(Self { status, format, content, content_json, metadata, warnings })
    }

    /// Reads the report in an answer in plain text.
    ///
    /// # Errors
    /// The reason why it contains no report, and what to write instead.
    pub(crate) fn from_text(answer: &str, config: &ReportConfig) -> Result<Self, String> {
        let member = if config.format == Format::Json { "content_json" } else { "content" };
        let mut report = Self::accept(&json!({ member: answer }), Some(config))?;
        // Warnings about fields of a call do not apply.
        report.warnings = vec!["the model answered in text; it was taken for its report".into()];
        Ok(report)
    }
}

/// Returns the text of a report.
fn text(content: Option<&Value>, json: Option<&Value>, warnings: &mut Vec<String>) -> Result<String, String> {
    let written = |value: &Value| value.as_str().map_or_else(|| format!("{value:#}"), str::to_owned);
    let text = match (content, json) {
        (Some(Value::String(text)), _) => text.clone(),
        (Some(value), _) => {
            warnings.push("`content` was no text; its JSON was taken".into());
            written(value)
        }
        (None, Some(value)) => {
            warnings.push("`content_json` was taken for `content`".into());
            written(value)
        }
        (None, None) => String::new(),
    };
    if text.trim().is_empty() {
        return Err("the report needs `content`: its text".into());
    }
    Ok(text)
}

/// Returns the value of a report, fitted to the schema.
fn fitted(written: &Value, schema: Option<&Value>, warnings: &mut Vec<String>) -> Result<Value, String> {
    let schema = schema.map(CompiledSchema::compile).transpose();
    let schema = schema.map_err(|error| format!("the output schema of this run cannot be used: {error}"))?;
    let value = match written {
        // A text that the schema accepts stays a text.
        Value::String(text) if !schema.as_ref().is_some_and(|schema| schema.is_valid(written)) => {
            let read = repair(text).map_err(|error| format!("the report is not JSON: {error}"))?;
            if read.cut.is_some() || !(read.value.is_object() || read.value.is_array() || schema.is_some()) {
                return Err("the report is not whole JSON: write one JSON value".into());
            }
            warnings.push("`content_json` was a text that holds JSON".into());
            read.value
        }
        other => other.clone(),
    };
    let Some(schema) = schema else { return Ok(value) };
    let fitted = fit(&schema, value, Provenance::default());
    if fitted.violations.is_empty() {
        return Ok(fitted.arguments);
    }
    let shown: Vec<String> = fitted.violations.iter().take(MAX_VIOLATIONS).map(Violation::to_string).collect();
    Err(format!("the report does not fit its schema: {}", shown.join("; ")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a specification by its format, or by one of two schemas.
    pub(crate) fn report_config(format: &str) -> Option<ReportConfig> {
        match format {
            "" => None,
            "schema" => {
                let schema = json!({
                    "type": "object",
                    "properties": {"n": {"type": "integer"}, "s": {"$ref": "#/$defs/s"}},
                    "required": ["n"],
                    "$defs": {"s": {"type": "string"}},
                });
                Some(ReportConfig::by_schema(schema).expect("schema"))
            }
            "text schema" => Some(ReportConfig::by_schema(json!({"type": "string"})).expect("schema")),
            other => serde_json::from_value(json!({"format": other})).expect("format"),
        }
    }

    /// `expect`: the content and the number of warnings, or a part of the refusal.
    fn check(asked: &str, arguments: Value, expect: Result<(Value, usize), &str>) {
        let config = report_config(asked);
        match (FinalReport::accept(&arguments, config.as_ref()), expect) {
            (Ok(report), Ok((content, warnings))) => {
                let is_json = report.format == Format::Json;
                assert_eq!(
                    (report.content.is_none(), report.content_json.is_some()),
                    (is_json, is_json),
                    "{arguments}"
                );
                assert_eq!(report.content_json.unwrap_or_else(|| json!(report.content)), content, "{arguments}");
                assert_eq!(report.warnings.len(), warnings, "{arguments}: {:?}", report.warnings);
            }
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (found, expect) => panic!("{asked} {arguments}: {found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn a_report_is_converted_to_the_requested_form() {
        check("", json!({"content": "x"}), Ok((json!("x"), 0)));
        check("", json!({"format": "json", "content_json": [1]}), Ok((json!([1]), 0)));
        check("", json!({"format": "poem", "content": "x"}), Ok((json!("x"), 1)));
        check("markdown", json!({"format": "markdown", "content": "x"}), Ok((json!("x"), 0)));
        check("markdown", json!({"format": "json", "content_json": {"a": 1}}), Ok((json!("{\n  \"a\": 1\n}"), 2)));
        check("slack", json!({"format": "Slack", "content": 7}), Ok((json!("7"), 1)));
        check("tty", json!({"content": " "}), Err("needs `content`"));
        check("json", json!({"format": "json", "content_json": {"a": 1}}), Ok((json!({"a": 1}), 0)));
        check("json", json!({"format": "text", "content": "{\"a\": 1}"}), Ok((json!({"a": 1}), 3)));
        check("json", json!({"content": "just words"}), Err("not whole JSON"));
        check("json", json!({"content_json": "{\"a\": [1"}), Err("not whole JSON"));
        check("json", json!({"content_json": null}), Err("needs `content_json`"));
        check("schema", json!({"content_json": {"n": 1}}), Ok((json!({"n": 1}), 0)));
        check("schema", json!({"content_json": {"n": "1"}}), Ok((json!({"n": 1}), 0)));
        check("schema", json!({"content_json": {"n": "one"}}), Err("/n"));
        check("schema", json!({"content_json": {}}), Err("n"));
        check("text schema", json!({"content_json": "{1"}), Ok((json!("{1"), 0)));
    }

    #[test]
    fn a_report_keeps_its_status() {
        for (written, status) in
            [("success", Status::Success), ("failure", Status::Failure), ("partial", Status::Partial)]
        {
            let report = FinalReport::accept(&json!({"status": written, "content": "x"}), None).expect("report");
            assert_eq!((report.status, json!(report.status)), (status, json!(written)));
        }
    }
}
