//! Compiles schemas and validates values. Nothing is ever fetched: a `$ref` must resolve inside its own document or
//! name a metaschema.

use std::fmt;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Retrieve, Uri, ValidationError, Validator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::{nearest, shorten, violations};
use super::ref_graph::{RefGraph, SchemaRefusal};
use crate::json::nests_deeper;
use crate::json::pointer::{is_within, push};

/// Bound on reported violations of one call: a model fixes a few at a time.
const MAX_VIOLATIONS: usize = 12;
/// Nesting depth of schemas and values: the same as for JSON text.
const MAX_DEPTH: usize = crate::json::MAX_DEPTH;

/// Keywords that check a container's structure, whatever values its members have.
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

/// Why a schema does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the schema does not compile{}: {message}", at(path))]
pub struct SchemaError {
    /// JSON Pointer into the schema.
    pub path: String,
    /// The fault.
    pub message: String,
}

fn at(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" at `{path}`") }
}

/// A violation of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// JSON Pointer to the value, empty for the whole.
    pub path: String,
    /// The keyword that is broken.
    pub keyword: String,
    /// The fault, and the expected value.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.path.is_empty() { "the arguments" } else { self.path.as_str() };
        write!(f, "{place}: {}", self.message)
    }
}

/// A version of JSON Schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Draft {
    /// Draft 4, of 2013.
    Draft4,
    /// Draft 6, of 2017.
    Draft6,
    /// Draft 7, of 2018.
    Draft7,
    /// Draft 2019-09.
    Draft201909,
    /// Draft 2020-12.
    #[default]
    Draft202012,
}

impl Draft {
    /// Every version, oldest first.
    pub const ALL: [Self; 5] = [Self::Draft4, Self::Draft6, Self::Draft7, Self::Draft201909, Self::Draft202012];

    /// Its number or date.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft4 => "4",
            Self::Draft6 => "6",
            Self::Draft7 => "7",
            Self::Draft201909 => "2019-09",
            Self::Draft202012 => "2020-12",
        }
    }
}

impl From<Draft> for jsonschema::Draft {
    fn from(draft: Draft) -> Self {
        match draft {
            Draft::Draft4 => Self::Draft4,
            Draft::Draft6 => Self::Draft6,
            Draft::Draft7 => Self::Draft7,
            Draft::Draft201909 => Self::Draft201909,
            Draft::Draft202012 => Self::Draft202012,
        }
    }
}

/// A compiled schema. `format` is an annotation and is not checked.
#[derive(Debug)]
pub struct CompiledSchema {
    validator: Validator,
    ref_graph: RefGraph,
}

/// A resolver that loads nothing.
pub(super) struct RefuseRemote;

impl Retrieve for RefuseRemote {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err(format!("remote $ref `{uri}` is refused: schemas are never fetched; put the definition under $defs").into())
    }
}

impl CompiledSchema {
    /// Compiles `schema` in the draft that its `$schema` names. Without one, the newest draft that
    /// compiles is used: most are 2020-12; a list under `items`, or `exclusiveMinimum: true`,
    /// indicate an older one.
    ///
    /// # Errors
    /// [`SchemaError`] for a value that is no schema, is nested deeper than
    /// [`json::MAX_DEPTH`](crate::json::MAX_DEPTH) levels, has an unresolvable or a remote `$ref`, or references
    /// that form cycles or multiply past bounds; for a schema without `$schema`, its error in the newest draft.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        let newest = Self::compile_as(schema, Draft::default());
        if newest.is_ok() || schema.get("$schema").is_some() {
            return newest;
        }
        let older = Draft::ALL.iter().rev().skip(1);
        older.flat_map(|&draft| Self::compile_as(schema, draft)).next().map_or(newest, Ok)
    }

    /// Compiles `schema` in the draft that its `$schema` names, or `unnamed` without one.
    ///
    /// # Errors
    /// As [`CompiledSchema::compile`].
    pub fn compile_as(schema: &Value, unnamed: Draft) -> Result<Self, SchemaError> {
        let refused = |message: String| SchemaError { path: String::new(), message };
        if nests_deeper(schema, MAX_DEPTH) {
            return Err(refused(too_deep()));
        }
        let mut options = jsonschema::options().with_retriever(RefuseRemote).should_validate_formats(false);
        if schema.get("$schema").is_none() {
            options = options.with_draft(unnamed.into());
        }
        let draft = jsonschema::Draft::from(unnamed).detect(schema);
        let build = || options.build(schema).map_err(|error| schema_error(schema, &error));
        let ref_graph = match RefGraph::of(schema, draft) {
            Ok(ref_graph) => ref_graph,
            // The validator's words for a lost reference name the place.
            Err(lost @ SchemaRefusal::Lost(_)) => {
                return Err(build().err().unwrap_or_else(|| refused(lost.describe())));
            }
            Err(much) => return Err(refused(much.describe())),
        };
        let validator = build()?;
        Ok(Self { validator, ref_graph })
    }

    /// Whether `value` is valid. The fast path: builds no message.
    #[must_use]
    pub fn is_valid(&self, value: &Value) -> bool {
        self.fits_on_stack(value) && self.validator.is_valid(value)
    }

    /// Returns the first twelve violations of `value`; empty if it is valid. A value nested deeper than
    /// [`json::MAX_DEPTH`](crate::json::MAX_DEPTH) levels is not examined: its depth is the violation.
    #[must_use]
    pub fn violations(&self, value: &Value) -> Vec<Violation> {
        self.violations_around(value, &[])
    }

    /// Like [`CompiledSchema::violations`], without violations that the values at `holes` (JSON Pointers) may still
    /// fix: at and inside a hole, and around one unless only the structure is checked.
    pub(crate) fn violations_around(&self, value: &Value, holes: &[&str]) -> Vec<Violation> {
        match self.errors(value) {
            Some(errors) => {
                let counted = errors.filter(|error| counts(error, holes));
                counted.flat_map(|error| violations(&error)).take(MAX_VIOLATIONS).collect()
            }
            None if self.is_valid(value) => Vec::new(),
            None => vec![self.unverifiable(value)],
        }
    }

    /// Returns the validator's errors; `None` for a value that is nested too deep, or if finding them would take
    /// too long; then the value may be valid or not.
    pub(super) fn errors<'a>(&'a self, value: &'a Value) -> Option<impl Iterator<Item = ValidationError<'a>>> {
        let clear = !nests_deeper(value, MAX_DEPTH) && self.ref_graph.is_clear_for(value);
        clear.then(|| self.validator.iter_errors(value))
    }

    /// The violation to report if `value` cannot be examined.
    fn unverifiable(&self, value: &Value) -> Violation {
        let (keyword, message) = if nests_deeper(value, MAX_DEPTH) {
            ("depth", too_deep())
        } else {
            (
                "tangle",
                "it is not valid, or too large to be judged: the schema leaves too many ways to say what is wrong"
                    .into(),
            )
        };
        Violation { path: String::new(), keyword: keyword.into(), message }
    }

    /// Whether validating `value` fits on the stack.
    fn fits_on_stack(&self, value: &Value) -> bool {
        !nests_deeper(value, MAX_DEPTH) && self.ref_graph.is_short_for(value)
    }
}

