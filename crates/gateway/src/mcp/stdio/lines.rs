//! Lines of a bounded length.

use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

use crate::mcp::message::Id;

/// How much of an over-long line is looked at, at each end.
const GLIMPSE: usize = 256;

/// A line.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    /// Without its line end.
    Whole(Vec<u8>),
    /// Over the limit and discarded; with the id of the request it was, if that stood at either end,
    /// where all known clients write it.
    TooLong(Option<Id>),
}

/// Reads lines of at most `max` bytes; blank ones are skipped.
pub(crate) struct Lines<R> {
    input: BufReader<R>,
    max: usize,
    line: Vec<u8>,
    /// The end of an over-long line, whose beginning is in `line`.
    tail: Option<Vec<u8>>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(input: R, max: usize) -> Self {
        Self { input: BufReader::with_capacity(64 << 10, input), max, line: Vec::new(), tail: None }
    }

    /// The next line; `None` at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                return Ok(self.take());
            }
            let end = memchr::memchr(b'\n', available);
            let chunk = &available[..end.unwrap_or(available.len())];
            let used = chunk.len() + usize::from(end.is_some());
            if self.tail.is_none() && self.line.len() + chunk.len() <= self.max {
                self.line.extend_from_slice(chunk);
            } else {
                let tail = self.tail.get_or_insert_with(|| last(&self.line).to_vec());
                tail.extend_from_slice(last(chunk));
                tail.drain(..tail.len().saturating_sub(GLIMPSE));
                // A line that is too long from its first bytes on has its beginning here.
                let missing = GLIMPSE.saturating_sub(self.line.len()).min(chunk.len());
                self.line.extend_from_slice(&chunk[..missing]);
                self.line.truncate(GLIMPSE);
            }
            self.input.consume(used);
            if end.is_some()
                && let Some(line) = self.take()
            {
                return Ok(Some(line));
            }
        }
    }

    fn take(&mut self) -> Option<Line> {
        let line = std::mem::take(&mut self.line);
        match self.tail.take() {
            Some(tail) => Some(Line::TooLong(id_at_start(&line).or_else(|| id_at_end(&tail)))),
            None if line.trim_ascii().is_empty() => None,
            None => Some(Line::Whole(line)),
        }
    }
}

fn last(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.len().saturating_sub(GLIMPSE)..]
}

/// The id among the first members of an object that breaks off.
fn id_at_start(head: &[u8]) -> Option<Id> {
    let mut rest = head.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        let key: String = take_value(&mut rest)?;
        rest = rest.trim_ascii_start().strip_prefix(b":")?;
        if key == "id" {
            let id = take_value(&mut rest)?;
            // A number at the very end may be a part of one.
            return rest.trim_ascii_start().starts_with(b",").then_some(id);
        }
        take_value::<IgnoredAny>(&mut rest)?;
        rest = rest.trim_ascii_start().strip_prefix(b",")?;
    }
}

fn take_value<T: DeserializeOwned>(rest: &mut &[u8]) -> Option<T> {
    let mut values = serde_json::Deserializer::from_slice(rest).into_iter();
    let value = values.next()?.ok()?;
    *rest = rest.get(values.byte_offset()..)?;
    Some(value)
}

/// The id as the last member of an object whose beginning is not there.
fn id_at_end(tail: &[u8]) -> Option<Id> {
    let at = memchr::memmem::rfind(tail, br#""id""#)?;
    let rest = tail[at + 4..].trim_ascii_start().strip_prefix(b":")?;
    let id = rest.trim_ascii_end().strip_suffix(b"}")?;
    if !tail[..at].trim_ascii_end().ends_with(b",") {
        return None;
    }
    serde_json::from_slice(id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(input: &[u8], max: usize, expect: &[Line]) {
        let mut lines = Lines::new(input, max);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.expect("read") {
            found.push(line);
        }
        assert_eq!(found, expect);
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.into())
    }

    #[tokio::test]
    async fn lines_are_read_and_bounded() {
        check(b"a\n\r\nb\nc", 8, &[whole("a"), whole("b"), whole("c")]).await;
        let long = |text: &str| text.replace('#', &"x".repeat(200_000));
        let number = Line::TooLong(Some(Id::Number(7.into())));
        check(long("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"#\"}\nb\n").as_bytes(), 1000, &[number, whole("b")])
            .await;
        let text = Line::TooLong(Some(Id::Text("q".into())));
        check(long("{\"method\":\"#\",\"jsonrpc\":\"2.0\",\"id\":\"q\"}\n").as_bytes(), 1000, &[text]).await;
        for (line, id) in [
            ("{\"jsonrpc\": \"2.0\", \"id\": 3, \"method\": \"#\"}\n", Some(3)),
            (" { \"id\" : 4 , \"x\": \"#\"}\n", Some(4)),
            ("{\"jsonrpc\": \"2.0\", \"method\": \"m\", \"params\": {\"id\": 1}, \"id\": 5, \"x\": \"#\"}\n", Some(5)),
            ("{\"x\": \"#\", \"id\": 6 }\r\n", Some(6)),
            ("{\"x\": \"#\", \"params\": {\"a\": 1, \"id\": 7}}\n", None),
            ("{\"x\": \"#\\\", \\\"id\\\": 8}\"}\n", None),
        ] {
            let id = id.map(|n: i64| Id::Number(n.into()));
            check(long(line).as_bytes(), 1000, &[Line::TooLong(id)]).await;
        }
        let cut = format!("{{\"x\":\"{}\",\"id\":1234567,\"y\":\"#\"}}\n", "x".repeat(GLIMPSE - 17));
        check(long(&cut).as_bytes(), 1000, &[Line::TooLong(None)]).await;
        check(long("{\"x\":{\"id\":1},\"y\":\"#\"}\n").as_bytes(), 1000, &[Line::TooLong(None)]).await;
    }
}
