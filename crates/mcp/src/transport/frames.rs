//! Lines of a pipe, each bounded.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::task::coop::consume_budget;

/// What is kept of the beginning of a line that is too long.
const HEAD: usize = 1024;
const BUFFER: usize = 64 * 1024;

/// One thing read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A line without its line feed, never blank.
    Line(Vec<u8>),
    /// What came after the last line feed before the end: a whole message, or half of one.
    Rest(Vec<u8>),
    /// A line has gone over the bound. This is its beginning; the rest of it is skipped.
    TooLong(Vec<u8>),
    /// The pipe is closed.
    End,
}

/// Reads frames.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    source: BufReader<R>,
    line: Vec<u8>,
    /// The line has gone over the bound and has not ended.
    is_skipping: bool,
    max: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads lines of at most `max` bytes.
    pub(crate) fn new(source: R, max: usize) -> Self {
        Self { source: BufReader::with_capacity(BUFFER, source), line: Vec::new(), is_skipping: false, max }
    }

    /// The next frame. Cancel-safe: what has been read stays for the next time. Of much that is there already others
    /// get their turn in between: the worker may be the only one.
    ///
    /// # Errors
    /// Of the pipe.
    pub(crate) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            // Of itself only what is read from the pipe counts against a turn, at 64 KiB a read: 30,000 lines in one.
            consume_budget().await;
            let chunk = self.source.fill_buf().await?;
            let at_end = chunk.is_empty();
            let newline = memchr::memchr(b'\n', chunk);
            let part = &chunk[..newline.unwrap_or(chunk.len())];
            let length = newline.map_or(part.len(), |at| at + 1);
            let line_ends = newline.is_some() || at_end;
            if !self.is_skipping {
                self.line.extend_from_slice(part);
            }
            self.source.consume(length);
            if self.line.len() > self.max {
                // A copy: what it is cut from has the room of a whole message.
                let head = self.line[..HEAD.min(self.line.len())].to_vec();
                self.line = Vec::new();
                self.is_skipping = !line_ends;
                return Ok(Frame::TooLong(head));
            }
            if !line_ends {
                continue;
            }
            self.is_skipping = false;
            let line = std::mem::take(&mut self.line);
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Ok(if at_end { Frame::Rest(line) } else { Frame::Line(line) });
            }
            if at_end {
                return Ok(Frame::End);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    async fn check(input: &str, expect: &[Frame]) {
        // One byte at a time and all at once must give the same frames.
        for capacity in [1, 4096] {
            let (reader, mut writer) = tokio::io::duplex(capacity);
            let bytes = input.as_bytes().to_vec();
            tokio::spawn(async move { writer.write_all(&bytes).await });
            let mut frames = FrameReader::new(reader, 8);
            for expected in expect {
                assert_eq!(frames.next().await.expect("frame"), *expected, "{input:?}");
            }
            assert_eq!(frames.next().await.expect("frame"), Frame::End, "{input:?}");
        }
    }

    #[tokio::test]
    async fn lines_are_bounded_and_half_lines_survive() {
        let line = |text: &str| Frame::Line(text.into());
        let rest = |text: &str| Frame::Rest(text.into());
        check("", &[]).await;
        check("a\n\n \r\nb", &[line("a"), rest("b")]).await;
        check("12345678\nx\n", &[line("12345678"), line("x")]).await;
        let long = format!("{}end", "x".repeat(100));
        for (text, last) in [(format!("{long}\nb\n"), line("b")), (format!("{long}\nb"), rest("b"))] {
            let (reader, mut writer) = tokio::io::duplex(4096);
            writer.write_all(text.as_bytes()).await.expect("write");
            drop(writer);
            let mut frames = FrameReader::new(reader, 8);
            assert!(
                matches!(frames.next().await.expect("frame"), Frame::TooLong(head) if long.starts_with(&*String::from_utf8_lossy(&head)))
            );
            assert_eq!(frames.next().await.expect("frame"), last);
            assert_eq!(frames.next().await.expect("frame"), Frame::End);
        }
    }

    #[tokio::test]
    async fn a_flood_of_lines_leaves_others_their_turn() {
        for line in ["x\n", "\n"] {
            let flood = line.repeat(100_000);
            let mut frames = FrameReader::new(flood.as_bytes(), 8);
            let mut all = std::pin::pin!(async {
                let mut lines = 0;
                while frames.next().await.expect("frame") != Frame::End {
                    lines += 1;
                }
                lines
            });
            assert!(futures_util::poll!(all.as_mut()).is_pending(), "it does not take all of them at once");
            assert_eq!(all.await, if line == "\n" { 0 } else { 100_000 });
        }
    }

    #[tokio::test]
    async fn a_line_without_end_fails_before_its_end() {
        let (reader, mut writer) = tokio::io::duplex(64);
        writer.write_all(b"{\"id\":1,\"result\":").await.expect("write");
        let mut frames = FrameReader::new(reader, 8);
        assert_eq!(frames.next().await.expect("frame"), Frame::TooLong(b"{\"id\":1,\"result\":".to_vec()));
    }
}
