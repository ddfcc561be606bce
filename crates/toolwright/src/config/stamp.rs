//! What tells a file from what it was, without reading it.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// When a file was written, its size, and which file it is; nothing where there is none. Links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(Option<(Option<SystemTime>, u64, (u64, u64))>);

impl Stamp {
    /// A path and its stamp as of now.
    pub(crate) fn noted(path: PathBuf) -> (PathBuf, Self) {
        let stamp = Self::of(&path);
        (path, stamp)
    }

    /// The stamp of a path as of now.
    pub(crate) fn of(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).ok();
        Self(metadata.map(|metadata| (metadata.modified().ok(), metadata.len(), identity(&metadata))))
    }
}

#[cfg(unix)]
fn identity(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> (u64, u64) {
    (0, 0)
}
