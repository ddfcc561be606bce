//! Finds the next marker in text that arrives in chunks, and detects code: blocks between fences, spans between
//! backticks.

use std::ops::BitOr;

use crate::table;

/// The possible meanings of a marker; its place decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Roles(u16);

impl Roles {
    /// Opens reasoning.
    pub(super) const OPEN: Self = Self(1);
    /// Closes reasoning.
    pub(super) const CLOSE: Self = Self(1 << 1);
    /// Ends reasoning and has its own meaning.
    pub(super) const BEFORE: Self = Self(1 << 2);
    /// Dropped.
    pub(super) const NOISE: Self = Self(1 << 3);
    /// Ends the answer.
    pub(super) const STOP: Self = Self(1 << 4);
    /// Begins or ends a block of code.
    pub(super) const FENCE: Self = Self(1 << 5);
    /// May follow a call.
    pub(super) const TRAILER: Self = Self(1 << 6);
    /// Begins the header of a message.
    pub(super) const HEADER: Self = Self(1 << 7);
    /// Ends the body of a message.
    pub(super) const END: Self = Self(1 << 8);

    /// Whether `role` is included.
    pub(super) fn has(self, role: Self) -> bool {
        self.0 & role.0 != 0
    }
}

impl BitOr for Roles {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A marker and its possible roles.
#[derive(Debug)]
pub(super) struct Marker {
    /// Its text.
    pub text: &'static str,
    /// Its possible roles.
    pub roles: Roles,
    /// Whether it is a control token, which never occurs in ordinary text.
    pub control: bool,
    /// The forms of calls that it may begin, by their place in the decoder's list.
    pub calls: Vec<usize>,
}

/// Result of a search for a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hit {
    /// No marker, and no possible start of one at the end.
    None,
    /// A marker.
    Marker {
        /// Its position.
        at: usize,
        /// Its index.
        index: usize,
    },
    /// A possible start of a marker at the end.
    Beginning {
        /// Its position.
        at: usize,
    },
}

/// All markers of a decoder.
#[derive(Debug, Default)]
pub(super) struct Markers {
    list: Vec<Marker>,
    /// Markers by their first byte.
    by_first: Vec<(u8, Vec<usize>)>,
}

impl Markers {
    /// Adds a meaning of `text`.
    pub(super) fn add(&mut self, text: &'static str, roles: Roles, call: Option<usize>) {
        let Some(&first) = text.as_bytes().first() else { return };
        let index = self.list.iter().position(|marker| marker.text == text).unwrap_or_else(|| {
            let control = table::is_control(text);
            self.list.push(Marker { text, roles: Roles::default(), control, calls: Vec::new() });
            let index = self.list.len() - 1;
            match self.by_first.iter_mut().find(|(byte, _)| *byte == first) {
                Some((_, bucket)) => bucket.push(index),
                None => self.by_first.push((first, vec![index])),
            }
            index
        });
        let marker = &mut self.list[index];
        marker.roles = marker.roles | roles;
        marker.calls.extend(call.filter(|call| !marker.calls.contains(call)));
    }

    /// The marker at `index`.
    pub(super) fn get(&self, index: usize) -> &Marker {
        &self.list[index]
    }

    /// The first marker in `text`, the longest if several begin at one place. Unless the text is `whole`, also the beginning of
    /// one at the end.
    pub(super) fn find(&self, text: &str, whole: bool) -> Hit {
        let bytes = text.as_bytes();
        let mut from = 0;
        while let Some(at) = self.candidate(&bytes[from..]).map(|at| from + at) {
            let hit = self.at(&bytes[at..], whole);
            match hit {
                Hit::None => from = at + 1,
                Hit::Marker { index, .. } => return Hit::Marker { at, index },
                Hit::Beginning { .. } => return Hit::Beginning { at },
            }
        }
        Hit::None
    }

    /// The next byte that begins a marker.
    fn candidate(&self, bytes: &[u8]) -> Option<usize> {
        match self.by_first.as_slice() {
            [] => None,
            [(a, _)] => memchr::memchr(*a, bytes),
            [(a, _), (b, _)] => memchr::memchr2(*a, *b, bytes),
            [(a, _), (b, _), (c, _)] => memchr::memchr3(*a, *b, *c, bytes),
            [(a, _), (b, _), (c, _), rest @ ..] => {
                let near = memchr::memchr3(*a, *b, *c, bytes);
                let bytes = &bytes[..near.unwrap_or(bytes.len())];
                bytes.iter().position(|byte| rest.iter().any(|(first, _)| first == byte)).or(near)
            }
        }
    }

