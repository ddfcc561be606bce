//! Mirrors fields of 2026-07-28 requests in HTTP headers: encodes their values, and finds the parameters of a tool that
//! are mirrored (`x-mcp-header` in its input schema, header `Mcp-Param-…`).

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// Header of a request's method.
pub const METHOD: &str = "mcp-method";
/// Header with the object of a request: a tool, a prompt, a resource's URI.
pub const NAME: &str = "mcp-name";
/// Prefix of the headers of mirrored parameters.
pub const PARAM_PREFIX: &str = "mcp-param-";

const MARK: &str = "x-mcp-header";
const ENCODED: (&str, &str) = ("=?base64?", "?=");

/// Keywords whose value is a schema, a list of schemas, or a map of schemas. Data (`default`, `enum`) is not searched,
/// and no `$ref` is followed.
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

/// Encodes a text for a header: unchanged if possible, else marked base64.
#[must_use]
pub fn encode(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && text.trim() == text;
    if is_plain && encoded_part(text).is_none() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}{}{}", ENCODED.0, STANDARD.encode(text), ENCODED.1))
}

/// Decodes a header value; `None` if its encoding is invalid.
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

/// A parameter that is repeated in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirroredParameter {
    /// The header's name, in lower case.
    pub header: String,
    /// Its path in the arguments.
    pub path: Vec<String>,
}

impl MirroredParameter {
    /// Returns the encoded header value; `None` if the arguments do not have it.
    #[must_use]
    pub fn value(&self, arguments: &Map<String, Value>) -> Option<String> {
        Some(encode(&text(self.argument(arguments)?)?).into_owned())
    }

    /// Checks that header and argument agree (2026-07-28, streamable HTTP, "Custom Headers"): both are
    /// present and equal, or both are absent.
    ///
    /// # Errors
    /// The mismatch, in words.
    pub fn check(&self, arguments: &Map<String, Value>, sent: SentHeader<'_>) -> Result<(), String> {
        let (header, argument) = (&self.header, self.path.join("."));
        let value = self.argument(arguments).filter(|value| !value.is_null());
        let expected = value.and_then(text);
        match (sent, expected) {
            (SentHeader::Unreadable, _) => Err(format!("header {header} is there more than once, or is no text")),
            (SentHeader::Absent, None) => Ok(()),
            (SentHeader::Absent, Some(_)) => Err(format!("header {header} is absent, and the body has `{argument}`")),
            (SentHeader::Once(_), None) => {
                Err(format!("header {header} is there, and the body has no such `{argument}`"))
            }
            (SentHeader::Once(written), Some(expected)) => {
                let read = decode(written).ok_or_else(|| format!("header {header} does not decode as base64"))?;
                let same = read == expected || value.is_some_and(|value| is_same_integer(value, &read));
                if same { Ok(()) } else { Err(format!("header {header} is not `{argument}` of the body")) }
            }
        }
    }

    fn argument<'a>(&self, arguments: &'a Map<String, Value>) -> Option<&'a Value> {
        let (first, rest) = self.path.split_first()?;
        rest.iter().try_fold(arguments.get(first)?, |value, key| value.get(key))
    }
}

/// The received state of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentHeader<'a> {
    /// Absent.
    Absent,
    /// Once, with this value.
    Once(&'a str),
    /// Repeated, or not text, so it is ambiguous.
    Unreadable,
}

/// Converts a value to header text, before encoding; `None` for unsupported types.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text.as_str())),
        Value::Bool(_) | Value::Number(_) => Some(Cow::Owned(value.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Whether a text denotes the same integer as a value, in whatever form: `42.0` is 42.
fn is_same_integer(value: &Value, written: &str) -> bool {
    fn whole(text: &str) -> Option<i128> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_zero = !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
        whole.parse().ok().filter(|_| is_zero && !whole.starts_with('+'))
    }
    value.is_number() && whole(written).is_some_and(|read| whole(&value.to_string()) == Some(read))
}

/// Whether a schema may have marked parameters: a quick check, since most have none.
#[must_use]
pub fn may_be_marked(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(key, value)| key == MARK || may_be_marked(value)),
        Value::Array(values) => values.iter().any(may_be_marked),
        _ => false,
    }
}

