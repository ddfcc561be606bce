//! The files of a configuration: where they are searched, how they are read and named, and when they changed.

pub(in crate::config) mod folders;
pub(in crate::config) mod front_matter;
pub(in crate::config) mod node;

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use self::folders::FolderKind;
use self::node::SourceLocation;
use crate::private_file::{self, OtherUsersAccess};

/// Looks up a variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Largest configuration file that is read.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// A place where a configuration may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The file.
    pub path: PathBuf,
    /// The kind of file.
    pub kind: LayerKind,
}

/// The kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// A file given with `--config`, which must exist.
    Given,
    /// A project's `toolwright.yaml`.
    Project,
    /// A project's `.mcp.json`, shared with other clients: unknown keys only warn.
    Foreign,
    /// The user's or the system's `toolwright.yaml`.
    Base,
    /// A project's folder of agent files or skills.
    ProjectFolder(FolderKind),
    /// Another folder of agent files or skills.
    StandingFolder(FolderKind),
}

impl LayerKind {
    /// Returns whether it belongs to a project, and so needs approval.
    #[must_use]
    pub fn is_of_project(self) -> bool {
        matches!(self, Self::Project | Self::Foreign | Self::ProjectFolder(_))
    }
}

/// Returns the user's file and the system's.
pub(crate) fn base_files(variables: Variables<'_>) -> Vec<PathBuf> {
    user_file(variables).into_iter().chain([PathBuf::from("/etc/toolwright/toolwright.yaml")]).collect()
}

/// Returns the user's configuration file; `None` without a home.
#[must_use]
pub fn user_file(variables: Variables<'_>) -> Option<PathBuf> {
    Some(config_home(variables)?.join("toolwright/toolwright.yaml"))
}

/// Returns the user's home folder.
pub(crate) fn home(variables: Variables<'_>) -> Option<PathBuf> {
    variables("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}

pub(in crate::config) fn config_home(variables: Variables<'_>) -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    variables("XDG_CONFIG_HOME")
        .and_then(|path| absolute(path.into()))
        .or_else(|| home(variables).map(|home| home.join(".config")))
}

/// Reads a configuration file of limited size. Devices and pipes are refused: an untrusted repository may link to one,
/// which never ends or never answers.
pub(crate) fn read_text(path: &Path) -> std::io::Result<String> {
    private_file::read(path, OtherUsersAccess::Anything, MAX_FILE)
}

/// The files of a project, by name.
pub(in crate::config) const NAMES: [(&str, LayerKind); 2] =
    [("toolwright.yaml", LayerKind::Project), (".mcp.json", LayerKind::Foreign)];

/// Returns the kind of the project file with this name, if any.
pub(crate) fn project_kind(file: &Path) -> Option<LayerKind> {
    let name = file.file_name()?;
    if let Some(kind) = FolderKind::of(file) {
        return Some(LayerKind::ProjectFolder(kind));
    }
    NAMES.iter().find(|(known, _)| name == *known).map(|(_, kind)| *kind)
}

/// The directory in which the system lists a process's open files under changing names.
const OPENED: &str = "/proc";

/// The names of the read files, by their paths.
#[derive(Debug)]
pub(crate) struct FileNames {
    /// The paths of the user's file and the system's.
    base_files: Vec<PathBuf>,
    names: BTreeMap<PathBuf, String>,
}

impl FileNames {
    /// Creates it without files.
    pub(crate) fn with_base_files(base_files: Vec<PathBuf>) -> Self {
        Self { base_files, names: BTreeMap::new() }
    }

    /// Records a file that is read.
    ///
    /// # Errors
    /// Its folder cannot be resolved. Its sources must not get a different name then, because they would count as new.
    pub(crate) fn add(&mut self, file: &Path) -> std::io::Result<()> {
        let found = place(file, Some(&folder_of(file)?));
        // Some home folders are links whose target changes with each update of the home, but the searched paths stay
        // the same.
        let is_same_file = |path: &&PathBuf| *path == file || place(path, folder_of(path).ok().as_deref()) == found;
        let base = self.base_files.iter().find(is_same_file).map(|path| path.components().collect());
        let name: PathBuf = base.unwrap_or(found);
        self.names.insert(file.to_owned(), name.to_string_lossy().into_owned());
        Ok(())
    }

    /// Returns the names of all files.
    pub(crate) fn all(&self) -> Vec<String> {
        self.names.values().cloned().collect()
    }

    /// Returns the name of the file in which something was written.
    pub(crate) fn of(&self, at: &SourceLocation) -> String {
        self.names.get(&*at.file).cloned().unwrap_or_else(|| at.file.to_string_lossy().into_owned())
    }
}

fn folder_of(file: &Path) -> std::io::Result<PathBuf> {
    let folder = file.parent().unwrap_or(file);
    std::fs::canonicalize(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

/// Returns a file's name by its folder, whose real path is `found`. Links of the file itself are not resolved, because
/// their target may change.
fn place(file: &Path, found: Option<&Path>) -> PathBuf {
    match (found.filter(|folder| !folder.starts_with(OPENED)), file.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => file.components().collect(),
    }
}

/// A file's modification time, size and identity; empty if it does not exist. Links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp(Option<(Option<SystemTime>, u64, (u64, u64))>);

impl FileStamp {
    /// Returns a path with its present stamp.
    pub(crate) fn noted(path: PathBuf) -> (PathBuf, Self) {
        let stamp = Self::of(&path);
        (path, stamp)
    }

    /// Returns the present stamp of a path.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_one_name_by_any_path() {
        for (file, folder, expect) in [
            ("/home/me/p/toolwright.yaml", Some("/home/me/p"), "/home/me/p/toolwright.yaml"),
            ("/link/./toolwright.yaml", Some("/home/me/p"), "/home/me/p/toolwright.yaml"),
            // A file descriptor that a shell passes has the same name in each process.
            ("/dev/fd/63", Some("/proc/4711/fd"), "/dev/fd/63"),
            ("/gone/./x.yaml", None, "/gone/x.yaml"),
        ] {
            assert_eq!(place(Path::new(file), folder.map(Path::new)), Path::new(expect), "{file}");
        }
    }
}
