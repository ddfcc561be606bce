//! Validates a result against the tool's output schema.

use serde_json::{Value, json};
use toolwright_core::catalogue::{Entry, ProviderKind};
use toolwright_core::definition::OnOutputMismatch;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::{SCHEMA_MISMATCH, STANDS_IN, ToolOutput};
use toolwright_core::schema::wrapped;

use super::Executor;

impl Executor {
    /// Checks the structured result of a tool with an output schema. What breaks it is told; it is an error where
    /// the definition says so. A failure need not fit the schema, nor what stands in the place of a result; text is not
    /// parsed to find one in it.
    pub(super) fn conform(&self, mut output: ToolOutput, entry: &Entry) -> Result<ToolOutput, ToolError> {
        if output.is_error || output.extras.contains_key(STANDS_IN) {
            return Ok(output);
        }
        if entry.provider.kind() == ProviderKind::Mcp {
            output.structured = output.structured.map(|value| as_listed(value, entry));
        }
        let Some((path, why)) = mismatch(output.structured.as_ref(), entry) else { return Ok(output) };
        let message = format!("the result of {} breaks its output schema at {path}: {why}", entry.id());
        let services = &self.options.services;
        let told = services.redactor.redact(&message).into_owned();
        services.events.emit(Event::Warning { code: SCHEMA_MISMATCH.into(), message: told });
        if entry.definition().on_output_mismatch == OnOutputMismatch::Error {
            let model = format!("its result broke its output schema at {path}: {why}");
            return Err(ToolError::new(ErrorKind::ExecutionError, message).with_model_message(model));
        }
        output.extras.insert(SCHEMA_MISMATCH.into(), json!({"path": path, "message": why}));
        Ok(output)
    }
}

/// A server's result in the form of the output schema that it listed. One that speaks both generations puts what is no
/// object inside one for the older, schema and result alike; but the list may have come over one connection and the
/// result over another.
fn as_listed(value: Value, entry: &Entry) -> Value {
    let (Some(listed), Ok(Some(schema))) = (&entry.definition().output_schema, entry.tool.output_schema()) else {
        return value;
    };
    let is_around = wrapped::is_around(listed);
    if (wrapped::is_of_object(listed) && !is_around) || schema.is_valid(&value) {
        return value;
    }
    let other = if is_around { Some(wrapped::around(value.clone())) } else { wrapped::inside(&value).cloned() };
    other.filter(|other| schema.is_valid(other)).unwrap_or(value)
}

/// The first place where a result breaks its schema, and how. A schema that does not compile is broken by nothing.
fn mismatch(structured: Option<&Value>, entry: &Entry) -> Option<(String, String)> {
    let schema = entry.tool.output_schema().ok()??;
    let Some(value) = structured else {
        return Some(("(root)".into(), "there is no structured result".into()));
    };
    if schema.is_valid(value) {
        return None;
    }
    let first = schema.violations(value).into_iter().next()?;
    let path = if first.path.is_empty() { "(root)".into() } else { first.path };
    Some((path, first.message))
}
