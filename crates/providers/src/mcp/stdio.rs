//! The stdio transport: one JSON message a line, on the pipes of a child process.
//!
//! Whoever sends a message writes it, under a lock: no task stands between a call and the pipe. What a caller that
//! left has begun to write is written to its end by the next, so that a frame is never cut.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::AbortHandle;

use super::frames::{Frame, FrameReader};
use super::inbox::Inbox;
use super::process::Process;
use super::sniff::{is_answer, sniff_id};
use super::transport::{Incoming as _, Outgoing, RequestId, SendError, TOO_LARGE, Transport};

/// How long the end of a process may lag behind that of its output.
const END_LAG: Duration = Duration::from_secs(1);

/// The pipes of a child, and the child. Dropping it ends the process tree.
pub(super) struct StdioTransport {
    pipe: Arc<Mutex<Pipe>>,
    process: Process,
    reader: AbortHandle,
    inbox: Arc<Inbox>,
}

impl StdioTransport {
    /// Takes the pipes over; messages to `inbox` are at most `max` bytes. Must be called inside a runtime.
    pub(super) fn new(
        (stdin, stdout): (ChildStdin, ChildStdout),
        process: Process,
        max: usize,
        inbox: Arc<Inbox>,
    ) -> Arc<Self> {
        let reader = Reader { frames: FrameReader::new(stdout, max), long_head: None, max, inbox: Arc::clone(&inbox) };
        let reader = tokio::spawn(reader.run()).abort_handle();
        let pipe = Pipe { stdin: Some(stdin), line: Vec::new(), written: 0 };
        Arc::new(Self { pipe: Arc::new(Mutex::new(pipe)), process, reader, inbox })
    }

    /// What the process last said on standard error.
    pub(super) fn last_lines(&self) -> String {
        self.process.last_lines()
    }
}

#[async_trait]
impl Transport for StdioTransport {
    async fn send(&self, message: Outgoing) -> Result<(), SendError> {
        write(&self.pipe, message.json).await
    }

    async fn close(&self) {
        // Whoever holds the lock waits for a server that does not read; the end of the process ends that.
        if let Ok(mut pipe) = self.pipe.try_lock() {
            pipe.stdin = None;
        }
        self.reader.abort();
        self.inbox.ended("the connection is closed".to_owned());
        self.process.stop().await;
    }

    async fn epitaph(&self) -> Option<String> {
        Some(self.process.epitaph(END_LAG).await)
    }
}

impl Drop for StdioTransport {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The child's input, and the message that is being written.
struct Pipe {
    stdin: Option<ChildStdin>,
    line: Vec<u8>,
    written: usize,
}

impl Pipe {
    /// Writes what is left of the message. Cancel-safe.
    async fn drain(&mut self) -> io::Result<()> {
        while self.written < self.line.len() {
            let stdin = self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            match stdin.write(&self.line[self.written..]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => self.written += count,
            }
        }
        self.forget();
        Ok(())
    }

