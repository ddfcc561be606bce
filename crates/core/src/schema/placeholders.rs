//! Validating around values that are not there yet.

use jsonschema::ValidationError;
use serde_json::Value;

use super::message::violations;
use super::validate::MAX_VIOLATIONS;
use super::{CompiledSchema, Violation};
use crate::json::pointer::is_within;

/// Keywords that judge a container by its shape, whatever stands in its members.
const STRUCTURAL: [&str; 12] = [
    "type",
    "required",
    "dependentRequired",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "minItems",
    "maxItems",
    "additionalItems",
    "unevaluatedItems",
];

impl CompiledSchema {
    /// As [`CompiledSchema::violations`], without those that the values at `holes` (JSON Pointers) may yet
    /// mend: at and inside a hole, and around one unless only the shape is judged.
    #[must_use]
    pub fn violations_around(&self, value: &Value, holes: &[&str]) -> Vec<Violation> {
        match self.errors(value) {
            Some(errors) => {
                let counted = errors.filter(|error| counts(error, holes));
                counted.flat_map(|error| violations(&error)).take(MAX_VIOLATIONS).collect()
            }
            None if self.is_valid(value) => Vec::new(),
            None => vec![self.unsaid(value)],
        }
    }
}

/// Whether `error` holds whatever will stand at `holes`.
pub(super) fn counts(error: &ValidationError<'_>, holes: &[&str]) -> bool {
    if holes.is_empty() {
        return true;
    }
    let at = error.instance_path().to_string();
    let structural = STRUCTURAL.contains(&error.kind().keyword());
    holes.iter().all(|hole| !is_within(&at, hole) && (structural || !is_within(hole, &at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hole_excuses_what_it_may_mend_and_nothing_else() {
        let schema = CompiledSchema::compile(&json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}, "m": {"type": "integer"}, "o": {"oneOf": [
                {"properties": {"k": {"const": 1}}, "required": ["k"]}, {"properties": {"k": {"const": 2}}, "required": ["k"]},
            ]}},
            "required": ["n"],
            "additionalProperties": false,
        }))
        .expect("compiles");
        for (value, holes, expect) in [
            (json!({"n": "†state.n"}), vec!["/n"], vec![]),
            (json!({"n": "†state.n", "m": "x"}), vec!["/n"], vec!["/m"]),
            (json!({"m": "†state.m"}), vec!["/m"], vec![""]),
            (json!({"n": 1, "o": {"k": "†state.k"}}), vec!["/o/k"], vec![]),
            (json!({"n": 1, "o": {"k": 3}}), vec!["/n"], vec!["/o"]),
        ] {
            let paths: Vec<_> = schema.violations_around(&value, &holes).into_iter().map(|v| v.path).collect();
            assert_eq!(paths, expect, "{value}");
        }
    }
}
