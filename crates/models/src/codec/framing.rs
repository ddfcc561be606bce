//! Splits a byte stream into events, at any chunk boundaries: lines, server-sent events (WHATWG HTML, section 9.2),
//! JSON values.
//!
//! JSON values may be one event per line, a list of events, or one value over many lines. Events without their last
//! brackets, as some relays send them, are repaired.

use serde_json::error::Category;
use toolwright_core::model::{ModelError, ModelErrorKind};

/// Bound on an answer in bytes on the wire, and so on a decoder's memory.
pub(crate) const MAX_ANSWER: usize = 128 << 20;
/// The mark that ends the streams of some APIs.
pub(crate) const DONE: &[u8] = b"[DONE]";
/// The byte order mark that some writers put before text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Receives the data of one event.
pub(crate) type OnEventData<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), ModelError>;

/// The separation of a response's events.
#[derive(Debug)]
pub(crate) enum Framing {
    /// Unknown before the first byte.
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

    /// Either of the two, by the first byte.
    pub(crate) fn detect() -> Self {
        Self::Unknown
    }

    /// Reads bytes and passes the data of each completed event to `each`.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
        if let Self::Unknown = self {
            // No event begins with a byte of the byte order mark, which may arrive in pieces.
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
    pub(crate) fn finish(&mut self, each: OnEventData<'_>) -> Result<(), ModelError> {
        match self {
            Self::Unknown => Ok(()),
            Self::Events(sse) => sse.finish(each),
            Self::Json(values) => values.finish(each),
        }
    }
}

/// The longest line, and the longest event, in bytes.
const MAX_LINE: usize = 16 << 20;

/// An incremental line splitter that holds at most [`MAX_LINE`] bytes.
#[derive(Debug, Default)]
struct Lines {
    held: Vec<u8>,
    after_cr: bool,
}

impl Lines {
    /// Reads bytes and passes each completed line, without its end, to `each`.
    fn feed(
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

    /// Passes on a last line without an end. Returns whether there was one.
    fn finish(&mut self, each: &mut impl FnMut(&[u8]) -> Result<(), ModelError>) -> Result<bool, ModelError> {
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
fn too_long() -> ModelError {
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
    /// The data so far; the buffer is reused for the next event.
    data: Vec<u8>,
    has_data: bool,
    past_first_line: bool,
}

impl Sse {
    /// Reads bytes and passes the data of each completed event to `each`.
    fn feed(&mut self, bytes: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
        let event = &mut self.event;
        self.lines.feed(bytes, &mut |line| event.line(line, each))
    }

    /// Hands over a last event that no blank line ends: some servers close right after `[DONE]`.
    fn finish(&mut self, each: OnEventData<'_>) -> Result<(), ModelError> {
        let event = &mut self.event;
        let cut = self.lines.finish(&mut |line| event.line(line, each))?;
        let Event { data, has_data: true, .. } = std::mem::take(event) else { return Ok(()) };
        // A terminated line is complete.
        if cut { each(&data) } else { or_mended(&data, each) }
    }
}

impl Event {
    fn line(&mut self, line: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
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

/// An incremental splitter. A line that is one whole value, as most are, is passed on without a scan.
#[derive(Debug, Default)]
pub(crate) struct JsonValues {
    lines: Lines,
    value: Partial,
}

/// A value that continues after its line.
#[derive(Debug, Default)]
struct Partial {
    held: Vec<u8>,
    nesting: Nesting,
    depth: usize,
    /// The last byte that is not a blank.
    last: u8,
    lines: usize,
}

impl JsonValues {
    fn feed(&mut self, bytes: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
        let value = &mut self.value;
        self.lines.feed(bytes, &mut |line| value.line(line, each))
    }

    fn finish(&mut self, each: OnEventData<'_>) -> Result<(), ModelError> {
        let value = &mut self.value;
        let cut = self.lines.finish(&mut |line| value.line(line, each))?;
        match std::mem::take(value) {
            Partial { held, .. } if held.is_empty() => Ok(()),
            // A terminated line is complete.
            Partial { held, lines: 1, .. } if !cut => or_mended(&held, each),
            Partial { held, .. } => each(&held),
        }
    }
}

impl Partial {
    fn line(&mut self, line: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
        let mut line = line.trim_ascii();
        // A value cannot begin here: the held one lost its end.
        if !self.held.is_empty() && line.starts_with(b"{") && !matches!(self.last, b',' | b':' | b'[' | b'{') {
            let lost = std::mem::take(self).held;
            or_mended(&lost, each)?;
        }
        while !line.is_empty() {
            if self.held.is_empty() {
                line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
                // The first byte alone may also begin a list.
                if line.len() > 1 && DONE.starts_with(line) {
                    return each(line);
                }
                // The brackets and commas of a list around the values.
                line = line.trim_ascii_start();
                if let [b'[' | b',' | b']', rest @ ..] = line {
                    line = rest;
                    continue;
                }
                if line.is_empty() {
                    return Ok(());
                }
                match each(line) {
                    Err(error) if is_cut(&error) || self.end(line).is_some_and(|end| end < line.len()) => {}
                    taken => return taken,
                }
                *self = Self::default();
            }
            match self.end(line) {
                Some(end) if self.held.is_empty() => {
                    *self = Self::default();
                    each(&line[..end])?;
                    line = &line[end..];
                }
                Some(end) => {
                    let mut whole = std::mem::take(self).held;
                    whole.extend_from_slice(&line[..end]);
                    each(&whole)?;
                    line = &line[end..];
                }
                None => return self.hold(line),
            }
        }
        Ok(())
    }

    /// Returns the end of the value in `line`.
    fn end(&mut self, line: &[u8]) -> Option<usize> {
        for (at, &byte) in line.iter().enumerate() {
            match self.nesting.step(byte) {
                Step::Open => self.depth += 1,
                Step::Close => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                Step::None => {}
            }
        }
        self.last = line.last().copied().unwrap_or(self.last);
        None
    }

    fn hold(&mut self, line: &[u8]) -> Result<(), ModelError> {
        if self.held.len() + line.len() > MAX_ANSWER {
            return Err(too_long());
        }
        self.held.extend_from_slice(line);
        self.held.push(b'\n');
        self.lines += 1;
        Ok(())
    }
}

/// The deepest nesting that is closed.
const MAX_DEPTH: usize = 128;

/// Passes `data` to `each`, and retries with closed brackets if only those were missing.
fn or_mended(data: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
    match each(data) {
        Err(error) if is_cut(&error) => match closed(data) {
            // It is still not valid: report that it was cut.
            Some(whole) => each(&whole).map_err(|mended| if mended.source.is_some() { error } else { mended }),
            None => Err(error),
        },
        taken => taken,
    }
}

/// Whether an event failed because it ends too early.
pub(crate) fn is_cut(error: &ModelError) -> bool {
    let source = error.source.as_deref().and_then(|source| source.downcast_ref::<serde_json::Error>());
    source.is_some_and(|source| source.classify() == Category::Eof)
}

/// Closes the open brackets of `data`; `None` if it ends within a text.
fn closed(data: &[u8]) -> Option<Vec<u8>> {
    let mut open = Vec::new();
    let mut nesting = Nesting::default();
    for &byte in data {
        match nesting.step(byte) {
            Step::Open => open.push(if byte == b'{' { b'}' } else { b']' }),
            Step::Close => drop(open.pop()),
            Step::None => {}
        }
        if open.len() > MAX_DEPTH {
            return None;
        }
    }
    (!nesting.in_text).then(|| data.iter().copied().chain(open.into_iter().rev()).collect())
}

/// The effect of a byte on the nesting of JSON.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Opens a bracket.
    Open,
    /// Closes one.
    Close,
    /// Neither.
    None,
}

/// Tracks the brackets of JSON byte by byte.
#[derive(Debug, Default)]
struct Nesting {
    in_text: bool,
    escaped: bool,
}

impl Nesting {
    /// The next byte.
    fn step(&mut self, byte: u8) -> Step {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return Step::None;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => return Step::Open,
            b'}' | b']' => return Step::Close,
            _ => {}
        }
        Step::None
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

    fn check_events(stream: &str, expect: &[&str]) {
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
        check_events("data: a\n\n", &["a"]);
        check_events("\u{feff}event: x\r\ndata:a\r\ndata: b\r\n\r\n: ping\r\n\r\ndata: c\r\n\r\n", &["a\nb", "c"]);
        check_events("id: 1\nretry: 5\n\ndatabase: no\n\ndata\n\n", &[""]);
        check_events("data: [DONE]", &["[DONE]"]);
    }

    fn check_values(text: &str, expect: &[&str]) {
        for chunk in 1..=text.len() {
            let mut values = JsonValues::default();
            let mut got = Vec::new();
            let mut each = |data: &[u8]| {
                let value: serde_json::Value = crate::codec::response::parse(crate::Api::Ollama, data)?;
                got.push(value.to_string());
                Ok(())
            };
            for piece in text.as_bytes().chunks(chunk) {
                values.feed(piece, &mut each).expect("values");
            }
            values.finish(&mut each).expect("last value");
            assert_eq!(got, expect, "chunks of {chunk}");
        }
    }

    #[test]
    fn values_are_found_however_they_are_laid_out() {
        check_values("{\"a\":1}\n{\"b\":\"}{\"}\r\n\r\n{\"c\":3}", &[r#"{"a":1}"#, r#"{"b":"}{"}"#, r#"{"c":3}"#]);
        check_values("{\n  \"a\": [\n    {\"x\": 1}\n  ]\n}\n", &[r#"{"a":[{"x":1}]}"#]);
        check_values("[{\"a\":1},{\"b\":[2]}]", &[r#"{"a":1}"#, r#"{"b":[2]}"#]);
        check_values("[{\n\"a\": 1\n}\n,\n{\n\"b\": \"\\\"\"\n}\n]\n", &[r#"{"a":1}"#, r#"{"b":"\""}"#]);
        check_values("{\"a\":1} {\"b\":2}", &[r#"{"a":1}"#, r#"{"b":2}"#]);
        check_values("\u{feff}{\"a\":1}\n\u{feff}[{\"b\":2}]", &[r#"{"a":1}"#, r#"{"b":2}"#]);
    }

    #[test]
    fn lost_last_brackets_are_mended() {
        check_values("{\"a\":{\"b\":[1]}\n{\"c\":2}\n{\"d\":[\n", &[r#"{"a":{"b":[1]}}"#, r#"{"c":2}"#, r#"{"d":[]}"#]);
    }
}
