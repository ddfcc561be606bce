//! What a keyword's value must be, and the keyword in words, for the APIs that do not take it.

use serde_json::Value;
use toolwright_core::schema::CompiledSchema;

use super::types::Types;

/// The longest value that is quoted in a description, in bytes of JSON.
const MAX_QUOTED: usize = 240;

/// What a keyword's value is by the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A keyword that the writer treats by itself.
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
    /// No keyword of JSON Schema.
    Unknown,
}

pub(super) fn form(keyword: &str) -> Form {
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
        | "dependencies" => Form::Special,
        "minimum" | "maximum" | "multipleOf" => Form::Number,
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minContains"
        | "maxContains" => Form::Count,
        "title" | "format" | "$comment" | "contentEncoding" | "contentMediaType" => Form::Text,
        "pattern" => Form::Pattern,
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => Form::Flag,
        "default" | "example" => Form::Any,
        "examples" => Form::Array,
        "not"
        | "if"
        | "then"
        | "else"
        | "contains"
        | "propertyNames"
        | "unevaluatedItems"
        | "unevaluatedProperties"
        | "contentSchema" => Form::Schema,
        "patternProperties" | "dependentSchemas" => Form::Schemas,
        "dependentRequired" => Form::Names,
        _ => Form::Unknown,
    }
}

/// Whether a keyword only describes: without it the same values are valid. `format` is one where it is
/// none of the specification's own.
pub(super) fn is_annotation(keyword: &str, value: &Value) -> bool {
    match keyword {
        "title" | "description" | "default" | "example" | "examples" | "$comment" | "deprecated" | "readOnly"
        | "writeOnly" | "contentEncoding" | "contentMediaType" | "contentSchema" => true,
        "format" => !value.as_str().is_some_and(is_standard_format),
        _ => form(keyword) == Form::Unknown,
    }
}

/// Whether a keyword bounds a value without a say in its shape, so that a view without it only admits more.
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

/// Whether the value of a scalar keyword is what the specification wants.
pub(super) fn is_legal(keyword: &str, form: Form, value: &Value) -> bool {
    match form {
        Form::Number => value.is_number() && (keyword != "multipleOf" || value.as_f64().is_some_and(|step| step > 0.0)),
        Form::Count => value.is_u64(),
        Form::Text => value.is_string(),
        Form::Pattern => is_pattern(value),
        Form::Flag => value.is_boolean(),
        Form::Array => value.is_array(),
        Form::Any => true,
        _ => false,
    }
}

/// The value of a scalar keyword as the specification wants it, None if it is not that and cannot be
/// read as that.
pub(super) fn legal(keyword: &str, form: Form, value: &Value) -> Option<Value> {
    match (form, value) {
        _ if is_legal(keyword, form, value) => Some(value.clone()),
        (Form::Count, Value::Number(number)) => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && (0.0..1e15).contains(n))?;
            Some(Value::from(format!("{whole:.0}").parse::<u64>().ok()?))
        }
        (Form::Count, Value::String(text)) => text.parse::<u64>().ok().map(Value::from),
        _ => None,
    }
}

fn is_pattern(value: &Value) -> bool {
    value.as_str().is_some_and(is_simple_pattern)
        || value.is_string() && CompiledSchema::compile(&serde_json::json!({"pattern": value})).is_ok()
}

/// Whether a glance tells that a pattern is sound: characters, plain classes of them, and repetitions, without
/// groups. Compiling one takes longer than a whole schema.
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

/// What comes after `2}`, `2,}` or `2,8}`.
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

/// What comes after a class, whose `[` was read. A hyphen stands for itself at its ends, and else for a range
/// of letters or digits.
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

/// The JSON text of `value` if it is no longer than `most` bytes, else its beginning: no more is written.
pub(super) fn quoted(value: &Value, most: usize) -> Result<String, String> {
    struct Limited(Vec<u8>, usize);
    impl std::io::Write for Limited {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let room = (self.1 - self.0.len()).min(bytes.len());
            self.0.extend_from_slice(&bytes[..room]);
            if room < bytes.len() { Err(std::io::ErrorKind::WriteZero.into()) } else { Ok(room) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut text = Limited(Vec::new(), most);
    let whole = serde_json::to_writer(&mut text, value).is_ok();
    let text = String::from_utf8_lossy(&text.0).trim_end_matches('\u{fffd}').to_owned();
    if whole { Ok(text) } else { Err(text) }
}

/// Which item stands where, as a sentence; None where it would be too long.
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

/// `keyword: value` as a sentence for a description, None where it would not help.
pub(super) fn sentence(keyword: &str, value: &Value) -> Option<String> {
    let json = |value: &Value| quoted(value, MAX_QUOTED).ok();
    let say = |lead: &str| json(value).map(|text| format!("{lead} {text}."));
    match keyword {
        "default" if value.is_null() => None,
        "default" => say("Default:"),
        "format" => Some(format!("Format: {}.", value.as_str()?)),
        "pattern" => Some(format!("Must match {}.", value.as_str()?)),
        "minimum" => say("At least"),
        "maximum" => say("At most"),
        "exclusiveMinimum" => say("More than"),
        "exclusiveMaximum" => say("Less than"),
        "multipleOf" => say("A multiple of"),
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
        "const" => say("Always"),
        "example" => say("Example:"),
        "examples" => say("Examples:"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patterns_that_are_simple_are_sound() {
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
        let not_told = [
            "(a)", "[z-a]", "a**", "+a", "a{3,2}", "a{1000}", "[]a]", "[a", "\\", "\\q", "[\\d-z]", "a{x}", "a{2}{3}",
            "ä",
        ];
        for pattern in simple {
            let compiles = CompiledSchema::compile(&json!({"pattern": pattern})).is_ok();
            assert!(is_simple_pattern(pattern) && compiles, "{pattern}");
        }
        for pattern in not_told {
            assert!(!is_simple_pattern(pattern), "{pattern}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_pattern_that_looks_simple_compiles(pattern in "[\\[\\]^$a-d0-3{},.*+?|()\\\\-]{0,12}") {
            let compiles = CompiledSchema::compile(&json!({"pattern": pattern})).is_ok();
            proptest::prop_assert!(compiles || !is_simple_pattern(&pattern));
        }
    }

    #[test]
    fn malformed_values_are_mended_or_refused() {
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
}
