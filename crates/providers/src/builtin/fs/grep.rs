//! `fs:grep`: text in files, by regular expression, with ripgrep's own searcher.

use std::io;

use async_trait::async_trait;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::tool::Tool;

use super::dir::Kind;
use super::guard::{Paths, shown};
use super::walk::{Next, hidden_schema, matches, path_pattern, walk, with_notes};
use super::{ROOT, count_of, optional_path_schema, with_warning};
use crate::builtin::pattern::{Case, line_matcher};
use crate::builtin::{blocking, define, parse};

/// Longest piece of a line that is shown, in bytes.
const MAX_LINE: usize = 500;
/// Longest line that is searched, in bytes; a file with a longer one is skipped.
const MAX_LINE_BUFFER: usize = 8 * 1024 * 1024;

pub(super) struct Grep(pub(super) Paths);

#[derive(Deserialize)]
struct Arguments {
    pattern: String,
    path: String,
    glob: Option<String>,
    case_insensitive: bool,
    context: usize,
    mode: Mode,
    hidden: bool,
    limit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Content,
    Files,
    Count,
}

#[async_trait]
impl Tool for Grep {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:grep@1.0.0",
            "Search in files",
            "Searches the text of files with a regular expression, line by line. Shows matching lines as \
             path:line:text, or only the files, or the number of matching lines of each. Binary files and what \
             .gitignore excludes are left out.",
            Effects::READ,
            json!({
                "pattern": {
                    "type": "string", "minLength": 1,
                    "description": "Regular expression in Rust's syntax (no look-around, no back-references); write \\( for a plain bracket.",
                },
                "path": optional_path_schema("Folder or file to search"),
                "glob": {"type": "string", "minLength": 1, "description": "Only files whose path matches, like `*.rs` or `src/**/*.ts`."},
                "case_insensitive": {"type": "boolean", "default": false, "description": "Ignore upper and lower case."},
                "context": {"type": "integer", "minimum": 0, "maximum": 20, "default": 0, "description": "Lines to show around each match."},
                "mode": {
                    "type": "string", "enum": ["content", "files", "count"], "default": "content",
                    "description": "Show matching lines, paths of files with a match, or path:number of matching lines.",
                },
                "hidden": hidden_schema(),
                "limit": {
                    "type": "integer", "minimum": 1, "maximum": 10_000, "default": 200,
                    "description": "Matching lines (in the other modes, files) to show at most.",
                },
            }),
            &["pattern"],
        );
        definition.examples =
            vec![json!({"pattern": "fn main", "glob": "*.rs"}), json!({"pattern": "TODO|FIXME", "mode": "count"})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || search(&guard, &arguments, &context)).await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or(ROOT))
    }
}

fn search(guard: &Paths, arguments: &Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let start = guard.admit(&context.session, &arguments.path)?;
    let matcher = line_matcher(&arguments.pattern, Case::insensitive(arguments.case_insensitive))?;
    let only = arguments.glob.as_deref().map(path_pattern).transpose()?;
    let around = if arguments.mode == Mode::Content { arguments.context } else { 0 };
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(MAX_LINE_BUFFER))
        .before_context(around)
        .after_context(around)
        .build();
    let mut hits = Hits::new(arguments, &context.cancel);
    let mut unsearched = 0u64;
    let walked = walk(&start, arguments.hidden.into(), None, &context.cancel, |entry| {
        if entry.kind == Kind::File && only.as_ref().is_none_or(|only| matches(only, entry, &start)) {
            hits.begin(shown(&entry.path, &start.root));
            if entry.open().and_then(|file| searcher.search_file(&matcher, &file, &mut hits)).is_err() {
                unsearched += 1;
            }
            hits.finish();
        }
        Ok(if hits.more { Next::Stop } else { Next::Continue })
    })?;
    if let Some(cause) = context.cancel.cause() {
        return Err(ToolError::canceled(cause));
    }
    let mut notes = walked.notes();
    if unsearched > 0 {
        notes.push(format!("{} could not be searched", count_of(unsearched, "file")));
    }
    if hits.found == 0 {
        notes.insert(0, format!("no match for `{}` in {}", arguments.pattern, start.shown()));
    } else if hits.more {
        let what = if arguments.mode == Mode::Content { "matching lines" } else { "files" };
        notes.insert(0, format!("the first {} {what}: narrow the search or raise limit", arguments.limit));
    }
    let output = ToolOutput::text(with_notes(hits.text, &notes)).with_extra("matches", hits.found);
    Ok(with_warning(output, &start))
}

/// What was found, as text.
struct Hits<'a> {
    mode: Mode,
    limit: u64,
    cancel: &'a Cancel,
    /// Path of the file that is searched.
    path: String,
    /// Matching lines in that file.
    in_file: u64,
    /// Matching lines, or files with one, over all.
    found: u64,
    /// Set when there is more than the limit.
    more: bool,
    text: String,
}

impl<'a> Hits<'a> {
    fn new(arguments: &Arguments, cancel: &'a Cancel) -> Self {
        Self {
            mode: arguments.mode,
            limit: arguments.limit,
            cancel,
            path: String::new(),
            in_file: 0,
            found: 0,
            more: false,
            text: String::new(),
        }
    }

    fn begin(&mut self, path: String) {
        self.path = path;
        self.in_file = 0;
    }

    fn finish(&mut self) {
        if self.in_file == 0 || self.mode == Mode::Content {
            return;
        }
        if self.found == self.limit {
            self.more = true;
            return;
        }
        self.found += 1;
        self.text.push_str(&self.path);
        if self.mode == Mode::Count {
            self.text.push_str(&format!(":{}", self.in_file));
        }
        self.text.push('\n');
    }

    fn line(&mut self, number: Option<u64>, separator: char, bytes: &[u8]) {
        let line = String::from_utf8_lossy(bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        let number = number.unwrap_or_default();
        self.text.push_str(&format!("{}{separator}{number}{separator}", self.path));
        if line.len() > MAX_LINE {
            let end = line.floor_char_boundary(MAX_LINE);
            self.text.push_str(&format!(
                "{} [… toolwright cut {} of {} bytes]",
                &line[..end],
                line.len() - end,
                line.len()
            ));
        } else {
            self.text.push_str(line);
        }
        self.text.push('\n');
    }
}

impl Sink for Hits<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.in_file += 1;
        match self.mode {
            Mode::Content if self.found == self.limit => self.more = true,
            Mode::Content => {
                self.found += 1;
                self.line(found.line_number(), ':', found.bytes());
            }
            Mode::Files | Mode::Count => {}
        }
        // One match is enough to list a file.
        Ok(!self.more && self.mode != Mode::Files && !self.cancel.is_cancelled())
    }

    fn context(&mut self, _searcher: &Searcher, around: &SinkContext<'_>) -> Result<bool, io::Error> {
        self.line(around.line_number(), '-', around.bytes());
        Ok(true)
    }

    fn context_break(&mut self, _searcher: &Searcher) -> Result<bool, io::Error> {
        self.text.push_str("--\n");
        Ok(true)
    }
}
