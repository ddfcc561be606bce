//! `output:read`: reading on in a result that was too large for the conversation.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::StoreError;
use toolwright_core::tool::Tool;

use super::{define, parse};

/// Bytes one call may ask for.
const MAX_LIMIT: usize = 64 * 1024;
/// Bytes the closing note may take.
const NOTE_ROOM: usize = 512;

pub(super) struct Read;

#[derive(Deserialize)]
struct Arguments {
    handle: String,
    offset: u64,
    limit: usize,
}

#[async_trait]
impl Tool for Read {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "output:read@1.0.0",
            "Read stored output",
            "Reads a part of a tool result that was too large to show and was stored under a handle. \
             The end of the answer says how to read on.",
            Effects::READ,
            json!({
                "handle": {"type": "string", "minLength": 1, "description": "The handle, as the shortened result names it."},
                "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Byte to start at."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 8192, "description": "Bytes to read at most."},
            }),
            &["handle"],
        );
        // The caller chose the size: a slice must not be stored as yet another output.
        definition.max_output = Some(MAX_LIMIT + NOTE_ROOM);
        definition.examples = vec![json!({"handle": "session-…/…", "offset": 8192})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { handle, offset, limit } = parse(arguments)?;
        let slice = match context.services.outputs.read(&context.session.id, &handle, offset, limit).await {
            Ok(slice) => slice,
            Err(StoreError::NotFound(_)) => return Ok(ToolOutput::text(unknown(&handle))),
            Err(error) => return Err(error.into()),
        };
        let (next, total) = (slice.next_offset, slice.total_bytes);
        let note = if next < total {
            format!("[bytes {offset} to {next} of {total}; read on with \"offset\": {next}]")
        } else {
            format!("[bytes {offset} to {next} of {total}; this is the end]")
        };
        Ok(ToolOutput::text(format!("{}\n{note}", slice.text))
            .with_extra("next_offset", next)
            .with_extra("total_bytes", total))
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

/// Not a failure: a model that guessed or kept an old handle should go on, not apologise.
fn unknown(handle: &str) -> String {
    let shown: String = handle.chars().take(100).collect();
    format!(
        "There is no stored output `{shown}` in this session. A handle is copied from the result that was \
         shortened; it belongs to one session and expires. Call the tool again for a fresh result."
    )
}