    fn at(&self, bytes: &[u8], whole: bool) -> Hit {
        let Some((_, bucket)) = self.by_first.iter().find(|(first, _)| *first == bytes[0]) else { return Hit::None };
        let mut best: Option<usize> = None;
        for &index in bucket {
            let marker = self.list[index].text.as_bytes();
            if bytes.starts_with(marker) {
                if best.is_none_or(|best| self.list[best].text.len() < marker.len()) {
                    best = Some(index);
                }
            } else if !whole && marker.starts_with(bytes) {
                return Hit::Beginning { at: 0 };
            }
        }
        best.map_or(Hit::None, |index| Hit::Marker { at: 0, index })
    }
}

/// The state of code in the text, as in Markdown.
#[derive(Debug)]
pub(super) struct Code {
    /// The length of the fence of the open block.
    fence: usize,
    /// Whether the line has only spaces so far.
    line_blank: bool,
    /// The number of backticks that opened a span on this line.
    span: usize,
    /// Backticks at the end.
    ticks: usize,
}

impl Code {
    /// Starts at the beginning of a line, outside of code.
    pub(super) fn new() -> Self {
        Self { fence: 0, line_blank: true, span: 0, ticks: 0 }
    }

    /// Reads text.
    pub(super) fn take(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let line = memchr::memrchr(b'\n', bytes).map(|end| &bytes[end + 1..]);
        let is_blank = line.unwrap_or(bytes).iter().all(|byte| *byte == b' ');
        self.line_blank = is_blank && (line.is_some() || self.line_blank);
        if line.is_some() {
            (self.span, self.ticks) = (0, 0);
        }
        let mut rest = line.unwrap_or(bytes);
        while !rest.is_empty() {
            let run = rest.iter().take_while(|byte| **byte == b'`').count();
            self.ticks += run;
            rest = &rest[run..];
            if !rest.is_empty() {
                self.end_run();
                rest = &rest[memchr::memchr(b'`', rest).unwrap_or(rest.len())..];
            }
        }
    }

    /// Other text follows backticks.
    fn end_run(&mut self) {
        if self.span == 0 {
            self.span = self.ticks;
        } else if self.span == self.ticks {
            self.span = 0;
        }
        self.ticks = 0;
    }

    /// Something other than text was read.
    pub(super) fn interrupt(&mut self) {
        self.line_blank = false;
        (self.span, self.ticks) = (0, 0);
    }

    /// Whether the line has only spaces so far.
    pub(super) fn line_blank(&self) -> bool {
        self.line_blank
    }

    /// Whether a marker here is quoted: directly after backticks that open a span or, unless it is a `control` token,
    /// in a block.
    pub(super) fn quotes(&self, control: bool) -> bool {
        (self.ticks > 0 && self.span == 0) || (self.fence > 0 && !control)
    }

    /// Reads a run of backticks that may be a fence, and the character after it.
    pub(super) fn fence(&mut self, run: &str, after: Option<char>) {
        let begins_line = self.line_blank;
        self.take(run);
        if !begins_line {
            return;
        }
        if self.fence == 0 {
            self.fence = run.len();
        } else if run.len() >= self.fence && !after.is_some_and(char::is_alphanumeric) {
            self.fence = 0;
        }
        (self.span, self.ticks) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_first_marker_is_found_when_cut() {
        let mut markers = Markers::default();
        for text in ["<a>", "<a>\n", "[x]", "`b", "|c"] {
            markers.add(text, Roles::NOISE, None);
        }
        let check = |text: &str, whole, expect| assert_eq!(markers.find(text, whole), expect, "{text:?}");
        check("plain < text", false, Hit::None);
        check("one <a> two", false, Hit::Marker { at: 4, index: 0 });
        check("one <a>\n two", false, Hit::Marker { at: 4, index: 1 });
        check("one <a>", false, Hit::Beginning { at: 4 });
        check("one <a>", true, Hit::Marker { at: 4, index: 0 });
        check("one <", false, Hit::Beginning { at: 4 });
        check("one <", true, Hit::None);
        check("|c and [x]", false, Hit::Marker { at: 0, index: 4 });
    }

    #[test]
    fn marker_inside_a_code_span_is_quoted() {
        for (text, expect) in [
            ("", false),
            ("a `", true),
            ("a ``", true),
            ("a `b`", false),
            ("a ``b`", false),
            ("`b` and `", true),
            ("a `b\n", false),
            ("a `b\n`", true),
        ] {
            for size in 1..=text.len().max(1) {
                let mut code = Code::new();
                text.as_bytes().chunks(size).for_each(|piece| code.take(std::str::from_utf8(piece).expect("ASCII")));
                assert_eq!(code.quotes(true), expect, "{text:?} by {size}");
            }
        }
    }
}
