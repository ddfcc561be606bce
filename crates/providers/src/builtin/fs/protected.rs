//! Files that decide what runs. To write one of them is to run a command or to loosen policy a moment
//! later, so it never counts as a write that stays inside the workspace: policy is asked as for any place
//! on the machine. Reading them is as free as reading anything.
//!
//! Limits: the names below are those that programs act on by themselves; what a person must run first, as
//! a build script, is ordinary work. A git folder under another name (`--separate-git-dir`, a bare
//! repository) is not recognised. A hard link is no way around: writing replaces the link by a new file
//! and leaves the protected one as it was. No `fs` tool renames; commands that do are judged as commands.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolwright_core::catalogue::CallScope;
use toolwright_core::session::Session;

use super::guard::{Paths, Target, real_path};
use crate::protected::NAMES;

/// Where a write may go, and which of these places are not ordinary.
#[derive(Debug, Clone)]
pub(super) struct WriteGuard {
    /// What happens to paths outside.
    pub(super) paths: Paths,
    listed: Arc<[PathBuf]>,
}

impl WriteGuard {
    /// Protects [`NAMES`], and the absolute paths `listed` with all below them.
    pub(super) fn new(paths: Paths, listed: &[PathBuf]) -> Self {
        Self { paths, listed: listed.into() }
    }

    /// What writing to this path touches.
    pub(super) fn scope(&self, session: &Session, written: &str) -> CallScope {
        match self.paths.resolve(session, written) {
            Ok(target) if target.inside && !self.protects(&target) => CallScope::Workspace,
            _ => CallScope::Anywhere,
        }
    }

    fn protects(&self, target: &Target) -> bool {
        // As it was written too: where a link has such a name, programs follow it as we do.
        let written = target.root.join(&target.written);
        has_protected_name(&target.path, &target.root)
            || has_protected_name(&written, &target.root)
            || NAMES.iter().any(|name| leads_to(&target.root.join(name), &target.path))
            || self.listed.iter().any(|listed| leads_to(listed, &target.path))
    }
}

/// Whether a part of `path` has a protected name. What the root itself is called does not matter.
fn has_protected_name(path: &Path, root: &Path) -> bool {
    let below = path.strip_prefix(root).unwrap_or(path);
    below.iter().any(|part| NAMES.iter().any(|name| part.eq_ignore_ascii_case(name)))
}

/// Whether writing `target` writes `protected`, or something below it.
fn leads_to(protected: &Path, target: &Path) -> bool {
    match real_path(protected) {
        Ok(real) => target.starts_with(real),
        // A link to nothing: any new file may be what it waits for.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
