//! Finds where the parts of an answer end while it streams.

use std::ops::Range;

/// A part of the text that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// The value of `output`.
    Output(Range<usize>),
    /// One item of `calls`, or its value where that is no array.
    Call(Range<usize>),
}

/// The members of the answer that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Output,
    Calls,
    Other,
}

/// Reads brackets, quotes and commas, each byte once. It is as patient with broken JSON as can be without
/// looking back: what is inside a part is mended by whoever takes it.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Bytes that were read.
    at: usize,
    /// The open brackets.
    open: Vec<u8>,
    quote: Option<u8>,
    escaped: bool,
    /// The last byte outside of quotes that is not white space.
    before: u8,
    /// The member of the root whose value is being read.
    member: Option<Member>,
    /// Where that value began, or the name of the next member.
    start: usize,
    /// Where the current item of `calls` began, if it has not ended.
    item: Option<usize>,
    /// The root had one of the members.
    known: bool,
    closed: bool,
}

impl Scan {
    /// Whether the answer has come to its end; what follows it is no part of it.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether an answer has begun.
    pub(super) fn has_begun(&self) -> bool {
        !self.open.is_empty()
    }

    /// Reads on in `text`, which begins with all that was read before.
    pub(super) fn read(&mut self, text: &str, found: &mut impl FnMut(Part)) {
        let bytes = text.as_bytes();
        while !self.closed && self.at < bytes.len() {
            let byte = bytes[self.at];
            self.at += 1;
            if let Some(quote) = self.quote {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    _ if byte == quote => self.quote = None,
                    _ => {}
                }
                continue;
            }
            match byte {
                _ if byte.is_ascii_whitespace() => continue,
                b'{' | b'[' if self.has_begun() || byte == b'{' => self.opened(byte),
                _ if !self.has_begun() => continue,
                b'"' => self.quote = Some(byte),
                // Elsewhere it is an apostrophe.
                b'\'' if matches!(self.before, b'{' | b'[' | b',' | b':') => self.quote = Some(byte),
                b'}' => self.close(b'{', text, found),
                b']' => self.close(b'[', text, found),
                b':' if self.open.len() == 1 && self.member.is_none() => self.named(&text[self.start..self.at - 1]),
                b',' if self.open.len() == 1 => self.value_ended(self.at - 1, text, found),
                b',' if self.in_calls() => {
                    self.item_ended(self.at - 1, text, found);
                    self.item = Some(self.at);
                }
                _ => {}
            }
            self.before = byte;
        }
    }

    fn opened(&mut self, bracket: u8) {
        self.open.push(bracket);
        if self.open.len() == 1 {
            self.start = self.at;
        } else if self.in_calls() && self.item.is_none() && self.open.len() == 2 {
            self.item = Some(self.at);
        }
    }

    /// Directly inside the array of calls.
    fn in_calls(&self) -> bool {
        self.member == Some(Member::Calls) && self.open.len() == 2 && self.open[1] == b'['
    }

    /// A closing bracket also closes what was left open inside; one that closes nothing is passed over.
    fn close(&mut self, bracket: u8, text: &str, found: &mut impl FnMut(Part)) {
        if !self.open.contains(&bracket) {
            return;
        }
        while let Some(&top) = self.open.last() {
            let end = if top == bracket { self.at } else { self.at - 1 };
            if self.in_calls() {
                self.item_ended(self.at - 1, text, found);
            } else if self.open.len() == 1 {
                self.value_ended(self.at - 1, text, found);
            }
            self.open.pop();
            if self.in_calls() {
                self.item_ended(end, text, found);
            }
            if top == bracket {
                break;
            }
        }
        if self.open.is_empty() {
            if self.known {
                self.closed = true;
            } else {
                // Braces in the prose before the answer.
                *self = Self { at: self.at, ..Self::default() };
            }
        }
    }

    fn named(&mut self, name: &str) {
        let member = match name.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')) {
            "output" => Member::Output,
            "calls" => Member::Calls,
            _ => Member::Other,
        };
        self.known |= member != Member::Other;
        self.member = Some(member);
        self.start = self.at;
    }

    fn value_ended(&mut self, end: usize, text: &str, found: &mut impl FnMut(Part)) {
        let value = self.start..end;
        let is_array = || text[value.clone()].trim_start().starts_with('[');
        match self.member {
            Some(Member::Output) => found(Part::Output(value)),
            Some(Member::Calls) if !is_array() => found(Part::Call(value)),
            _ => {}
        }
        self.member = None;
        self.start = self.at;
    }

    fn item_ended(&mut self, end: usize, text: &str, found: &mut impl FnMut(Part)) {
        if let Some(start) = self.item.take()
            && !text[start..end].trim().is_empty()
        {
            found(Part::Call(start..end));
        }
    }
}
