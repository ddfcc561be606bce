//! Splits a byte stream into lines, and into server-sent events (WHATWG HTML, section 9.2.6), at any chunk boundaries.
//! Lines and events are bounded.

use std::time::Duration;

use memchr::{memchr, memchr2};

/// Room on a line for a field's name and separators.
const LINE_SLACK: usize = 1024;
/// Longest event id that is kept; some servers put a token into it.
const MAX_ID: usize = 4096;
/// The byte order mark that some writers put before text.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A line or an event has more bytes than this bound. The parser is of no use afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream holds an event of more than {} MiB", .0 >> 20)]
pub struct TooLong(pub usize);

/// An incremental splitter into lines.
#[derive(Debug)]
pub struct Lines {
    max: usize,
    /// An incomplete line.
    held: Vec<u8>,
    after_return: bool,
}

impl Lines {
    /// Holds at most `max` bytes of an incomplete line.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max, held: Vec::new(), after_return: false }
    }

    /// Reads bytes and passes each completed line, without its end, to `each`.
    ///
    /// # Errors
    /// [`TooLong`], and what `each` returns.
    pub fn feed<E: From<TooLong>>(
        &mut self,
        mut bytes: &[u8],
        each: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(first) = bytes.first() {
            if std::mem::take(&mut self.after_return) && *first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr2(b'\r', b'\n', bytes) else { return Ok(self.hold(bytes)?) };
            let line = &bytes[..end];
            self.after_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if self.held.is_empty() {
                each(line)?;
            } else {
                self.hold(line)?;
                let taken = each(&self.held);
                self.held.clear();
                taken?;
            }
        }
        Ok(())
    }

    /// Passes on a last line without an end. Returns whether there was one.
    ///
    /// # Errors
    /// What `each` returns.
    pub fn finish<E>(&mut self, each: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<bool, E> {
        let rest = std::mem::take(&mut self.held);
        if rest.is_empty() {
            return Ok(false);
        }
        each(&rest)?;
        Ok(true)
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.held.len() + bytes.len() > self.max {
            return Err(TooLong(self.max));
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }
}

/// An event with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its type; empty is `message`.
    pub kind: &'a [u8],
    /// Its data, which may be empty.
    pub data: &'a [u8],
    /// Whether the stream ended within one of its lines.
    pub is_cut: bool,
}

/// An incremental parser of events.
#[derive(Debug)]
pub struct Events {
    lines: Lines,
    fields: Fields,
}

/// The fields of the current event; their buffers are reused for the next.
#[derive(Debug)]
struct Fields {
    max: usize,
    data: Vec<u8>,
    has_data: bool,
    kind: Vec<u8>,
    /// Id of the last completed event that had one.
    id: Option<Vec<u8>>,
    /// Id of the current event, if it has one.
    next_id: Option<Option<Vec<u8>>>,
    retry: Option<Duration>,
    past_first_line: bool,
    any: bool,
}

impl Events {
    /// Takes events with at most `max` bytes of data.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let fields = Fields {
            max,
            data: Vec::new(),
            has_data: false,
            kind: Vec::new(),
            id: None,
            next_id: None,
            retry: None,
            past_first_line: false,
            any: false,
        };
        Self { lines: Lines::new(max.saturating_add(LINE_SLACK)), fields }
    }

    /// Id of the last event that had one, for `Last-Event-ID`. The id of an incomplete event does not count: the server
    /// would resume after it.
    #[must_use]
    pub fn last_id(&self) -> Option<&[u8]> {
        self.fields.id.as_deref()
    }

    /// The reconnection delay requested by the server.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.fields.retry
    }

    /// Whether any event has arrived, with data or without.
    #[must_use]
    pub fn any(&self) -> bool {
        self.fields.any
    }

    /// Reads bytes and passes each completed event that has data to `each`.
    ///
    /// # Errors
    /// [`TooLong`], and what `each` returns.
    pub fn feed<E: From<TooLong>>(
        &mut self,
        bytes: &[u8],
        each: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.lines.feed(bytes, &mut |line| self.fields.line(line, each))
    }

    /// Passes on a last event that no blank line ends: some servers close right after its data.
    ///
    /// # Errors
    /// [`TooLong`], and what `each` returns.
    pub fn finish<E: From<TooLong>>(&mut self, each: &mut impl FnMut(Event<'_>) -> Result<(), E>) -> Result<(), E> {
        let is_cut = self.lines.finish(&mut |line| self.fields.line(line, each))?;
        self.fields.end(is_cut, each)
    }
}

