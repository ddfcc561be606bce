//! `fs:multi_edit`: several replacements in several files, in one step.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{CallParts, Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;
use toolwright_core::tool_id::ToolId;

use super::super::guard::WriteGuard;
use super::super::{count_of, expected_hash_schema, read, read_existing};
use super::change_set::{FileChange, Journals};
use super::{AppliedChange, Change, MATCHING, places, unified};
use crate::builtin::{blocking, define, failed, parse};

/// The most edits of one call.
const MAX_EDITS: usize = 200;
/// The most bytes of all files of one call.
const MAX_BYTES: usize = 64 * 1024 * 1024;

pub(in crate::builtin::fs) struct MultiEdit {
    pub(in crate::builtin::fs) guard: WriteGuard,
    pub(in crate::builtin::fs) journals: Journals,
}

#[derive(Deserialize)]
struct Arguments {
    edits: Vec<Edit>,
    mode: Mode,
    dry_run: bool,
}

#[derive(Deserialize)]
struct Edit {
    path: String,
    #[serde(flatten)]
    change: Change,
    expected_hash: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Strict,
    Partial,
    BestEffort,
}

#[async_trait]
impl Tool for MultiEdit {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:multi_edit@1.0.0",
            "Edit several places",
            "Makes several replacements in one or more files that have been read with fs__read, in one step: all are written \
             together, or none. Edits of a file apply in order, each to what the one before left.",
            Effects { idempotent: false, ..Effects::WRITE },
            json!({
                "edits": {
                    "type": "array", "minItems": 1, "maxItems": MAX_EDITS,
                    "description": "What to replace; each as for fs__edit.",
                    "items": {
                        "type": "object",
                        "properties": {
                            "path": {"type": "string", "minLength": 1},
                            "old_string": {"type": "string", "minLength": 1},
                            "new_string": {"type": "string"},
                            "replace_all": {"type": "boolean"},
                            "expected_hash": {"type": "string", "pattern": expected_hash_schema()["pattern"]},
                        },
                        "required": ["path", "old_string", "new_string"],
                        "additionalProperties": false,
                    },
                },
                "mode": {
                    "type": "string", "enum": ["strict", "partial", "best_effort"], "default": "strict",
                    "description": "If an edit fails: strict writes nothing, partial leaves out its file, best_effort leaves out the edit.",
                },
                "dry_run": {"type": "boolean", "default": false, "description": "Write nothing; show the difference."},
            }),
            &["edits"],
        );
        definition.concurrency = Concurrency::Exclusive;
        definition.parts = ToolId::try_parse("fs:edit@1.0.0").map(|tool| CallParts { argument: "edits", tool });
        definition.documentation = Some(format!(
            "{MATCHING} All files of a call change together, also when Toolwright is killed in between: at its next start it \
             ends or undoes what was begun. A file that this session has not read, or that has changed since, fails its edits."
        ));
        definition.examples = vec![json!({"edits": [
            {"path": "src/a.rs", "old_string": "fn old(", "new_string": "fn new("},
            {"path": "src/b.rs", "old_string": "old(1)", "new_string": "new(1)", "replace_all": true},
        ]})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        let (guard, journals, context) = (self.guard.clone(), self.journals.clone(), context.clone());
        blocking(move || {
            let mut batch = Batch::default();
            arguments.edits.iter().for_each(|edit| batch.apply(edit, &guard, &context, arguments.mode));
            batch.finish(&arguments, &journals, &context)
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        let paths = arguments["edits"].as_array().into_iter().flatten().map(|edit| edit["path"].as_str());
        // A call without an edit has no target, and fails the schema.
        paths.map(|path| self.guard.scope(session, path.unwrap_or_default())).max().unwrap_or(CallScope::Anywhere)
    }

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        let edits = arguments["edits"].as_array().into_iter().flatten();
        FileUse::changing(edits.filter_map(|edit| self.guard.paths.located(session, &edit["path"])))
    }

    fn changes(&self, arguments: &Value, session: &Session) -> Option<String> {
        let arguments: Arguments = parse(arguments.clone()).ok()?;
        // The name of each file, its content, and its content after the edits.
        let mut files: IndexMap<PathBuf, (String, Vec<u8>, Vec<u8>)> = IndexMap::new();
        let mut room = MAX_BYTES;
        for edit in &arguments.edits {
            let target = self.guard.paths.admit(session, &edit.path).ok()?;
            if !files.contains_key(&target.path) {
                let (old, _) = read_existing(&target).ok()??;
                room = room.checked_sub(old.len())?;
                files.insert(target.path.clone(), (target.relative_text(), old.clone(), old));
            }
            let (.., new) = files.get_mut(&target.path)?;
            if let AppliedChange::Now(edited) = edit.change.apply(new, &edit.path).ok()? {
                *new = edited.bytes;
            }
        }
        Some(files.values().map(|(name, old, new)| unified(name, old, new)).collect())
    }
}

