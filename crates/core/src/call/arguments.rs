//! Turns the arguments that a model wrote into an object that fits the schema.

use serde_json::{Map, Value};

use super::meta::{self, CallMeta};
use super::variables::{Outlook, PendingReference, Reader, Resolved, Variables, resolve, resolve_at};
use crate::catalogue::{Entry, Origin};
use crate::json::pointer::is_within;
use crate::json::{MAX_DEPTH, Unreadable, fault, nests_deeper, repair, type_name};
use crate::schema::{Attempt, CompiledSchema, Violation, fill_defaults, suggest};

pub use crate::output::provenance::{Provenance, RawArguments};

/// The capability of a tool whose array arguments hold items that stand for themselves, like the calls of a
/// batch: of a text that was cut, an item that is not whole is dropped, for half of one means something else.
pub const WHOLE_ITEMS: &str = "whole_items";

/// An object beside a schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The object: valid but for what is pending if there are no violations, else as it was written, with
    /// defaults.
    pub arguments: Value,
    /// What was done to it.
    pub provenance: Provenance,
    /// References whose value is not there yet; they stand in the object as they were written.
    pub pending: Vec<PendingReference>,
    /// What is wrong with it.
    pub violations: Vec<Violation>,
}

impl Fitted {
    /// Fits `raw` to the schema of `entry`: parsed, its references replaced if there are `variables` that
    /// serve the tool and the tool does not hand its arguments on as other calls, filled with defaults if the tool is our
    /// own, validated, and coerced where it failed. A tool without a working schema takes any object. Meta fields among the
    /// arguments of our own tools go to `meta`.
    ///
    /// # Errors
    /// [`NoObject`] where there is none in `raw`.
    pub fn to(
        entry: &Entry,
        raw: RawArguments,
        meta: &mut CallMeta,
        variables: Option<&dyn Variables>,
    ) -> Result<Self, NoObject> {
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
        let misplaced = meta::lift(entry, &mut arguments, meta, has_instances(variables));
        // References in the calls that a batch holds are replaced when those are checked.
        let variables = variables.filter(|variables| !holds_calls && variables.serve(entry.tool.origin()));
        let reader = variables.map(|variables| Reader { variables, instance: meta.instance.as_deref() });
        let found = match (reader, holes) {
            (Some(reader), Some(holes)) => resolve_at(&mut arguments, &holes, reader, Outlook::Open),
            (Some(reader), None) => resolve(&mut arguments, reader),
            (None, _) => Resolved::default(),
        };
        let mut violations = found.violations();
        violations.extend(misplaced);
        let Resolved { replaced, tainted, mut pending, missing, .. } = found;
        (provenance.resolved, provenance.tainted) = (replaced, tainted);
        if !violations.is_empty() {
            pending.extend(missing);
            return Ok(Self { arguments, provenance, pending, violations });
        }
        Ok(Self::whole(entry, arguments, provenance, pending))
    }

