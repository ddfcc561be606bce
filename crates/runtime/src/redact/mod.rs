//! Redacts secrets in text: known values in every encoding, and values that look like secrets.

mod escapes;
mod forms;
mod patterns;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

use aho_corasick::{AhoCorasick, MatchKind};
use serde::de::IgnoredAny;
use serde_json::{Number, Value};
use toolwright_core::Redactor;
use toolwright_core::redact::{MARK, MIN_SECRET, is_secret_key};

use self::escapes::Levels;

/// The most values that are learnt at run time; beyond this the oldest is forgotten.
const MAX_LEARNT: usize = 1024;
/// The most values that one call can add, so that it cannot displace all others.
const MAX_AT_ONCE: usize = 32;
/// The most bytes of a value that are recognised; of a longer one only the beginning is.
const MAX_LENGTH: usize = 16 * 1024;

/// Redacts known secret values, and values that look like secrets. All text to a sink passes through it.
#[derive(Debug, Default)]
pub struct SecretRedactor {
    state: RwLock<State>,
    /// Held while the matcher is rebuilt, never with the state: readers continue with the previous one.
    renewing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Values of key sources, kept forever.
    values: Vec<Arc<str>>,
    /// Values of calls' secret parameters, the newest last.
    learnt: VecDeque<Arc<str>>,
    /// The number of changes of the values.
    changes: u64,
    /// The number of changes that `secret_forms` includes.
    seen_changes: u64,
    secret_forms: Option<Arc<KnownForms>>,
}

impl State {
    fn has(&self, value: &str) -> bool {
        self.values.binary_search_by(|known| (**known).cmp(value)).is_ok()
            || self.learnt.iter().any(|learnt| **learnt == *value)
    }
}

/// All encodings of all values.
#[derive(Debug)]
struct KnownForms {
    /// Sorted.
    forms: Vec<String>,
    matcher: AhoCorasick,
    longest: usize,
    /// Values that are numbers, sorted.
    numbers: Vec<f64>,
}

impl KnownForms {
    fn of<'a>(values: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let numbers = forms::numbers(values.clone());
        let mut forms: Vec<String> = values.flat_map(forms::encodings).collect();
        forms.sort_unstable();
        forms.dedup();
        // Longest first: a secret that contains another is replaced whole.
        let matcher = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&forms).ok()?;
        let longest = forms.iter().map(String::len).max()?;
        Some(Self { forms, matcher, longest, numbers })
    }

    fn spans(&self, text: &str, spans: &mut Vec<Range<usize>>) {
        spans.extend(self.matcher.find_iter(text).map(|found| found.range()));
        forms::number_spans(&self.numbers, text, spans);
    }

    /// Returns where a value may begin that continues beyond the end of the text.
    fn begun(&self, text: &str) -> Option<usize> {
        let window = text.len().saturating_sub(self.longest);
        let begins = |at: &usize| {
            let Some(tail) = text.get(*at..) else { return false };
            let place = self.forms.partition_point(|form| form.as_str() < tail);
            self.forms.get(place).is_some_and(|form| form.starts_with(tail))
        };
        (window..text.len()).find(begins)
    }
}

impl SecretRedactor {
    /// Registers values of key sources forever, except those that are not secret ([`is_secret_key`]).
    pub fn add(&self, secrets: impl IntoIterator<Item = String>) {
        let change = {
            let mut state = self.write();
            let before = state.values.len();
            state.values.extend(secrets.into_iter().filter(|value| is_secret_key(value)).map(bounded));
            state.values.sort_unstable();
            state.values.dedup();
            if state.values.len() == before {
                return;
            }
            state.changes += 1;
            state.changes
        };
        self.renew(change);
    }

    /// Rebuilds the matcher, so that it includes at least this change.
    fn renew(&self, change: u64) {
        let is_seen = || self.state.read().unwrap_or_else(PoisonError::into_inner).seen_changes >= change;
        if is_seen() {
            return;
        }
        let _alone = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread has included this change meanwhile.
        if is_seen() {
            return;
        }
        let (values, changes) = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            (state.values.iter().chain(&state.learnt).cloned().collect::<Vec<_>>(), state.changes)
        };
        let secret_forms = KnownForms::of(values.iter().map(|value| &**value)).map(Arc::new);
        let mut state = self.write();
        state.secret_forms = secret_forms;
        state.seen_changes = changes;
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a redactor for a tool's result on its way to the caller. It removes the values that are registered now;
    /// text that only looks like a secret stays.
    #[must_use]
    pub fn of_known_values(&self) -> KnownValues {
        KnownValues(self.secret_forms())
    }

