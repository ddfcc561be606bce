//! Defines the [`Outcome`] of a call. Each call has exactly one, whatever happens.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::provenance::Provenance;
use crate::approval::ApprovalRequest;
use crate::content::{ContentBlock, joined_text, text_for_model};
use crate::definition::ProviderKind;
use crate::error::ToolError;
use crate::identity::session::CallId;
use crate::identity::taint::Taint;
use crate::identity::tool_id::ToolId;
use crate::output::{CUT_BYTES, TOOL_OUTPUT};

/// Key in the `meta` of a result: the job that the call has become.
pub const JOB_META: &str = "toolwright/job";

/// Key in the extras of an output or outcome that replaces the tool's own and says what became of the call:
/// `job`, `approval`, `step` or `skipped`. The tool's output schema does not apply to it.
pub const STANDS_IN: &str = "stands_in";

/// Key in the extras of an outcome whose output could not be written to the state; the reason.
pub const NOT_KEPT: &str = "state_error";

/// Key in the extras of an output or outcome whose structured result breaks the tool's output schema: an object
/// of the `path` in the result and a `message`.
pub const SCHEMA_MISMATCH: &str = "output_schema_mismatch";

/// A provider's result of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolOutput {
    /// Content blocks, in order.
    pub content: Vec<ContentBlock>,
    /// Structured result, when the tool has an output schema.
    pub structured: Option<Value>,
    /// The tool ran and reports failure (MCP `isError`); the content says why.
    pub is_error: bool,
    /// Uninterpreted metadata (MCP `_meta`), passed on.
    pub meta: Map<String, Value>,
    /// Facts for the operator (exit code, HTTP status, stored handle), never shown to the model by themselves.
    pub extras: Map<String, Value>,
    /// Untrusted tools of the output besides those of the call's arguments: from stored results of earlier calls.
    #[serde(skip_serializing_if = "Taint::is_empty")]
    pub taint: Taint,
}

impl ToolOutput {
    /// A single text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![ContentBlock::text(text)], ..Self::default() }
    }

    /// A failure the tool itself reports, as a single text block.
    pub fn failure(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// Returns the output as one value: the structured result; else its text, parsed as JSON if that is an object or an
    /// array; else the blocks other than text.
    #[must_use]
    pub fn value(&self) -> Value {
        if let Some(structured) = &self.structured {
            return structured.clone();
        }
        let text = joined_text(&self.content);
        if text.is_empty() && !self.content.is_empty() {
            return json!(self.content);
        }
        value_of_text(text)
    }

    /// Adds a fact for the operator.
    #[must_use]
    pub fn with_extra(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extras.insert(key.to_owned(), value.into());
        self
    }
}

/// Converts a text to a value: parsed as JSON if that is an object or an array.
#[must_use]
pub fn value_of_text(text: String) -> Value {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str(&text)
    {
        return value;
    }
    Value::String(text)
}

/// Whether the arguments were validated; recorded in the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validated(pub bool);

/// The end of one call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// The call.
    pub call_id: CallId,
    /// The tool it ran on, if it was found.
    pub tool: Option<ToolId>,
    /// Kind of its provider; `None` for an unknown tool.
    pub kind: Option<ProviderKind>,
    /// Namespace of the tool, empty for an unknown one.
    pub namespace: String,
    /// Whether it succeeded.
    pub ok: bool,
    /// Content blocks after shaping. For a failed call: the tool's text, or the error's model message.
    pub content: Vec<ContentBlock>,
    /// Structured result.
    pub structured: Option<Value>,
    /// Why it failed.
    pub error: Option<ToolError>,
    /// From start to end, including waits except those for people.
    pub latency: Duration,
    /// Whether its arguments were validated.
    pub validated: Validated,
    /// Changes made to name and arguments by the check, redacted.
    #[serde(default, skip_serializing_if = "Provenance::is_plain")]
    pub provenance: Provenance,
    /// The arguments that it ran with, redacted, if something was done to name or arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_with: Option<Value>,
    /// MCP `_meta`.
    pub meta: Map<String, Value>,
    /// Facts for the operator.
    pub extras: Map<String, Value>,
    /// Set if there is no result yet, because a person must decide first. The call
    /// is executed again with the decision, and then gets its only result.
    pub pending: Option<Box<ApprovalRequest>>,
    /// Whether the end of the program cut the call off, and it may run again: its run leaves it open, so that the next
    /// process runs it.
    #[serde(skip)]
    pub is_left: bool,
}

