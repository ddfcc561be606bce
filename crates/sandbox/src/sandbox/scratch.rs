//! The temporary folder of one start.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Tries to remove it, and the wait between them: a tree that is being killed may still write.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// A folder that only the user may enter, removed in the background when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> io::Result<Self> {
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("toolwright-").permissions(private).tempdir()?;
        // Canonical: rules are about where it is, not about links on the way.
        folder.keep().canonicalize().map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        let remove = move || {
            for _ in 0..TRIES {
                match std::fs::remove_dir_all(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => std::thread::sleep(PAUSE),
                    _ => return,
                }
            }
            tracing::warn!(path = %path.display(), "a temporary folder could not be removed");
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
