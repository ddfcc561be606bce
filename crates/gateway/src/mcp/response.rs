//! The response to a running request: progress, log messages and questions, and finally its end.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::Instant;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::context::PartialSink;
use toolwright_core::event::Partial;
use toolwright_core::output::head_and_tail;

use super::message::{self, Filter, Id, RpcError, notification};
use super::protocol::{Era, Level};
use super::session::RunningCallEntry;

/// The progress step of a heartbeat: invisible to people, and still an increase in an `f64`.
const LEAST: f64 = 1e-9;
const LEAST_SHARE: f64 = 1e-12;
/// The most bytes of a tool's text in one progress message.
const MAX_TEXT: usize = 4096;

/// An item of a request's response.
pub(crate) enum Event {
    /// A notification, or a question to the client.
    Note(Bytes),
    /// The end: a result or an error; `None` if the client cancelled.
    End(Option<Result<Vec<u8>, RpcError>>),
}

/// The transport's end of a response.
#[derive(Clone)]
pub(crate) enum ReplyTo {
    /// All messages of a connection share one channel.
    Connection(mpsc::Sender<Bytes>),
    /// A separate response, which may be a stream.
    Stream(mpsc::Sender<Event>),
    /// A separate response that takes only the end.
    Whole(mpsc::Sender<Event>),
}

impl ReplyTo {
    /// Sends a notification or question if there is room. Never waits.
    pub(crate) fn try_note(&self, message: Bytes) -> bool {
        match self {
            Self::Connection(to) => to.try_send(message).is_ok(),
            Self::Stream(to) => to.try_send(Event::Note(message)).is_ok(),
            Self::Whole(_) => true,
        }
    }

    /// Waits until the response has no reader any more.
    pub(crate) async fn closed(&self) {
        match self {
            Self::Connection(to) => to.closed().await,
            Self::Stream(to) | Self::Whole(to) => to.closed().await,
        }
    }
}

/// The request that waits for a call.
pub(crate) struct AttachedRequest {
    /// Its entry among the running requests.
    pub(crate) entered: RunningCallEntry,
    pub(crate) reply_to: ReplyTo,
    /// Its progress token.
    pub(crate) progress: Option<Id>,
    /// The requested log level (2026-07-28).
    pub(crate) level: Option<Level>,
}

/// A call's channel to its client. While a modern call waits for answers, no request is attached.
pub(crate) struct ResponseChannel {
    pub(crate) cancel: Cancel,
    era: Era,
    state: Mutex<State>,
}

struct State {
    attached: Option<AttachedRequest>,
    /// The log level of the latest request.
    level: Option<Level>,
}

impl ResponseChannel {
    pub(crate) fn new(era: Era, cancel: Cancel, attached: AttachedRequest) -> Arc<Self> {
        let state = State { level: attached.level, attached: Some(attached) };
        Arc::new(Self { cancel, era, state: Mutex::new(state) })
    }

    /// Sends a message that may be lost if the client does not read. Never waits.
    pub(crate) fn note(&self, message: impl FnOnce(&AttachedRequest) -> Option<Bytes>) {
        // Sends under the lock, so that concurrent notes keep their order.
        let state = self.lock();
        if let Some(attached) = &state.attached
            && let Some(message) = message(attached)
            && !attached.reply_to.try_note(message)
        {
            tracing::debug!("a notification was dropped: the client is not reading");
        }
    }

    /// Asks a question in the response's stream, and returns the stream. `None` if there is no stream or no reader.
    pub(crate) async fn question(&self, message: Bytes) -> Option<ReplyTo> {
        let to = self.lock().attached.as_ref().map(|attached| attached.reply_to.clone())?;
        match &to {
            ReplyTo::Connection(to) => to.send(message).await.ok()?,
            ReplyTo::Stream(to) => to.send(Event::Note(message)).await.ok()?,
            ReplyTo::Whole(_) => return None,
        }
        Some(to)
    }

