//! Decides which paths the `fs` tools may access.
//!
//! A path is judged as the kernel would follow it: symbolic links are resolved, also those above a file
//! that does not exist yet. What is then opened is exactly the path that was judged: no link is followed any
//! more (see `dir`), so whoever swaps a folder for a link in between makes the call fail.
//!
//! What is withheld is neither read nor listed nor written, whatever happens to paths outside: logins and what belongs to
//! other sessions lie there, and one call that only reads needs nobody's word.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_sandbox::protected::{is_own, is_protected};

use crate::builtin::fs::dir::Dir;
use crate::builtin::fs::{ROOT, io_failure};

/// What happens to a path outside the workspace root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathGuard {
    /// The call is not permitted.
    #[default]
    Block,
    /// The call runs; it is logged and noted in the result.
    Warn,
    /// The call runs.
    Off,
}

/// Where the tools may go.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    guard: PathGuard,
    /// Nothing at these places, with all links resolved, nor below them.
    withheld: Arc<[PathBuf]>,
}

/// A path that may be touched.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Absolute, with all links resolved. The last part need not exist.
    pub(super) path: PathBuf,
    /// The canonical workspace root.
    pub(super) root: PathBuf,
    /// Whether the path is inside the root.
    pub(super) inside: bool,
    /// The path as the caller wrote it.
    pub(super) written: String,
    paths: Paths,
}

impl Target {
    /// Relative to the root if it is inside, `.` for the root itself: the form that every `fs` tool takes.
    pub(super) fn shown(&self) -> String {
        shown(&self.path, &self.root)
    }

    /// The warning that belongs into the result.
    pub(super) fn warning(&self) -> Option<String> {
        (self.paths.guard == PathGuard::Warn && !self.inside)
            .then(|| format!("{} is outside the workspace root {}", self.path.display(), self.root.display()))
    }

    /// The open folder that holds it, and its name in there; no name for the root itself.
    pub(super) fn place(&self) -> io::Result<(Dir, Option<&OsStr>)> {
        let (base, below) = self.base()?;
        Ok((base.descend(below.parent().unwrap_or(below))?, below.file_name()))
    }

