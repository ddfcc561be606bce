//! Secrets: a text that does not print, schema marks of secret values, and a filter that redacts
//! secrets in text on its way to any sink, whole or in pieces.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Number, Value};

/// Replacement text of a secret.
pub const MARK: &str = "[secret]";
/// Minimal length in bytes of a value that is redacted from text: shorter values occur in ordinary text; replacing them
/// would garble it and reveal them.
pub const MIN_SECRET: usize = 6;
/// Placeholder keys that people enter when a program wants a key and the server does not.
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
/// Bound on the steps through schemas for the secrets of one call's arguments; beyond it no further parts count as
/// secret.
const MAX_STEPS: usize = 20_000;
/// Nesting depth of schemas that is followed.
const MAX_DEPTH: usize = 64;
/// Bytes of a stream that are held back at most.
const MAX_HELD: usize = 16 * 1024;
/// Bytes already emitted that are kept as context for what follows (`Authorization: Bearer …`).
const CONTEXT: usize = 256;

/// A secret text. It never prints and is not serialised; [`Secret::expose`] is the only access.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Exposes the secret, to send or store it.
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

/// Redacts secrets. All text to any sink passes through it.
pub trait Redactor: Send + Sync {
    /// Returns the positions of secrets in the text, in order, not overlapping.
    fn spans(&self, text: &str) -> Vec<Range<usize>>;

    /// Returns the length of the prefix of a growing text that is settled: the rest may be the beginning of a secret.
    fn safe_prefix_len(&self, text: &str) -> usize {
        text.char_indices().rfind(|(_, c)| !c.is_ascii_graphic()).map_or(0, |(at, c)| at + c.len_utf8())
    }

    /// Adds these values to the secrets, at least for a while.
    fn learn(&self, _values: Vec<String>) {}

    /// Whether a number of a JSON value is a secret.
    fn is_secret_number(&self, _number: &Number) -> bool {
        false
    }

    /// Replaces secrets in the text; borrowed if there are none.
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

    /// Redacts a tool's own result as JSON for its caller. A value that merely looks like a secret may be the requested
    /// data: a redactor that knows the application's secrets replaces only those, and the others in `error` alone.
    fn redact_result(&self, result: &Value) -> Value {
        self.redact_value(result)
    }
}

/// A JSON value that is written as [`Redactor::redact_value`] returns it, without a copy.
#[derive(Clone, Copy)]
pub struct Redacted<'a>(pub &'a Value, pub &'a dyn Redactor);

impl Serialize for Redacted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(value, redactor) = *self;
        match value {
            Value::String(text) => serializer.serialize_str(&redactor.redact(text)),
            Value::Array(items) => serializer.collect_seq(items.iter().map(|item| Self(item, redactor))),
            Value::Object(map) => {
                serializer.collect_map(map.iter().map(|(key, item)| (redactor.redact(key), Self(item, redactor))))
            }
            Value::Number(number) if redactor.is_secret_number(number) => serializer.serialize_str(MARK),
            other => other.serialize(serializer),
        }
    }
}

/// A redactor that changes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRedaction;

impl Redactor for NoRedaction {
    fn spans(&self, _text: &str) -> Vec<Range<usize>> {
        Vec::new()
    }

    fn safe_prefix_len(&self, text: &str) -> usize {
        text.len()
    }
}

/// Whether a key must be redacted. Keys shorter than [`MIN_SECRET`] and placeholders like `ollama` or `not-needed` are
/// not: redacting those words would damage ordinary text.
#[must_use]
pub fn is_secret_key(key: &str) -> bool {
    key.len() >= MIN_SECRET && !NO_KEYS.iter().any(|word| word.eq_ignore_ascii_case(key))
}

/// Whether a schema marks any value as secret (`writeOnly: true`, `format: password`).
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
            // Any name may match: better too many secrets than too few.
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

/// Redacts secrets in a text that arrives in pieces, wherever it is split.
pub struct StreamRedactor {
    redactor: Arc<dyn Redactor>,
    /// The last emitted text, as context, and the text held back.
    text: String,
    /// Length of the emitted part.
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

    /// Takes a piece and returns the text that can be emitted. Text that may begin a secret is held back, 16 KiB
    /// at most.
    pub fn push(&mut self, piece: &str) -> String {
        self.text.push_str(piece);
        let held = self.text.len() - self.passed;
        let settled = if held > MAX_HELD { self.text.len() } else { self.redactor.safe_prefix_len(&self.text) };
        self.pass(settled)
    }

    /// Ends the stream and returns the text held back.
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
        // Never cut through a secret; none is cut at the end of the text.
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

    /// Takes `hush` and 4711 for secrets.
    struct FakeSecrets;

    impl Redactor for FakeSecrets {
        fn spans(&self, text: &str) -> Vec<Range<usize>> {
            text.match_indices("hush").map(|(at, found)| at..at + found.len()).collect()
        }

        fn is_secret_number(&self, number: &Number) -> bool {
            number.as_u64() == Some(4711)
        }
    }

    #[test]
    fn a_value_is_written_as_it_is_redacted() {
        let value = json!({"a hush": ["hush\n\"", {"n": [4711, 4712, 0.5]}], "b": null, "c": true, "d": "no secret"});
        let written = serde_json::to_string(&Redacted(&value, &FakeSecrets)).expect("json");
        assert_eq!(written, FakeSecrets.redact_value(&value).to_string());
        assert!(written.contains(MARK) && !written.contains("hush") && !written.contains("4711"), "{written}");
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

    /// Knows one secret text, and one that only its context reveals.
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

        fn safe_prefix_len(&self, text: &str) -> usize {
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
