//! Repairs broken JSON in one pass, with a stack of open containers: at each place it assumes the likeliest next token.

use serde_json::{Map, Value};

use super::tokens::{Cursor, StringPosition, is_blank, is_name, is_quote, literal, read_string};
use super::{MAX_DEPTH, UnreadableJson, pointer};

/// An open container.
#[derive(Debug)]
enum Frame {
    Array(Vec<Value>),
    Object {
        members: Map<String, Value>,
        /// The name that waits for its value.
        key: Option<String>,
    },
}

impl Frame {
    fn closer(&self) -> char {
        match self {
            Self::Array(_) => ']',
            Self::Object { .. } => '}',
        }
    }

    fn close(self) -> Value {
        match self {
            Self::Array(items) => items.into(),
            Self::Object { mut members, key } => {
                if let Some(key) = key {
                    members.insert(key, Value::Null);
                }
                members.into()
            }
        }
    }
}

#[derive(Debug)]
struct Reader<'a> {
    cursor: Cursor<'a>,
    stack: Vec<Frame>,
    /// Numbers of open objects and arrays, so that no bracket needs a walk over the stack.
    open: [usize; 2],
    /// A function call surrounds a value: its `)` is expected.
    in_call: bool,
    /// A name had no value, and got null.
    invented: bool,
    /// The first container that the end of the text closed, as a JSON Pointer.
    cut: Option<String>,
}

/// Reads `text` as one container, if there is nothing around it and each name in it has a value.
pub(super) fn read_whole(text: &str) -> Option<Value> {
    let mut reader = Reader::new(text);
    let value = reader.peek_container()?;
    reader.filler();
    (reader.cursor.rest().is_empty() && !reader.invented).then_some(value)
}

