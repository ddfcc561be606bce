//! Filling `default`s. Only for tools of our own: a foreign server gets what the model wrote.

use serde_json::Value;

/// Nested objects are followed this deep; deeper defaults are the tool's own affair.
const MAX_DEPTH: usize = 16;

/// Adds the `default` of each property of `schema` that `value` lacks, nested objects included. Only
/// `properties` are looked at: a default under `anyOf` or `$ref` depends on a choice that is not ours.
/// Returns whether anything was added.
pub fn fill_defaults(schema: &Value, value: &mut Value) -> bool {
    fill(schema, value, 0)
}

fn fill(schema: &Value, value: &mut Value, depth: usize) -> bool {
    let (Some(properties), Some(object)) = (schema.get("properties").and_then(Value::as_object), value.as_object_mut())
    else {
        return false;
    };
    if depth == MAX_DEPTH {
        return false;
    }
    let mut filled = false;
    for (name, property) in properties {
        if let Some(present) = object.get_mut(name) {
            filled |= fill(property, present, depth + 1);
        } else if let Some(default) = property.get("default") {
            object.insert(name.clone(), default.clone());
            filled = true;
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, mut value: Value, expect: Value) {
        let before = value.clone();
        let filled = fill_defaults(&schema, &mut value);
        assert_eq!(value, expect);
        assert_eq!(filled, before != expect);
    }

    #[test]
    fn missing_properties_get_their_defaults_and_present_ones_stay() {
        let schema = json!({"properties": {
            "a": {"default": 1}, "b": {"default": null}, "c": {},
            "d": {"properties": {"e": {"default": "x"}}},
        }});
        check(schema.clone(), json!({}), json!({"a": 1, "b": null}));
        check(schema.clone(), json!({"a": 2, "d": {}}), json!({"a": 2, "d": {"e": "x"}, "b": null}));
        check(schema, json!([1]), json!([1]));
    }
}
