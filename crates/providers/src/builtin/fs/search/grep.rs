//! `fs:grep`: text in files, by regular expression, with ripgrep's own searcher.

use std::fs::File;
use std::io;
use std::time::Instant;

use async_trait::async_trait;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use ignore::types::{Types, TypesBuilder};
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::pattern::nearest;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;

use super::walk::{WalkControl, WalkLimit, walk};
use super::{Bounds, SearchOutput, hidden_schema, limited, matches, path_pattern, timeout_schema};
use crate::builtin::fs::dir::Kind;
use crate::builtin::fs::guard::{Paths, relative_path};
use crate::builtin::fs::{ROOT, count_of, optional_path_schema};
use crate::builtin::{Case, block_matcher, blocking, define, line_matcher, parse};

/// The most bytes of a line that are shown.
const MAX_LINE: usize = 500;
/// The longest line that is searched, in bytes; a file with a longer one is skipped.
const MAX_LINE_BUFFER: usize = 8 * 1024 * 1024;

pub(super) struct Grep(pub(super) Paths);

#[derive(Deserialize)]
struct Arguments {
    pattern: String,
    path: String,
    glob: Option<String>,
    r#type: Option<String>,
    case_insensitive: bool,
    multiline: bool,
    context: usize,
    mode: Mode,
    hidden: bool,
    limit: u64,
    timeout_ms: u64,
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
            "Searches the text of files with a regular expression. Shows matching lines as \
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
                "type": {"type": "string", "minLength": 1, "description": "Only files of a language, as ripgrep names it: rust, py, ts, md, …"},
                "case_insensitive": {"type": "boolean", "default": false, "description": "Ignore upper and lower case."},
                "multiline": {"type": "boolean", "default": false, "description": "Let matches span lines; a dot matches line ends too."},
                "context": {"type": "integer", "minimum": 0, "maximum": 20, "default": 0, "description": "Lines to show around each match."},
                "mode": {
                    "type": "string", "enum": ["content", "files", "count"], "default": "content",
                    "description": "Show matching lines, paths of files with a match, or path:number of matching lines.",
                },
                "hidden": hidden_schema(),
                "limit": {
                    "type": "integer", "minimum": 1, "maximum": 10_000, "default": 200,
                    "description": "Matches (in the other modes, files) to show at most.",
                },
                "timeout_ms": timeout_schema(),
            }),
            &["pattern"],
        );
        definition = limited(definition);
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

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        self.0.read_by(session, arguments)
    }
}

fn search(guard: &Paths, arguments: &Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let start = guard.admit(&context.session, &arguments.path)?;
    let case = Case::insensitive(arguments.case_insensitive);
    let matcher = if arguments.multiline { block_matcher } else { line_matcher }(&arguments.pattern, case)?;
    let only = arguments.glob.as_deref().map(path_pattern).transpose()?;
    let of_type = arguments.r#type.as_deref().map(file_type).transpose()?;
    let around = if arguments.mode == Mode::Content { arguments.context } else { 0 };
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(MAX_LINE_BUFFER))
        .multi_line(arguments.multiline)
        .before_context(around)
        .after_context(around)
        .build();
    let mut hits = Hits::new(arguments, context);
    let (mut files, mut unsearched, mut timed_out) = (0u64, 0u64, None);
    let bounds = Bounds { hidden: arguments.hidden.into(), depth: None, deadline: hits.found.until };
    let mut walked = walk(&start, bounds, context, |entry| {
        let wanted = entry.kind == Kind::File
            && only.as_ref().is_none_or(|only| matches(only, entry, &start))
            && of_type.as_ref().is_none_or(|types| types.matched(&entry.path, false).is_whitelist());
        if wanted {
            hits.begin(relative_path(&entry.path, &start.root));
            let searched = entry.open().and_then(|file| {
                let file = BoundedFile { file, until: hits.found.until, context };
                searcher.search_reader(&matcher, file, &mut hits)
            });
            match searched {
                Ok(()) => files += 1,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    timed_out = Some((WalkLimit::Time, entry.path.clone()));
                    hits.finish();
                    return Ok(WalkControl::Stop);
                }
                Err(_) => unsearched += 1,
            }
            hits.finish();
            hits.found.report();
        }
        Ok(if hits.more { WalkControl::Stop } else { WalkControl::Continue })
    })?;
    if let Some(cause) = context.cancel.cause() {
        return Err(ToolError::canceled(cause));
    }
    walked.stopped = walked.stopped.or(timed_out);
    let Hits { found, more, count, .. } = hits;
    let mut summary = if count == 0 {
        Some(format!("no match for `{}` in {}", arguments.pattern, start.relative_text()))
    } else {
        let what = if arguments.mode == Mode::Content { "matches" } else { "files" };
        more.then(|| format!("the first {} {what}: narrow the search or raise limit", arguments.limit))
    };
    if unsearched > 0 {
        let note = format!("{} could not be searched", count_of(unsearched, "file"));
        summary = Some(summary.map_or(note.clone(), |summary| format!("{summary}; {note}")));
    }
    let output = found.finish(&walked, summary, !more, &start);
    Ok(output.with_extra("matches", count).with_extra("files_searched", files))
}

