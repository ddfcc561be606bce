//! MCP over a pair of byte streams: one JSON message per line.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::client::Roots;
use toolwright_core::session::Principal;
use toolwright_mcp::asking::ROOTS;
use toolwright_mcp::batch::is_batch;

use super::dispatch::{has_instructions, subscription_acknowledgement};
use super::stdio_streams::{Line, Lines, input, output, write_messages};
use crate::Gateway;
use crate::mcp::STOP_LIMIT;
use crate::mcp::message::{self, Filter, Id, Message, RefusedMessage, Request, RpcError};
use crate::mcp::protocol::{Era, check_modern, era_of};
use crate::mcp::response::{Reply, ReplyTo};
use crate::mcp::session::Caller;
use crate::mcp::sources::notifications::Notifications;
use crate::view::{Scope, View};

/// Messages that wait for the client to read. Beyond this, responses wait and progress is dropped.
const OUTBOX: usize = 256;
/// How long calls may continue after the client has closed its input.
const CLOSED_INPUT_GRACE: Duration = Duration::from_secs(2);
/// How long the last messages may take to go out.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);
/// The most subscriptions of one connection.
const MAX_SUBSCRIPTIONS: usize = 16;
/// Notifications after which the client's roots may differ.
const ROOTS_MAY_CHANGE: [&str; 2] = ["notifications/initialized", "notifications/roots/list_changed"];
/// How long the client has to list its roots.
const ROOTS_LIMIT: Duration = Duration::from_secs(30);

/// Serves the client at standard input and output as the owner, until it closes its end or `shutdown` fires. Running
/// calls may complete within the gateway's grace period, or within two seconds if the client has closed its end to stop
/// the server (MCP, "Lifecycle: Shutdown").
///
/// # Errors
/// A stream failed. A client that closes its end is no error.
pub async fn serve_stdio(gateway: Arc<Gateway>, shutdown: Cancel) -> std::io::Result<()> {
    serve_connection(gateway, input(), output(), shutdown).await
}

