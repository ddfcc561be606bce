//! The stdio transport: one JSON message a line, on the pipes of a child process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::protocol::batch::{each_of_batch, is_batch};
use async_trait::async_trait;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::task::JoinHandle;
use toolwright_core::json::legible;

use super::frames::{Frame, FrameReader};
use super::outbox::Outbox;
use super::process::Process;
use super::stdout_noise::may_be_message;
use super::{Incoming as _, Outgoing, RequestId, SendError, TOO_LARGE, Told, Transport};
use crate::client::inbox::Inbox;
use crate::client::link::LAST_CALLS;

/// How long the end of a process may lag behind that of its output.
const END_LAG: Duration = Duration::from_secs(1);
/// How long what was sent last may take to go out when the connection is closed.
const CLOSE_LAG: Duration = Duration::from_millis(100);

/// The pipes of a child, and the child. Dropping it ends the process tree.
pub(crate) struct StdioTransport {
    outbox: Arc<Outbox>,
    process: Process,
    reader: JoinHandle<()>,
    /// Until the connection is closed.
    writer: Mutex<Option<JoinHandle<()>>>,
    inbox: Arc<Inbox>,
}

impl StdioTransport {
    /// Takes the pipes over; messages to `inbox` are at most `max` bytes. Must be called inside a runtime.
    pub(crate) fn new(
        (stdin, stdout): (ChildStdin, ChildStdout),
        process: Process,
        max: usize,
        inbox: Arc<Inbox>,
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
                if let Err(reason) = outbox.write(stdin, &inbox).await {
                    last_answers(&inbox).await;
                    inbox.ended(reason);
                }
            }
        });
        Arc::new(Self { outbox, process, reader, writer: Mutex::new(Some(writer)), inbox })
    }

    /// What the process last said on standard error.
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
        self.outbox.hurry(&self.inbox);
        Ok(())
    }

    fn abandon(&self, id: RequestId) -> Told {
        if self.outbox.take_back(id) { Told::Yes } else { Told::No }
    }

    fn is_deaf(&self) -> bool {
        self.outbox.is_closed()
    }

    async fn close(&self) {
        self.outbox.close("the connection is closed", &self.inbox);
        if let Some(mut writer) = self.take_writer()
            && tokio::time::timeout(CLOSE_LAG, &mut writer).await.is_err()
        {
            writer.abort();
        }
        self.reader.abort();
        self.inbox.ended("the connection is closed".to_owned());
        self.process.stop().await;
    }

    async fn epitaph(&self) -> Option<String> {
        let reason = self.inbox.last_word.get().map_or("the connection is closed", String::as_str);
        if self.inbox.stdout_noise.is_flood() {
            // How its process takes that says nothing.
            return Some(reason.to_owned());
        }
        Some(self.process.epitaph(END_LAG, reason).await)
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

/// Waits for the answers of a server that has closed its input to what it was asked before. It can be told of no cancel
/// and asked nothing any more, so that new calls begin another process at once; those that it has go on to their own time
/// limits, for ten minutes at most. It is ended with the last of them, however long it would go on writing.
async fn last_answers(inbox: &Inbox) {
    if inbox.awaits_answers() {
        inbox.expired();
        let _ = tokio::time::timeout(LAST_CALLS, inbox.is_answered()).await;
    }
}

/// Reads the child's output.
struct Reader {
    frames: FrameReader<ChildStdout>,
    max: usize,
    inbox: Arc<Inbox>,
    /// What is sent, which nobody takes any more after the end.
    outbox: Arc<Outbox>,
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
                    let too_long = format!("{TOO_LARGE} ({})", self.max);
                    self.inbox.listener.warn("mcp_message_too_long", &too_long);
                    // Nobody knows whose answer it is: the id may be at its end, a gigabyte away.
                    if may_be_message(&head) {
                        let reason = match self.inbox.only() {
                            Some(_) => too_long,
                            None => format!("{too_long}, in the answer to this or another request"),
                        };
                        self.inbox.fail_all(&reason);
                    }
                }
                Frame::End => return self.end("the server closed its standard output".to_owned()),
            }
            if self.inbox.stdout_noise.is_flood() {
                return self
                    .end(self.inbox.stdout_noise.explain("the server was stopped for what it prints".to_owned()));
            }
        }
    }

    fn end(&self, reason: String) {
        self.outbox.close(&reason, &self.inbox);
        self.inbox.ended(reason);
    }

    /// Takes a line: one message, or a batch of them, which revisions up to 2025-03-26 allow.
    fn line(&self, line: &[u8]) {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        if !is_batch(line) {
            return self.inbox.message(line, None);
        }
        let readable = legible(line);
        let line = readable.as_deref().unwrap_or(line);
        let one = |message: &RawValue| {
            self.inbox.message(message.get().as_bytes(), None);
            Ok(())
        };
        if let Err(error) = each_of_batch(line, one) {
            self.inbox.garbled(line, None, &error.to_string());
        }
    }
}
