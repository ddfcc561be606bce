//! Server-sent events (WHATWG HTML, section 9.2.6), each bounded.

use std::time::Duration;

use http::HeaderValue;
use memchr::memchr2;

/// Room for the name of a field and what else a line has besides its value.
const LINE_SLACK: usize = 1024;
/// Longest id of an event that is kept for resuming; there are servers that put a token into it.
const MAX_ID: usize = 4096;

/// One event with data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// Its type; empty is `message`.
    pub(super) kind: &'a [u8],
    /// Its data, never empty.
    pub(super) data: &'a [u8],
}

impl Event<'_> {
    /// Whether it carries a message of the protocol.
    pub(super) fn is_message(&self) -> bool {
        matches!(self.kind, b"" | b"message")
    }
}

/// An event is over the bound. The parser is of no use afterwards.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// An incremental parser.
#[derive(Debug)]
pub(super) struct Events {
    max: usize,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    data: Vec<u8>,
    kind: Vec<u8>,
    /// Of the last event that had one and was dispatched.
    id: Option<HeaderValue>,
    /// Of the event whose end has not come, if it has one.
    next_id: Option<Option<HeaderValue>>,
    retry: Option<Duration>,
    after_return: bool,
    started: bool,
    /// Whether any event has ended, one without data included.
    any: bool,
}

impl Events {
    /// A parser of events whose data is at most `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            line: Vec::new(),
            data: Vec::new(),
            kind: Vec::new(),
            id: None,
            next_id: None,
            retry: None,
            after_return: false,
            started: false,
            any: false,
        }
    }

    /// Id of the last event that had one, for `Last-Event-ID`. That of an event which was cut before its end does not
    /// count: the server would go on behind it.
    pub(super) fn last_id(&self) -> Option<&HeaderValue> {
        self.id.as_ref()
    }

    /// How long the server wants its clients to wait before they connect again.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Whether any event has come.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Takes some bytes and hands over each event that they complete.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub(super) fn feed(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Event<'_>)) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(at) = memchr2(b'\n', b'\r', bytes) else {
                self.line.extend_from_slice(bytes);
                return if self.line.len() > self.max.saturating_add(LINE_SLACK) { Err(TooLarge) } else { Ok(()) };
            };
            self.after_return = bytes[at] == b'\r';
            if self.line.is_empty() {
                self.take_line(&bytes[..at], each)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..at]);
                self.take_line(&line, each)?;
            }
            bytes = &bytes[at + 1..];
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], each: &mut dyn FnMut(Event<'_>)) -> Result<(), TooLarge> {
        let first = !std::mem::replace(&mut self.started, true);
        let line = if first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        if line.is_empty() {
            self.dispatch(each);
            return Ok(());
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" if self.data.len() + value.len() > self.max => return Err(TooLarge),
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.kind = value[..value.len().min(LINE_SLACK)].to_vec(),
            b"id" => self.take_id(value),
            b"retry" => {
                let millis = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            // A comment, or a field that nobody knows.
            _ => {}
        }
        Ok(())
    }

    /// An empty id is the wish to forget the last one.
    fn take_id(&mut self, value: &[u8]) {
        if value.is_empty() {
            self.next_id = Some(None);
        } else if value.len() <= MAX_ID
            && let Ok(id) = HeaderValue::from_bytes(value)
        {
            self.next_id = Some(Some(id));
        }
    }

    fn dispatch(&mut self, each: &mut dyn FnMut(Event<'_>)) {
        self.any = true;
        if let Some(id) = self.next_id.take() {
            self.id = id;
        }
        if self.data.len() > 1 {
            each(Event { kind: &self.kind, data: &self.data[..self.data.len() - 1] });
        }
        self.data.clear();
        self.kind.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stream: &str, expect: &[(&str, &str)], id: Option<&str>, retry: Option<u64>) {
        for chunk in 1..=stream.len().max(1) {
            let mut events = Events::new(16);
            let mut got = Vec::new();
            for piece in stream.as_bytes().chunks(chunk) {
                let taken = events.feed(piece, &mut |event| {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    got.push((text(event.kind), text(event.data)));
                });
                assert_eq!(taken, Ok(()), "{stream:?} in chunks of {chunk}");
            }
            let expect: Vec<_> = expect.iter().map(|(kind, data)| ((*kind).to_owned(), (*data).to_owned())).collect();
            assert_eq!(got, expect, "{stream:?} in chunks of {chunk}");
            assert_eq!(events.last_id().map(|id| id.to_str().expect("text")), id, "{stream:?}");
            assert_eq!(events.retry(), retry.map(Duration::from_millis), "{stream:?}");
        }
    }

    #[test]
    fn events_are_found_at_every_chunking() {
        check("data: a\n\n", &[("", "a")], None, None);
        check(
            "\u{feff}event: x\r\ndata:a\r\ndata: b\r\n\r\n: ping\r\n\r\ndata: c\r\n\r\n",
            &[("x", "a\nb"), ("", "c")],
            None,
            None,
        );
        check("data: a\r\rdata\n\n", &[("", "a")], None, None);
        check("id: 1\nretry: 5\ndata: \n\n", &[], Some("1"), Some(5));
        check("id: 1\ndata: a\n\nid\ndata: b\n\n", &[("", "a"), ("", "b")], None, None);
        check("id: 1\ndata: a\n\nid: 2\ndata: cu", &[("", "a")], Some("1"), None);
        check("id: 1\ndata: a\n\nid: 2\ndata: cut\n", &[("", "a")], Some("1"), None);
        check("id: 1\ndata: a\n\nid\ndata: cut", &[("", "a")], Some("1"), None);
        check("id: 7\nretry: soon\nevent: endpoint\ndata: /m\n\ndata: cut", &[("endpoint", "/m")], Some("7"), None);
    }

    #[test]
    fn events_are_bounded_one_by_one() {
        let feed = |text: &str| {
            let mut events = Events::new(10);
            let mut count = 0;
            events.feed(text.as_bytes(), &mut |_| count += 1).map(|()| count)
        };
        assert_eq!(feed(&"data: 1234567890\n\n".repeat(1000)), Ok(1000));
        assert_eq!(feed("data: 12345678901\n\n"), Err(TooLarge));
        assert_eq!(feed("data: 12345\ndata: 12345\n\n"), Err(TooLarge));
        assert_eq!(feed(&format!("data: {}", "x".repeat(2000))), Err(TooLarge));
        assert_eq!(feed(&format!(": {}\n\n", "x".repeat(500))), Ok(0));
    }
}
