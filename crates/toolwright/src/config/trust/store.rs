//! Approved content: the text of a configuration file with the files it names, and the records of approvals. The state
//! directory holds one private record per configuration file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_providers::openapi::{Origin, content_hash, server_addresses};

use crate::config::{FolderKind, Problem, checked, contents, folder_summary, project_kind, read_text};
use crate::private_file::write_atomically;
use crate::private_file::{self, OtherUsersAccess, private_folder};

/// Folder of the state directory.
const FOLDER: &str = "trust";
/// Extension of the record of a refusal.
const REFUSED: &str = "refused";
/// The most approved contents of one file that are kept besides the newest, because a repository's branches differ.
const MAX_OLDER: usize = 16;
/// Maximum records; the oldest are removed first.
const MAX_RECORDS: usize = 1024;
/// Maximum bytes of a record.
const MAX_RECORD: u64 = 64 << 20;

/// How a content was approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// By a person who saw it: earlier approved contents stay approved.
    ByPerson,
    /// As the owner's own edit, or as harmless. Older contents lose their approval, so that an entry that the owner has
    /// removed does not come back.
    Harmless,
}

/// The record of one file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ApprovedFile {
    /// For people who read the folder.
    file: String,
    pub(super) content: Content,
    #[serde(default)]
    pub(super) older: Vec<ContentHash>,
}

/// The approvals of a state directory.
#[derive(Debug, Clone)]
pub struct TrustStore {
    folder: PathBuf,
}

impl TrustStore {
    /// Opens the approvals of this state directory. Creates nothing before the first approval.
    #[must_use]
    pub fn in_state(state_dir: &Path) -> Self {
        Self { folder: state_dir.join(FOLDER) }
    }

    /// Returns their folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a file's record.
    #[must_use]
    pub fn record_of(&self, file: &Path) -> PathBuf {
        let place = place_of(file);
        self.folder.join(format!("{}.json", ContentHash::of_bytes(place.as_os_str().as_encoded_bytes()).to_hex()))
    }

    /// Returns the record of a file. A record that cannot be read, or that another user may have written, does not
    /// count.
    pub(super) fn approved(&self, file: &Path) -> Option<ApprovedFile> {
        read(&self.record_of(file))
    }

    /// Returns whether the owner refused this content when last asked.
    pub(super) fn is_refused(&self, file: &Path, content: &Content) -> bool {
        read(&self.refusal_of(file)).is_some_and(|refused: ContentHash| refused == content.hash())
    }

    /// Stores that the owner refused this content, so that the question is not repeated.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn refuse(&self, file: &Path, content: &Content) -> io::Result<()> {
        private_folder(&self.folder)?;
        write_atomically(&self.refusal_of(file), &serde_json::to_string(&content.hash())?)?;
        self.keep_bounded()
    }

    fn refusal_of(&self, file: &Path) -> PathBuf {
        self.record_of(file).with_extension(REFUSED)
    }

    /// Stores this content as approved.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn approve(&self, file: &Path, content: &Content, how: Approval) -> io::Result<()> {
        private_folder(&self.folder)?;
        let before = self.approved(file).filter(|_| how == Approval::ByPerson);
        let (hash, mut older) = (content.hash(), Vec::new());
        if let Some(before) = before {
            older.push(before.content.hash());
            older.extend(before.older);
            older.retain(|known| *known != hash);
            older.truncate(MAX_OLDER);
        }
        let approved =
            ApprovedFile { file: place_of(file).to_string_lossy().into_owned(), content: content.clone(), older };
        write_atomically(&self.record_of(file), &serde_json::to_string(&approved)?)?;
        remove(&self.refusal_of(file))?;
        self.keep_bounded()
    }

    /// Removes the approvals and refusals of a file. Returns whether there were any.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn revoke(&self, file: &Path) -> io::Result<bool> {
        let refused = remove(&self.refusal_of(file))?;
        Ok(remove(&self.record_of(file))? || refused)
    }

    /// Returns the approved texts of all files.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let records = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let records = records.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        records.filter_map(|path| read::<ApprovedFile>(&path)).map(|approved| approved.content.text).collect()
    }

    fn keep_bounded(&self) -> io::Result<()> {
        let mut all: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(&self.folder)?
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        let surplus = all.len().saturating_sub(MAX_RECORDS);
        all.sort_unstable();
        all.iter().take(surplus).try_for_each(|(_, path)| std::fs::remove_file(path))
    }
}

/// Reads a record. An unreadable record, or one that another user may have written, counts as missing.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let text = private_file::read(path, OtherUsersAccess::Read, MAX_RECORD);
    if text.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return None;
    }
    let read = text.and_then(|text| serde_json::from_str(&text).map_err(io::Error::from));
    read.inspect_err(|error| tracing::warn!("{}: this record is not used: {error}", path.display())).ok()
}

/// Removes a record. Returns whether it existed.
fn remove(record: &Path) -> io::Result<bool> {
    match std::fs::remove_file(record) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the file under the canonical path of its folder. Links of the file itself are not resolved.
fn place_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (std::fs::canonicalize(folder), file.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => file.to_owned(),
    }
}

/// Maximum files of each kind that a configuration may name.
const MAX_FILES: usize = 256;
/// Maximum bytes of all texts together.
const MAX_BYTES: usize = 8 << 20;

