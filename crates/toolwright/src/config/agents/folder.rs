//! Folders with agent files: which there are, and what is in them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::file::front_matter;
use crate::config::files::{AGENTS, Variables, config_home, home, read_text};
use crate::config::sections::llm_tools::split;

/// Files of one folder and those in it.
const MAX_FILES: usize = 256;
/// Entries that are looked at for them.
const MAX_ENTRIES: usize = 4096;
/// Folders inside each other.
const MAX_DEPTH: usize = 4;
/// Where Claude Code keeps its files.
const CLAUDE: &str = ".claude";

/// The name that stands for any file of a folder, among watched paths.
pub(crate) const ANY: &str = "*";

/// A folder of agent files that count.
#[derive(Debug)]
pub(crate) struct AgentFolder {
    /// The files, each with its text, or why it has none.
    pub(super) files: Vec<(PathBuf, Result<String, String>)>,
}

impl AgentFolder {
    /// The files of a project's folder, as they were approved.
    pub(crate) fn approved(files: impl Iterator<Item = (PathBuf, Option<String>)>) -> Self {
        let text = |text: Option<String>| text.ok_or_else(|| "it could not be read when it was approved".to_owned());
        Self { files: files.map(|(path, read)| (path, text(read))).collect() }
    }

    /// The files of a folder as they are; `None` where there is no such folder.
    pub(crate) fn read(folder: &Path) -> io::Result<Option<Self>> {
        let Some(paths) = files_in(folder)? else { return Ok(None) };
        let text = |path: &PathBuf| read_text(path).map_err(|error| format!("cannot be read: {error}"));
        Ok(Some(Self { files: paths.into_iter().map(|path| (path.clone(), text(&path))).collect() }))
    }
}

/// The texts of the agent files below a project's folder, by their paths in it, of at most `max_bytes` together; `None`
/// where there are none.
///
/// # Errors
/// If there are too many, or the folder cannot be read.
pub(crate) fn contents(folder: &Path, max_bytes: usize) -> io::Result<Option<BTreeMap<String, Option<String>>>> {
    let Some(paths) = files_in(folder)?.filter(|paths| !paths.is_empty()) else { return Ok(None) };
    let mut bytes = 0_usize;
    let mut texts = BTreeMap::new();
    for path in paths {
        let text = read_text(&path).ok();
        bytes = bytes.saturating_add(text.as_ref().map_or(0, String::len));
        if bytes > max_bytes {
            return Err(io::Error::other(format!("its agent files have more than {max_bytes} bytes")));
        }
        let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
        texts.insert(name, text);
    }
    Ok(Some(texts))
}

/// What agent files say, by their names, for showing and comparing it.
pub(crate) fn summary(files: &BTreeMap<String, Option<String>>) -> Value {
    let of_file = |name: &str, text: &str| -> Option<Value> {
        let file: Arc<Path> = Arc::from(Path::new(name));
        let (front, body) = split(text).ok()?;
        let Value::Object(mut fields) = front_matter(front, &file).ok()?.to_value() else { return None };
        fields.insert("prompt".to_owned(), body.trim().into());
        Some(Value::Object(fields))
    };
    let mut agents = Map::new();
    for (name, text) in files {
        match text {
            Some(text) if is_document(Path::new(name), text) => {}
            Some(text) => {
                drop(agents.insert(name.clone(), of_file(name, text).unwrap_or_else(|| json!({"text": text}))))
            }
            None => drop(agents.insert(name.clone(), Value::Null)),
        }
    }
    if agents.is_empty() { json!({}) } else { json!({ "agent_files": agents }) }
}

/// Whether a file tells people about the agents beside it.
pub(super) fn is_document(path: &Path, text: &str) -> bool {
    let is_readme = path.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("readme"));
    is_readme && split(text).is_err()
}

/// Folders that may hold a project's agents: `agents` beside its configuration, and Claude Code's.
pub(crate) fn project_folders(folder: &Path, has_configuration: bool) -> impl Iterator<Item = PathBuf> {
    let own = has_configuration.then(|| folder.join(AGENTS));
    own.into_iter().chain([folder.join(CLAUDE).join(AGENTS)])
}

/// Folders that hold the user's agents, and the system's.
pub(crate) fn user_folders(variables: Variables<'_>) -> Vec<PathBuf> {
    let own = config_home(variables).map(|home| home.join("toolwright").join(AGENTS));
    let claude = home(variables).map(|home| home.join(CLAUDE).join(AGENTS));
    own.into_iter().chain([Path::new("/etc/toolwright").join(AGENTS)]).chain(claude).collect()
}

/// The paths whose change may change what is in a folder: itself and the folders in it, any file in these, and the files
/// that are there.
pub(crate) fn paths_in(folder: &Path) -> Vec<PathBuf> {
    let mut paths = vec![folder.to_owned(), folder.join(ANY)];
    // Without a folder there is nothing in it; what else is wrong is told where it is read.
    let _ = walk(folder, &mut |path, is_folder| {
        if is_folder {
            paths.push(path.join(ANY));
        }
        if is_folder || is_agent_file(&path) {
            paths.push(path);
        }
    });
    paths
}

fn is_agent_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"))
}

/// The agent files below a folder, in the order of their paths; `None` where there is no such folder.
fn files_in(folder: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let mut files = Vec::new();
    let walked = walk(folder, &mut |path, is_folder| {
        if !is_folder && is_agent_file(&path) {
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
        return Err(io::Error::other(format!("it has more than {MAX_FILES} agent files")));
    }
    files.sort_unstable();
    Ok(Some(files))
}

/// Shows every entry below a folder. Links to folders are not followed: they may lead back.
fn walk(folder: &Path, see: &mut dyn FnMut(PathBuf, bool)) -> io::Result<()> {
    let mut left = vec![(folder.to_owned(), 1)];
    let mut seen = 0;
    while let Some((folder, depth)) = left.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            seen += 1;
            if seen > MAX_ENTRIES {
                return Err(io::Error::other(format!("it has more than {MAX_ENTRIES} entries")));
            }
            let is_folder = entry.file_type()?.is_dir();
            see(entry.path(), is_folder);
            if is_folder && depth < MAX_DEPTH {
                left.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(())
}
