//! Mending values as models write them. Only what failed validation is touched.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, JsonTypeSet, ValidationError};
use serde_json::{Number, Value};

use super::CompiledSchema;
use super::holes::counts;
use crate::pointer::{is_within, remove_member};

/// Times that the errors are gone over: mending one may bring those inside it to light.
const MAX_ROUNDS: usize = 4;
/// Values that are mended in one document.
const MAX_PATHS: usize = 64;
/// The largest whole number that a float holds exactly.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A value that became valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Coerced {
    /// The valid value.
    pub value: Value,
    /// JSON Pointers to what was changed or left out, in the order of change, each once.
    pub paths: Vec<String>,
}

/// What is done to one place.
enum Mend {
    Put(Value),
    LeaveOut,
}

impl CompiledSchema {
    /// Makes `value`, which is not valid, valid by giving a value of the wrong type the one that is asked
    /// for: text that spells a number, boolean, null, array or object becomes it; a number becomes text;
    /// a whole float becomes an integer; one value becomes an array of it; a null that may not be one is
    /// left out of its object; a value that differs from just one allowed value by case and white space
    /// becomes that one. A text is left alone wherever a text of its kind may stand, and so is the whole
    /// value. None if the result would not be valid.
    #[must_use]
    pub fn coerce(&self, value: &Value) -> Option<Coerced> {
        self.coerce_around(value, &[])
    }

    /// As [`CompiledSchema::coerce`], around the values that are not there yet at `holes` (JSON Pointers):
    /// they are not touched, and what they may mend does not count.
    #[must_use]
    pub fn coerce_around(&self, value: &Value, holes: &[&str]) -> Option<Coerced> {
        let mut value = value.clone();
        let mut paths: Vec<String> = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let mut mends: Vec<(String, Mend)> = Vec::new();
            for error in self.errors(&value)?.filter(|error| counts(error, holes)).take(MAX_PATHS) {
                mends.extend(mend(&error).unwrap_or_default());
            }
            let mut changed = false;
            for (path, mend) in mends {
                // What was mended once and is still wrong is not mended again: it would go in circles.
                let settled = paths.contains(&path) || holes.iter().any(|hole| is_within(hole, &path));
                if !settled && apply(&mut value, &path, mend) {
                    paths.push(path);
                    changed = true;
                }
            }
            if !changed || paths.len() > MAX_PATHS {
                return None;
            }
            if self.errors(&value)?.all(|error| !counts(&error, holes)) {
                return Some(Coerced { value, paths });
            }
        }
        None
    }
}

/// Returns whether anything was changed. The whole value never is.
fn apply(value: &mut Value, path: &str, mend: Mend) -> bool {
    match mend {
        Mend::Put(mended) => match value.pointer_mut(path) {
            Some(place) if !path.is_empty() => {
                *place = mended;
                true
            }
            _ => false,
        },
        Mend::LeaveOut => remove_member(value, path),
    }
}

/// What would mend `error`, by path; `None` if nothing would.
fn mend(error: &ValidationError<'_>) -> Option<Vec<(String, Mend)>> {
    let here = |mend: Mend| vec![(error.instance_path().to_string(), mend)];
    let instance: &Value = error.instance();
    let branches = match error.kind() {
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => context,
        _ => return mended_here(error, instance).map(here),
    };
    if instance.is_null() {
        return Some(here(Mend::LeaveOut));
    }
    // Where no branch takes a value of this type, it may become one of any type that is taken.
    if let Some(types) = wanted(error) {
        return as_one_of(&types, instance).map(Mend::Put).map(here);
    }
    let at_top = |inner: &&ValidationError<'_>| inner.instance_path() == error.instance_path();
    let mut spellings = branches.iter().flatten().filter(at_top).filter_map(|inner| respelled(inner.kind(), instance));
    if let Some(first) = spellings.next() {
        return spellings.all(|other| other == first).then(|| here(Mend::Put(first)));
    }
    // A branch that takes values of this type is mended from inside, if that mends all of it.
    branches.iter().filter(|branch| branch.iter().filter(at_top).find_map(wanted).is_none()).find_map(|branch| {
        let mends: Option<Vec<Vec<(String, Mend)>>> = branch.iter().map(mend).collect();
        mends.map(|mends| mends.into_iter().flatten().collect())
    })
}

fn mended_here(error: &ValidationError<'_>, instance: &Value) -> Option<Mend> {
    let value = match error.kind() {
        ValidationErrorKind::Type { .. } => wanted(error).and_then(|types| as_one_of(&types, instance)),
        kind => respelled(kind, instance),
    };
    match (value, error.kind()) {
        (Some(value), _) => Some(Mend::Put(value)),
        (
            None,
            ValidationErrorKind::Type { .. } | ValidationErrorKind::Enum { .. } | ValidationErrorKind::Constant { .. },
        ) if instance.is_null() => Some(Mend::LeaveOut),
        _ => None,
    }
}

/// The types that would have been right where `error` is about a type and nothing else.
fn wanted(error: &ValidationError<'_>) -> Option<JsonTypeSet> {
    match error.kind() {
        ValidationErrorKind::Type { kind: TypeKind::Single(one) } => Some(JsonTypeSet::empty().insert(*one)),
        ValidationErrorKind::Type { kind: TypeKind::Multiple(many) } => Some(*many),
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            let here = |inner: &&ValidationError<'_>| inner.instance_path() == error.instance_path();
            // A branch that takes values of this type has other reasons to refuse this one.
            let all: Option<Vec<JsonTypeSet>> =
                context.iter().map(|branch| branch.iter().filter(here).find_map(wanted)).collect();
            Some(all?.iter().flat_map(JsonTypeSet::iter).fold(JsonTypeSet::empty(), JsonTypeSet::insert))
        }
        _ => None,
    }
}

/// The one allowed value that `value` spells but for case and white space.
fn respelled(kind: &ValidationErrorKind, value: &Value) -> Option<Value> {
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

/// `value` as one of the `wanted` types, if it means one.
fn as_one_of(wanted: &JsonTypeSet, value: &Value) -> Option<Value> {
    let wants = |one: JsonType| wanted.contains(one);
    let number = |number: &Number| {
        if wants(JsonType::Number) {
            Some(Value::Number(number.clone()))
        } else {
            whole(number).filter(|_| wants(JsonType::Integer))
        }
    };
    let meant = match value {
        Value::String(text) => spelled(text).and_then(|meant| match &meant {
            Value::Number(written) => number(written),
            Value::Null => wants(JsonType::Null).then_some(meant),
            Value::Bool(_) => wants(JsonType::Boolean).then_some(meant),
            Value::Array(_) => wants(JsonType::Array).then_some(meant),
            Value::Object(_) => wants(JsonType::Object).then_some(meant),
            Value::String(_) => None,
        }),
        Value::Number(written) if wants(JsonType::String) => Some(written.to_string().into()),
        Value::Number(written) => number(written),
        _ => None,
    };
    meant.or_else(|| (wants(JsonType::Array) && !value.is_null()).then(|| Value::Array(vec![value.clone()])))
}

/// The integer that `number` is, if it is one.
fn whole(number: &Number) -> Option<Value> {
    if number.is_i64() || number.is_u64() {
        return Some(Value::Number(number.clone()));
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= MAX_EXACT)?;
    // In this range the conversion is exact.
    format!("{float:.0}").parse::<i64>().ok().map(Value::from)
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
mod tests;
