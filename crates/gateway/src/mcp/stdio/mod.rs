//! MCP over a pair of byte streams: one JSON message a line.

mod lines;
mod pipes;
mod roots;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufWriter};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::session::Principal;
use toolwright_mcp::batch::is_batch;

use crate::Gateway;
use crate::gateway::STOP_LIMIT;
use crate::mcp::batch::{self, Answers, Heard};
use crate::mcp::call::Caller;
use crate::mcp::changes::Changes;
use crate::mcp::dispatch::{Reply, acknowledged, introduces};
use crate::mcp::message::{self, Filter, Id, Message, Refused, Request, RpcError};
use crate::mcp::protocol::{Era, check_modern, era_of};
use crate::mcp::response_channel::To;
use crate::mcp::view::{Scope, View};
use lines::{Line, Lines};

/// Messages that wait for the client to read; behind them responses wait and progress is dropped.
const OUTBOX: usize = 256;
/// Messages that are written together at the most, beside those that wait.
const TOGETHER: usize = 32;
/// How long calls may go on at the most once the client has closed its end.
const GONE_GRACE: Duration = Duration::from_secs(2);
/// How long what is written last may take to go out.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);
/// Subscriptions of one connection.
const MAX_SUBSCRIPTIONS: usize = 16;
/// Messages up to this size go out in one write.
const WRITE_BUFFER: usize = 64 << 10;

/// Serves the client at standard input and output, which is the owner, until it closes its end or
/// `shutdown` fires. Running calls may end within the gateway's grace period, or two seconds where the client has
/// closed its end, which is how it ends a server (MCP, "Lifecycle: Shutdown").
///
/// # Errors
/// When a stream fails; the client closing it is none.
pub async fn serve_stdio(gateway: Arc<Gateway>, shutdown: Cancel) -> std::io::Result<()> {
    serve_connection(gateway, pipes::input(), pipes::output(), shutdown).await
}

/// As [`serve_stdio`] over any pair of streams.
///
/// # Errors
/// When a stream fails; the client closing it is none.
pub async fn serve_connection<R, W>(gateway: Arc<Gateway>, input: R, output: W, shutdown: Cancel) -> std::io::Result<()>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (outbox, messages) = mpsc::channel(OUTBOX);
    let session = gateway.session(format!("stdio-{}", uuid::Uuid::new_v4()), Principal::owner());
    let view = View { scope: Scope::Whole, expose: gateway.options.expose };
    let caller = Caller::new(session, view);
    let mut writer = tokio::spawn(write_messages(output, messages, caller.tasks.clone()));
    let connection = Connection {
        caller,
        outbox,
        watchers: TaskTracker::new(),
        batches: TaskTracker::new(),
        closed: Cancel::new(),
        roots_asked: Arc::default(),
        gateway,
    };
    let mut lines = Lines::new(input, connection.gateway.options.max_message);
    let mut client = Client::New;
    // The client is heard meanwhile: it may answer what a call asks it, or go.
    let draining = Arc::clone(&connection.gateway);
    let mut drained = pin!(async {
        shutdown.cancelled().await;
        draining.drain().await;
    });
    let ended = loop {
        tokio::select! {
            line = lines.next() => match line {
                Ok(Some(line)) => {
                    // A client says nothing more before it is answered (basic/lifecycle).
                    if connection.awaits_introductions(&line) {
                        tokio::select! {
                            () = connection.gateway.introduced(&connection.caller.view.scope) => {}
                            _ = shutdown.cancelled() => {}
                        }
                    }
                    if let Some(answer) = connection.handle(line, &mut client) {
                        connection.send(answer).await;
                    }
                    if client == Client::Introduced {
                        connection.watch();
                        client = Client::Watching;
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break ended_by_peer(Err(error)),
            },
            () = &mut drained => break Ok(()),
            // The client reads no more: nothing that runs has a use.
            written = &mut writer => {
                connection.close(Duration::ZERO).await;
                return ended_by_peer(written.unwrap_or_else(|error| Err(std::io::Error::other(error))));
            }
        }
    };
    connection.close(connection.gateway.options.grace.min(GONE_GRACE)).await;
    drop(connection);
    match tokio::time::timeout(FLUSH_LIMIT, &mut writer).await {
        Ok(Ok(written)) => ended.and(ended_by_peer(written)),
        Ok(Err(error)) => Err(std::io::Error::other(error)),
        Err(_) => {
            writer.abort();
            ended
        }
    }
}

/// A client that is gone is the usual end of a connection.
fn ended_by_peer(result: std::io::Result<()>) -> std::io::Result<()> {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    result.or_else(|error| if matches!(error.kind(), BrokenPipe | ConnectionReset) { Ok(()) } else { Err(error) })
}

/// An older client is told of changes once it has introduced itself and was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    New,
    Introduced,
    Watching,
}