/// Reads the first value of `text`, and objects that follow it; also returns where the text was cut.
pub(super) fn read(text: &str) -> Result<(Value, Option<String>), UnreadableJson> {
    let mut reader = Reader::new(text);
    let value = reader.root()?;
    Ok((value, reader.cut))
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { cursor: Cursor::new(text), stack: Vec::new(), open: [0, 0], in_call: false, invented: false, cut: None }
    }

    fn root(&mut self) -> Result<Value, UnreadableJson> {
        let first = self.find_value()?;
        if !first.is_object() {
            return Ok(first);
        }
        let mut all = vec![first];
        loop {
            self.cursor.skip_while(|c| is_blank(c) || c == ',');
            self.filler();
            if self.cursor.peek() != Some('{') {
                break;
            }
            all.push(self.container()?);
        }
        if all.len() == 1 {
            return Ok(all.swap_remove(0));
        }
        // Only the last one can be cut, and a pointer into it does not fit the array.
        self.cut = None;
        Ok(all.into())
    }

    /// Skips prose, fences and calls up to the first value, and reads it.
    fn find_value(&mut self) -> Result<Value, UnreadableJson> {
        loop {
            self.filler();
            self.cursor.within_bounds()?;
            let Some(next) = self.cursor.peek() else { return Err(UnreadableJson::Empty) };
            let rest = self.cursor.rest();
            if matches!(next, '{' | '[') {
                if !rest[1..].trim_start_matches(is_blank).starts_with("```") {
                    return self.container();
                }
                self.cursor.skip(1);
            } else if is_quote(next) {
                return self.quoted_root();
            } else if let Some(call) = call_prefix(rest) {
                self.cursor.skip(call);
                self.in_call = true;
            } else if let Some((start, _)) = rest
                .char_indices()
                .find(|(at, c)| matches!(c, '{' | '[') || (*c == '`' && rest[*at..].starts_with("```")))
            {
                self.cursor.skip(start);
            } else {
                let word = rest.trim_end_matches(|c| is_blank(c) || matches!(c, ',' | ';'));
                return Ok(literal(word, true).unwrap_or_else(|| word.into()));
            }
        }
    }

    /// A string alone, or the members of an object that lacks its braces.
    fn quoted_root(&mut self) -> Result<Value, UnreadableJson> {
        let rest = self.cursor.rest();
        let bare_members = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')).is_some_and(|(name, tail)| {
            self.cursor.looked(name.len());
            tail.trim_start_matches(is_blank).starts_with(':')
        });
        if bare_members {
            self.push(Frame::Object { members: Map::new(), key: None })?;
            return self.members();
        }
        self.string(StringPosition::Root).map(Value::String)
    }

    fn peek_container(&mut self) -> Option<Value> {
        matches!(self.cursor.peek(), Some('{' | '[')).then(|| self.container().ok())?
    }

    fn container(&mut self) -> Result<Value, UnreadableJson> {
        self.enter()?;
        self.members()
    }

    /// Opens the container at the next bracket.
    fn enter(&mut self) -> Result<(), UnreadableJson> {
        let frame = match self.cursor.bump() {
            Some('[') => Frame::Array(Vec::new()),
            _ => Frame::Object { members: Map::new(), key: None },
        };
        self.push(frame)
    }

    fn push(&mut self, frame: Frame) -> Result<(), UnreadableJson> {
        if self.stack.len() == MAX_DEPTH {
            return Err(UnreadableJson::TooDeep);
        }
        self.open[usize::from(frame.closer() == ']')] += 1;
        self.stack.push(frame);
        Ok(())
    }

    /// Reads until the outermost container is closed, by a bracket or by the end of the text.
    fn members(&mut self) -> Result<Value, UnreadableJson> {
        loop {
            self.filler();
            self.cursor.within_bounds()?;
            let done = match self.cursor.peek() {
                None => {
                    self.cut = self.cut.take().or_else(|| Some(self.place()));
                    self.pop()
                }
                Some(next @ ('}' | ']')) => self.close(next),
                Some(',') => {
                    self.cursor.bump();
                    if matches!(self.stack.last(), Some(Frame::Object { key: Some(_), .. })) {
                        self.invented = true;
                        self.put(Value::Null);
                    }
                    None
                }
                Some(next) => match self.stack.last() {
                    Some(Frame::Object { key: None, .. }) => self.key(next)?,
                    Some(Frame::Object { key: Some(_), .. }) => {
                        self.value(next, StringPosition::Member)?;
                        None
                    }
                    _ => {
                        self.item(next)?;
                        None
                    }
                },
            };
            if let Some(value) = done {
                return Ok(value);
            }
        }
    }

    /// Skips filler between values.
    fn filler(&mut self) {
        loop {
            self.cursor.skip_while(is_blank);
            let rest = self.cursor.rest();
            if rest.starts_with("//") || rest.starts_with('#') {
                self.cursor.skip_while(|c| c != '\n');
            } else if let Some(comment) = rest.strip_prefix("/*") {
                self.cursor.skip(comment.find("*/").map_or(rest.len(), |end| end + 4));
            } else if rest.starts_with("```") {
                self.cursor.skip(3);
                self.cursor.skip_while(is_name);
            } else if rest.starts_with("...") || rest.starts_with('…') {
                self.cursor.skip(3);
            } else if rest.starts_with([')', ';']) {
                self.cursor.skip(1);
                self.in_call = false;
            } else {
                return;
            }
        }
    }

    /// Handles a closing `bracket`: closes the nearest container of its kind and everything inside, or, if none is
    /// open, the innermost one.
    fn close(&mut self, bracket: char) -> Option<Value> {
        self.cursor.bump();
        if self.open[usize::from(bracket == ']')] == 0 {
            return self.pop();
        }
        loop {
            let found = self.stack.last().is_none_or(|frame| frame.closer() == bracket);
            let done = self.pop();
            if found || done.is_some() {
                return done;
            }
        }
    }

    /// The innermost container, as a JSON Pointer.
    fn place(&self) -> String {
        let inner = self.stack.len().saturating_sub(1);
        let mut place = String::new();
        for frame in &self.stack[..inner] {
            match frame {
                Frame::Array(items) => pointer::push(&mut place, &items.len().to_string()),
                Frame::Object { key, .. } => pointer::push(&mut place, key.as_deref().unwrap_or_default()),
            }
        }
        place
    }

    /// Closes the innermost container; the value, if it was the outermost.
    fn pop(&mut self) -> Option<Value> {
        let frame = self.stack.pop()?;
        self.open[usize::from(frame.closer() == ']')] -= 1;
        self.invented |= matches!(frame, Frame::Object { key: Some(_), .. });
        let value = frame.close();
        if self.stack.is_empty() {
            return Some(value);
        }
        self.put(value);
        None
    }

    fn put(&mut self, value: Value) {
        match self.stack.last_mut() {
            Some(Frame::Array(items)) => items.push(value),
            Some(Frame::Object { members, key }) => {
                if let Some(key) = key.take() {
                    members.insert(key, value);
                }
            }
            None => {}
        }
    }

    /// Reads a name.
    fn key(&mut self, next: char) -> Result<Option<Value>, UnreadableJson> {
        let name = match next {
            '{' => {
                let in_array = self.stack.len() > 1 && matches!(self.stack[self.stack.len() - 2], Frame::Array(_));
                let filled = matches!(self.stack.last(), Some(Frame::Object { members, .. }) if !members.is_empty());
                if in_array && filled {
                    // The object before lacks its brace.
                    return Ok(self.pop());
                }
                self.cursor.bump();
                return Ok(None);
            }
            '[' | ':' | '=' => {
                self.cursor.bump();
                return Ok(None);
            }
            quote if is_quote(quote) => self.string(StringPosition::Key)?,
            _ => self.bare_key(),
        };
        self.filler();
        self.cursor.skip_while(|c| matches!(c, ':' | '=' | '>'));
        if let Some(Frame::Object { key, .. }) = self.stack.last_mut() {
            *key = Some(name);
        }
        Ok(None)
    }

    /// A name without quotes, or with the last alone.
    fn bare_key(&mut self) -> String {
        let start = self.cursor.at();
        self.cursor.bump();
        self.cursor.skip_while(|c| !matches!(c, ':' | '=' | ',' | '{' | '}' | '[' | ']' | '\n' | '/') && !is_quote(c));
        let name = self.cursor.since(start).trim_end_matches(is_blank).to_owned();
        if self.cursor.peek().is_some_and(is_quote) {
            self.cursor.bump();
        }
        name
    }

    fn item(&mut self, next: char) -> Result<(), UnreadableJson> {
        if next != ':' {
            return self.value(next, StringPosition::Item);
        }
        // A colon after a string: the array lacks its bracket, and the string is the object's next name.
        self.cursor.bump();
        if let [.., Frame::Object { .. }, Frame::Array(items)] = self.stack.as_mut_slice()
            && let Some(Value::String(_)) = items.last()
            && let Some(Value::String(name)) = items.pop()
        {
            self.pop();
            if let Some(Frame::Object { key, .. }) = self.stack.last_mut() {
                *key = Some(name);
            }
        }
        Ok(())
    }

    fn value(&mut self, next: char, place: StringPosition) -> Result<(), UnreadableJson> {
        if matches!(next, '{' | '[') {
            return self.enter();
        }
        let value = if is_quote(next) { Some(self.string(place)?.into()) } else { self.bare(place) };
        if let Some(value) = value {
            self.put(value);
        }
        Ok(())
    }

    /// Reads a string, with strings joined by `+`.
    fn string(&mut self, place: StringPosition) -> Result<String, UnreadableJson> {
        let mut text = self.quoted(place);
        if place == StringPosition::Key {
            return Ok(text);
        }
        loop {
            self.filler();
            self.cursor.within_bounds()?;
            if self.cursor.peek() != Some('+') {
                return Ok(text);
            }
            self.cursor.bump();
            self.filler();
            if self.cursor.peek().is_some_and(is_quote) {
                text.push_str(&self.quoted(place));
            }
        }
    }

    /// Reads a string. If it ran to the end of the text, the brackets in its tail are given back.
    fn quoted(&mut self, place: StringPosition) -> String {
        let mut text = read_string(&mut self.cursor, place, self.in_call);
        if !text.closed {
            text.drop_closers(self.stack.iter().map(Frame::closer));
        }
        text.content
    }

    /// Reads an unquoted value: a literal, or text up to the next delimiter. `None` for the name of a function
    /// around the value, or a mark without meaning.
    fn bare(&mut self, place: StringPosition) -> Option<Value> {
        let rest = self.cursor.rest();
        if let Some(call) = call_prefix(rest) {
            self.cursor.skip(call);
            self.in_call = true;
            return None;
        }
        let start = self.cursor.at();
        self.cursor.bump();
        let mut first = true;
        while let Some(next) = self.cursor.peek() {
            let rest = self.cursor.rest();
            match next {
                ',' | '}' | ']' | '{' | '[' | '\n' => break,
                ')' if self.in_call => break,
                '/' if rest.starts_with("/*") => break,
                '/' if rest.starts_with("//") && !self.cursor.since(start).ends_with(':') => break,
                quote if is_quote(quote) && self.is_end_of_unquoted(quote) => {
                    let word = self.cursor.since(start).trim().to_owned();
                    self.cursor.bump();
                    return Some(word.into());
                }
                blank if is_blank(blank) => {
                    let word = if first { literal(self.cursor.since(start), false) } else { None };
                    first = false;
                    if word.is_some() && self.next_is_separate(place) {
                        return word;
                    }
                    self.cursor.skip_while(|c| is_blank(c) && c != '\n');
                    continue;
                }
                _ => {}
            }
            self.cursor.bump();
        }
        let at_end = self.cursor.rest().is_empty();
        let word = self.cursor.since(start).trim_matches(is_blank);
        Some(literal(word, at_end).unwrap_or_else(|| word.into()))
    }

    /// Whether the next quote ends a text that began without one.
    fn is_end_of_unquoted(&mut self, quote: char) -> bool {
        let after = &self.cursor.rest()[quote.len_utf8()..];
        let following = after.trim_start_matches(is_blank);
        self.cursor.looked(after.len() - following.len() + 1);
        following.is_empty()
            || following.starts_with(|c| matches!(c, ',' | ':' | '}' | ']' | '{' | '[' | '/') || is_quote(c))
    }

    /// Whether a delimiter follows a literal and a space, and not more of the same text.
    fn next_is_separate(&mut self, place: StringPosition) -> bool {
        let following = self.cursor.rest().trim_start_matches(is_blank);
        let end = following.find(|c| !is_name(c) && c != '.' && c != '+').unwrap_or(following.len());
        self.cursor.looked(end + 1);
        let (word, rest) = following.split_at(end);
        match place {
            StringPosition::Item => {
                literal(word, rest.is_empty()).is_some() || (word.is_empty() && rest.starts_with(is_quote))
            }
            _ => {
                let colon = rest.trim_start_matches(|c| is_blank(c) || is_quote(c));
                self.cursor.looked(rest.len() - colon.len());
                colon.starts_with(':') || (word.is_empty() && rest.starts_with(is_quote))
            }
        }
    }
}

/// The length of a function's name and its parenthesis at the beginning of `text`, before a value.
fn call_prefix(text: &str) -> Option<usize> {
    let tail = text.trim_start_matches(is_name);
    if tail.len() == text.len() {
        return None;
    }
    let argument = tail.trim_start_matches(' ').strip_prefix('(')?;
    let value = argument.trim_start_matches(is_blank);
    value
        .starts_with(|c: char| is_quote(c) || c.is_ascii_digit() || matches!(c, '{' | '[' | '-' | ')'))
        .then(|| text.len() - argument.len())
}

#[cfg(test)]
pub(super) fn steps(text: &str) -> usize {
    let mut reader = Reader::new(text);
    // The result does not matter here.
    let _ = reader.root();
    reader.cursor.steps()
}
