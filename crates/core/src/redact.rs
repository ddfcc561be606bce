//! Secrets on their way out: where they stand in a call's arguments, and text that comes in pieces. What a secret
//! is says the [`Redactor`].

use std::sync::Arc;

use serde_json::Value;

use crate::arguments::read_object;
use crate::call::{RawArguments, ToolCall};
use crate::catalogue::{Entry, Snapshot};
use crate::context::Redactor;
use crate::indirect_call::is_carrier;
use crate::name_table::Resolution;

/// What stands in a secret's place.
pub const MARK: &str = "[secret]";
/// Bytes that a value must have to be taken out of text: shorter ones occur in ordinary text; replacing them would garble
/// it and tell what they are.
pub const MIN_SECRET: usize = 6;
/// What people write where a program wants a key and its server does not.
const NO_KEYS: [&str; 20] = [
    "anything",
    "api-key",
    "api_key",
    "apikey",
    "dummy-key",
    "dummy_key",
    "ignored",
    "lm-studio",
    "lm_studio",
    "lmstudio",
    "localhost",
    "no-key",
    "no-key-required",
    "not-needed",
    "not_needed",
    "ollama",
    "placeholder",
    "sk-no-key-required",
    "unused",
    "your-api-key",
];
/// Steps through schemas for the secrets of one call's arguments; a schema that needs more is taken to mark no
/// others.
const MAX_STEPS: usize = 20_000;
/// How deep schemas are followed.
const MAX_DEPTH: usize = 64;
/// How deep calls are looked for in the arguments of a call that lists others.
const MAX_LISTED: usize = 8;
/// Bytes of a text that are learnt as one secret; longer ones are not known to their end.
const MAX_PIECE: usize = 16 * 1000;
/// Bytes of a stream that are held back at most.
const MAX_HELD: usize = 16 * 1024;
/// Bytes already passed on that still tell what follows them (`Authorization: Bearer …`).
const CONTEXT: usize = 256;

/// Whether a key is one that has to be hidden: neither too short for it ([`MIN_SECRET`]) nor a word that stands for none,
/// like `ollama` or `not-needed`, which would be missed wherever it means what it says.
#[must_use]
pub fn is_secret_key(key: &str) -> bool {
    key.len() >= MIN_SECRET && !NO_KEYS.iter().any(|word| word.eq_ignore_ascii_case(key))
}

/// Whether a schema marks any part of what it describes as secret (`writeOnly: true`, `format: password`).
#[must_use]
pub fn marks_secrets(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => is_secret(schema) || map.values().any(marks_secrets),
        Value::Array(items) => items.iter().any(marks_secrets),
        _ => false,
    }
}

fn is_secret(schema: &Value) -> bool {
    schema.get("writeOnly").and_then(Value::as_bool) == Some(true)
        || schema.get("format").and_then(Value::as_str) == Some("password")
}

/// From now on the redactor knows the values of the call's secret parameters: results and errors that repeat them
/// are redacted too.
pub fn learn_secrets(entry: &Entry, arguments: &Value, redactor: &dyn Redactor) {
    let Some(schema) = entry.tool.secret_schema() else { return };
    let mut values = Vec::new();
    each_secret(schema, &mut arguments.clone(), &mut |value| strings(value, &mut values));
    redactor.learn(values);
}

/// As [`learn_secrets`], of a call as it is written, before anything is told of it; of calls that it carries or lists
/// (`{"tool": …, "parameters": …}`) too. What is broken is read as a call is, and what cannot be
/// read is secret as a whole.
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
            // What a call carries may be one of any tool.
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

/// Of a text that cannot be read nobody knows what stands where: all of it is secret.
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

/// The arguments as they may be shown: secret parameters by their place, other secrets by what they are. Of a tool
/// with secret parameters nothing is shown that is no object: nobody knows what stands where.
#[must_use]
pub fn shown_arguments(entry: &Entry, arguments: &Value, redactor: &dyn Redactor) -> Value {
    let Some(schema) = entry.tool.secret_schema() else { return redactor.redact_value(arguments) };
    if !arguments.is_object() {
        return MARK.into();
    }
    let mut shown = arguments.clone();
    each_secret(schema, &mut shown, &mut |value| *value = MARK.into());
    redactor.redact_value(&shown)
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

/// Calls `found` with each part of `value` that `schema` marks as secret.
fn each_secret(schema: &Value, value: &mut Value, found: &mut dyn FnMut(&mut Value)) {
    Walk { root: schema, found, steps: 0 }.walk(schema, value, 0);
}

struct Walk<'a> {
    root: &'a Value,
    found: &'a mut dyn FnMut(&mut Value),
    steps: usize,
}

