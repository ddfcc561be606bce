//! Finds the next marker, wherever the text is cut.

use std::ops::BitOr;

use crate::table;

/// A set of meanings that a marker may have; which one it has depends on where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Roles(u16);

impl Roles {
    /// Opens reasoning.
    pub(super) const OPEN: Self = Self(1);
    /// Closes reasoning.
    pub(super) const CLOSE: Self = Self(1 << 1);
    /// Ends reasoning and has a meaning of its own.
    pub(super) const BEFORE: Self = Self(1 << 2);
    /// Is dropped.
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

    /// Whether `role` is among them.
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

/// A marker and what it may mean.
#[derive(Debug)]
pub(super) struct Marker {
    /// Its text.
    pub text: &'static str,
    /// What it may mean.
    pub roles: Roles,
    /// Whether it is a token of its own, which no text is read as.
    pub control: bool,
    /// The forms of calls that it may begin, by their place in the decoder's list.
    pub calls: Vec<usize>,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hit {
    /// No marker, and no beginning of one at the end.
    None,
    /// A marker.
    Marker {
        /// Where.
        at: usize,
        /// Which.
        index: usize,
    },
    /// What may become a marker with more text.
    Beginning {
        /// Where.
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
    /// Gives `text` one more meaning.
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

    /// The first marker in `text`, the longest where several begin at one place. Unless the text is
    /// `whole`, what may become one at the end is reported too.
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
}
