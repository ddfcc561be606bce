//! The encodings in which programs return a value.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Shorter pieces of Base64 occur in other texts.
const MIN_BASE64: usize = 8;

/// The value as it is, in a JSON string, in an address and a form, and in Base64.
pub(super) fn forms(value: &str) -> Vec<String> {
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
    // Digits that still belong to the escape.
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

/// The characters that say the value and nothing else, for each place of its beginning in a group of three bytes.
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
