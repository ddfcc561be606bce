//! Compares two JSON Schemas, parameter by parameter.

use serde_json::{Map, Value};

use super::diff::{Change, ChangeSeverity, excerpt_of, hidden, keys, leaf, text};
use super::text_diff::{short, step};

/// Nesting depth of schemas that is compared; deeper differences are reported as one.
const MAX_DEPTH: usize = 24;

/// Keywords whose members are named schemas and do not affect required input.
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "dependentSchemas"];
/// Keywords that are one schema.
const INNER: [&str; 8] =
    ["not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties"];
/// Keywords that are a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords without effect.
const REMARKS: [&str; 4] = ["$comment", "$schema", "$id", "examples"];

/// Adds the differences of the schema at `field`.
pub(super) fn diff(field: &str, was: &Value, is: &Value, changes: &mut Vec<Change>) {
    match (was, is) {
        (Value::Object(_), Value::Null) => {
            changes.push(Change::new(ChangeSeverity::Danger, field, "has no schema any more"));
        }
        _ => Walk { changes }.schema(field, was, is, 0),
    }
}

struct Walk<'a> {
    changes: &'a mut Vec<Change>,
}

impl Walk<'_> {
    fn note(&mut self, weight: ChangeSeverity, field: &str, message: impl Into<String>) {
        self.changes.push(Change::new(weight, field, message));
    }

    fn schema(&mut self, field: &str, was: &Value, is: &Value, depth: usize) {
        if was == is {
            return;
        }
        let (old, new) = match (was, is) {
            (Value::Object(old), Value::Object(new)) => (old, new),
            (Value::Null, Value::Object(_)) => return self.fresh(ChangeSeverity::Notable, field, "is new", is, depth),
            (was, Value::Object(_)) => {
                let what = format!("is another; it was {}", excerpt_of(was));
                return self.fresh(ChangeSeverity::Notable, field, &what, is, depth);
            }
            _ => return self.changes.push(leaf(ChangeSeverity::Notable, field, was, is)),
        };
        if depth >= MAX_DEPTH {
            self.note(ChangeSeverity::Notable, field, "differs somewhere below");
            return;
        }
        self.properties(field, old, new, depth);
        for key in keys(old, new) {
            let (was, is) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
            if was != is {
                self.keyword(field, key, was, is, depth);
            }
        }
    }

    /// Reports a new schema, with its parts besides type and description.
    fn fresh(&mut self, weight: ChangeSeverity, field: &str, what: &str, is: &Value, depth: usize) {
        let description = is.get("description").and_then(Value::as_str);
        let about = description.map(|about| format!(": {}", short(about))).unwrap_or_default();
        self.note(weight, field, format!("{what}{}{about}", kind_of(is)));
        self.changes.extend(description.and_then(|about| hidden(field, "", about)));
        let is_shown = |key: &str| key == "type" || (key == "description" && description.is_some());
        let shown_keywords =
            |schema: &Map<String, Value>| schema.clone().into_iter().filter(|(key, _)| is_shown(key)).collect();
        if let Some(keywords) = is.as_object().map(shown_keywords) {
            self.schema(field, &Value::Object(keywords), is, depth + 1);
        }
    }

    /// Parameters and which of them must be given.
    fn properties(&mut self, field: &str, old: &Map<String, Value>, new: &Map<String, Value>, depth: usize) {
        let empty = Map::new();
        let of = |schema: &'_ Map<String, Value>| schema.get("properties").and_then(Value::as_object).cloned();
        let (was, is) = (of(old), of(new));
        let (was, is) = (was.as_ref().unwrap_or(&empty), is.as_ref().unwrap_or(&empty));
        let (needed, needs) = (required(old), required(new));
        let mut names: Vec<&String> = keys(was, is).collect();
        names.sort();
        for name in names {
            let path = format!("{field}.{}", step(name));
            match (was.get(name), is.get(name)) {
                (Some(before), None) => {
                    self.note(ChangeSeverity::Notable, &path, format!("is gone{}", kind_of(before)))
                }
                (None, Some(after)) => {
                    let (weight, what) = match needs.contains(&name.as_str()) {
                        true => (ChangeSeverity::Danger, "is new and required"),
                        false => (ChangeSeverity::Notable, "is new"),
                    };
                    self.fresh(weight, &path, what, after, depth);
                }
                (Some(before), Some(after)) => self.schema(&path, before, after, depth + 1),
                (None, None) => {}
            }
        }
        // A new property has already been reported as required.
        for name in needs.iter().filter(|name| !needed.contains(name)) {
            if was.contains_key(*name) || !is.contains_key(*name) {
                self.note(ChangeSeverity::Danger, &format!("{field}.{}", step(name)), "must be given now");
            }
        }
        for name in needed.iter().filter(|name| !needs.contains(name)) {
            if is.contains_key(*name) || !was.contains_key(*name) {
                self.note(ChangeSeverity::Notable, &format!("{field}.{}", step(name)), "need not be given any more");
            }
        }
    }

    fn keyword(&mut self, field: &str, key: &str, was: &Value, is: &Value, depth: usize) {
        let path = format!("{field}.{}", step(key));
        match (key, was, is) {
            ("properties", Value::Object(_) | Value::Null, Value::Object(_) | Value::Null)
            | ("required", Value::Array(_) | Value::Null, Value::Array(_) | Value::Null) => {}
            ("type", ..) => {
                if set(was) != set(is) {
                    let message = match (was, is) {
                        (Value::Null, is) => format!("must be {} now; it could be anything", types(is)),
                        (was, Value::Null) => format!("may be anything now; it was {}", types(was)),
                        (was, is) => format!("is now {}; it was {}", types(is), types(was)),
                    };
                    self.note(ChangeSeverity::Notable, field, message);
                }
            }
            ("enum", Value::Array(old), Value::Array(new)) => {
                let list =
                    |values: Vec<&Value>| short(&values.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(", "));
                let more: Vec<&Value> = new.iter().filter(|value| !old.contains(value)).collect();
                let less: Vec<&Value> = old.iter().filter(|value| !new.contains(value)).collect();
                if !more.is_empty() {
                    self.note(ChangeSeverity::Notable, field, format!("also takes {}", list(more)));
                }
                if !less.is_empty() {
                    self.note(ChangeSeverity::Notable, field, format!("no longer takes {}", list(less)));
                }
            }
            ("description" | "title", ..) => text(ChangeSeverity::Notable, &path, was, is, self.changes),
            ("additionalProperties", was, is) if !was.is_object() && !is.is_object() => {
                match (*was != Value::Bool(false), *is != Value::Bool(false)) {
                    (false, true) => {
                        self.note(ChangeSeverity::Notable, field, "takes parameters now that it does not name")
                    }
                    (true, false) => {
                        self.note(ChangeSeverity::Notable, field, "takes only the parameters that it names now")
                    }
                    // A missing value means true.
                    _ => {}
                }
            }
            ("items", Value::Object(_) | Value::Null, Value::Object(_)) => {
                self.schema(&format!("{field}[]"), was, is, depth + 1)
            }
            ("additionalProperties", _, Value::Object(_)) => {
                self.schema(&format!("{field}.*"), was, is, depth + 1);
            }
            (key, Value::Object(_) | Value::Null, Value::Object(new))
                if NAMED.contains(&key) && !(was.is_null() && new.is_empty()) =>
            {
                let empty = Map::new();
                let old = was.as_object().unwrap_or(&empty);
                for name in keys(old, new) {
                    let (was, is) = (old.get(name).unwrap_or(&Value::Null), new.get(name).unwrap_or(&Value::Null));
                    self.schema(&format!("{path}.{}", step(name)), was, is, depth + 1);
                }
            }
            (key, _, Value::Object(_)) if INNER.contains(&key) => {
                self.schema(&format!("{field}({key})"), was, is, depth + 1);
            }
            (key, Value::Array(_) | Value::Null, Value::Array(new))
                if LISTS.contains(&key) && !(was.is_null() && new.is_empty()) =>
            {
                let old = was.as_array().map(Vec::as_slice).unwrap_or_default();
                for (index, (was, is)) in old.iter().zip(new).enumerate() {
                    self.schema(&format!("{field}({key} {})", index + 1), was, is, depth + 1);
                }
                for (index, more) in new.iter().enumerate().skip(old.len()) {
                    self.schema(&format!("{field}({key} {})", index + 1), &Value::Null, more, depth + 1);
                }
                for (index, less) in old.iter().enumerate().skip(new.len()) {
                    self.note(
                        ChangeSeverity::Notable,
                        &format!("{field}({key} {})", index + 1),
                        format!("is gone; it was {}", excerpt_of(less)),
                    );
                }
            }
            _ => {
                let weight = if REMARKS.contains(&key) { ChangeSeverity::Minor } else { ChangeSeverity::Notable };
                self.changes.push(leaf(weight, &path, was, is));
            }
        }
    }
}

fn required(schema: &Map<String, Value>) -> Vec<&str> {
    let names = schema.get("required").and_then(Value::as_array);
    let mut names: Vec<&str> = names.into_iter().flatten().filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the types of a `type`, in any order.
fn set(kind: &Value) -> Vec<String> {
    let mut kinds: Vec<String> = match kind {
        Value::Array(kinds) => kinds.iter().map(Value::to_string).collect(),
        Value::Null => Vec::new(),
        one => vec![one.to_string()],
    };
    kinds.sort_unstable();
    kinds
}

fn types(kind: &Value) -> String {
    match kind {
        Value::String(kind) => short(kind),
        Value::Array(kinds) => kinds.iter().map(types).collect::<Vec<_>>().join(" or "),
        other => excerpt_of(other),
    }
}

/// Formats the type of a schema, if stated: ` (string)`.
fn kind_of(schema: &Value) -> String {
    schema.get("type").map(|kind| format!(" ({})", types(kind))).unwrap_or_default()
}
