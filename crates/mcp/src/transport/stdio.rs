//! The stdio transport: one JSON message a line, on the pipes of a child process.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::task::JoinHandle;
use tokio::task::coop::consume_budget;
use toolwright_core::json::replace_lone_surrogates;

use super::child_process::Process;
use super::outbox::Outbox;
use super::{CancelNotice, Outgoing, PipeIncoming, RequestId, SendError, TOO_LARGE, Transport};
use crate::protocol::batch::{each_of_batch, is_batch};

/// How long the end of a process may lag behind the end of its output.
const END_LAG: Duration = Duration::from_secs(1);
/// How long the last messages may take to be written when the connection is closed.
const CLOSE_LAG: Duration = Duration::from_millis(100);

/// The pipes of a child, and the child. Dropping it ends the process tree.
pub(crate) struct StdioTransport {
    outbox: Arc<Outbox>,
    process: Process,
    reader: JoinHandle<()>,
    /// The writing task, until the connection is closed.
    writer: Mutex<Option<JoinHandle<()>>>,
    inbox: Arc<dyn PipeIncoming>,
}

impl StdioTransport {
    /// Takes over the pipes; messages to `inbox` are at most `max` bytes. Must be called inside a runtime.
    pub(crate) fn new(
        (stdin, stdout): (ChildStdin, ChildStdout),
        process: Process,
        max: usize,
        inbox: Arc<dyn PipeIncoming>,
    ) -> Arc<Self> {
        let outbox = Arc::new(Outbox::default());
        let reader = Reader {
            frames: FrameReader::new(stdout, max),
            max,
            inbox: Arc::clone(&inbox),
            outbox: Arc::clone(&outbox),
        };
        let reader = tokio::spawn(reader.run());
        let writer = tokio::spawn({
            let (outbox, inbox) = (Arc::clone(&outbox), Arc::clone(&inbox));
            async move {
                if let Err(reason) = outbox.write(stdin, &*inbox).await {
                    inbox.last_answers().await;
                    inbox.ended(reason);
                }
            }
        });
        Arc::new(Self { outbox, process, reader, writer: Mutex::new(Some(writer)), inbox })
    }

    /// Returns the process's last lines on standard error.
    pub(crate) fn last_lines(&self) -> String {
        self.process.last_lines()
    }

    fn take_writer(&self) -> Option<JoinHandle<()>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[async_trait]
impl Transport for StdioTransport {
    async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError> {
        self.outbox.send(message).await?;
        self.outbox.flush_if_idle(&*self.inbox);
        Ok(())
    }

    fn abandon(&self, id: RequestId) -> CancelNotice {
        if self.outbox.take_back(id) { CancelNotice::Unneeded } else { CancelNotice::Needed }
    }

    fn is_write_closed(&self) -> bool {
        self.outbox.is_closed()
    }

    async fn close(&self) {
        self.outbox.close("the connection is closed", &*self.inbox);
        if let Some(mut writer) = self.take_writer()
            && tokio::time::timeout(CLOSE_LAG, &mut writer).await.is_err()
        {
            writer.abort();
        }
        self.reader.abort();
        self.inbox.ended("the connection is closed".to_owned());
        self.process.stop().await;
    }

    async fn end_reason(&self) -> Option<String> {
        let reason = self.inbox.end_reason().unwrap_or("the connection is closed");
        if self.inbox.stdout_noise().is_flood() {
            // The message for a process that prints nothing.
            return Some(reason.to_owned());
        }
        Some(self.process.end_reason(END_LAG, reason).await)
    }
}

impl Drop for StdioTransport {
    fn drop(&mut self) {
        self.reader.abort();
        if let Some(writer) = self.take_writer() {
            writer.abort();
        }
    }
}

/// Reads the child's output.
struct Reader {
    frames: FrameReader<ChildStdout>,
    max: usize,
    inbox: Arc<dyn PipeIncoming>,
    /// Outgoing messages; closed at the end.
    outbox: Arc<Outbox>,
}

impl Reader {
    async fn run(mut self) {
        loop {
            // A read error is an end too: nothing more can come.
            match self.frames.next().await.unwrap_or(Frame::End) {
                Frame::Line(line) => self.line(&line),
                // A dying server leaves half a message; the reason of its end is more informative.
                Frame::Rest(rest) if serde_json::from_slice::<IgnoredAny>(&rest).is_err() => {}
                Frame::Rest(rest) => self.line(&rest),
                Frame::TooLong(head) => {
                    self.inbox.line_too_long(format!("{TOO_LARGE} ({})", self.max), &head);
                }
                Frame::End => return self.end("the server closed its standard output".to_owned()),
            }
            if self.inbox.stdout_noise().is_flood() {
                return self
                    .end(self.inbox.stdout_noise().explain("the server was stopped because of its output".to_owned()));
            }
        }
    }

    fn end(&self, reason: String) {
        self.outbox.close(&reason, &*self.inbox);
        self.inbox.ended(reason);
    }

    /// Handles a line: one message, or a batch, which revisions up to 2025-03-26 allow.
    fn line(&self, line: &[u8]) {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        if !is_batch(line) {
            return self.inbox.message(line, None);
        }
        let readable = replace_lone_surrogates(line);
        let line = readable.as_deref().unwrap_or(line);
        let one = |message: &RawValue| {
            self.inbox.message(message.get().as_bytes(), None);
            Ok(())
        };
        if let Err(error) = each_of_batch(line, one) {
            self.inbox.unreadable_line(line, &error.to_string());
        }
    }
}

/// Bytes kept of the beginning of an overlong line.
const HEAD: usize = 1024;
const BUFFER: usize = 64 * 1024;

/// A unit of input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A line without its line feed, never blank.
    Line(Vec<u8>),
    /// The data after the last line feed at the end: a whole message, or half of one.
    Rest(Vec<u8>),
    /// A line exceeds the bound. This is its beginning; the rest is skipped.
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

    /// Returns the next frame. Cancel-safe: data already read stays for the next call. While much data is buffered,
    /// other tasks get turns in between: there may be only one worker.
    ///
    /// # Errors
    /// Those of the pipe.
    pub(crate) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            // Tokio itself counts only reads from the pipe, of 64 KiB each: one may hold 30,000 lines.
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
                // Copied, because the original has the capacity of a whole message.
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
mod frames_tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    async fn check(input: &str, expect: &[Frame]) {
        // Reading one byte at a time must give the same frames as reading all at once.
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
    async fn an_overlong_line_fails_early() {
        let (reader, mut writer) = tokio::io::duplex(64);
        writer.write_all(b"{\"id\":1,\"result\":").await.expect("write");
        let mut frames = FrameReader::new(reader, 8);
        assert_eq!(frames.next().await.expect("frame"), Frame::TooLong(b"{\"id\":1,\"result\":".to_vec()));
    }
}
