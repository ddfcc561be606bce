//! Checks the values of keywords, including patterns, and describes unsupported keywords in sentences.

use std::borrow::Cow;

use serde_json::{Map, Value};
use toolwright_core::schema::CompiledSchema;

use super::keywords::append_description;
use super::types::Types;
use super::write::MAX_DEPTH;

/// The longest value that is quoted in a description, in bytes of JSON.
const MAX_QUOTED: usize = 240;

/// The kind of a keyword's value in the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeywordForm {
    /// A keyword that the writer handles separately.
    Special,
    /// A number.
    Number,
    /// A whole number from 0 up.
    Count,
    /// A string.
    Text,
    /// A regular expression.
    Pattern,
    /// A boolean.
    Flag,
    /// Anything.
    Any,
    /// An array of anything.
    Array,
    /// A schema.
    Schema,
    /// Schemas by name.
    Schemas,
    /// Lists of names by name.
    Names,
    /// Not a keyword of JSON Schema.
    Unknown,
}

pub(super) fn form(keyword: &str) -> KeywordForm {
    match keyword {
        "type"
        | "description"
        | "properties"
        | "required"
        | "items"
        | "prefixItems"
        | "additionalItems"
        | "enum"
        | "const"
        | "$ref"
        | "$dynamicRef"
        | "$recursiveRef"
        | "$defs"
        | "definitions"
        | "anyOf"
        | "oneOf"
        | "allOf"
        | "additionalProperties"
        | "nullable"
        | "$schema"
        | "$id"
        | "id"
        | "$anchor"
        | "$dynamicAnchor"
        | "$recursiveAnchor"
        | "$vocabulary"
        | "exclusiveMinimum"
        | "exclusiveMaximum"
        | "dependencies" => KeywordForm::Special,
        "minimum" | "maximum" | "multipleOf" => KeywordForm::Number,
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minContains"
        | "maxContains" => KeywordForm::Count,
        "title" | "format" | "$comment" | "contentEncoding" | "contentMediaType" => KeywordForm::Text,
        "pattern" => KeywordForm::Pattern,
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => KeywordForm::Flag,
        "default" | "example" => KeywordForm::Any,
        "examples" => KeywordForm::Array,
        "not"
        | "if"
        | "then"
        | "else"
        | "contains"
        | "propertyNames"
        | "unevaluatedItems"
        | "unevaluatedProperties"
        | "contentSchema" => KeywordForm::Schema,
        "patternProperties" | "dependentSchemas" => KeywordForm::Schemas,
        "dependentRequired" => KeywordForm::Names,
        _ => KeywordForm::Unknown,
    }
}

/// Whether a keyword is an annotation: without it the same values are valid. A `format` outside the
/// specification is one.
pub(super) fn is_annotation(keyword: &str, value: &Value) -> bool {
    match keyword {
        "title" | "description" | "default" | "example" | "examples" | "$comment" | "deprecated" | "readOnly"
        | "writeOnly" | "contentEncoding" | "contentMediaType" | "contentSchema" => true,
        "format" => !value.as_str().is_some_and(is_standard_format),
        _ => form(keyword) == KeywordForm::Unknown,
    }
}

/// Whether a keyword bounds a value without changing its shape, so that a schema without it allows more.
pub(super) fn is_bound(keyword: &str) -> bool {
    matches!(
        keyword,
        "minimum"
            | "maximum"
            | "exclusiveMinimum"
            | "exclusiveMaximum"
            | "multipleOf"
            | "minLength"
            | "maxLength"
            | "minItems"
            | "maxItems"
            | "minProperties"
            | "maxProperties"
            | "uniqueItems"
            | "pattern"
            | "format"
    )
}

fn is_standard_format(format: &str) -> bool {
    matches!(
        format,
        "date-time"
            | "date"
            | "time"
            | "duration"
            | "email"
            | "idn-email"
            | "hostname"
            | "idn-hostname"
            | "ipv4"
            | "ipv6"
            | "uri"
            | "uri-reference"
            | "iri"
            | "iri-reference"
            | "uuid"
            | "uri-template"
            | "json-pointer"
            | "relative-json-pointer"
            | "regex"
    )
}

