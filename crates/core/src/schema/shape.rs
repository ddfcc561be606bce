//! The shape of a schema, in one line that a model can copy.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::json::pointer::unescape;

/// Objects inside objects that are spelled out.
const MAX_DEPTH: usize = 3;
/// Members of an object and values of an enumeration that are spelled out.
const MAX_PARTS: usize = 16;
/// References to references that are followed.
const MAX_REFERENCES: usize = 8;
/// Bytes of one argument's shape in a list of them.
const MAX_BRIEF: usize = 60;
/// Steps of a path that are followed.
const MAX_STEPS: usize = 128;

/// Describes the values of `schema`, as in `{"path": string, "limit"?: integer}`; `?` marks optional members.
/// `None` if the description exceeds `limit` bytes: then it is no help.
#[must_use]
pub fn shape(schema: &Value, limit: usize) -> Option<String> {
    bounded(describe(schema, schema, 0), limit)
}

/// Like [`shape`], for the value at `path`, a JSON Pointer.
pub(crate) fn shape_at(schema: &Value, path: &str, limit: usize) -> Option<String> {
    bounded(describe(schema, schema_at(schema, path)?, 0), limit)
}

/// Returns the schema of the value at `path`, a JSON Pointer; `None` if `schema` does not say.
pub(crate) fn schema_at<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('/').skip(1).take(MAX_STEPS).try_fold(referred(schema, schema), |place, step| {
        let name = unescape(step);
        let member = place.get("properties").and_then(|properties| properties.get(&name));
        let inner = member.or_else(|| place.get("items").filter(|_| name.parse::<usize>().is_ok()));
        inner.or_else(|| place.get("additionalProperties")).map(|inner| referred(schema, inner))
    })
}

/// Lists the arguments of an object schema, as in `path: string, limit?: integer`: required ones first, as
/// many as fit in `limit` bytes, then the number of the others. An argument with a long description is shown by its
/// type alone.
#[must_use]
pub fn argument_list(schema: &Value, limit: usize) -> String {
    let root = referred(schema, schema);
    let Some(properties) = root.get("properties").and_then(Value::as_object) else { return String::new() };
    let required: HashSet<&str> =
        root.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let needed = |name: &str| required.contains(name);
    let all = properties.iter().filter(|(name, _)| needed(name));
    let all = all.chain(properties.iter().filter(|(name, _)| !needed(name)));
    let mut line = String::new();
    for (n, (name, property)) in all.enumerate() {
        let mark = if needed(name) { "" } else { "?" };
        let comma = if n == 0 { "" } else { ", " };
        let part = format!("{comma}{}{mark}: {}", argument_name(name), brief(schema, property));
        if line.len() + part.len() > limit {
            let _ = write!(line, "{comma}… {} more", properties.len() - n);
            break;
        }
        line.push_str(&part);
    }
    line
}

/// Returns an unambiguous name unquoted.
fn argument_name(name: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$' | '@');
    if !name.is_empty() && name.chars().all(plain) { name.into() } else { Value::from(name).to_string().into() }
}

/// The shape of one argument in few words.
fn brief(root: &Value, property: &Value) -> String {
    let whole = bounded(describe(root, property, 1), MAX_BRIEF);
    whole.unwrap_or_else(|| match referred(root, property).get("type") {
        Some(Value::String(kind)) if kind.len() <= MAX_BRIEF => kind.clone(),
        _ => "any".into(),
    })
}

fn bounded(text: Option<String>, limit: usize) -> Option<String> {
    text.filter(|text| text.len() <= limit)
}

/// Resolves the reference of `schema` inside `root`; returns `schema` itself without one.
pub(crate) fn referred<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let target = |schema: &'a Value| root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?);
    let mut found = schema;
    for _ in 0..MAX_REFERENCES {
        match target(found) {
            Some(next) => found = next,
            None => break,
        }
    }
    found
}

fn describe(root: &Value, schema: &Value, depth: usize) -> Option<String> {
    if depth > MAX_DEPTH {
        return None;
    }
    let schema = referred(root, schema);
    if let Some(options) = schema.get("enum").and_then(Value::as_array) {
        return (options.len() <= MAX_PARTS)
            .then(|| options.iter().map(Value::to_string).collect::<Vec<_>>().join(" | "));
    }
    if let Some(branches) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
        let left_out = if branches.len() > MAX_PARTS { " | …" } else { "" };
        let branches: Option<Vec<String>> =
            branches.iter().take(MAX_PARTS).map(|branch| describe(root, branch, depth + 1)).collect();
        return Some(format!("{}{left_out}", branches?.join(" | ")));
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
                Some(format!("{}{mark}: {}", Value::from(name.as_str()), describe(root, property, depth + 1)?))
            })
            .collect();
        return Some(format!("{{{}}}", members?.join(", ")));
    }
    match schema.get("type") {
        Some(Value::String(one)) if one == "array" => match schema.get("items") {
            Some(items) => Some(format!("[{}]", describe(root, items, depth + 1)?)),
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

    #[test]
    fn argument_list_is_bounded_required_first() {
        let check = |schema: Value, limit: usize, expect: &str| assert_eq!(argument_list(&schema, limit), expect);
        let long: Vec<Value> = (0..9).map(|n| json!({"enum": [format!("a long value {n}")]})).collect();
        let schema = json!({
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
            "properties": {
                "n": {"type": "integer"}, "path": {"type": "string"}, "at": {"$ref": "#/$defs/point"},
                "how": {"type": "string", "anyOf": long}, "a b": {"enum": ["x", 2]},
            },
            "required": ["path"],
        });
        let all = r#"path: string, n?: integer, at?: {"x"?: number}, how?: string, "a b"?: "x" | 2"#;
        check(schema.clone(), 300, all);
        check(schema, 26, "path: string, n?: integer, … 3 more");
        check(json!({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": true}}}}), 300, "b?: any");
        check(json!({"type": "object"}), 300, "");
        check(json!(true), 300, "");
        check(json!({"properties": {"b": {"type": "string"}}}), 3, "… 1 more");
    }

    #[test]
    fn shape_follows_local_references() {
        let schema = json!({
            "$defs": {"point": {"properties": {"x": {"type": "number"}}, "required": ["x"]}},
            "properties": {"at": {"$ref": "#/$defs/point"}, "all": {"type": "array", "items": {"$ref": "#/$defs/point"}}},
        });
        assert_eq!(shape(&schema, 300).as_deref(), Some(r#"{"at"?: {"x": number}, "all"?: [{"x": number}]}"#));
        assert_eq!(shape_at(&schema, "/all/3", 20).as_deref(), Some(r#"{"x": number}"#));
        assert_eq!(shape_at(&schema, "/none", 20), None);
        let many: Vec<Value> = (0..20).map(|_| json!({"type": "string"})).collect();
        assert!(shape(&json!({"anyOf": many}), 300).is_some_and(|text| text.ends_with("| …")));
    }
}
