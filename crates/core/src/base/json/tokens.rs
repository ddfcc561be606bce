//! Parts of broken JSON: a cursor over the text, unquoted values, and strings.
//!
//! A string may contain bare quotes or lack its closing one. Each character is read once. At a quote the following text
//! decides whether the string ends there; that look-ahead skips white space and reads at most up to the second next
//! quote, so it stays linear.

use serde_json::Value;

use super::UnreadableJson;

/// Steps that one byte of text may cost, looking ahead included.
const STEPS_PER_BYTE: usize = 16;
/// Steps that any text may cost.
const BASE_STEPS: usize = 1024;

/// Reads a text from front to back; looking ahead is counted.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    steps: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, steps: 0 }
    }

    /// The unread rest of the text.
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The text from `start` to here.
    pub(super) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.skip(next.len_utf8());
        Some(next)
    }

    /// Skips `bytes`, which must end at a character boundary.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
        self.steps += bytes;
    }

    pub(super) fn skip_while(&mut self, is_skipped: impl Fn(char) -> bool) {
        let rest = self.rest();
        self.skip(rest.find(|c| !is_skipped(c)).unwrap_or(rest.len()));
    }

    /// Counts `bytes` of look-ahead.
    pub(super) fn looked(&mut self, bytes: usize) {
        self.steps += bytes;
    }

    /// Fails if the text costs more than its length allows.
    pub(super) fn within_bounds(&self) -> Result<(), UnreadableJson> {
        if self.steps > self.text.len() * STEPS_PER_BYTE + BASE_STEPS { Err(UnreadableJson::TooBroken) } else { Ok(()) }
    }

    /// Steps so far.
    #[cfg(test)]
    pub(super) fn steps(&self) -> usize {
        self.steps
    }
}

/// White space of any script, and invisible marks.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{feff}' | '\u{200b}')
}

/// Whether a bare name may contain `c`.
pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '-')
}

/// Returns the literal that `word` denotes, unless it is text. At the end of the input a number may lack its last
/// digits.
pub(super) fn literal(word: &str, at_end: bool) -> Option<Value> {
    match word {
        "true" | "True" | "TRUE" => Some(Value::Bool(true)),
        "false" | "False" | "FALSE" => Some(Value::Bool(false)),
        "null" | "None" | "NULL" | "Null" | "nil" | "undefined" => Some(Value::Null),
        "NaN" | "nan" | "Infinity" | "+Infinity" | "-Infinity" | "inf" | "-inf" => Some(Value::Null),
        _ => number(word, at_end),
    }
}

/// Reads a number in relaxed syntax: `+1`, `.5` and `2.` are 1, 0.5 and 2.0. A word with digits after a
/// leading zero, or with two points, is text: a telephone number or a version.
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

/// The position of a string, which determines what may follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StringPosition {
    /// The name of a member.
    Key,
    /// The value of a member.
    Member,
    /// An item of an array.
    Item,
    /// The whole text.
    Root,
}

/// A string that was read.
#[derive(Debug)]
pub(super) struct QuotedString {
    /// The decoded text.
    pub(super) content: String,
    /// It ended before the text did.
    pub(super) closed: bool,
}

/// The role of a quote inside a string.
#[derive(Debug, PartialEq, Eq)]
enum QuoteRole {
    /// The end of the string.
    Closes,
    /// A part of the string.
    Inner,
    /// The beginning of the next string: this one lacks its end.
    Opens,
}

/// Whether `c` may open a string.
pub(super) fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | '´' | '“' | '”' | '„' | '‘' | '’')
}

fn is_pair(open: char, close: char) -> bool {
    match open {
        '"' | '\'' => close == open,
        '“' | '”' | '„' => matches!(close, '“' | '”' | '"'),
        _ => matches!(close, '`' | '´' | '‘' | '’' | '\''),
    }
}