/// Whether a scalar keyword's value conforms to the specification.
pub(super) fn is_legal(keyword: &str, form: KeywordForm, value: &Value) -> bool {
    match form {
        KeywordForm::Number => {
            value.is_number() && (keyword != "multipleOf" || value.as_f64().is_some_and(|step| step > 0.0))
        }
        KeywordForm::Count => value.is_u64(),
        KeywordForm::Text => value.is_string(),
        KeywordForm::Pattern => is_pattern(value),
        KeywordForm::Flag => value.is_boolean(),
        KeywordForm::Array => value.is_array(),
        KeywordForm::Any => true,
        _ => false,
    }
}

/// Corrects a scalar keyword's value to the specification; `None` if that is impossible.
pub(super) fn legal(keyword: &str, form: KeywordForm, value: &Value) -> Option<Value> {
    match (form, value) {
        _ if is_legal(keyword, form, value) => Some(value.clone()),
        (KeywordForm::Count, Value::Number(number)) => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && (0.0..1e15).contains(n))?;
            Some(Value::from(format!("{whole:.0}").parse::<u64>().ok()?))
        }
        (KeywordForm::Count, Value::String(text)) => text.parse::<u64>().ok().map(Value::from),
        _ => None,
    }
}

fn is_pattern(value: &Value) -> bool {
    value.as_str().is_some_and(is_simple_pattern)
        || value.is_string() && CompiledSchema::compile(&serde_json::json!({"pattern": value})).is_ok()
}

/// Whether a pattern is valid and simple, without compiling it, which takes longer than a whole schema: characters,
/// plain classes, and repetitions, without groups.
pub(super) fn is_simple_pattern(pattern: &str) -> bool {
    const MAX_LENGTH: usize = 200;
    let mut rest = pattern.as_bytes();
    let mut repeatable = false;
    while let [first, tail @ ..] = rest {
        rest = tail;
        repeatable = match first {
            b'^' | b'$' | b'|' => false,
            b'*' | b'+' | b'?' if repeatable => false,
            b'{' if repeatable => match after_count(rest) {
                Some(after) => {
                    rest = after;
                    false
                }
                None => return false,
            },
            b'[' => match after_class(rest) {
                Some(after) => {
                    rest = after;
                    true
                }
                None => return false,
            },
            b'\\' if rest.first().is_some_and(|b| is_escaped(*b)) => {
                rest = &rest[1..];
                true
            }
            b'.' => true,
            other if is_plain(*other) => true,
            _ => return false,
        };
    }
    pattern.len() <= MAX_LENGTH
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" _-:/@,;=#%!~<>".contains(&byte)
}

fn is_escaped(byte: u8) -> bool {
    b"dDwWsS.-/+*?()[]{}^$|\\".contains(&byte)
}

/// Returns the rest after `2}`, `2,}` or `2,8}`.
fn after_count(bytes: &[u8]) -> Option<&[u8]> {
    const MAX_REPEATS: u32 = 100;
    let end = bytes.iter().position(|b| *b == b'}')?;
    let (least, most) =
        std::str::from_utf8(&bytes[..end]).ok().map(|text| text.split_once(',').unwrap_or((text, text)))?;
    let read = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
    let least = read(least)?;
    let most = if most.is_empty() { least } else { read(most)? };
    (least <= most && most <= MAX_REPEATS).then(|| &bytes[end + 1..])
}

/// Returns the rest after a class, whose `[` was read. A hyphen is literal at the ends, and otherwise forms a range of
/// letters or digits.
fn after_class(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes.strip_prefix(b"^").unwrap_or(bytes);
    if rest.first() == Some(&b']') {
        return None;
    }
    loop {
        rest = match rest {
            [b']', after @ ..] => return Some(after),
            [a, b'-', z, after @ ..] if *z != b']' => {
                let same = |is: fn(&u8) -> bool| is(a) && is(z) && a <= z;
                let known = same(u8::is_ascii_digit) || same(u8::is_ascii_lowercase) || same(u8::is_ascii_uppercase);
                known.then_some(after)?
            }
            [b'\\', escaped, after @ ..] if is_escaped(*escaped) => {
                // A range from here would need a closer look.
                if after.first() == Some(&b'-') && after.get(1) != Some(&b']') {
                    return None;
                }
                after
            }
            [one, after @ ..] if is_plain(*one) || *one == b'.' => after,
            _ => return None,
        };
    }
}