fn too_deep() -> String {
    format!("nested deeper than {MAX_DEPTH} levels")
}

fn schema_error(schema: &Value, error: &ValidationError<'_>) -> SchemaError {
    let message = match (error.kind(), schema.get("$schema").and_then(Value::as_str)) {
        // The validator's words for it send the reader to a registry that is not theirs.
        (ValidationErrorKind::Referencing(referencing), Some(metaschema))
            if referencing.to_string().contains(metaschema) =>
        {
            format!("the metaschema `{metaschema}` is refused: it is none of drafts 4 to 2020-12, and none is fetched")
        }
        _ => with_sources(error),
    };
    let message = if message.contains("No base URI is available") {
        format!("{message}: the reference leads out of the document and is refused; put the definition under $defs")
    } else {
        message
    };
    let path = error.instance_path().to_string();
    let (path, message) = match located(schema, error, &path) {
        Some(found) => found,
        None => (path, message),
    };
    SchemaError { path, message: shorten(&message, 400) }
}

/// The types that a schema may name.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Improves the place and message of validator errors about its own rules or without a place.
fn located(schema: &Value, error: &ValidationError<'_>, path: &str) -> Option<(String, String)> {
    if matches!(error.kind(), ValidationErrorKind::Referencing(_)) {
        let message = error.to_string();
        let (path, reference) = lost_reference(schema, schema, &mut String::new(), &message)?;
        let target = reference.rsplit('/').next().unwrap_or_default();
        let defined = ["$defs", "definitions"].iter().filter_map(|group| schema.get(group)?.as_object());
        let names: Vec<&str> = defined.flat_map(|group| group.keys().map(String::as_str)).collect();
        let hint = nearest(target, &names).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        let reference = shorten(reference, 200);
        let message = if reference.starts_with('#') {
            format!("the reference `{reference}` leads nowhere{hint}")
        } else {
            format!("the reference `{reference}` leads out of the document and is refused: {message}")
        };
        return Some((path, message));
    }
    let value = schema.pointer(path)?;
    let name = value.as_str().filter(|_| path.ends_with("/type") && !path.ends_with("/properties/type"))?;
    let hint = nearest(name, &TYPES).map(|name| format!("; did you mean \"{name}\"?"));
    let hint = hint.unwrap_or_else(|| format!("; the types are {}", TYPES.join(", ")));
    Some((path.to_owned(), format!("\"{}\" is no type{hint}", shorten(name, 80))))
}