    /// Fits an object whose references were replaced, but for those that are `pending`.
    pub(crate) fn whole(
        entry: &Entry,
        mut arguments: Value,
        mut provenance: Provenance,
        pending: Vec<PendingReference>,
    ) -> Self {
        let defaults = entry.definition().parameters.as_ref().filter(|_| entry.tool.origin() == Origin::Own);
        let fill = |arguments: &mut Value| defaults.is_some_and(|schema| fill_defaults(schema, arguments));
        provenance.defaulted |= fill(&mut arguments);
        let Ok(Some(schema)) = entry.tool.schema() else {
            return Self { arguments, provenance, pending, violations: Vec::new() };
        };
        let mut fitted = fit_around(schema, arguments, provenance, pending);
        // What was coerced may have left members out, or have become an object that lacks some.
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

/// Drops the item of an array argument that the container at `cut` is in or is, with those behind it.
fn drop_item(arguments: &mut Value, cut: &str) {
    let mut steps = cut.split('/').skip(1);
    let (Some(member), Some(Ok(item))) = (steps.next(), steps.next().map(str::parse::<usize>)) else { return };
    if let Some(Value::Array(items)) = arguments.pointer_mut(&format!("/{member}")) {
        items.truncate(item);
    }
}

/// Arguments that are no object.
#[derive(Debug, Clone, PartialEq)]
pub struct NoObject {
    /// What was written; null if it is too deep to be looked at.
    pub written: Value,
    /// Why, as the end of a sentence that begins with the arguments.
    pub message: String,
}

/// Validates `value`, and coerces what fails.
#[must_use]
pub fn fit(schema: &CompiledSchema, value: Value, provenance: Provenance) -> Fitted {
    fit_around(schema, value, provenance, Vec::new())
}

/// As [`fit`], around the places of `value` that wait for theirs.
pub(crate) fn fit_around(
    schema: &CompiledSchema,
    value: Value,
    mut provenance: Provenance,
    pending: Vec<PendingReference>,
) -> Fitted {
    if schema.is_valid(&value) {
        return Fitted { arguments: value, provenance, pending, violations: Vec::new() };
    }
    let holes: Vec<&str> = pending.iter().map(|hole| hole.path.as_str()).collect();
    let violations = schema.violations_around(&value, &holes);
    if violations.is_empty() {
        return Fitted { arguments: value, provenance, pending, violations };
    }
    if let Some((spelled, places)) = floats_as_text(schema, &value, &violations, &provenance, &holes) {
        provenance.coerced.extend(places);
        return fit_around(schema, spelled, provenance, pending);
    }
    let Some(Attempt { coerced, valid }) = schema.attempt(&value, &holes) else {
        return Fitted { arguments: value, provenance, pending, violations };
    };
    if valid {
        provenance.coerced.extend(coerced.paths);
        provenance.repaired |= coerced.repaired;
        return Fitted { arguments: coerced.value, provenance, pending, violations: Vec::new() };
    }
    let left = left_over(violations, schema.violations_around(&coerced.value, &holes), &coerced.paths);
    Fitted { arguments: value, provenance, pending, violations: left }
}

/// The arguments with those floats as texts that a reference stands for, where a text is wanted, and their places. Their source
/// wrote them as they are; what a model wrote may have lost digits that count.
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

/// What is wrong that mending did not mend: the violations `after` it. Those inside a value that was given
/// another form are of a place that nobody wrote: there, what was wrong `before` counts.
fn left_over(before: Vec<Violation>, after: Vec<Violation>, mended: &[String]) -> Vec<Violation> {
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

/// The object that `text` means, read as the arguments of a call are; `None` if there is none.
#[must_use]
pub fn read_object(text: &str) -> Option<Value> {
    read_arguments(RawArguments::Text(text.to_owned()), &mut Provenance::default()).ok()
}

/// An object, its JSON text, or JSON text inside a JSON string; what is broken is mended.
pub(crate) fn read_arguments(raw: RawArguments, provenance: &mut Provenance) -> Result<Value, NoObject> {
    let row = matches!(&raw, RawArguments::Text(text) if text.trim_start().starts_with('{'));
    let mut value = match raw {
        RawArguments::Value(value) | RawArguments::Resolved(value, _) if nests_deeper(&value, MAX_DEPTH) => {
            let message = format!("are nested deeper than {MAX_DEPTH} levels; flatten them");
            return Err(NoObject { written: Value::Null, message });
        }
        RawArguments::Value(value) | RawArguments::Resolved(value, _) => value,
        RawArguments::Text(text) if text.trim().is_empty() => Value::Null,
        RawArguments::Text(text) => match read(&text, provenance) {
            Ok(value) => value,
            Err(message) => return Err(NoObject { written: text.into(), message }),
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
            Err(NoObject { written: other, message })
        }
        other => {
            let message = format!("must be a JSON object, not {}", with_article(type_name(&other)));
            Err(NoObject { written: other, message })
        }
    }
}

/// Reads JSON, mended if need be. What had to be mended and is no container was no JSON at all.
fn read(text: &str, provenance: &mut Provenance) -> Result<Value, String> {
    let out_of_range = || "hold a number that is out of range; write one that a double can hold, or a text".to_owned();
    let not_json = |why: &dyn std::fmt::Display| format!("are not JSON: {why}; write one JSON object");
    let error = match serde_json::from_str(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let mended = repair(text).map_err(|unreadable| match unreadable {
        Unreadable::OutOfRange => out_of_range(),
        Unreadable::Empty => not_json(&fault(&error)),
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
