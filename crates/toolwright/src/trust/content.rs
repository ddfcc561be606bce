//! What is approved: the text of a configuration file, and of the files that it names to instruct models.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;

use crate::config::{Problem, checked, project_kind, read_text};

/// Files that one configuration may name.
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
        let mut content = Self { text, files: BTreeMap::new() };
        let names = content.value(file).map(|value| named_files(&value)).unwrap_or_default();
        if names.len() > MAX_FILES {
            return Err(io::Error::other(format!("it names more than {MAX_FILES} files under llmTools")));
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
        Ok(Some(content))
    }

    /// What tells it from any other.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        ContentHash::of_value(&json!({"text": self.text, "files": self.files}))
    }

    /// The configuration that it is, in the spelling of the typed structs, with the named files under `files`.
    ///
    /// # Errors
    /// Where it is no YAML or JSON.
    pub fn value(&self, file: &Path) -> Result<Value, Problem> {
        let kind = project_kind(file).unwrap_or(crate::config::LayerKind::Project);
        let mut value = checked(&self.text, &Arc::from(file), kind, &mut Vec::new())?.to_value();
        if let (Value::Object(sections), false) = (&mut value, self.files.is_empty()) {
            sections.insert("files".to_owned(), json!(self.files));
        }
        Ok(value)
    }

    /// The texts of the named files, by their paths.
    pub(crate) fn texts<'a>(&'a self, file: &'a Path) -> impl Iterator<Item = (PathBuf, Option<String>)> + 'a {
        let folder = file.parent().unwrap_or(Path::new(""));
        self.files.iter().map(move |(name, text)| (folder.join(name), text.clone()))
    }
}

fn named_files(value: &Value) -> Vec<String> {
    let tools = value.get("llm_tools").and_then(Value::as_object);
    let named = tools.into_iter().flat_map(|tools| tools.values()).filter_map(|tool| tool.get("file")?.as_str());
    named.map(str::to_owned).collect()
}
