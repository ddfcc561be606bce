//! Wraps output schemas and results in an object: MCP up to 2025-11-25 allows only objects, so a server of
//! 2026-07-28 gives older clients `{"result": value}` (SEP-2106).

use std::borrow::Cow;

use serde_json::{Map, Value, json};

/// The one property of the object around a result.
pub const RESULT: &str = "result";

/// Keywords whose value is data, without references.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords whose value maps names to schemas: its keys are not keywords.
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// Whether a schema's root says that results are objects. Like clients, this ignores `$ref` and `anyOf`.
#[must_use]
pub fn is_of_object(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("object")
}

/// Returns a schema of objects: itself, or an object schema with `result` of this schema. References into the document
/// are rewritten to the same targets, as the official SDKs do; references below a nested `$id` do not change.
#[must_use]
pub fn of_object(schema: &Value) -> Cow<'_, Value> {
    if is_of_object(schema) {
        return Cow::Borrowed(schema);
    }
    let mut inside = schema.clone();
    move_references(&mut inside);
    let mut wrapped = Map::new();
    // The dialect belongs to the document.
    if let Some(dialect @ Value::String(_)) = schema.get("$schema") {
        wrapped.insert("$schema".into(), dialect.clone());
    }
    wrapped.insert("type".into(), "object".into());
    wrapped.insert("properties".into(), json!({RESULT: inside}));
    wrapped.insert("required".into(), json!([RESULT]));
    Cow::Owned(Value::Object(wrapped))
}

/// Whether a schema looks like one that [`of_object`] wrapped in an object.
#[must_use]
pub fn is_object_wrapper(schema: &Value) -> bool {
    let only = |list: Option<&Value>| list.and_then(Value::as_array).is_some_and(|all| *all == [RESULT]);
    let properties = schema.get("properties").and_then(Value::as_object);
    is_of_object(schema)
        && only(schema.get("required"))
        && properties.is_some_and(|properties| properties.len() == 1 && properties.contains_key(RESULT))
}

/// Returns the value inside `{"result": value}`, if there is nothing else.
#[must_use]
pub fn inside(value: &Value) -> Option<&Value> {
    value.as_object().filter(|object| object.len() == 1)?.get(RESULT)
}

/// A value inside an object.
#[must_use]
pub fn wrap_value(value: Value) -> Value {
    json!({RESULT: value})
}

/// Recursion is bounded by the schema's depth, which was checked on reading.
fn move_references(node: &mut Value) {
    match node {
        Value::Array(nodes) => nodes.iter_mut().for_each(move_references),
        Value::Object(fields) if !has_own_base(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("$ref" | "$dynamicRef", Value::String(target)) => {
                        if let Some(pointer) =
                            target.strip_prefix('#').filter(|to| to.is_empty() || to.starts_with('/'))
                        {
                            *target = format!("#/properties/{RESULT}{pointer}");
                        }
                    }
                    (key, _) if DATA.contains(&key) => {}
                    (key, Value::Object(named)) if NAMED.contains(&key) => named.values_mut().for_each(move_references),
                    (_, value) => move_references(value),
                }
            }
        }
        _ => {}
    }
}

/// Whether references in a schema are relative to its own `$id`; `#name` is an anchor (draft 7) and no base.
fn has_own_base(fields: &Map<String, Value>) -> bool {
    fields.get("$id").is_some_and(|id| !id.as_str().is_some_and(|id| id.starts_with('#')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: &Value, expect: &Value) {
        assert_eq!(&*of_object(schema), expect, "{schema}");
        assert!(is_object_wrapper(expect) || schema == expect, "{schema}");
    }

    #[test]
    fn wrapping_a_schema_moves_its_references() {
        let object_of =
            |inside: Value| json!({"type": "object", "properties": {"result": inside}, "required": ["result"]});
        for same in [json!({"type": "object"}), json!({"type": "object", "properties": {"a": {"$ref": "#"}}})] {
            check(&same, &same);
        }
        for inside in [
            json!({"type": "array", "items": {"type": "string"}}),
            json!({"anyOf": [{"type": "object"}]}),
            json!({"type": ["object", "null"]}),
            json!({}),
            json!({"const": {"$ref": "#"}, "items": {"$ref": "other.json#/a"}, "$dynamicRef": "#name"}),
            json!({"$id": "https://x/y", "items": {"$ref": "#/$defs/a"}}),
        ] {
            check(&inside, &object_of(inside.clone()));
        }
        for (given, moved) in [
            (
                json!({"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "null"}}}),
                json!({"anyOf": [{"$ref": "#/properties/result"}, {"$ref": "#/properties/result/$defs/a"}], "$defs": {"a": {"type": "null"}}}),
            ),
            (
                json!({"properties": {"default": {"$ref": "#"}, "$id": {"$dynamicRef": "#/a"}}}),
                json!({"properties": {"default": {"$ref": "#/properties/result"}, "$id": {"$dynamicRef": "#/properties/result/a"}}}),
            ),
            (
                json!({"items": {"$id": "#here", "$ref": "#/a"}, "not": {"$id": "b", "$ref": "#/a"}}),
                json!({"items": {"$id": "#here", "$ref": "#/properties/result/a"}, "not": {"$id": "b", "$ref": "#/a"}}),
            ),
        ] {
            check(&given, &object_of(moved));
        }
        let mut dialect = object_of(json!({"$schema": "d", "type": "null"}));
        dialect["$schema"] = json!("d");
        check(&json!({"$schema": "d", "type": "null"}), &dialect);
    }

    #[test]
    fn values_are_wrapped_and_unwrapped() {
        assert_eq!(inside(&wrap_value(json!([1]))), Some(&json!([1])));
        for other in [json!([1]), json!({}), json!({"result": 1, "more": 2}), json!("result")] {
            assert_eq!(inside(&other), None, "{other}");
        }
    }
}