/// Reads the string whose opening quote is next. `in_call` says that a `)` may follow it.
pub(super) fn read_string(cursor: &mut Cursor<'_>, place: StringPosition, in_call: bool) -> QuotedString {
    let open = cursor.bump().unwrap_or('"');
    let mut content = String::new();
    // Up to here the content is not blank, and whether a line ended since.
    let (mut solid, mut broken) = (0, false);
    loop {
        let Some(next) = cursor.peek() else {
            return QuotedString { content, closed: false };
        };
        if is_pair(open, next) {
            let after = &cursor.rest()[next.len_utf8()..];
            let parted = broken || content[..solid].ends_with(',');
            match quote_role(cursor, after, place, in_call, parted) {
                QuoteRole::Closes => {
                    cursor.bump();
                    return QuotedString { content, closed: true };
                }
                QuoteRole::Opens => {
                    content.truncate(solid);
                    if content.ends_with(',') {
                        content.pop();
                    }
                    return QuotedString { content, closed: true };
                }
                QuoteRole::Inner => {}
            }
        }
        cursor.bump();
        if next == '\\' {
            escape(cursor, &mut content);
        } else {
            content.push(next);
            if is_blank(next) {
                broken |= next == '\n';
                continue;
            }
        }
        (solid, broken) = (content.len(), false);
    }
}

impl QuotedString {
    /// Removes brackets at the end that belong to `open` containers, outermost first.
    pub(super) fn drop_closers(&mut self, open: impl Iterator<Item = char>) {
        let mut rest = self.content.trim_end_matches(|c| is_blank(c) || c == ',');
        let mut found = false;
        for due in open {
            let Some(shorter) = rest.strip_suffix(due) else { break };
            rest = shorter.trim_end();
            found = true;
        }
        if found {
            let end = rest.strip_suffix(',').unwrap_or(rest).len();
            self.content.truncate(end);
        }
    }
}

fn quote_role(cursor: &mut Cursor<'_>, after: &str, place: StringPosition, in_call: bool, parted: bool) -> QuoteRole {
    let following = after.trim_start_matches(is_blank);
    let blank = &after[..after.len() - following.len()];
    cursor.looked(blank.len() + 1);
    if closes(cursor, following, blank, place, in_call) {
        return QuoteRole::Closes;
    }
    let opens = parted
        && match place {
            StringPosition::Member => is_end_of_key(cursor, following),
            StringPosition::Item => true,
            StringPosition::Key | StringPosition::Root => false,
        };
    if opens { QuoteRole::Opens } else { QuoteRole::Inner }
}

fn closes(cursor: &mut Cursor<'_>, following: &str, blank: &str, place: StringPosition, in_call: bool) -> bool {
    let Some(next) = following.chars().next() else { return true };
    let adjacent = blank.is_empty();
    let broken = blank.contains('\n');
    if following.starts_with("//") || following.starts_with("/*") || following.starts_with("```") {
        return true;
    }
    let rest = &following[next.len_utf8()..];
    match (next, place) {
        (',', StringPosition::Member) => member_follows(cursor, rest),
        (',', _) => true,
        (':', _) => place != StringPosition::Member,
        ('}' | ']', _) => {
            let tail = rest.trim_start_matches(['}', ']']);
            cursor.looked(rest.len() - tail.len());
            match tail.chars().next() {
                Some(c) if is_quote(c) => place == StringPosition::Item || member_follows(cursor, tail),
                Some(c) => !c.is_alphanumeric(),
                None => true,
            }
        }
        ('+', _) => {
            let joined = rest.trim_start_matches(is_blank);
            cursor.looked(rest.len() - joined.len());
            place == StringPosition::Key || joined.starts_with(is_quote) || joined.starts_with('/') || joined.is_empty()
        }
        (')' | ';', _) => in_call || place == StringPosition::Root,
        ('#', _) => !adjacent,
        (_, StringPosition::Key) => !adjacent || !is_name(next),
        (_, StringPosition::Root) => broken,
        (_, StringPosition::Member) => {
            (!adjacent || is_quote(next) || next == '{') && member_follows(cursor, following)
        }
        (c, StringPosition::Item) if is_quote(c) => !(adjacent && is_end_of_item(cursor, rest)),
        ('{' | '[', StringPosition::Item) => true,
        (c, StringPosition::Item) => broken || (!adjacent && (c.is_ascii_digit() || matches!(c, '-' | '.'))),
    }
}