/// Returns the types that match the files of a language.
fn file_type(name: &str) -> Result<Types, ToolError> {
    let mut types = TypesBuilder::new();
    types.add_defaults();
    types.select(name);
    types.build().map_err(|_| {
        let known: Vec<_> = types.definitions().iter().map(|known| known.name().to_owned()).collect();
        let nearest = nearest(name, known.iter().map(String::as_str)).map(|near| format!(": did you mean `{near}`?"));
        let message = format!("`{name}` is no type of files that is known{}", nearest.unwrap_or_default());
        ToolError::new(ErrorKind::InvalidParameters, message)
    })
}

/// A file whose reads fail once the time is up or the call is cancelled.
struct BoundedFile<'c> {
    file: File,
    until: Instant,
    context: &'c ToolContext,
}

impl io::Read for BoundedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.context.cancel.is_cancelled() || self.context.services.clock.now() >= self.until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.file.read(buffer)
    }
}

/// The matches, as text.
struct Hits<'c> {
    mode: Mode,
    limit: u64,
    /// Path of the current file.
    path: String,
    /// Matches in that file.
    in_file: u64,
    /// Matches over all files, or files with a match.
    count: u64,
    /// Set if there are more results than the limit.
    more: bool,
    found: SearchOutput<'c>,
}

impl<'c> Hits<'c> {
    fn new(arguments: &Arguments, context: &'c ToolContext) -> Self {
        Self {
            mode: arguments.mode,
            limit: arguments.limit,
            path: String::new(),
            in_file: 0,
            count: 0,
            more: false,
            found: SearchOutput::new(arguments.timeout_ms, context),
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
        if self.count == self.limit {
            self.more = true;
            return;
        }
        self.count += 1;
        self.found.text.push_str(&self.path);
        if self.mode == Mode::Count {
            self.found.text.push_str(&format!(":{}", self.in_file));
        }
        self.found.text.push('\n');
    }

    fn line(&mut self, number: u64, separator: char, bytes: &[u8]) {
        let line = String::from_utf8_lossy(bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        self.found.text.push_str(&format!("{}{separator}{number}{separator}", self.path));
        if line.len() > MAX_LINE {
            let end = line.floor_char_boundary(MAX_LINE);
            self.found.text.push_str(&format!(
                "{} [… toolwright cut {} of {} bytes]",
                &line[..end],
                line.len() - end,
                line.len()
            ));
        } else {
            self.found.text.push_str(line);
        }
        self.found.text.push('\n');
    }
}

impl Sink for Hits<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.in_file += 1;
        match self.mode {
            Mode::Content if self.count == self.limit => self.more = true,
            Mode::Content => {
                self.count += 1;
                for (number, line) in (found.line_number().unwrap_or_default()..).zip(found.lines()) {
                    self.line(number, ':', line);
                }
                self.found.report();
            }
            Mode::Files | Mode::Count => {}
        }
        // One match is enough to list a file.
        Ok(!self.more && self.mode != Mode::Files)
    }

    fn context(&mut self, _searcher: &Searcher, around: &SinkContext<'_>) -> Result<bool, io::Error> {
        self.line(around.line_number().unwrap_or_default(), '-', around.bytes());
        Ok(true)
    }

    fn context_break(&mut self, _searcher: &Searcher) -> Result<bool, io::Error> {
        self.found.text.push_str("--\n");
        Ok(true)
    }
}