impl<'a> Walk<'a> {
    fn walk(&mut self, schema: &'a Value, value: &mut Value, depth: usize) {
        self.steps += 1;
        if depth > MAX_DEPTH || self.steps > MAX_STEPS {
            return;
        }
        let Value::Object(map) = schema else { return };
        if is_secret(schema) {
            return (self.found)(value);
        }
        for (keyword, sub) in map {
            match keyword.as_str() {
                "$ref" | "$dynamicRef" => {
                    let target = sub.as_str().and_then(|reference| reference.strip_prefix('#'));
                    if let Some(target) = target.and_then(|path| self.root.pointer(path)) {
                        self.walk(target, value, depth + 1);
                    }
                }
                "allOf" | "anyOf" | "oneOf" => {
                    sub.as_array().into_iter().flatten().for_each(|sub| self.walk(sub, value, depth + 1));
                }
                "if" | "then" | "else" => self.walk(sub, value, depth + 1),
                "dependentSchemas" => {
                    sub.as_object().into_iter().flatten().for_each(|(_, sub)| self.walk(sub, value, depth + 1));
                }
                _ => self.children(keyword, sub, value, depth + 1),
            }
        }
    }

    fn children(&mut self, keyword: &str, sub: &'a Value, value: &mut Value, depth: usize) {
        match (keyword, value) {
            ("properties", Value::Object(fields)) => {
                for (name, sub) in sub.as_object().into_iter().flatten() {
                    if let Some(field) = fields.get_mut(name) {
                        self.walk(sub, field, depth);
                    }
                }
            }
            // Whatever name fits: more is taken for secret rather than less.
            ("patternProperties", Value::Object(fields)) => {
                for (_, sub) in sub.as_object().into_iter().flatten() {
                    fields.values_mut().for_each(|field| self.walk(sub, field, depth));
                }
            }
            ("additionalProperties" | "unevaluatedProperties", Value::Object(fields)) => {
                fields.values_mut().for_each(|field| self.walk(sub, field, depth));
            }
            ("prefixItems", Value::Array(items)) => {
                let subs = sub.as_array().into_iter().flatten();
                items.iter_mut().zip(subs).for_each(|(item, sub)| self.walk(sub, item, depth));
            }
            // Up to draft 2019-09 `items` may be a list.
            ("items", Value::Array(items)) if sub.is_array() => {
                let subs = sub.as_array().into_iter().flatten();
                items.iter_mut().zip(subs).for_each(|(item, sub)| self.walk(sub, item, depth));
            }
            ("items" | "additionalItems" | "unevaluatedItems" | "contains", Value::Array(items)) => {
                items.iter_mut().for_each(|item| self.walk(sub, item, depth));
            }
            _ => {}
        }
    }
}

/// Takes secrets out of a text that comes in pieces, wherever it is split.
pub struct StreamRedactor {
    redactor: Arc<dyn Redactor>,
    /// What was passed on last, as context, and what is held back.
    text: String,
    /// How much of it was passed on.
    passed: usize,
}

impl std::fmt::Debug for StreamRedactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamRedactor").finish_non_exhaustive()
    }
}

impl StreamRedactor {
    /// A stream at its beginning.
    #[must_use]
    pub fn new(redactor: Arc<dyn Redactor>) -> Self {
        Self { redactor, text: String::new(), passed: 0 }
    }

    /// Takes a piece and gives what can be passed on: whatever may be the beginning of a secret is held back, 16 KiB
    /// at most.
    pub fn push(&mut self, piece: &str) -> String {
        self.text.push_str(piece);
        let held = self.text.len() - self.passed;
        let settled = if held > MAX_HELD { self.text.len() } else { self.redactor.settled(&self.text) };
        self.pass(settled)
    }

    /// Gives what was held back; the stream has ended.
    pub fn finish(&mut self) -> String {
        if self.text.is_empty() {
            return String::new();
        }
        let rest = self.pass(self.text.len());
        (self.text, self.passed) = (String::new(), 0);
        rest
    }

    fn pass(&mut self, settled: usize) -> String {
        let spans = self.redactor.spans(&self.text);
        let mut settled = settled.max(self.passed);
        // No cut goes through a secret; at the end of the text none can.
        if let Some(cut) = spans.iter().find(|span| span.start < settled && settled < span.end) {
            settled = cut.start.max(self.passed);
        }
        let mut out = String::new();
        let mut at = self.passed;
        for span in spans.iter().filter(|span| span.end > self.passed && span.start < settled) {
            out.push_str(&self.text[at..span.start.max(at)]);
            out.push_str(MARK);
            at = span.end;
        }
        out.push_str(&self.text[at..settled.max(at)]);
        self.passed = settled.max(at);
        let surplus = floor_boundary(&self.text, self.passed.saturating_sub(CONTEXT));
        self.text.drain(..surplus);
        self.passed -= surplus;
        out
    }
}

