//! The content that is approved: the text of a configuration file, and the files that it names as instructions or
//! tool descriptions.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_providers::openapi::{Origin, content_hash};

use crate::config::{Problem, checked, document_origin, project_kind, read_text};

/// Files that one configuration may name, of each kind.
const MAX_FILES: usize = 256;
/// Bytes of all texts together.
const MAX_BYTES: usize = 8 << 20;

/// The content of a project's configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Its text.
    pub text: String,
    /// The texts of the files under `llmTools`, by their names as written; nothing for one that cannot be read.
    #[serde(default)]
    pub files: BTreeMap<String, Option<String>>,
    /// What the local documents under `openapi` hold, by their names as written; nothing for one that cannot be read.
    #[serde(default)]
    pub documents: BTreeMap<String, Option<ContentHash>>,
}

/// Whether a file of this name is found as a project's configuration.
#[must_use]
pub fn is_project_file(file: &Path) -> bool {
    project_kind(file).is_some()
}

impl Content {
    /// Reads it; `None` where there is no such file.
    ///
    /// # Errors
    /// When it cannot be read, or is larger than what is kept.
    pub fn read(file: &Path) -> io::Result<Option<Self>> {
        let text = match read_text(file) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Self::of(file, text).map(Some)
    }

    /// The content of the file if this is its text.
    ///
    /// # Errors
    /// When it is larger than what is kept, with the files that it names.
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
            if let Origin::File(path) = document_origin(&name, folder) {
                content.documents.insert(name, content_hash(&path).ok());
            }
        }
        Ok(content)
    }

    /// What tells it from any other.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        ContentHash::of_value(&json!({"text": self.text, "files": self.files, "documents": self.documents}))
    }

    /// The configuration that it is, in the spelling of the typed structs, with the named files under `files` and what
    /// tells documents from others under `documents`.
    ///
    /// # Errors
    /// Where it is no YAML or JSON.
    pub fn value(&self, file: &Path) -> Result<Value, Problem> {
        Ok(self.checked(file)?.0)
    }

    /// The same, and what is wrong with its parts, which are left out of it.
    pub(super) fn checked(&self, file: &Path) -> Result<(Value, Vec<Problem>), Problem> {
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

    /// What the document at this path must hold; nothing where it is none that was approved.
    pub(crate) fn document(&self, file: &Path, path: &Path) -> Option<ContentHash> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let is_it = |name: &String| matches!(document_origin(name, folder), Origin::File(named) if named == path);
        let (_, approved) = self.documents.iter().find(|(name, _)| is_it(name))?;
        // One that could not be read is as good as empty, which is no document.
        Some(approved.unwrap_or_else(|| ContentHash::of_bytes(&[])))
    }

    /// The texts of the named files, by their paths.
    pub(crate) fn texts<'a>(&'a self, file: &'a Path) -> impl Iterator<Item = (PathBuf, Option<String>)> + 'a {
        let folder = file.parent().unwrap_or(Path::new(""));
        self.files.iter().map(move |(name, text)| (folder.join(name), text.clone()))
    }
}

/// What the entries of a section say under a key.
fn named(value: &Value, section: &str, key: &str) -> Vec<String> {
    let entries = value.get(section).and_then(Value::as_object);
    let named = entries.into_iter().flat_map(|entries| entries.values()).filter_map(|entry| entry.get(key)?.as_str());
    named.map(str::to_owned).collect()
}