/// The place of the first `$ref` that leads nowhere, or that the error speaks of. Schemas are of bounded depth.
fn lost_reference<'s>(root: &Value, schema: &'s Value, path: &mut String, message: &str) -> Option<(String, &'s str)> {
    let length = path.len();
    let inside = |step: &str, member: &'s Value, path: &mut String| {
        push(path, step);
        let found = match member.as_str().filter(|_| step == "$ref" || step == "$dynamicRef") {
            Some(reference) => {
                let lost = match reference.strip_prefix('#') {
                    Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => root.pointer(pointer).is_none(),
                    _ => message.contains(reference.trim_start_matches('#')),
                };
                lost.then(|| (path.clone(), reference))
            }
            None => lost_reference(root, member, path, message),
        };
        path.truncate(length);
        found
    };
    match schema {
        Value::Object(members) => members.iter().find_map(|(step, member)| inside(step, member, path)),
        Value::Array(items) => items.iter().enumerate().find_map(|(at, item)| inside(&at.to_string(), item, path)),
        _ => None,
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

/// Whether `error` holds for any values at `holes`.
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
    use serde_json::json;

    use super::*;

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
    fn remote_refs_and_broken_schemas_are_errors() {
        let remote = CompiledSchema::compile(&json!({"$ref": "http://example.com/s.json"})).expect_err("refused");
        assert!(remote.to_string().contains("http://example.com/s.json"), "{remote}");
        assert!(remote.to_string().contains("refused"), "{remote}");
        for schema in [json!({"type": "nonsense"}), json!({"$ref": "#/nowhere"}), json!(3), json!({"pattern": "("})] {
            assert!(CompiledSchema::compile(&schema).is_err(), "{schema}");
        }
    }

    #[test]
    fn schema_errors_name_their_place() {
        for (schema, path, expect) in [
            (
                json!({"properties": {"a": {"type": "objekt"}}}),
                "/properties/a/type",
                "\"objekt\" is no type; did you mean \"object\"?",
            ),
            (json!({"items": {"type": "int"}}), "/items/type", "did you mean \"integer\"?"),
            (json!({"type": "Date"}), "/type", "\"Date\" is no type; the types are array"),
            (
                json!({"properties": {"a": {"$ref": "#/$defs/nod"}}, "$defs": {"node": {}}}),
                "/properties/a/$ref",
                "`#/$defs/nod` leads nowhere; did you mean `node`?",
            ),
            (json!({"allOf": [{}, {"$ref": "#/definitions/x"}]}), "/allOf/1/$ref", "`#/definitions/x` leads nowhere"),
            (
                json!({"properties": {"a/b": {"$ref": "other.json#/x"}}}),
                "/properties/a~1b/$ref",
                "leads out of the document",
            ),
            (json!({"properties": {"b": {"minimum": "3"}}}), "/properties/b/minimum", "is not of type"),
            (json!({"properties": {"type": "object"}}), "/properties/type", ""),
        ] {
            let error = CompiledSchema::compile(&schema).expect_err("broken");
            assert_eq!(error.path, path, "{schema}: {error}");
            assert!(error.message.contains(expect), "{schema}: {error}");
        }
        assert!(!CompiledSchema::compile(&json!(3)).expect_err("no schema").to_string().contains("``"));
    }

    #[test]
    fn formats_are_notes_whatever_the_draft() {
        check(json!({"$schema": "http://json-schema.org/draft-07/schema#", "format": "email"}), json!("no"), &[]);
    }

    #[test]
    fn metaschemas_are_built_in_foreign_refused() {
        check(
            json!({"$ref": "http://json-schema.org/draft-07/schema#"}),
            json!({"type": 3}),
            &[("/type", "anyOf", "matches none")],
        );
        let foreign = CompiledSchema::compile(&json!({"$schema": "https://example.com/own"})).expect_err("refused");
        assert!(foreign.message.contains("`https://example.com/own` is refused"), "{foreign}");
    }

    #[test]
    fn schema_without_draft_uses_newest_that_compiles() {
        let pair = json!({"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": false});
        check(pair.clone(), json!(["a", 1]), &[]);
        check(pair.clone(), json!(["a", "b"]), &[("/1", "type", "expected integer")]);
        check(json!({"minimum": 1, "exclusiveMinimum": true}), json!(1), &[("", "exclusiveMinimum", "1")]);
        assert!(CompiledSchema::compile_as(&pair, Draft::Draft202012).is_err());
    }

    #[test]
    fn depth_is_bounded_in_schema_and_value() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
        let recursive = json!({"anyOf": [{"allOf": [{"properties": {"a": {"$ref": "#"}}}]}, {"type": "null"}]});
        check(recursive.clone(), nested(MAX_DEPTH), &[]);
        check(recursive.clone(), nested(MAX_DEPTH + 1), &[("", "depth", &too_deep())]);
        let compiled = CompiledSchema::compile(&recursive).expect("compiles");
        assert_eq!(compiled.coerce(&nested(1_000)), None);
        let error = CompiledSchema::compile(&nested(1_000)).expect_err("too deep");
        assert!(error.message.contains("nested deeper"), "{error}");
    }

    #[test]
    fn the_number_of_violations_is_bounded() {
        let schema = json!({"items": {"type": "string"}});
        let compiled = CompiledSchema::compile(&schema).expect("compiles");
        assert_eq!(compiled.violations(&json!(vec![0; 1000])).len(), MAX_VIOLATIONS);
    }

    #[test]
    fn placeholder_excuses_only_its_own_errors() {
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
