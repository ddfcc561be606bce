//! The tools that search for files and for text in them. They have their own time limit: the results so far are
//! returned with how far the search came, so that "nothing found" differs from "not finished".

mod glob;
mod grep;
mod tree;
mod walk;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobMatcher};
use serde_json::{Value, json};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Partial;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool::Tool;

use super::guard::{Paths, Target, relative_path};
use super::with_warning;
use walk::{Bounds, Entry, MAX_ENTRIES, WalkLimit, WalkSummary};

/// Longest time a caller may ask for, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 60_000;
/// The least time between two reports of new results.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Returns `fs:glob`, `fs:grep` and `fs:tree`.
pub(super) fn tools(paths: &Paths) -> [Arc<dyn Tool>; 3] {
    [Arc::new(glob::Glob(paths.clone())), Arc::new(grep::Grep(paths.clone())), Arc::new(tree::Tree(paths.clone()))]
}

fn hidden_schema() -> Value {
    json!({"type": "boolean", "default": false, "description": "Also look at names that begin with a dot."})
}

fn timeout_schema() -> Value {
    json!({
        "type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS, "default": 2000,
        "description": "Milliseconds after which what was found so far comes back.",
    })
}

/// Adds the common parts to a definition.
fn limited(mut definition: ToolDefinition) -> ToolDefinition {
    definition.timeout = Some(Duration::from_millis(MAX_TIMEOUT_MS) + Duration::from_secs(5));
    definition.documentation = Some(
        "Names are visited in order, folder by folder. `.gitignore`, `.ignore` and `.git/info/exclude` are honoured, `.git` is \
         left out and links are not followed. At its time limit the search stops: the result holds what was found so far, says \
         how many entries were looked at and where it stopped, and `complete` is false. \"No match\" without that note means \
         that everything was searched. What is found is also reported while the search goes on."
            .to_owned(),
    );
    definition
}

/// The result of a search as it grows, reported early.
struct SearchOutput<'c> {
    text: String,
    context: &'c ToolContext,
    reported: usize,
    next_report: Instant,
    timeout: Duration,
    until: Instant,
}

impl<'c> SearchOutput<'c> {
    fn new(timeout_ms: u64, context: &'c ToolContext) -> Self {
        let now = context.services.clock.now();
        let timeout = Duration::from_millis(timeout_ms);
        Self { text: String::new(), context, reported: 0, next_report: now, timeout, until: now + timeout }
    }

    /// Reports new results: the first at once, then at intervals.
    fn report(&mut self) {
        let now = self.context.services.clock.now();
        if now >= self.next_report && self.reported < self.text.len() {
            self.context.partials.send(Partial::Text(self.text[self.reported..].to_owned()));
            self.reported = self.text.len();
            self.next_report = now + REPORT_EVERY;
        }
    }

    /// Returns the results, followed by notes in brackets. `summary` describes a complete search; for an incomplete one
    /// it is marked as preliminary.
    fn finish(mut self, walked: &WalkSummary, summary: Option<String>, whole: bool, start: &Target) -> ToolOutput {
        let mut notes = Vec::new();
        if let Some((stopped, at)) = &walked.stopped {
            let why = match stopped {
                WalkLimit::Time => format!("after {}", toolwright_core::duration::format(self.timeout)),
                WalkLimit::Entries => format!("at {MAX_ENTRIES} entries"),
            };
            let at = relative_path(at, &start.root);
            notes
                .push(format!("not finished: stopped {why}, with {} entries looked at, before `{at}`", walked.visited));
            notes.extend(summary.map(|summary| format!("so far: {summary}")));
            notes.push(match stopped {
                WalkLimit::Time => "narrow the path or raise timeout_ms".to_owned(),
                WalkLimit::Entries => "start at a deeper path".to_owned(),
            });
        } else {
            notes.extend(summary);
        }
        if walked.unreadable > 0 {
            notes.push(format!("{} entries could not be read", walked.unreadable));
        }
        if !notes.is_empty() {
            if !self.text.is_empty() && !self.text.ends_with('\n') {
                self.text.push('\n');
            }
            self.text.push_str(&format!("[{}]", notes.join("; ")));
        }
        let output = ToolOutput::text(self.text)
            .with_extra("looked_at", walked.visited)
            .with_extra("complete", whole && walked.stopped.is_none());
        with_warning(output, start)
    }
}

/// Compiles a pattern for paths below a start. Without a slash it matches names at any depth.
///
/// # Errors
/// `InvalidParameters` for an invalid pattern.
fn path_pattern(pattern: &str) -> Result<GlobMatcher, ToolError> {
    let invalid = |why: String| ToolError::new(ErrorKind::InvalidParameters, why);
    let relative = pattern.strip_prefix("./").unwrap_or(pattern);
    if Path::new(relative).is_absolute() {
        return Err(invalid(format!(
            "the pattern `{pattern}` is absolute: give the folder as `path`, and a pattern relative to it"
        )));
    }
    let anywhere = if relative.contains('/') { relative.to_owned() } else { format!("**/{relative}") };
    GlobBuilder::new(&anywhere)
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| invalid(format!("the pattern `{pattern}` is not a glob: {}", error.kind())))
}

/// Returns whether an entry's path below `start` matches. A start that is a file is matched by its name.
fn matches(pattern: &GlobMatcher, entry: &Entry<'_>, start: &Target) -> bool {
    match entry.path.strip_prefix(&start.path) {
        Ok(relative) if !relative.as_os_str().is_empty() => pattern.is_match(relative),
        _ => pattern.is_match(entry.name()),
    }
}