struct Connection {
    gateway: Arc<Gateway>,
    caller: Caller,
    outbox: mpsc::Sender<Bytes>,
    /// One for each subscription.
    watchers: TaskTracker,
    /// One for each batch whose answers are not all there.
    batches: TaskTracker,
    /// Ends the watchers.
    closed: Cancel,
    /// How often the client was asked for its folders.
    roots_asked: Arc<AtomicU64>,
}

impl Connection {
    /// Whether this message is answered with instructions, for which a server that has only just been started is waited for.
    fn awaits_introductions(&self, line: &Line) -> bool {
        let Line::Whole(text) = line else { return false };
        self.gateway.awaits_lists(&self.caller.view.scope)
            && matches!(message::parse(text), Ok(Message::Request(request)) if introduces(&request.method))
    }

    /// Takes a message; what is to be answered at once is returned. Not a future: it would be as large as all that it
    /// can come to.
    fn handle(&self, line: Line, client: &mut Client) -> Option<Bytes> {
        let message = match line {
            Line::Whole(text) if is_batch(&text) => return self.batch(&text),
            Line::Whole(text) => message::parse(&text),
            Line::TooLong(id) => {
                let text = format!("the message is over the limit of {} bytes", self.gateway.options.max_message);
                Err(Refused { id, error: RpcError::new(RpcError::INVALID_REQUEST, text) })
            }
        };
        match message {
            Ok(Message::Request(request)) => {
                if *client == Client::New && request.method == "initialize" {
                    *client = Client::Introduced;
                }
                self.request(request)
            }
            Ok(Message::Notification { method, params, .. }) => {
                self.caller.notified(&method, &params);
                self.learn_roots_after(&method);
                None
            }
            Ok(Message::Response(response)) => {
                self.caller.peer.settle(response);
                None
            }
            Err(refused) => Some(message::error(refused.id.as_ref(), &refused.error)),
        }
    }

    fn request(&self, request: Request) -> Option<Bytes> {
        let id = request.id.clone();
        let era = era_of(&request, None);
        if era == Era::Modern {
            self.has_no_roots();
        }
        let checked = if era == Era::Modern { check_modern(&request, None) } else { Ok(()) };
        let reply = match checked {
            Ok(()) => self.gateway.reply(&self.caller, era, request, To::Pipe(self.outbox.clone())),
            Err(error) => Reply::Error(error),
        };
        match reply {
            Reply::Result(result) => Some(message::result(&id, &result)),
            Reply::Error(error) => Some(message::error(Some(&id), &error)),
            // A pipe that breaks ends everything that runs, not one request.
            Reply::Running(waiting) => {
                waiting.leave();
                None
            }
            Reply::Listen(asked) => self.listen(&id, asked).err().map(|error| message::error(Some(&id), &error)),
        }
    }

    /// Takes several messages at once. They are answered together, as JSON-RPC 2.0 has it ("Batch"), when the last has
    /// its answer; what they say and ask before goes out as it comes.
    fn batch(&self, text: &[u8]) -> Option<Bytes> {
        if !self.caller.peer.sends_batches() {
            return Some(message::error(None, &batch::not_spoken()));
        }
        let messages = match toolwright_mcp::batch::batch(text) {
            Ok(messages) => messages,
            Err(refused) => return Some(message::error(None, &refused.error)),
        };
        let answers = batch::take(&self.gateway, &self.caller, &messages, To::Stream, |_| Ok(()));
        answers.notified.iter().for_each(|method| self.learn_roots_after(method));
        if answers.running.is_empty() {
            return answers.together();
        }
        self.batches.spawn(answer_together(answers, self.outbox.clone()));
        None
    }

    fn listen(&self, id: &Id, asked: Filter) -> Result<(), RpcError> {
        if self.watchers.len() >= MAX_SUBSCRIPTIONS {
            return Err(RpcError::new(
                RpcError::BUSY,
                format!("a connection has at most {MAX_SUBSCRIPTIONS} subscriptions"),
            ));
        }
        let cancel = self.closed.child();
        let entered = self.caller.running.enter(id, &cancel)?;
        let (gateway, caller) = (Arc::clone(&self.gateway), self.caller.clone());
        let last = message::result(id, &self.gateway.listen_result(id));
        let (id, outbox, closed) = (id.clone(), self.outbox.clone(), self.closed.clone());
        self.watchers.spawn(async move {
            let _entered = entered;
            // Sources are asked, which takes a while; other messages must not wait for it.
            let granted = gateway.grant(&caller, id, asked).await;
            let first = acknowledged(&granted);
            let changes = Changes::of_subscription(&gateway, &caller, granted);
            if outbox.send(first).await.is_ok() {
                forward(changes.notifications(), outbox.clone(), cancel).await;
            }
            // Only the server's own end of a subscription is answered.
            if closed.is_cancelled() {
                outbox.send(last).await.ok();
            }
        });
        Ok(())
    }

