//! JSON values one after another: an event a line, a list of events, one value over many
//! lines. Events whose last brackets were lost, as some relays send them, are mended.

use serde_json::error::Category;
use toolwright_core::model::ModelError;

use super::framing::{BYTE_ORDER_MARK, DONE, Each, Lines, MAX_ANSWER, too_long};

/// An incremental splitter. The usual line is one whole value and is handed on without being looked at.
#[derive(Debug, Default)]
pub(crate) struct JsonValues {
    lines: Lines,
    value: Partial,
}

/// A value that goes on beyond its line.
#[derive(Debug, Default)]
struct Partial {
    held: Vec<u8>,
    nesting: Nesting,
    depth: usize,
    /// The last byte that is no blank.
    last: u8,
    lines: usize,
}

impl JsonValues {
    pub(super) fn feed(&mut self, bytes: &[u8], each: Each<'_>) -> Result<(), ModelError> {
        let value = &mut self.value;
        self.lines.feed(bytes, &mut |line| value.line(line, each))
    }

    pub(super) fn finish(&mut self, each: Each<'_>) -> Result<(), ModelError> {
        let value = &mut self.value;
        let cut = self.lines.finish(&mut |line| value.line(line, each))?;
        match std::mem::take(value) {
            Partial { held, .. } if held.is_empty() => Ok(()),
            // A line that has its end was sent as a whole.
            Partial { held, lines: 1, .. } if !cut => or_mended(&held, each),
            Partial { held, .. } => each(&held),
        }
    }
}

impl Partial {
    fn line(&mut self, line: &[u8], each: Each<'_>) -> Result<(), ModelError> {
        let mut line = line.trim_ascii();
        // No value begins after another: what is held was one that lost its end.
        if !self.held.is_empty() && line.starts_with(b"{") && !matches!(self.last, b',' | b':' | b'[' | b'{') {
            let lost = std::mem::take(self).held;
            or_mended(&lost, each)?;
        }
        while !line.is_empty() {
            if self.held.is_empty() {
                line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
                // Of the first byte alone, nobody knows whether it begins a list.
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

    /// Where in `line` the value ends.
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

/// Hands `data` to `each`, and once more with its brackets closed if nothing but these was missing.
pub(super) fn or_mended(data: &[u8], each: Each<'_>) -> Result<(), ModelError> {
    match each(data) {
        Err(error) if is_cut(&error) => match closed(data) {
            // What stays broken is what it was: cut.
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

/// `data` with the brackets closed that it leaves open; `None` when it ends within a text.
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

/// What a byte does to the nesting of JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Opens a bracket.
    Open,
    /// Closes one.
    Close,
    /// Neither.
    None,
}

/// Follows JSON byte by byte, as far as its brackets go.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    in_text: bool,
    escaped: bool,
}

impl Nesting {
    /// The next byte.
    pub(super) fn step(&mut self, byte: u8) -> Step {
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

    fn check(text: &str, expect: &[&str]) {
        for chunk in 1..=text.len() {
            let mut values = JsonValues::default();
            let mut got = Vec::new();
            let mut each = |data: &[u8]| {
                let value: serde_json::Value = crate::response::wire::parse(crate::Api::Ollama, data)?;
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
        check("{\"a\":1}\n{\"b\":\"}{\"}\r\n\r\n{\"c\":3}", &[r#"{"a":1}"#, r#"{"b":"}{"}"#, r#"{"c":3}"#]);
        check("{\n  \"a\": [\n    {\"x\": 1}\n  ]\n}\n", &[r#"{"a":[{"x":1}]}"#]);
        check("[{\"a\":1},{\"b\":[2]}]", &[r#"{"a":1}"#, r#"{"b":[2]}"#]);
        check("[{\n\"a\": 1\n}\n,\n{\n\"b\": \"\\\"\"\n}\n]\n", &[r#"{"a":1}"#, r#"{"b":"\""}"#]);
        check("{\"a\":1} {\"b\":2}", &[r#"{"a":1}"#, r#"{"b":2}"#]);
        check("\u{feff}{\"a\":1}\n\u{feff}[{\"b\":2}]", &[r#"{"a":1}"#, r#"{"b":2}"#]);
    }

    #[test]
    fn lost_last_brackets_are_mended() {
        check("{\"a\":{\"b\":[1]}\n{\"c\":2}\n{\"d\":[\n", &[r#"{"a":{"b":[1]}}"#, r#"{"c":2}"#, r#"{"d":[]}"#]);
    }
}