/// Whether `text` may continue with a member, or the end of the object.
fn member_follows(cursor: &mut Cursor<'_>, text: &str) -> bool {
    let trimmed = text.trim_start_matches(is_blank);
    cursor.looked(text.len() - trimmed.len() + 1);
    let Some(next) = trimmed.chars().next() else { return true };
    let rest = &trimmed[next.len_utf8()..];
    match next {
        '}' | ']' | ',' | '/' | '#' | '.' => true,
        '{' => member_follows_brace(cursor, rest),
        c if is_quote(c) => trimmed.starts_with("```") || is_end_of_key(cursor, rest),
        c if is_name(c) => {
            let tail = rest.trim_start_matches(|c| is_name(c) || c == '.');
            let colon = tail.trim_start_matches(is_blank);
            cursor.looked(rest.len() - colon.len());
            match colon.chars().next() {
                Some(c) if is_quote(c) => is_end_of_key(cursor, colon),
                Some(c) => c == ':',
                None => true,
            }
        }
        _ => false,
    }
}

/// Whether an object starts after a brace: with a quoted name.
fn member_follows_brace(cursor: &mut Cursor<'_>, text: &str) -> bool {
    let trimmed = text.trim_start_matches(is_blank);
    cursor.looked(text.len() - trimmed.len() + 1);
    match trimmed.chars().next() {
        Some(c) if is_quote(c) => is_end_of_key(cursor, &trimmed[c.len_utf8()..]),
        _ => false,
    }
}

/// Whether a colon follows the next quote in `text`, as at the end of a name, or there is no other quote.
fn is_end_of_key(cursor: &mut Cursor<'_>, text: &str) -> bool {
    let Some(at) = text.find(|c| is_quote(c) || c == '\n') else {
        cursor.looked(text.len());
        return true;
    };
    let Some(after) = text[at..].strip_prefix(is_quote) else {
        cursor.looked(at);
        return false;
    };
    let tail = after.trim_start_matches(is_blank);
    cursor.looked(text.len() - tail.len());
    tail.is_empty() || tail.starts_with(':')
}

/// Whether the item before `text` has ended: at a comma, a bracket or the end of the text.
fn is_end_of_item(cursor: &mut Cursor<'_>, text: &str) -> bool {
    let trimmed = text.trim_start_matches(is_blank);
    cursor.looked(text.len() - trimmed.len() + 1);
    trimmed.is_empty() || trimmed.starts_with([',', ']', '}'])
}

/// Reads the rest of an escape after its backslash. An escape that JSON lacks keeps its backslash: it belongs to a
/// pattern or a path.
fn escape(cursor: &mut Cursor<'_>, content: &mut String) {
    let Some(next) = cursor.bump() else { return };
    match next {
        'n' => content.push('\n'),
        't' => content.push('\t'),
        'r' => content.push('\r'),
        'b' => content.push('\u{8}'),
        'f' => content.push('\u{c}'),
        '\\' | '/' => content.push(next),
        '\n' => {}
        'u' => unicode(cursor, content),
        quote if is_quote(quote) => content.push(quote),
        other => content.extend(['\\', other]),
    }
}

/// Reads the rest of an escape after `\u`: four digits, or a surrogate pair. A part cut by the end of the text is
/// dropped; a lone surrogate becomes the replacement character.
fn unicode(cursor: &mut Cursor<'_>, content: &mut String) {
    let Some(unit) = hex(cursor.rest()) else {
        if cursor.rest().len() < 4 {
            cursor.skip(cursor.rest().len());
        } else {
            content.push_str("\\u");
        }
        return;
    };
    cursor.skip(4);
    let low = cursor.rest().strip_prefix("\\u").and_then(hex).filter(|low| (0xDC00..0xE000).contains(low));
    let code = match low {
        Some(low) if (0xD800..0xDC00).contains(&unit) => {
            cursor.skip(6);
            0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
        }
        _ => unit,
    };
    content.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
}

fn hex(text: &str) -> Option<u32> {
    let digits = text.get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// Removes one layer of escaping from a whole text.
pub(super) fn unescape(text: &str) -> String {
    let mut cursor = Cursor::new(text);
    let mut content = String::with_capacity(text.len());
    while let Some(next) = cursor.bump() {
        if next == '\\' {
            escape(&mut cursor, &mut content);
        } else {
            content.push(next);
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