impl Fields {
    fn line<E: From<TooLong>>(
        &mut self,
        line: &[u8],
        each: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_first = !std::mem::replace(&mut self.past_first_line, true);
        let line = if is_first { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        if line.is_empty() {
            return self.end(false, each);
        }
        let (field, value) = memchr(b':', line).map_or((line, &[][..]), |at| (&line[..at], &line[at + 1..]));
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.data.len() + usize::from(self.has_data) + value.len() > self.max {
                    return Err(TooLong(self.max).into());
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.kind.clear();
                self.kind.extend_from_slice(&value[..value.len().min(LINE_SLACK)]);
            }
            // An empty id is the wish to forget the last one. What no header can hold is no id.
            b"id" if value.len() <= MAX_ID && !value.iter().any(u8::is_ascii_control) => {
                self.next_id = Some(Some(value.to_vec()).filter(|id| !id.is_empty()));
            }
            b"retry" => {
                let millis = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            // A comment, or an unknown field.
            _ => {}
        }
        Ok(())
    }

    fn end<E>(&mut self, is_cut: bool, each: &mut impl FnMut(Event<'_>) -> Result<(), E>) -> Result<(), E> {
        self.any = true;
        if let Some(id) = self.next_id.take() {
            self.id = id;
        }
        let has_data = std::mem::take(&mut self.has_data);
        let taken = if has_data { each(Event { kind: &self.kind, data: &self.data, is_cut }) } else { Ok(()) };
        self.data.clear();
        self.kind.clear();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[test]
    fn every_line_end_at_every_chunking() {
        for chunk in 1..12 {
            let (mut lines, mut got) = (Lines::new(100), Vec::new());
            let mut each = |line: &[u8]| -> Result<(), TooLong> {
                got.push(text(line));
                Ok(())
            };
            for piece in "a\nbc\r\n\r\nd\re\n\nlast".as_bytes().chunks(chunk) {
                lines.feed(piece, &mut each).expect("lines");
            }
            assert_eq!(lines.finish(&mut each), Ok(true));
            assert_eq!(got, ["a", "bc", "", "d", "e", "", "last"], "{chunk}");
        }
    }

    #[test]
    fn endless_line_is_refused_at_the_bound() {
        let mut lines = Lines::new(100);
        let refused = (0..20).find_map(|_| lines.feed(&[b'x'; 30], &mut |_| Ok(())).err());
        assert_eq!(refused, Some(TooLong(100)));
        assert!(lines.held.len() <= 100);
    }

    /// Checks kinds and data of the events in `stream` and, at its end, the last id and the delay.
    fn check(stream: &str, expect: &[(&str, &str)], id: Option<&str>, retry: Option<u64>) {
        for chunk in 1..=stream.len() {
            let (mut events, mut got) = (Events::new(16), Vec::new());
            let mut each = |event: Event<'_>| -> Result<(), TooLong> {
                got.push((text(event.kind), text(event.data)));
                Ok(())
            };
            for piece in stream.as_bytes().chunks(chunk) {
                assert_eq!(events.feed(piece, &mut each), Ok(()), "{stream:?} in chunks of {chunk}");
            }
            let expect: Vec<_> = expect.iter().map(|(kind, data)| ((*kind).to_owned(), (*data).to_owned())).collect();
            assert_eq!(got, expect, "{stream:?} in chunks of {chunk}");
            assert_eq!(events.last_id().map(text).as_deref(), id, "{stream:?}");
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
        check("data: a\r\rdata\n\n", &[("", "a"), ("", "")], None, None);
        check("id: 1\nretry: 5\n\ndatabase: no\n\ndata: \n\n", &[("", "")], Some("1"), Some(5));
        check("id: 1\ndata: a\n\nid\ndata: b\n\n", &[("", "a"), ("", "b")], None, None);
        check("id: 1\ndata: a\n\nid: 2\ndata: cu", &[("", "a")], Some("1"), None);
        check("id: 1\ndata: a\n\nid: 2\ndata: cut\n", &[("", "a")], Some("1"), None);
        check("id: 1\ndata: a\n\nid: \u{7}\ndata: b\n\n", &[("", "a"), ("", "b")], Some("1"), None);
        check("id: 7\nretry: soon\nevent: endpoint\ndata: /m\n\ndata: cut", &[("endpoint", "/m")], Some("7"), None);
    }

    #[test]
    fn last_event_needs_no_blank_line() {
        for (stream, expect) in [("data: a", Some(("a", true))), ("data: a\n", Some(("a", false))), ("id: 1", None)] {
            let (mut events, mut got) = (Events::new(16), None);
            events.feed::<TooLong>(stream.as_bytes(), &mut |_| Ok(())).expect("read");
            let finished = events.finish::<TooLong>(&mut |event| {
                got = Some((text(event.data), event.is_cut));
                Ok(())
            });
            assert_eq!(finished, Ok(()));
            assert_eq!(got, expect.map(|(data, is_cut)| (data.to_owned(), is_cut)), "{stream:?}");
        }
    }

    #[test]
    fn events_are_bounded_one_by_one() {
        let feed = |text: &str| {
            let mut count = 0;
            let fed = Events::new(10).feed(text.as_bytes(), &mut |_| {
                count += 1;
                Ok(())
            });
            fed.map(|()| count)
        };
        assert_eq!(feed(&"data: 1234567890\n\n".repeat(1000)), Ok(1000));
        assert_eq!(feed("data: 12345678901\n\n"), Err(TooLong(10)));
        assert_eq!(feed("data: 12345\ndata: 12345\n\n"), Err(TooLong(10)));
        assert_eq!(feed(&format!("data: {}", "x".repeat(2000))), Err(TooLong(10 + LINE_SLACK)));
        assert_eq!(feed(&format!(": {}\n\n", "x".repeat(500))), Ok(0));
    }
}
