//! `fs:edit`: replaces text in a file. Works on bytes, so that what is not replaced stays as it was:
//! encoding, byte order mark, line ends.

use std::borrow::Cow;

use async_trait::async_trait;
use memchr::memmem;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::tool::Tool;

use super::guard::Target;
use super::guard::WriteGuard;
use super::{
    MAX_WHOLE_FILE, count_of, expected_hash_schema, io_failure, looks_binary, path_schema, read, read_existing,
    with_warning,
};
use crate::builtin::{blocking, define, failed, parse};

pub(super) struct Edit(pub(super) WriteGuard);

#[derive(Deserialize)]
struct Arguments {
    path: String,
    old_string: String,
    new_string: String,
    replace_all: bool,
    expected_hash: Option<String>,
}

#[async_trait]
impl Tool for Edit {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:edit@1.0.0",
            "Edit a file",
            "Replaces one piece of text in a file that has been read with fs__read. old_string must occur exactly \
             once, character for character; take in enough of the lines around it to make it unique, or set \
             replace_all.",
            Effects { idempotent: false, ..Effects::WRITE },
            json!({
                "path": path_schema("File to edit"),
                "old_string": {"type": "string", "minLength": 1, "description": "Text to replace, without line numbers."},
                "new_string": {"type": "string", "description": "Text to put there; empty to delete."},
                "replace_all": {"type": "boolean", "default": false, "description": "Replace every occurrence."},
                "expected_hash": expected_hash_schema(),
            }),
            &["path", "old_string", "new_string"],
        );
        definition.concurrency = Concurrency::Exclusive;
        definition.examples =
            vec![json!({"path": "src/main.rs", "old_string": "let limit = 10;", "new_string": "let limit = 20;"})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || {
            let target = guard.admit(&context, &arguments.path)?;
            let Some((bytes, metadata)) = read_existing(&target)? else {
                return Err(failed(format!("`{}` does not exist: create it with fs__write", arguments.path)));
            };
            read::check(&context, &target, ContentHash::of_bytes(&bytes), arguments.expected_hash.as_deref())?;
            let edited = edit(&bytes, &arguments, &target)?;
            let metadata = target
                .replace(&edited.bytes, Some(&metadata))
                .map_err(|error| io_failure("write", &arguments.path, &error))?;
            let hash = ContentHash::of_bytes(&edited.bytes);
            read::note(&context, &target.path, hash, Some(&metadata));
            let places = count_of(edited.at_lines.len() as u64, "place");
            let lines = edited.at_lines.iter().take(10).map(u64::to_string).collect::<Vec<_>>().join(", ");
            let more = if edited.at_lines.len() > 10 { ", …" } else { "" };
            let output = ToolOutput::text(format!("edited {} in {places} (line {lines}{more})", target.shown()))
                .with_extra("sha256", hash.to_hex())
                .with_extra("bytes", edited.bytes.len())
                .with_extra("replacements", edited.at_lines.len());
            Ok(with_warning(output, &target))
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or_default())
    }
}

struct Edited {
    bytes: Vec<u8>,
    /// Lines of the new content at which a replacement begins.
    at_lines: Vec<u64>,
}

fn edit(bytes: &[u8], arguments: &Arguments, target: &Target) -> Result<Edited, ToolError> {
    let path = &target.written;
    if looks_binary(bytes) {
        return Err(failed(format!("`{path}` is a binary file, not text")));
    }
    if !arguments.new_string.is_ascii() && std::str::from_utf8(bytes).is_err() {
        return Err(failed(format!("`{path}` is not UTF-8, so new_string may only hold ASCII characters")));
    }
    let crlf = ends_lines_with_crlf(bytes);
    let old = with_line_ends(&arguments.old_string, crlf);
    let new = with_line_ends(&arguments.new_string, crlf);
    if old == new {
        return Err(failed("old_string and new_string are the same: nothing would change"));
    }
    let found: Vec<usize> = memmem::find_iter(bytes, old.as_bytes()).collect();
    match found.len() {
        0 => {
            return Err(failed(format!(
                "old_string was not found in `{path}`: it must match character for character, spaces and tabs \
                 included; look again with fs__read"
            )));
        }
        1 => {}
        many if !arguments.replace_all => {
            return Err(failed(format!(
                "old_string occurs {many} times in `{path}`: take in more of the lines around it until it is unique, \
                 or set replace_all"
            )));
        }
        _ => {}
    }
    let mut out = Vec::with_capacity(bytes.len());
    let (mut at_lines, mut line, mut done) = (Vec::with_capacity(found.len()), 1, 0);
    for start in found {
        out.extend_from_slice(&bytes[done..start]);
        line += line_ends(&bytes[done..start]);
        at_lines.push(line);
        line += line_ends(new.as_bytes());
        out.extend_from_slice(new.as_bytes());
        done = start + old.len();
        if out.len() as u64 > MAX_WHOLE_FILE {
            return Err(failed(format!("`{path}` would become larger than 8 MiB, the most that can be edited here")));
        }
    }
    out.extend_from_slice(&bytes[done..]);
    Ok(Edited { bytes: out, at_lines })
}

fn line_ends(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// Whether every line of the file ends with CR LF, and there is one.
fn ends_lines_with_crlf(bytes: &[u8]) -> bool {
    let crlf = memmem::find_iter(bytes, b"\r\n").count() as u64;
    crlf > 0 && crlf == line_ends(bytes)
}

/// Models write LF; a file whose lines all end with CR LF keeps them.
fn with_line_ends(text: &str, crlf: bool) -> Cow<'_, str> {
    if crlf && text.contains('\n') { text.replace("\r\n", "\n").replace('\n', "\r\n").into() } else { text.into() }
}