/// Like [`serve_stdio`], over any pair of streams.
///
/// # Errors
/// A stream failed. A client that closes its end is no error.
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
        gateway,
    };
    let mut lines = Lines::new(input, connection.gateway.options.max_message);
    let mut client = Client::New;
    // The client is read during the drain, because it may answer a question or close its end.
    let draining = Arc::clone(&connection.gateway);
    let mut drained = pin!(async {
        shutdown.cancelled().await;
        draining.drain().await;
    });
    let ended = loop {
        tokio::select! {
            line = lines.next() => match line {
                Ok(Some(Line::Whole(text))) if is_batch(&text) => connection.batch(&text).await,
                Ok(Some(line)) => {
                    let message = connection.parse(line);
                    // The client waits for this answer before it sends anything else (basic/lifecycle).
                    if connection.awaits_introductions(&message) {
                        tokio::select! {
                            () = connection.gateway.await_capabilities(&connection.caller.view.scope) => {}
                            _ = shutdown.cancelled() => {}
                        }
                    }
                    if let Some(answer) = connection.handle(message, &mut client) {
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
            // The client does not read any more, so all running work is useless.
            written = &mut writer => {
                connection.close(Duration::ZERO).await;
                return ended_by_peer(written.unwrap_or_else(|error| Err(std::io::Error::other(error))));
            }
        }
    };
    connection.close(connection.gateway.options.server.shutdown_grace.min(CLOSED_INPUT_GRACE)).await;
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

/// Treats a disconnected client as the usual end of a connection.
fn ended_by_peer(result: std::io::Result<()>) -> std::io::Result<()> {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    result.or_else(|error| if matches!(error.kind(), BrokenPipe | ConnectionReset) { Ok(()) } else { Err(error) })
}

/// The lifecycle of a legacy client. It gets notifications once it is initialized and answered.
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
    /// One task per subscription, and one per question about roots.
    watchers: TaskTracker,
    /// One task per unanswered batch.
    batches: TaskTracker,
    /// Cancels the watchers.
    closed: Cancel,
}

impl Connection {
    fn parse(&self, line: Line) -> Result<Message, RefusedMessage> {
        match line {
            Line::Whole(text) => message::parse(&text),
            Line::TooLong => {
                let text = format!("the message is over the limit of {} bytes", self.gateway.options.max_message);
                Err(RefusedMessage { id: None, error: RpcError::new(RpcError::INVALID_REQUEST, text) })
            }
        }
    }

    /// Returns whether the answer to this message contains instructions that need the lists of starting sources.
    fn awaits_introductions(&self, message: &Result<Message, RefusedMessage>) -> bool {
        matches!(message, Ok(Message::Request(request)) if has_instructions(&request.method))
            && self.gateway.is_awaiting_lists(&self.caller.view.scope)
    }

    /// Handles a message and returns the answer, if it is ready at once. Not async: the future would be as large as all
    /// its branches together.
    fn handle(&self, message: Result<Message, RefusedMessage>, client: &mut Client) -> Option<Bytes> {
        match message {
            Ok(Message::Request(request)) => {
                if *client == Client::New && request.method == "initialize" {
                    *client = Client::Introduced;
                }
                self.request(request)
            }
            Ok(Message::Notification { method, params, .. }) => {
                self.caller.notified(&method, &params);
                self.refresh_roots_after(&method);
                None
            }
            Ok(Message::Response(response)) => {
                self.caller.client.take_response(response);
                None
            }
            Err(refused) => Some(message::error(refused.id.as_ref(), &refused.error)),
        }
    }

    fn request(&self, request: Request) -> Option<Bytes> {
        let id = request.id.clone();
        let era = era_of(&request, None);
        if era == Era::Modern {
            self.withhold_roots();
            if let Err(error) = check_modern(&request, None) {
                return Some(message::error(Some(&id), &error));
            }
        }
        match self.gateway.reply(&self.caller, era, request, ReplyTo::Connection(self.outbox.clone())) {
            Reply::Result(result) => Some(message::result(&id, &result)),
            Reply::Error(error) => Some(message::error(Some(&id), &error)),
            Reply::Running(_) => None,
            Reply::Listen(asked) => self.listen(&id, asked).err().map(|error| message::error(Some(&id), &error)),
        }
    }

    /// Handles a batch, which is answered when its last request is.
    async fn batch(&self, text: &[u8]) {
        let batch = match self.gateway.batch(&self.caller, text, |_| {}) {
            Ok(batch) => batch,
            Err(error) => return self.send(message::error(None, &error)).await,
        };
        batch.notified.iter().for_each(|method| self.refresh_roots_after(method));
        let outbox = self.outbox.clone();
        self.batches.spawn(async move {
            if let Some(answers) = batch.answers().await {
                // A closed outbox means that the client has disconnected.
                outbox.send(answers).await.ok();
            }
        });
    }

    fn listen(&self, id: &Id, filter: Filter) -> Result<(), RpcError> {
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
            // Asking sources takes a while, and other messages must not wait for it.
            let granted = gateway.grant(&caller, id, filter).await;
            let first = subscription_acknowledgement(&granted);
            let changes = Notifications::of_subscription(&gateway, &caller, granted);
            if outbox.send(first).await.is_ok() {
                forward(changes.stream(), outbox.clone(), cancel).await;
            }
            // A subscription is answered only when the server ends it.
            if closed.is_cancelled() {
                outbox.send(last).await.ok();
            }
        });
        Ok(())
    }

    /// Sends notifications to the client from now on.
    fn watch(&self) {
        let changes = Notifications::of_session(&self.gateway, &self.caller);
        self.watchers.spawn(forward(changes.stream(), self.outbox.clone(), self.closed.clone()));
    }

    /// Asks the client for its roots after a notification that they may have changed, and passes them to sources.
    fn refresh_roots_after(&self, notification: &str) {
        if !ROOTS_MAY_CHANGE.contains(&notification) {
            return;
        }
        let Some(roots) = self.gateway.options.roots.clone() else { return };
        if !self.caller.client.capabilities().contains_key("roots") {
            return roots.set(Roots::none());
        }
        let (client, outbox, closed) = (Arc::clone(&self.caller.client), self.outbox.clone(), self.closed.clone());
        self.watchers.spawn(async move {
            let (question, answer) = client.question();
            if outbox.send(message::request(&question.id, ROOTS, &json!({}))).await.is_err() {
                return;
            }
            let answered = tokio::select! {
                answered = tokio::time::timeout(ROOTS_LIMIT, answer) => answered,
                _ = closed.cancelled() => return,
            };
            let result = answered.ok().and_then(Result::ok).and_then(|response| response.outcome.ok());
            match result.filter(|result| result.get("roots").is_some_and(Value::is_array)) {
                Some(result) => roots.set(result),
                None if roots.is_awaited() => {
                    tracing::warn!(
                        "the client offers roots and did not list them: sources are told that there are none"
                    );
                    roots.set(Roots::none());
                }
                None => tracing::warn!("the client did not list its roots again: sources keep those that it had"),
            }
        });
    }

    /// A modern client is asked for its roots only within its calls.
    fn withhold_roots(&self) {
        if let Some(roots) = self.gateway.options.roots.as_ref().filter(|roots| roots.is_awaited()) {
            roots.withhold();
        }
    }

    /// Sends a message. A closed outbox means that the client has disconnected, which the loop notices itself.
    async fn send(&self, message: Bytes) {
        self.outbox.send(message).await.ok();
    }

    /// Lets calls complete within `grace`, then cancels them, and ends all senders.
    async fn close(&self, grace: Duration) {
        self.closed.cancel(CancelCause::Shutdown);
        self.caller.tasks.close();
        self.watchers.close();
        if tokio::time::timeout(grace, self.caller.tasks.wait()).await.is_err() {
            self.caller.running.cancel_all();
            tokio::time::timeout(STOP_LIMIT, self.caller.tasks.wait()).await.ok();
        }
        self.batches.close();
        let all = async { tokio::join!(self.watchers.wait(), self.batches.wait()) };
        tokio::time::timeout(FLUSH_LIMIT, all).await.ok();
        self.caller.client.close_subscriptions();
    }
}

/// Sends messages until `end` fires or the client disconnects.
async fn forward(messages: impl Stream<Item = Bytes> + Send, outbox: mpsc::Sender<Bytes>, end: Cancel) {
    let mut messages = std::pin::pin!(messages.take_until(Box::pin(end.cancelled())));
    while let Some(message) = messages.next().await {
        if outbox.send(message).await.is_err() {
            return;
        }
    }
}
