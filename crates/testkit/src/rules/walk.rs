//! Walks a JSON Schema: subschemas, references and cycles.

use std::collections::HashSet;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

/// A schema inside a document.
pub(super) struct Node<'a> {
    /// JSON pointer into the `tools` array.
    pub(super) path: String,
    pub(super) schema: &'a Value,
    pub(super) place: Place,
    /// The number of object schemas around this one, including itself.
    pub(super) objects: usize,
}

impl<'a> Node<'a> {
    /// Returns the schema's keywords; none if it is `true` or `false`.
    pub(super) fn keywords(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.schema.as_object().into_iter().flatten()
    }

    pub(super) fn get(&self, keyword: &str) -> Option<&'a Value> {
        self.schema.get(keyword)
    }

    pub(super) fn is(&self, name: &str) -> bool {
        types(self.schema).any(|each| each == name)
    }

    /// Whether this is an object schema, explicitly or implied.
    pub(super) fn is_object(&self) -> bool {
        self.is("object") || (self.get("type").is_none() && self.get("properties").is_some())
    }
}

/// The place of a subschema in the schema that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    /// Under `properties`.
    Property {
        required: bool,
    },
    /// Under `$defs` or `definitions`; applies only through references.
    Definition,
    /// Under any other keyword.
    Under(&'static str),
}

/// Returns the names in a schema's `type`.
pub(super) fn types(schema: &Value) -> impl Iterator<Item = &str> {
    let said = schema.get("type");
    let one = said.and_then(Value::as_str);
    let several = said.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    one.into_iter().chain(several)
}

const MAPS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const LISTS: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];
const SINGLES: [&str; 12] = [
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];

/// Returns the schemas directly under `schema`, with their pointers relative to it.
pub(super) fn children(schema: &Value) -> Vec<(String, Place, &Value)> {
    let Some(keywords) = schema.as_object() else { return Vec::new() };
    let mut found = Vec::new();
    for keyword in MAPS {
        for (name, child) in keywords.get(keyword).and_then(Value::as_object).into_iter().flatten() {
            let place = match keyword {
                "properties" => Place::Property { required: is_required(keywords, name) },
                "$defs" | "definitions" => Place::Definition,
                _ => Place::Under(keyword),
            };
            found.push((format!("/{keyword}/{}", escape(name)), place, child));
        }
    }
    for keyword in LISTS {
        for (index, child) in keywords.get(keyword).and_then(Value::as_array).into_iter().flatten().enumerate() {
            found.push((format!("/{keyword}/{index}"), Place::Under(keyword), child));
        }
    }
    for keyword in SINGLES {
        if let Some(child @ (Value::Object(_) | Value::Bool(_))) = keywords.get(keyword) {
            found.push((format!("/{keyword}"), Place::Under(keyword), child));
        }
    }
    found
}

fn is_required(keywords: &Map<String, Value>, name: &str) -> bool {
    let required = keywords.get("required").and_then(Value::as_array);
    required.is_some_and(|names| names.iter().any(|each| each == name))
}

/// Escapes `name` for a JSON pointer.
pub(super) fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Returns `root` and every schema inside it. `path` is the pointer to `root`.
pub(super) fn nodes<'a>(root: &'a Value, path: &str) -> Vec<Node<'a>> {
    let mut found = Vec::new();
    let mut open = vec![(path.to_owned(), Place::Root, root, 0)];
    while let Some((path, place, schema, above)) = open.pop() {
        let mut node = Node { path, schema, place, objects: above };
        node.objects += usize::from(node.is_object());
        let below = children(schema).into_iter().rev();
        open.extend(below.map(|(step, place, child)| (format!("{}{step}", node.path), place, child, node.objects)));
        found.push(node);
    }
    found
}

/// Resolves `reference` inside `root`: `#`, a percent-encoded JSON pointer after `#`, or an anchor. Returns [`None`]
/// for any other reference and for one without a target.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let fragment = percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?;
    if fragment.is_empty() || fragment.starts_with('/') {
        return root.pointer(&fragment);
    }
    let is_anchor = |schema: &&Value| ["$anchor", "$dynamicAnchor"].iter().any(|key| schema[*key] == *fragment);
    nodes(root, "").into_iter().map(|node| node.schema).find(is_anchor)
}

/// Whether `start` contains itself through references inside `root`, following only children whose place `follow`
/// accepts. Definitions count only if they are referred to.
pub(super) fn is_cyclic(root: &Value, start: &Value, follow: fn(Place) -> bool) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![start];
    while let Some(schema) = open.pop() {
        let inside = children(schema).into_iter().filter(|(_, place, _)| *place != Place::Definition && follow(*place));
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|reference| resolve(root, reference));
        for next in inside.map(|(_, _, child)| child).chain(target) {
            if std::ptr::eq(next, start) {
                return true;
            }
            if seen.insert(std::ptr::from_ref(next)) {
                open.push(next);
            }
        }
    }
    false
}
