//! Reads JSON of peers that contains lone surrogates or invalid UTF-8, as programs read it whose strings may hold such
//! characters.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde::Deserialize;

/// Reads JSON of a peer, and what [`legible`] makes of it only if it cannot be read as it is: that stays in `room`.
///
/// # Errors
/// It is no JSON either way, or not of this form.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8], room: &'a OnceCell<Vec<u8>>) -> serde_json::Result<T> {
    // Looked at once as a whole, which is faster than each text in it by itself.
    let as_it_is = match std::str::from_utf8(json) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(json),
    };
    as_it_is.or_else(|error| match legible(json) {
        Some(mended) => serde_json::from_slice(room.get_or_init(|| mended)),
        None => Err(error),
    })
}

/// `json` with U+FFFD in place of each half of a surrogate pair that stands alone as an escape (JavaScript writes one
/// for a text that was cut inside a character, and reads it back), and of bytes that are no UTF-8. `None` where there is
/// neither: whoever cannot read the text then has another reason. For valid JSON otherwise; one pass, no more bytes than
/// three times those that came.
#[must_use]
pub fn legible(json: &[u8]) -> Option<Vec<u8>> {
    let mut text = match String::from_utf8_lossy(json) {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => Some(text.into_bytes()),
    };
    let whole = text.as_deref().unwrap_or(json);
    let halves = halves(whole);
    if !halves.is_empty() {
        let text = text.get_or_insert_with(|| json.to_vec());
        for at in halves {
            // As long as what it replaces.
            text[at..at + 6].copy_from_slice(b"\\ufffd");
        }
    }
    text
}

/// Where the escapes begin that are half a pair and stand alone.
fn halves(json: &[u8]) -> Vec<usize> {
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
            // Another escape, of which a backslash may be the second half.
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
            let got = legible(json).map(|json| serde_json::from_slice::<String>(&json).expect("JSON"));
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
            // What is no JSON is none afterwards, and nothing is read past its end.
            let _ = legible(cut);
        }
    }
}
