//! A document as it was read, with the files that it refers to, and what its references lead to.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use url::Url;

use super::budget::Budget;
use super::error::OpenApiError;
use super::files::Files;
use super::identifiers;
use super::syntax::{MAX_VALUES, parse};
use super::xml::XmlSchemas;

/// References that may lead to one another.
const MAX_HOPS: usize = 32;

/// Where a document comes from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// The network.
    Url(Url),
}

impl From<String> for Origin {
    /// A place as it is written: an http(s) address, or else a file.
    fn from(written: String) -> Self {
        match Url::parse(&written) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Self::Url(url),
            _ => Self::File(written.into()),
        }
    }
}

impl Origin {
    /// The same place; a relative file is in `folder`.
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
    /// Swagger 2.0, which is not imported.
    V2,
    V30,
    V31,
    /// 3.1 and more: other methods, and other words for XML.
    V32,
}

impl Version {
    /// Whether its schemas are JSON Schema as it is.
    pub(super) fn has_json_schema(self) -> bool {
        matches!(self, Self::V31 | Self::V32)
    }
}

/// A part of a document, and the file that it stands in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'d> {
    pub(super) file: usize,
    pub(super) value: &'d Value,
}

impl<'d> Part<'d> {
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

/// A document and its files, the document first.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) origin: Origin,
    pub(super) version: Version,
    /// What may be made of it.
    pub(super) budget: Budget,
    /// What was made of its schemas for XML.
    pub(super) xml: XmlSchemas,
    files: Files,
}

impl Document {
    /// Reads the text of a document and the files that it refers to.
    ///
    /// # Errors
    /// [`OpenApiError`]; a file that is missing is one of the operations that need it.
    pub(super) fn read(text: &str, origin: Origin) -> Result<Self, OpenApiError> {
        let value = parse(text, MAX_VALUES).map_err(OpenApiError::Syntax)?;
        let version = version(&value)?;
        let mut files = Files::read(value, text, &origin);
        if version.has_json_schema() {
            identifiers::settle(&mut files);
        }
        Ok(Self { origin, version, budget: Budget::new(), xml: XmlSchemas::default(), files })
    }

    /// What tells its content, and that of its files, from any other.
    pub(super) fn hash(&self) -> ContentHash {
        self.files.hash()
    }

    /// The whole document.
    pub(super) fn root(&self) -> Part<'_> {
        Part { file: 0, value: self.files.whole(0) }
    }

    /// `part`, or what its references lead to.
    ///
    /// # Errors
    /// Why a reference leads nowhere.
    pub(super) fn follow<'d>(&'d self, part: Part<'d>) -> Result<Part<'d>, String> {
        let mut part = part;
        for _ in 0..MAX_HOPS {
            let Some(reference) = part.text("$ref") else { return Ok(part) };
            part = self.target(part.file, reference)?;
        }
        Err("its references lead in a circle".into())
    }

    /// `part` and what its references lead to, the nearest first and each once, and why one of them leads nowhere.
    pub(super) fn chain<'d>(&'d self, part: Part<'d>) -> (Vec<Part<'d>>, Option<String>) {
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

    /// What a reference in that file names.
    ///
    /// # Errors
    /// Why it names nothing.
    pub(super) fn target(&self, file: usize, reference: &str) -> Result<Part<'_>, String> {
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
            return Ok(Part { file, value: whole });
        }
        let pointer = percent_decode_str(fragment).decode_utf8_lossy();
        let value =
            whole.pointer(&pointer).ok_or_else(|| format!("$ref `{reference}` names nothing in the document"))?;
        Ok(Part { file, value })
    }
}

fn version(value: &Value) -> Result<Version, OpenApiError> {
    // YAML without quotes makes `3.1` a number.
    let stated = |key: &str| match value.get(key) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    if stated("swagger").is_some() {
        return Ok(Version::V2);
    }
    let Some(version) = stated("openapi") else { return Err(OpenApiError::NotOpenApi) };
    match version.split('.').take(2).collect::<Vec<_>>().as_slice() {
        ["3", "0"] | ["3"] => Ok(Version::V30),
        ["3", "1"] => Ok(Version::V31),
        ["3", "2"] => Ok(Version::V32),
        _ => Err(OpenApiError::Version(version)),
    }
}
