//! Generates the minimal arguments that satisfy a schema.

use serde_json::{Map, Value};

/// Schemas inside schemas that are filled in.
const MAX_DEPTH: usize = 8;
/// Values that are made for one call.
const MAX_VALUES: usize = 1000;

/// Arguments with what `schema` requires and nothing else. Patterns, formats and conditions are not looked at.
pub(super) fn sample(schema: &Value) -> Value {
    let mut builder = SampleBuilder { root: schema, left: MAX_VALUES };
    match builder.value(schema, 0) {
        arguments @ Value::Object(_) => arguments,
        _ => Map::new().into(),
    }
}

struct SampleBuilder<'a> {
    root: &'a Value,
    left: usize,
}

impl SampleBuilder<'_> {
    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        if depth > MAX_DEPTH || self.left == 0 {
            return Value::Null;
        }
        self.left -= 1;
        for given in ["const", "default"] {
            if let Some(value) = schema.get(given) {
                return value.clone();
            }
        }
        for list in ["enum", "examples"] {
            if let Some(value) = schema.get(list).and_then(|list| list.get(0)) {
                return value.clone();
            }
        }
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
        if let Some(target) = target.and_then(|path| self.root.pointer(path)) {
            return self.value(target, depth + 1);
        }
        for list in ["anyOf", "oneOf"] {
            if let Some(first) = schema.get(list).and_then(|list| list.get(0)) {
                return self.value(first, depth + 1);
            }
        }
        self.of_type(schema, depth)
    }

    fn of_type(&mut self, schema: &Value, depth: usize) -> Value {
        let name = match schema.get("type") {
            Some(Value::Array(names)) => names.iter().find(|name| *name != "null").and_then(Value::as_str),
            Some(name) => name.as_str(),
            None if schema.get("items").is_some() => Some("array"),
            None if schema.get("properties").is_some() || schema.get("allOf").is_some() => Some("object"),
            None => None,
        };
        match name {
            Some("object" | "dict") => self.object(schema, depth),
            Some("array" | "tuple" | "list") => {
                let count = number(schema, "minItems").map_or(0, |count| count as usize).min(MAX_VALUES);
                let items = schema.get("items").cloned().unwrap_or_default();
                (0..count).map(|_| self.value(&items, depth + 1)).collect()
            }
            Some("integer" | "number" | "float") => {
                let above = number(schema, "exclusiveMinimum").map(|least| least.floor() + 1.0);
                let least = number(schema, "minimum").or(above).unwrap_or(0.0);
                let most = number(schema, "maximum").unwrap_or(f64::MAX);
                let number = if (0.0..=most).contains(&1.0) && least <= 1.0 { 1.0 } else { least };
                if number.fract() == 0.0 { (number as i64).into() } else { number.into() }
            }
            Some("boolean") => true.into(),
            Some("null") => Value::Null,
            _ => {
                let length = number(schema, "minLength").map_or(1, |length| length as usize).clamp(1, MAX_VALUES);
                "x".repeat(length).into()
            }
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let mut members = Map::new();
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            if let Value::Object(more) = self.value(part, depth + 1) {
                members.extend(more);
            }
        }
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        for name in required.filter_map(Value::as_str) {
            let member = schema.get("properties").and_then(|properties| properties.get(name)).unwrap_or(&Value::Null);
            let value = self.value(member, depth + 1);
            members.insert(name.to_owned(), value);
        }
        members.into()
    }
}

fn number(schema: &Value, keyword: &str) -> Option<f64> {
    schema.get(keyword)?.as_f64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwright::core::schema::CompiledSchema;

    use super::*;

    fn check(schema: Value, expect: Value) {
        let arguments = sample(&schema);
        assert_eq!(arguments, expect, "{schema}");
        if let Ok(compiled) = CompiledSchema::compile(&schema) {
            assert!(compiled.is_valid(&arguments), "{schema}");
        }
    }

    #[test]
    fn what_is_required_is_filled_in() {
        check(json!({"type": "object", "properties": {"a": {"type": "string"}}}), json!({}));
        check(
            json!({"type": "object", "required": ["s", "n", "e", "d", "l", "o", "b"], "properties": {
                "s": {"type": "string", "minLength": 3},
                "n": {"type": ["null", "integer"], "minimum": 7},
                "e": {"enum": ["up", "down"]},
                "d": {"type": "number", "default": 2.5},
                "l": {"type": "array", "minItems": 2, "items": {"type": "boolean"}},
                "o": {"$ref": "#/$defs/o"},
                "b": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, {"type": "null"}], "default": null},
            }, "$defs": {"o": {"type": "object", "required": ["x"], "properties": {"x": {"const": 1}}}}}),
            json!({"s": "xxx", "n": 7, "e": "up", "d": 2.5, "l": [true, true], "o": {"x": 1}, "b": null}),
        );
        check(json!({"type": "dict", "required": ["f"], "properties": {"f": {"type": "float"}}}), json!({"f": 1}));
        for no_object in [json!({"type": "string"}), json!(3)] {
            assert_eq!(sample(&no_object), json!({}), "{no_object}");
        }
        check(
            json!({"allOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]}),
            json!({"a": "x", "b": "x"}),
        );
    }

    #[test]
    fn what_refers_to_itself_ends() {
        let list =
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}});
        assert!(sample(&list).is_object());
    }
}
