//! Holds secrets: a text that does not print, the schema marks of secret parts of a value, and a filter that takes
//! secrets out of text on its way to any sink, whole or in pieces.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Number, Value};

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
/// Bytes of a stream that are held back at most.
const MAX_HELD: usize = 16 * 1024;
/// Bytes already passed on that still tell what follows them (`Authorization: Bearer …`).
const CONTEXT: usize = 256;

/// A secret text. It never prints and is not written out by itself; [`Secret::expose`] is the one way to it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for what carries or keeps it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Takes secrets out of text. The one boundary: every sink's text passes here.
pub trait Redactor: Send + Sync {
    /// Where secrets stand in the text, in order, apart from each other.
    fn spans(&self, text: &str) -> Vec<Range<usize>>;

    /// How many bytes from the beginning of a text that goes on can be told apart from secrets already: what
    /// follows them may be the beginning of one.
    fn settled(&self, text: &str) -> usize {
        text.char_indices().rfind(|(_, c)| !c.is_ascii_graphic()).map_or(0, |(at, c)| at + c.len_utf8())
    }

    /// From now on these values are secrets, for a while at least.
    fn learn(&self, _values: Vec<String>) {}

    /// Whether a number of a JSON value is a secret.
    fn is_secret_number(&self, _number: &Number) -> bool {
        false
    }

    /// The text with secrets replaced; borrowed when there are none.
    fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let spans = self.spans(text);
        if spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for span in spans {
            out.push_str(&text[at..span.start]);
            out.push_str(MARK);
            at = span.end;
        }
        out.push_str(&text[at..]);
        Cow::Owned(out)
    }

    /// Every string of a JSON value, keys too, and every number that is a secret.
    fn redact_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact(text).into_owned()),
            Value::Array(items) => items.iter().map(|item| self.redact_value(item)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, item)| (self.redact(key).into_owned(), self.redact_value(item))).collect()
            }
            Value::Number(number) if self.is_secret_number(number) => MARK.into(),
            other => other.clone(),
        }
    }

    /// A tool's own result as JSON, on its way to whoever made the call. What only looks like a secret may be what
    /// was asked for; a redactor that knows the secrets of the application takes out those, and the others in `error` alone.
    fn redact_result(&self, result: &Value) -> Value {
        self.redact_value(result)
    }
}

/// Redacts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRedaction;

impl Redactor for NoRedaction {
    fn spans(&self, _text: &str) -> Vec<Range<usize>> {
        Vec::new()
    }

    fn settled(&self, text: &str) -> usize {
        text.len()
    }
}

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

/// Calls `found` with each part of `value` that `schema` marks as secret.
pub(crate) fn each_secret(schema: &Value, value: &mut Value, found: &mut dyn FnMut(&mut Value)) {
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

impl fmt::Debug for StreamRedactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    use serde_json::json;

    use super::*;

    fn check(schema: Value, mut value: Value, expect: Value) {
        each_secret(&schema, &mut value, &mut |found| *found = MARK.into());
        assert_eq!(value, expect, "{schema}");
    }

    #[test]
    fn secret_parameters_are_found_at_any_depth() {
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
    struct TestRedactor;

    impl Redactor for TestRedactor {
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
    fn split_secrets_are_redacted_in_streams() {
        let text = "é say open sesame now, key=abc123 and opens — open sesame";
        let expect = "é say [secret] now, key=[secret] and opens — [secret]";
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for &first in &cuts {
            for &second in cuts.iter().filter(|&&second| second >= first) {
                let mut stream = StreamRedactor::new(Arc::new(TestRedactor));
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                let mut out: String = pieces.iter().map(|piece| stream.push(piece)).collect();
                out.push_str(&stream.finish());
                assert_eq!(out, expect, "{pieces:?}");
            }
        }
        let mut stream = StreamRedactor::new(Arc::new(TestRedactor));
        let mut out: String = text.chars().map(|c| stream.push(c.encode_utf8(&mut [0; 4]))).collect();
        out.push_str(&stream.finish());
        assert_eq!(out, expect);
    }

    #[test]
    fn stream_redactor_holds_back_bounded_text() {
        let mut stream = StreamRedactor::new(Arc::new(TestRedactor));
        let word = "x".repeat(MAX_HELD);
        assert_eq!(stream.push(&word), "");
        assert_eq!(stream.push("y").len(), MAX_HELD + 1);
        assert!(stream.text.len() <= CONTEXT);
    }

    #[test]
    fn a_secret_is_read_and_does_not_print() {
        let secret: Secret = serde_json::from_str(r#""sesame""#).expect("a text");
        assert_eq!((secret.expose(), format!("{:?}", Some(&secret))), ("sesame", "Some(Secret(***))".to_owned()));
    }

    #[test]
    fn redaction_reaches_every_string() {
        struct Stars;
        impl Redactor for Stars {
            fn spans(&self, text: &str) -> Vec<Range<usize>> {
                text.match_indices("secret").map(|(at, found)| at..at + found.len()).collect()
            }
        }
        let value = json!({"a": ["secret", {"b": "x secret"}], "n": 1, "secret": 2});
        assert_eq!(Stars.redact_value(&value), json!({"a": [MARK, {"b": "x [secret]"}], "n": 1, MARK: 2}));
    }
}
