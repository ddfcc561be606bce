//! `output:read`: a range of a stored output, by bytes or by lines.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::output::READ_ID;
use toolwright_core::session::Session;
use toolwright_core::store::{LineRange, OutputSlice};
use toolwright_core::tool::Tool;

use super::{handle_schema, unreadable};
use crate::builtin::{define, parse};

/// The most bytes that one call may request.
const MAX_LIMIT: usize = 64 * 1024;
/// The most lines that one call may request.
const MAX_LINES: u64 = 5000;
/// Bytes reserved for the closing note.
const NOTE_ROOM: usize = 512;

pub(super) struct Read;

#[derive(Deserialize)]
struct Arguments {
    handle: String,
    offset: u64,
    limit: usize,
    line: Option<u64>,
    lines: u64,
}

#[async_trait]
impl Tool for Read {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            READ_ID,
            "Read stored output",
            "Reads a part of a tool result that was too large to show and was stored under a handle: from a byte \
             offset, or from a line. The end of the answer says how to read on.",
            Effects::READ,
            json!({
                "handle": handle_schema(),
                "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Byte to start at; not with line."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 8192, "description": "Bytes to read at most."},
                "line": {"type": "integer", "minimum": 1, "description": "Line to start at, from 1, instead of offset."},
                "lines": {"type": "integer", "minimum": 1, "maximum": MAX_LINES, "default": 200, "description": "With line: lines to read at most."},
            }),
            &["handle"],
        );
        // The caller chose the size, so the slice must not be stored as another output.
        definition.max_output = Some(MAX_LIMIT + NOTE_ROOM);
        definition.examples = vec![
            json!({"handle": "o7k2m9xq4", "offset": 8192}),
            json!({"handle": "o7k2m9xq4", "line": 120, "lines": 40}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { handle, offset, limit, line, lines } = parse(arguments)?;
        let (outputs, session) = (&context.services.outputs, &context.session.id);
        let read = match line {
            Some(first) => outputs.read_lines(session, &handle, LineRange { first, count: lines }, limit).await,
            None => outputs.read(session, &handle, offset, limit).await,
        };
        let slice = match read {
            Ok(slice) => slice,
            Err(error) => return unreadable(&handle, error),
        };
        let note = match line {
            Some(first) => line_note(&slice, first),
            None => byte_note(&slice, offset),
        };
        let OutputSlice { text, next_offset, total_bytes } = slice;
        let text = if text.ends_with('\n') { text + &note } else { format!("{text}\n{note}") };
        Ok(ToolOutput::text(text).with_extra("next_offset", next_offset).with_extra("total_bytes", total_bytes))
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

fn byte_note(slice: &OutputSlice, offset: u64) -> String {
    let (next, total) = (slice.next_offset, slice.total_bytes);
    if next < total {
        format!("[bytes {offset} to {next} of {total}; read on with \"offset\": {next}]")
    } else {
        format!("[bytes {offset} to {next} of {total}; this is the end]")
    }
}

fn line_note(slice: &OutputSlice, first: u64) -> String {
    let (next, total) = (slice.next_offset, slice.total_bytes);
    let ended = slice.text.bytes().filter(|&byte| byte == b'\n').count() as u64;
    let amid = !slice.text.is_empty() && !slice.text.ends_with('\n');
    match (slice.text.is_empty(), next < total) {
        (true, _) => format!("[there is no line {first}; the output has {total} bytes]"),
        (false, false) => format!("[lines {first} to {}; this is the end]", first + ended - u64::from(!amid)),
        (false, true) if amid => {
            format!("[lines {first} to {}, which is cut; read on with \"offset\": {next}]", first + ended)
        }
        (false, true) => format!(
            "[lines {first} to {}, up to byte {next} of {total}; read on with \"line\": {}]",
            first + ended - 1,
            first + ended
        ),
    }
}
