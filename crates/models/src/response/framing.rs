//! Events out of bytes that arrive cut anywhere: lines, server-sent events (WHATWG HTML, section 9.2), JSON values.

use toolwright_core::model::{ModelError, ModelErrorKind};

pub(crate) use super::json_values::is_cut;
use super::json_values::{JsonValues, or_mended};

/// The longest answer that is read, in bytes on the wire; it also bounds what a decoder holds.
pub(crate) const MAX_ANSWER: usize = 128 << 20;
/// The mark that ends the streams of some APIs.
pub(crate) const DONE: &[u8] = b"[DONE]";
/// What some writers put before any text.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Takes the data of one event.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), ModelError>;

/// How the events of an answer are told apart.
#[derive(Debug)]
pub(crate) enum Framing {
    /// Not known before the first byte.
    Unknown,
    /// Server-sent events.
    Events(Sse),
    /// JSON values: one a line, in a list, or one alone.
    Json(JsonValues),
}

impl Framing {
    /// Server-sent events.
    pub(crate) fn events() -> Self {
        Self::Events(Sse::default())
    }

    /// JSON values.
    pub(crate) fn json() -> Self {
        Self::Json(JsonValues::default())
    }

    /// Whichever of the two the first byte says.
    pub(crate) fn detect() -> Self {
        Self::Unknown
    }

    /// Takes some bytes and hands the data of each event that is now complete to `each`.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], each: Each<'_>) -> Result<(), ModelError> {
        if let Self::Unknown = self {
            // No event begins with a byte of the mark, which may come in pieces.
            let blank = |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
            bytes = &bytes[bytes.iter().take_while(|byte| blank(byte)).count()..];
            match bytes.first() {
                None => return Ok(()),
                Some(b'{' | b'[') => *self = Self::json(),
                Some(_) => *self = Self::events(),
            }
        }
        match self {
            Self::Unknown => Ok(()),
            Self::Events(sse) => sse.feed(bytes, each),
            Self::Json(values) => values.feed(bytes, each),
        }
    }

    /// Hands over a last event that has no end.
    pub(crate) fn finish(&mut self, each: Each<'_>) -> Result<(), ModelError> {
        match self {
            Self::Unknown => Ok(()),
            Self::Events(sse) => sse.finish(each),
            Self::Json(values) => values.finish(each),
        }
    }
}

/// The longest line, and the longest event, in bytes.
pub(super) const MAX_LINE: usize = 16 << 20;

/// An incremental line splitter that holds at most [`MAX_LINE`] bytes.
#[derive(Debug, Default)]
pub(super) struct Lines {
    held: Vec<u8>,
    after_cr: bool,
}

impl Lines {
    /// Takes some bytes and hands each line that is now complete, without its end, to `each`.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        each: &mut impl FnMut(&[u8]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        if std::mem::take(&mut self.after_cr) {
            if bytes.is_empty() {
                self.after_cr = true;
                return Ok(());
            }
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr::memchr2(b'\r', b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if bytes[end] == b'\r' {
                self.after_cr = rest.is_empty();
                bytes = rest.strip_prefix(b"\n").unwrap_or(rest);
            } else {
                bytes = rest;
            }
            if self.held.is_empty() {
                each(line)?;
            } else {
                self.hold(line)?;
                let taken = each(&self.held);
                self.held.clear();
                taken?;
            }
        }
        self.hold(bytes)
    }

    /// Hands over a last line that has no end, and says whether there was one.
    pub(super) fn finish(
        &mut self,
        each: &mut impl FnMut(&[u8]) -> Result<(), ModelError>,
    ) -> Result<bool, ModelError> {
        let rest = std::mem::take(&mut self.held);
        if rest.is_empty() {
            return Ok(false);
        }
        each(&rest)?;
        Ok(true)
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        if self.held.len() + bytes.len() > MAX_LINE {
            return Err(too_long());
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }
}

/// The error for a line or event past its bound.
pub(super) fn too_long() -> ModelError {
    ModelError::new(
        ModelErrorKind::BadResponse,
        format!("the stream holds an event of more than {} MiB", MAX_LINE >> 20),
    )
}

