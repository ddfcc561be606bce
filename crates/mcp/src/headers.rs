//! What requests of 2026-07-28 say again in HTTP headers: how values are written there, and which parameters of a tool
//! are mirrored (`x-mcp-header` in its input schema, header `Mcp-Param-…`).

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// Header of a request's method.
pub const METHOD: &str = "mcp-method";
/// Header of what a request names: a tool, a prompt, a resource's URI.
pub const NAME: &str = "mcp-name";
/// What the header of a mirrored parameter begins with.
pub const PARAM_PREFIX: &str = "mcp-param-";

const MARK: &str = "x-mcp-header";
const ENCODED: (&str, &str) = ("=?base64?", "?=");

/// Keywords whose value is a schema, a list of schemas, a map of schemas. Data (`default`, `enum`) is never entered, and
/// no `$ref` is followed.
const ONE: [&str; 11] = [
    "items",
    "contains",
    "unevaluatedItems",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const MAPS: [&str; 4] = ["patternProperties", "dependentSchemas", "$defs", "definitions"];

/// A text as a header's value: as it is if a header carries it unchanged, else in base64 with a mark around it.
#[must_use]
pub fn encode(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && text.trim() == text;
    if is_plain && encoded_part(text).is_none() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}{}{}", ENCODED.0, STANDARD.encode(text), ENCODED.1))
}

/// The text of a header's value; `None` where it is marked as encoded and is not.
#[must_use]
pub fn decode(value: &str) -> Option<String> {
    let value = value.trim_matches([' ', '\t']);
    match encoded_part(value) {
        None => Some(value.to_owned()),
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
    }
}

fn encoded_part(value: &str) -> Option<&str> {
    value.strip_prefix(ENCODED.0)?.strip_suffix(ENCODED.1)
}

/// A parameter that is said again in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// The header's name, in lower case.
    pub header: String,
    /// Where it is in the arguments.
    pub path: Vec<String>,
}

impl Mirrored {
    /// The header's value, encoded; `None` where the arguments have none.
    #[must_use]
    pub fn value(&self, arguments: &Map<String, Value>) -> Option<String> {
        let (first, rest) = self.path.split_first()?;
        let value = rest.iter().try_fold(arguments.get(first)?, |value, key| value.get(key))?;
        let text = match value {
            Value::String(text) => Cow::Borrowed(text.as_str()),
            Value::Bool(_) | Value::Number(_) => Cow::Owned(value.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        Some(encode(&text).into_owned())
    }
}

/// The parameters that a tool with this input schema has mirrored.
///
/// # Errors
/// What is wrong with a mark; such a tool must not be offered over HTTP.
pub fn mirrored(schema: &Value) -> Result<Vec<Mirrored>, String> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut open = vec![(Some(Vec::new()), schema)];
    while let Some((path, node)) = open.pop() {
        let Some(fields) = node.as_object() else { continue };
        if let Some(mark) = fields.get(MARK) {
            let Some(path) = path.clone().filter(|path| !path.is_empty()) else {
                return Err(format!("{MARK} stands where no single parameter is meant"));
            };
            let header = checked(&path.join("."), mark, fields)?;
            if !seen.insert(header.clone()) {
                return Err(format!("two parameters have the same {MARK} `{header}`"));
            }
            found.push(Mirrored { header: format!("{PARAM_PREFIX}{header}"), path });
        }
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    open.extend(properties.iter().map(|(name, schema)| {
                        let below = |path: &Vec<String>| path.iter().chain([name]).cloned().collect();
                        (path.as_ref().map(below), schema)
                    }));
                }
                (key, Value::Array(schemas)) if LISTS.contains(&key) => {
                    open.extend(schemas.iter().map(|schema| (None, schema)));
                }
                (key, Value::Object(schemas)) if MAPS.contains(&key) => {
                    open.extend(schemas.values().map(|schema| (None, schema)));
                }
                (key, schema) if ONE.contains(&key) => open.push((None, schema)),
                _ => {}
            }
        }
    }
    Ok(found)
}

fn checked(parameter: &str, mark: &Value, fields: &Map<String, Value>) -> Result<String, String> {
    let is_token = |text: &str| {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(token)
    };
    let Some(header) = mark.as_str().filter(|text| is_token(text)) else {
        return Err(format!("the {MARK} of `{parameter}` is not the name of a header"));
    };
    match fields.get("type").and_then(Value::as_str) {
        Some("string" | "integer" | "boolean") => Ok(header.to_ascii_lowercase()),
        _ => Err(format!("`{parameter}` has {MARK} and is neither a string nor an integer nor a boolean")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_survive_a_header() {
        for (text, written) in [
            ("us-west1", "us-west1"),
            ("", ""),
            (" padded", "=?base64?IHBhZGRlZA==?="),
            ("日本", "=?base64?5pel5pys?="),
            ("a\nb", "=?base64?YQpi?="),
            ("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
        ] {
            assert_eq!(encode(text), written);
            assert_eq!(decode(written).as_deref(), Some(text));
        }
        assert_eq!(decode("=?base64?!!?="), None);
    }

    #[test]
    fn marks_are_found_and_checked() {
        let check = |properties: Value, expect: Result<&[&str], &str>| {
            let schema = json!({"type": "object", "properties": properties, "default": {"x-mcp-header": "data"}});
            match (mirrored(&schema), expect) {
                (Ok(found), Ok(expect)) => {
                    let mut headers: Vec<_> = found.iter().map(|mirrored| mirrored.header.as_str()).collect();
                    headers.sort_unstable();
                    assert_eq!(headers, expect, "{schema}");
                }
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
                (found, _) => panic!("{schema}: {found:?}"),
            }
        };
        let marked = |kind: &str, name: &str| json!({"type": kind, "x-mcp-header": name});
        check(json!({"a": {"type": "string"}}), Ok(&[]));
        check(
            json!({"a": marked("string", "Region"), "b": marked("boolean", "B")}),
            Ok(&["mcp-param-b", "mcp-param-region"]),
        );
        check(
            json!({"a": {"type": "object", "properties": {"b": marked("integer", "Deep")}}}),
            Ok(&["mcp-param-deep"]),
        );
        check(json!({"a": marked("number", "N")}), Err("neither a string"));
        check(json!({"a": marked("string", "")}), Err("not the name"));
        check(json!({"a": marked("string", "a b")}), Err("not the name"));
        check(json!({"a": marked("string", "X"), "b": marked("string", "x")}), Err("same"));
        check(json!({"a": {"type": "array", "items": marked("string", "X")}}), Err("no single parameter"));
    }

    #[test]
    fn values_are_taken_from_the_arguments() {
        let arguments = json!({"a": "x", "n": {"b": 42}, "t": true, "z": null, "l": []});
        let value = |path: &[&str]| {
            let path = path.iter().map(|key| (*key).to_owned()).collect();
            Mirrored { header: String::new(), path }.value(arguments.as_object().expect("object"))
        };
        assert_eq!(value(&["a"]).as_deref(), Some("x"));
        assert_eq!(value(&["n", "b"]).as_deref(), Some("42"));
        assert_eq!(value(&["t"]).as_deref(), Some("true"));
        assert_eq!((value(&["z"]), value(&["l"]), value(&["a", "b"]), value(&["none"])), (None, None, None, None));
    }
}
