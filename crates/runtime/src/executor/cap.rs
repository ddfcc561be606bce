//! The cap on what goes back: what is over it is stored, and a handle takes its place.

use std::time::Duration;

use toolwright_core::arguments::Provenance;
use toolwright_core::catalogue::Entry;
use toolwright_core::content::ContentBlock;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::{Outcome, ToolOutput, Validated};
use toolwright_core::output::{countable_text, head_and_tail, stored_message, stored_note, text_bytes};
use toolwright_core::session::CallId;

use super::{Executor, RunContext};

impl Executor {
    /// The cap on the text of a tool's results, in bytes.
    pub(super) fn max_output(&self, entry: &Entry) -> usize {
        entry.definition().max_output.unwrap_or(self.options.max_output)
    }

    /// Caps the text of an output: over the limit it goes to the output store and a message with its
    /// handle takes its place; other blocks and the structured result pass.
    pub(super) async fn cap(&self, id: CallId, output: ToolOutput, entry: &Entry, run: &RunContext) -> Outcome {
        let ToolOutput { mut content, structured, is_error, meta, mut extras } = output;
        let max = self.max_output(entry);
        if text_bytes(&content) > max {
            let text = countable_text(&content);
            let shown = match self.options.services.outputs.put(&run.session.id, text.as_bytes()).await {
                Ok(stored) => {
                    extras.insert("tool_output".into(), stored_note(&stored));
                    stored_message(&stored, &text, max)
                }
                Err(error) => {
                    tracing::warn!(tool = %entry.id(), "a large output was cut, not stored: {error}");
                    head_and_tail(&text, max)
                }
            };
            content.retain(|block| !matches!(block, ContentBlock::Text { .. } | ContentBlock::Resource { .. }));
            content.insert(0, ContentBlock::text(shown));
        }
        let error = is_error.then(|| ToolError::new(ErrorKind::ExecutionError, failure_text(&content, entry)));
        Outcome {
            call_id: id,
            tool: None,
            kind: None,
            namespace: String::new(),
            ok: error.is_none(),
            content,
            structured,
            error,
            latency: Duration::ZERO,
            validated: Validated(false),
            provenance: Provenance::default(),
            ran_with: None,
            meta,
            extras,
            pending: None,
        }
    }
}

fn failure_text(content: &[ContentBlock], entry: &Entry) -> String {
    let text = toolwright_core::content::joined_text(content);
    if text.is_empty() { format!("{} failed without saying why", entry.id()) } else { head_and_tail(&text, 600) }
}