/// The content of a project's configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Its text.
    pub text: String,
    /// The texts of the files under `llmTools`, by their written names; for a folder, those of its agents or skills, by
    /// their relative paths. `None` for unreadable ones.
    #[serde(default)]
    pub files: BTreeMap<String, Option<String>>,
    /// The hashes of the local documents under `openapi`, by their written names; `None` for unreadable ones.
    #[serde(default)]
    pub documents: BTreeMap<String, Option<ContentHash>>,
}

/// Returns whether a file of this name is a project's configuration.
#[must_use]
pub fn is_project_file(file: &Path) -> bool {
    project_kind(file).is_some()
}

impl Content {
    /// Reads the file; `None` if it does not exist.
    ///
    /// # Errors
    /// It cannot be read or is too large to store.
    pub fn read(file: &Path) -> io::Result<Option<Self>> {
        if let Some(kind) = FolderKind::of(file) {
            let of = |files| Self { text: String::new(), files, documents: BTreeMap::new() };
            return Ok(contents(kind, file, MAX_BYTES)?.map(of));
        }
        let text = match read_text(file) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Self::of(file, text).map(Some)
    }

    /// Creates the content of the file with this text.
    ///
    /// # Errors
    /// It is too large to store, together with the files that it names.
    pub fn of(file: &Path, text: String) -> io::Result<Self> {
        let mut content = Self { text, files: BTreeMap::new(), documents: BTreeMap::new() };
        let value = content.value(file).unwrap_or_default();
        let names = named(&value, "llm_tools", "file");
        let documents = named(&value, "openapi", "document");
        if names.len().max(documents.len()) > MAX_FILES {
            return Err(io::Error::other(format!("it names more than {MAX_FILES} files under llmTools or openapi")));
        }
        let folder = file.parent().unwrap_or(Path::new(""));
        let mut bytes = content.text.len();
        for name in names {
            let text = read_text(&folder.join(&name)).ok();
            bytes = bytes.saturating_add(text.as_ref().map_or(0, String::len));
            if bytes > MAX_BYTES {
                return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes with the files it names")));
            }
            content.files.insert(name, text);
        }
        for name in documents {
            if let Origin::File(path) = Origin::from(name.clone()).within(folder) {
                content.documents.insert(name, content_hash(&path).ok());
            }
        }
        Ok(content)
    }

    /// Returns its hash.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        ContentHash::of_value(&json!({"text": self.text, "files": self.files, "documents": self.documents}))
    }

    /// Returns the configuration as a value with our keys, with the named files under `files` and the hashes of
    /// documents under `documents`.
    ///
    /// # Errors
    /// It is neither YAML nor JSON.
    pub fn value(&self, file: &Path) -> Result<Value, Problem> {
        Ok(self.checked(file)?.0)
    }

    /// Returns the same without faulty parts, and their problems.
    pub(super) fn checked(&self, file: &Path) -> Result<(Value, Vec<Problem>), Problem> {
        if let Some(kind) = FolderKind::of(file) {
            return Ok((folder_summary(kind, &self.files), Vec::new()));
        }
        let kind = project_kind(file).unwrap_or(crate::config::LayerKind::Project);
        let mut problems = Vec::new();
        let mut value = checked(&self.text, &Arc::from(file), kind, &mut problems)?.to_value();
        if let Value::Object(sections) = &mut value {
            if !self.files.is_empty() {
                sections.insert("files".to_owned(), json!(self.files));
            }
            if !self.documents.is_empty() {
                sections.insert("documents".to_owned(), json!(self.documents));
            }
        }
        Ok((value, problems))
    }

    /// Returns the approved hash of the document at this path; `None` if it was not approved.
    pub(crate) fn document(&self, file: &Path, path: &Path) -> Option<ContentHash> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let names_document =
            |name: &String| matches!(Origin::from(name.clone()).within(folder), Origin::File(named) if named == path);
        let (_, approved) = self.documents.iter().find(|(name, _)| names_document(name))?;
        // An unreadable document was approved as an empty one, which is invalid.
        Some(approved.unwrap_or_else(|| ContentHash::of_bytes(&[])))
    }

    /// Returns at most `max` servers of each document, by the documents' names as written; `None` for a document that
    /// is unreadable or has changed.
    pub(super) fn servers(&self, file: &Path, max: usize) -> BTreeMap<String, Option<Vec<String>>> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let servers = |name: &str, hash: Option<ContentHash>| {
            let Origin::File(path) = Origin::from(name.to_owned()).within(folder) else { return None };
            let (now, servers) = server_addresses(&path, max).ok()?;
            (Some(now) == hash).then_some(servers)
        };
        self.documents.iter().map(|(name, hash)| (name.clone(), servers(name, *hash))).collect()
    }

    /// Returns the texts of the named files, by their paths.
    pub(crate) fn texts<'a>(&'a self, file: &'a Path) -> impl Iterator<Item = (PathBuf, Option<String>)> + 'a {
        let folder = if FolderKind::of(file).is_some() { file } else { file.parent().unwrap_or(Path::new("")) };
        self.files.iter().map(move |(name, text)| (folder.join(name), text.clone()))
    }
}

/// Returns the texts under a key of a section's entries.
fn named(value: &Value, section: &str, key: &str) -> Vec<String> {
    let entries = value.get(section).and_then(Value::as_object);
    let named = entries.into_iter().flat_map(|entries| entries.values()).filter_map(|entry| entry.get(key)?.as_str());
    named.map(str::to_owned).collect()
}
