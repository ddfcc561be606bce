//! A parsed document with its referenced files, its references, and the names that schemas declare (JSON Schema
//! 2020-12, sections 8.2 and 9.1.2: `$id`, `$anchor`).

mod files;
mod swagger;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Map, Value};
use toolwright_core::canonical::ContentHash;
use url::Url;

use self::files::{Files, MAX_DEPTH, MAX_VALUES, parse};
use crate::openapi::body::XmlSchemas;
use crate::openapi::import::OpenApiError;
use crate::openapi::schema_walk::Budget;

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
            settle(&mut files);
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

/// Members whose values are not schemas, whatever they contain.
const DATA: [&str; 5] = ["example", "examples", "default", "enum", "const"];
/// The longest location that is examined, in bytes: longer than in any schema that people or programs write.
const MAX_POINTER: usize = 8 << 10;
/// Members whose own members have names chosen by the author.
const NAMED: [&str; 19] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "schemas",
    "responses",
    "parameters",
    "headers",
    "requestBodies",
    "securitySchemes",
    "callbacks",
    "pathItems",
    "paths",
    "webhooks",
    "links",
    "content",
    "encoding",
    "mediaTypes",
];

/// The location of a schema, or of a whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SchemaLocation {
    file: usize,
    /// A JSON Pointer.
    pointer: String,
}

/// The resource to which a value belongs: a file, or the enclosing schema with an `$id`.
#[derive(Debug, Clone)]
struct Scope {
    address: Url,
    /// Its root in the file.
    pointer: String,
}

/// All declared names of a document.
#[derive(Debug, Default)]
struct SchemaNames {
    /// Resources by address.
    resources: HashMap<String, SchemaLocation>,
    /// Anchors by the resource's address and the anchor's name.
    anchors: HashMap<(String, String), SchemaLocation>,
    /// The number of schemas with each `$dynamicAnchor`.
    dynamic: HashMap<String, usize>,
    /// The number of schemas with a `$dynamicRef`.
    asked: usize,
    /// Bytes of all stored locations and addresses.
    kept: usize,
}

/// The replacements of a file's references.
#[derive(Default)]
struct Changes {
    all: Vec<Change>,
    /// Bytes of all replacements, including those of earlier files.
    bytes: usize,
}

/// The replacement of a reference.
struct Change {
    /// The object that contains it.
    pointer: String,
    key: String,
    reference: String,
    /// The other file of its target.
    other: Option<usize>,
}

/// Resolves the references in all files to schemas by the names that these declare.
fn settle(files: &mut Files) {
    let mut names = SchemaNames::default();
    let mut scopes = Vec::new();
    for (file, (value, found)) in files.iter().enumerate() {
        let Some(address) = own_address(file, value, found) else { return };
        let scope = Scope { address, pointer: String::new() };
        names.resources.entry(key(&scope.address)).or_insert(SchemaLocation { file, pointer: String::new() });
        visit_objects(value, &scope, &mut String::new(), Role::Keywords, 0, &mut |members, scope, pointer| {
            names.collect(members, scope, file, pointer);
        });
        scopes.push(scope);
    }
    // Most documents declare no names.
    if names.anchors.is_empty() && names.asked == 0 && names.resources.len() == scopes.len() {
        return;
    }
    let mut changes = Changes::default();
    for (file, scope) in scopes.iter().enumerate() {
        visit_objects(
            files.whole(file),
            scope,
            &mut String::new(),
            Role::Keywords,
            0,
            &mut |members, scope, pointer| {
                names.changes(files, members, scope, (file, pointer), &mut changes);
            },
        );
        for change in std::mem::take(&mut changes.all) {
            if let Some(other) = change.other {
                files.name(file, name_of(other), other);
            }
            let whole = files.whole_mut(file);
            if let Some(Value::Object(members)) = whole.and_then(|whole| whole.pointer_mut(&change.pointer)) {
                // A dynamic reference becomes a static one.
                let key = if change.key == "$dynamicRef" { "$ref".to_owned() } else { change.key };
                members.shift_remove("$dynamicRef");
                members.insert(key, change.reference.into());
            }
        }
    }
}

impl SchemaNames {
    /// Collects the declared names of an object. Objects without a name get no location, because a document has many
    /// and their locations may be long.
    fn collect(&mut self, members: &Map<String, Value>, scope: &Scope, file: usize, pointer: &str) {
        self.asked += usize::from(members.contains_key("$dynamicRef"));
        // Beyond this many bytes names are not stored, and references to them cannot be resolved.
        let bytes = pointer.len() + scope.address.as_str().len();
        let mut place = || {
            let kept = self.kept.saturating_add(bytes);
            (kept <= MAX_BYTES).then(|| {
                self.kept = kept;
                SchemaLocation { file, pointer: pointer.to_owned() }
            })
        };
        for name in ["$anchor", "$dynamicAnchor"] {
            let Some(Value::String(anchor)) = members.get(name) else { continue };
            if name == "$dynamicAnchor" {
                *self.dynamic.entry(anchor.clone()).or_default() += 1;
            }
            let Some(place) = place() else { return };
            self.anchors.entry((key(&scope.address), anchor.clone())).or_insert(place);
        }
        if scope.pointer == pointer
            && let Some(place) = place()
        {
            self.resources.entry(key(&scope.address)).or_insert(place);
        }
    }