/// Returns the JSON text of `value` if it has at most `most` bytes, else its beginning as an error.
pub(super) fn quoted(value: &Value, most: usize) -> Result<String, String> {
    struct LimitedWriter(Vec<u8>, usize);
    impl std::io::Write for LimitedWriter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let room = (self.1 - self.0.len()).min(bytes.len());
            self.0.extend_from_slice(&bytes[..room]);
            if room < bytes.len() { Err(std::io::ErrorKind::WriteZero.into()) } else { Ok(room) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut text = LimitedWriter(Vec::new(), most);
    let whole = serde_json::to_writer(&mut text, value).is_ok();
    let text = String::from_utf8_lossy(&text.0).trim_end_matches('\u{fffd}').to_owned();
    if whole { Ok(text) } else { Err(text) }
}

/// Describes the order of items in a sentence; `None` if it would be too long.
pub(super) fn in_order(items: &[Value]) -> Option<String> {
    let name = |item: &Value| {
        let (types, _) = Types::read(item.get("type")?);
        (types != Types::NONE).then(|| types.names().collect::<Vec<_>>().join(" or "))
    };
    let one = |item: &Value| {
        let title = item.get("title").or_else(|| item.get("description")).and_then(Value::as_str);
        let value = item.get("const").and_then(|value| quoted(value, MAX_QUOTED).ok());
        match (value, title, name(item)) {
            (Some(value), ..) => value,
            (None, Some(title), Some(name)) => format!("{title} ({name})"),
            (None, Some(title), None) => title.to_owned(),
            (None, None, name) => name.unwrap_or_else(|| "anything".to_owned()),
        }
    };
    let text = items.iter().map(one).collect::<Vec<_>>().join(", then ");
    (text.len() <= 4 * MAX_QUOTED).then(|| format!("Items in this order: {text}."))
}

/// Formats `keyword: value` as a sentence for a description; `None` if it would not help.
pub(super) fn sentence(keyword: &str, value: &Value) -> Option<String> {
    let json = |value: &Value| quoted(value, MAX_QUOTED).ok();
    let phrase = |lead: &str| json(value).map(|text| format!("{lead} {text}."));
    match keyword {
        "default" if value.is_null() => None,
        "default" => phrase("Default:"),
        "format" => Some(format!("Format: {}.", value.as_str()?)),
        "pattern" => Some(format!("Must match {}.", value.as_str()?)),
        "minimum" => phrase("At least"),
        "maximum" => phrase("At most"),
        "exclusiveMinimum" => phrase("More than"),
        "exclusiveMaximum" => phrase("Less than"),
        "multipleOf" => phrase("A multiple of"),
        "minLength" => json(value).map(|n| format!("At least {n} characters.")),
        "maxLength" => json(value).map(|n| format!("At most {n} characters.")),
        "minItems" => json(value).map(|n| format!("At least {n} items.")),
        "maxItems" => json(value).map(|n| format!("At most {n} items.")),
        "minProperties" => json(value).map(|n| format!("At least {n} properties.")),
        "maxProperties" => json(value).map(|n| format!("At most {n} properties.")),
        "uniqueItems" => (value == &Value::Bool(true)).then(|| "No item twice.".to_owned()),
        "enum" => {
            let values: Option<Vec<String>> = value.as_array()?.iter().map(json).collect();
            Some(format!("One of: {}.", values?.join(", "))).filter(|text| text.len() <= 4 * MAX_QUOTED)
        }
        "const" => phrase("Always"),
        "example" => phrase("Example:"),
        "examples" => phrase("Examples:"),
        "contentEncoding" => Some(format!("Encoding: {}.", value.as_str()?)),
        "contentMediaType" => Some(format!("Media type: {}.", value.as_str()?)),
        "deprecated" => (value == &Value::Bool(true)).then(|| "Deprecated.".to_owned()),
        "required" => {
            let names: Vec<&str> = value.as_array()?.iter().filter_map(Value::as_str).collect();
            Some(format!("Needs: {}.", names.join(", ")))
        }
        "additionalProperties" => match value {
            Value::Bool(false) => None,
            Value::Bool(true) => Some("Further properties are allowed.".to_owned()),
            schema => json(schema).map(|text| format!("Further properties: {text}.")),
        },
        "title" | "$comment" | "readOnly" | "writeOnly" => None,
        _ => json(value).map(|text| format!("JSON Schema `{keyword}`: {text}.")),
    }
}

/// Bound on a compiled pattern, in bytes.
const MAX_COMPILED: usize = 1 << 20;

/// Whether OpenAI and compatible servers support a pattern. An unsupported one fails the whole request, strict
/// or not: "regex lookaround is not supported" (vercel/ai#21037), and patterns that Python's `re` cannot compile
/// (BerriAI/litellm#40485), which has no `\p{…}` and another syntax for named groups. DeepSeek's engine also lacks
/// look-around.
pub(crate) fn is_regular(pattern: &str) -> bool {
    is_simple_pattern(pattern)
        || is_common(pattern) && regex::RegexBuilder::new(pattern).size_limit(MAX_COMPILED).build().is_ok()
}

/// Whether a pattern has only plain groups, and no escape that engines lack or interpret differently.
fn is_common(pattern: &str) -> bool {
    let mut rest = pattern.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'\\', [b'1'..=b'9' | b'k' | b'p' | b'P' | b'A' | b'z' | b'Z' | b'G', ..]) => return false,
            (b'\\', [b'u' | b'x' | b'U', b'{', ..]) => return false,
            (b'\\', [_, after @ ..]) => after,
            (b'(', [b'?', b':', after @ ..]) => after,
            (b'(', [b'?', ..]) => return false,
            _ => tail,
        };
    }
    true
}

