//! Folders of agent and skill files: which exist, and their contents.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::front_matter::{front_matter, split};
use super::{Variables, config_home, home, read_text};

/// The most files of one folder, including subfolders.
const MAX_FILES: usize = 256;
/// The most entries that are searched for them.
const MAX_ENTRIES: usize = 4096;
/// The file of a skill.
const SKILL_FILE: &str = "SKILL.md";
/// The folder in which Claude Code keeps its files.
const CLAUDE: &str = ".claude";

/// Represents any file of a folder, among watched paths.
pub(crate) const ANY: &str = "*";

/// The kind of definitions in a folder's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderKind {
    /// Agents: Markdown files.
    Agents,
    /// Skills: folders with a file `SKILL.md`.
    Skills,
}

impl FolderKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Agents, Self::Skills];

    /// Returns the name of such a folder.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Skills => "skills",
        }
    }

    /// Returns the kind of a folder with this path, by its name.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?;
        Self::ALL.into_iter().find(|kind| name == kind.name())
    }

    /// Returns how many levels of subfolders are searched. Subfolders of a skill have no definitions.
    fn depth(self) -> usize {
        match self {
            Self::Agents => 4,
            Self::Skills => 2,
        }
    }

    /// Returns whether this file in such a folder is a definition.
    fn holds(self, path: &Path) -> bool {
        match self {
            Self::Agents => path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md")),
            Self::Skills => path.file_name().is_some_and(|name| name == SKILL_FILE),
        }
    }

    /// Returns whether a file only documents the others beside it.
    pub(in crate::config) fn is_document(self, path: &Path, text: &str) -> bool {
        let is_readme = path.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("readme"));
        self == Self::Agents && is_readme && split(text).is_err()
    }

    /// Returns the key of its files where their contents are shown and compared.
    fn summary_key(self) -> &'static str {
        match self {
            Self::Agents => "agent_files",
            Self::Skills => "skill_files",
        }
    }
}

/// A folder of definition files.
#[derive(Debug)]
pub(crate) struct DefinitionFolder {
    pub(in crate::config) kind: FolderKind,
    /// The files, each with its text or its error.
    pub(in crate::config) files: Vec<(PathBuf, Result<String, String>)>,
}

impl DefinitionFolder {
    /// Creates a project's folder from its approved files.
    pub(crate) fn approved(kind: FolderKind, files: impl Iterator<Item = (PathBuf, Option<String>)>) -> Self {
        let text = |text: Option<String>| text.ok_or_else(|| "it could not be read when it was approved".to_owned());
        Self { kind, files: files.map(|(path, read)| (path, text(read))).collect() }
    }

    /// Reads the files of a folder; `None` if it does not exist.
    pub(crate) fn read(kind: FolderKind, folder: &Path) -> io::Result<Option<Self>> {
        let Some(paths) = files_in(kind, folder)? else { return Ok(None) };
        let text = |path: &PathBuf| read_text(path).map_err(|error| format!("cannot be read: {error}"));
        Ok(Some(Self { kind, files: paths.into_iter().map(|path| (path.clone(), text(&path))).collect() }))
    }
}

/// Returns the texts of the files below a project's folder, by their relative paths, of at most `max_bytes` in total;
/// `None` if there are none.
///
/// # Errors
/// There are too many, or the folder cannot be read.
pub(crate) fn contents(
    kind: FolderKind,
    folder: &Path,
    max_bytes: usize,
) -> io::Result<Option<BTreeMap<String, Option<String>>>> {
    let Some(paths) = files_in(kind, folder)?.filter(|paths| !paths.is_empty()) else { return Ok(None) };
    let mut bytes = 0_usize;
    let mut texts = BTreeMap::new();
    for path in paths {
        let text = read_text(&path).ok();
        bytes = bytes.saturating_add(text.as_ref().map_or(0, String::len));
        if bytes > max_bytes {
            return Err(io::Error::other(format!("its files of {} have more than {max_bytes} bytes", kind.name())));
        }
        let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
        texts.insert(name, text);
    }
    Ok(Some(texts))
}

