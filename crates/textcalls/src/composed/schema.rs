//! Builds the composed schema.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toolwright_core::model::Exposed;

use super::relocate::{Relocation, relocated};
use super::{ARGUMENTS_KEY, ComposedTool, Form, OUTPUT_KEY, REASONING_KEY, TOOL_KEY, key_of_parameter};

/// What an object schema may say beside its properties and still be written as a list of them: nothing that
/// speaks about the object as a whole.
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
    let shown = tools.iter().filter(|tool| tool.tool.exposed != Exposed::Deferred);
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

/// One call: a closed object.
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

/// `schema` where it is to stand; one with references inside it moves to `$defs`.
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

/// A schema that is no more than a list of properties.
struct Listed<'a, Required: Iterator<Item = &'a str>> {
    required: Required,
}

/// Reads `schema` as a list of properties: it names them, does not want others, and says nothing about the
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
