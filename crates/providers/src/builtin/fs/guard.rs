//! Decides which paths the `fs` tools may access.
//!
//! A path is checked as the kernel would follow it: symbolic links are resolved, also those above a file that does not
//! exist yet. Exactly the checked path is then opened without following links (see `dir`), so replacing a folder by a
//! link in between makes the call fail.
//!
//! Withheld paths are never read, listed or written, regardless of the setting for paths outside: they contain logins
//! and data of other sessions, and read-only calls run without approval.

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

/// The paths that the tools may access.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    guard: PathGuard,
    /// Withheld places, with all links resolved; everything below them is withheld too.
    withheld: Arc<[PathBuf]>,
}

/// A permitted path.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Absolute, with all links resolved. The last part may not exist.
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
    /// Returns the path relative to the root if it is inside, `.` for the root itself: the form that every `fs` tool
    /// takes.
    pub(super) fn relative_text(&self) -> String {
        relative_path(&self.path, &self.root)
    }

    /// Returns the warning for the result, if any.
    pub(super) fn warning(&self) -> Option<String> {
        (self.paths.guard == PathGuard::Warn && !self.inside)
            .then(|| format!("{} is outside the workspace root {}", self.path.display(), self.root.display()))
    }

    /// Opens the folder that contains it. Returns that and the name in it; no name for the root itself.
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

    /// Replaces its content, see [`Dir::replace`]. Missing folders are created.
    pub(super) fn replace(&self, bytes: &[u8], existing: Option<&Metadata>) -> io::Result<Metadata> {
        let (base, below) = self.base()?;
        let (Some(folder), Some(name)) = (below.parent(), below.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        base.descend_or_create(folder)?.replace(name, bytes, existing)
    }

    /// Opens the folder to start from. Returns that and the path below it.
    fn base(&self) -> io::Result<(Dir, &Path)> {
        let (base, below) = self.base_path()?;
        Ok((Dir::root(base)?, below))
    }

    /// Returns the folder to start from, and the path below it.
    pub(super) fn base_path(&self) -> io::Result<(&Path, &Path)> {
        let base = if self.inside { self.root.as_path() } else { Path::new("/") };
        let below = self.path.strip_prefix(base).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok((base, below))
    }

    /// Returns whether a path without links is withheld, unlike this one.
    pub(super) fn withholds(&self, path: &Path) -> bool {
        self.paths.withholds(path, &self.root)
    }
}

/// Returns `path` relative to `root` if it is inside.
pub(super) fn relative_path(path: &Path, root: &Path) -> String {
    match path.strip_prefix(root) {
        Ok(relative) if relative.as_os_str().is_empty() => ".".to_owned(),
        Ok(relative) => relative.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}

impl Paths {
    /// Creates it. `withheld` paths are absolute and may not exist yet.
    pub(super) fn new(guard: PathGuard, withheld: &[PathBuf]) -> Self {
        // A path that cannot be resolved cannot be reached either.
        let real = withheld.iter().map(|path| real_path(path).unwrap_or_else(|_| path.clone()));
        Self { guard, withheld: real.collect() }
    }

    fn withholds(&self, path: &Path, root: &Path) -> bool {
        // A root inside a withheld place is the operator's choice.
        self.withheld.iter().any(|withheld| path.starts_with(withheld) && !root.starts_with(withheld))
    }

    /// Resolves a caller's path against the session's root. Blocking.
    ///
    /// # Errors
    /// `NotPermitted` for a withheld path, and for a path outside if the guard blocks; `ExecutionError` if it cannot be
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

    /// Returns the scope of reading this path.
    pub(super) fn scope(&self, session: &Session, written: &str) -> CallScope {
        match self.resolve(session, written) {
            Ok(target) if target.inside => CallScope::Workspace,
            _ => CallScope::Anywhere,
        }
    }

    /// Returns the path of a call's argument; `None` if that cannot be resolved, and the call will fail.
    pub(super) fn located(&self, session: &Session, written: &Value) -> Option<PathBuf> {
        self.resolve(session, written.as_str()?).ok().map(|target| target.path)
    }

    /// Returns the files of a call that reads its argument `path`, by default the workspace root.
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

/// Returns the path with all links resolved; missing parts at its end are kept.
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
                // Creating a file through a dangling link would create the link's target.
                if existing.symlink_metadata().is_ok() {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        "it is a symbolic link to something that does not exist",
                    ));
                }
                // `..` has no file name: nothing can be above a missing folder.
                let (Some(name), Some(parent)) = (existing.file_name(), existing.parent()) else { return Err(error) };
                missing.push(name);
                existing = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Decides where writes may go, and which places are special.
#[derive(Debug, Clone)]
pub(super) struct WriteGuard {
    /// The setting for paths outside.
    pub(super) paths: Paths,
    listed: Arc<[PathBuf]>,
}

impl WriteGuard {
    /// Protects protected names, and as configuration the absolute paths `listed` with everything below.
    pub(super) fn new(paths: Paths, listed: &[PathBuf]) -> Self {
        Self { paths, listed: listed.into() }
    }

    /// Returns the scope of writing to this path.
    pub(super) fn scope(&self, session: &Session, written: &str) -> CallScope {
        self.paths.resolve(session, written).map_or(CallScope::Anywhere, |target| self.reach(&target))
    }

    /// Resolves a path for a writing call.
    ///
    /// # Errors
    /// As [`Paths::admit`]; `NotPermitted` also if the path now has a wider scope than policy was given.
    pub(super) fn admit(&self, context: &ToolContext, written: &str) -> Result<Target, ToolError> {
        let target = self.paths.admit(&context.session, written)?;
        if self.reach(&target) > context.scope {
            let why = "leads elsewhere than it did when the call was judged: call again";
            return Err(ToolError::new(ErrorKind::NotPermitted, format!("`{written}` {why}")));
        }
        Ok(target)
    }

    /// Returns the files of a call that changes a part of the file in its argument `path`.
    pub(super) fn changed_by(&self, session: &Session, arguments: &Value) -> FileUse {
        FileUse::changing(self.paths.located(session, &arguments["path"]))
    }

    fn reach(&self, target: &Target) -> CallScope {
        // The written path counts too: programs follow a link with such a name as we do.
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

/// Returns the root folder's links with a protected name, relative, and their targets. A dangling link may be completed
/// by any new file.
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

/// Returns whether writing `target` writes `protected` or something below it.
fn leads_to(protected: &Path, target: &Path) -> bool {
    match real_path(protected) {
        Ok(real) => target.starts_with(real),
        // A dangling link: any new file may complete it.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
