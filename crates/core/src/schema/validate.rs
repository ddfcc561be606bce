//! Compiling and validating. Nothing is ever fetched: a `$ref` must resolve inside its own document or
//! name a metaschema.

use std::fmt;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{Retrieve, Uri, ValidationError, Validator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tangle::Tangle;

/// At most this many violations are reported for one call: a model mends a few at a time.
pub(super) const MAX_VIOLATIONS: usize = 12;
/// Bound on the text of a value quoted in a message, in characters.
const MAX_QUOTE: usize = 80;

/// Why a schema does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the schema does not compile at `{path}`: {message}")]
pub struct SchemaError {
    /// JSON Pointer into the schema.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// One way in which arguments break a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// JSON Pointer to the value, empty for the whole.
    pub path: String,
    /// The keyword that is broken.
    pub keyword: String,
    /// What is wrong and what is expected.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.path.is_empty() { "the arguments" } else { self.path.as_str() };
        write!(f, "{place}: {}", self.message)
    }
}

/// A validator compiled from one schema; draft by `$schema`, 2020-12 without one.
#[derive(Debug)]
pub struct CompiledSchema {
    validator: Validator,
    tangle: Tangle,
}

struct RefuseRemote;

impl Retrieve for RefuseRemote {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err(format!("remote $ref `{uri}` is refused: schemas are never fetched; put the definition under $defs").into())
    }
}

impl CompiledSchema {
    /// Compiles `schema`.
    ///
    /// # Errors
    /// [`SchemaError`] for anything that is not a schema, an unresolvable or a remote `$ref`, and references
    /// that go in circles or multiply past bounds.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        let tangle = Tangle::of(schema)
            .map_err(|much| SchemaError { path: String::new(), message: much.describe().to_owned() })?;
        let validator = jsonschema::options().with_retriever(RefuseRemote).build(schema).map_err(|error| {
            SchemaError { path: error.instance_path().to_string(), message: shorten(&with_sources(&error), 400) }
        })?;
        Ok(Self { validator, tangle })
    }

    /// Whether `value` is valid. The fast path: no message is built.
    #[must_use]
    pub fn is_valid(&self, value: &Value) -> bool {
        self.tangle.is_short_for(value) && self.validator.is_valid(value)
    }

    /// What is wrong with `value`, the first twelve; empty when it is valid.
    #[must_use]
    pub fn violations(&self, value: &Value) -> Vec<Violation> {
        self.violations_around(value, &[])
    }

    /// The validator's own errors; `None` where finding them would take too long, which says nothing about
    /// whether the value is valid.
    pub(super) fn errors<'a>(&'a self, value: &'a Value) -> Option<impl Iterator<Item = ValidationError<'a>>> {
        self.tangle.is_clear_for(value).then(|| self.validator.iter_errors(value))
    }
}

fn with_sources(error: &ValidationError<'_>) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

pub(super) fn violation(error: &ValidationError<'_>) -> Violation {
    let keyword = error.kind().keyword().to_owned();
    Violation { path: error.instance_path().to_string(), keyword, message: message(error) }
}

fn message(error: &ValidationError<'_>) -> String {
    let got = || quote(error.instance());
    match error.kind() {
        ValidationErrorKind::Required { property } => format!("the required property {} is missing", quote(property)),
        ValidationErrorKind::Type { kind } => {
            let expected = match kind {
                TypeKind::Single(one) => one.to_string(),
                TypeKind::Multiple(many) => many.iter().map(|one| one.to_string()).collect::<Vec<_>>().join(" or "),
            };
            format!("expected {expected}, got {} {}", type_name(error.instance()), got())
        }
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            format!(
                "unknown property {}; remove it",
                unexpected.iter().map(|p| format!("\"{p}\"")).collect::<Vec<_>>().join(", ")
            )
        }
        ValidationErrorKind::Enum { options } => {
            format!("{} is not one of {}", got(), shorten(&options.to_string(), 400))
        }
        ValidationErrorKind::Constant { expected_value } => {
            format!("expected exactly {}, got {}", quote(expected_value), got())
        }
        ValidationErrorKind::AnyOf { .. } => format!("{} matches none of the allowed shapes (anyOf)", got()),
        ValidationErrorKind::OneOfNotValid { .. } => format!("{} matches none of the allowed shapes (oneOf)", got()),
        ValidationErrorKind::OneOfMultipleValid { .. } => {
            format!("{} matches more than one of the allowed shapes (oneOf)", got())
        }
        ValidationErrorKind::Pattern { pattern } => format!("{} does not match the pattern {pattern}", got()),
        ValidationErrorKind::Format { format } => format!("{} is not a valid {format}", got()),
        ValidationErrorKind::PropertyNames { error } => format!("illegal property name: {}", message(error)),
        _ => shorten(&error.to_string(), 300),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn quote(value: &Value) -> String {
    shorten(&value.to_string(), MAX_QUOTE)
}

fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, value: Value, expect: &[(&str, &str, &str)]) {
        let compiled = CompiledSchema::compile(&schema).expect("compiles");
        let violations = compiled.violations(&value);
        assert_eq!(violations.len(), expect.len(), "{violations:?}");
        assert_eq!(compiled.is_valid(&value), expect.is_empty());
        for (got, (path, keyword, fragment)) in violations.iter().zip(expect) {
            assert_eq!((got.path.as_str(), got.keyword.as_str()), (*path, *keyword));
            assert!(got.message.contains(fragment), "{}", got.message);
        }
    }

    #[test]
    fn violations_name_path_keyword_and_remedy() {
        let schema = json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}, "m": {"enum": ["a", "b"]}},
            "required": ["n"],
            "additionalProperties": false,
        });
        check(schema.clone(), json!({"n": 1}), &[]);
        check(schema.clone(), json!({}), &[("", "required", "\"n\" is missing")]);
        check(schema.clone(), json!({"n": "1"}), &[("/n", "type", "expected integer, got string \"1\"")]);
        check(schema.clone(), json!({"n": 1, "x": 1}), &[("", "additionalProperties", "\"x\"")]);
        check(schema, json!({"n": 1, "m": "c"}), &[("/m", "enum", "[\"a\",\"b\"]")]);
    }

    #[test]
    fn local_refs_and_recursion_work() {
        let schema = json!({
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}},
            "$ref": "#/$defs/node",
        });
        check(schema, json!({"next": {"next": {"v": "x"}}}), &[("/next/next/v", "type", "integer")]);
    }

    #[test]
    fn a_remote_ref_is_refused_by_name_and_broken_schemas_are_errors() {
        let remote = CompiledSchema::compile(&json!({"$ref": "http://example.com/s.json"})).expect_err("refused");
        assert!(remote.to_string().contains("http://example.com/s.json"), "{remote}");
        assert!(remote.to_string().contains("refused"), "{remote}");
        for schema in [json!({"type": "nonsense"}), json!({"$ref": "#/nowhere"}), json!(3), json!({"pattern": "("})] {
            assert!(CompiledSchema::compile(&schema).is_err(), "{schema}");
        }
    }

    #[test]
    fn the_number_of_violations_is_bounded() {
        let schema = json!({"items": {"type": "string"}});
        let compiled = CompiledSchema::compile(&schema).expect("compiles");
        assert_eq!(compiled.violations(&json!(vec![0; 1000])).len(), MAX_VIOLATIONS);
    }
}
