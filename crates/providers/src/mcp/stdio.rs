//! The stdio transport: one JSON message a line, on the pipes of a child process.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;

use rmcp::model::{ClientJsonRpcMessage, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{Mutex, mpsc, oneshot};
use toolwright_core::event::{Event, EventSink};

use super::frames::{Frame, FrameReader};
use super::inbox::{Admission, Answer, Inbox, Taken, Ticket, answered, sniff_id, ticket_of};

/// Messages that wait for a server to read them.
const OUTBOX: usize = 256;
/// What is shown of a line that is not a message, in characters.
const EXCERPT: usize = 120;

/// A transport over a child's pipes. Clones share the pipes, so that a second handshake can follow a
/// refused first one; the last clone closes the child's input.
#[derive(Clone)]
pub(super) struct StdioTransport {
    incoming: Arc<Mutex<Incoming>>,
    outbox: mpsc::Sender<Outgoing>,
    inbox: Arc<Inbox>,
}

struct Outgoing {
    line: Vec<u8>,
    ticket: Option<Arc<Ticket>>,
    written: oneshot::Sender<io::Result<()>>,
}

impl StdioTransport {
    /// Takes the pipes over; messages are at most `max` bytes.
    pub(super) fn new((stdin, stdout): (ChildStdin, ChildStdout), max: usize, noise: Noise, inbox: Arc<Inbox>) -> Self {
        let (outbox, lines) = mpsc::channel(OUTBOX);
        tokio::spawn(write_lines(stdin, lines));
        let incoming =
            Incoming { frames: FrameReader::new(stdout, max), ready: VecDeque::new(), long_head: None, max, noise };
        Self { incoming: Arc::new(Mutex::new(incoming)), outbox, inbox }
    }

    fn queue(&self, message: &ClientJsonRpcMessage) -> io::Result<oneshot::Receiver<io::Result<()>>> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let (written, receiver) = oneshot::channel();
        let ticket = ticket_of(message).map(|(_, ticket)| ticket);
        self.outbox.try_send(Outgoing { line, ticket, written }).map_err(|error| {
            let (reason, Outgoing { ticket, .. }) = match error {
                mpsc::error::TrySendError::Full(message) => ("the server does not read its input", message),
                mpsc::error::TrySendError::Closed(message) => ("the server's input is closed", message),
            };
            if let Some(ticket) = ticket {
                ticket.settle(Answer::NotSent(reason.to_owned()));
            }
            io::Error::other(reason)
        })?;
        Ok(receiver)
    }
}

/// Writes in the order of sending: a cancellation must not overtake what it cancels.
async fn write_lines(mut stdin: ChildStdin, mut lines: mpsc::Receiver<Outgoing>) {
    while let Some(Outgoing { line, ticket, written }) = lines.recv().await {
        let result = write_line(&mut stdin, &line, ticket.as_deref()).await;
        // Whoever waited for it may have left.
        let _ = written.send(result);
    }
}

async fn write_line(stdin: &mut ChildStdin, line: &[u8], ticket: Option<&Ticket>) -> io::Result<()> {
    if let Some(ticket) = ticket {
        ticket.dispatched();
    }
    match stdin.write(line).await {
        Ok(count) => stdin.write_all(&line[count..]).await?,
        Err(error) => {
            if let Some(ticket) = ticket {
                ticket.settle(Answer::NotSent(format!("the server's input is closed ({error})")));
            }
            return Err(error);
        }
    }
    stdin.flush().await
}

