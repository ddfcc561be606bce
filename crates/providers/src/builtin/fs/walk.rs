//! Walking a directory tree, the same way for every tool that does: in order of names, honouring
//! `.gitignore` and `.ignore` files, never following links.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use ignore::{DirEntry, WalkBuilder};
use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::error::{ErrorKind, ToolError};

use super::guard::Target;
use super::io_failure;

/// Entries that one call looks at.
const MAX_ENTRIES: u64 = 500_000;
/// Levels below the start.
const MAX_DEPTH: usize = 64;

/// Whether names that begin with a dot are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hidden {
    Skip,
    Include,
}

impl From<bool> for Hidden {
    fn from(include: bool) -> Self {
        if include { Self::Include } else { Self::Skip }
    }
}

pub(super) fn hidden_schema() -> Value {
    json!({"type": "boolean", "default": false, "description": "Also look at names that begin with a dot."})
}

/// Whether to go on after an entry.
pub(super) enum Next {
    Continue,
    Stop,
}

/// What a walk could not look at.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Walked {
    /// Entries that could not be read.
    pub(super) unreadable: u64,
    /// Set when the walk ended at its bound.
    pub(super) exhausted: bool,
}

impl Walked {
    /// What the reader of a result must know, if anything.
    pub(super) fn notes(self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.exhausted {
            notes.push(format!("toolwright stopped after {MAX_ENTRIES} entries: start at a deeper path"));
        }
        if self.unreadable > 0 {
            notes.push(format!("{} entries could not be read", self.unreadable));
        }
        notes
    }
}

/// Visits everything below `start`, the start itself left out unless it is a file.
///
/// # Errors
/// A start that does not exist, an error of `visit`, or the cause when `cancel` fires.
pub(super) fn walk(
    start: &Target,
    hidden: Hidden,
    depth: Option<usize>,
    cancel: &Cancel,
    mut visit: impl FnMut(&DirEntry) -> Result<Next, ToolError>,
) -> Result<Walked, ToolError> {
    std::fs::metadata(&start.path).map_err(|error| io_failure("look into", &start.written, &error))?;
    let within = start.clone();
    let walker = WalkBuilder::new(&start.path)
        .hidden(hidden == Hidden::Skip)
        // A folder need not be a repository for its .gitignore to say what is not worth reading; a user's
        // own global ignores are no part of the workspace.
        .require_git(false)
        .git_global(false)
        .max_depth(Some(depth.unwrap_or(MAX_DEPTH).min(MAX_DEPTH)))
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .filter_entry(move |entry| entry.file_name() != ".git" && !within.withholds(entry.path()))
        .build();
    let mut walked = Walked::default();
    for (count, entry) in (0..).zip(walker) {
        if let Some(cause) = cancel.cause() {
            return Err(ToolError::canceled(cause));
        }
        if count >= MAX_ENTRIES {
            walked.exhausted = true;
            break;
        }
        match entry {
            Ok(entry) if entry.depth() == 0 && entry.path().is_dir() => {}
            Ok(entry) => {
                if let Next::Stop = visit(&entry)? {
                    break;
                }
            }
            Err(_) => walked.unreadable += 1,
        }
    }
    Ok(walked)
}

/// Whether an entry is a file, and not a link to one.
pub(super) fn is_file(entry: &DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_file())
}

/// A pattern for paths below a start. Without a slash it is about the name alone, at any depth.
///
/// # Errors
/// `InvalidParameters` for a pattern that is none.
pub(super) fn path_pattern(pattern: &str) -> Result<GlobMatcher, ToolError> {
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

/// Whether an entry's path below `start` matches. A start that is a file is matched by its name.
pub(super) fn matches(pattern: &GlobMatcher, entry: &DirEntry, start: &Target) -> bool {
    match entry.path().strip_prefix(&start.path) {
        Ok(relative) if !relative.as_os_str().is_empty() => pattern.is_match(relative),
        _ => pattern.is_match(entry.file_name()),
    }
}

/// The result of a walk as text: lines, then notes in brackets.
pub(super) fn with_notes(mut lines: String, notes: &[String]) -> String {
    if !notes.is_empty() {
        if !lines.is_empty() && !lines.ends_with('\n') {
            lines.push('\n');
        }
        lines.push_str(&format!("[{}]", notes.join("; ")));
    }
    lines
}
