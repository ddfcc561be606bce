//! The least change that makes a tool's schema acceptable at the root. One schema that an API refuses
//! fails the whole request, so the view shown to a model is patched; what comes back is still checked
//! against the schema as its author wrote it.

use serde_json::{Map, Value, json};

/// How many `$ref`s are followed at the root.
const MAX_HOPS: usize = 8;
/// What no API takes at the root of a tool's parameters.
const REFUSED_AT_ROOT: [&str; 5] = ["anyOf", "oneOf", "allOf", "not", "enum"];

/// The schema with an object at its root: `type: object` and `properties` present, a `$ref` at the root
/// resolved, the properties of root alternatives offered side by side, property schemas objects.
pub(crate) fn object_view(schema: &Value) -> Value {
    let mut view = resolve_root(schema);
    // Taken out and put back in its place: key order is part of the bytes.
    let mut offered = match view.get_mut("properties").map(Value::take) {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    for keyword in REFUSED_AT_ROOT {
        // `enum` and `not` hold no properties to offer.
        let refused = view.shift_remove(keyword);
        for branch in refused.as_ref().and_then(Value::as_array).into_iter().flatten() {
            for (name, property) in branch_properties(schema, branch) {
                offered.entry(name).or_insert(property);
            }
        }
    }
    for property in offered.values_mut().filter(|property| !property.is_object()) {
        *property = json!({});
    }
    let names = |required: &Value| required.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    if !view.get("required").is_none_or(names) {
        view.shift_remove("required");
    }
    view.insert("type".into(), json!("object"));
    view.insert("properties".into(), Value::Object(offered));
    Value::Object(view)
}

/// Takes the root properties that `legal` refuses out of an [`object_view`].
pub(crate) fn retain_properties(view: &mut Value, legal: impl Fn(&str) -> bool) {
    if let Some(properties) = view.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| legal(name));
    }
    if let Some(required) = view.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name.as_str().is_some_and(&legal));
    }
}

fn resolve_root(schema: &Value) -> Map<String, Value> {
    let mut view = schema.as_object().cloned().unwrap_or_default();
    for _ in 0..MAX_HOPS {
        let Some(target) = view.get("$ref").and_then(Value::as_str).and_then(|reference| local(schema, reference))
        else {
            break;
        };
        view.shift_remove("$ref");
        for (key, value) in target {
            view.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    view.shift_remove("$ref");
    view
}

fn branch_properties(schema: &Value, branch: &Value) -> Map<String, Value> {
    let branch = match branch.get("$ref").and_then(Value::as_str) {
        Some(reference) => local(schema, reference),
        None => branch.as_object(),
    };
    branch.and_then(|branch| branch.get("properties")).and_then(Value::as_object).cloned().unwrap_or_default()
}

fn local<'a>(schema: &'a Value, reference: &str) -> Option<&'a Map<String, Value>> {
    schema.pointer(reference.strip_prefix('#')?)?.as_object()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_become_objects_with_the_least_change() {
        let check = |schema: Value, expect: Value| assert_eq!(object_view(&schema), expect, "{schema}");
        let good = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "$defs": {}});
        check(good.clone(), good);
        check(json!(true), json!({"type": "object", "properties": {}}));
        check(json!({"type": "string"}), json!({"type": "object", "properties": {}}));
        check(json!({"type": ["object", "null"]}), json!({"type": "object", "properties": {}}));
        check(
            json!({"type": "object", "properties": {"a": true}, "required": true}),
            json!({"type": "object", "properties": {"a": {}}}),
        );
        check(
            json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"x": {}}}}}),
            json!({"$defs": {"A": {"type": "object", "properties": {"x": {}}}}, "type": "object", "properties": {"x": {}}}),
        );
        check(
            json!({"anyOf": [{"properties": {"a": {}}}, {"$ref": "#/$defs/B"}], "$defs": {"B": {"properties": {"b": {}}}}}),
            json!({"$defs": {"B": {"properties": {"b": {}}}}, "type": "object", "properties": {"a": {}, "b": {}}}),
        );
        check(json!({"$ref": "#"}), json!({"type": "object", "properties": {}}));
    }
}
