//! The shape that a schema asks for, in one line that a model can copy.

use serde_json::Value;

/// Objects inside objects that are spelled out.
const MAX_DEPTH: usize = 3;
/// Members of an object and values of an enumeration that are spelled out.
const MAX_PARTS: usize = 16;

/// What `schema` asks for, as in `{"path": string, "limit"?: integer}`; a `?` marks what may be left out.
/// None if that takes more than `limit` bytes: then it helps nobody.
#[must_use]
pub fn shape(schema: &Value, limit: usize) -> Option<String> {
    let text = describe(schema, 0)?;
    (text.len() <= limit).then_some(text)
}

fn describe(schema: &Value, depth: usize) -> Option<String> {
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(options) = schema.get("enum").and_then(Value::as_array) {
        return (options.len() <= MAX_PARTS)
            .then(|| options.iter().map(Value::to_string).collect::<Vec<_>>().join(" | "));
    }
    if let Some(branches) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
        let branches: Option<Vec<String>> =
            branches.iter().take(MAX_PARTS).map(|branch| describe(branch, depth + 1)).collect();
        return Some(branches?.join(" | "));
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let required = schema.get("required").and_then(Value::as_array);
        if properties.len() > MAX_PARTS {
            return None;
        }
        let members: Option<Vec<String>> = properties
            .iter()
            .map(|(name, property)| {
                let needed = required.is_some_and(|all| all.iter().any(|one| one == name.as_str()));
                let mark = if needed { "" } else { "?" };
                Some(format!("{}{mark}: {}", Value::from(name.as_str()), describe(property, depth + 1)?))
            })
            .collect();
        return Some(format!("{{{}}}", members?.join(", ")));
    }
    match schema.get("type") {
        Some(Value::String(one)) if one == "array" => match schema.get("items") {
            Some(items) => Some(format!("[{}]", describe(items, depth + 1)?)),
            None => Some("array".into()),
        },
        Some(Value::String(one)) => Some(one.clone()),
        Some(Value::Array(many)) => Some(many.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" | ")),
        _ => Some("any".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_small_schema_fits_in_a_line() {
        let schema = json!({"properties": {
            "path": {"type": "string"}, "n": {"type": ["integer", "null"]}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        }, "required": ["path"]});
        let expect = r#"{"path": string, "n"?: integer | null, "tags"?: ["a" | "b"]}"#;
        assert_eq!(shape(&schema, 300).as_deref(), Some(expect));
        assert_eq!(shape(&schema, 10), None);
    }
}
