//! Server-sent events (WHATWG HTML, section 9.2), as far as model APIs use them: the data of each event.
//! Event names are not looked at; every API repeats the type inside its data.

use toolwright_core::model::ModelError;

use crate::lines::{Lines, MAX_LINE, too_long};

/// An incremental event parser that holds at most two events' worth of bytes.
#[derive(Debug, Default)]
pub(crate) struct Sse {
    lines: Lines,
    event: Event,
}

#[derive(Debug, Default)]
struct Event {
    data: Option<Vec<u8>>,
    past_first_line: bool,
}

impl Sse {
    /// Takes some bytes and hands the data of each event that is now complete to `each`.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(&[u8]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let event = &mut self.event;
        self.lines.feed(bytes, &mut |line| event.line(line, each))
    }

    /// Hands over a last event that no blank line ends: some servers close right after `[DONE]`.
    pub(crate) fn finish(&mut self, each: &mut dyn FnMut(&[u8]) -> Result<(), ModelError>) -> Result<(), ModelError> {
        let event = &mut self.event;
        self.lines.finish(&mut |line| event.line(line, each))?;
        event.line(b"", each)
    }
}

impl Event {
    fn line(&mut self, line: &[u8], each: &mut dyn FnMut(&[u8]) -> Result<(), ModelError>) -> Result<(), ModelError> {
        let line = if self.past_first_line { line } else { line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line) };
        self.past_first_line = true;
        if line.is_empty() {
            return self.data.take().map_or(Ok(()), |data| each(&data));
        }
        let Some(value) = line
            .strip_prefix(b"data")
            .and_then(|rest| if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b":") })
        else {
            return Ok(());
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &mut self.data {
            Some(data) if data.len() + value.len() < MAX_LINE => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            Some(_) => return Err(too_long()),
            None => self.data = Some(value.to_vec()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