/// Returns `schema` with refused patterns moved into the descriptions of their values.
pub(crate) fn in_words(schema: &Value, takes: fn(&str) -> bool) -> Cow<'_, Value> {
    if has_other(schema, takes, 0) { Cow::Owned(written(schema, takes, 0)) } else { Cow::Borrowed(schema) }
}

/// The schemas inside a value of a keyword.
enum Subschemas<'a> {
    One(&'a Value),
    List(&'a [Value]),
    Named(&'a Map<String, Value>),
    None,
}

fn inside<'a>(keyword: &str, value: &'a Value) -> Subschemas<'a> {
    match (keyword, value) {
        ("properties" | "$defs" | "definitions", Value::Object(map)) => Subschemas::Named(map),
        ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(list)) => Subschemas::List(list),
        ("items" | "additionalItems" | "additionalProperties", Value::Object(_)) => Subschemas::One(value),
        _ => match (form(keyword), value) {
            (KeywordForm::Schema, Value::Object(_)) => Subschemas::One(value),
            (KeywordForm::Schemas, Value::Object(map)) => Subschemas::Named(map),
            _ => Subschemas::None,
        },
    }
}

/// Whether a keyword is a refused pattern.
fn is_rejected_pattern(keyword: &str, value: &Value, takes: fn(&str) -> bool) -> bool {
    match (keyword, value) {
        ("pattern", Value::String(pattern)) => !takes(pattern),
        ("patternProperties", Value::Object(map)) => map.keys().any(|pattern| !takes(pattern)),
        _ => false,
    }
}

/// Whether a schema has refused patterns. A schema too deep to translate counts as one.
fn has_other(schema: &Value, takes: fn(&str) -> bool, depth: usize) -> bool {
    let Some(map) = schema.as_object() else { return false };
    let below = |inner: &Value| has_other(inner, takes, depth + 1);
    depth >= MAX_DEPTH
        || map.iter().any(|(keyword, value)| {
            is_rejected_pattern(keyword, value, takes)
                || match inside(keyword, value) {
                    Subschemas::One(inner) => below(inner),
                    Subschemas::List(list) => list.iter().any(below),
                    Subschemas::Named(map) => map.values().any(below),
                    Subschemas::None => false,
                }
        })
}

