//! `output:extract`: answers a question from a stored output with a model.

use std::io::{Read as _, Seek as _, SeekFrom};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::output::{EXTRACT_ID, ExtractError, ExtractMode, ExtractRequest, truncate};
use toolwright_core::session::Session;
use toolwright_core::store::OpenOutput;
use toolwright_core::tool::Tool;

use super::{binary, handle_schema, unreadable};
use crate::builtin::{blocking, define, parse};

/// The largest text, in bytes, that is shortened in memory; of a larger one only the ends are read.
const MAX_WHOLE: u64 = 1024 * 1024;
/// The most bytes of the question.
const MAX_EXTRACT: usize = 4000;
/// Bytes reserved for the notes around a shortened text.
const NOTE_ROOM: usize = 600;

pub(super) struct Extract;

#[derive(Deserialize)]
struct Arguments {
    handle: String,
    extract: String,
    mode: ExtractMode,
}

#[async_trait]
impl Tool for Extract {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            EXTRACT_ID,
            "Extract from stored output",
            "Has a model find something in a tool result that was stored under a handle: it reads all of it part by \
             part (full-chunked), or searches in it (read-grep). Where no model can, the shortened text comes back.",
            Effects::FETCH,
            json!({
                "handle": handle_schema(),
                "extract": {
                    "type": "string", "minLength": 1, "maxLength": MAX_EXTRACT,
                    "description": "What is wanted of the output, as a question or a list. The model knows nothing else.",
                },
                "mode": {
                    "type": "string", "enum": ["auto", "full-chunked", "read-grep", "truncate"], "default": "auto",
                    "description": "How: auto goes by the size; truncate asks no model and shows beginning and end.",
                },
            }),
            &["handle", "extract"],
        );
        definition.aliases = vec!["tool_output".into()];
        definition.examples =
            vec![json!({"handle": "o7k2m9xq4", "extract": "All error messages, each with its time stamp."})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { handle, extract, mode } = parse(arguments)?;
        let open = match context.services.outputs.open(&context.session.id, &handle).await {
            Ok(open) => open,
            Err(error) => return unreadable(&handle, error),
        };
        if let Some(media_type) = &open.binary {
            return Ok(ToolOutput::text(binary(&handle, media_type, open.bytes)));
        }
        let why = if mode == ExtractMode::Truncate {
            None
        } else {
            let request = ExtractRequest { handle: handle.clone(), bytes: open.bytes, extract, mode };
            match by_model(request, context).await {
                Ok(found) => return Ok(ToolOutput::text(found)),
                Err(error) => Some(error.0),
            }
        };
        if let Some(cause) = context.cancel.cause() {
            return Err(ToolError::canceled(cause));
        }
        let (bytes, max) = (open.bytes, context.max_output.saturating_sub(NOTE_ROOM));
        let shortened = blocking(move || shortened(open, max)).await?;
        let Some(why) = why else { return Ok(ToolOutput::text(shortened)) };
        let events = &context.services.events;
        events.emit_with(|| Event::Fallback {
            what: "output__extract".into(),
            from: "extraction".into(),
            to: "truncation".into(),
            reason: format!("nothing was extracted from {handle}: {}", context.services.redactor.redact(&why)),
        });
        let warning = format!(
            "[toolwright warning: nothing was extracted, since {}. Instead, the beginning and the end of the stored \
             output, of {bytes} bytes; read on with its handle, {handle}.]\n\n",
            truncate(&why, 300)
        );
        Ok(ToolOutput::text(warning + &shortened).with_extra("fallback", why))
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }

    fn awaits_others(&self) -> bool {
        true
    }
}

async fn by_model(request: ExtractRequest, context: &ToolContext) -> Result<String, ExtractError> {
    match &context.services.extractor {
        Some(extractor) => extractor.extract(request, context).await,
        None => Err(ExtractError("no model is there to do it".into())),
    }
}

/// Returns the text in about `max` bytes. Of a text that is too large for memory, only the ends are read.
fn shortened(mut open: OpenOutput, max: usize) -> Result<String, ToolError> {
    let failed = |error: std::io::Error| {
        ToolError::new(ErrorKind::InternalError, format!("the stored output could not be read: {error}"))
    };
    let mut bytes = Vec::new();
    if open.bytes <= MAX_WHOLE {
        open.reader.read_to_end(&mut bytes).map_err(failed)?;
        return Ok(truncate(&String::from_utf8_lossy(&bytes), max));
    }
    let (head, tail) = (max * 2 / 3, max / 3);
    open.reader.by_ref().take(head as u64).read_to_end(&mut bytes).map_err(failed)?;
    let head = String::from_utf8_lossy(&bytes).trim_end_matches('\u{fffd}').to_owned();
    let start = open.bytes - tail as u64;
    open.reader.seek(SeekFrom::Start(start)).map_err(failed)?;
    bytes.clear();
    open.reader.read_to_end(&mut bytes).map_err(failed)?;
    let tail = String::from_utf8_lossy(&bytes);
    let tail = tail.trim_start_matches('\u{fffd}');
    let cut = open.bytes - head.len() as u64 - tail.len() as u64;
    Ok(format!("{head}\n[… toolwright cut {cut} of {} bytes here …]\n{tail}", open.bytes))
}