impl Outcome {
    /// A call that failed before or while it ran; the content is the error's model message.
    #[must_use]
    pub fn failed(call_id: CallId, error: ToolError) -> Self {
        Self {
            call_id,
            tool: None,
            kind: None,
            namespace: String::new(),
            ok: false,
            content: vec![ContentBlock::text(error.for_model())],
            structured: None,
            error: Some(error),
            latency: Duration::ZERO,
            validated: Validated(false),
            provenance: Provenance::default(),
            ran_with: None,
            meta: Map::new(),
            extras: Map::new(),
            pending: None,
            is_left: false,
        }
    }

    /// Its text blocks, joined.
    #[must_use]
    pub fn text(&self) -> String {
        joined_text(&self.content)
    }

    /// Everything as text, other blocks by an honest note.
    #[must_use]
    pub fn model_text(&self) -> String {
        text_for_model(&self.content)
    }

    /// Why there is no value for calls that refer to its result, as in `which failed`; `None` if there is one.
    #[must_use]
    pub fn no_value(&self) -> Option<&'static str> {
        match self.extras.get(STANDS_IN).and_then(Value::as_str) {
            _ if !self.ok => Some("which failed"),
            Some("job") => Some("which goes on as a job"),
            Some("approval") => Some("which waits for a person"),
            Some("skipped") => Some("which was skipped"),
            Some(_) => Some("which has no result yet"),
            None => self.extras.contains_key(NOT_KEPT).then_some("which was not kept"),
        }
    }

    /// The state of the call: `done` and `failed` are final. `approval`: nothing has run, a job waits for a
    /// person's decision; `job`: it continues as a job; `step`: it waits for input; `skipped`: the caller gave its
    /// result.
    #[must_use]
    pub fn status(&self) -> &str {
        // A step may have the form of the tool's own results.
        let waits = || self.meta.get(JOB_META).is_some_and(|job| job["state"] == "waiting_input");
        match self.extras.get(STANDS_IN).and_then(Value::as_str) {
            _ if !self.ok => "failed",
            Some(what) => what,
            None if waits() => "step",
            None => "done",
        }
    }

    /// Whether the tool's output was cut; the extras have its size, and where it is stored.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.extras.contains_key(TOOL_OUTPUT) || self.extras.contains_key(CUT_BYTES)
    }

    /// The `call --json` contract: `{ok, status, content, text, structured?, error?, latency_ms, kind, namespace,
    /// extras}`, `truncated` after a cut, and `provenance` after repairs of name or arguments. `ok` says
    /// that nothing failed, `status` is [`Outcome::status`].
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "ok": self.ok,
            "status": self.status(),
            "content": self.content,
            "text": self.text(),
            "latency_ms": u64::try_from(self.latency.as_millis()).unwrap_or(u64::MAX),
            "kind": self.kind,
            "namespace": self.namespace,
            "extras": self.extras,
        });
        if let Some(object) = value.as_object_mut() {
            if self.is_truncated() {
                object.insert("truncated".into(), json!(true));
            }
            if let Some(structured) = &self.structured {
                object.insert("structured".into(), structured.clone());
            }
            if !self.provenance.is_plain() {
                object.insert("provenance".into(), json!(self.provenance));
            }
            if let Some(error) = &self.error {
                object.insert("error".into(), json!({"kind": error.kind(), "message": error.message()}));
            }
        }
        value
    }
}
