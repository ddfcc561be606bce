//! Words that are values: numbers, and the constants of JSON, Python and JavaScript.

use serde_json::Value;

/// The value that `word` is, if it is no text. At the end of the input a number may lack its last digits.
pub(super) fn literal(word: &str, at_end: bool) -> Option<Value> {
    match word {
        "true" | "True" | "TRUE" => Some(Value::Bool(true)),
        "false" | "False" | "FALSE" => Some(Value::Bool(false)),
        "null" | "None" | "NULL" | "Null" | "nil" | "undefined" => Some(Value::Null),
        "NaN" | "nan" | "Infinity" | "+Infinity" | "-Infinity" | "inf" | "-inf" => Some(Value::Null),
        _ => number(word, at_end),
    }
}

/// A number, with what JSON asks for put in: `+1`, `.5` and `2.` are 1, 0.5 and 2.0. Digits after a
/// leading zero, or two points, make it a text: a telephone number or a version.
fn number(word: &str, at_end: bool) -> Option<Value> {
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let cut = at_end && (word.len() == 1 || exponent.is_some());
    let bare = whole.is_empty() && fraction.is_none_or(str::is_empty);
    if !digits(whole) || !fraction.is_none_or(digits) || (bare && !(cut && word == "-")) {
        return None;
    }
    if whole.len() > 1 && whole.starts_with('0') {
        return None;
    }
    let or_zero = |text: &str| if text.is_empty() { "0".to_owned() } else { text.to_owned() };
    let mut text = String::with_capacity(word.len() + 3);
    if word.starts_with('-') {
        text.push('-');
    }
    text.push_str(&or_zero(whole));
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(&or_zero(fraction));
    }
    if let Some(exponent) = exponent {
        let power = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if !digits(power) || (power.is_empty() && !cut) {
            return None;
        }
        text.push('e');
        text.push_str(exponent);
        if power.is_empty() {
            text.push('0');
        }
    }
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_are_values_or_texts() {
        for (word, expect) in [
            ("1", Some(json!(1))),
            ("+1", Some(json!(1))),
            ("-.5e-1", Some(json!(-0.05))),
            ("2.", Some(json!(2.0))),
            ("True", Some(json!(true))),
            ("None", Some(json!(null))),
            ("NaN", Some(json!(null))),
            ("0789", None),
            ("0.0.1", None),
            ("2024-10-18", None),
            ("-", None),
            ("2e", None),
            (".", None),
            ("", None),
            ("e", None),
            ("truth", None),
        ] {
            assert_eq!(literal(word, false), expect, "{word}");
        }
        assert_eq!(literal("2e+", true), Some(json!(2.0)));
        assert_eq!(literal("-", true), Some(json!(0)).map(|_| serde_json::from_str("-0").expect("a number")));
    }
}