    fn secret_forms(&self) -> Option<Arc<KnownForms>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).secret_forms.clone()
    }
}

/// See [`SecretRedactor::of_known_values`].
#[derive(Debug)]
pub struct KnownValues(Option<Arc<KnownForms>>);

impl Redactor for KnownValues {
    fn spans(&self, text: &str) -> Vec<Range<usize>> {
        spans(self.0.as_deref(), text, |_, _| {})
    }
}

/// Returns the places of known values and of what `shapes` finds in a text, regardless of how its characters are
/// escaped.
fn spans(
    secret_forms: Option<&KnownForms>,
    text: &str,
    shapes: impl Fn(&str, &mut Vec<Range<usize>>),
) -> Vec<Range<usize>> {
    let of = |text: &str| {
        let mut spans = Vec::new();
        if let Some(secret_forms) = secret_forms {
            secret_forms.spans(text, &mut spans);
        }
        shapes(text, &mut spans);
        spans
    };
    let mut spans = of(text);
    let levels = Levels::of(text);
    for (level, text) in levels.texts() {
        spans.extend(of(text).iter().map(|span| levels.origin_of(level, span)));
    }
    merged(spans)
}

fn bounded(mut value: String) -> Arc<str> {
    let mut at = value.len().min(MAX_LENGTH);
    while !value.is_char_boundary(at) {
        at -= 1;
    }
    value.truncate(at);
    value.into()
}

impl Redactor for SecretRedactor {
    fn redact_result(&self, result: &Value) -> Value {
        let mut redacted = self.of_known_values().redact_value(result);
        if let Some(error) = result.get("error") {
            redacted["error"] = self.redact_value(error);
        }
        redacted
    }

    fn spans(&self, text: &str) -> Vec<Range<usize>> {
        spans(self.secret_forms().as_deref(), text, patterns::spans)
    }

    /// Redacts a text. A number in JSON is replaced by a string, so that the text stays valid JSON.
    fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let spans = self.spans(text);
        if spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let is_json = text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(text).is_ok();
        let bare = if is_json { forms::are_outside_strings(text, &spans) } else { Vec::new() };
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for (index, span) in spans.iter().enumerate() {
            let (span, quote) = match bare.get(index) {
                // A longer number is replaced whole.
                Some(true) => (forms::whole_number(text, span), "\""),
                _ => (span.clone(), ""),
            };
            if span.start >= at {
                out.extend([&text[at..span.start], quote, MARK, quote]);
                at = span.end;
            }
        }
        out.push_str(&text[at..]);
        Cow::Owned(out)
    }

    fn is_secret_number(&self, number: &Number) -> bool {
        let secret_forms = self.secret_forms();
        let numbers = secret_forms.as_ref().map_or(&[][..], |known| &known.numbers);
        !numbers.is_empty() && number.as_f64().is_some_and(|value| forms::is_one_of(numbers, value))
    }

    fn safe_prefix_len(&self, text: &str) -> usize {
        let secret_forms = self.secret_forms();
        let begun = |text: &str| secret_forms.as_ref().and_then(|known| known.begun(text));
        let word = text.char_indices().rfind(|(_, c)| !c.is_ascii_graphic()).map_or(0, |(at, c)| at + c.len_utf8());
        let mut settled = word.min(begun(text).unwrap_or(text.len()));
        let levels = Levels::of(text);
        for (level, text) in levels.texts() {
            // An incomplete escape at the end may be the beginning or continuation of a secret.
            let open = levels.open(level);
            let begun = begun(&text[..open.unwrap_or(text.len())]);
            let held = open.into_iter().chain(begun).map(|at| levels.origin(level, at));
            settled = held.fold(settled, usize::min);
        }
        settled.min(patterns::open_block(text).unwrap_or(text.len()))
    }

    fn learn(&self, values: Vec<String>) {
        let mut values: Vec<Arc<str>> =
            values.into_iter().filter(|value| value.len() >= MIN_SECRET).map(bounded).collect();
        let before = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            values.retain(|value| !state.has(value));
            state.changes
        };
        values.truncate(MAX_AT_ONCE);
        if values.is_empty() {
            // Another call may have added these values just now; they are known when this returns.
            return self.renew(before);
        }
        let change = {
            let mut state = self.write();
            for value in values {
                // Given twice in this call, or by another one since.
                if state.has(&value) {
                    continue;
                }
                if state.learnt.len() == MAX_LEARNT {
                    state.learnt.pop_front();
                }
                state.learnt.push_back(value);
            }
            state.changes += 1;
            state.changes
        };
        self.renew(change);
    }
}