    fn forget(&mut self) {
        self.line = Vec::new();
        self.written = 0;
    }
}

/// Writes a message as a line, when it is its turn.
async fn write(pipe: &Arc<Mutex<Pipe>>, json: Vec<u8>) -> Result<(), SendError> {
    let mut turn = Turn { pipe: Arc::clone(pipe).lock_owned().await };
    let closed = |error: io::Error| SendError::NotSent(format!("the server's input is closed ({error})"));
    turn.pipe.drain().await.map_err(closed)?;
    turn.pipe.line = json;
    turn.pipe.line.push(b'\n');
    let Err(error) = turn.pipe.drain().await else { return Ok(()) };
    let had_begun = turn.pipe.written > 0;
    turn.pipe.stdin = None;
    turn.pipe.forget();
    Err(if had_begun { SendError::Broken(format!("the server's input broke ({error})")) } else { closed(error) })
}

/// A sender's turn at the pipe.
struct Turn {
    pipe: OwnedMutexGuard<Pipe>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.pipe.written == 0 {
            // Nobody waits for what was not begun.
            return self.pipe.forget();
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let pipe = Arc::clone(OwnedMutexGuard::mutex(&self.pipe));
        runtime.spawn(async move {
            let mut pipe = pipe.lock().await;
            if pipe.drain().await.is_err() {
                pipe.forget();
            }
        });
    }
}

/// Reads the child's output.
struct Reader {
    frames: FrameReader<ChildStdout>,
    /// The beginning of a line over the bound, while its request is not known.
    long_head: Option<Vec<u8>>,
    max: usize,
    inbox: Arc<Inbox>,
}

impl Reader {
    async fn run(mut self) {
        loop {
            // A read error is the end as well: nothing more can come.
            match self.frames.next().await.unwrap_or(Frame::End) {
                Frame::Line(line) => self.line(&line),
                // Half a message is what a dying server leaves behind: its end says more.
                Frame::Rest(rest) if serde_json::from_slice::<IgnoredAny>(&rest).is_err() => {}
                Frame::Rest(rest) => self.line(&rest),
                Frame::TooLong(head) => {
                    self.inbox.listener.warn("mcp_message_too_long", &self.too_long());
                    // Where only one request waits, an answer is its answer: its end may be a gigabyte away.
                    let only = || self.inbox.only().filter(|_| is_answer(&head));
                    match sniff_id(&head, &[]).or_else(only) {
                        Some(id) => self.fail(id),
                        None => self.long_head = Some(head),
                    }
                }
                Frame::LongLineEnd(tail) => {
                    let Some(head) = self.long_head.take() else { continue };
                    match sniff_id(&head, &tail) {
                        Some(id) => self.fail(id),
                        None if is_answer(&head) => self.inbox.fail_all(&self.too_long()),
                        None => {}
                    }
                }
                Frame::End => return self.inbox.ended("the server closed its standard output".to_owned()),
            }
        }
    }

    /// Takes a line: one message, or a batch of them, which revisions up to 2025-03-26 allow.
    fn line(&self, line: &[u8]) {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let is_batch = line.trim_ascii_start().starts_with(b"[");
        match is_batch.then(|| serde_json::from_slice::<Vec<&RawValue>>(line)) {
            Some(Ok(batch)) => batch.iter().for_each(|message| self.inbox.message(message.get().as_bytes(), None)),
            _ => self.inbox.message(line, None),
        }
    }

    fn fail(&self, id: RequestId) {
        self.inbox.lost(id, SendError::Broken(self.too_long()));
    }

    fn too_long(&self) -> String {
        format!("{TOO_LARGE} ({})", self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn a_line_that_was_begun_is_written_to_its_end_and_one_that_was_not_is_left_out() {
        let mut late_reader = tokio::process::Command::new("sh");
        late_reader.args(["-c", "sleep 0.4; cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = late_reader.spawn().expect("sh");
        let pipe = Pipe { stdin: child.stdin.take(), line: Vec::new(), written: 0 };
        let pipe = Arc::new(Mutex::new(pipe));
        let short = Duration::from_millis(50);
        // More than a pipe holds: its sender leaves in the middle, the next one before its turn.
        let begun = vec![b'a'; 1 << 20];
        tokio::time::timeout(short, write(&pipe, begun.clone())).await.expect_err("nobody reads");
        tokio::time::timeout(short, write(&pipe, b"b".to_vec())).await.expect_err("not its turn");
        let mut stdout = child.stdout.take().expect("stdout");
        let mut read = Vec::new();
        let (written, ()) = tokio::join!(write(&pipe, b"c".to_vec()), async {
            let mut chunk = vec![0; 1 << 16];
            while !read.ends_with(b"c\n") {
                let count = stdout.read(&mut chunk).await.expect("read");
                assert_ne!(count, 0, "{} bytes", read.len());
                read.extend_from_slice(&chunk[..count]);
            }
        });
        written.expect("written");
        assert_eq!(read.split(|byte| *byte == b'\n').map(<[u8]>::len).collect::<Vec<_>>(), [begun.len(), 1, 0]);
    }
}
