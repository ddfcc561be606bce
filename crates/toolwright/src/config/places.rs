//! What a configuration file is called where pins are kept: the same however it is reached, and as long as it stays where
//! it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::problem::At;

/// Where the system says what a process has opened, each under another name.
const OPENED: &str = "/proc";

/// The names of the files that were read, by their paths.
#[derive(Debug)]
pub(crate) struct Places {
    /// The paths of the user's file and the system's.
    standing: Vec<PathBuf>,
    names: BTreeMap<PathBuf, String>,
}

impl Places {
    /// No file yet.
    pub(crate) fn beside(standing: Vec<PathBuf>) -> Self {
        Self { standing, names: BTreeMap::new() }
    }

    /// Notes a file that is read.
    ///
    /// # Errors
    /// When its folder cannot be found. Its sources must not get another name for that: they would count as new.
    pub(crate) fn add(&mut self, file: &Path) -> std::io::Result<()> {
        let found = place(file, Some(&folder_of(file)?));
        // The folders of some homes are links that lead elsewhere after each change of the home. Where these files are
        // looked for stays.
        let is_it = |path: &&PathBuf| *path == file || place(path, folder_of(path).ok().as_deref()) == found;
        let standing = self.standing.iter().find(is_it).map(|path| path.components().collect());
        let name: PathBuf = standing.unwrap_or(found);
        self.names.insert(file.to_owned(), name.to_string_lossy().into_owned());
        Ok(())
    }

    /// The names of all files.
    pub(crate) fn all(&self) -> Vec<String> {
        self.names.values().cloned().collect()
    }

    /// The name of the file in which something was written.
    pub(crate) fn of(&self, at: &At) -> String {
        self.names.get(&*at.file).cloned().unwrap_or_else(|| at.file.to_string_lossy().into_owned())
    }
}

fn folder_of(file: &Path) -> std::io::Result<PathBuf> {
    let folder = file.parent().unwrap_or(file);
    std::fs::canonicalize(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

/// A file by its folder, of which `found` is the name without links. The file may be a link itself: what it leads to may be
/// elsewhere after each change of it.
fn place(file: &Path, found: Option<&Path>) -> PathBuf {
    match (found.filter(|folder| !folder.starts_with(OPENED)), file.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => file.components().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_name_however_it_is_reached() {
        for (file, folder, expect) in [
            ("/home/me/p/toolwright.yaml", Some("/home/me/p"), "/home/me/p/toolwright.yaml"),
            ("/link/./toolwright.yaml", Some("/home/me/p"), "/home/me/p/toolwright.yaml"),
            // What a shell gives a process to read is called the same in each.
            ("/dev/fd/63", Some("/proc/4711/fd"), "/dev/fd/63"),
            ("/gone/./x.yaml", None, "/gone/x.yaml"),
        ] {
            assert_eq!(place(Path::new(file), folder.map(Path::new)), Path::new(expect), "{file}");
        }
    }
}
