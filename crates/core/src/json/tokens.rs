//! Strings: where one ends when quotes inside it are bare or the last is missing, and what it says.
//!
//! Each character is read once. At a quote the text after it tells whether the string ends there; that
//! look ahead goes over white space and at most to the second quote from there, so it stays linear.

use super::cursor::{Cursor, is_blank, is_name};

/// Where a string stands, which tells what may follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
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
pub(super) struct Quoted {
    /// What it says.
    pub(super) content: String,
    /// It ended before the text did.
    pub(super) closed: bool,
}

/// What a quote inside a string is.
#[derive(Debug, PartialEq, Eq)]
enum Quote {
    /// The end of the string.
    Closes,
    /// A part of the string.
    Inner,
    /// The beginning of the next string: this one lacks its end.
    Opens,
}

/// Whether a string may begin with `c`.
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

/// Reads the string whose opening quote is next. `in_call` tells that a `)` is due after it.
pub(super) fn read(cursor: &mut Cursor<'_>, place: Place, in_call: bool) -> Quoted {
    let open = cursor.bump().unwrap_or('"');
    let mut content = String::new();
    // Up to here the content is not blank, and whether a line ended since.
    let (mut solid, mut broken) = (0, false);
    loop {
        let Some(next) = cursor.peek() else {
            return Quoted { content, closed: false };
        };
        if is_pair(open, next) {
            let after = &cursor.rest()[next.len_utf8()..];
            let parted = broken || content[..solid].ends_with(',');
            match meaning(cursor, after, place, in_call, parted) {
                Quote::Closes => {
                    cursor.bump();
                    return Quoted { content, closed: true };
                }
                Quote::Opens => {
                    content.truncate(solid);
                    if content.ends_with(',') {
                        content.pop();
                    }
                    return Quoted { content, closed: true };
                }
                Quote::Inner => {}
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

impl Quoted {
    /// Takes off the brackets at the end that belong to `open` containers, outermost first.
    pub(super) fn give_back(&mut self, open: impl Iterator<Item = char>) {
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

fn meaning(cursor: &mut Cursor<'_>, after: &str, place: Place, in_call: bool, parted: bool) -> Quote {
    let following = after.trim_start_matches(is_blank);
    let blank = &after[..after.len() - following.len()];
    cursor.looked(blank.len() + 1);
    if closes(cursor, following, blank, place, in_call) {
        return Quote::Closes;
    }
    let opens = parted
        && match place {
            Place::Member => ends_a_key(cursor, following),
            Place::Item => true,
            Place::Key | Place::Root => false,
        };
    if opens { Quote::Opens } else { Quote::Inner }
}

fn closes(cursor: &mut Cursor<'_>, following: &str, blank: &str, place: Place, in_call: bool) -> bool {
    let Some(next) = following.chars().next() else { return true };
    let adjacent = blank.is_empty();
    let broken = blank.contains('\n');
    if following.starts_with("//") || following.starts_with("/*") || following.starts_with("```") {
        return true;
    }
    let rest = &following[next.len_utf8()..];
    match (next, place) {
        (',', Place::Member) => member_follows(cursor, rest),
        (',', _) => true,
        (':', _) => place != Place::Member,
        ('}' | ']', _) => {
            let tail = rest.trim_start_matches(['}', ']']);
            cursor.looked(rest.len() - tail.len());
            match tail.chars().next() {
                Some(c) if is_quote(c) => place == Place::Item || member_follows(cursor, tail),
                Some(c) => !c.is_alphanumeric(),
                None => true,
            }
        }
        ('+', _) => {
            let joined = rest.trim_start_matches(is_blank);
            cursor.looked(rest.len() - joined.len());
            place == Place::Key || joined.starts_with(is_quote) || joined.starts_with('/') || joined.is_empty()
        }
        (')' | ';', _) => in_call || place == Place::Root,
        ('#', _) => !adjacent,
        (_, Place::Key) => !adjacent || !is_name(next),
        (_, Place::Root) => broken,
        (_, Place::Member) => (!adjacent || is_quote(next) || next == '{') && member_follows(cursor, following),
        (c, Place::Item) if is_quote(c) => !(adjacent && ends_an_item(cursor, rest)),
        ('{' | '[', Place::Item) => true,
        (c, Place::Item) => broken || (!adjacent && (c.is_ascii_digit() || matches!(c, '-' | '.'))),
    }
}

/// Whether `text` may go on with a member, or with the end of the object.
fn member_follows(cursor: &mut Cursor<'_>, text: &str) -> bool {
    let trimmed = text.trim_start_matches(is_blank);
    cursor.looked(text.len() - trimmed.len() + 1);
    let Some(next) = trimmed.chars().next() else { return true };
    let rest = &trimmed[next.len_utf8()..];
    match next {
        '}' | ']' | ',' | '/' | '#' | '.' => true,
        '{' => member_follows_brace(cursor, rest),
        c if is_quote(c) => trimmed.starts_with("```") || ends_a_key(cursor, rest),
        c if is_name(c) => {
            let tail = rest.trim_start_matches(|c| is_name(c) || c == '.');
            let colon = tail.trim_start_matches(is_blank);
            cursor.looked(rest.len() - colon.len());
            match colon.chars().next() {
                Some(c) if is_quote(c) => ends_a_key(cursor, colon),
                Some(c) => c == ':',
                None => true,
            }
        }
        _ => false,
    }
}

/// Whether an object begins after a brace: with a quoted name.
fn member_follows_brace(cursor: &mut Cursor<'_>, text: &str) -> bool {
    let trimmed = text.trim_start_matches(is_blank);
    cursor.looked(text.len() - trimmed.len() + 1);
    match trimmed.chars().next() {
        Some(c) if is_quote(c) => ends_a_key(cursor, &trimmed[c.len_utf8()..]),
        _ => false,
    }
}

/// Whether the next quote in `text` is followed by a colon, as at the end of a name, or never comes.
fn ends_a_key(cursor: &mut Cursor<'_>, text: &str) -> bool {
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

/// Whether the item before `text` ended: with a comma, a bracket or the text.
fn ends_an_item(cursor: &mut Cursor<'_>, text: &str) -> bool {
    let trimmed = text.trim_start_matches(is_blank);
    cursor.looked(text.len() - trimmed.len() + 1);
    trimmed.is_empty() || trimmed.starts_with([',', ']', '}'])
}

/// Reads what follows a backslash. An escape that JSON lacks keeps its backslash: it is a pattern's or a
/// path's own.
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

/// Reads what follows `\u`: four digits, or two times four. What is cut off by the end of the text is
/// dropped; half a pair becomes the replacement character.
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

/// Takes one layer of escaping off a whole text.
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
