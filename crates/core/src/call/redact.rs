//! Keeps secrets of calls out of events and logs: the redactor learns them from the arguments before anything is
//! reported, and arguments are shown without them.

use serde_json::Value;

use super::arguments::read_object;
use super::indirect_call::is_carrier;
use super::{RawArguments, ToolCall};
use crate::catalogue::{Entry, Snapshot};
use crate::identity::name_table::Resolution;
use crate::secret::{Redacted, Redactor, each_secret};

pub use crate::secret::{MARK, MIN_SECRET, StreamRedactor, is_secret_key};

/// Nesting depth of calls that are searched in arguments.
const MAX_LISTED: usize = 8;
/// Bytes of a text that are learnt as one secret; the rest of a longer one is not.
const MAX_PIECE: usize = 16 * 1000;

/// Adds the values of the call's secret parameters to the redactor, so that results and errors that repeat them
/// are redacted too.
pub fn learn_secrets(entry: &Entry, arguments: &Value, redactor: &dyn Redactor) {
    let Some(schema) = entry.tool.secret_schema() else { return };
    let mut values = Vec::new();
    each_secret(schema, &mut arguments.clone(), &mut |value| strings(value, &mut values));
    redactor.learn(values);
}

/// Like [`learn_secrets`], for a call as written, before any of it is shown; also for calls that it carries or lists
/// (`{"tool": …, "parameters": …}`). Broken arguments are repaired as for a call; unreadable ones are secret as a
/// whole.
pub fn learn_written(call: &ToolCall, snapshot: &Snapshot, redactor: &dyn Redactor) {
    let Resolution::Found(index, _) = snapshot.resolve(&call.name) else { return };
    let Some(entry) = snapshot.list().get(index) else { return };
    let makes_calls = entry.provider.awaits_others(entry.id()) || is_carrier(entry);
    if !makes_calls && entry.tool.secret_schema().is_none() {
        return;
    }
    let arguments = match &call.arguments {
        RawArguments::Value(value) | RawArguments::Resolved(value, _) => value.clone(),
        RawArguments::Text(text) => read_object(text).unwrap_or_else(|| {
            // A carried call may be of any tool.
            if snapshot.list().iter().any(|entry| entry.tool.secret_schema().is_some()) {
                learn_whole(text, redactor);
            }
            serde_json::from_str(text).unwrap_or_default()
        }),
    };
    learn_secrets(entry, &arguments, redactor);
    if makes_calls {
        learn_listed(&arguments, snapshot, redactor, 0);
    }
}

/// Treats an unreadable text as secret as a whole: its parameters cannot be located.
fn learn_whole(text: &str, redactor: &dyn Redactor) {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end =
            (MAX_PIECE.min(rest.len())..=rest.len()).find(|&end| rest.is_char_boundary(end)).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        pieces.push(piece.to_owned());
        rest = after;
    }
    redactor.learn(pieces);
}

fn learn_listed(value: &Value, snapshot: &Snapshot, redactor: &dyn Redactor, depth: usize) {
    match value {
        _ if depth > MAX_LISTED => {}
        Value::Array(items) => items.iter().for_each(|item| learn_listed(item, snapshot, redactor, depth + 1)),
        Value::Object(map) => {
            let first = |keys: [&str; 2]| keys.into_iter().find_map(|key| map.get(key));
            let inside = (first(["tool", "name"]).and_then(Value::as_str), first(["parameters", "arguments"]));
            if let (Some(name), Some(arguments)) = inside
                && let Resolution::Found(index, _) = snapshot.resolve(name)
                && let Some(entry) = snapshot.list().get(index)
            {
                let parsed = arguments.as_str().map(|text| (text, read_object(text)));
                match &parsed {
                    Some((text, None)) if entry.tool.secret_schema().is_some() => learn_whole(text, redactor),
                    Some((_, Some(parsed))) => learn_secrets(entry, parsed, redactor),
                    _ => learn_secrets(entry, arguments, redactor),
                }
            }
            map.values().for_each(|item| learn_listed(item, snapshot, redactor, depth + 1));
        }
        _ => {}
    }
}

/// Returns the arguments for display, without secret parameters and known secrets. For a tool with secret parameters,
/// arguments that are no object are hidden as a whole: their parts cannot be located.
#[must_use]
pub fn shown_arguments(entry: &Entry, arguments: &Value, redactor: &dyn Redactor) -> Value {
    let Some(schema) = entry.tool.secret_schema() else { return redactor.redact_value(arguments) };
    if !arguments.is_object() {
        return MARK.into();
    }
    let mut redacted = arguments.clone();
    each_secret(schema, &mut redacted, &mut |value| *value = MARK.into());
    redactor.redact_value(&redacted)
}

/// Returns [`shown_arguments`] as JSON.
#[must_use]
pub fn shown_arguments_text(entry: &Entry, arguments: &Value, redactor: &dyn Redactor) -> String {
    match entry.tool.secret_schema() {
        None => serde_json::to_string(&Redacted(arguments, redactor)).unwrap_or_default(),
        Some(_) => shown_arguments(entry, arguments, redactor).to_string(),
    }
}

fn strings(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => into.push(text.clone()),
        Value::Number(number) => into.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| strings(item, into)),
        Value::Object(map) => map.values().for_each(|item| strings(item, into)),
        Value::Null | Value::Bool(_) => {}
    }
}