    /// Opens it for reading, if it is a regular file.
    pub(super) fn open(&self) -> io::Result<(File, Metadata)> {
        match self.place()? {
            (folder, Some(name)) => folder.file(name),
            (_, None) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// Puts new content there, see [`Dir::replace`]. Folders that do not exist are made.
    pub(super) fn replace(&self, bytes: &[u8], existing: Option<&Metadata>) -> io::Result<Metadata> {
        let (base, below) = self.base()?;
        let (Some(folder), Some(name)) = (below.parent(), below.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        base.descend_or_create(folder)?.replace(name, bytes, existing)
    }

    /// Where it is opened from, and the way from there.
    fn base(&self) -> io::Result<(Dir, &Path)> {
        let (base, below) = self.base_path()?;
        Ok((Dir::root(base)?, below))
    }

    /// The folder that it is opened from, and the way from there.
    pub(super) fn base_path(&self) -> io::Result<(&Path, &Path)> {
        let base = if self.inside { self.root.as_path() } else { Path::new("/") };
        let below = self.path.strip_prefix(base).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok((base, below))
    }

    /// Whether a path of which no part is a link may not be touched, though this one may.
    pub(super) fn withholds(&self, path: &Path) -> bool {
        self.paths.withholds(path, &self.root)
    }
}

/// `path` relative to `root` where it is inside.
pub(super) fn shown(path: &Path, root: &Path) -> String {
    match path.strip_prefix(root) {
        Ok(relative) if relative.as_os_str().is_empty() => ".".to_owned(),
        Ok(relative) => relative.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}

impl Paths {
    /// `withheld` are absolute; they need not exist yet.
    pub(super) fn new(guard: PathGuard, withheld: &[PathBuf]) -> Self {
        // What cannot be resolved is nowhere that could be reached either.
        let real = withheld.iter().map(|path| real_path(path).unwrap_or_else(|_| path.clone()));
        Self { guard, withheld: real.collect() }
    }

    fn withholds(&self, path: &Path, root: &Path) -> bool {
        // A root in there is the operator's choice.
        self.withheld.iter().any(|withheld| path.starts_with(withheld) && !root.starts_with(withheld))
    }

    /// Resolves what a caller wrote against the session's root. Blocking.
    ///
    /// # Errors
    /// `NotPermitted` for what is withheld, and for a path outside when the guard blocks; `ExecutionError` when it cannot be
    /// resolved.
    pub(super) fn admit(&self, session: &Session, written: &str) -> Result<Target, ToolError> {
        let target = self.resolve(session, written)?;
        if target.withholds(&target.path) {
            let why = "is where Toolwright keeps logins, approvals and what belongs to other sessions: no tool for files goes there";
            return Err(ToolError::new(ErrorKind::NotPermitted, format!("`{written}` {why}")));
        }
        if target.inside || self.guard == PathGuard::Off {
            return Ok(target);
        }
        if self.guard == PathGuard::Block {
            return Err(ToolError::new(
                ErrorKind::NotPermitted,
                format!(
                    "`{written}` is outside the workspace root {}: use a path inside it. The operator can move the root \
                     with --root DIR, or loosen `defaults.path_guard` (block, warn, off)",
                    target.root.display()
                ),
            ));
        }
        tracing::warn!(path = %target.path.display(), root = %target.root.display(), "path outside the workspace root");
        Ok(target)
    }

    /// What reading this path touches.
    pub(super) fn scope(&self, session: &Session, written: &str) -> CallScope {
        match self.resolve(session, written) {
            Ok(target) if target.inside => CallScope::Workspace,
            _ => CallScope::Anywhere,
        }
    }

    /// Where a call's argument leads; nothing where that cannot be told: such a call fails.
    pub(super) fn located(&self, session: &Session, written: &Value) -> Option<PathBuf> {
        self.resolve(session, written.as_str()?).ok().map(|target| target.path)
    }

    /// The files of a call that reads what its argument `path` names; without it the workspace root.
    pub(super) fn read_by(&self, session: &Session, arguments: &Value) -> FileUse {
        let root = Value::from(ROOT);
        let path = arguments.get("path").unwrap_or(&root);
        FileUse { reads: self.located(session, path).into_iter().collect(), ..FileUse::default() }
    }

    pub(super) fn resolve(&self, session: &Session, written: &str) -> Result<Target, ToolError> {
        let root = session
            .root
            .canonicalize()
            .map_err(|error| io_failure("use the workspace root", &session.root.display().to_string(), &error))?;
        let path = real_path(&root.join(written)).map_err(|error| io_failure("resolve", written, &error))?;
        let inside = path.starts_with(&root);
        Ok(Target { path, root, inside, written: written.to_owned(), paths: self.clone() })
    }
}

/// The path with all links resolved; parts at its end that do not exist are kept as they are.
pub(super) fn real_path(path: &Path) -> io::Result<PathBuf> {
    let mut existing = path;
    let mut missing = Vec::new();
    loop {
        match existing.canonicalize() {
            Ok(mut real) => {
                real.extend(missing.iter().rev());
                return Ok(real);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A link to nothing would be followed on creation, to wherever it points.
                if existing.symlink_metadata().is_ok() {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        "it is a symbolic link to something that does not exist",
                    ));
                }
                // `..` has no file name: nothing can be above a folder that does not exist.
                let (Some(name), Some(parent)) = (existing.file_name(), existing.parent()) else { return Err(error) };
                missing.push(name);
                existing = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Where a write may go, and which of these places are not ordinary.
#[derive(Debug, Clone)]
pub(super) struct WriteGuard {
    /// What happens to paths outside.
    pub(super) paths: Paths,
    listed: Arc<[PathBuf]>,
}

impl WriteGuard {
    /// Protects what has a protected name, and as configuration the absolute paths `listed` with all below them.
    pub(super) fn new(paths: Paths, listed: &[PathBuf]) -> Self {
        Self { paths, listed: listed.into() }
    }

    /// What writing to this path touches.
    pub(super) fn scope(&self, session: &Session, written: &str) -> CallScope {
        self.paths.resolve(session, written).map_or(CallScope::Anywhere, |target| self.reach(&target))
    }

    /// Resolves a path for a call that writes.
    ///
    /// # Errors
    /// As [`Paths::admit`]; `NotPermitted` also where the path leads further by now than policy was told.
    pub(super) fn admit(&self, context: &ToolContext, written: &str) -> Result<Target, ToolError> {
        let target = self.paths.admit(&context.session, written)?;
        if self.reach(&target) > context.scope {
            let why = "leads elsewhere than it did when the call was judged: call again";
            return Err(ToolError::new(ErrorKind::NotPermitted, format!("`{written}` {why}")));
        }
        Ok(target)
    }

    /// The files of a call that changes a part of the file that its argument `path` names.
    pub(super) fn changed_by(&self, session: &Session, arguments: &Value) -> FileUse {
        FileUse::changing(self.paths.located(session, &arguments["path"]))
    }

    fn reach(&self, target: &Target) -> CallScope {
        // As it was written too: where a link has such a name, programs follow it as we do.
        let written = target.root.join(&target.written);
        let named = |has: fn(&Path) -> bool| {
            [&target.path, &written].iter().any(|path| has(path.strip_prefix(&target.root).unwrap_or(path)))
        };
        if named(is_own) || self.listed.iter().any(|listed| leads_to(listed, &target.path)) {
            return CallScope::Configuration;
        }
        let reached = links_of(&target.root).filter(|(_, real)| target.path.starts_with(real));
        let by_links =
            reached.map(|(link, _)| if is_own(&link) { CallScope::Configuration } else { CallScope::Anywhere });
        let ordinary = target.inside && !named(is_protected);
        by_links.max().unwrap_or(if ordinary { CallScope::Workspace } else { CallScope::Anywhere })
    }
}

/// The links of the root folder that have a protected name, relative, and where they lead. One that leads nowhere waits for
/// any new file.
fn links_of(root: &Path) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = PathBuf::from(entry.file_name());
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if !is_link || !is_protected(&name) {
            return None;
        }
        match real_path(&entry.path()) {
            Ok(real) => Some((name, real)),
            Err(error) => (error.kind() == io::ErrorKind::NotFound).then(|| (name, PathBuf::from("/"))),
        }
    })
}

/// Whether writing `target` writes `protected`, or something below it.
fn leads_to(protected: &Path, target: &Path) -> bool {
    match real_path(protected) {
        Ok(real) => target.starts_with(real),
        // A link to nothing: any new file may be what it waits for.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
