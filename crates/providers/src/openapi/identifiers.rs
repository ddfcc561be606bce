//! Schemas that are referred to by names of their own (JSON Schema 2020-12, sections 8.2 and 9.1.2): `$id`, `$anchor` and
//! `$dynamicAnchor`. References to them become references by place, so that everything else knows of places alone.
//!
//! A `$dynamicRef` means the same as a `$ref` as long as one schema alone has its `$dynamicAnchor`. Where several have it,
//! it depends on the way that leads to it, and stays what it is.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use url::Url;

use super::files::{Files, MAX_BYTES, MAX_DEPTH};

/// Members whose values are no schemas, whatever stands in them.
const DATA: [&str; 5] = ["example", "examples", "default", "enum", "const"];
/// The longest place that is looked at, in bytes: longer than those of any schema that people or programs write.
const MAX_POINTER: usize = 8 << 10;
/// Members whose own members are named by whoever writes them.
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

/// A schema, or a file as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    file: usize,
    /// A JSON Pointer.
    pointer: String,
}

/// The resource that a value belongs to: a file, or the schema with an `$id` around it.
#[derive(Debug, Clone)]
struct Scope {
    address: Url,
    /// Its root in the file.
    pointer: String,
}

/// All names of a document.
#[derive(Debug, Default)]
struct Names {
    /// By address.
    resources: HashMap<String, Place>,
    /// By the address of the resource, and the anchor.
    anchors: HashMap<(String, String), Place>,
    /// How many schemas have a `$dynamicAnchor`.
    dynamic: HashMap<String, usize>,
    /// How many schemas have a `$dynamicRef`.
    asked: usize,
    /// Bytes of all places and addresses that are kept.
    kept: usize,
}

/// What the references of a file say instead.
#[derive(Default)]
struct Changes {
    all: Vec<Change>,
    /// Bytes of all, and of those of the files before.
    bytes: usize,
}

/// What a reference says instead.
struct Change {
    /// The object that it stands in.
    pointer: String,
    key: String,
    reference: String,
    /// The other file that it leads to.
    other: Option<usize>,
}

/// Settles the references of all files that name schemas by what these call themselves.
pub(super) fn settle(files: &mut Files) {
    let mut names = Names::default();
    let mut scopes = Vec::new();
    for (file, (value, found)) in files.iter().enumerate() {
        let Some(address) = own_address(file, value, found) else { return };
        let scope = Scope { address, pointer: String::new() };
        names.resources.entry(key(&scope.address)).or_insert(Place { file, pointer: String::new() });
        each(value, &scope, &mut String::new(), Role::Keywords, 0, &mut |members, scope, pointer| {
            names.collect(members, scope, file, pointer);
        });
        scopes.push(scope);
    }
    // Most documents have no such names.
    if names.anchors.is_empty() && names.asked == 0 && names.resources.len() == scopes.len() {
        return;
    }
    let mut changes = Changes::default();
    for (file, scope) in scopes.iter().enumerate() {
        each(files.whole(file), scope, &mut String::new(), Role::Keywords, 0, &mut |members, scope, pointer| {
            names.changes(files, members, scope, (file, pointer), &mut changes);
        });
        for change in std::mem::take(&mut changes.all) {
            if let Some(other) = change.other {
                files.name(file, name_of(other), other);
            }
            let whole = files.whole_mut(file);
            if let Some(Value::Object(members)) = whole.and_then(|whole| whole.pointer_mut(&change.pointer)) {
                // A dynamic reference becomes one that is not.
                let key = if change.key == "$dynamicRef" { "$ref".to_owned() } else { change.key };
                members.shift_remove("$dynamicRef");
                members.insert(key, change.reference.into());
            }
        }
    }
}

