//! Turns the arguments that a model wrote into an object that fits the schema.

use serde_json::{Map, Value};

use super::meta::{self, CallMeta};
use super::variables::{
    Completeness, PendingReference, ResolvedArguments, VariableReader, Variables, resolve, resolve_at,
};
use crate::catalogue::{DefinitionOrigin, Entry};
use crate::json::pointer::is_within;
use crate::json::{MAX_DEPTH, UnreadableJson, fault, nests_deeper, repair, type_name};
use crate::schema::{CoercionAttempt, CompiledSchema, Violation, fill_defaults, suggest};

pub use crate::output::provenance::{Provenance, RawArguments};

/// Capability of a tool whose array arguments hold independent items, like the calls of a
/// batch: if the text was cut, an incomplete item is dropped, because half of one means something else.
pub const WHOLE_ITEMS: &str = "whole_items";

/// An object fitted to a schema.
#[derive(Debug, Clone, PartialEq)]
pub struct FittedArguments {
    /// The arguments with defaults: valid except for pending references if there are no violations, else as written.
    pub arguments: Value,
    /// The changes made to the arguments.
    pub provenance: Provenance,
    /// References without a value yet; they stay in the object as written.
    pub pending: Vec<PendingReference>,
    /// Violations of the schema.
    pub violations: Vec<Violation>,
}

impl FittedArguments {
    /// Fits `raw` to the schema of `entry`: parses it, replaces references, fills in defaults if the tool is our own,
    /// validates, and coerces what fails. References are replaced if `variables` serve the tool and the tool does not
    /// pass its arguments on as other calls. A tool without a working schema takes any object. Meta fields among the
    /// arguments of our own tools go to `meta`.
    ///
    /// # Errors
    /// [`NotAnObject`] if `raw` holds no object.
    pub fn to(
        entry: &Entry,
        raw: RawArguments,
        meta: &mut CallMeta,
        variables: Option<&dyn Variables>,
    ) -> Result<Self, NotAnObject> {
        let mut provenance = Provenance::default();
        let (raw, holes) = match raw {
            RawArguments::Resolved(value, holes) => (RawArguments::Value(value), Some(holes)),
            raw => (raw, None),
        };
        let mut arguments = read_arguments(raw, &mut provenance)?;
        let holds_calls = entry.definition().capabilities.get(WHOLE_ITEMS) == Some(&Value::Bool(true));
        if let Some(cut) = provenance.cut.as_ref().filter(|_| holds_calls) {
            drop_item(&mut arguments, cut);
        }
        let misplaced = meta::extract_meta(entry, &mut arguments, meta, has_instances(variables));
        // References inside the calls of a batch are replaced when those calls are checked.
        let variables = variables.filter(|variables| !holds_calls && variables.serve(entry.tool.origin()));
        let reader = variables.map(|variables| VariableReader { variables, instance: meta.instance.as_deref() });
        let found = match (reader, holes) {
            (Some(reader), Some(holes)) => resolve_at(&mut arguments, &holes, reader, Completeness::Open),
            (Some(reader), None) => resolve(&mut arguments, reader),
            (None, _) => ResolvedArguments::default(),
        };
        let mut violations = found.violations();
        violations.extend(misplaced);
        let ResolvedArguments { replaced, tainted, mut pending, missing, .. } = found;
        (provenance.resolved, provenance.tainted) = (replaced, tainted);
        if !violations.is_empty() {
            pending.extend(missing);
            return Ok(Self { arguments, provenance, pending, violations });
        }
        Ok(Self::whole(entry, arguments, provenance, pending))
    }

