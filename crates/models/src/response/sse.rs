//! Server-sent events (WHATWG HTML, section 9.2), as far as model APIs use them: the data of each event.
//! Event names are not looked at; every API repeats the type inside its data.

use toolwright_core::model::ModelError;

use super::lines::{Lines, MAX_LINE, too_long};
use super::mend::or_mended;
use super::{BYTE_ORDER_MARK, Each};

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