    /// Returns whether the response is a stream that can carry questions.
    pub(crate) fn takes_questions(&self) -> bool {
        self.lock().attached.as_ref().is_some_and(|attached| !matches!(attached.reply_to, ReplyTo::Whole(_)))
    }

    /// Ends the response if a request is attached. A client that cancelled gets no answer.
    pub(crate) async fn end(&self, result: Result<Vec<u8>, RpcError>) {
        let Some(AttachedRequest { reply_to: to, entered, .. }) = self.lock().attached.take() else { return };
        let id = entered.id().clone();
        // The client may reuse the id from here on.
        drop(entered);
        let is_wanted = self.cancel.cause() != Some(CancelCause::User);
        match to {
            ReplyTo::Connection(to) if is_wanted => {
                to.send(whole(&id, &result)).await.ok();
            }
            ReplyTo::Connection(_) => {}
            ReplyTo::Stream(to) | ReplyTo::Whole(to) => {
                to.send(Event::End(is_wanted.then_some(result))).await.ok();
            }
        }
    }

    /// Returns whether a request is attached.
    pub(crate) fn is_attached(&self) -> bool {
        self.lock().attached.is_some()
    }

    /// Returns whether a request is attached and the call is not cancelled.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_attached() && !self.cancel.is_cancelled()
    }

    /// Attaches the request that now waits for the call.
    pub(crate) fn attach(&self, attached: AttachedRequest) {
        *self.lock() = State { level: attached.level, attached: Some(attached) };
    }

    /// Returns the log level of the latest request.
    pub(crate) fn level(&self) -> Option<Level> {
        self.lock().level
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ResponseChannel {
    fn drop(&mut self) {
        let Some(AttachedRequest { reply_to: to, entered, .. }) = self.lock().attached.take() else { return };
        tracing::error!("a call ended without a result");
        let error = RpcError::new(RpcError::INTERNAL, "the call ended without a result; the server's log says why");
        match to {
            ReplyTo::Connection(to) => drop(to.try_send(message::error(Some(entered.id()), &error))),
            ReplyTo::Stream(to) | ReplyTo::Whole(to) => drop(to.try_send(Event::End(Some(Err(error))))),
        }
    }
}

/// Returns a response as one message.
pub(crate) fn whole(id: &Id, result: &Result<Vec<u8>, RpcError>) -> Bytes {
    match result {
        Ok(result) => message::result(id, result),
        Err(error) => message::error(Some(id), error),
    }
}

/// Held by the transport while a request waits for its response.
pub(crate) struct ResponseGuard {
    channel: Weak<ResponseChannel>,
    id: Id,
}

impl ResponseGuard {
    pub(crate) fn on(channel: &Arc<ResponseChannel>, id: Id) -> Self {
        Self { channel: Arc::downgrade(channel), id }
    }

    /// Returns the request's id.
    pub(crate) fn id(&self) -> &Id {
        &self.id
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        // For a modern client, closing the stream means cancel. An older client may lose its connection by accident
        // (2025-11-25, "Sending Messages to the Server").
        let Some(channel) = self.channel.upgrade().filter(|channel| channel.era == Era::Modern) else { return };
        let is_ours = |attached: &AttachedRequest| match attached.reply_to {
            // A broken pipe ends the whole connection, not one request.
            ReplyTo::Connection(_) => false,
            ReplyTo::Stream(_) | ReplyTo::Whole(_) => *attached.entered.id() == self.id,
        };
        let is_ours = channel.lock().attached.as_ref().is_some_and(is_ours);
        if is_ours {
            channel.cancel.cancel(CancelCause::User);
        }
    }
}

/// Sends a call's progress to its response. Never waits: a client that does not read loses progress, but not the
/// result.
pub(crate) struct Progress {
    channel: Arc<ResponseChannel>,
    last_sent: Mutex<LastProgress>,
}

/// The last progress of a call.
struct LastProgress {
    /// The progress that the tool reported.
    own: f64,
    total: Option<f64>,
    /// The progress that was sent.
    sent: Option<f64>,
    at: Instant,
}

impl LastProgress {
    /// Returns the number to send for this progress. The protocol requires it to grow, so progress below the last
    /// number is sent as slightly more than that.
    fn next(&mut self, progress: f64) -> f64 {
        let next = match self.sent {
            Some(sent) if progress <= sent => sent + LEAST.max(sent.abs() * LEAST_SHARE),
            _ => progress,
        };
        (self.sent, self.at) = (Some(next), Instant::now());
        next
    }
}

impl Progress {
    /// Creates progress under the token of the attached request.
    pub(crate) fn new(channel: Arc<ResponseChannel>) -> Self {
        let last_sent = LastProgress { own: f64::NEG_INFINITY, total: None, sent: None, at: Instant::now() };
        Self { channel, last_sent: Mutex::new(last_sent) }
    }

    /// Runs `work`, and sends a heartbeat after each `every` of silence, because many clients give up silent calls.
    /// Heartbeats end with the work; a call that became a job is answered.
    pub(crate) async fn with_heartbeats<T>(&self, work: impl Future<Output = T>, every: Duration) -> T {
        tokio::select! {
            biased;
            done = work => done,
            never = self.send_heartbeats(every) => match never {},
        }
    }

    async fn send_heartbeats(&self, every: Duration) -> Infallible {
        loop {
            let due = self.last_sent().at + every;
            tokio::time::sleep_until(due).await;
            let mut last_sent = self.last_sent();
            if last_sent.at + every > Instant::now() {
                continue;
            }
            self.send_alive(&mut last_sent, None);
        }
    }

    /// Sends progress if the tool reported no number.
    fn send_alive(&self, last_sent: &mut LastProgress, message: Option<String>) {
        let last = last_sent.sent.unwrap_or(0.0);
        let progress = last_sent.next(last);
        let total = last_sent.total.filter(|total| progress <= *total);
        self.send_numbers(progress, total, message, Map::new());
    }

    fn send_numbers(&self, progress: f64, total: Option<f64>, message: Option<String>, more: Map<String, Value>) {
        self.channel.note(|attached| {
            let progress_token = attached.progress.as_ref()?;
            let params = Params { progress_token, progress, total, message, more };
            Some(notification("notifications/progress", Some(&params)))
        });
    }

    fn last_sent(&self) -> MutexGuard<'_, LastProgress> {
        self.last_sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    progress_token: &'a Id,
    progress: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl PartialSink for Progress {
    fn send(&self, partial: Partial) {
        // Sends under the lock, so that concurrent reports keep their order. Sending does not wait.
        let mut last_sent = self.last_sent();
        match partial {
            Partial::Progress { progress, total, message, more } => {
                if progress < last_sent.own || !progress.is_finite() {
                    return;
                }
                (last_sent.own, last_sent.total) = (progress, total);
                let progress = last_sent.next(progress);
                self.send_numbers(progress, total, message, more);
            }
            // The executor has removed the secrets.
            Partial::Text(text) => {
                let text = text.trim_end_matches(['\r', '\n']);
                if !text.is_empty() {
                    self.send_alive(&mut last_sent, Some(head_and_tail(text, MAX_TEXT)));
                }
            }
        }
    }
}

/// The reply to a request.
pub(crate) enum Reply {
    /// A result, as JSON.
    Result(Vec<u8>),
    /// An error.
    Error(RpcError),
    /// Work that runs and ends its response itself.
    Running(ResponseGuard),
    /// A subscription, with its requested filter.
    Listen(Filter),
}

impl From<Result<Reply, RpcError>> for Reply {
    fn from(result: Result<Reply, RpcError>) -> Self {
        result.unwrap_or_else(Reply::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::session::RunningCalls;

    fn progress(room: usize) -> (Progress, mpsc::Receiver<Bytes>) {
        let (to, from) = mpsc::channel(room);
        let (id, cancel) = (Id::Number(1.into()), Cancel::new());
        let entered = Arc::new(RunningCalls::default()).enter(&id, &cancel).expect("the first");
        let attached = AttachedRequest {
            reply_to: ReplyTo::Connection(to),
            progress: Some(Id::Text("t".into())),
            level: None,
            entered,
        };
        (Progress::new(ResponseChannel::new(Era::Legacy, cancel, attached)), from)
    }

    fn params(from: &mut mpsc::Receiver<Bytes>) -> Vec<Value> {
        let sent = std::iter::from_fn(|| from.try_recv().ok());
        sent.map(|bytes| serde_json::from_slice::<Value>(&bytes).expect("json")["params"].take()).collect()
    }

    #[tokio::test]
    async fn progress_keeps_its_token_and_never_waits() {
        let (sink, mut from) = progress(2);
        let more = |progress: f64| Map::from_iter([("_meta".to_owned(), serde_json::json!({"of": progress}))]);
        let report = |progress: f64| {
            sink.send(Partial::Progress { progress, total: Some(3.0), message: None, more: more(progress) });
        };
        for progress in [1.0, 0.5, 2.0, 3.0] {
            report(progress);
        }
        let sent: Vec<String> = params(&mut from).iter().map(Value::to_string).collect();
        let expect = |progress: &str| {
            format!(r#"{{"progressToken":"t","progress":{progress},"total":3.0,"_meta":{{"of":{progress}}}}}"#)
        };
        assert_eq!(sent, [expect("1.0"), expect("2.0")], "the third found the channel full");
    }

    #[tokio::test]
    async fn text_is_sent_as_bounded_messages() {
        let (sink, mut from) = progress(8);
        let text = |text: &str| sink.send(Partial::Text(text.to_owned()));
        sink.send(Partial::Progress { progress: 1.0, total: Some(2.0), message: None, more: Map::new() });
        text("a.rs\nb.rs\n");
        text("\n");
        text(&"x".repeat(MAX_TEXT * 2));
        let sent = params(&mut from);
        let numbers: Vec<f64> = sent.iter().map(|params| params["progress"].as_f64().expect("a number")).collect();
        assert!(numbers.len() == 3 && numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        assert_eq!((&sent[1]["message"], &sent[1]["total"]), (&"a.rs\nb.rs".into(), &2.0.into()));
        let long = sent[2]["message"].as_str().expect("a message");
        assert!(long.len() < MAX_TEXT + 200 && long.starts_with('x'), "{}", long.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_call_sends_growing_progress() {
        const EVERY: Duration = Duration::from_secs(15);
        let (sink, mut from) = progress(64);
        let report = |progress: f64, message: &str| {
            let message = Some(message.to_owned());
            sink.send(Partial::Progress { progress, total: Some(2.0), message, more: Map::new() });
        };
        let work = async {
            tokio::time::sleep(EVERY * 2 + EVERY / 2).await;
            report(0.0, "begun");
            tokio::time::sleep(EVERY / 2).await;
            report(1.0, "half");
            tokio::time::sleep(EVERY / 2).await;
            // The tool repeats its last report.
            report(1.0, "still half");
            tokio::time::sleep(EVERY + EVERY / 2).await;
            report(1.0, "and still");
            report(2.0, "all");
            tokio::time::sleep(EVERY + EVERY / 2).await;
            "done"
        };
        assert_eq!(sink.with_heartbeats(work, EVERY).await, "done");
        let sent = params(&mut from);
        let messages: Vec<Option<&str>> = sent.iter().map(|params| params["message"].as_str()).collect();
        let expect =
            [None, None, Some("begun"), Some("half"), Some("still half"), None, Some("and still"), Some("all"), None];
        assert_eq!(messages, expect, "{sent:?}");
        let numbers: Vec<f64> = sent.iter().map(|params| params["progress"].as_f64().expect("a number")).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        assert_eq!((numbers[0], numbers[3], numbers[7]), (0.0, 1.0, 2.0), "what a tool reports stands where it can");
        assert_eq!((&sent[5]["total"], sent[8].get("total")), (&serde_json::json!(2.0), None), "{sent:?}");
        tokio::time::sleep(EVERY * 4).await;
        assert_eq!(params(&mut from), Vec::<Value>::new(), "the call has ended");
    }
}