    /// Collects the replacements for the references of one object.
    fn changes(
        &self,
        files: &Files,
        members: &Map<String, Value>,
        scope: &Scope,
        (file, at): (usize, &str),
        changes: &mut Changes,
    ) {
        let mut note = |pointer: &str, key: &str, meant: Option<SchemaLocation>| {
            let Some(meant) = meant else { return };
            let other = Some(meant.file).filter(|other| *other != file);
            // References are percent-decoded when they are read.
            let fragment = meant.pointer.replace('%', "%25");
            let reference = format!("{}#{fragment}", other.map(name_of).unwrap_or_default());
            // Beyond this many bytes references are not replaced, and cannot be resolved.
            changes.bytes = changes.bytes.saturating_add(pointer.len() + key.len() + reference.len());
            if changes.bytes <= MAX_BYTES {
                changes.all.push(Change { pointer: pointer.to_owned(), key: key.to_owned(), reference, other });
            }
        };
        if let Some(Value::String(reference)) = members.get("$ref") {
            note(at, "$ref", self.special_target(files, reference, scope, file));
        } else if let Some(Value::String(reference)) = members.get("$dynamicRef") {
            let anchor = reference.split_once('#').map_or("", |(_, anchor)| anchor);
            if self.dynamic.get(anchor).is_none_or(|count| *count == 1) {
                note(at, "$dynamicRef", self.place(files, reference, scope, file));
            }
        }
        let mapping = members.get("discriminator").and_then(|discriminator| discriminator.get("mapping"));
        for (value, target) in mapping.and_then(Value::as_object).into_iter().flatten() {
            if let Some(target) = target.as_str().filter(|target| target.contains(['#', '/', ':'])) {
                note(&format!("{at}/discriminator/mapping"), value, self.special_target(files, target, scope, file));
            }
        }
    }

    /// Returns the target of a reference, if it differs from its plain reading.
    fn special_target(&self, files: &Files, reference: &str, scope: &Scope, file: usize) -> Option<SchemaLocation> {
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let is_by_place = fragment.is_empty() || fragment.starts_with('/');
        let is_own = path.is_empty() && scope.pointer.is_empty();
        let is_read = || matches!(files.named(file, path), Some(Ok(_))) && scope.pointer.is_empty();
        if is_by_place && (is_own || is_read()) {
            return None;
        }
        self.place(files, reference, scope, file)
    }

    /// Returns the target of a reference in this scope.
    fn place(&self, files: &Files, reference: &str, scope: &Scope, file: usize) -> Option<SchemaLocation> {
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let fragment = percent_decode_str(fragment).decode_utf8_lossy();
        let address = if path.is_empty() { key(&scope.address) } else { key(&scope.address.join(path).ok()?) };
        let root = match path {
            "" => SchemaLocation { file, pointer: scope.pointer.clone() },
            _ => self.resources.get(&address)?.clone(),
        };
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(&(address, fragment.into_owned())).cloned();
        }
        // A reference meant from the file's root, although the enclosing schema has an `$id`, is not replaced.
        let pointer = format!("{}{fragment}", root.pointer);
        files.whole(root.file).pointer(&pointer)?;
        Some(SchemaLocation { pointer, ..root })
    }
}

/// The kind of an object's members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Keywords.
    Keywords,
    /// Names chosen by the author.
    Names,
}

/// Visits each object whose members are keywords, with its resource and its location in the file.
fn visit_objects<V>(value: &Value, scope: &Scope, pointer: &mut String, role: Role, depth: usize, visit: &mut V)
where
    V: FnMut(&Map<String, Value>, &Scope, &str),
{
    if depth > MAX_DEPTH || pointer.len() > MAX_POINTER {
        return;
    }
    match value {
        Value::Object(members) => {
            let own = resource_scope(members, scope, pointer).filter(|_| role == Role::Keywords);
            let scope = own.as_ref().unwrap_or(scope);
            if role == Role::Keywords {
                visit(members, scope, pointer);
            }
            for (name, member) in members {
                if role == Role::Keywords && (DATA.contains(&name.as_str()) || name.starts_with("x-")) {
                    continue;
                }
                let is_named = role == Role::Keywords && NAMED.contains(&name.as_str());
                let inside = if is_named { Role::Names } else { Role::Keywords };
                let length = pointer.len();
                pointer.push('/');
                pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
                visit_objects(member, scope, pointer, inside, depth + 1, visit);
                pointer.truncate(length);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let length = pointer.len();
                pointer.push_str(&format!("/{at}"));
                visit_objects(item, scope, pointer, Role::Keywords, depth + 1, visit);
                pointer.truncate(length);
            }
        }
        _ => {}
    }
}

/// Returns the resource that begins with a schema with an `$id`.
fn resource_scope(members: &Map<String, Value>, scope: &Scope, pointer: &str) -> Option<Scope> {
    let stated = members.get("$id")?.as_str().filter(|_| !pointer.is_empty())?;
    Some(Scope { address: scope.address.join(stated).ok()?, pointer: pointer.to_owned() })
}

/// Returns the address of a file: the one it declares (OpenAPI 3.2, `$self`; JSON Schema, `$id`), else where it was
/// found.
fn own_address(file: usize, value: &Value, found: Option<&Url>) -> Option<Url> {
    // A document without an address gets a unique one.
    let found = found.cloned().or_else(|| Url::parse(&format!("file:///document/{file}")).ok())?;
    let stated = ["$self", "$id"].iter().find_map(|key| value.get(*key)?.as_str());
    Some(stated.and_then(|stated| found.join(stated).ok()).unwrap_or(found))
}

/// Returns an address without its fragment.
fn key(address: &Url) -> String {
    address.as_str().split('#').next().unwrap_or_default().to_owned()
}

/// Returns the text before `#` of a reference to a file by its number; no file is read by such a name.
fn name_of(file: usize) -> String {
    format!("file:{file}")
}