fn floor_boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use serde_json::json;

    use super::*;

    fn check(schema: Value, mut value: Value, expect: Value) {
        each_secret(&schema, &mut value, &mut |found| *found = MARK.into());
        assert_eq!(value, expect, "{schema}");
    }

    #[test]
    fn secret_parameters_are_found_wherever_a_schema_marks_them() {
        let password = || json!({"type": "string", "format": "password"});
        check(
            json!({"properties": {"p": password(), "q": {"type": "string"}, "w": {"writeOnly": true}}}),
            json!({"p": "a", "q": "b", "w": {"deep": [1]}}),
            json!({"p": MARK, "q": "b", "w": MARK}),
        );
        check(
            json!({"properties": {"users": {"type": "array", "items": {"$ref": "#/$defs/user"}}},
                   "$defs": {"user": {"properties": {"pin": password(), "next": {"$ref": "#/$defs/user"}}}}}),
            json!({"users": [{"pin": 7, "next": {"pin": "x", "name": "n"}}]}),
            json!({"users": [{"pin": MARK, "next": {"pin": MARK, "name": "n"}}]}),
        );
        check(
            json!({"oneOf": [{"properties": {"a": password()}}, {"additionalProperties": password()}]}),
            json!({"a": "1", "b": "2"}),
            json!({"a": MARK, "b": MARK}),
        );
        check(
            json!({"properties": {"t": {"prefixItems": [{}, password()]}, "u": {"items": [password()]}}}),
            json!({"t": ["a", "b", "c"], "u": ["a", "b"]}),
            json!({"t": ["a", MARK, "c"], "u": [MARK, "b"]}),
        );
        check(json!({"$ref": "#"}), json!({"a": 1}), json!({"a": 1}));
        assert!(!marks_secrets(&json!({"properties": {"a": {"writeOnly": false, "format": "uri"}}})));
        assert!(marks_secrets(&json!({"$defs": {"x": {"items": [password()]}}})));
    }

    /// Knows one secret, and one that only its context gives away.
    struct Known;

    impl Redactor for Known {
        fn spans(&self, text: &str) -> Vec<Range<usize>> {
            let secret = text.match_indices("open sesame").map(|(at, found)| at..at + found.len());
            let keyed = text.match_indices("key=").filter_map(|(at, found)| {
                let from = at + found.len();
                let length = text[from..].find(' ').unwrap_or(text.len() - from);
                (length > 0).then_some(from..from + length)
            });
            let mut spans: Vec<_> = secret.chain(keyed).collect();
            spans.sort_by_key(|span| span.start);
            spans
        }

        fn settled(&self, text: &str) -> usize {
            let begins = |at: &usize| text.is_char_boundary(*at) && "open sesame".starts_with(&text[*at..]);
            let word = text.rfind(' ').map_or(0, |at| at + 1);
            (0..text.len()).find(begins).unwrap_or(text.len()).min(word)
        }
    }

    #[test]
    fn a_secret_is_taken_out_of_a_stream_wherever_it_is_split() {
        let text = "é say open sesame now, key=abc123 and opens — open sesame";
        let expect = "é say [secret] now, key=[secret] and opens — [secret]";
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for &first in &cuts {
            for &second in cuts.iter().filter(|&&second| second >= first) {
                let mut stream = StreamRedactor::new(Arc::new(Known));
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                let mut out: String = pieces.iter().map(|piece| stream.push(piece)).collect();
                out.push_str(&stream.finish());
                assert_eq!(out, expect, "{pieces:?}");
            }
        }
        let mut stream = StreamRedactor::new(Arc::new(Known));
        let mut out: String = text.chars().map(|c| stream.push(c.encode_utf8(&mut [0; 4]))).collect();
        out.push_str(&stream.finish());
        assert_eq!(out, expect);
    }

    #[test]
    fn a_stream_holds_back_no_more_than_its_bound() {
        let mut stream = StreamRedactor::new(Arc::new(Known));
        let word = "x".repeat(MAX_HELD);
        assert_eq!(stream.push(&word), "");
        assert_eq!(stream.push("y").len(), MAX_HELD + 1);
        assert!(stream.text.len() <= CONTEXT);
    }
}
