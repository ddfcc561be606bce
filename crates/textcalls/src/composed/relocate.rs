//! Moves a schema into another document and rewrites its references.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use toolwright_core::json::MAX_DEPTH;

/// Keywords whose members are schemas under names that are not keywords.
const NAMED_SCHEMAS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// Keywords that hold values and no schemas.
const VALUES: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// What tells a document or a place in it apart: every reference to it is made a path.
const PLACES: [&str; 4] = ["$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema"];

/// A moved schema.
pub(super) struct Relocation {
    /// The whole, its own references leading to `#/$defs/{key}`.
    pub(super) document: Value,
    /// What has to stand there for them to resolve; None where there are none.
    pub(super) kept: Option<Value>,
}

/// `schema` with every reference inside itself led to `#/$defs/{key}`. Anchors become paths, and a dynamic
/// reference the plain one that it starts from. A part with an `$id` of its own keeps its references.
pub(super) fn relocated(schema: &Value, key: &str) -> Relocation {
    let mut anchors = BTreeMap::new();
    find_anchors(schema, &mut String::new(), &mut anchors, 0);
    let mut walk = Walk { base: format!("#/$defs/{key}"), anchors, wanted: Vec::new(), whole: false };
    let document = walk.schema(schema, 0);
    let kept = match document.as_object() {
        _ if walk.whole => Some(document.clone()),
        Some(object) if !walk.wanted.is_empty() => {
            let wanted = object.iter().filter(|(name, _)| walk.wanted.contains(name));
            Some(wanted.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>().into())
        }
        _ => None,
    };
    Relocation { document, kept }
}

struct Walk {
    base: String,
    /// Anchors and the paths to them.
    anchors: BTreeMap<String, String>,
    /// Members of the root that references lead into.
    wanted: Vec<String>,
    /// A reference leads to the root itself.
    whole: bool,
}

impl Walk {
    fn schema(&mut self, schema: &Value, depth: usize) -> Value {
        match schema {
            Value::Object(object) if depth <= MAX_DEPTH && !(depth > 0 && object.contains_key("$id")) => {
                let moved = object.iter().filter(|(name, _)| !is_place(name, depth));
                moved.map(|(name, value)| self.keyword(object, name, value, depth)).collect::<Map<_, _>>().into()
            }
            Value::Array(items) if depth <= MAX_DEPTH => {
                items.iter().map(|item| self.schema(item, depth + 1)).collect::<Vec<_>>().into()
            }
            other => other.clone(),
        }
    }

    fn keyword(&mut self, schema: &Map<String, Value>, name: &str, value: &Value, depth: usize) -> (String, Value) {
        match (name, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                let name = if schema.contains_key("$ref") { name } else { "$ref" };
                (name.into(), self.reference(reference).into())
            }
            (name, Value::Object(members)) if NAMED_SCHEMAS.contains(&name) => {
                let moved = members.iter().map(|(name, member)| (name.clone(), self.schema(member, depth + 2)));
                (name.into(), moved.collect::<Map<_, _>>().into())
            }
            (name, value) if VALUES.contains(&name) => (name.into(), value.clone()),
            (name, value) => (name.into(), self.schema(value, depth + 1)),
        }
    }

    /// Where a reference leads from now on; one to another document leads there.
    fn reference(&mut self, reference: &str) -> String {
        let Some(fragment) = reference.strip_prefix('#') else { return reference.into() };
        let path = match self.anchors.get(fragment) {
            Some(path) => path.as_str(),
            None if fragment.is_empty() || fragment.starts_with('/') => fragment,
            None => return reference.into(),
        };
        match path.split('/').nth(1) {
            None => self.whole = true,
            Some(member) => self.wanted.push(member.replace("%24", "$").replace("~1", "/").replace("~0", "~")),
        }
        format!("{}{path}", self.base)
    }
}

/// Whether the keyword names the document or a place in it; `$id` inside it does for another one.
fn is_place(keyword: &str, depth: usize) -> bool {
    PLACES.contains(&keyword) || (depth == 0 && keyword == "$id")
}

/// The anchors of a document. `path` is where `schema` is.
fn find_anchors(schema: &Value, path: &mut String, anchors: &mut BTreeMap<String, String>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let length = path.len();
    match schema {
        Value::Object(object) => {
            for keyword in ["$anchor", "$dynamicAnchor"] {
                if let Some(Value::String(name)) = object.get(keyword) {
                    anchors.entry(name.clone()).or_insert_with(|| path.clone());
                }
            }
            for (name, value) in object.iter().filter(|(name, _)| !VALUES.contains(&name.as_str())) {
                path.push('/');
                path.push_str(&name.replace('~', "~0").replace('/', "~1").replace('%', "%25"));
                find_anchors(value, path, anchors, depth + 1);
                path.truncate(length);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("/{index}"));
                find_anchors(item, path, anchors, depth + 1);
                path.truncate(length);
            }
        }
        _ => {}
    }
}