/// The results of a call's edits before anything is written.
#[derive(Default)]
struct Batch {
    /// By resolved path, so that two spellings of it are one file.
    files: IndexMap<PathBuf, FileChange>,
    /// Failed edits, by file; a file that could not be opened has no change.
    failed: BTreeMap<PathBuf, usize>,
    /// A line for each edit, with whether it failed and its file.
    lines: Vec<EditResult>,
}

struct EditResult {
    path: Option<PathBuf>,
    shown: String,
    result: Result<String, String>,
}

impl Batch {
    fn apply(&mut self, edit: &Edit, guard: &WriteGuard, context: &ToolContext, mode: Mode) {
        let mut path = None;
        let mut shown = edit.path.clone();
        let result = (|| {
            let target = guard.admit(context, &edit.path)?;
            shown = target.relative_text();
            path = Some(target.path.clone());
            if !self.files.contains_key(&target.path) {
                let (old, existing) = read_existing(&target)?
                    .ok_or_else(|| failed(format!("`{}` does not exist: create it with fs__write", edit.path)))?;
                if self.files.values().map(|file| file.old.len()).sum::<usize>() + old.len() > MAX_BYTES {
                    return Err(failed("the files of this call are larger than 64 MiB in all: edit fewer at once"));
                }
                self.files.insert(target.path.clone(), FileChange { new: old.clone(), old, existing, target });
            }
            let Some(file) = path.as_ref().and_then(|path| self.files.get_mut(path)) else {
                return Err(failed("the file is gone"));
            };
            read::check(context, &file.target, ContentHash::of_bytes(&file.old), edit.expected_hash.as_deref())?;
            match edit.change.apply(&file.new, &edit.path)? {
                AppliedChange::Now(edited) => {
                    let text = places(&edited);
                    file.new = edited.bytes;
                    Ok(text)
                }
                AppliedChange::Before(text) => Ok(text),
            }
        })();
        if result.is_err()
            && mode != Mode::BestEffort
            && let Some(path) = &path
        {
            *self.failed.entry(path.clone()).or_default() += 1;
        }
        let result = result.map_err(|error: ToolError| error.message().to_owned());
        self.lines.push(EditResult { path, shown, result });
    }

    fn finish(
        mut self,
        arguments: &Arguments,
        journals: &Journals,
        context: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let failures = self.lines.iter().filter(|line| line.result.is_err()).count();
        let stopped = arguments.mode == Mode::Strict && failures > 0;
        if stopped {
            let (of, text) = (count_of(self.lines.len() as u64, "edit"), self.text(true));
            return Err(failed(format!("nothing was written, since {failures} of {of} failed:\n{text}")));
        }
        self.files.retain(|path, file| file.old != file.new && !self.failed.contains_key(path));
        let changes: Vec<FileChange> = std::mem::take(&mut self.files).into_values().collect();
        if changes.is_empty() && failures > 0 {
            return Err(failed(format!("nothing was written, since no edit could be made:\n{}", self.text(true))));
        }
        let files = count_of(changes.len() as u64, "file");
        if arguments.dry_run {
            let diffs = changes.iter().map(|file| unified(&file.target.relative_text(), &file.old, &file.new));
            let diffs: String = diffs.collect();
            let text = format!("{files} would change; nothing was written\n{}\n{diffs}", self.text(false));
            return Ok(ToolOutput::text(text).with_extra("dry_run", true).with_extra("failed", failures));
        }
        let written = if changes.is_empty() { Vec::new() } else { journals.commit(&changes)? };
        let mut written_files = Vec::with_capacity(changes.len());
        for (file, metadata) in changes.iter().zip(&written) {
            let hash = ContentHash::of_bytes(&file.new);
            read::note(context, &file.target.path, hash, Some(metadata));
            written_files
                .push(json!({"path": file.target.relative_text(), "sha256": hash.to_hex(), "bytes": file.new.len()}));
        }
        let mut output = ToolOutput::text(format!("changed {files}\n{}", self.text(false)))
            .with_extra("files", written_files)
            .with_extra("failed", failures);
        if let Some(warning) = changes.iter().find_map(|file| file.target.warning()) {
            output = output.with_extra("path_guard", warning);
        }
        Ok(output)
    }

    /// Returns a line for each edit, or for failed ones only.
    fn text(&self, failed_only: bool) -> String {
        let mut text = String::new();
        for (number, EditResult { path, shown, result }) in (1..).zip(&self.lines) {
            let left_out = path.as_ref().is_some_and(|path| self.failed.contains_key(path));
            match result {
                Ok(_) if failed_only => {}
                Ok(_) if left_out => text.push_str(&format!("{number}. {shown}: left out with its file\n")),
                Ok(done) => text.push_str(&format!("{number}. {shown}: {done}\n")),
                Err(why) => text.push_str(&format!("{number}. {shown}: failed: {why}\n")),
            }
        }
        text.truncate(text.trim_end().len());
        text
    }
}