impl Names {
    /// What has no name makes no place: a document has many objects, and their places may be long.
    fn collect(&mut self, members: &Map<String, Value>, scope: &Scope, file: usize, pointer: &str) {
        self.asked += usize::from(members.contains_key("$dynamicRef"));
        // Beyond so many bytes names are not kept, and references to them lead nowhere.
        let bytes = pointer.len() + scope.address.as_str().len();
        let mut place = || {
            let kept = self.kept.saturating_add(bytes);
            (kept <= MAX_BYTES).then(|| {
                self.kept = kept;
                Place { file, pointer: pointer.to_owned() }
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

    /// What the references of one object are to say instead.
    fn changes(
        &self,
        files: &Files,
        members: &Map<String, Value>,
        scope: &Scope,
        (file, at): (usize, &str),
        changes: &mut Changes,
    ) {
        let mut note = |pointer: &str, key: &str, meant: Option<Place>| {
            let Some(meant) = meant else { return };
            let other = Some(meant.file).filter(|other| *other != file);
            // What is read as a reference is decoded.
            let fragment = meant.pointer.replace('%', "%25");
            let reference = format!("{}#{fragment}", other.map(name_of).unwrap_or_default());
            // Beyond so many bytes references stay what they are, and lead nowhere.
            changes.bytes = changes.bytes.saturating_add(pointer.len() + key.len() + reference.len());
            if changes.bytes <= MAX_BYTES {
                changes.all.push(Change { pointer: pointer.to_owned(), key: key.to_owned(), reference, other });
            }
        };
        if let Some(Value::String(reference)) = members.get("$ref") {
            note(at, "$ref", self.meant(files, reference, scope, file));
        } else if let Some(Value::String(reference)) = members.get("$dynamicRef") {
            let anchor = reference.split_once('#').map_or("", |(_, anchor)| anchor);
            if self.dynamic.get(anchor).is_none_or(|count| *count == 1) {
                note(at, "$dynamicRef", self.place(files, reference, scope, file));
            }
        }
        let mapping = members.get("discriminator").and_then(|discriminator| discriminator.get("mapping"));
        for (value, target) in mapping.and_then(Value::as_object).into_iter().flatten() {
            if let Some(target) = target.as_str().filter(|target| target.contains(['#', '/', ':'])) {
                note(&format!("{at}/discriminator/mapping"), value, self.meant(files, target, scope, file));
            }
        }
    }

    /// What a reference means, where that is not what it would be read as.
    fn meant(&self, files: &Files, reference: &str, scope: &Scope, file: usize) -> Option<Place> {
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let is_by_place = fragment.is_empty() || fragment.starts_with('/');
        let is_own = path.is_empty() && scope.pointer.is_empty();
        let is_read = || matches!(files.named(file, path), Some(Ok(_))) && scope.pointer.is_empty();
        if is_by_place && (is_own || is_read()) {
            return None;
        }
        self.place(files, reference, scope, file)
    }

    /// What a reference from this scope leads to.
    fn place(&self, files: &Files, reference: &str, scope: &Scope, file: usize) -> Option<Place> {
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let fragment = percent_decode_str(fragment).decode_utf8_lossy();
        let address = if path.is_empty() { key(&scope.address) } else { key(&scope.address.join(path).ok()?) };
        let root = match path {
            "" => Place { file, pointer: scope.pointer.clone() },
            _ => self.resources.get(&address)?.clone(),
        };
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(&(address, fragment.into_owned())).cloned();
        }
        // One that is meant from the root of the file, though the schema around it has an `$id`, stays.
        let pointer = format!("{}{fragment}", root.pointer);
        files.whole(root.file).pointer(&pointer)?;
        Some(Place { pointer, ..root })
    }
}

/// What the members of an object are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Keywords.
    Keywords,
    /// Named by whoever writes them.
    Names,
}

/// Visits each object whose members are keywords, with the resource that it belongs to and its place in the file.
fn each<V>(value: &Value, scope: &Scope, pointer: &mut String, role: Role, depth: usize, visit: &mut V)
where
    V: FnMut(&Map<String, Value>, &Scope, &str),
{
    if depth > MAX_DEPTH || pointer.len() > MAX_POINTER {
        return;
    }
    match value {
        Value::Object(members) => {
            let own = own_scope(members, scope, pointer).filter(|_| role == Role::Keywords);
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
                each(member, scope, pointer, inside, depth + 1, visit);
                pointer.truncate(length);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let length = pointer.len();
                pointer.push_str(&format!("/{at}"));
                each(item, scope, pointer, Role::Keywords, depth + 1, visit);
                pointer.truncate(length);
            }
        }
        _ => {}
    }
}

/// The resource that begins with a schema that has an `$id`.
fn own_scope(members: &Map<String, Value>, scope: &Scope, pointer: &str) -> Option<Scope> {
    let stated = members.get("$id")?.as_str().filter(|_| !pointer.is_empty())?;
    Some(Scope { address: scope.address.join(stated).ok()?, pointer: pointer.to_owned() })
}

/// The address of a file: what it says itself (OpenAPI 3.2, `$self`; JSON Schema, `$id`), else where it was found.
fn own_address(file: usize, value: &Value, found: Option<&Url>) -> Option<Url> {
    // To a document without an address what matters is that it differs from others.
    let found = found.cloned().or_else(|| Url::parse(&format!("file:///document/{file}")).ok())?;
    let stated = ["$self", "$id"].iter().find_map(|key| value.get(*key)?.as_str());
    Some(stated.and_then(|stated| found.join(stated).ok()).unwrap_or(found))
}

/// An address without its fragment.
fn key(address: &Url) -> String {
    address.as_str().split('#').next().unwrap_or_default().to_owned()
}

/// What stands before the `#` of a reference to a file that is known by its number: no name that a file is read by.
fn name_of(file: usize) -> String {
    format!("file:{file}")
}
