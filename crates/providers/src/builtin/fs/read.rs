//! `fs:read`: a text file, or a range of its lines.
//!
//! A whole file is returned as exactly its text. After a part, a separate block says which lines these are and how to
//! read on. Line numbers are optional, because `fs:edit` works on text without them.

use std::fs::{File, Metadata};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallScope;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::{SeenFile, ToolContext};
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;

use crate::builtin::fs::guard::{Paths, Target};
use crate::builtin::fs::{MAX_WHOLE_FILE, count_of, io_failure, looks_binary, open_regular, path_schema, with_warning};
use crate::builtin::{blocking, define, failed, parse};

/// How far into a large file lines are searched, in bytes.
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

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        self.0.read_by(session, arguments)
    }
}

/// Reads a file that fits into memory. Its hash is recorded, even if only a part is requested.
fn read_small(
    file: File,
    metadata: &Metadata,
    target: &Target,
    arguments: &Arguments,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let mut bytes = Vec::new();
    // The file may grow while it is read; the rest is left for the next read.
    file.take(MAX_WHOLE_FILE).read_to_end(&mut bytes).map_err(|error| io_failure("read", &target.written, &error))?;
    if looks_binary(&bytes) {
        return Err(binary(target, bytes.len() as u64));
    }
    let mut range = arguments.range();
    bytes.split_inclusive(|&byte| byte == b'\n').for_each(|line| range.take(line));
    let lines = range.lines();
    check_offset(target, arguments, lines)?;
    let hash = ContentHash::of_bytes(&bytes);
    note(context, &target.path, hash, Some(metadata));
    let output = ToolOutput { content: range.into_blocks(Some(lines)), ..ToolOutput::default() };
    Ok(output.with_extra("sha256", hash.to_hex()).with_extra("bytes", bytes.len()).with_extra("lines", lines))
}

/// Streams a large file up to the end of the range. It is not hashed, so it cannot be changed here.
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

/// The most bytes of text in one range, for any number of lines.
pub(super) const MAX_TEXT: usize = 1024 * 1024;

/// Collects the lines from `first` on: at most `limit` lines and [`MAX_TEXT`] bytes.
#[derive(Debug)]
pub(super) struct LineRange {
    first: u64,
    last: u64,
    numbered: bool,
    text: Vec<u8>,
    /// Number of the current line.
    line: u64,
    at_line_start: bool,
    cut: Truncation,
}

/// Whether the text stops before the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truncation {
    None,
    /// It stops inside this line, which is too long.
    Inside(u64),
}

impl LineRange {
    pub(super) fn new(first: u64, limit: u64, numbered: bool) -> Self {
        let last = first.saturating_add(limit - 1);
        Self { first, last, numbered, text: Vec::new(), line: 0, at_line_start: true, cut: Truncation::None }
    }

    /// Takes the next piece of the file: a line with its end, or a part of a line.
    pub(super) fn take(&mut self, piece: &[u8]) {
        let starts_line = self.at_line_start;
        self.at_line_start = piece.ends_with(b"\n");
        self.line += u64::from(starts_line);
        if self.line < self.first || self.line > self.last || self.cut == Truncation::Inside(self.line) {
            return;
        }
        let room = MAX_TEXT.saturating_sub(self.text.len());
        if piece.len() <= room {
            if self.numbered && starts_line {
                self.text.extend_from_slice(format!("{:>6}\t", self.line).as_bytes());
            }
            self.text.extend_from_slice(piece);
        } else if starts_line && self.line > self.first {
            // This line is left for the next call.
            self.last = self.line - 1;
        } else {
            self.text.extend_from_slice(&piece[..room]);
            self.last = self.line;
            self.cut = Truncation::Inside(self.line);
        }
    }

    /// Returns whether no later line can belong to the range.
    pub(super) fn is_complete(&self) -> bool {
        self.line > self.last || (self.line == self.last && self.at_line_start)
    }

    /// Returns the number of lines read; the last one may have no end.
    pub(super) fn lines(&self) -> u64 {
        self.line
    }