/// Sorts spans and joins those that overlap.
fn merged(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_unstable_by_key(|span| (span.start, span.end));
    let mut out: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match out.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => out.push(span),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use toolwright_core::redact::StreamRedactor;

    use super::*;

    fn knowing(values: &[&str]) -> SecretRedactor {
        let redactor = SecretRedactor::default();
        redactor.add(values.iter().map(|value| (*value).to_owned()));
        redactor
    }

    #[test]
    fn registered_secrets_never_leave_the_stream() {
        let redactor = SecretRedactor::default();
        assert_eq!(redactor.redact("token abcdef"), "token abcdef");
        redactor.add(["abcdef".into(), "abcdefgh".into(), "no".into()]);
        assert_eq!(redactor.redact("x abcdefghi abcdef no"), "x [secret]i [secret] no");
        assert!(matches!(redactor.redact("clean"), Cow::Borrowed(_)));
        redactor.learn(vec!["hunter2!".into(), "short".into()]);
        assert_eq!(redactor.redact("hunter2! short abcdef"), "[secret] short [secret]");
        assert_eq!(redactor.of_known_values().redact("hunter2! AKIAQ3EGRJ7XK2V5PWNL"), "[secret] AKIAQ3EGRJ7XK2V5PWNL");
    }

    #[test]
    fn the_oldest_learned_values_are_forgotten() {
        let redactor = SecretRedactor::default();
        let values: Vec<String> = (0..=MAX_LEARNT).map(|n| format!("value-{n:05}.")).collect();
        values.chunks(MAX_AT_ONCE).for_each(|some| redactor.learn(some.to_vec()));
        assert_eq!(redactor.redact("value-00000. value-00001. value-01024."), "value-00000. [secret] [secret]");
    }

    #[test]
    fn one_call_does_not_displace_others_values() {
        let redactor = SecretRedactor::default();
        redactor.learn(vec!["of another".into()]);
        redactor.learn((0..2 * MAX_LEARNT).map(|n| format!("value-{n:05}.")).collect());
        assert_eq!(redactor.redact("of another value-00031. value-00032."), "[secret] [secret] value-00032.");
    }

    #[test]
    fn a_value_is_known_in_every_form() {
        let redactor = knowing(&["p@ss \"wörd\"/1"]);
        for form in [
            "p@ss \"wörd\"/1",
            r#"p@ss \"wörd\"/1"#,
            "p%40ss%20%22w%C3%B6rd%22%2F1",
            "p%40ss%20%22w%c3%b6rd%22%2f1",
            "p%40ss+%22w%C3%B6rd%22%2F1",
        ] {
            assert_eq!(redactor.redact(&format!("<{form}>")), "<[secret]>", "{form}");
        }
        // Inside of longer texts, such as `user:password`, the value may begin anywhere in a group of three bytes.
        for before in ["", "u:", "me:"] {
            for engine in [base64::engine::general_purpose::STANDARD, base64::engine::general_purpose::URL_SAFE] {
                let encoded = base64::Engine::encode(&engine, format!("{before}p@ss \"wörd\"/1 after"));
                assert!(redactor.redact(&encoded).contains("[secret]"), "{encoded}");
            }
        }
    }

    /// Checks a stream of the text, split at each position and by single characters.
    fn check_stream(redactor: Arc<dyn Redactor>, text: &str, expect: &str) {
        for first in 0..text.len() {
            let mut stream = StreamRedactor::new(Arc::clone(&redactor));
            let out = [stream.push(&text[..first]), stream.push(&text[first..]), stream.finish()].concat();
            assert_eq!(out, expect, "split at {first}");
        }
        let mut stream = StreamRedactor::new(redactor);
        let mut out: String = text.chars().map(|c| stream.push(c.encode_utf8(&mut [0; 4]))).collect();
        out.push_str(&stream.finish());
        assert_eq!(out, expect);
    }

    #[test]
    fn a_split_stream_leaks_no_secret() {
        let redactor: Arc<dyn Redactor> = Arc::new(knowing(&["pass phrase", "ab-abx-ab-aby"]));
        let pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\nIBADANBg\n-----END PRIVATE KEY-----";
        let text = format!(
            "a pass phrase, ab-abx-ab-aby; Authorization: Bearer a1b2c3d4e5f6a7b8c9 x\n{pem} key AKIAQ3EGRJ7XK2V5PWNL."
        );
        let expect = "a [secret], [secret]; Authorization: Bearer [secret] x\n[secret] key [secret].";
        assert_eq!(redactor.redact(&text), expect);
        check_stream(redactor, &text, expect);
    }

    #[test]
    fn a_secret_with_escaped_characters_is_redacted() {
        let redactor = knowing(&["tiger-4711-x", "p@ss \"wörd\"/1", "😀 smile"]);
        for (text, expect) in [
            (r#"{"pin": "\u0074iger-4711-x"}"#, r#"{"pin": "[secret]"}"#),
            (r#"{"pin": "tiger\u002D4711-\u0078", "n": 1}"#, r#"{"pin": "[secret]", "n": 1}"#),
            (r#"{"a": "{\"pin\": \"\\u0074iger-4711-x\"}"}"#, r#"{"a": "{\"pin\": \"[secret]\"}"}"#),
            (r#"["p@ss \"w\u00f6rd\u0022\/1"]"#, r#"["[secret]"]"#),
            (r#"["p@ss \"wörd\"\/1"]"#, r#"["[secret]"]"#),
            (r#"["\ud83d\ude00 smile"]"#, r#"["[secret]"]"#),
            (r"\u0041KIAQ3EGRJ7XK2V5PWNL", "[secret]"),
            (r"tiger-4711-\u0079", r"tiger-4711-\u0079"),
        ] {
            assert_eq!(redactor.redact(text), expect, "{text}");
        }
        let known = redactor.of_known_values();
        assert_eq!(known.redact(r"\u0074iger-4711-x \u0041KIAQ3EGRJ7XK2V5PWNL"), r"[secret] \u0041KIAQ3EGRJ7XK2V5PWNL");
    }

    #[test]
    fn a_split_stream_with_escapes_leaks_no_secret() {
        let redactor: Arc<dyn Redactor> = Arc::new(knowing(&["pass phrase"]));
        let text = r#"{"a": "\u0070ass phrase", "b": "p\u0061ss\u0020phrase", "c": "pass phras\u0065"}"#;
        let expect = r#"{"a": "[secret]", "b": "[secret]", "c": "[secret]"}"#;
        check_stream(redactor, text, expect);
    }

    #[test]
    fn redacting_a_secret_number_keeps_json_valid() {
        let redactor = knowing(&["471199"]);
        for (text, expect) in [
            (r#"{"pin":471199,"say":"pin 471199, "}"#, r#"{"pin":"[secret]","say":"pin [secret], "}"#),
            (r#" [4.71199e5, -471199.0]"#, r#" ["[secret]", "[secret]"]"#),
            (r#"{"pin": 471199"#, r#"{"pin": [secret]"#),
            ("my pin is 471199.", "my pin is [secret]."),
            ("471198 and 47119", "471198 and 47119"),
            (r#"{"n": 1471199, "a": true}"#, r#"{"n": "[secret]", "a": true}"#),
        ] {
            let redacted = redactor.redact(text).into_owned();
            assert_eq!(redacted, expect, "{text}");
            assert_eq!(redactor.redact(&redacted), expect, "redacted once, it stays");
        }
        let value = serde_json::json!({"pin": 471_199, "n": [471_199.0, 47], "s": "471199"});
        let expect = serde_json::json!({"pin": "[secret]", "n": ["[secret]", 47], "s": "[secret]"});
        assert_eq!(redactor.redact_value(&value), expect);
    }
}