    /// Fits an object whose references are replaced, except for the `pending` ones.
    pub(crate) fn whole(
        entry: &Entry,
        mut arguments: Value,
        mut provenance: Provenance,
        pending: Vec<PendingReference>,
    ) -> Self {
        let defaults = entry.definition().parameters.as_ref().filter(|_| entry.tool.origin() == DefinitionOrigin::Own);
        let fill = |arguments: &mut Value| defaults.is_some_and(|schema| fill_defaults(schema, arguments));
        provenance.defaulted |= fill(&mut arguments);
        let Ok(Some(schema)) = entry.tool.schema() else {
            return Self { arguments, provenance, pending, violations: Vec::new() };
        };
        let mut fitted = fit_around(schema, arguments, provenance, pending);
        // Coercion may have dropped members, or have produced an object that lacks some.
        if let Some(schema) = entry.definition().parameters.as_ref().filter(|_| !fitted.violations.is_empty()) {
            suggest(schema, &fitted.arguments, &mut fitted.violations);
        }
        if fitted.violations.is_empty() && !fitted.provenance.coerced.is_empty() && fill(&mut fitted.arguments) {
            fitted.provenance.defaulted = true;
            fitted = fit_around(schema, fitted.arguments, fitted.provenance, fitted.pending);
        }
        fitted
    }
}

fn has_instances(variables: Option<&dyn Variables>) -> bool {
    variables.is_some_and(|variables| !variables.instances().is_empty())
}

/// Drops the item of an array argument that contains or is the container at `cut`, and the items after it.
fn drop_item(arguments: &mut Value, cut: &str) {
    let mut steps = cut.split('/').skip(1);
    let (Some(member), Some(Ok(item))) = (steps.next(), steps.next().map(str::parse::<usize>)) else { return };
    if let Some(Value::Array(items)) = arguments.pointer_mut(&format!("/{member}")) {
        items.truncate(item);
    }
}

/// Arguments that are no object.
#[derive(Debug, Clone, PartialEq)]
pub struct NotAnObject {
    /// The value as written; null if it is nested too deeply.
    pub written: Value,
    /// Why, as the end of a sentence that begins with the arguments.
    pub message: String,
}

/// Validates `value`, and coerces the parts that fail.
#[must_use]
pub fn fit(schema: &CompiledSchema, value: Value, provenance: Provenance) -> FittedArguments {
    fit_around(schema, value, provenance, Vec::new())
}

/// Like [`fit`], ignoring places that still wait for values.
pub(crate) fn fit_around(
    schema: &CompiledSchema,
    value: Value,
    mut provenance: Provenance,
    pending: Vec<PendingReference>,
) -> FittedArguments {
    if schema.is_valid(&value) {
        return FittedArguments { arguments: value, provenance, pending, violations: Vec::new() };
    }
    let holes: Vec<&str> = pending.iter().map(|hole| hole.path.as_str()).collect();
    let violations = schema.violations_around(&value, &holes);
    if violations.is_empty() {
        return FittedArguments { arguments: value, provenance, pending, violations };
    }
    if let Some((spelled, places)) = floats_as_text(schema, &value, &violations, &provenance, &holes) {
        provenance.coerced.extend(places);
        return fit_around(schema, spelled, provenance, pending);
    }
    let Some(CoercionAttempt { coerced, valid }) = schema.attempt(&value, &holes) else {
        return FittedArguments { arguments: value, provenance, pending, violations };
    };
    if valid {
        provenance.coerced.extend(coerced.paths);
        provenance.repaired |= coerced.repaired;
        return FittedArguments { arguments: coerced.value, provenance, pending, violations: Vec::new() };
    }
    let left = remaining_violations(violations, schema.violations_around(&coerced.value, &holes), &coerced.paths);
    FittedArguments { arguments: value, provenance, pending, violations: left }
}

/// Returns the arguments with floats from references written as text where the schema wants text, and their places. The
/// source formatted these floats; text written by a model may have lost significant digits.
fn floats_as_text(
    schema: &CompiledSchema,
    value: &Value,
    violations: &[Violation],
    provenance: &Provenance,
    holes: &[&str],
) -> Option<(Value, Vec<String>)> {
    let (mut spelled, mut places) = (value.clone(), Vec::new());
    for Violation { path, .. } in violations.iter().filter(|found| provenance.resolved.contains(&found.path)) {
        let Some(float) = spelled.pointer(path).filter(|place| place.is_f64()).cloned() else { continue };
        if let Some(place) = spelled.pointer_mut(path) {
            *place = float.to_string().into();
        }
        if !schema.violations_around(&spelled, holes).iter().any(|left| left.path == *path) {
            places.push(path.clone());
        } else if let Some(place) = spelled.pointer_mut(path) {
            *place = float;
        }
    }
    (!places.is_empty()).then_some((spelled, places))
}

