//! Coerces values as models write them, only where validation failed; and fills in `default`s for our own tools: a
//! foreign server gets what the model wrote.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, JsonTypeSet, ValidationError};
use serde_json::{Number, Value};

use super::CompiledSchema;
use super::validate::counts;
use crate::json::pointer::{is_within, remove_member};
use crate::json::{Repaired, repair_container};

/// Number of passes over the errors: a fix may reveal inner ones.
const MAX_ROUNDS: usize = 4;
/// Bound on changed values in one document.
const MAX_PATHS: usize = 64;
/// The largest whole number that a float holds exactly.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A value that became valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Coerced {
    /// The valid value.
    pub value: Value,
    /// JSON Pointers to changed or removed values, in the order of change, each once.
    pub paths: Vec<String>,
    /// Whether a text among them was repaired JSON.
    pub repaired: bool,
}

/// The change to one value.
#[derive(PartialEq)]
enum Correction {
    Put(Value),
    /// The value read from a text of broken JSON.
    Repair(Value),
    LeaveOut,
}

/// How far a value could be made valid.
pub(crate) struct CoercionAttempt {
    pub(crate) coerced: Coerced,
    pub(crate) valid: bool,
}

impl CompiledSchema {
    /// Makes the invalid `value` valid by converting values of the wrong type: text that spells a number,
    /// boolean, null, array or object becomes it; a number becomes text;
    /// a whole float becomes an integer; a single value becomes an array of it; a forbidden null is
    /// removed from its object; a value that differs from exactly one allowed value by case and white space
    /// becomes that one. Text is kept wherever any text is valid, and so is the whole
    /// value. `None` if the result would not be valid.
    #[must_use]
    pub fn coerce(&self, value: &Value) -> Option<Coerced> {
        self.attempt(value, &[]).filter(|attempt| attempt.valid).map(|attempt| attempt.coerced)
    }

    /// Coerces the value except the missing values at `holes` (JSON Pointers), and ignores violations that they may
    /// fix. `None` for a value that is too deep.
    pub(crate) fn attempt(&self, value: &Value, holes: &[&str]) -> Option<CoercionAttempt> {
        let mut coerced = Coerced { value: value.clone(), paths: Vec::new(), repaired: false };
        for _ in 0..MAX_ROUNDS {
            let mut mends: Vec<(String, Correction)> = Vec::new();
            for error in self.errors(&coerced.value)?.filter(|error| counts(error, holes)).take(MAX_PATHS) {
                mends.extend(corrections(&error).unwrap_or_default());
            }
            let mut changed = false;
            for (path, mend) in mends {
                // A changed value that is still invalid is not changed again: that could loop.
                let settled = coerced.paths.contains(&path) || holes.iter().any(|hole| is_within(hole, &path));
                let repairs = matches!(mend, Correction::Repair(_));
                if !settled && apply(&mut coerced.value, &path, mend) {
                    coerced.paths.push(path);
                    coerced.repaired |= repairs;
                    changed = true;
                }
            }
            if !changed || coerced.paths.len() > MAX_PATHS {
                break;
            }
            if self.errors(&coerced.value)?.all(|error| !counts(&error, holes)) {
                return Some(CoercionAttempt { coerced, valid: true });
            }
        }
        Some(CoercionAttempt { coerced, valid: false })
    }
}

/// Returns whether anything was changed. The whole value never is.
fn apply(value: &mut Value, path: &str, mend: Correction) -> bool {
    match mend {
        Correction::Put(mended) | Correction::Repair(mended) => match value.pointer_mut(path) {
            Some(place) if !path.is_empty() => {
                *place = mended;
                true
            }
            _ => false,
        },
        Correction::LeaveOut => remove_member(value, path),
    }
}

