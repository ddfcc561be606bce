//! Reads JSON of peers that contains lone surrogates or invalid UTF-8, as peers do whose strings may hold them.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde::Deserialize;

/// Reads JSON of a peer. If it cannot be read as it is, reads the output of [`replace_lone_surrogates`], which is kept in `room`.
///
/// # Errors
/// The text is not JSON, or not of this type, either way.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8], room: &'a OnceCell<Vec<u8>>) -> serde_json::Result<T> {
    // Checking the whole text once is faster than checking each string.
    let unchanged = match std::str::from_utf8(json) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(json),
    };
    unchanged.or_else(|error| match replace_lone_surrogates(json) {
        Some(mended) => serde_json::from_slice(room.get_or_init(|| mended)),
        None => Err(error),
    })
}

/// Returns `json` with U+FFFD in place of escaped lone surrogates (JavaScript writes one
/// for a text cut inside a character, and reads it back) and of bytes that are not UTF-8. `None` if there is
/// neither, so the text is unreadable for another reason. Valid JSON otherwise keeps its meaning; one pass, at most
/// three times the input's bytes.
#[must_use]
pub fn replace_lone_surrogates(json: &[u8]) -> Option<Vec<u8>> {
    let mut text = match String::from_utf8_lossy(json) {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => Some(text.into_bytes()),
    };
    let whole = text.as_deref().unwrap_or(json);
    let lone_surrogates = lone_surrogates(whole);
    if !lone_surrogates.is_empty() {
        let text = text.get_or_insert_with(|| json.to_vec());
        for at in lone_surrogates {
            // Same length as the escape it replaces.
            text[at..at + 6].copy_from_slice(b"\\ufffd");
        }
    }
    text
}

/// Returns the positions of escapes that are lone surrogates.
fn lone_surrogates(json: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = json[at..].iter().position(|byte| *byte == b'\\') {
        at += next;
        match unit(&json[at..]) {
            Some(0xD800..=0xDBFF) if matches!(unit(&json[at + 6..]), Some(0xDC00..=0xDFFF)) => at += 12,
            Some(0xD800..=0xDFFF) => {
                found.push(at);
                at += 6;
            }
            // Any other escape; its second byte may be a backslash.
            _ => at = (at + 2).min(json.len()),
        }
    }
    found
}

/// The code unit of an escape `\uXXXX` that `json` begins with.
fn unit(json: &[u8]) -> Option<u16> {
    let digits = json.strip_prefix(b"\\u")?.get(..4)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_and_broken_bytes_are_replaced() {
        let check = |json: &[u8], expect: Option<&str>| {
            let got = replace_lone_surrogates(json).map(|json| serde_json::from_slice::<String>(&json).expect("JSON"));
            assert_eq!(got.as_deref(), expect, "{}", String::from_utf8_lossy(json));
        };
        check(br#""plain \u00e9 \ud83d\ude00 \uD83D\uDE00""#, None);
        check(br#""cut \ud83d""#, Some("cut \u{fffd}"));
        check(br#""\udE00 first""#, Some("\u{fffd} first"));
        check(br#""\ud83d\ud83d\ude00\ude00""#, Some("\u{fffd}\u{1f600}\u{fffd}"));
        check(br#""\ud83d\n\uD800x""#, Some("\u{fffd}\n\u{fffd}x"));
        // A backslash, and the letters after it.
        check(br#""\\ud83d""#, None);
        check(br#""\\\ud83d""#, Some("\\\u{fffd}"));
        check(b"\"caf\xc3\"", Some("caf\u{fffd}"));
        check(b"\"\xff \\udc00\"", Some("\u{fffd} \u{fffd}"));
        for cut in [&b"\"\\"[..], b"\"\\u", b"\"\\ud83", b"\"\\ud83d\\", b"\"\\ud83d\\u", b"", b"\\"] {
            // Invalid JSON stays invalid, and nothing past its end is read.
            let _ = replace_lone_surrogates(cut);
        }
    }
}
