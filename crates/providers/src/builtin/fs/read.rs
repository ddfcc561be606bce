//! `fs:read`: a text file, or a range of its lines.
//!
//! A whole file comes back as exactly its text. A part is followed by a note in a block of its own that
//! says which lines these are and how to read on. Line numbers are an option: `fs:edit` works on text,
//! and numbers in front of it would have to be taken off again.

use std::fs::{File, Metadata};
use std::io::{BufRead as _, BufReader, Read as _};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::tool::Tool;

use super::guard::{Paths, Target};
use super::range::{LineRange, MAX_TEXT};
use super::{MAX_WHOLE_FILE, count_of, io_failure, looks_binary, open_regular, path_schema, seen, with_warning};
use crate::builtin::{blocking, define, failed, parse};

/// Lines are looked for in a large file only so far, in bytes.
const MAX_SKIP: u64 = 4 * 1024 * 1024 * 1024;

pub(super) struct Read(pub(super) Paths);

#[derive(Deserialize)]
struct Arguments {
    path: String,
    offset: u64,
    limit: u64,
    line_numbers: bool,
}

impl Arguments {
    fn range(&self) -> LineRange {
        LineRange::new(self.offset, self.limit, self.line_numbers)
    }
}

#[async_trait]
impl Tool for Read {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:read@1.0.0",
            "Read a file",
            "Reads a text file, whole or a range of its lines. A file must have been read before it can be \
             overwritten or edited. Binary files are refused.",
            Effects::READ,
            json!({
                "path": path_schema("File to read"),
                "offset": {"type": "integer", "minimum": 1, "default": 1, "description": "First line, counted from 1."},
                "limit": {"type": "integer", "minimum": 1, "default": 2000, "description": "Number of lines at most."},
                "line_numbers": {"type": "boolean", "default": false, "description": "Put the number and a tab in front of each line."},
            }),
            &["path"],
        );
        definition.examples =
            vec![json!({"path": "src/main.rs"}), json!({"path": "server.log", "offset": 5000, "limit": 100})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || {
            let target = guard.admit(&context.session, &arguments.path)?;
            let (file, metadata) = open_regular(&target)?;
            let output = if metadata.len() <= MAX_WHOLE_FILE {
                read_small(file, &metadata, &target, &arguments, &context)?
            } else {
                read_large(file, metadata.len(), &target, &arguments, &context)?
            };
            Ok(with_warning(output, &target))
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or_default())
    }
}

/// A file that fits into memory: its hash is noted, even when only a part is asked for.
fn read_small(
    file: File,
    metadata: &Metadata,
    target: &Target,
    arguments: &Arguments,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let mut bytes = Vec::new();
    // The file may grow while it is read; what is beyond the bound is left for the next time.
    file.take(MAX_WHOLE_FILE).read_to_end(&mut bytes).map_err(|error| io_failure("read", &target.written, &error))?;
    if looks_binary(&bytes) {
        return Err(binary(target, bytes.len() as u64));
    }
    let mut range = arguments.range();
    bytes.split_inclusive(|&byte| byte == b'\n').for_each(|line| range.take(line));
    let lines = range.lines();
    check_offset(target, arguments, lines)?;
    let hash = ContentHash::of_bytes(&bytes);
    seen::note(context, &target.path, hash, Some(metadata));
    let output = ToolOutput { content: range.into_blocks(Some(lines)), ..ToolOutput::default() };
    Ok(output.with_extra("sha256", hash.to_hex()).with_extra("bytes", bytes.len()).with_extra("lines", lines))
}

/// A large file is streamed up to the end of the range; it is not hashed, and so cannot be changed here.
fn read_large(
    file: File,
    size: u64,
    target: &Target,
    arguments: &Arguments,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let fail = |error: std::io::Error| io_failure("read", &target.written, &error);
    let mut reader = BufReader::with_capacity(64 * 1024, file);
    if looks_binary(reader.fill_buf().map_err(fail)?) {
        return Err(binary(target, size));
    }
    let mut range = arguments.range();
    let (mut passed, mut piece) = (0, Vec::new());
    while !range.is_complete() {
        if let Some(cause) = context.cancel.cause() {
            return Err(ToolError::canceled(cause));
        }
        if passed > MAX_SKIP {
            let message = format!(
                "line {} of `{}` is more than 4 GiB into the file: use shell__bash",
                arguments.offset, target.written
            );
            return Err(failed(message));
        }
        piece.clear();
        let read = reader.by_ref().take(MAX_TEXT as u64).read_until(b'\n', &mut piece).map_err(fail)?;
        if read == 0 {
            break;
        }
        passed += read as u64;
        range.take(&piece);
    }
    let total = (!range.is_complete()).then_some(range.lines());
    if let Some(lines) = total {
        check_offset(target, arguments, lines)?;
    }
    Ok(ToolOutput { content: range.into_blocks(total), ..ToolOutput::default() }.with_extra("bytes", size))
}

fn check_offset(target: &Target, arguments: &Arguments, lines: u64) -> Result<(), ToolError> {
    if arguments.offset > lines.max(1) {
        let message = format!(
            "`{}` has {}: offset {} is past its end",
            target.written,
            count_of(lines, "line"),
            arguments.offset
        );
        return Err(failed(message));
    }
    Ok(())
}

fn binary(target: &Target, bytes: u64) -> ToolError {
    failed(format!(
        "`{}` is a binary file of {bytes} bytes, not text: inspect it with a program through shell__bash",
        target.written
    ))
}