    /// Tells the client of changes from now on.
    fn watch(&self) {
        let changes = Changes::of_session(&self.gateway, &self.caller);
        self.watchers.spawn(forward(changes.notifications(), self.outbox.clone(), self.closed.clone()));
    }

    /// A closed outbox means that the client is gone, which the loop notices by itself.
    async fn send(&self, message: Bytes) {
        self.outbox.send(message).await.ok();
    }

    /// Lets calls end within `grace`, then cancels them, and ends everything that sends.
    async fn close(&self, grace: Duration) {
        self.closed.cancel(CancelCause::Shutdown);
        self.caller.tasks.close();
        self.watchers.close();
        if tokio::time::timeout(grace, self.caller.tasks.wait()).await.is_err() {
            self.caller.running.cancel_all();
            tokio::time::timeout(STOP_LIMIT, self.caller.tasks.wait()).await.ok();
        }
        self.batches.close();
        let told = async { tokio::join!(self.watchers.wait(), self.batches.wait()) };
        tokio::time::timeout(FLUSH_LIMIT, told).await.ok();
        self.caller.peer.leave();
    }
}

/// Waits for all answers to a batch, and sends them as one message.
async fn answer_together(mut answers: Answers, outbox: mpsc::Sender<Bytes>) {
    while let Some(heard) = answers.running.next().await {
        match heard {
            Heard::Answer(answer) => answers.done.push(answer),
            Heard::Note(note) => {
                if outbox.send(note).await.is_err() {
                    return;
                }
            }
        }
    }
    if let Some(all) = answers.together() {
        // A closed outbox means that the client is gone.
        outbox.send(all).await.ok();
    }
}

/// Sends what comes until `end` fires or the client is gone.
async fn forward(messages: impl Stream<Item = Bytes> + Send, outbox: mpsc::Sender<Bytes>, end: Cancel) {
    let mut messages = std::pin::pin!(messages.take_until(Box::pin(end.cancelled())));
    while let Some(message) = messages.next().await {
        if outbox.send(message).await.is_err() {
            return;
        }
    }
}

/// Writes messages as lines; those that wait together go out together, and with them the answers of the calls that are
/// ready to end: a client that is woken for each of several takes a core from who has more to do.
async fn write_messages<W: AsyncWrite + Unpin>(
    output: W,
    mut messages: mpsc::Receiver<Bytes>,
    calls: TaskTracker,
) -> std::io::Result<()> {
    let mut output = BufWriter::with_capacity(WRITE_BUFFER, output);
    let mut batch = Vec::with_capacity(TOGETHER);
    while messages.recv_many(&mut batch, TOGETHER).await > 0 {
        if !calls.is_empty() {
            tokio::task::yield_now().await;
            while batch.len() < TOGETHER
                && let Ok(message) = messages.try_recv()
            {
                batch.push(message);
            }
        }
        for message in batch.drain(..) {
            output.write_all(&message).await?;
            output.write_all(b"\n").await?;
        }
        output.flush().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll};

    use super::*;

    /// Notes each write.
    #[derive(Clone, Default)]
    struct Writes(Arc<Mutex<Vec<String>>>);

    impl AsyncWrite for Writes {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
            self.0.lock().expect("writes").push(String::from_utf8_lossy(bytes).into_owned());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn answers_of_calls_that_are_ready_to_end_go_out_with_the_first_while_others_run() {
        for (others_run, expect) in [(false, vec!["1\n", "2\n3\n"]), (true, vec!["1\n2\n3\n"])] {
            let (calls, writes) = (TaskTracker::new(), Writes::default());
            let other = others_run.then(|| calls.token());
            let (outbox, messages) = mpsc::channel(OUTBOX);
            let writer = tokio::spawn(write_messages(writes.clone(), messages, calls));
            tokio::task::yield_now().await;
            // The writer is woken before those run that send the others.
            outbox.send("1".into()).await.expect("taken");
            for message in ["2", "3"] {
                let outbox = outbox.clone();
                tokio::spawn(async move { outbox.send(message.into()).await });
            }
            drop(outbox);
            writer.await.expect("joined").expect("written");
            assert_eq!(*writes.0.lock().expect("writes"), expect);
            drop(other);
        }
    }
}
