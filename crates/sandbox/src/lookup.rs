//! Where a program is.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The file that `program` names: in `PATH`, or, where it has a slash, from `directory` (ours, where there is
/// none). `None` where nothing executable is there. Touches the disk.
#[must_use]
pub fn find_program(program: impl AsRef<OsStr>, directory: Option<&Path>) -> Option<PathBuf> {
    find_in(&std::env::var_os("PATH").unwrap_or_default(), program.as_ref(), directory)
}

/// As [`find_program`], with another value of `PATH`.
pub(crate) fn find_in(path: &OsStr, program: &OsStr, directory: Option<&Path>) -> Option<PathBuf> {
    let program = Path::new(program);
    if program.components().count() > 1 || program.is_absolute() {
        let path = std::path::absolute(directory.unwrap_or(Path::new("")).join(program)).ok()?;
        return path.is_file().then_some(path);
    }
    in_folders(path, program).next()
}

/// All that a command of this name could be, in the order of `PATH`.
#[must_use]
pub fn candidates(name: &str) -> Vec<PathBuf> {
    in_folders(&std::env::var_os("PATH").unwrap_or_default(), Path::new(name)).collect()
}

fn in_folders(path: &OsStr, name: &Path) -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(path).map(move |folder| folder.join(name)).filter(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