/// Returns the changes that would fix `error`, by path; `None` if there are none.
fn corrections(error: &ValidationError<'_>) -> Option<Vec<(String, Correction)>> {
    let here = |mend: Correction| vec![(error.instance_path().to_string(), mend)];
    let instance: &Value = error.instance();
    let branches = match error.kind() {
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => context,
        _ => return correction_here(error, instance).map(here),
    };
    if instance.is_null() {
        return Some(here(Correction::LeaveOut));
    }
    // If no branch accepts this type, try any accepted type.
    if let Some(types) = expected_types(error) {
        return as_one_of(&types, instance).map(here);
    }
    let at_top = |inner: &&ValidationError<'_>| inner.instance_path() == error.instance_path();
    let mut spellings =
        branches.iter().flatten().filter(at_top).filter_map(|inner| allowed_spelling(inner.kind(), instance));
    if let Some(first) = spellings.next() {
        return spellings.all(|other| other == first).then(|| here(Correction::Put(first)));
    }
    // A branch for this type is coerced from inside, if that fixes everything.
    branches.iter().filter(|branch| branch.iter().filter(at_top).find_map(expected_types).is_none()).find_map(
        |branch| {
            let mends: Option<Vec<Vec<(String, Correction)>>> = branch.iter().map(corrections).collect();
            mends.map(|mends| mends.into_iter().flatten().collect())
        },
    )
}

fn correction_here(error: &ValidationError<'_>, instance: &Value) -> Option<Correction> {
    let mend = match error.kind() {
        ValidationErrorKind::Type { .. } => expected_types(error).and_then(|types| as_one_of(&types, instance)),
        kind => allowed_spelling(kind, instance).map(Correction::Put),
    };
    match (mend, error.kind()) {
        (Some(mend), _) => Some(mend),
        (
            None,
            ValidationErrorKind::Type { .. } | ValidationErrorKind::Enum { .. } | ValidationErrorKind::Constant { .. },
        ) if instance.is_null() => Some(Correction::LeaveOut),
        _ => None,
    }
}

/// Returns the expected types if `error` is only about a type.
fn expected_types(error: &ValidationError<'_>) -> Option<JsonTypeSet> {
    match error.kind() {
        ValidationErrorKind::Type { kind: TypeKind::Single(one) } => Some(JsonTypeSet::empty().insert(*one)),
        ValidationErrorKind::Type { kind: TypeKind::Multiple(many) } => Some(*many),
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            let here = |inner: &&ValidationError<'_>| inner.instance_path() == error.instance_path();
            // A branch for this type refuses the value for other reasons.
            let all: Option<Vec<JsonTypeSet>> =
                context.iter().map(|branch| branch.iter().filter(here).find_map(expected_types)).collect();
            Some(all?.iter().flat_map(JsonTypeSet::iter).fold(JsonTypeSet::empty(), JsonTypeSet::insert))
        }
        _ => None,
    }
}

/// Returns the only allowed value that equals `value` up to case and white space.
fn allowed_spelling(kind: &ValidationErrorKind, value: &Value) -> Option<Value> {
    let written = folded(value)?;
    let mut alike = match kind {
        ValidationErrorKind::Enum { options } => options.as_array()?.as_slice(),
        ValidationErrorKind::Constant { expected_value } => std::slice::from_ref(&**expected_value),
        _ => return None,
    }
    .iter()
    .filter(|option| folded(option).as_ref() == Some(&written));
    let found = alike.next()?;
    alike.next().is_none().then(|| found.clone())
}

