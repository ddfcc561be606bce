//! Files that decide what runs. To write one of them is to run a command or to loosen policy a moment
//! later, so it never counts as a write that stays inside the workspace: policy is asked as for any place
//! on the machine, and about Toolwright's own configuration a person is asked whatever policy says. Reading them is as free
//! as reading anything.
//!
//! Limits: the names below are those that programs act on by themselves; what a person must run first, as
//! a build script, is ordinary work. A git folder under another name (`--separate-git-dir`, a bare
//! repository) is not recognised. A hard link is no way around: writing replaces the link by a new file
//! and leaves the protected one as it was. No `fs` tool renames; commands that do are judged as commands.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::session::Session;

use super::guard::{Paths, Target, real_path};
use toolwright_sandbox::protected::{is_own, is_protected};

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
