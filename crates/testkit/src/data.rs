//! Locates test data that stays outside the repository.

use std::path::PathBuf;

/// Returns the path of a file or folder in the directory that `TOOLWRIGHT_TEST_DATA` names. Without the variable,
/// prints one line and returns `None`, and the caller skips its test.
#[must_use]
pub fn test_data(path: &str) -> Option<PathBuf> {
    let found = std::env::var_os("TOOLWRIGHT_TEST_DATA").map(|folder| PathBuf::from(folder).join(path));
    let found = found.filter(|path| path.exists());
    if found.is_none() {
        #[expect(clippy::print_stdout, reason = "the output of a test")]
        {
            println!("skipped: TOOLWRIGHT_TEST_DATA names no folder with `{path}`");
        }
    }
    found
}
