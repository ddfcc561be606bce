//! Two schemas that a value must both satisfy, as one.

use serde_json::{Map, Value};

use super::types::Types;
use super::words;

/// Nested properties that are merged; below it the first one stands.
const MAX_DEPTH: usize = 16;

/// `first` and `second` as one schema, and whether it says exactly what the two say together. Where it
/// cannot, `first` stands.
pub(super) fn merge(first: Map<String, Value>, second: &Map<String, Value>) -> (Map<String, Value>, bool) {
    merge_at(first, second, 0)
}

fn merge_at(mut first: Map<String, Value>, second: &Map<String, Value>, depth: usize) -> (Map<String, Value>, bool) {
    let mut exact = !open_and_closed(&first, second) && !open_and_closed(second, &first);
    for (key, value) in second {
        let Some(own) = first.get_mut(key) else {
            first.insert(key.clone(), value.clone());
            continue;
        };
        if own == value || words::is_annotation(key, value) {
            continue;
        }
        exact &= match (key.as_str(), &mut *own, value) {
            ("properties", Value::Object(own), Value::Object(other)) => properties(own, other, depth),
            ("items", Value::Object(one), Value::Object(other)) if depth < MAX_DEPTH => {
                let (both, same) = merge_at(std::mem::take(one), other, depth + 1);
                *one = both;
                same
            }
            ("required", Value::Array(own), Value::Array(other)) => {
                let new = other.iter().filter(|name| !own.contains(name)).cloned().collect::<Vec<_>>();
                own.extend(new);
                true
            }
            ("enum", Value::Array(own), Value::Array(other)) => {
                own.retain(|value| other.contains(value));
                !own.is_empty()
            }
            ("type", own, other) => {
                let (a, b) = (Types::read(own).0, Types::read(other).0);
                let both = if a == Types::NONE {
                    b
                } else if b == Types::NONE {
                    a
                } else {
                    a.and(b)
                };
                if both != Types::NONE {
                    *own = both.to_value();
                }
                both != Types::NONE
            }
            ("minimum" | "minLength" | "minItems" | "minProperties" | "exclusiveMinimum", own, other) => {
                bound(own, other, |a, b| a < b)
            }
            ("maximum" | "maxLength" | "maxItems" | "maxProperties" | "exclusiveMaximum", own, other) => {
                bound(own, other, |a, b| a > b)
            }
            ("$defs" | "definitions" | "$schema" | "$id" | "id" | "$anchor", _, _) => true,
            _ => false,
        };
    }
    (first, exact)
}

/// Whether `closed` forbids what only `other` declares: then neither's properties are those of both.
fn open_and_closed(closed: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let declared = |schema: &Map<String, Value>, name: &str| {
        schema.get("properties").and_then(Value::as_object).is_some_and(|properties| properties.contains_key(name))
    };
    let limited = ["additionalProperties", "unevaluatedProperties"]
        .iter()
        .any(|keyword| closed.get(*keyword).is_some_and(|value| !matches!(value, Value::Bool(true))));
    limited
        && other
            .get("properties")
            .and_then(Value::as_object)
            .is_some_and(|properties| properties.keys().any(|name| !declared(closed, name)))
}

fn properties(own: &mut Map<String, Value>, other: &Map<String, Value>, depth: usize) -> bool {
    let mut exact = true;
    for (name, value) in other {
        match (own.get_mut(name), value) {
            (None, _) => {
                own.insert(name.clone(), value.clone());
            }
            (Some(Value::Object(one)), Value::Object(two)) if depth < MAX_DEPTH => {
                let (both, same) = merge_at(std::mem::take(one), two, depth + 1);
                *one = both;
                exact &= same;
            }
            (Some(one), two) => exact &= one == two,
        }
    }
    exact
}

fn bound(own: &mut Value, other: &Value, weaker: impl Fn(f64, f64) -> bool) -> bool {
    let (Some(a), Some(b)) = (own.as_f64(), other.as_f64()) else { return false };
    if weaker(a, b) {
        *own = other.clone();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_both_say_is_said_once() {
        let check = |first: Value, second: Value, expect: Value, exact: bool| {
            let map = |value: &Value| value.as_object().cloned().expect("a map");
            let (merged, same) = merge(map(&first), &map(&second));
            assert_eq!((Value::Object(merged), same), (expect, exact), "{first} and {second}");
        };
        check(
            json!({"description": "own", "properties": {"a": {"minimum": 1}}, "required": ["a"]}),
            json!({"description": "other", "properties": {"a": {"minimum": 3}, "b": {}}, "required": ["b", "a"]}),
            json!({"description": "own", "properties": {"a": {"minimum": 3}, "b": {}}, "required": ["a", "b"]}),
            true,
        );
        check(json!({"type": ["string", "integer"]}), json!({"type": "number"}), json!({"type": "integer"}), true);
        check(json!({"type": "string"}), json!({"type": "array"}), json!({"type": "string"}), false);
        check(json!({"enum": [1, 2]}), json!({"enum": [2, 3]}), json!({"enum": [2]}), true);
        check(json!({"pattern": "a"}), json!({"pattern": "b"}), json!({"pattern": "a"}), false);
        check(
            json!({"additionalProperties": false}),
            json!({"properties": {"a": {}}}),
            json!({"additionalProperties": false, "properties": {"a": {}}}),
            false,
        );
    }
}
