//! A query cut at white space, with what is quoted in one piece.

/// Characters of a literal, at most: a quotation mark with no other near it is no more than a mark.
const MAX_LITERAL: usize = 200;

/// Bytes of an e-mail address, at most (RFC 5321: 64 before the `@`, 255 behind it).
const MAX_ADDRESS: usize = 320;

/// A piece of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk<'a> {
    pub(super) text: &'a str,
    /// A value rather than words about a task: it is in quotation marks, or a URL, or an e-mail address.
    pub(super) is_literal: bool,
    pub(super) before: Gap,
}

/// What stands before a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    None,
    Space,
    Line,
}

/// Every chunk of a text in order. A chunk ends at white space, after a semicolon, and at a literal.
pub(super) fn chunks(text: &str) -> impl Iterator<Item = Chunk<'_>> {
    let mut rest = text;
    let mut inside = false;
    std::iter::from_fn(move || {
        let trimmed = rest.trim_start();
        let (space, text) = rest.split_at(rest.len() - trimmed.len());
        let before = match space {
            "" => Gap::None,
            _ if space.contains('\n') => Gap::Line,
            _ => Gap::Space,
        };
        let literal = literal(text, inside && before == Gap::None).or_else(|| address(text));
        let length = literal.unwrap_or_else(|| plain(text));
        let (chunk, after) = text.split_at(length);
        rest = after;
        inside = chunk.ends_with(char::is_alphanumeric);
        (!chunk.is_empty()).then_some(Chunk { text: chunk, is_literal: literal.is_some(), before })
    })
}

/// How long a chunk is that begins with no literal.
fn plain(text: &str) -> usize {
    let mut inside = false;
    for (at, c) in text.char_indices() {
        if c.is_whitespace() || (at > 0 && literal(&text[at..], inside).is_some()) {
            return at;
        }
        if c == ';' {
            return at + 1;
        }
        inside = c.is_alphanumeric();
    }
    text.len()
}

/// How long the quotation or URL is that `text` begins with, if it does; `inside` a word, `'` is an apostrophe.
fn literal(text: &str, inside: bool) -> Option<usize> {
    match text.chars().next()? {
        '"' => quoted(text, '"'),
        '`' => quoted(text, '`'),
        '“' => quoted(text, '”'),
        '\'' if !inside => {
            let length = quoted(text, '\'')?;
            let quotation = &text[1..length - 1];
            let is_word_next = text[length..].starts_with(|c: char| c.is_lowercase());
            (quotation.trim() == quotation && !is_word_next).then_some(length)
        }
        'h' => {
            let rest = text.strip_prefix("http")?;
            let rest = rest.strip_prefix('s').unwrap_or(rest).strip_prefix("://")?;
            let address = rest.find(char::is_whitespace).unwrap_or(rest.len());
            (address > 0).then_some(text.len() - rest.len() + address)
        }
        _ => None,
    }
}

/// The length of a quotation that `close` closes.
fn quoted(text: &str, close: char) -> Option<usize> {
    let mut chars = text.char_indices().skip(1).take(MAX_LITERAL + 1);
    let (end, _) = chars.find(|(_, c)| *c == close)?;
    let open = text.chars().next().map_or(0, char::len_utf8);
    (end > open).then_some(end + close.len_utf8())
}

/// How long the e-mail address is that `text` begins with, if it does.
fn address(text: &str) -> Option<usize> {
    let near = &text[..text.floor_char_boundary(MAX_ADDRESS)];
    let chunk = &near[..near.find(|c: char| c.is_whitespace() || c == ';').unwrap_or(near.len())];
    let (user, host) = chunk.split_once('@')?;
    let (domain, rest) = host.rsplit_once('.')?;
    (!user.is_empty() && !domain.is_empty() && !rest.is_empty()).then_some(chunk.len())
}
