//! A parsed document with its referenced files and its references.

mod budget;
mod files;
mod names;
mod swagger;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_net::NetError;
use url::Url;

use self::budget::Budget;
use self::files::{Files, MAX_VALUES, parse};
use self::names::resolve_references;
use crate::rest::XmlSchema;

pub(super) use self::budget::{of_text, of_value};
pub(super) use self::files::{MAX_BYTES, read_file};
pub use self::files::{content_hash, server_addresses};
pub(super) use self::swagger::UNREADABLE;

/// The longest chain of references.
const MAX_HOPS: usize = 32;

/// The origin of a document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// The network.
    Url(Url),
}

impl From<String> for Origin {
    /// Parses an origin: an http(s) address, or else a file.
    fn from(written: String) -> Self {
        match Url::parse(&written) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Self::Url(url),
            _ => Self::File(written.into()),
        }
    }
}

impl Origin {
    /// Returns the same origin; a relative file is taken relative to `folder`.
    #[must_use]
    pub fn within(self, folder: &Path) -> Self {
        match self {
            Self::File(path) => Self::File(folder.join(path)),
            Self::Url(url) => Self::Url(url),
        }
    }
}

/// A version of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V30,
    V31,
    /// 3.2 and later: additional methods, and other XML keywords.
    V32,
}

impl Version {
    /// Returns whether its schemas are plain JSON Schema.
    pub(super) fn has_json_schema(self) -> bool {
        matches!(self, Self::V31 | Self::V32)
    }
}

/// A part of a document, and its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct DocumentPart<'d> {
    pub(super) file: usize,
    pub(super) value: &'d Value,
}

impl<'d> DocumentPart<'d> {
    pub(super) fn get(self, key: &str) -> Option<Self> {
        Some(Self { file: self.file, value: self.value.get(key)? })
    }

    pub(super) fn text(self, key: &str) -> Option<&'d str> {
        self.value.get(key)?.as_str()
    }

    pub(super) fn members(self) -> impl Iterator<Item = (&'d String, Self)> {
        let file = self.file;
        self.value.as_object().into_iter().flatten().map(move |(key, value)| (key, Self { file, value }))
    }

    pub(super) fn items(self) -> impl Iterator<Item = Self> {
        let file = self.file;
        self.value.as_array().into_iter().flatten().map(move |value| Self { file, value })
    }
}

/// A document and its files, beginning with the document.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) origin: Origin,
    pub(super) version: Version,
    /// The budget for work on it.
    pub(super) budget: Budget,
    /// The XML forms of its schemas.
    pub(super) xml: XmlSchemas,
    files: Files,
}

impl Document {
    /// Reads the text of a document and its referenced files.
    ///
    /// # Errors
    /// [`OpenApiError`]. A missing file is an error only of the operations that need it.
    pub(super) fn read(text: &str, origin: Origin) -> Result<Self, OpenApiError> {
        let value = parse(text, MAX_VALUES).map_err(OpenApiError::Syntax)?;
        let value = if value.get("swagger").is_some() { swagger::converted(older(value)?) } else { value };
        let version = version(&value)?;
        let mut files = Files::read(value, text, &origin);
        if version.has_json_schema() {
            resolve_references(&mut files);
        }
        Ok(Self { origin, version, budget: Budget::new(), xml: XmlSchemas::default(), files })
    }

    /// Returns a hash of its content and that of its files.
    pub(super) fn hash(&self) -> ContentHash {
        self.files.hash()
    }

    /// Returns the whole document.
    pub(super) fn root(&self) -> DocumentPart<'_> {
        DocumentPart { file: 0, value: self.files.whole(0) }
    }

    /// Follows the references of `part` to their target.
    ///
    /// # Errors
    /// A reference cannot be resolved.
    pub(super) fn follow<'d>(&'d self, part: DocumentPart<'d>) -> Result<DocumentPart<'d>, String> {
        let mut part = part;
        for _ in 0..MAX_HOPS {
            let Some(reference) = part.text("$ref") else { return Ok(part) };
            part = self.target(part.file, reference)?;
        }
        Err("its references lead in a circle".into())
    }

    /// Returns `part` and the targets of its references, the nearest first and each once, and the error of an
    /// unresolvable reference.
    pub(super) fn chain<'d>(&'d self, part: DocumentPart<'d>) -> (Vec<DocumentPart<'d>>, Option<String>) {
        let mut chain = vec![part];
        let mut part = part;
        while let Some(reference) = part.text("$ref") {
            part = match self.budget.look(1).and_then(|()| self.target(part.file, reference)) {
                Ok(target) => target,
                Err(reason) => return (chain, Some(reason)),
            };
            if chain.len() > MAX_HOPS || chain.iter().any(|have| std::ptr::eq(have.value, part.value)) {
                return (chain, Some("its references lead in a circle".into()));
            }
            chain.push(part);
        }
        (chain, None)
    }

    /// Returns the target of a reference in that file.
    ///
    /// # Errors
    /// The reference cannot be resolved.
    pub(super) fn target(&self, file: usize, reference: &str) -> Result<DocumentPart<'_>, String> {
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let file = match path {
            "" => file,
            path => match self.files.named(file, path) {
                Some(Ok(file)) => file,
                Some(Err(reason)) => return Err(format!("$ref `{reference}`: {reason}")),
                None => return Err(format!("$ref `{reference}` was not read")),
            },
        };
        let whole = self.files.whole(file);
        if fragment.is_empty() {
            return Ok(DocumentPart { file, value: whole });
        }
        let pointer = percent_decode_str(fragment).decode_utf8_lossy();
        let value =
            whole.pointer(&pointer).ok_or_else(|| format!("$ref `{reference}` names nothing in the document"))?;
        Ok(DocumentPart { file, value })
    }
}