/// A scalar as text, without case and white space.
fn folded(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Converts `value` to one of the `types`, if it denotes one.
fn as_one_of(types: &JsonTypeSet, value: &Value) -> Option<Correction> {
    let wants = |one: JsonType| types.contains(one);
    let number = |number: &Number| {
        if wants(JsonType::Number) {
            Some(Value::Number(number.clone()))
        } else {
            whole(number).filter(|_| wants(JsonType::Integer))
        }
    };
    let meant = match value {
        Value::String(text) => parse_spelling(text).and_then(|meant| {
            let fits = match &meant.value {
                Value::Number(written) => {
                    let exact = || exact_integer(text).filter(|_| wants(JsonType::Integer) && !wants(JsonType::Number));
                    return exact().or_else(|| number(written)).map(Correction::Put);
                }
                Value::Null => wants(JsonType::Null),
                Value::Bool(_) => wants(JsonType::Boolean),
                Value::Array(_) => wants(JsonType::Array),
                Value::Object(_) => wants(JsonType::Object),
                Value::String(_) => false,
            };
            fits.then(|| if meant.repaired { Correction::Repair(meant.value) } else { Correction::Put(meant.value) })
        }),
        // The float's original notation is unknown.
        Value::Number(written) if wants(JsonType::String) => {
            (!written.is_f64()).then(|| Correction::Put(written.to_string().into()))
        }
        Value::Number(written) => number(written).map(Correction::Put),
        _ => None,
    };
    meant.or_else(|| {
        (wants(JsonType::Array) && !value.is_null()).then(|| Correction::Put(Value::Array(vec![value.clone()])))
    })
}

/// The integer that `number` is, if it is one.
fn whole(number: &Number) -> Option<Value> {
    if number.is_i64() || number.is_u64() {
        return Some(Value::Number(number.clone()));
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= MAX_EXACT)?;
    // The conversion is exact in this range.
    format!("{float:.0}").parse::<i64>().ok().map(Value::from)
}

/// Reads an integer with a fraction of zeros only, which a float might not represent.
fn exact_integer(text: &str) -> Option<Value> {
    let (digits, zeros) = text.trim().split_once('.')?;
    let whole = zeros.bytes().all(|digit| digit == b'0');
    whole.then(|| digits.parse::<i64>().map(Value::from).or_else(|_| digits.parse::<u64>().map(Value::from)).ok())?
}

/// Reads the value that the whole `text` spells, as JSON or in another common form.
fn parse_spelling(text: &str) -> Option<Repaired> {
    let text = text.trim();
    let value = match text {
        "True" | "TRUE" => true.into(),
        "False" | "FALSE" => false.into(),
        "None" => Value::Null,
        _ if text.starts_with(['{', '[']) => return repair_container(text),
        _ => serde_json::from_str(text).ok()?,
    };
    Some(Repaired { value, repaired: false, cut: None })
}

/// Nested objects are followed this deep; deeper defaults are the tool's own affair.
const MAX_DEFAULT_DEPTH: usize = 16;

/// Adds the `default` of each property of `schema` that `value` lacks, including nested objects. Looks only at
/// `properties`: a default under `anyOf` or `$ref` depends on the caller's choice.
/// Returns whether anything was added.
pub fn fill_defaults(schema: &Value, value: &mut Value) -> bool {
    fill(schema, value, 0)
}

fn fill(schema: &Value, value: &mut Value, depth: usize) -> bool {
    let (Some(properties), Some(object)) = (schema.get("properties").and_then(Value::as_object), value.as_object_mut())
    else {
        return false;
    };
    if depth == MAX_DEFAULT_DEPTH {
        return false;
    }
    let mut filled = false;
    for (name, property) in properties {
        if let Some(present) = object.get_mut(name) {
            filled |= fill(property, present, depth + 1);
        } else if let Some(default) = property.get("default") {
            object.insert(name.clone(), default.clone());
            filled = true;
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(property: Value, value: Value, expect: Option<Value>) {
        check_mended(property, value, expect, false);
    }

    fn check_mended(property: Value, value: Value, expect: Option<Value>, repaired: bool) {
        let compiled = CompiledSchema::compile(&json!({"properties": {"p": property}})).expect("compiles");
        let value = json!({"p": value});
        assert!(!compiled.is_valid(&value), "{value}");
        let expect = expect.map(|p| Coerced { value: json!({"p": p}), paths: vec!["/p".into()], repaired });
        assert_eq!(compiled.coerce(&value), expect, "{property} {value}");
    }

    #[test]
    fn wrong_types_are_converted_when_lossless() {
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
        check_mended(json!({"type": "array"}), json!("[1, 2,]"), Some(json!([1, 2])), true);
        check(json!({"type": "object", "required": ["a"]}), json!("{\"a\": 1}"), Some(json!({"a": 1})));
        check(json!({"type": "object", "required": ["a"]}), json!("{\"b\": 1}"), None);
        check(json!({"type": "integer", "minimum": 5}), json!("3"), None);
    }

    #[test]
    fn text_starting_like_json_stays_text() {
        let texts = json!({"type": "array", "items": {"type": "string"}});
        for text in ["[ERROR] disk full", "[x](http://y) and more", "[a] [b]", "{see below}"] {
            check(texts.clone(), json!(text), Some(json!([text])));
        }
        for text in ["{see below}", "{a: 1} and more", "{a: 1} {b: 2}", "{a: , b: 1}", "{a"] {
            check(json!({"type": "object"}), json!(text), None);
        }
        check_mended(texts, json!("['a', 'b']"), Some(json!(["a", "b"])), true);
        check_mended(json!({"type": "object"}), json!("{a: 1}"), Some(json!({"a": 1})), true);
    }

    #[test]
    fn numbers_keep_their_digits() {
        for number in [json!(1.10), json!(12345678901234567890123.0), json!(1e2), json!(-0.0)] {
            check(json!({"type": "string"}), number, None);
        }
        check(json!({"type": "string"}), json!(u64::MAX), Some(json!(u64::MAX.to_string())));
        check(json!({"type": "integer"}), json!("9007199254740993.0"), Some(json!(9_007_199_254_740_993_i64)));
        check(json!({"type": "integer"}), json!("18446744073709551616"), None);
    }

    #[test]
    fn unions_keep_texts_where_text_is_allowed() {
        let optional = json!({"anyOf": [{"type": "integer"}, {"type": "null"}]});
        check(optional, json!("3"), Some(json!(3)));
        check(json!({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^x"}]}), json!("3"), None);
    }

    #[test]
    fn errors_found_after_a_fix_are_fixed_too() {
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

    #[test]
    fn forbidden_null_is_left_out() {
        let compiled = CompiledSchema::compile(&json!({
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}, "c": {"type": ["string", "null"]}, "d": {"type": "string"},
                "e": {"anyOf": [{"type": "string"}, {"type": "array"}]}},
            "required": ["d"],
        }))
        .expect("compiles");
        let coerced = compiled.coerce(&json!({"a": null, "b": null, "c": null, "d": "y", "e": null})).expect("valid");
        assert_eq!((coerced.value, coerced.paths.len()), (json!({"c": null, "d": "y"}), 3));
        assert_eq!(compiled.coerce(&json!({"d": null})), None, "a required one is not");
    }

    #[test]
    fn whole_floats_become_integers_in_draft_4() {
        let old =
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"p": {"type": "integer"}}});
        let compiled = CompiledSchema::compile(&old).expect("compiles");
        for (value, expect) in [(json!(3.0), Some(json!(3))), (json!("3.0"), Some(json!(3))), (json!(3.5), None)] {
            let expect = expect.map(|p| json!({"p": p}).to_string());
            assert_eq!(
                compiled.coerce(&json!({"p": value})).map(|coerced| coerced.value.to_string()),
                expect,
                "{value}"
            );
        }
        check(json!({"type": "integer"}), json!("1e300"), None);
        check(json!({"type": "integer"}), json!("18446744073709551615"), Some(json!(u64::MAX)));
    }

    #[test]
    fn allowed_values_match_by_letters() {
        let units = json!({"enum": ["Celsius", "Fahrenheit", "K", "k", 3]});
        check(units.clone(), json!(" celsius "), Some(json!("Celsius")));
        check(units.clone(), json!("3"), Some(json!(3)));
        check(units.clone(), json!("k "), None);
        check(units, json!("kelvin"), None);
        check(json!({"const": "v1"}), json!("V1"), Some(json!("v1")));
        check(json!({"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}), json!("A"), Some(json!("a")));
    }

    #[test]
    fn union_is_fixed_inside_the_matching_branch() {
        let optional = json!({"anyOf": [{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, {"type": "null"}]});
        let compiled = CompiledSchema::compile(&json!({"properties": {"p": optional}})).expect("compiles");
        let coerced = compiled.coerce(&json!({"p": {"n": "3"}})).expect("valid");
        assert_eq!((coerced.value, coerced.paths), (json!({"p": {"n": 3}}), vec!["/p/n".to_owned()]));
        assert_eq!(compiled.coerce(&json!({"p": {"m": "3"}})), None);
    }

    mod properties {
        use super::*;
        use proptest::prelude::*;

        fn scalar() -> impl Strategy<Value = Value> {
            prop_oneof![
                Just(Value::Null),
                any::<bool>().prop_map(Value::from),
                (-5i64..5).prop_map(Value::from),
                Just(json!(2.0)),
                Just(json!(2.5)),
                "[a-cA-C ]{0,2}|-?[0-9]|true|null|\\[1\\]|\\{\"a\": \"1\"\\}".prop_map(Value::from),
            ]
        }

        fn value() -> impl Strategy<Value = Value> {
            scalar().prop_recursive(3, 16, 3, |inner| {
                prop_oneof![
                    proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                    proptest::collection::btree_map("[a-c]", inner, 0..3).prop_map(|map| map.into_iter().collect()),
                ]
            })
        }

        fn schema() -> impl Strategy<Value = Value> {
            let kinds = ["null", "boolean", "integer", "number", "string", "array", "object"];
            let leaf = prop_oneof![
                Just(json!({})),
                proptest::sample::select(kinds.to_vec()).prop_map(|kind| json!({"type": kind})),
                proptest::sample::subsequence(kinds.to_vec(), 1..3).prop_map(|kinds| json!({"type": kinds})),
                proptest::collection::vec(scalar(), 1..4).prop_map(|options| json!({"enum": options})),
            ];
            leaf.prop_recursive(3, 16, 3, |inner| {
                prop_oneof![
                    inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
                    proptest::collection::vec(inner.clone(), 1..3).prop_map(|branches| json!({"anyOf": branches})),
                    (
                        proptest::collection::btree_map("[a-c]", inner, 1..3),
                        proptest::collection::vec("[a-c]", 0..2),
                        any::<bool>()
                    )
                        .prop_map(|(properties, required, open)| json!({
                            "type": "object", "properties": properties, "required": required, "additionalProperties": open,
                        })),
                ]
            })
        }

        proptest! {
            #[test]
            fn coerced_values_are_valid_others_untouched(schema in schema(), value in value()) {
                let Ok(compiled) = CompiledSchema::compile(&schema) else { return Ok(()) };
                let fitted = crate::call::arguments::fit(&compiled, value.clone(), crate::call::arguments::Provenance::default());
                if compiled.is_valid(&value) {
                    prop_assert_eq!(&fitted.arguments, &value);
                    prop_assert!(fitted.provenance.is_plain());
                } else if fitted.violations.is_empty() {
                    prop_assert!(compiled.is_valid(&fitted.arguments));
                    prop_assert!(!fitted.provenance.coerced.is_empty());
                } else {
                    prop_assert_eq!(&fitted.arguments, &value);
                }
            }
        }
    }

    fn check_filled(schema: Value, mut value: Value, expect: Value) {
        let before = value.clone();
        let filled = fill_defaults(&schema, &mut value);
        assert_eq!(value, expect);
        assert_eq!(filled, before != expect);
    }

    #[test]
    fn defaults_fill_only_missing_properties() {
        let schema = json!({"properties": {
            "a": {"default": 1}, "b": {"default": null}, "c": {},
            "d": {"properties": {"e": {"default": "x"}}},
        }});
        check_filled(schema.clone(), json!({}), json!({"a": 1, "b": null}));
        check_filled(schema.clone(), json!({"a": 2, "d": {}}), json!({"a": 2, "d": {"e": "x"}, "b": null}));
        check_filled(schema, json!([1]), json!([1]));
    }
}
