//! Stores approved content: one private file per configuration file, in the state directory.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use toolwright_core::canonical::ContentHash;

use super::content::Content;
use crate::config::edit::write_atomically;
use crate::own_file::{self, Others};

/// Folder of the state directory.
const FOLDER: &str = "trust";
/// What the name of the record of a refusal ends with.
const REFUSED: &str = "refused";
/// Contents of one file that stay approved beside the newest: branches of a repository have their own.
const MAX_OLDER: usize = 16;
/// Files that are kept; those that were approved longest ago go first.
const MAX_RECORDS: usize = 1024;
/// Bytes of one record.
const MAX_RECORD: u64 = 64 << 20;

/// Who approved a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// A person who saw it: contents that were approved before stay approved.
    ByPerson,
    /// It is the owner's own edit, or harmless beside what was approved. Nothing older stays approved: an entry that the
    /// owner has taken out does not come back unasked.
    Harmless,
}

/// What is kept of one file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Approved {
    /// For people who look into the folder.
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
    /// Those of this state directory. Nothing is made before something is approved.
    #[must_use]
    pub fn in_state(state_dir: &Path) -> Self {
        Self { folder: state_dir.join(FOLDER) }
    }

    /// The folder that they are in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the approval of a file is or would be kept.
    #[must_use]
    pub fn record_of(&self, file: &Path) -> PathBuf {
        let place = place_of(file);
        self.folder.join(format!("{}.json", ContentHash::of_bytes(bytes_of(place.as_os_str())).to_hex()))
    }

    /// What is kept of a file. What cannot be read, or what another user may have written, counts as not approved.
    pub(super) fn approved(&self, file: &Path) -> Option<Approved> {
        read(&self.record_of(file))
    }

    /// Whether its owner refused this content of a file, the last that they were asked about.
    pub(super) fn is_refused(&self, file: &Path, content: &Content) -> bool {
        read(&self.refusal_of(file)).is_some_and(|refused: ContentHash| refused == content.hash())
    }

    /// Keeps a content of a file as refused, so that nobody is asked about it again until they want to be.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn refuse(&self, file: &Path, content: &Content) -> io::Result<()> {
        private_folder(&self.folder)?;
        write_atomically(&self.refusal_of(file), &serde_json::to_string(&content.hash())?)?;
        self.keep_bounded()
    }

    fn refusal_of(&self, file: &Path) -> PathBuf {
        self.record_of(file).with_extension(REFUSED)
    }

    /// Keeps a content of a file as approved.
    ///
    /// # Errors
    /// Those of the file system.
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
            Approved { file: place_of(file).to_string_lossy().into_owned(), content: content.clone(), older };
        write_atomically(&self.record_of(file), &serde_json::to_string(&approved)?)?;
        remove(&self.refusal_of(file))?;
        self.keep_bounded()
    }

    /// Forgets all that was approved or refused of a file. Returns whether anything was.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn revoke(&self, file: &Path) -> io::Result<bool> {
        let refused = remove(&self.refusal_of(file))?;
        Ok(remove(&self.record_of(file))? || refused)
    }

    /// The texts that are approved, of all files.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let records = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let records = records.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        records.filter_map(|path| read::<Approved>(&path)).map(|approved| approved.content.text).collect()
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

/// A record; nothing where there is none. What cannot be read, or what another user may have written, is none.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let text = own_file::read(path, Others::Read, MAX_RECORD);
    if text.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return None;
    }
    let read = text.and_then(|text| serde_json::from_str(&text).map_err(io::Error::from));
    read.inspect_err(|error| tracing::warn!("{}: this record is not used: {error}", path.display())).ok()
}

/// Returns whether there was one.
fn remove(record: &Path) -> io::Result<bool> {
    match std::fs::remove_file(record) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file by its folder's own path, however it is reached. The file may be a link: what it leads to is its content.
fn place_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (std::fs::canonicalize(folder), file.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => file.to_owned(),
    }
}

fn bytes_of(text: &OsStr) -> &[u8] {
    text.as_encoded_bytes()
}

/// Makes a folder that only its owner reads.
pub(crate) fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