/// Returns the violations `after` coercion that remain. For values whose form was changed, reports the violations
/// `before` it: nobody wrote the changed places.
fn remaining_violations(before: Vec<Violation>, after: Vec<Violation>, mended: &[String]) -> Vec<Violation> {
    let around = |path: &str| mended.iter().find(|place| *place != path && is_within(path, place));
    let mut left: Vec<Violation> = Vec::new();
    for violation in after {
        match around(&violation.path) {
            None => left.push(violation),
            Some(place) => {
                let again = before.iter().find(|before| before.path == *place).filter(|before| !left.contains(before));
                left.extend(again.cloned());
            }
        }
    }
    if left.is_empty() { before } else { left }
}

/// Reads the object that `text` denotes, as call arguments are read; `None` if there is none.
#[must_use]
pub fn read_object(text: &str) -> Option<Value> {
    read_arguments(RawArguments::Text(text.to_owned()), &mut Provenance::default()).ok()
}

/// Reads an object, its JSON text, or JSON text inside a JSON string, repaired if broken.
pub(crate) fn read_arguments(raw: RawArguments, provenance: &mut Provenance) -> Result<Value, NotAnObject> {
    let row = matches!(&raw, RawArguments::Text(text) if text.trim_start().starts_with('{'));
    let mut value = match raw {
        RawArguments::Value(value) | RawArguments::Resolved(value, _) if nests_deeper(&value, MAX_DEPTH) => {
            let message = format!("are nested deeper than {MAX_DEPTH} levels; flatten them");
            return Err(NotAnObject { written: Value::Null, message });
        }
        RawArguments::Value(value) | RawArguments::Resolved(value, _) => value,
        RawArguments::Text(text) if text.trim().is_empty() => Value::Null,
        RawArguments::Text(text) => match read(&text, provenance) {
            Ok(value) => value,
            Err(message) => return Err(NotAnObject { written: text.into(), message }),
        },
    };
    if let Value::String(text) = &value {
        if text.trim().is_empty() {
            value = Value::Null;
        } else if text.trim_start().starts_with(['{', '"', '`'])
            && let Ok(inner) = repair(text)
            && inner.value.is_object()
        {
            value = inner.value;
            provenance.unwrapped = true;
            provenance.repaired |= inner.repaired;
            provenance.cut = inner.cut;
        }
    }
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => {
            provenance.emptied = true;
            Ok(Value::Object(Map::new()))
        }
        other if row && other.is_array() => {
            let message = "are several objects in a row; write one object, and a call for each".into();
            Err(NotAnObject { written: other, message })
        }
        other => {
            let message = format!("must be a JSON object, not {}", with_article(type_name(&other)));
            Err(NotAnObject { written: other, message })
        }
    }
}

/// Reads JSON, repaired if needed. A repaired value that is no container was not JSON at all.
fn read(text: &str, provenance: &mut Provenance) -> Result<Value, String> {
    let out_of_range = || "hold a number that is out of range; write one that a double can hold, or a text".to_owned();
    let not_json = |why: &dyn std::fmt::Display| format!("are not JSON: {why}; write one JSON object");
    let error = match serde_json::from_str(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let mended = repair(text).map_err(|unreadable| match unreadable {
        UnreadableJson::OutOfRange => out_of_range(),
        UnreadableJson::Empty => not_json(&fault(&error)),
        other => not_json(&other),
    })?;
    let container = match &mended.value {
        Value::String(inner) => inner.trim_start().starts_with('{'),
        other => other.is_object() || other.is_array(),
    };
    if !container {
        return Err(not_json(&fault(&error)));
    }
    provenance.repaired = true;
    provenance.fault = Some(fault(&error));
    provenance.cut = mended.cut;
    Ok(mended.value)
}

fn with_article(kind: &str) -> String {
    match kind {
        "null" => kind.to_owned(),
        "array" | "object" => format!("an {kind}"),
        _ => format!("a {kind}"),
    }
}
