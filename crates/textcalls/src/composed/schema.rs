//! Builds the composed schema: moves the schemas of the tools into one document and rewrites their references.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toolwright_core::json::MAX_DEPTH;
use toolwright_core::model::ToolVisibility;

use super::{ARGUMENTS_KEY, ComposedTool, Form, OUTPUT_KEY, REASONING_KEY, TOOL_KEY, key_of_parameter};

/// Keywords of an object schema that can be written as a list of properties; none of them constrains the
/// object as a whole.
const BESIDE_PROPERTIES: [&str; 13] = [
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "additionalProperties",
    "default",
    "definitions",
    "description",
    "examples",
    "properties",
    "required",
    "title",
    "type",
];

pub(super) fn compose(output: Option<&Value>, tools: &[ComposedTool<'_>]) -> (Value, BTreeMap<String, Form>) {
    let mut defs = Map::new();
    let mut forms = BTreeMap::new();
    let output = match output {
        None => json!({"type": ["string", "null"]}),
        Some(schema) => json!({"anyOf": [whole(&closed(schema), "output", &mut defs), {"type": "null"}]}),
    };
    let mut items = Vec::with_capacity(tools.len());
    let shown = tools.iter().filter(|tool| tool.tool.exposed != ToolVisibility::Deferred);
    for (index, tool) in shown.enumerate() {
        let (item, form) = item(tool, index, &mut defs);
        items.push(item);
        forms.insert(tool.tool.name.clone(), form);
    }
    let calls = match items.len() {
        0 => json!({"type": "array", "maxItems": 0}),
        1 => json!({"type": "array", "items": items.pop()}),
        _ => json!({"type": "array", "items": {"anyOf": items}}),
    };
    let mut schema = json!({
        "type": "object",
        "properties": {
            "output": described(output, "The final result; null as long as calls are needed to find it."),
            "calls": described(calls, "The tools to call now, in order; empty if none is needed."),
        },
        "required": ["output", "calls"],
        "additionalProperties": false,
    });
    if !defs.is_empty() {
        schema["$defs"] = defs.into();
    }
    (schema, forms)
}

/// Returns the schema of a call, a closed object.
fn item(composed: &ComposedTool<'_>, index: usize, defs: &mut Map<String, Value>) -> (Value, Form) {
    let ComposedTool { tool, latent } = composed;
    let key = format!("tool_{index}");
    let listed = listed(&tool.parameters);
    let form = Form { wrapped: listed.is_none(), latent: latent.is_some() };
    let mut properties = Map::new();
    properties.insert(TOOL_KEY.into(), json!({"type": "string", "const": tool.name}));
    let why = json!({"type": "string", "description": "Why this tool, and why now, in one sentence."});
    properties.insert(REASONING_KEY.into(), why);
    let mut required: Vec<Value> = vec![TOOL_KEY.into(), REASONING_KEY.into()];
    match listed {
        Some(parameters) => {
            let Relocation { mut document, kept } = relocated(&tool.parameters, &key);
            defs.extend(kept.map(|kept| (key.clone(), kept)));
            if let Some(Value::Object(own)) = document.get_mut("properties").map(Value::take) {
                properties.extend(own.into_iter().map(|(name, schema)| (key_of_parameter(&name).into(), schema)));
            }
            required.extend(parameters.required.map(|name| Value::from(key_of_parameter(name))));
        }
        None => {
            let anything = json!({"type": "object"});
            let schema = if tool.parameters.is_object() { &tool.parameters } else { &anything };
            properties.insert(ARGUMENTS_KEY.into(), whole(schema, &key, defs));
            required.push(ARGUMENTS_KEY.into());
        }
    }
    if let Some(result) = latent {
        properties.insert(OUTPUT_KEY.into(), whole(result, &format!("{key}_output"), defs));
        required.push(OUTPUT_KEY.into());
    }
    let item = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    (described(item, &tool.description), form)
}

/// Returns `schema` for this place; a schema with references moves to `$defs`.
fn whole(schema: &Value, key: &str, defs: &mut Map<String, Value>) -> Value {
    let Relocation { document, kept } = relocated(schema, key);
    if kept.is_none() {
        return document;
    }
    defs.insert(key.into(), document);
    json!({"$ref": format!("#/$defs/{key}")})
}

/// `schema`, closed if it lists its properties and leaves open whether there are others.
fn closed(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if listed(&schema).is_some()
        && let Some(schema) = schema.as_object_mut()
    {
        schema.entry("additionalProperties").or_insert(false.into());
    }
    schema
}

fn described(mut schema: Value, description: &str) -> Value {
    if !description.is_empty() {
        schema["description"] = description.into();
    }
    schema
}

/// A schema that is only a list of properties.
struct Listed<'a, Required: Iterator<Item = &'a str>> {
    required: Required,
}

/// Reads `schema` as a list of properties, if it names them, allows no others, and does not constrain the
/// object as a whole.
fn listed(schema: &Value) -> Option<Listed<'_, impl Iterator<Item = &str>>> {
    let object = schema.as_object()?;
    let properties = object.get("properties")?.as_object()?;
    let required = match object.get("required") {
        None => &[][..],
        Some(names) => names.as_array()?,
    };
    let plain = object.keys().all(|keyword| BESIDE_PROPERTIES.contains(&keyword.as_str()))
        && object.get("type").is_none_or(|kind| kind == "object")
        && object.get("additionalProperties").is_none_or(|others| others == false)
        && required.iter().all(|name| name.as_str().is_some_and(|name| properties.contains_key(name)));
    plain.then(|| Listed { required: required.iter().filter_map(Value::as_str) })
}

/// Keywords whose members are named schemas.
const NAMED_SCHEMAS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// Keywords that hold values and no schemas.
const VALUES: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// Keywords that identify a document or a place in it; references to these become paths.
const PLACES: [&str; 4] = ["$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema"];

/// A moved schema.
struct Relocation {
    /// The whole schema, with its references pointing to `#/$defs/{key}`.
    document: Value,
    /// The definitions that must be kept for references; `None` without references.
    kept: Option<Value>,
}

/// Returns `schema` with its internal references redirected to `#/$defs/{key}`. Anchors become paths, and a dynamic
/// reference becomes a static one. A part with its own `$id` keeps its references.
fn relocated(schema: &Value, key: &str) -> Relocation {
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

    /// Returns the new target of a reference; references to other documents do not change.
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

/// Whether the keyword identifies the document or a place in it; a nested `$id` identifies another document.
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
