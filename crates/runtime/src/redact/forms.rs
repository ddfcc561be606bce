//! The encodings of a known secret in which programs return a value, and numbers.

use std::fmt::Write as _;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// The shortest piece of Base64 that is searched for; shorter ones occur in other texts.
const MIN_BASE64: usize = 8;

/// Returns the value in all encodings: plain, in a JSON string, URL- and form-encoded, and in Base64.
pub(super) fn encodings(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    let quoted = serde_json::Value::from(value).to_string();
    forms.push(quoted[1..quoted.len() - 1].to_owned());
    let percent = in_address(value);
    forms.push(lower_escapes(&percent));
    forms.push(percent.replace("%20", "+"));
    forms.push(percent);
    in_base64(value.as_bytes(), &mut forms);
    forms
}

fn in_address(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

fn lower_escapes(encoded: &str) -> String {
    // The remaining digits of the escape.
    let mut left = 0;
    let lower = |c: char| {
        if c == '%' {
            left = 2;
            c
        } else if left > 0 {
            left -= 1;
            c.to_ascii_lowercase()
        } else {
            c
        }
    };
    encoded.chars().map(lower).collect()
}

/// Adds the Base64 characters that depend on the value alone, for each position of its beginning in a group of three
/// bytes.
fn in_base64(value: &[u8], forms: &mut Vec<String>) {
    for (before, skipped) in [(0, 0), (1, 2), (2, 3)] {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(value);
        let whole = bytes.len() * 8 / 6;
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let encoded = engine.encode(&bytes);
            if whole - skipped >= MIN_BASE64 {
                forms.push(encoded[skipped..whole].to_owned());
            }
        }
    }
}

/// Smaller numbers with few digits also occur as ordinary values.
const MIN_VALUE: f64 = 1e5;
const MIN_FIGURES: usize = 6;

/// Returns the values of the texts that are numbers, without signs, sorted.
pub(super) fn numbers<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<f64> {
    let mut values: Vec<f64> = texts.filter_map(value).filter(|value| is_distinctive(*value)).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.dedup();
    values
}

fn value(text: &str) -> Option<f64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    text.parse::<f64>().ok().filter(|value| is_number && value.is_finite()).map(f64::abs)
}

fn is_distinctive(value: f64) -> bool {
    let figures = format!("{value:e}");
    let figures = figures.split('e').next().unwrap_or_default().bytes().filter(u8::is_ascii_digit).count();
    value >= MIN_VALUE || figures >= MIN_FIGURES
}

/// Returns whether this is one of the values, ignoring its sign.
pub(super) fn is_one_of(values: &[f64], value: f64) -> bool {
    values.binary_search_by(|known| known.total_cmp(&value.abs())).is_ok()
}

/// Adds the places of these numbers in a text, in any spelling.
pub(super) fn number_spans(values: &[f64], text: &str, spans: &mut Vec<Range<usize>>) {
    if values.is_empty() {
        return;
    }
    let bytes = text.as_bytes();
    let is_word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(u8::is_ascii_digit) {
        let mut start = at + found;
        let end = number_end(bytes, start);
        at = end;
        let before = start.checked_sub(1).and_then(|before| bytes.get(before));
        if is_word(before) || is_word(bytes.get(end)) || before == Some(&b'.') {
            continue;
        }
        if text[start..end].parse::<f64>().is_ok_and(|value| is_one_of(values, value)) {
            let signed = before == Some(&b'-') && !is_word(start.checked_sub(2).and_then(|at| bytes.get(at)));
            start -= usize::from(signed);
            spans.push(start..end);
        }
    }
}

/// Returns the end of a number that begins here (RFC 8259, section 6).
fn number_end(bytes: &[u8], start: usize) -> usize {
    let digits = |from: usize| from + bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut end = digits(start);
    if bytes.get(end) == Some(&b'.') && digits(end + 1) > end + 1 {
        end = digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let from = end + 1 + sign;
        if from < bytes.len() && digits(from) > from {
            end = digits(from);
        }
    }
    end
}

/// Returns the span of the JSON number that contains this piece.
pub(super) fn whole_number(text: &str, piece: &Range<usize>) -> Range<usize> {
    let is_of_number = |byte: &&u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let (before, after) = (&text.as_bytes()[..piece.start], &text.as_bytes()[piece.end..]);
    let start = piece.start - before.iter().rev().take_while(is_of_number).count();
    start..piece.end + after.iter().take_while(is_of_number).count()
}

/// Returns, for each of these sorted spans of a JSON text, whether it is outside of strings.
pub(super) fn are_outside_strings(text: &str, spans: &[Range<usize>]) -> Vec<bool> {
    let (mut in_string, mut escaped, mut at) = (false, false, 0);
    let is_bare = |span: &Range<usize>| {
        for byte in &text.as_bytes()[at..span.start] {
            (in_string, escaped) = match byte {
                _ if escaped => (in_string, false),
                b'\\' if in_string => (true, true),
                b'"' => (!in_string, false),
                _ => (in_string, false),
            };
        }
        at = span.start;
        !in_string
    };
    spans.iter().map(is_bare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_in_every_spelling() {
        let values = numbers(
            ["471199", "-0.1234567", "000000", "1.00000", "12345678901234567890", "hunter2", "inf", "1e999"]
                .into_iter(),
        );
        assert_eq!(values.len(), 3, "{values:?}");
        let check = |text: &str, expect: &[&str]| {
            let mut found = Vec::new();
            number_spans(&values, text, &mut found);
            let found: Vec<&str> = found.into_iter().map(|span| &text[span]).collect();
            assert_eq!(found, expect, "{text}");
        };
        check(r#"{"pin":471199}"#, &["471199"]);
        check(r#"{"pin": 471199.0, "b": [4.71199e5,4.71199E+5]}"#, &["471199.0", "4.71199e5", "4.71199E+5"]);
        check("0.1234567 -1.234567e-1", &["0.1234567", "-1.234567e-1"]);
        check("12345678901234567890.", &["12345678901234567890"]);
        check("0 1 1.0 4711990 1471199 a471199 471199b 1.471199 471198 471199e1 2026-471199", &["471199"]);
        check("é471199", &["471199"]);
        check("471199e", &[]);
        check("1. 1.e 1e 1e+ 471199.", &["471199"]);
    }

    #[test]
    fn numbers_in_strings_differ_from_bare_ones() {
        let text = r#"{"a \" 11": 22, "b": "33 \\", "c": [44]}"#;
        let spans: Vec<_> =
            ["11", "22", "33", "44"].map(|number| text.find(number).map(|at| at..at + 2).expect("there")).to_vec();
        assert_eq!(are_outside_strings(text, &spans), [false, true, false, true]);
    }
}