/// Checks and converts a document that declares Swagger 2.0.
fn older(value: Value) -> Result<Value, OpenApiError> {
    match value.get("swagger") {
        Some(Value::String(version)) if version == "2.0" => Ok(value),
        Some(Value::Number(version)) if version.as_f64() == Some(2.0) => Ok(value),
        other => Err(OpenApiError::Version(format!("(Swagger) {}", other.unwrap_or(&Value::Null)))),
    }
}

fn version(value: &Value) -> Result<Version, OpenApiError> {
    // Without quotes, YAML reads `3.1` as a number.
    let stated = |key: &str| match value.get(key) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let Some(version) = stated("openapi") else { return Err(OpenApiError::NotOpenApi) };
    match version.split('.').take(2).collect::<Vec<_>>().as_slice() {
        ["3", "0"] | ["3"] => Ok(Version::V30),
        ["3", "1"] => Ok(Version::V31),
        ["3", "2"] => Ok(Version::V32),
        _ => Err(OpenApiError::Version(version)),
    }
}

/// The XML forms of a document's schemas, by the address of the value, because the document is not moved while it is
/// read. Bodies with the same schema share them.
#[derive(Debug, Default)]
pub(super) struct XmlSchemas(RefCell<HashMap<*const Value, NumberedSchema>>);

/// The XML form of a schema, and how many existed before it.
#[derive(Debug, Clone)]
struct NumberedSchema {
    before: usize,
    schema: Result<Arc<XmlSchema>, String>,
}

impl XmlSchemas {
    /// Returns the XML form of a schema of the document, which `make` makes the first time.
    pub(super) fn of(
        &self,
        schema: &Value,
        make: impl FnOnce() -> Result<XmlSchema, String>,
    ) -> Result<Arc<XmlSchema>, String> {
        let key: *const Value = schema;
        let known = self.0.borrow().get(&key).cloned();
        let made = known.unwrap_or_else(|| {
            let schema = make().map(Arc::new);
            let mut all = self.0.borrow_mut();
            let made = NumberedSchema { before: all.len(), schema };
            all.insert(key, made.clone());
            made
        });
        made.schema
    }

    /// Returns the number of XML forms, for [forgetting](Self::forget) later ones.
    pub(super) fn mark(&self) -> usize {
        self.0.borrow().len()
    }

    /// Forgets the XML forms made since this mark. Their budget is returned, and another user of them pays again.
    pub(super) fn forget(&self, mark: usize) {
        self.0.borrow_mut().retain(|_, made| made.before < mark);
    }
}

/// The reason why a document cannot be imported at all. Errors of single operations are in
/// [`Import::refused`](crate::openapi::Import).
#[derive(Debug, thiserror::Error)]
pub enum OpenApiError {
    /// It cannot be read.
    #[error("{path} cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        error: std::io::Error,
    },
    /// It cannot be fetched.
    #[error("{url} cannot be fetched: {reason}")]
    Unfetchable {
        /// The address, without secrets.
        url: String,
        /// The reason.
        reason: String,
        /// The cause, if it is a network error.
        #[source]
        error: Option<NetError>,
    },
    /// It is neither JSON nor YAML.
    #[error("{0}")]
    Syntax(String),
    /// It is not an OpenAPI document.
    #[error("it is no OpenAPI document: it has no `openapi` field with a version, and no `swagger` field")]
    NotOpenApi,
    /// An unknown version.
    #[error("OpenAPI {0} is not known; 3.0 to 3.2 and Swagger 2.0 are")]
    Version(String),
    /// Its content differs from the approved one.
    #[error("the document, or a file that it refers to, has changed since it was approved: `toolwright trust` asks")]
    NotApproved,
    /// An invalid setting.
    #[error("{field}: {reason}")]
    Setting {
        /// Its path in the entry.
        field: String,
        /// The error.
        reason: String,
    },
}
