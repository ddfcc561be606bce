//! `fs:edit`: replaces text in a file.

mod change_set;
mod matching;
mod multi;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;

use super::diff::{nearest_block, unified};
use super::guard::WriteGuard;
use super::{
    MAX_WHOLE_FILE, count_of, expected_hash_schema, io_failure, looks_binary, path_schema, read, read_existing,
    with_warning,
};
use crate::builtin::{blocking, define, failed, parse};
use matching::{EditedFile, MatchError, Replacement};

pub(super) use change_set::Journals;
pub(super) use multi::MultiEdit;

/// The part of both edit tools' manuals about matching.
const MATCHING: &str = "old_string is looked for as it is written. If it is not there, text that differs only in line ends, \
in space at the end of lines, in tabs for spaces at their beginning, or in typographic quotes, dashes and spaces is taken \
for it, in that order, and the result says so in `matched_with`. The file keeps its own line ends, indentation, byte order \
mark, permissions and a missing final newline; lines that an edit does not change stay byte for byte as they are. Nothing \
is matched by likeness: where the text is not found, the error shows the block that comes nearest.";

pub(super) struct Edit(pub(super) WriteGuard);

#[derive(Deserialize)]
struct Arguments {
    path: String,
    #[serde(flatten)]
    change: Change,
    expected_hash: Option<String>,
}

/// One replacement, as a caller writes it.
#[derive(Deserialize)]
struct Change {
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

#[async_trait]
impl Tool for Edit {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:edit@1.0.0",
            "Edit a file",
            "Replaces one piece of text in a text or source file that has been read with fs__read. old_string must occur exactly \
             once; take in enough of the lines around it to make it unique, or set replace_all.",
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
        definition.documentation = Some(MATCHING.to_owned());
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
            let edited = match arguments.change.apply(&bytes, &arguments.path)? {
                AppliedChange::Now(edited) => edited,
                AppliedChange::Before(message) => {
                    return Ok(with_warning(ToolOutput::text(message).with_extra("already_applied", true), &target));
                }
            };
            let metadata = target
                .replace(&edited.bytes, Some(&metadata))
                .map_err(|error| io_failure("write", &arguments.path, &error))?;
            let hash = ContentHash::of_bytes(&edited.bytes);
            read::note(&context, &target.path, hash, Some(&metadata));
            let output = ToolOutput::text(format!("edited {} {}", target.relative_text(), places(&edited)))
                .with_extra("sha256", hash.to_hex())
                .with_extra("bytes", edited.bytes.len())
                .with_extra("replacements", edited.at_lines.len())
                .with_extra("matched_with", edited.matched_with());
            Ok(with_warning(output, &target))
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or_default())
    }

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        self.0.changed_by(session, arguments)
    }

    fn changes(&self, arguments: &Value, session: &Session) -> Option<String> {
        let Arguments { path, change, .. } = parse(arguments.clone()).ok()?;
        let target = self.0.paths.admit(session, &path).ok()?;
        let (old, _) = read_existing(&target).ok()??;
        match change.apply(&old, &path).ok()? {
            AppliedChange::Now(edited) => Some(unified(&target.relative_text(), &old, &edited.bytes)),
            AppliedChange::Before(_) => None,
        }
    }
}

/// The result of a change that did not fail.
enum AppliedChange {
    Now(EditedFile),
    /// The file already has the change; a message.
    Before(String),
}

impl Change {
    /// Applies it to the content of a file.
    fn apply(&self, bytes: &[u8], path: &str) -> Result<AppliedChange, ToolError> {
        if looks_binary(bytes) {
            return Err(failed(format!("`{path}` is a binary file, not text")));
        }
        let wanted = Replacement { old: &self.old_string, new: &self.new_string, all: self.replace_all };
        match matching::replace(bytes, wanted) {
            Ok(edited) if edited.bytes.len() as u64 > MAX_WHOLE_FILE => {
                Err(failed(format!("`{path}` would become larger than 8 MiB, the most that can be edited here")))
            }
            Ok(edited) => Ok(AppliedChange::Now(edited)),
            Err(MatchError::Applied { line }) => Ok(AppliedChange::Before(format!(
                "`{path}` is as this edit would make it already: new_string stands at line {line} and old_string nowhere; \
                 nothing was written"
            ))),
            Err(unmatched) => Err(failed(explain(&unmatched, bytes, path, &self.old_string))),
        }
    }
}

fn explain(unmatched: &MatchError, bytes: &[u8], path: &str, old: &str) -> String {
    match unmatched {
        MatchError::Same | MatchError::Applied { .. } => {
            "old_string and new_string are the same: nothing would change".to_owned()
        }
        MatchError::Encoding => format!("`{path}` is not UTF-8, so new_string may only hold ASCII characters"),
        MatchError::Several { lines, count, differences } => {
            let but_for: Vec<_> = differences.iter().map(|difference| difference.as_str()).collect();
            let but_for = if but_for.is_empty() { String::new() } else { format!(" but for {}", but_for.join(", ")) };
            format!(
                "old_string occurs {count} times in `{path}`{but_for}, at lines {}: take in more of the lines around it \
                 until it is unique, or set replace_all",
                listed(lines, *count)
            )
        }
        MatchError::Nothing => match nearest_block(bytes, old) {
            Some((line, difference)) => format!(
                "old_string was not found in `{path}`. The nearest text begins at line {line}; from old_string (-) to the \
                 file (+):\n{difference}"
            ),
            None => format!("old_string was not found in `{path}`, nor text like it; look again with fs__read"),
        },
    }
}

/// Returns `in 2 places (line 3, 6), matched but for tabs` etc.
fn places(edited: &EditedFile) -> String {
    let count = edited.at_lines.len();
    let lines = edited.at_lines.iter().take(10).copied().collect::<Vec<_>>();
    let mut text = format!("in {} (line {})", count_of(count as u64, "place"), listed(&lines, count));
    if !edited.differences.is_empty() {
        text.push_str(&format!(", matched but for {}", edited.matched_with().join(", ")));
    }
    text
}

/// Lists the first of `count` lines.
fn listed(lines: &[u64], count: usize) -> String {
    let named = lines.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    if lines.len() < count { format!("{named}, …") } else { named }
}
