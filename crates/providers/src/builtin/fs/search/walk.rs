//! Walks a directory tree for all search tools: in order of names, without what `.gitignore`, `.ignore` and
//! `.git/info/exclude` exclude, and never following links. Each folder is opened from its parent.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;

use crate::builtin::fs::dir::{Dir, Kind};
use crate::builtin::fs::guard::Target;
use crate::builtin::fs::io_failure;

/// The most entries that one call visits.
pub(super) const MAX_ENTRIES: usize = 2_000_000;
/// The most levels below the start.
const MAX_DEPTH: usize = 64;

/// Whether names that begin with a dot are visited.
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

/// Whether to continue after an entry.
pub(super) enum WalkControl {
    Continue,
    Stop,
}

/// The limits of a walk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) hidden: Hidden,
    /// Levels below the start.
    pub(super) depth: Option<usize>,
    /// When it stops, complete or not.
    pub(super) deadline: Instant,
}

/// The extent of a walk.
#[derive(Debug, Default)]
pub(super) struct WalkSummary {
    /// Entries looked at.
    pub(super) visited: usize,
    /// Entries that could not be read.
    pub(super) unreadable: u64,
    /// Set if it stopped early: the reason, and the entry it had reached.
    pub(super) stopped: Option<(WalkLimit, PathBuf)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WalkLimit {
    Time,
    Entries,
}

/// An entry that a walk visits.
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

    /// Returns its target, if it is a link.
    pub(super) fn link(&self) -> io::Result<PathBuf> {
        self.folder.link(self.name)
    }
}

/// Visits everything below `start`, but the start itself only if it is a file.
///
/// # Errors
/// A start that does not exist, an error of `visit`, or the cause if the call is cancelled.
pub(super) fn walk(
    start: &Target,
    bounds: Bounds,
    context: &ToolContext,
    mut visit: impl FnMut(&Entry<'_>) -> Result<WalkControl, ToolError>,
) -> Result<WalkSummary, ToolError> {
    let fail = |error: io::Error| io_failure("look into", &start.written, &error);
    let (above, name) = start.place().map_err(fail)?;
    let folder = match name {
        None => above,
        Some(name) => match above.kind(name).map_err(fail)? {
            Kind::Folder => above.folder(name).map_err(fail)?,
            kind => {
                visit(&Entry { path: start.path.clone(), kind, depth: 0, name, folder: &above })?;
                return Ok(WalkSummary { visited: 1, ..WalkSummary::default() });
            }
        },
    };
    let depth = bounds.depth.unwrap_or(MAX_DEPTH).min(MAX_DEPTH);
    let mut walk = Walk { start, bounds, depth, context, walked: WalkSummary::default(), visit: &mut visit };
    walk.folder(&folder, &start.path, 1, &Rules::of_ancestors(&start.path))?;
    Ok(walk.walked)
}

struct Walk<'w> {
    start: &'w Target,
    bounds: Bounds,
    depth: usize,
    context: &'w ToolContext,
    walked: WalkSummary,
    visit: &'w mut dyn FnMut(&Entry<'_>) -> Result<WalkControl, ToolError>,
}

impl Walk<'_> {
    /// Visits the contents of a folder, down to [`MAX_DEPTH`].
    fn folder(&mut self, folder: &Dir, path: &Path, depth: usize, above: &Rc<Rules>) -> Result<WalkControl, ToolError> {
        let Ok(entries) = folder.entries(MAX_ENTRIES - self.walked.visited + 1) else {
            self.walked.unreadable += 1;
            return Ok(WalkControl::Continue);
        };
        let rules = Rules::of(folder, path, above);
        for (name, kind) in entries {
            if let Some(cause) = self.context.cancel.cause() {
                return Err(ToolError::canceled(cause));
            }
            let path = path.join(&name);
            if let Some(stopped) = self.bound() {
                self.walked.stopped = Some((stopped, path));
                return Ok(WalkControl::Stop);
            }
            self.walked.visited += 1;
            if self.leaves_out(&name, &path, kind, &rules) {
                continue;
            }
            let entry = Entry { path, kind, depth, name: &name, folder };
            if let WalkControl::Stop = (self.visit)(&entry)? {
                return Ok(WalkControl::Stop);
            }
            if kind != Kind::Folder || depth >= self.depth {
                continue;
            }
            match folder.folder(&name) {
                Ok(below) => {
                    if let WalkControl::Stop = self.folder(&below, &entry.path, depth + 1, &rules)? {
                        return Ok(WalkControl::Stop);
                    }
                }
                Err(_) => self.walked.unreadable += 1,
            }
        }
        Ok(WalkControl::Continue)
    }

    fn bound(&self) -> Option<WalkLimit> {
        if self.walked.visited >= MAX_ENTRIES {
            return Some(WalkLimit::Entries);
        }
        (self.context.services.clock.now() >= self.bounds.deadline).then_some(WalkLimit::Time)
    }

    fn leaves_out(&self, name: &OsStr, path: &Path, kind: Kind, rules: &Rules) -> bool {
        name == ".git"
            || self.start.withholds(path)
            || match rules.ruling(path, kind == Kind::Folder) {
                IgnoreDecision::Ignored => true,
                IgnoreDecision::Wanted => false,
                IgnoreDecision::None => self.bounds.hidden == Hidden::Skip && name.as_encoded_bytes().starts_with(b"."),
            }
    }
}

/// The most bytes of one rules file that are read.
const MAX_BYTES: u64 = 1024 * 1024;

/// The rules of a folder, and of those above it.
#[derive(Debug, Default)]
struct Rules {
    /// In order of precedence: `.ignore`, `.gitignore`, `.git/info/exclude`.
    files: [Option<Gitignore>; 3],
    above: Option<Rc<Self>>,
}

/// The rules' decision about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IgnoreDecision {
    None,
    Ignored,
    /// Included, even if it is hidden.
    Wanted,
}

impl Rules {
    /// Reads the rules of the folders above `path`, which is absolute and without links.
    fn of_ancestors(path: &Path) -> Rc<Self> {
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

    /// Reads the rules of a folder, in addition to those above it.
    fn of(folder: &Dir, path: &Path, above: &Rc<Self>) -> Rc<Self> {
        let exclude = || read(&folder.descend(Path::new(".git/info")).ok()?, "exclude", path);
        let files = [read(folder, ".ignore", path), read(folder, ".gitignore", path), exclude()];
        if files.iter().all(Option::is_none) {
            return Rc::clone(above);
        }
        Rc::new(Self { files, above: Some(Rc::clone(above)) })
    }

    /// Returns the decision about an entry below the folder.
    fn ruling(&self, path: &Path, is_folder: bool) -> IgnoreDecision {
        for kind in 0..self.files.len() {
            let mut level = Some(self);
            while let Some(rules) = level {
                match rules.files[kind].as_ref().map_or(Match::None, |file| file.matched(path, is_folder)) {
                    Match::None => level = rules.above.as_deref(),
                    Match::Ignore(_) => return IgnoreDecision::Ignored,
                    Match::Whitelist(_) => return IgnoreDecision::Wanted,
                }
            }
        }
        IgnoreDecision::None
    }
}

/// Reads one rules file. Like git, does not follow a link.
fn read(folder: &Dir, name: &str, path: &Path) -> Option<Gitignore> {
    let (file, _) = folder.file(OsStr::new(name)).ok()?;
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut builder = GitignoreBuilder::new(path);
    for line in text.strip_prefix('\u{feff}').unwrap_or(&text).lines() {
        // An invalid line excludes nothing.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok()
}
