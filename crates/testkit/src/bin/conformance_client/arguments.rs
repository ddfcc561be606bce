//! Arguments and answers that fit a schema.

use serde_json::{Map, Value, json};

/// Returns the smallest valid arguments: the required ones, each of its type.
pub(crate) fn sample(schema: &Value) -> Value {
    let properties = schema["properties"].as_object();
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let given = required.map(|name| {
        let property = properties.and_then(|properties| properties.get(name)).unwrap_or(&Value::Null);
        (name.to_owned(), value_for(property))
    });
    Value::Object(given.collect())
}

/// Returns an answer to a form: every field, by its default if it has one (SEP-1034).
pub(crate) fn answer(form: &Value) -> Value {
    let fields = form["properties"].as_object().into_iter().flatten();
    Value::Object(fields.map(|(name, field)| (name.clone(), value_for(field))).collect())
}

/// Removes null arguments, which mean no value.
pub(crate) fn without_nulls(arguments: &Value) -> Value {
    let given = arguments.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    Value::Object(given.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
}

fn value_for(schema: &Value) -> Value {
    let first = |key: &str| schema[key].as_array().and_then(|values| values.first()).cloned();
    if let Some(value) = schema.get("default").or_else(|| schema.get("const")) {
        return value.clone();
    }
    if let Some(value) = first("enum") {
        return value;
    }
    if let Some(choice) = first("oneOf").or_else(|| first("anyOf")) {
        return value_for(&choice);
    }
    match schema["type"].as_str() {
        Some("number" | "integer") => schema.get("minimum").cloned().unwrap_or_else(|| json!(5)),
        Some("boolean") => json!(true),
        Some("array") => json!([value_for(&schema["items"])]),
        Some("object") => sample(schema),
        Some("null") => Value::Null,
        _ => match schema["format"].as_str() {
            Some("email") => json!("person@example.com"),
            Some("uri") => json!("https://example.com/"),
            Some("date") => json!("2026-07-28"),
            Some("date-time") => json!("2026-07-28T12:00:00Z"),
            _ => json!("text"),
        },
    }
}