/// An incremental event parser that holds at most two events' worth of bytes.
#[derive(Debug, Default)]
pub(crate) struct Sse {
    lines: Lines,
    event: Event,
}

#[derive(Debug, Default)]
struct Event {
    /// The data so far; kept for the next event, so that its memory is.
    data: Vec<u8>,
    has_data: bool,
    past_first_line: bool,
}

impl Sse {
    /// Takes some bytes and hands the data of each event that is now complete to `each`.
    pub(super) fn feed(&mut self, bytes: &[u8], each: Each<'_>) -> Result<(), ModelError> {
        let event = &mut self.event;
        self.lines.feed(bytes, &mut |line| event.line(line, each))
    }

    /// Hands over a last event that no blank line ends: some servers close right after `[DONE]`.
    pub(super) fn finish(&mut self, each: Each<'_>) -> Result<(), ModelError> {
        let event = &mut self.event;
        let cut = self.lines.finish(&mut |line| event.line(line, each))?;
        let Event { data, has_data: true, .. } = std::mem::take(event) else { return Ok(()) };
        // A line that has its end was sent as a whole.
        if cut { each(&data) } else { or_mended(&data, each) }
    }
}

impl Event {
    fn line(&mut self, line: &[u8], each: Each<'_>) -> Result<(), ModelError> {
        let line = if self.past_first_line { line } else { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) };
        self.past_first_line = true;
        if line.is_empty() {
            let taken = if self.has_data { or_mended(&self.data, each) } else { Ok(()) };
            self.has_data = false;
            return taken;
        }
        let Some(value) = line
            .strip_prefix(b"data")
            .and_then(|rest| if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b":") })
        else {
            return Ok(());
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if !self.has_data {
            self.data.clear();
            self.has_data = true;
        } else if self.data.len() + value.len() < MAX_LINE {
            self.data.push(b'\n');
        } else {
            return Err(too_long());
        }
        self.data.extend_from_slice(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, chunk: usize) -> Vec<String> {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        let mut each = |line: &[u8]| {
            out.push(String::from_utf8_lossy(line).into_owned());
            Ok(())
        };
        for piece in text.as_bytes().chunks(chunk) {
            lines.feed(piece, &mut each).expect("lines");
        }
        lines.finish(&mut each).expect("last line");
        out
    }

    #[test]
    fn every_line_end_at_every_chunking() {
        for chunk in 1..12 {
            assert_eq!(split("a\nbc\r\n\r\nd\re\n\nlast", chunk), ["a", "bc", "", "d", "e", "", "last"], "{chunk}");
        }
    }

    #[test]
    fn endless_line_is_refused_at_the_bound() {
        let mut lines = Lines::default();
        let block = vec![b'x'; 1 << 20];
        let refused = (0..20).find_map(|_| lines.feed(&block, &mut |_| Ok(())).err()).expect("bounded");
        assert_eq!(refused.kind, ModelErrorKind::BadResponse);
        assert!(lines.held.len() <= MAX_LINE);
    }

    fn check(stream: &str, expect: &[&str]) {
        for chunk in 1..=stream.len() {
            let mut sse = Sse::default();
            let mut got = Vec::new();
            let mut each = |data: &[u8]| {
                got.push(String::from_utf8_lossy(data).into_owned());
                Ok(())
            };
            for piece in stream.as_bytes().chunks(chunk) {
                sse.feed(piece, &mut each).expect("events");
            }
            sse.finish(&mut each).expect("last event");
            assert_eq!(got, expect, "chunks of {chunk}");
        }
    }

    #[test]
    fn events_are_found_at_every_chunking() {
        check("data: a\n\n", &["a"]);
        check("\u{feff}event: x\r\ndata:a\r\ndata: b\r\n\r\n: ping\r\n\r\ndata: c\r\n\r\n", &["a\nb", "c"]);
        check("id: 1\nretry: 5\n\ndatabase: no\n\ndata\n\n", &[""]);
        check("data: [DONE]", &["[DONE]"]);
    }
}
