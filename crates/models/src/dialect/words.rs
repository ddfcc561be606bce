//! What a keyword's value must be, and the keyword in words, for the APIs that do not take it.

use serde_json::Value;
use toolwright_core::schema::CompiledSchema;

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

/// The value of a scalar keyword as the specification wants it, None if it is not that and cannot be
/// read as that.
pub(super) fn legal(keyword: &str, form: Form, value: &Value) -> Option<Value> {
    match form {
        Form::Number => value
            .is_number()
            .then(|| value.clone())
            .filter(|value| keyword != "multipleOf" || value.as_f64().is_some_and(|step| step > 0.0)),
        Form::Count => match value {
            Value::Number(number) if number.is_u64() => Some(value.clone()),
            Value::Number(number) => {
                let whole = number.as_f64().filter(|n| n.fract() == 0.0 && (0.0..1e15).contains(n))?;
                Some(Value::from(format!("{whole:.0}").parse::<u64>().ok()?))
            }
            Value::String(text) => text.parse::<u64>().ok().map(Value::from),
            _ => None,
        },
        Form::Text => value.is_string().then(|| value.clone()),
        Form::Pattern => is_pattern(value).then(|| value.clone()),
        Form::Flag => value.is_boolean().then(|| value.clone()),
        Form::Array => value.is_array().then(|| value.clone()),
        _ => Some(value.clone()),
    }
}

fn is_pattern(value: &Value) -> bool {
    value.is_string() && CompiledSchema::compile(&serde_json::json!({"pattern": value})).is_ok()
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