fn written(schema: &Value, takes: fn(&str) -> bool, depth: usize) -> Value {
    let Some(map) = schema.as_object() else { return schema.clone() };
    if depth >= MAX_DEPTH {
        return Value::Object(Map::new());
    }
    let below = |inner: &Value| written(inner, takes, depth + 1);
    let (mut view, mut sentences) = (Map::with_capacity(map.len()), Vec::new());
    for (keyword, value) in map {
        if is_rejected_pattern(keyword, value, takes) {
            sentences.extend(sentence(keyword, value));
            continue;
        }
        let shown = match inside(keyword, value) {
            Subschemas::One(inner) => below(inner),
            Subschemas::List(list) => list.iter().map(below).collect(),
            Subschemas::Named(map) => {
                Value::Object(map.iter().map(|(name, inner)| (name.clone(), below(inner))).collect())
            }
            Subschemas::None => value.clone(),
        };
        view.insert(keyword.clone(), shown);
    }
    append_description(&mut view, &sentences);
    Value::Object(view)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn simple_patterns_match_correctly() {
        let simple = [
            "^[a-z0-9_.-]+$",
            "^\\d{4}-\\d{2}-\\d{2}$",
            "[^A-F]*",
            "a|b",
            "^https://.+$",
            "[\\w-]{2,}",
            "x?",
            "^\\+[1-9]\\d{1,14}$",
            "",
        ];
        let not_in_words = [
            "(a)", "[z-a]", "a**", "+a", "a{3,2}", "a{1000}", "[]a]", "[a", "\\", "\\q", "[\\d-z]", "a{x}", "a{2}{3}",
            "ä",
        ];
        for pattern in simple {
            let compiles = CompiledSchema::compile(&json!({"pattern": pattern})).is_ok();
            assert!(is_simple_pattern(pattern) && compiles, "{pattern}");
        }
        for pattern in not_in_words {
            assert!(!is_simple_pattern(pattern), "{pattern}");
        }
    }

    #[test]
    fn malformed_values_are_repaired_or_refused() {
        let check = |keyword: &str, value: Value, expect: Option<Value>| {
            assert_eq!(legal(keyword, form(keyword), &value), expect, "{keyword}: {value}");
        };
        check("minLength", json!(3), Some(json!(3)));
        check("minLength", json!("3"), Some(json!(3)));
        check("minLength", json!(3.0), Some(json!(3)));
        check("minLength", json!(-1), None);
        check("minLength", json!(1e300), None);
        check("multipleOf", json!(0), None);
        check("pattern", json!("^a+$"), Some(json!("^a+$")));
        check("pattern", json!("("), None);
        check("title", json!(["x"]), None);
    }

    #[test]
    fn regular_patterns_suit_every_engine() {
        for (pattern, regular) in [
            ("^[a-z]{2,8}(-\\d+)*$", true),
            ("^(?:a|b)$", true),
            ("\\bword\\b", true),
            ("^https?:\\/\\/[^/]+$", true),
            ("^\\u0041$", true),
            // Figma's, and zod's of an e-mail address.
            ("^(?!undefined$|null$)", false),
            (
                "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
                false,
            ),
            ("(?<=a)b", false),
            ("(?<name>a)", false),
            ("(a)\\1", false),
            ("\\p{L}+", false),
            ("[[]", false),
            ("\\u{41}", false),
            ("(", false),
            ("\\\\1(?:a)", true),
            ("(a{1,1000}){1,1000}", false),
        ] {
            assert_eq!(is_regular(pattern), regular, "{pattern}");
        }
    }

    proptest::proptest! {
        #[test]
        fn simple_patterns_compile(pattern in "[\\[\\]^$a-d0-3{},.*+?|()\\\\/~&-]{0,12}") {
            let compiles = CompiledSchema::compile(&json!({"pattern": pattern})).is_ok() && regex::Regex::new(&pattern).is_ok();
            proptest::prop_assert!(compiles || !is_simple_pattern(&pattern));
        }
    }

    #[test]
    fn patterns_become_text_only_in_schemas() {
        let ahead = "^(?=a)b";
        let schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "pattern": ahead, "description": "What to find."},
                "plain": {"type": "string", "pattern": "^a+$", "default": {"pattern": ahead}},
                "list": {"type": "array", "items": {"anyOf": [{"pattern": ahead}, {"const": {"pattern": ahead}}]}},
            },
            "patternProperties": {ahead: {"type": "string"}},
            "$defs": {"pattern": {"not": {"pattern": ahead}}},
        });
        let expect = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "What to find. Must match ^(?=a)b."},
                "plain": {"type": "string", "pattern": "^a+$", "default": {"pattern": ahead}},
                "list": {"type": "array", "items": {"anyOf": [
                    {"description": "Must match ^(?=a)b."}, {"const": {"pattern": ahead}},
                ]}},
            },
            "$defs": {"pattern": {"not": {"description": "Must match ^(?=a)b."}}},
            "description": "JSON Schema `patternProperties`: {\"^(?=a)b\":{\"type\":\"string\"}}.",
        });
        assert_eq!(*in_words(&schema, is_regular), expect);
        let none = in_words(&schema, |_| false);
        assert_eq!(none.pointer("/properties/plain/description"), Some(&json!("Must match ^a+$.")));
        assert!(matches!(in_words(&json!({"pattern": "a", "$defs": {}}), is_regular), Cow::Borrowed(_)));
    }
}
