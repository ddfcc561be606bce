//! Locates test data that stays outside the repository.

use std::path::PathBuf;

/// The folder or file `path` of the data that `TOOLWRIGHT_TEST_DATA` names. Without it the caller skips its test, and
/// one printed line says so.
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
