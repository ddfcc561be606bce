//! Whether a result is what its tool promised.

use serde_json::{Value, json};
use toolwright_core::catalogue::Entry;
use toolwright_core::definition::OnOutputMismatch;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::ToolOutput;

use super::Executor;

/// Code of the warning, and the extra that carries it.
const MISMATCH: &str = "output_schema_mismatch";

impl Executor {
    /// Checks the structured result of a tool with an output schema. What breaks it is told; it is an error where
    /// the definition says so. A failure need not fit the schema, and text is not parsed to find a result in it.
    pub(super) fn conform(&self, mut output: ToolOutput, entry: &Entry) -> Result<ToolOutput, ToolError> {
        if output.is_error {
            return Ok(output);
        }
        let Some((path, why)) = mismatch(output.structured.as_ref(), entry) else { return Ok(output) };
        let message = format!("the result of {} breaks its output schema at {path}: {why}", entry.id());
        let services = &self.options.services;
        let told = services.redactor.redact(&message).into_owned();
        services.events.emit(Event::Warning { code: MISMATCH.into(), message: told });
        if entry.definition().on_output_mismatch == OnOutputMismatch::Error {
            let model = format!("its result broke its output schema at {path}: {why}");
            return Err(ToolError::new(ErrorKind::ExecutionError, message).with_model_message(model));
        }
        output.extras.insert(MISMATCH.into(), json!({"path": path, "message": why}));
        Ok(output)
    }
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
