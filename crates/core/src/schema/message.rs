//! Rewrites the validator's errors as messages of bounded length that a model can act on, with the likely name for a
//! misspelt one.

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use serde_json::Value;

use super::Violation;
use super::shape::schema_at;
use crate::json::type_name;

/// Bound on the text of a value quoted in a message, in characters.
const MAX_QUOTE: usize = 80;
/// Bound on a path, in characters.
const MAX_PATH: usize = 200;
/// Unknown properties that are named.
const MAX_NAMES: usize = 5;

/// Describes `error`. For alternatives, only the violations of the intended one, if it is clear.
pub(super) fn violations(error: &ValidationError<'_>) -> Vec<Violation> {
    match error.kind() {
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            match intended_branch(error, context) {
                Some(branch) => branch.iter().flat_map(violations).collect(),
                None => vec![violation(error)],
            }
        }
        _ => vec![violation(error)],
    }
}

/// Returns the only branch for values of this kind with the fewest errors.
fn intended_branch<'a, 'i>(
    error: &ValidationError<'_>,
    branches: &'a [Vec<ValidationError<'i>>],
) -> Option<&'a [ValidationError<'i>]> {
    let depth = |error: &ValidationError<'_>| error.instance_path().to_string().matches('/').count();
    let top = depth(error);
    let strange = |inner: &ValidationError<'_>| match inner.kind() {
        ValidationErrorKind::Type { .. } => depth(inner) == top,
        // A member with a fixed value distinguishes branches.
        ValidationErrorKind::Constant { .. } | ValidationErrorKind::Enum { .. } => depth(inner) <= top + 1,
        ValidationErrorKind::FalseSchema => true,
        _ => false,
    };
    let fitting = || branches.iter().filter(|branch| !branch.iter().any(strange));
    let fewest = fitting().map(Vec::len).min()?;
    let mut best = fitting().filter(|branch| branch.len() == fewest);
    let found = best.next()?;
    best.next().is_none().then_some(found.as_slice())
}

fn violation(error: &ValidationError<'_>) -> Violation {
    let rule = error.schema_path().to_string();
    let last = || rule.rsplit('/').take(2);
    let depends = ["dependentRequired", "dependencies"].into_iter().find(|&keyword| last().any(|step| step == keyword));
    let depends = depends.filter(|_| !rule.ends_with("/required"));
    let keyword = match error.kind() {
        ValidationErrorKind::Required { .. } => depends.unwrap_or("required"),
        kind => kind.keyword(),
    };
    let path = shorten(&error.instance_path().to_string(), MAX_PATH);
    Violation { path, keyword: keyword.to_owned(), message: message(error) }
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
            match error.instance().as_ref() {
                Value::Null | Value::Bool(_) => format!("expected {expected}, got {}", got()),
                other => format!("expected {expected}, got {} {}", type_name(other), got()),
            }
        }
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            let names: Vec<String> =
                unexpected.iter().take(MAX_NAMES).map(|name| quote(&name.as_str().into())).collect();
            let more = match unexpected.len().saturating_sub(MAX_NAMES) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("unknown property {}{more}; remove it", names.join(", "))
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
        ValidationErrorKind::Contains => {
            format!("not as many items of {} fit its `contains` as the schema asks for", got())
        }
        ValidationErrorKind::FalseSchema => format!("nothing is allowed here, got {}; leave it out", got()),
        ValidationErrorKind::Pattern { pattern } => {
            format!("{} does not match the pattern {}", got(), shorten(pattern, 200))
        }
        ValidationErrorKind::Format { format } => format!("{} is not a valid {format}", got()),
        ValidationErrorKind::PropertyNames { error } => format!("illegal property name: {}", message(error)),
        _ => shorten(&error.to_string(), 300),
    }
}

fn quote(value: &Value) -> String {
    shorten(&value.to_string(), MAX_QUOTE)
}

/// `text`, cut after `limit` characters.
pub(crate) fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Bound on a name in a message, in characters.
const MAX_NAME: usize = 80;
/// Longest name that is compared, in bytes.
const MAX_COMPARED: usize = 64;

/// Adds the probably intended names to violations about unknown and missing members: the nearest names of schema and
/// value.
pub fn suggest(schema: &Value, value: &Value, violations: &mut [Violation]) {
    // An unknown and a missing name are often one mistake, which is reported once.
    let mut hints: Vec<(String, String)> = Vec::new();
    for violation in violations {
        let Some(object) = value.pointer(&violation.path).and_then(Value::as_object) else { continue };
        let Some(properties) =
            schema_at(schema, &violation.path).and_then(|schema| schema.get("properties")?.as_object())
        else {
            continue;
        };
        let property_names: Vec<&str> = properties.keys().map(String::as_str).collect();
        let free: Vec<&str> = property_names.iter().copied().filter(|name| !object.contains_key(*name)).collect();
        let strange = object.keys().map(String::as_str).filter(|name| !property_names.contains(name));
        let pairs: Vec<(&str, &str)> = strange.filter_map(|name| Some((name, nearest(name, &free)?))).collect();
        let mut report = |violation: &mut Violation, message: &str, (name, meant): &(&str, &str)| {
            let (name, meant) = (shorten(name, MAX_NAME), shorten(meant, MAX_NAME));
            let hint = (violation.path.clone(), name.to_string());
            if !hints.contains(&hint) {
                let by =
                    if message.contains(&format!("\"{name}\"")) { String::new() } else { format!(" by \"{name}\"") };
                violation.message = format!("{message}; did you mean \"{meant}\"{by}?");
                hints.push(hint);
            }
        };
        match violation.keyword.as_str() {
            "additionalProperties" | "unevaluatedProperties" => {
                if let Some(pair) = pairs.first() {
                    let message = violation.message.trim_end_matches("; remove it").to_owned();
                    report(violation, &message, pair);
                }
            }
            "required" => {
                let missing = |pair: &&(&str, &str)| violation.message.contains(&format!("\"{}\"", pair.1));
                if let Some(pair) = pairs.iter().find(missing) {
                    let message = violation.message.clone();
                    report(violation, &message, pair);
                }
            }
            _ => {}
        }
    }
}

