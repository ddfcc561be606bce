//! A place in a text, and how far the eye has travelled.

use super::Unreadable;

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

    /// What was not read yet.
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

    /// Goes on by `bytes`, which must end a character.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
        self.steps += bytes;
    }

    pub(super) fn skip_while(&mut self, wanted: impl Fn(char) -> bool) {
        let rest = self.rest();
        self.skip(rest.find(|c| !wanted(c)).unwrap_or(rest.len()));
    }

    /// Notes that `bytes` were looked at without being read.
    pub(super) fn looked(&mut self, bytes: usize) {
        self.steps += bytes;
    }

    /// Refuses to go on when the text costs more than its length allows.
    pub(super) fn within_bounds(&self) -> Result<(), Unreadable> {
        if self.steps > self.text.len() * STEPS_PER_BYTE + BASE_STEPS { Err(Unreadable::TooBroken) } else { Ok(()) }
    }

    /// Steps so far.
    #[cfg(test)]
    pub(super) fn steps(&self) -> usize {
        self.steps
    }
}

/// White space of any script, and the marks that stand for nothing.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{feff}' | '\u{200b}')
}

/// What a bare name is made of.
pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '-')
}
