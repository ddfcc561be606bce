//! Resolves references to schemas by the names that these declare (JSON Schema 2020-12, sections 8.2 and 9.1.2: `$id`,
//! `$anchor`).

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use url::Url;

use super::files::{Files, MAX_BYTES, MAX_DEPTH};

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
pub(super) fn resolve_references(files: &mut Files) {
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