/// The name that is nearest to this, if it is near.
pub(super) fn nearest<'n>(name: &str, candidates: &[&'n str]) -> Option<&'n str> {
    let plain = |name: &str| name.to_lowercase().replace(['_', '-', ' '], "");
    if name.len() > MAX_COMPARED {
        return None;
    }
    let plain_name = plain(name);
    // One edit in a short name, a third of a long one.
    let near = (plain_name.chars().count() / 3).clamp(1, 4);
    let distance = |candidate: &str| strsim::osa_distance(&plain(candidate), &plain_name);
    let all = candidates.iter().filter(|known| known.len() <= MAX_COMPARED).map(|known| (distance(known), *known));
    let within = all.filter(|(distance, known)| {
        // A common beginning suggests an abbreviation or a longer form.
        *distance <= near
            || (plain_name.len() >= 3
                && (plain(known).starts_with(&plain_name) || plain_name.starts_with(&plain(known))))
    });
    within.min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::CompiledSchema;
    use super::*;

    fn check(schema: Value, value: Value, path: &str, keyword: &str, fragment: &str) {
        let violations = CompiledSchema::compile(&schema).expect("compiles").violations(&value);
        let [first, ..] = violations.as_slice() else { panic!("valid: {value}") };
        assert_eq!((first.path.as_str(), first.keyword.as_str()), (path, keyword), "{first:?}");
        assert!(first.message.contains(fragment), "{first:?}");
        assert!(violations.iter().all(|violation| violation.message.len() < 2_000 && violation.path.len() < 1_000));
    }

    #[test]
    fn lists_of_many_long_names_are_shortened() {
        let closed = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false});
        let many: serde_json::Map<String, Value> = (0..1000).map(|n| (format!("p{n}"), json!(1))).collect();
        check(closed.clone(), many.into(), "", "additionalProperties", "and 995 more");
        check(closed, json!({"k".repeat(1 << 20): 1}), "", "additionalProperties", "…");
        let long = "k".repeat(1 << 20);
        let path = format!("/{}…", "k".repeat(MAX_PATH - 1));
        check(json!({"additionalProperties": {"type": "string"}}), json!({long: 1}), &path, "type", "string");
    }

    #[test]
    fn the_intended_alternative_is_explained() {
        let shape = json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
            {"type": "object", "properties": {"kind": {"const": "box"}, "w": {"type": "number"}}, "required": ["kind", "w"]},
            {"type": "null"},
        ]});
        check(shape.clone(), json!({"kind": "box", "w": "wide"}), "/w", "type", "expected number");
        check(shape.clone(), json!({"kind": "box"}), "", "required", "\"w\" is missing");
        check(shape.clone(), json!({"kind": "line"}), "", "oneOf", "none of the allowed shapes");
        check(shape, json!("box"), "", "oneOf", "none of the allowed shapes");
    }

    #[test]
    fn messages_fit_the_violation() {
        let messages =
            |schema: Value, value: Value| CompiledSchema::compile(&schema).expect("compiles").violations(&value);
        assert_eq!(messages(json!({"type": "string"}), Value::Null)[0].message, "expected string, got null");
        assert_eq!(messages(json!({"type": "string"}), json!(true))[0].message, "expected string, got true");
        check(json!({"dependentRequired": {"a": ["b"]}}), json!({"a": 1}), "", "dependentRequired", "\"b\"");
        check(json!({"contains": {"const": 1}, "minContains": 2}), json!([1, 2]), "", "contains", "not as many");
    }

    #[test]
    fn misspelt_name_gets_a_suggestion() {
        let open =
            json!({"properties": {"path": {"type": "string"}, "line_numbers": {}, "n": {}}, "required": ["path"]});
        let mut closed = open.clone();
        closed["additionalProperties"] = json!(false);
        let inner = json!({"properties": {"list": {"items": closed.clone()}}});
        for (schema, value, expect) in [
            (&closed, json!({"pth": 1}), Some("\"pth\"; did you mean \"path\"?")),
            (&open, json!({"pth": 1}), Some("missing; did you mean \"path\" by \"pth\"?")),
            (&open, json!({"file": 1}), None),
            (
                &closed,
                json!({"path": "a", "lineNumbers": true}),
                Some("\"lineNumbers\"; did you mean \"line_numbers\"?"),
            ),
            (&closed, json!({"path": "a", "line": 1}), Some("\"line\"; did you mean \"line_numbers\"?")),
            (&closed, json!({"path": "a", "zebra": 1}), None),
            (&closed, json!({"path": "a", "paht": 1}), None),
            (&inner, json!({"list": [{"path": "a"}, {"Path": "a"}]}), Some("\"Path\"; did you mean \"path\"?")),
        ] {
            let mut violations = CompiledSchema::compile(schema).expect("compiles").violations(&value);
            suggest(schema, &value, &mut violations);
            let said = violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            match expect {
                Some(expect) => {
                    assert!(said.contains(expect), "{value}: {said}");
                    assert_eq!(said.matches("did you mean").count(), 1, "{value}: {said}");
                }
                None => assert!(!said.contains("did you mean"), "{value}: {said}"),
            }
        }
    }
}
