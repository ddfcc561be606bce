//! Mending values of the wrong type, as models write them. Only what failed validation is touched.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, JsonTypeSet, ValidationError};
use serde_json::Value;

use super::CompiledSchema;

/// Times that the errors are gone over: mending one may bring those inside it to light.
const MAX_ROUNDS: usize = 4;
/// Values that are mended in one document.
const MAX_PATHS: usize = 64;

/// A value that became valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Coerced {
    /// The valid value.
    pub value: Value,
    /// JSON Pointers to what was changed, in the order of change, each once.
    pub paths: Vec<String>,
}

impl CompiledSchema {
    /// Makes `value`, which is not valid, valid by giving values of the wrong type the one that is asked
    /// for: text that spells a number, boolean, null, array or object becomes it; a number becomes text;
    /// one value becomes an array of it. A text is left alone wherever a text may stand, and so is the
    /// whole value. None if the result would not be valid.
    #[must_use]
    pub fn coerce(&self, value: &Value) -> Option<Coerced> {
        let mut value = value.clone();
        let mut paths: Vec<String> = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let changes: Vec<(String, Value)> = self
                .errors(&value)
                .take(MAX_PATHS)
                .filter_map(|error| {
                    let path = error.instance_path().to_string();
                    let mended = as_one_of(&wanted(&error)?, error.instance()).filter(|_| !path.is_empty())?;
                    Some((path, mended))
                })
                .collect();
            let mut changed = false;
            for (path, mended) in changes {
                // What was mended once and is still wrong is not mended again: it would go in circles.
                if paths.contains(&path) {
                    continue;
                }
                if let Some(place) = value.pointer_mut(&path) {
                    *place = mended;
                    paths.push(path);
                    changed = true;
                }
            }
            if !changed || paths.len() > MAX_PATHS {
                return None;
            }
            if self.is_valid(&value) {
                return Some(Coerced { value, paths });
            }
        }
        None
    }
}

/// The types that would have been right where `error` is about a type and nothing else.
fn wanted(error: &ValidationError<'_>) -> Option<JsonTypeSet> {
    match error.kind() {
        ValidationErrorKind::Type { kind: TypeKind::Single(one) } => Some(JsonTypeSet::empty().insert(*one)),
        ValidationErrorKind::Type { kind: TypeKind::Multiple(many) } => Some(*many),
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            // A branch that takes values of this type has other reasons to refuse this one.
            let mut all = JsonTypeSet::empty();
            for branch in context {
                let here = |inner: &&ValidationError<'_>| inner.instance_path() == error.instance_path();
                let types = branch.iter().filter(here).find_map(wanted)?;
                for one in types.iter() {
                    all = all.insert(one);
                }
            }
            Some(all)
        }
        _ => None,
    }
}

/// `value` as one of the `wanted` types, if it means one.
fn as_one_of(wanted: &JsonTypeSet, value: &Value) -> Option<Value> {
    let wants = |one: JsonType| wanted.contains(one);
    let meant = match value {
        Value::String(text) => spelled(text).filter(|meant| match meant {
            Value::Null => wants(JsonType::Null),
            Value::Bool(_) => wants(JsonType::Boolean),
            Value::Number(number) => wants(JsonType::Number) || (wants(JsonType::Integer) && is_whole(number)),
            Value::Array(_) => wants(JsonType::Array),
            Value::Object(_) => wants(JsonType::Object),
            Value::String(_) => false,
        }),
        Value::Number(number) if wants(JsonType::String) => Some(number.to_string().into()),
        _ => None,
    };
    meant.or_else(|| (wants(JsonType::Array) && !value.is_null()).then(|| Value::Array(vec![value.clone()])))
}

fn is_whole(number: &serde_json::Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
}

/// The value whose JSON, or other common spelling, is `text`.
fn spelled(text: &str) -> Option<Value> {
    let text = text.trim();
    match text {
        "True" | "TRUE" => Some(true.into()),
        "False" | "FALSE" => Some(false.into()),
        "None" => Some(Value::Null),
        _ if text.starts_with(['{', '[']) => crate::json::repair(text).ok().map(|read| read.value),
        _ => serde_json::from_str(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(property: Value, value: Value, expect: Option<Value>) {
        let compiled = CompiledSchema::compile(&json!({"properties": {"p": property}})).expect("compiles");
        let value = json!({"p": value});
        assert!(!compiled.is_valid(&value), "{value}");
        let expect = expect.map(|p| Coerced { value: json!({"p": p}), paths: vec!["/p".into()] });
        assert_eq!(compiled.coerce(&value), expect, "{property} {value}");
    }

    #[test]
    fn values_of_the_wrong_type_become_what_they_spell() {
        check(json!({"type": "integer"}), json!("3"), Some(json!(3)));
        check(json!({"type": "integer"}), json!("3.5"), None);
        check(json!({"type": "integer"}), json!("three"), None);
        check(json!({"type": "number"}), json!("3.5"), Some(json!(3.5)));
        check(json!({"type": "boolean"}), json!("true"), Some(json!(true)));
        check(json!({"type": "boolean"}), json!("False"), Some(json!(false)));
        check(json!({"type": "boolean"}), json!(1), None);
        check(json!({"type": ["integer", "null"]}), json!("null"), Some(json!(null)));
        check(json!({"type": "string"}), json!(3), Some(json!("3")));
        check(json!({"type": "string"}), json!(true), None);
        check(json!({"type": "array", "items": {"type": "string"}}), json!("x"), Some(json!(["x"])));
        check(json!({"type": "array", "items": {"type": "integer"}}), json!("x"), None);
        check(json!({"type": "array"}), json!("[1, 2,]"), Some(json!([1, 2])));
        check(json!({"type": "object", "required": ["a"]}), json!("{\"a\": 1}"), Some(json!({"a": 1})));
        check(json!({"type": "object", "required": ["a"]}), json!("{\"b\": 1}"), None);
        check(json!({"type": "integer", "minimum": 5}), json!("3"), None);
    }

    #[test]
    fn unions_are_looked_into_and_texts_stay_where_a_text_may_stand() {
        let optional = json!({"anyOf": [{"type": "integer"}, {"type": "null"}]});
        check(optional, json!("3"), Some(json!(3)));
        check(json!({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^x"}]}), json!("3"), None);
    }

    #[test]
    fn what_comes_to_light_is_mended_and_the_rest_is_untouched() {
        let compiled = CompiledSchema::compile(&json!({"properties": {
            "o": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
            "free": {},
        }}))
        .expect("compiles");
        let coerced = compiled.coerce(&json!({"o": "{\"n\": \"1\", \"s\": \"2\"}", "free": "3"})).expect("valid");
        assert_eq!(coerced.value, json!({"o": {"n": 1, "s": "2"}, "free": "3"}));
        assert_eq!(coerced.paths, ["/o", "/o/n"]);
    }

    #[test]
    fn the_whole_value_is_never_coerced() {
        let compiled = CompiledSchema::compile(&json!({"type": "integer"})).expect("compiles");
        assert_eq!(compiled.coerce(&json!("3")), None);
    }
}
