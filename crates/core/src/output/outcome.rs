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

/// Key in the extras of an output or outcome that is none of its tool's: it says what became of the call in its place,
/// as `job`, `approval`, `step` or `skipped`. The tool's output schema does not hold for it.
pub const STANDS_IN: &str = "stands_in";

/// Key in the extras of an outcome whose output could not be kept under its path in the state: why.
pub const NOT_KEPT: &str = "state_error";

/// Key in the extras of an output or outcome whose structured result is not what its tool's output schema promises: an object
/// of the `path` in the result and a `message`.
pub const SCHEMA_MISMATCH: &str = "output_schema_mismatch";

/// What a provider returns for a call that reached it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolOutput {
    /// Content blocks, in order.
    pub content: Vec<ContentBlock>,
    /// Structured result, when the tool has an output schema.
    pub structured: Option<Value>,
    /// The tool ran and says that it failed (MCP `isError`); the content says why.
    pub is_error: bool,
    /// Uninterpreted metadata (MCP `_meta`), passed on.
    pub meta: Map<String, Value>,
    /// Facts for the operator (exit code, HTTP status, stored handle), never shown to the model by themselves.
    pub extras: Map<String, Value>,
    /// Untrusted tools that it came out of, beside those of the call's arguments: what a tool kept of an earlier call.
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

    /// What the output is as one value: the structured result, else its text, read as JSON if that is an object or an
    /// array, else the blocks that are no text.
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

/// A text as a value: what it says as JSON, if that is an object or an array.
#[must_use]
pub fn value_of_text(text: String) -> Value {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str(&text)
    {
        return value;
    }
    Value::String(text)
}

/// Whether the arguments were validated; the audit carries it.
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
    /// Content blocks after shaping. For a failed call: what the tool said, or the error's model message.
    pub content: Vec<ContentBlock>,
    /// Structured result.
    pub structured: Option<Value>,
    /// Why it failed.
    pub error: Option<ToolError>,
    /// From the start of the call to its end, waits included but for people's.
    pub latency: Duration,
    /// Whether its arguments were validated.
    pub validated: Validated,
    /// What was done to name and arguments before it ran, redacted.
    #[serde(default, skip_serializing_if = "Provenance::is_plain")]
    pub provenance: Provenance,
    /// The arguments that it ran with, redacted, if something was done to name or arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_with: Option<Value>,
    /// MCP `_meta`.
    pub meta: Map<String, Value>,
    /// Facts for the operator.
    pub extras: Map<String, Value>,
    /// Set when no result exists yet: a person must decide first. Such a
    /// call is executed again, with the decision, and then gets its one result.
    pub pending: Option<Box<ApprovalRequest>>,
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

    /// Why there is no value for the calls that refer to its result, as in `which failed`; `None`: there is one.
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

    /// What has happened: `done` and `failed` are the end of the call. `approval`: nothing has run, a job waits for a
    /// person's word; `job`: it goes on as one; `step`: it waits for input; `skipped`: its result was given in its place.
    #[must_use]
    pub fn status(&self) -> &str {
        // A step may be in the form of the tool's own results.
        let waits = || self.meta.get(JOB_META).is_some_and(|job| job["state"] == "waiting_input");
        match self.extras.get(STANDS_IN).and_then(Value::as_str) {
            _ if !self.ok => "failed",
            Some(what) => what,
            None if waits() => "step",
            None => "done",
        }
    }

    /// Whether something was cut out of what the tool gave; its extras say how much there was, and where it is kept.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.extras.contains_key(TOOL_OUTPUT) || self.extras.contains_key(CUT_BYTES)
    }

    /// The `call --json` contract: `{ok, status, content, text, structured?, error?, latency_ms, kind, namespace,
    /// extras}`, `truncated` where something was cut, and `provenance` where name or arguments were mended. `ok` says
    /// that nothing failed, `status` what has happened ([`Outcome::status`]).
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