impl Transport<RoleClient> for StdioTransport {
    type Error = io::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let queued = match self.inbox.register(&message) {
            Admission::Drop => None,
            Admission::Send => Some(self.queue(&message)),
        };
        async move {
            match queued {
                None => Ok(()),
                Some(queued) => queued?.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.incoming.lock().await.receive(&self.inbox).await
    }

    async fn close(&mut self) -> io::Result<()> {
        // Dropping it closes the pipe.
        Ok(())
    }
}

struct Incoming {
    frames: FrameReader<ChildStdout>,
    /// Messages that are there already: the rest of a batch, errors of ours for answers that cannot be had.
    ready: VecDeque<ServerJsonRpcMessage>,
    /// The beginning of a line over the bound, while its request is not known.
    long_head: Option<Vec<u8>>,
    max: usize,
    noise: Noise,
}

impl Incoming {
    /// The next message for `rmcp`; `None` at the end. Cancel-safe.
    async fn receive(&mut self, inbox: &Inbox) -> Option<ServerJsonRpcMessage> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            // A read error is the end as well: nothing more can come.
            match self.frames.next().await.unwrap_or(Frame::End) {
                Frame::Line(line) => self.line(&line, inbox),
                // Half a message is what a dying server leaves behind: its end says more.
                Frame::Rest(rest) if serde_json::from_slice::<IgnoredAny>(&rest).is_err() => {}
                Frame::Rest(rest) => self.line(&rest, inbox),
                Frame::TooLong(head) => {
                    self.noise.warn("mcp_message_too_long", &self.too_long());
                    // Where only one request waits, an answer is its answer: its end may be a gigabyte away.
                    let only = || inbox.only().filter(|_| is_answer(&head));
                    match sniff_id(&head, &[]).or_else(only) {
                        Some(id) => self.fail(id, &self.too_long(), inbox),
                        None => self.long_head = Some(head),
                    }
                }
                Frame::LongLineEnd(tail) => {
                    let Some(head) = self.long_head.take() else { continue };
                    match sniff_id(&head, &tail) {
                        Some(id) => self.fail(id, &self.too_long(), inbox),
                        None if is_answer(&head) => inbox.fail_all(&self.too_long()),
                        None => {}
                    }
                }
                Frame::End => return None,
            }
        }
    }

    /// Takes a line: one message, or a batch of them, which revisions up to 2025-03-26 allow.
    fn line(&mut self, line: &[u8], inbox: &Inbox) {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let is_batch = line.trim_ascii_start().starts_with(b"[");
        match is_batch.then(|| serde_json::from_slice::<Vec<&RawValue>>(line)) {
            Some(Ok(batch)) => batch.iter().for_each(|message| self.message(message.get().as_bytes(), inbox)),
            _ => self.message(line, inbox),
        }
    }

    fn message(&mut self, message: &[u8], inbox: &Inbox) {
        let problem = match inbox.take(message) {
            Taken::Answer(id) => return self.ready.push_back(answered(id)),
            Taken::Progress => return,
            Taken::Other => match serde_json::from_slice(message) {
                Ok(typed) => return self.ready.push_back(typed),
                Err(error) => error.to_string(),
            },
            Taken::Garbage => serde_json::from_slice::<IgnoredAny>(message)
                .map_or_else(|error| error.to_string(), |_| "not a JSON-RPC message".to_owned()),
        };
        match sniff_id(message, &[]) {
            // It was meant as an answer; without this its caller would wait for its time-out.
            Some(id) => self.fail(id, &format!("the server's answer is not a valid message: {problem}"), inbox),
            None => self.noise.garbage(message),
        }
    }

    fn fail(&mut self, id: RequestId, reason: &str, inbox: &Inbox) {
        inbox.fail(&id, reason);
        self.ready.push_back(JsonRpcMessage::error(ErrorData::internal_error(reason.to_owned(), None), Some(id)));
    }

    fn too_long(&self) -> String {
        format!("message over max_message_bytes ({})", self.max)
    }
}

fn is_answer(head: &[u8]) -> bool {
    memchr::memmem::find(head, b"\"method\"").is_none() && head.trim_ascii_start().starts_with(b"{")
}

/// Warnings about what a server writes, few however much it writes.
pub(super) struct Noise {
    server: Arc<str>,
    events: Arc<dyn EventSink>,
    lines: u64,
}

impl Noise {
    /// Warnings about `server`.
    pub(super) fn new(server: Arc<str>, events: Arc<dyn EventSink>) -> Self {
        Self { server, events, lines: 0 }
    }

    /// Counts a line that is not a message; warns at the first, the tenth, the hundredth and so on.
    fn garbage(&mut self, line: &[u8]) {
        self.lines += 1;
        tracing::debug!(server = &*self.server, line = %String::from_utf8_lossy(&line[..line.len().min(1000)]), "not a message");
        if self.lines == 10_u64.saturating_pow(self.lines.ilog10()) {
            let excerpt: String =
                String::from_utf8_lossy(&line[..line.len().min(4 * EXCERPT)]).chars().take(EXCERPT).collect();
            self.warn(
                "mcp_garbage",
                &format!(
                    "{} line(s) on its standard output are not messages and were skipped; logs belong on standard error. Last: {excerpt}",
                    self.lines
                ),
            );
        }
    }

    fn warn(&self, code: &str, message: &str) {
        tracing::warn!(server = &*self.server, "{message}");
        self.events
            .emit(Event::Warning { code: code.to_owned(), message: format!("MCP server {}: {message}", self.server) });
    }
}
