//! Measures each run of bytes of one class once.

use std::ops::Range;

/// What may stand behind a prefix.
#[derive(Clone, Copy)]
pub(super) enum Body {
    /// Letters and digits.
    Plain,
    /// Letters.
    Letters,
    /// Upper-case letters and digits.
    Upper,
    Hex,
    /// Letters, digits, `_` and `-`.
    Word,
    /// [`Body::Word`] and `.`.
    Dotted,
    /// Letters, digits, `+`, `/`, `=`, `_`, `-` and `.`.
    Base64,
    /// [`Body::Word`] and `/`.
    Path,
}

/// Kinds of [`Body`].
const BODIES: usize = Body::Path as usize + 1;

impl Body {
    pub(super) fn has(self, byte: u8) -> bool {
        let plain = byte.is_ascii_alphanumeric();
        match self {
            Self::Plain => plain,
            Self::Letters => byte.is_ascii_alphabetic(),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Hex => byte.is_ascii_hexdigit(),
            Self::Word => plain || matches!(byte, b'_' | b'-'),
            Self::Dotted => plain || matches!(byte, b'_' | b'-' | b'.'),
            Self::Base64 => plain || matches!(byte, b'+' | b'/' | b'=' | b'_' | b'-' | b'.'),
            Self::Path => plain || matches!(byte, b'_' | b'-' | b'/'),
        }
    }
}

/// The last run of one kind of bytes that was measured.
#[derive(Default)]
pub(super) struct Run(Option<Range<usize>>);

impl Run {
    /// Where the bytes end that go on from `at`. Always asked of the same bytes with the same `goes_on`, and from
    /// places that do not go back, all answers together look at each byte once.
    pub(super) fn end(&mut self, bytes: &[u8], at: usize, goes_on: impl Fn(u8) -> bool) -> usize {
        match &self.0 {
            Some(last) if last.start <= at && at <= last.end => last.end,
            _ => {
                let end = at + bytes[at..].iter().take_while(|&&byte| goes_on(byte)).count();
                self.0 = Some(at..end);
                end
            }
        }
    }
}

/// The last run of each kind.
#[derive(Default)]
pub(super) struct Runs([Run; BODIES]);

impl Runs {
    /// As [`Run::end`].
    pub(super) fn end(&mut self, body: Body, bytes: &[u8], at: usize) -> usize {
        self.0[body as usize].end(bytes, at, |byte| body.has(byte))
    }
}
