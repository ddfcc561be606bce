//! A document as it was read, with the files that it refers to. Nothing is fetched: other files are taken from below the
//! document's own folder, and a document from the network has none.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use serde_json::Value;
use url::Url;

use super::budget::Budget;
use super::error::OpenApiError;
use super::xml::XmlSchemas;

/// Bytes of one document.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// Other files that a document may refer to.
const MAX_FILES: usize = 64;
/// Other files that one file may name, however each is written.
const MAX_NAMED: usize = 1024;
/// References that may lead to one another.
const MAX_HOPS: usize = 32;
/// Containers inside one another that are looked through.
const MAX_DEPTH: usize = 120;

/// Where a document comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// The network.
    Url(Url),
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
    files: Vec<Value>,
    /// Which file a reference means, by the file that it stands in and what is written before its `#`.
    targets: HashMap<(usize, String), Result<usize, String>>,
}

impl Document {
    /// Reads the text of a document and the files that it refers to.
    ///
    /// # Errors
    /// [`OpenApiError`]; a file that is missing is one of the operations that need it.
    pub(super) fn read(text: &str, origin: Origin) -> Result<Self, OpenApiError> {
        let value = parse(text).map_err(OpenApiError::Syntax)?;
        let version = version(&value)?;
        let mut document = Self {
            origin,
            version,
            budget: Budget::new(),
            xml: XmlSchemas::default(),
            files: vec![value],
            targets: HashMap::new(),
        };
        document.read_others();
        Ok(document)
    }

    /// The whole document.
    pub(super) fn root(&self) -> Part<'_> {
        Part { file: 0, value: self.files.first().unwrap_or(&Value::Null) }
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

    /// What a reference in that file names.
    ///
    /// # Errors
    /// Why it names nothing.
    pub(super) fn target(&self, file: usize, reference: &str) -> Result<Part<'_>, String> {
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let file = match path {
            "" => file,
            path => match self.targets.get(&(file, path.to_owned())) {
                Some(Ok(file)) => *file,
                Some(Err(reason)) => return Err(format!("$ref `{reference}`: {reason}")),
                None => return Err(format!("$ref `{reference}` was not read")),
            },
        };
        let whole = self.files.get(file).unwrap_or(&Value::Null);
        if fragment.is_empty() {
            return Ok(Part { file, value: whole });
        }
        let pointer = percent_decode_str(fragment).decode_utf8_lossy();
        let value =
            whole.pointer(&pointer).ok_or_else(|| format!("$ref `{reference}` names nothing in the document"))?;
        Ok(Part { file, value })
    }

    fn read_others(&mut self) {
        let folder = match &self.origin {
            Origin::File(path) => {
                path.parent().map(|folder| std::fs::canonicalize(folder).unwrap_or(folder.to_owned()))
            }
            Origin::Url(_) => None,
        };
        let start = match &self.origin {
            Origin::File(path) => std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()),
            Origin::Url(_) => PathBuf::new(),
        };
        let mut paths = vec![start];
        let mut next = 0;
        while next < self.files.len() {
            let mut found = BTreeSet::new();
            if let Some(file) = self.files.get(next) {
                foreign_references(file, &mut found, 0);
            }
            for path in found {
                let key = (next, path);
                if self.targets.contains_key(&key) {
                    continue;
                }
                let here = paths.get(next).cloned().unwrap_or_default();
                let read = self.read_other(&key.1, &here, folder.as_deref(), &mut paths);
                self.targets.insert(key, read);
            }
            next += 1;
        }
    }

    fn read_other(
        &mut self,
        written: &str,
        from: &Path,
        folder: Option<&Path>,
        paths: &mut Vec<PathBuf>,
    ) -> Result<usize, String> {
        if written.contains("://") {
            return Err("references to the network are not followed: put the file beside the document".into());
        }
        let Some(folder) = folder else {
            return Err("a document from the network has no other files: save it with them, or bundle it".into());
        };
        let written = percent_decode_str(written).decode_utf8_lossy().into_owned();
        let path = from.parent().unwrap_or(folder).join(&written);
        let path = std::fs::canonicalize(&path).map_err(|error| error.to_string())?;
        if !path.starts_with(folder) {
            return Err("it lies outside of the document's folder".into());
        }
        if let Some(known) = paths.iter().position(|known| *known == path) {
            return Ok(known);
        }
        if self.files.len() > MAX_FILES {
            return Err(format!("the document refers to more than {MAX_FILES} other files"));
        }
        let value = parse(&read_file(&path).map_err(|error| error.to_string())?)?;
        self.files.push(value);
        paths.push(path);
        Ok(self.files.len() - 1)
    }
}

/// The text of a file of at most [`MAX_BYTES`].
pub(super) fn read_file(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    if text.len() > MAX_BYTES {
        return Err(std::io::Error::other(format!("it is larger than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

/// JSON or YAML.
fn parse(text: &str) -> Result<Value, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        match serde_json::from_str(text) {
            Ok(value) => return Ok(value),
            // YAML's flow style begins alike; what is neither is told in JSON's words.
            Err(error) => return serde_saphyr::from_str(text).map_err(|_| format!("it is not JSON: {error}")),
        }
    }
    serde_saphyr::from_str(text).map_err(|error| {
        let message = error.without_snippet().to_string();
        format!("it is neither JSON nor YAML: {}", message.lines().next().unwrap_or_default())
    })
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

/// What stands before the `#` of the references to other files, [`MAX_NAMED`] of them at most.
fn foreign_references(value: &Value, found: &mut BTreeSet<String>, depth: usize) {
    if depth > MAX_DEPTH || found.len() >= MAX_NAMED {
        return;
    }
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref")
                && !reference.starts_with('#')
            {
                found.insert(reference.split('#').next().unwrap_or_default().to_owned());
            }
            members.values().for_each(|member| foreign_references(member, found, depth + 1));
        }
        Value::Array(items) => items.iter().for_each(|item| foreign_references(item, found, depth + 1)),
        _ => {}
    }
}
