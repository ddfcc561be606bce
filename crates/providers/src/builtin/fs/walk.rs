//! Walking a directory tree, the same way for every tool that does: in order of names, honouring
//! `.gitignore` and `.ignore` files, never following links. Each folder is opened from the one above it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use globset::{GlobBuilder, GlobMatcher};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::error::{ErrorKind, ToolError};

use crate::builtin::fs::dir::{Dir, Kind};
use crate::builtin::fs::guard::Target;
use crate::builtin::fs::io_failure;

/// Entries that one call looks at.
const MAX_ENTRIES: usize = 500_000;
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

/// One thing that a walk meets.
pub(super) struct Entry<'w> {
    /// Absolute, without links.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    /// Levels below the start; 0 for a start that is a file.
    pub(super) depth: usize,
    name: &'w OsStr,
    folder: &'w Dir,
}

impl Entry<'_> {
    pub(super) fn name(&self) -> &OsStr {
        self.name
    }

    /// Opens it, if it is a regular file.
    pub(super) fn open(&self) -> io::Result<File> {
        self.folder.file(self.name).map(|(file, _)| file)
    }

    /// Where it points, if it is a link.
    pub(super) fn link(&self) -> io::Result<PathBuf> {
        self.folder.link(self.name)
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
    mut visit: impl FnMut(&Entry<'_>) -> Result<Next, ToolError>,
) -> Result<Walked, ToolError> {
    let fail = |error: io::Error| io_failure("look into", &start.written, &error);
    let (above, name) = start.place().map_err(fail)?;
    let folder = match name {
        None => above,
        Some(name) => match above.kind(name).map_err(fail)? {
            Kind::Folder => above.folder(name).map_err(fail)?,
            kind => {
                visit(&Entry { path: start.path.clone(), kind, depth: 0, name, folder: &above })?;
                return Ok(Walked::default());
            }
        },
    };
    let depth = depth.unwrap_or(MAX_DEPTH).min(MAX_DEPTH);
    let mut walk = Walk { start, hidden, depth, cancel, seen: 0, walked: Walked::default(), visit: &mut visit };
    walk.folder(&folder, &start.path, 1, &Rules::above(&start.path))?;
    Ok(walk.walked)
}

struct Walk<'w> {
    start: &'w Target,
    hidden: Hidden,
    depth: usize,
    cancel: &'w Cancel,
    /// Entries.
    seen: usize,
    walked: Walked,
    visit: &'w mut dyn FnMut(&Entry<'_>) -> Result<Next, ToolError>,
}

impl Walk<'_> {
    /// Visits what is in a folder, and what is below. It goes no deeper than [`MAX_DEPTH`].
    fn folder(&mut self, folder: &Dir, path: &Path, depth: usize, above: &Rc<Rules>) -> Result<Next, ToolError> {
        let Ok(entries) = folder.entries(MAX_ENTRIES - self.seen + 1) else {
            self.walked.unreadable += 1;
            return Ok(Next::Continue);
        };
        let rules = Rules::of(folder, path, above);
        for (name, kind) in entries {
            if let Some(cause) = self.cancel.cause() {
                return Err(ToolError::canceled(cause));
            }
            if self.seen >= MAX_ENTRIES {
                self.walked.exhausted = true;
                return Ok(Next::Stop);
            }
            self.seen += 1;
            let path = path.join(&name);
            if self.leaves_out(&name, &path, kind, &rules) {
                continue;
            }
            let entry = Entry { path, kind, depth, name: &name, folder };
            if let Next::Stop = (self.visit)(&entry)? {
                return Ok(Next::Stop);
            }
            if kind != Kind::Folder || depth >= self.depth {
                continue;
            }
            match folder.folder(&name) {
                Ok(below) => {
                    if let Next::Stop = self.folder(&below, &entry.path, depth + 1, &rules)? {
                        return Ok(Next::Stop);
                    }
                }
                Err(_) => self.walked.unreadable += 1,
            }
        }
        Ok(Next::Continue)
    }

    fn leaves_out(&self, name: &OsStr, path: &Path, kind: Kind, rules: &Rules) -> bool {
        name == ".git"
            || self.start.withholds(path)
            || match rules.ruling(path, kind == Kind::Folder) {
                Ruling::Ignored => true,
                Ruling::Wanted => false,
                Ruling::None => self.hidden == Hidden::Skip && name.as_encoded_bytes().starts_with(b"."),
            }
    }
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
pub(super) fn matches(pattern: &GlobMatcher, entry: &Entry<'_>, start: &Target) -> bool {
    match entry.path.strip_prefix(&start.path) {
        Ok(relative) if !relative.as_os_str().is_empty() => pattern.is_match(relative),
        _ => pattern.is_match(entry.name()),
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

/// Bytes of one such file that are read.
const MAX_BYTES: u64 = 1024 * 1024;

/// The rules of a folder, and of those above it.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// In order of precedence: `.ignore`, `.gitignore`, `.git/info/exclude`.
    files: [Option<Gitignore>; 3],
    above: Option<Rc<Self>>,
}

/// What the rules say of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ruling {
    None,
    Ignored,
    /// Even if it is hidden.
    Wanted,
}

impl Rules {
    /// Of the folders above `path`, which is absolute and has no links in it.
    pub(super) fn above(path: &Path) -> Rc<Self> {
        let mut rules = Rc::new(Self::default());
        let Ok(top) = Dir::root(Path::new("/")) else { return rules };
        let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
        while let Some(folder) = folders.pop() {
            let opened = folder.strip_prefix("/").map(|below| top.descend(below));
            if let Ok(Ok(opened)) = opened {
                rules = Self::of(&opened, folder, &rules);
            }
        }
        rules
    }

    /// Of a folder, with those above it.
    pub(super) fn of(folder: &Dir, path: &Path, above: &Rc<Self>) -> Rc<Self> {
        let exclude = || read(&folder.descend(Path::new(".git/info")).ok()?, "exclude", path);
        let files = [read(folder, ".ignore", path), read(folder, ".gitignore", path), exclude()];
        if files.iter().all(Option::is_none) {
            return Rc::clone(above);
        }
        Rc::new(Self { files, above: Some(Rc::clone(above)) })
    }

    /// What they say of an entry below the folder.
    pub(super) fn ruling(&self, path: &Path, is_folder: bool) -> Ruling {
        for kind in 0..self.files.len() {
            let mut level = Some(self);
            while let Some(rules) = level {
                match rules.files[kind].as_ref().map_or(Match::None, |file| file.matched(path, is_folder)) {
                    Match::None => level = rules.above.as_deref(),
                    Match::Ignore(_) => return Ruling::Ignored,
                    Match::Whitelist(_) => return Ruling::Wanted,
                }
            }
        }
        Ruling::None
    }
}

/// One file of rules; git does not follow a link there either.
fn read(folder: &Dir, name: &str, path: &Path) -> Option<Gitignore> {
    let (file, _) = folder.file(OsStr::new(name)).ok()?;
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut builder = GitignoreBuilder::new(path);
    for line in text.strip_prefix('\u{feff}').unwrap_or(&text).lines() {
        // A line that is no pattern excludes nothing.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok()
}