/// Returns the content of the files by name, for display and comparison.
pub(crate) fn summary(kind: FolderKind, files: &BTreeMap<String, Option<String>>) -> Value {
    let of_file = |name: &str, text: &str| -> Option<Value> {
        let file: Arc<Path> = Arc::from(Path::new(name));
        let (front, body) = split(text).ok()?;
        let Value::Object(mut fields) = front_matter(front, &file).ok()?.to_value() else { return None };
        fields.insert("prompt".to_owned(), body.trim().into());
        Some(Value::Object(fields))
    };
    let mut defined = Map::new();
    for (name, text) in files {
        match text {
            Some(text) if kind.is_document(Path::new(name), text) => {}
            Some(text) => {
                drop(defined.insert(name.clone(), of_file(name, text).unwrap_or_else(|| json!({"text": text}))))
            }
            None => drop(defined.insert(name.clone(), Value::Null)),
        }
    }
    if defined.is_empty() { json!({}) } else { json!({ kind.summary_key(): defined }) }
}

/// Returns the folders that may contain a project's agents and skills: those beside its configuration, and Claude
/// Code's.
pub(crate) fn project_folders(folder: &Path, has_configuration: bool) -> impl Iterator<Item = (PathBuf, FolderKind)> {
    FolderKind::ALL.into_iter().flat_map(move |kind| {
        let own = has_configuration.then(|| (folder.join(kind.name()), kind));
        own.into_iter().chain([(folder.join(CLAUDE).join(kind.name()), kind)]).collect::<Vec<_>>()
    })
}

/// Returns the folders of the user's and the system's agents and skills.
pub(crate) fn user_folders(variables: Variables<'_>) -> Vec<(PathBuf, FolderKind)> {
    let folders = |kind: FolderKind| {
        let own = config_home(variables).map(|home| home.join("toolwright").join(kind.name()));
        let claude = home(variables).map(|home| home.join(CLAUDE).join(kind.name()));
        let all = own.into_iter().chain([Path::new("/etc/toolwright").join(kind.name())]).chain(claude);
        all.map(move |path| (path, kind)).collect::<Vec<_>>()
    };
    FolderKind::ALL.into_iter().flat_map(folders).collect()
}

/// Returns the paths whose change may affect a folder's definitions: itself and its subfolders, any file in these, and
/// the existing files.
pub(crate) fn paths_in(kind: FolderKind, folder: &Path) -> Vec<PathBuf> {
    let mut paths = vec![folder.to_owned(), folder.join(ANY)];
    // A missing folder has no contents; other errors are reported when it is read.
    let _ = walk(kind, folder, &mut |path, is_folder| {
        if is_folder {
            paths.push(path.join(ANY));
        }
        if is_folder || kind.holds(&path) {
            paths.push(path);
        }
    });
    paths
}

/// Returns the files of this kind below a folder, in the order of their paths; `None` if it does not exist.
fn files_in(kind: FolderKind, folder: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let mut files = Vec::new();
    let walked = walk(kind, folder, &mut |path, is_folder| {
        if !is_folder && kind.holds(&path) {
            files.push(path);
        }
    });
    match walked {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        walked => walked?,
    }
    if files.len() > MAX_FILES {
        return Err(io::Error::other(format!("it has more than {MAX_FILES} files of {}", kind.name())));
    }
    files.sort_unstable();
    Ok(Some(files))
}

/// Visits every entry below a folder. Does not follow links to folders, which may lead back.
fn walk(kind: FolderKind, folder: &Path, see: &mut dyn FnMut(PathBuf, bool)) -> io::Result<()> {
    let mut left = vec![(folder.to_owned(), 1)];
    let mut visited = 0;
    while let Some((folder, depth)) = left.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            visited += 1;
            if visited > MAX_ENTRIES {
                return Err(io::Error::other(format!("it has more than {MAX_ENTRIES} entries")));
            }
            let is_folder = entry.file_type()?.is_dir();
            see(entry.path(), is_folder);
            if is_folder && depth < kind.depth() {
                left.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(())
}
