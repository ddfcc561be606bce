//! Unescapes the JSON strings in a text, and maps positions back: any character of a secret may be written as `\u0061`,
//! and some programs write `\/`.

use std::ops::Range;

/// The most levels of nested strings that are unescaped: arguments may be JSON in a string of JSON, and contain such
/// strings themselves.
const MAX_LEVELS: usize = 3;

/// A text unescaped once, twice and so on, as long as that may reveal text that the encodings of a value
/// ([`super::forms`]) do not cover.
pub(super) struct Levels(Vec<Unescaped>);

/// A text after unescaping.
struct Unescaped {
    text: String,
    /// Positions in it, each with its position in the source; between two of them both advance alike. The first is (0,
    /// 0).
    places: Vec<(usize, usize)>,
    /// The position of an incomplete escape at its end.
    open: Option<usize>,
}

impl Levels {
    pub(super) fn of(text: &str) -> Self {
        let mut levels: Vec<Unescaped> = Vec::new();
        while levels.len() < MAX_LEVELS {
            let text = levels.last().map_or(text, |level| &level.text);
            if !has_escapes(text) {
                break;
            }
            levels.push(Unescaped::of(text));
        }
        Self(levels)
    }

    /// Returns each level with its text.
    pub(super) fn texts(&self) -> impl Iterator<Item = (usize, &str)> {
        self.0.iter().enumerate().map(|(level, unescaped)| (level, unescaped.text.as_str()))
    }

    /// Returns the span in the first text for a span of a level's text.
    pub(super) fn origin_of(&self, level: usize, span: &Range<usize>) -> Range<usize> {
        self.origin(level, span.start)..self.origin(level, span.end)
    }

    /// Returns the position in the first text for a position in a level's text.
    pub(super) fn origin(&self, level: usize, at: usize) -> usize {
        self.0.iter().take(level + 1).rev().fold(at, |at, unescaped| unescaped.origin(at))
    }

    /// Returns the position of an incomplete escape at the end of a level's text.
    pub(super) fn open(&self, level: usize) -> Option<usize> {
        self.0.get(level)?.open
    }
}

fn has_escapes(text: &str) -> bool {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('\\') {
        if after.is_empty() || after.starts_with(['u', '/']) {
            return true;
        }
        rest = after;
    }
    false
}

impl Unescaped {
    fn of(text: &str) -> Self {
        let mut out = Self { text: String::with_capacity(text.len()), places: vec![(0, 0)], open: None };
        let mut at = 0;
        while let Some(found) = text[at..].find('\\') {
            let escape = at + found;
            out.text.push_str(&text[at..escape]);
            out.places.push((out.text.len(), escape));
            match read(&text[escape..]) {
                EscapeRead::Character(c, length) => {
                    out.text.push(c);
                    at = escape + length;
                }
                EscapeRead::None => {
                    out.text.push('\\');
                    at = escape + 1;
                }
                EscapeRead::Open => {
                    out.open = Some(out.text.len());
                    out.text.push_str(&text[escape..]);
                    at = text.len();
                }
            }
            out.places.push((out.text.len(), at));
        }
        out.text.push_str(&text[at..]);
        out
    }

    /// Returns the position in the source for a position in the text.
    fn origin(&self, at: usize) -> usize {
        // Of equal positions the last one is right: it is behind any source that produced no text.
        let index = self.places.partition_point(|(place, _)| *place <= at).saturating_sub(1);
        self.places.get(index).map_or(at, |(place, origin)| origin + (at - place))
    }
}

enum EscapeRead {
    /// A character, from an escape of this many bytes.
    Character(char, usize),
    /// Not a known escape.
    None,
    /// The text ends within an escape.
    Open,
}

/// Reads an escape at the beginning of a text (RFC 8259, section 7).
fn read(text: &str) -> EscapeRead {
    let bytes = text.as_bytes();
    let c = match bytes.get(1) {
        None => return EscapeRead::Open,
        Some(b'u') => return unit(bytes),
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(c @ (b'"' | b'\\' | b'/')) => char::from(*c),
        Some(_) => return EscapeRead::None,
    };
    EscapeRead::Character(c, 2)
}

/// Reads a UTF-16 unit, or two that form one character.
fn unit(bytes: &[u8]) -> EscapeRead {
    let first = match hex(bytes.get(2..).unwrap_or_default()) {
        Ok(first) => first,
        Err(end) => return end,
    };
    if let Some(c) = char::from_u32(first) {
        return EscapeRead::Character(c, 6);
    }
    let rest = bytes.get(6..).unwrap_or_default();
    match (first, rest) {
        (0xd800..=0xdbff, [] | [b'\\']) => EscapeRead::Open,
        (0xd800..=0xdbff, [b'\\', b'u', low @ ..]) => match hex(low) {
            Ok(low @ 0xdc00..=0xdfff) => {
                let c = 0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00);
                char::from_u32(c).map_or(EscapeRead::None, |c| EscapeRead::Character(c, 12))
            }
            Ok(_) => EscapeRead::None,
            Err(end) => end,
        },
        _ => EscapeRead::None,
    }
}

/// Reads four hexadecimal digits.
fn hex(bytes: &[u8]) -> Result<u32, EscapeRead> {
    let mut value = 0;
    for at in 0..4 {
        let Some(byte) = bytes.get(at) else { return Err(EscapeRead::Open) };
        let Some(digit) = char::from(*byte).to_digit(16) else { return Err(EscapeRead::None) };
        value = value << 4 | digit;
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_with_source_positions() {
        let check = |text: &str, expect: &[&str]| {
            let levels = Levels::of(text);
            let texts: Vec<&str> = levels.texts().map(|(_, text)| text).collect();
            assert_eq!(texts, expect, "{text}");
            for (level, read) in levels.texts() {
                assert_eq!(levels.origin_of(level, &(0..read.len())), 0..text.len(), "{text}");
            }
        };
        check("plain", &[]);
        check(r"C:\new\temp", &[]);
        check(r"\u0061b\/c\n", &["ab/c\n"]);
        check(r"\\u0061", &[r"\u0061", "a"]);
        check(r"\\\\\\\\u0061", &[r"\\\\u0061", r"\\u0061", r"\u0061"]);
        check(r"\ud83d\ude00 \ud83d\u0061", &[r"😀 \ud83da"; 3]);
        check(r"\u00zz", &[r"\u00zz"; 3]);
        let levels = Levels::of(r"x\u0061é\u0062\\u0063");
        let texts: Vec<&str> = levels.texts().map(|(_, text)| text).collect();
        assert_eq!(texts, [r"xaéb\u0063", "xaébc"]);
        for (level, span, expect) in [
            (0, 0..1, 0..1),
            (0, 1..2, 1..7),
            (0, 2..4, 7..9),
            (0, 4..5, 9..15),
            (1, 1..5, 1..15),
            (1, 4..5, 9..15),
            (1, 5..6, 15..22),
        ] {
            assert_eq!(levels.origin_of(level, &span), expect, "{level} {span:?}");
        }
        for (text, expect) in [
            (r"ab\", Some(2)),
            (r"ab\u00", Some(2)),
            (r"a\u0062\ud83d", Some(2)),
            (r"a\u0062\ud83d\u", Some(2)),
            (r"a\u0062c", None),
        ] {
            assert_eq!(Levels::of(text).open(0), expect, "{text}");
        }
    }
}