    /// Returns the text, followed by a block with notes for the reader. `total` is the number of lines of the file, if
    /// known. A whole file is only its text.
    pub(super) fn into_blocks(self, total: Option<u64>) -> Vec<ContentBlock> {
        if total == Some(0) {
            return vec![ContentBlock::text("[the file is empty]")];
        }
        let mut notes = Vec::new();
        let last = self.last.min(self.line);
        match total {
            Some(total) if self.first == 1 && last == total => {}
            Some(total) if last == total => {
                notes.push(format!("lines {} to {last} of {total}; this is the end", self.first))
            }
            _ => {
                let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
                notes.push(format!("lines {} to {last}{of}; read on with \"offset\": {}", self.first, last + 1));
            }
        }
        if let Truncation::Inside(line) = self.cut {
            notes.push(format!("toolwright cut line {line}, which is too long for a result of 1 MiB"));
        }
        let text = String::from_utf8(self.text).unwrap_or_else(|error| {
            notes.push("the file is not UTF-8: bytes that are no text are shown as \u{fffd}".to_owned());
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        });
        let mut blocks = vec![ContentBlock::text(text)];
        if !notes.is_empty() {
            blocks.push(ContentBlock::text(format!("[{}]", notes.join("; "))));
        }
        blocks
    }
}

/// Records that the session knows the file with this content.
pub(super) fn note(context: &ToolContext, path: &Path, hash: ContentHash, metadata: Option<&Metadata>) {
    let modified = metadata.and_then(|metadata| metadata.modified().ok());
    context.services.files.record_seen(&context.session.id, path, SeenFile { hash, modified });
}

/// Checks that the caller of a change knows the file's present content: by the given hash, else by what the session has
/// read.
///
/// # Errors
/// Names what is unknown, and the remedy.
pub(super) fn check(
    context: &ToolContext,
    target: &Target,
    current: ContentHash,
    expected: Option<&str>,
) -> Result<(), ToolError> {
    let path = &target.written;
    if let Some(expected) = expected {
        return if expected.eq_ignore_ascii_case(&current.to_hex()) {
            Ok(())
        } else {
            Err(failed(format!(
                "`{path}` does not have the content of expected_hash (it has sha256 {current}): read it again with fs__read first"
            )))
        };
    }
    match context.services.files.seen(&context.session.id, &target.path) {
        Ok(Some(seen)) if seen.hash == current => Ok(()),
        Ok(Some(_)) => {
            Err(failed(format!("`{path}` has changed since this session read it: read it again with fs__read first")))
        }
        Ok(None) => Err(failed(format!(
            "`{path}` exists and this session has not read it: read it first with fs__read, or pass the sha256 \
             that fs__read reports as expected_hash"
        ))),
        Err(_) => Err(failed(format!(
            "`{path}` exists, and what was read is not remembered here: pass the sha256 that fs__read reports as expected_hash"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::content::joined_text;

    fn check(text: &str, first: u64, limit: u64, expect: &str) {
        let mut range = LineRange::new(first, limit, false);
        text.as_bytes().split_inclusive(|&byte| byte == b'\n').for_each(|line| range.take(line));
        let total = range.lines();
        assert_eq!(joined_text(&range.into_blocks(Some(total))), expect);
    }

    #[test]
    fn ranges_name_their_lines() {
        check("a\nb\n", 1, 2000, "a\nb\n");
        check("a\r\nb", 1, 2, "a\r\nb");
        check("", 1, 10, "[the file is empty]");
        check("a\nb\nc\n", 1, 2, "a\nb\n\n[lines 1 to 2 of 3; read on with \"offset\": 3]");
        check("a\nb\nc\n", 2, 9, "b\nc\n\n[lines 2 to 3 of 3; this is the end]");
        check("a\nb\nc\n", 2, u64::MAX, "b\nc\n\n[lines 2 to 3 of 3; this is the end]");
    }

    #[test]
    fn text_is_cut_at_lines() {
        let long = format!("{}\n", "x".repeat(MAX_TEXT - 10));
        check(
            &format!("a\n{long}b\nc\n{long}"),
            2,
            100,
            &format!("{long}b\nc\n\n[lines 2 to 4 of 5; read on with \"offset\": 5]"),
        );
        let longer = "x".repeat(MAX_TEXT + 10);
        check(
            &format!("{longer}\nb\n"),
            1,
            100,
            &format!(
                "{}\n[lines 1 to 1 of 2; read on with \"offset\": 2; toolwright cut line 1, which is too long for a result of 1 MiB]",
                &longer[..MAX_TEXT]
            ),
        );
    }

    #[test]
    fn lines_in_pieces_are_one_line() {
        let mut range = LineRange::new(1, 1, true);
        for piece in ["aa", "bb\n", "c"] {
            range.take(piece.as_bytes());
        }
        assert!(range.is_complete());
        assert_eq!(joined_text(&range.into_blocks(None)), "     1\taabb\n\n[lines 1 to 1; read on with \"offset\": 2]");
    }
}
