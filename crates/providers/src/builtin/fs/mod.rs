//! File tools, confined to the workspace root.

mod diff;
mod dir;
mod edit;
mod guard;
mod json;
mod json_document;
mod notebook;
mod read;
mod search;
mod write;

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool::Tool;

use super::{BuiltinOptions, failed};
use guard::WriteGuard;
use guard::{Paths, Target};

pub use guard::PathGuard;

/// The largest file, in bytes, that is read into memory to be edited, overwritten or hashed. Larger ones are read in
/// parts.
const MAX_WHOLE_FILE: u64 = 8 * 1024 * 1024;

/// Bytes that are checked for binary data, as in `git` and `grep`.
const TYPE_PROBE: usize = 8 * 1024;

/// Returns the `fs` tools; see [`BuiltinOptions`].
pub(super) fn tools(options: &BuiltinOptions) -> Vec<Arc<dyn Tool>> {
    let paths = Paths::new(options.path_guard, &options.withheld);
    let writes = WriteGuard::new(paths.clone(), &options.protected);
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(read::Read(paths.clone())),
        Arc::new(write::Write(writes.clone())),
        Arc::new(edit::Edit(writes.clone())),
        Arc::new(edit::MultiEdit {
            guard: writes.clone(),
            journals: edit::Journals::new(options.edit_journals.clone()),
        }),
    ];
    tools.extend(search::tools(&paths));
    tools.extend(json::tools(&paths, &writes));
    tools
}

/// Returns the schema of a path argument.
fn path_schema(what: &str) -> Value {
    json!({"type": "string", "minLength": 1, "description": format!("{what}; relative to the workspace root, or absolute.")})
}

/// The workspace root, as a path argument.
const ROOT: &str = ".";

/// Returns the schema of an optional path argument.
fn optional_path_schema(what: &str) -> Value {
    let mut schema = path_schema(what);
    schema["default"] = ROOT.into();
    schema
}

fn expected_hash_schema() -> Value {
    json!({
        "type": "string", "pattern": "^[0-9a-fA-F]{64}$",
        "description": "SHA-256 that the file must have now, as fs__read reports it. Only needed for a file that this session has not read.",
    })
}

/// Returns the error of a failed file operation, with a remedy.
fn io_failure(doing: &str, path: &str, error: &io::Error) -> ToolError {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "; fs__glob and fs__tree show what there is",
        io::ErrorKind::IsADirectory => "; fs__tree lists a directory",
        io::ErrorKind::StorageFull => "; free some space first",
        _ => "",
    };
    failed(format!("cannot {doing} `{path}`: {error}{remedy}"))
}

/// Opens a regular file.
fn open_regular(target: &Target) -> Result<(File, Metadata), ToolError> {
    target.open().map_err(|error| io_failure("read", &target.written, &error))
}

/// Returns the bytes of a file that fits into memory; `None` if it does not exist.
fn read_existing(target: &Target) -> Result<Option<(Vec<u8>, Metadata)>, ToolError> {
    let fail = |error: io::Error| io_failure("read", &target.written, &error);
    let (file, metadata) = match target.open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(fail)?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_WHOLE_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_WHOLE_FILE {
        return Err(failed(format!(
            "`{}` is larger than 8 MiB, the most that can be changed here: use shell__bash",
            target.written
        )));
    }
    Ok(Some((bytes, metadata)))
}

fn looks_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(TYPE_PROBE)].contains(&0)
}

/// Returns `3 lines`, `1 line` etc.
fn count_of(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn lines_of(text: &[u8]) -> u64 {
    let ends = memchr::memchr_iter(b'\n', text).count() as u64;
    ends + u64::from(text.last().is_some_and(|&last| last != b'\n'))
}

/// Adds the path guard's warning.
fn with_warning(output: ToolOutput, target: &Target) -> ToolOutput {
    match target.warning() {
        Some(warning) => output.with_extra("path_guard", warning),
        None => output,
    }
}
