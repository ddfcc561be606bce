//! `output:read`, `output:grep` and `output:extract`: read results that were too large for the conversation.

mod extract;
mod grep;
mod read;

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::store::StoreError;
use toolwright_core::tool::Tool;

pub(super) fn tools() -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(read::Read), Arc::new(grep::Grep), Arc::new(extract::Extract)]
}

fn handle_schema() -> Value {
    json!({"type": "string", "minLength": 1, "description": "The handle, as the shortened result names it."})
}

/// Returns the result for an unreadable handle. An unknown handle is not a failure, because a model that guessed it or
/// kept an old one should continue without an apology.
fn unreadable(handle: &str, error: StoreError) -> Result<ToolOutput, ToolError> {
    match error {
        StoreError::NotFound(_) => Ok(ToolOutput::text(unknown(handle))),
        StoreError::Binary { media_type, bytes } => Ok(ToolOutput::text(binary(handle, &media_type, bytes))),
        error => Err(error.into()),
    }
}

fn unknown(handle: &str) -> String {
    let shown: String = handle.chars().take(100).collect();
    format!(
        "There is no stored output `{shown}` in this session. A handle is copied from the result that was \
         shortened; it belongs to one session and expires. Call the tool again for a fresh result."
    )
}

fn binary(handle: &str, media_type: &str, bytes: u64) -> String {
    format!("The stored output {handle} is binary ({media_type}, {bytes} bytes): it cannot be shown as text.")
}
