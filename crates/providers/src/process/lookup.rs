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
pub(super) fn find_in(path: &OsStr, program: &OsStr, directory: Option<&Path>) -> Option<PathBuf> {
    let program = Path::new(program);
    if program.components().count() > 1 || program.is_absolute() {
        let path = std::path::absolute(directory.unwrap_or(Path::new("")).join(program)).ok()?;
        return path.is_file().then_some(path);
    }
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
