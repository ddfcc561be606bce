//! Mending values as models write them. Only what failed validation is touched.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, JsonTypeSet, ValidationError};
use serde_json::{Number, Value};

use super::CompiledSchema;
use super::placeholders::counts;
use crate::json::pointer::{is_within, remove_member};
use crate::json::{Repaired, repair_container};

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
    /// A text among them was broken JSON and was mended.
    pub repaired: bool,
}

/// What is done to one place.
#[derive(PartialEq)]
enum Mend {
    Put(Value),
    /// What a text that is broken JSON says.
    Repair(Value),
    LeaveOut,
}

/// How far a value could be made valid.
pub(crate) struct Attempt {
    pub(crate) coerced: Coerced,
    pub(crate) valid: bool,
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
        self.attempt(value, holes).filter(|attempt| attempt.valid).map(|attempt| attempt.coerced)
    }

    /// Mends what can be mended; `None` for a value that cannot be looked through.
    pub(crate) fn attempt(&self, value: &Value, holes: &[&str]) -> Option<Attempt> {
        let mut coerced = Coerced { value: value.clone(), paths: Vec::new(), repaired: false };
        for _ in 0..MAX_ROUNDS {
            let mut mends: Vec<(String, Mend)> = Vec::new();
            for error in self.errors(&coerced.value)?.filter(|error| counts(error, holes)).take(MAX_PATHS) {
                mends.extend(mend(&error).unwrap_or_default());
            }
            let mut changed = false;
            for (path, mend) in mends {
                // What was mended once and is still wrong is not mended again: it would go in circles.
                let settled = coerced.paths.contains(&path) || holes.iter().any(|hole| is_within(hole, &path));
                let repairs = matches!(mend, Mend::Repair(_));
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
                return Some(Attempt { coerced, valid: true });
            }
        }
        Some(Attempt { coerced, valid: false })
    }
}

/// Returns whether anything was changed. The whole value never is.
fn apply(value: &mut Value, path: &str, mend: Mend) -> bool {
    match mend {
        Mend::Put(mended) | Mend::Repair(mended) => match value.pointer_mut(path) {
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
        return as_one_of(&types, instance).map(here);
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
    let mend = match error.kind() {
        ValidationErrorKind::Type { .. } => wanted(error).and_then(|types| as_one_of(&types, instance)),
        kind => respelled(kind, instance).map(Mend::Put),
    };
    match (mend, error.kind()) {
        (Some(mend), _) => Some(mend),
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
fn as_one_of(wanted: &JsonTypeSet, value: &Value) -> Option<Mend> {
    let wants = |one: JsonType| wanted.contains(one);
    let number = |number: &Number| {
        if wants(JsonType::Number) {
            Some(Value::Number(number.clone()))
        } else {
            whole(number).filter(|_| wants(JsonType::Integer))
        }
    };
    let meant = match value {
        Value::String(text) => spelled(text).and_then(|meant| {
            let fits = match &meant.value {
                Value::Number(written) => {
                    let exact = || exactly(text).filter(|_| wants(JsonType::Integer) && !wants(JsonType::Number));
                    return exact().or_else(|| number(written)).map(Mend::Put);
                }
                Value::Null => wants(JsonType::Null),
                Value::Bool(_) => wants(JsonType::Boolean),
                Value::Array(_) => wants(JsonType::Array),
                Value::Object(_) => wants(JsonType::Object),
                Value::String(_) => false,
            };
            fits.then(|| if meant.repaired { Mend::Repair(meant.value) } else { Mend::Put(meant.value) })
        }),
        // A float was written in one of many ways, and which is not known any more.
        Value::Number(written) if wants(JsonType::String) => {
            (!written.is_f64()).then(|| Mend::Put(written.to_string().into()))
        }
        Value::Number(written) => number(written).map(Mend::Put),
        _ => None,
    };
    meant.or_else(|| (wants(JsonType::Array) && !value.is_null()).then(|| Mend::Put(Value::Array(vec![value.clone()]))))
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

/// The integer that is written with a fraction of nothing but zeros, which a float might not hold.
fn exactly(text: &str) -> Option<Value> {
    let (digits, zeros) = text.trim().split_once('.')?;
    let whole = zeros.bytes().all(|digit| digit == b'0');
    whole.then(|| digits.parse::<i64>().map(Value::from).or_else(|_| digits.parse::<u64>().map(Value::from)).ok())?
}

/// The value whose JSON, or other common spelling, is `text`, all of it.
fn spelled(text: &str) -> Option<Repaired> {
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

#[cfg(test)]
mod tests;