/// Returns the mirrored parameters of a tool with this input schema.
///
/// # Errors
/// An invalid mark; such a tool must not be offered over HTTP.
pub fn mirrored(schema: &Value) -> Result<Vec<MirroredParameter>, String> {
    let mut found = Vec::new();
    let mut seen_names = HashSet::new();
    let mut open = vec![(Some(Vec::new()), schema)];
    while let Some((path, node)) = open.pop() {
        let Some(fields) = node.as_object() else { continue };
        if let Some(mark) = fields.get(MARK) {
            let Some(path) = path.clone().filter(|path| !path.is_empty()) else {
                return Err(format!("{MARK} stands where no single parameter is meant"));
            };
            let header = checked(&path.join("."), mark, fields)?;
            if !seen_names.insert(header.clone()) {
                return Err(format!("two parameters have the same {MARK} `{header}`"));
            }
            found.push(MirroredParameter { header: format!("{PARAM_PREFIX}{header}"), path });
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
    fn headers_repeat_the_arguments() {
        let check = |arguments: Value, sent: SentHeader<'_>, expect: Option<&str>| {
            let mirrored = MirroredParameter { header: "mcp-param-a".into(), path: vec!["a".into()] };
            let found = mirrored.check(arguments.as_object().expect("object"), sent).err();
            assert_eq!(found.is_some(), expect.is_some(), "{arguments} {sent:?} {found:?}");
            assert!(found.unwrap_or_default().contains(expect.unwrap_or_default()));
        };
        check(json!({"a": "us"}), SentHeader::Once("us"), None);
        check(json!({"a": "us"}), SentHeader::Once("eu"), Some("is not `a`"));
        check(json!({"a": "us"}), SentHeader::Absent, Some("absent"));
        check(json!({"a": "us"}), SentHeader::Unreadable, Some("more than once"));
        check(json!({"a": "ü"}), SentHeader::Once("=?base64?w7w=?="), None);
        check(json!({"a": "ü"}), SentHeader::Once("=?base64?w7w?="), Some("base64"));
        check(json!({}), SentHeader::Absent, None);
        check(json!({"a": null}), SentHeader::Absent, None);
        check(json!({"a": null}), SentHeader::Once(""), Some("no such"));
        check(json!({"a": [1]}), SentHeader::Once("1"), Some("no such"));
        check(json!({"a": true}), SentHeader::Once("true"), None);
        check(json!({"a": true}), SentHeader::Once("1"), Some("is not"));
        check(json!({"a": 42}), SentHeader::Once("42.0"), None);
        check(json!({"a": 42.0}), SentHeader::Once("42"), None);
        check(json!({"a": 42}), SentHeader::Once("+42"), Some("is not"));
        check(json!({"a": 42}), SentHeader::Once("43"), Some("is not"));
        check(json!({"a": "42"}), SentHeader::Once("42.0"), Some("is not"));
    }

    #[test]
    fn values_are_taken_from_the_arguments() {
        let arguments = json!({"a": "x", "n": {"b": 42}, "t": true, "z": null, "l": []});
        let value = |path: &[&str]| {
            let path = path.iter().map(|key| (*key).to_owned()).collect();
            MirroredParameter { header: String::new(), path }.value(arguments.as_object().expect("object"))
        };
        assert_eq!(value(&["a"]).as_deref(), Some("x"));
        assert_eq!(value(&["n", "b"]).as_deref(), Some("42"));
        assert_eq!(value(&["t"]).as_deref(), Some("true"));
        assert_eq!((value(&["z"]), value(&["l"]), value(&["a", "b"]), value(&["none"])), (None, None, None, None));
    }
}
