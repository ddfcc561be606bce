//! Sorts the messages that arrive over one connection: answers go to their requests, progress to the calls, the
//! server's questions to the clients of its calls, and all else to the [`Listener`].

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::protocol::message::{RpcError, read as read_part};
use async_trait::async_trait;
use hashbrown::HashMap;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolwright_core::client::CallClient;
use toolwright_core::context::{PartialSink, ToolContext};
use toolwright_core::json::read;
use toolwright_core::session::Session;

use self::listener::{Folders, Listener};
use self::pages::Pages;
use self::questions::Questions;
use crate::transport::process::{StdoutNoise, id_of_head, may_be_message, seems_message};
use crate::transport::traced::Direction;
use crate::transport::{Incoming, PipeIncoming, RequestId, SendError, Transport, UNREADABLE, own_id};

mod attribution;
pub(crate) mod listener;
mod notifications;
pub(crate) mod pages;
pub(crate) mod questions;

pub(crate) use self::attribution::Attribution;
use self::attribution::RecentCalls;

/// What the calls on a connection have still that takes no new ones.
pub(crate) const LAST_CALLS: Duration = Duration::from_secs(600);
/// Bound on requests in flight to one server; the queues of the executor are far below it.
pub(crate) const MAX_IN_FLIGHT: usize = 1024;

/// What is wrong with JSON that is neither a request nor an answer.
const NO_MESSAGE: &str = "not a JSON-RPC message";

/// How often it is looked whether a server still says nothing.
const LOOK: Duration = Duration::from_secs(1);

/// Requests that only clients make: what sends one of them to us is an echo.
const HANDSHAKES: [&str; 2] = ["initialize", "server/discover"];

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The result, as it came; whoever asked reads it.
    Result(Box<RawValue>),
    /// The server refuses.
    Error(RpcError),
    /// It will not come.
    Lost(SendError),
    /// The connection has ended.
    Ended,
}

/// On whose behalf a request goes out: a call, as far as the server may speak to it.
#[derive(Clone)]
pub(crate) struct Caller {
    /// Takes progress.
    pub(crate) partials: Arc<dyn PartialSink>,
    /// Answers questions and takes log messages.
    pub(crate) client: Arc<dyn CallClient>,
    /// Its session.
    pub(crate) session: Arc<Session>,
}

impl From<&ToolContext> for Caller {
    fn from(context: &ToolContext) -> Self {
        Self {
            partials: Arc::clone(&context.partials),
            client: Arc::clone(&context.client),
            session: Arc::clone(&context.session),
        }
    }
}

impl Caller {
    /// Whether whoever made this call made the other one too.
    fn is_one_with(&self, other: &Self) -> bool {
        self.session.id == other.session.id && self.client.identity() == other.client.identity()
    }
}

/// What a request is for.
pub(crate) enum Purpose {
    /// For ourselves.
    Internal,
    /// For a call.
    Call(Caller),
    /// A subscription; this takes what the server accepted of it.
    Subscription(watch::Sender<Option<Value>>),
}

/// A request that waits, or that has been answered and is about to be forgotten.
struct Waiting {
    answer: Option<oneshot::Sender<Answer>>,
    purpose: Purpose,
}

impl Waiting {
    /// Who takes the answer, if that is still awaited; it is no more then, as `open` counts.
    fn take_answer(&mut self, open: &mut usize) -> Option<oneshot::Sender<Answer>> {
        let answer = self.answer.take()?;
        *open -= usize::from(!matches!(self.purpose, Purpose::Subscription(_)));
        Some(answer)
    }
}

/// What arrives over one connection.
pub(crate) struct Inbox {
    /// Takes what is of no call.
    pub(crate) listener: Arc<Listener>,
    /// The revision that is spoken, once the handshake is done.
    pub(crate) version: OnceLock<&'static str>,
    /// Cancelled at the end.
    pub(crate) over: CancellationToken,
    /// Why it has ended.
    pub(crate) last_word: OnceLock<String>,
    /// What its users have to do elsewhere. Another connection may give other things the same names.
    pub(crate) pages: Pages,
    /// What is no message.
    pub(crate) stdout_noise: StdoutNoise,
    /// Told when something that the server said unasked may have been missed.
    pub(crate) has_missed: Notify,
    /// Changes with every message; no more than that is asked of it.
    heard: AtomicU64,
    state: Mutex<State>,
    questions: Arc<Questions>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<RequestId, Waiting>,
    /// How many of them wait for an answer, subscriptions aside.
    open: usize,
    has_ended: bool,
    has_expired: bool,
    /// Whether a request was answered after the handshake.
    is_at_work: bool,
    recent_calls: RecentCalls,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

/// `null` is a value too.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl Inbox {
    /// An inbox of a connection that is about to be opened.
    pub(crate) fn new(listener: Arc<Listener>) -> Arc<Self> {
        Arc::new(Self {
            listener,
            version: OnceLock::new(),
            over: CancellationToken::new(),
            last_word: OnceLock::new(),
            pages: Pages::default(),
            stdout_noise: StdoutNoise::default(),
            has_missed: Notify::new(),
            heard: AtomicU64::new(0),
            state: Mutex::default(),
            questions: Arc::default(),
        })
    }

    /// Takes the transport that carries our answers to the server's questions, once.
    pub(crate) fn attach(&self, transport: Weak<dyn Transport>) {
        self.questions.attach(transport);
    }

    /// Takes the folders that the server is told of when it asks outside of calls, once.
    pub(crate) fn answer_roots(&self, folders: Arc<Folders>) {
        self.questions.answer_roots(folders);
    }

    /// Waits until the server has asked for its folders outside of calls and was answered.
    pub(crate) async fn has_folders(&self) {
        self.questions.has_folders().await;
    }

    /// Whether it has asked so, answered or not.
    pub(crate) fn has_asked_for_folders(&self) -> bool {
        self.questions.has_asked_for_folders()
    }

    /// Has the answer of this request kept. Must come before it is sent.
    ///
    /// # Errors
    /// Nothing may be sent: too much is in flight, or the connection has ended.
    pub(crate) fn register(&self, id: RequestId, purpose: Purpose) -> Result<oneshot::Receiver<Answer>, NoRoom> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        if state.has_ended {
            return Err(NoRoom::Ended);
        }
        if state.waiting.len() >= MAX_IN_FLIGHT {
            return Err(NoRoom::Full);
        }
        state.open += usize::from(!matches!(purpose, Purpose::Subscription(_)));
        state.waiting.insert(id, Waiting { answer: Some(sender), purpose });
        Ok(receiver)
    }

    /// Has progress and questions of this request, which has been answered, go to `caller` still.
    pub(crate) fn hold(&self, id: RequestId, caller: Caller) {
        self.lock().waiting.insert(id, Waiting { answer: None, purpose: Purpose::Call(caller) });
    }

    /// Forgets a request that has come to its end, and what the server asked during it.
    pub(crate) fn forget(&self, id: RequestId) {
        self.leave(id, false);
    }

    /// The same of one whose answer is not wanted any more; a late answer is ignored.
    pub(crate) fn give_up(&self, id: RequestId) {
        self.leave(id, true);
    }

    /// The server never heard of a request that was given up, or asks nothing for it any more.
    pub(crate) fn asks_no_more_for(&self, id: RequestId) {
        self.lock().recent_calls.forget(id);
    }

    fn leave(&self, id: RequestId, is_abandoned: bool) {
        let waiting = {
            let mut state = self.lock();
            let State { waiting, open, recent_calls, .. } = &mut *state;
            let mut waiting = waiting.remove(&id);
            let is_open = waiting.as_mut().and_then(|waiting| waiting.take_answer(open)).is_some();
            // Under the same lock: at no time is it neither in flight nor past.
            if let Some(Waiting { purpose: Purpose::Call(caller), .. }) = &waiting {
                // The answer may have come just before.
                if is_open && is_abandoned {
                    recent_calls.give_up(id, caller, Instant::now());
                } else {
                    recent_calls.end(&caller.session, Instant::now());
                }
            }
            waiting
        };
        if matches!(waiting, Some(Waiting { purpose: Purpose::Call(_), .. })) {
            self.questions.call_ended(id, |caller, busy| self.call_of(caller, busy));
        }
    }

    /// Whether a new session must be made.
    pub(crate) fn has_expired(&self) -> bool {
        self.lock().has_expired
    }

    /// The server has forgotten the session.
    pub(crate) fn expire(&self) {
        self.lock().has_expired = true;
    }

    /// The one request that waits; `None` where there are more, or none.
    fn only(&self) -> Option<RequestId> {
        let state = self.lock();
        let mut waiting = state.waiting.iter().filter(|(_, waiting)| waiting.answer.is_some()).map(|(id, _)| *id);
        waiting.next().filter(|_| waiting.next().is_none())
    }

    /// The calls that wait for their answers.
    fn calls(&self) -> Vec<RequestId> {
        let state = self.lock();
        let is_call = |one: &Waiting| one.answer.is_some() && matches!(one.purpose, Purpose::Call(_));
        state.waiting.iter().filter(|(_, one)| is_call(one)).map(|(id, _)| *id).collect()
    }

    /// Waits until nothing at all has come for so long while none of the calls was in flight that were when this began:
    /// the silence may be their work, and their own time limits have the server probed. `false` as soon as it is known
    /// that something has come.
    pub(crate) async fn falls_silent(&self, idle: Duration) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        let newest = self.calls().into_iter().max();
        let (mut idle_since, mut looked) = (Instant::now(), tokio::time::interval_at(Instant::now() + LOOK, LOOK));
        loop {
            looked.tick().await;
            if self.heard.load(Ordering::Relaxed) != heard {
                return false;
            }
            if self.calls().into_iter().any(|id| Some(id) <= newest) {
                idle_since = Instant::now();
            } else if idle_since.elapsed() >= idle {
                return true;
            }
        }
    }

    /// Whether a request waits for its answer; a subscription has none but its end.
    fn awaits_answers(&self) -> bool {
        let awaits = |one: &Waiting| one.answer.is_some() && !matches!(one.purpose, Purpose::Subscription(_));
        self.lock().waiting.values().any(awaits)
    }

    /// Fails every request that waits; how many did.
    fn fail_all(&self, reason: &str) -> usize {
        let senders = self.senders();
        let count = senders.len();
        for sender in senders {
            // Whoever waited may have left.
            let _ = sender.send(Answer::Lost(SendError::Broken(reason.to_owned())));
        }
        count
    }

    fn senders(&self) -> Vec<oneshot::Sender<Answer>> {
        let mut state = self.lock();
        state.open = 0;
        state.waiting.values_mut().filter_map(|waiting| waiting.answer.take()).collect()
    }

    fn settle(&self, id: RequestId, answer: Answer) {
        let sender = {
            let mut state = self.lock();
            state.is_at_work |= self.version.get().is_some();
            let State { waiting, open, recent_calls, .. } = &mut *state;
            recent_calls.answered(id, Instant::now());
            waiting.get_mut(&id).and_then(|waiting| waiting.take_answer(open))
        };
        if let Some(sender) = sender {
            // Whoever waited may have left.
            let _ = sender.send(answer);
        }
    }

    /// Whether this request has no answer yet, wanted or not.
    fn is_unanswered(&self, id: RequestId) -> bool {
        let state = self.lock();
        state.waiting.get(&id).is_some_and(|waiting| waiting.answer.is_some()) || state.recent_calls.has(id)
    }

    /// Takes what is no message, or cannot be read: in the answer's stream of `during`, where that is known.
    fn garbled(&self, json: &[u8], during: Option<RequestId>, problem: &str) {
        if !self.fail_for(json, during, problem) {
            self.stdout_noise.add(json);
            self.listener.garbage(json);
        }
    }

    /// Fails what is in flight for something unreadable that was meant as a message: it may have been the answer, for
    /// which its request would wait until its time-out. Whether anything was.
    fn fail_for(&self, json: &[u8], during: Option<RequestId>, problem: &str) -> bool {
        if !seems_message(json) {
            return false;
        }
        let is_json = serde_json::from_slice::<IgnoredAny>(json).is_ok();
        let what = if is_json { UNREADABLE } else { "the server's answer is not a valid message" };
        if let Some(id) = during.or_else(|| self.only()) {
            self.settle(id, Answer::Lost(SendError::Broken(format!("{what}: {problem}"))));
            return true;
        }
        self.fail_all(&format!("{what}, or that to another request in flight: {problem}")) > 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a request cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// [`MAX_IN_FLIGHT`] are in flight.
    Full,
    /// The connection has ended.
    Ended,
}

impl Incoming for Inbox {
    fn message(&self, json: &[u8], during: Option<RequestId>) {
        // Not added atomically: of two at once one may be lost, and it has changed all the same.
        self.heard.store(self.heard.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if let Some(frames) = &self.listener.frames {
            frames.frame(&self.listener.server, Direction::Received, json);
        }
        let room = OnceCell::new();
        let envelope = match read::<Envelope<'_>>(json, &room) {
            Ok(envelope) => envelope,
            Err(error) => return self.garbled(json, during, &error.to_string()),
        };
        if envelope.method.is_some() || envelope.result.is_some() || envelope.error.is_some() {
            self.stdout_noise.interrupted();
        }
        match envelope {
            Envelope { method: Some(method), id: None, params, .. } if method == "notifications/progress" => {
                self.progress(params);
            }
            Envelope { method: Some(method), id: None, params, .. } => self.notified(&method, params, during),
            Envelope { method: Some(method), id: Some(_), .. } if HANDSHAKES.contains(&&*method) => {
                self.fail_all("it sends back what it is sent; is it an MCP server?");
            }
            Envelope { method: Some(method), id: Some(id), params, .. } => {
                let version = self.version.get().copied();
                let is_at_work = self.lock().is_at_work;
                self.questions.asked((id, &method, params), version, is_at_work, |busy| self.asked_of(during, busy));
            }
            // Before the result: there are serializers that write `"result":null` beside it.
            Envelope { error: Some(error), result, id, .. } if result.is_none_or(|result| result.get() == "null") => {
                let own = id.and_then(|id| own_id(id.get())).filter(|id| self.is_unanswered(*id));
                // A server that could not read a request cannot give its id.
                let Some(id) = own.or(during).or_else(|| id.is_none().then(|| self.only()).flatten()) else { return };
                let error = read_part(error).unwrap_or_else(|problem| {
                    RpcError::new(RpcError::INTERNAL, format!("a broken error object ({problem}): {error}"))
                });
                self.pages.refused(id, &error);
                self.settle(id, Answer::Error(error));
            }
            Envelope { result: Some(result), id: Some(id), .. } => {
                if let Some(id) = own_id(id.get()) {
                    self.settle(id, Answer::Result(result.to_owned()));
                }
            }
            Envelope { id, .. } => self.garbled(json, id.and_then(|id| own_id(id.get())).or(during), NO_MESSAGE),
        }
    }

    fn unreadable(&self, json: &[u8]) -> bool {
        match serde_json::from_slice::<Envelope<'_>>(json) {
            Ok(envelope) => self.fail_for(json, envelope.id.and_then(|id| own_id(id.get())), NO_MESSAGE),
            Err(error) => self.fail_for(json, None, &error.to_string()),
        }
    }

    fn lost(&self, id: RequestId, error: SendError) {
        if error == SendError::Expired {
            self.expire();
        }
        self.settle(id, Answer::Lost(error));
    }

    fn noise(&self, what: &str) {
        self.listener.broken(what);
    }

    fn expired(&self) {
        self.expire();
        // The list that is asked for now begins a session, in which the server can say more.
        self.listener.tools_changed();
    }

    fn doubted(&self) {
        self.expire();
    }

    fn missed(&self) {
        self.has_missed.notify_one();
    }

    fn burst(&self, too_large: String) {
        let others = format!(
            "the connection was closed for one message, which may be the answer to another request: {too_large}"
        );
        if let Some(id) = self.only() {
            self.settle(id, Answer::Lost(SendError::Broken(too_large)));
        }
        self.ended(others);
    }

    fn ended(&self, reason: String) {
        // The first reason stands.
        let _ = self.last_word.set(reason);
        self.lock().has_ended = true;
        for sender in self.senders() {
            // Whoever waited may have left.
            let _ = sender.send(Answer::Ended);
        }
        self.questions.end();
        self.over.cancel();
    }
}

#[async_trait]
impl PipeIncoming for Inbox {
    fn in_flight(&self) -> usize {
        self.lock().open
    }

    fn garbled(&self, line: &[u8], problem: &str) {
        self.garbled(line, None, problem);
    }

    fn skipped(&self, too_long: String, head: &[u8]) {
        self.listener.warn("mcp_message_too_long", &too_long);
        if let Some(id) = id_of_head(head) {
            return self.settle(id, Answer::Lost(SendError::Broken(too_long)));
        }
        // Nobody knows whose answer it is: the id may be at its end, a gigabyte away.
        if may_be_message(head) {
            let reason = match self.only() {
                Some(_) => too_long,
                None => format!("{too_long}, in the answer to this or another request"),
            };
            self.fail_all(&reason);
        }
    }

    fn stdout_noise(&self) -> &StdoutNoise {
        &self.stdout_noise
    }

    fn end_reason(&self) -> Option<&str> {
        self.last_word.get().map(String::as_str)
    }

    /// The server can be told of no cancel and asked nothing any more, so that new calls begin another process at once;
    /// those that it has go on to their own time limits, for ten minutes at most. It is ended with the last of them,
    /// however long it would go on writing.
    async fn last_answers(&self) {
        if !self.awaits_answers() {
            return;
        }
        self.expired();
        let answered = async {
            let mut looked = tokio::time::interval(LOOK / 10);
            while self.awaits_answers() {
                looked.tick().await;
            }
        };
        let _ = tokio::time::timeout(LAST_CALLS, answered).await;
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::client::NoClient;
    use toolwright_core::context::NoPartials;
    use toolwright_core::event::NoEvents;
    use toolwright_core::session::{Principal, SessionId};

    use super::*;
    use crate::client::config::AsTools;

    fn caller() -> Caller {
        let principal = Principal { id: "p".into(), owner: true, roles: Vec::new() };
        let session = Session { id: SessionId::new("s"), principal, root: ".".into(), agent: None };
        Caller { partials: Arc::new(NoPartials), client: Arc::new(NoClient), session: Arc::new(session) }
    }

    #[tokio::test]
    async fn silence_during_older_calls_says_nothing() {
        const IDLE: Duration = Duration::from_secs(1);
        let inbox = Inbox::new(Listener::new("s".into(), Arc::new(NoEvents), Arc::new(|| {}), AsTools::No));
        let _answer = inbox.register(1, Purpose::Call(caller())).expect("room");
        let mut watched = Box::pin(inbox.falls_silent(IDLE));
        let long = tokio::time::timeout(8 * IDLE, watched.as_mut());
        assert!(long.await.is_err(), "an older call may be its work, however long it takes");
        // What comes later is no reason for the silence.
        let _newer = inbox.register(2, Purpose::Call(caller())).expect("room");
        inbox.forget(1);
        let ended = Instant::now();
        assert!(watched.await);
        // It is looked at from time to time: the silence may have begun a moment before.
        assert!((IDLE / 2..5 * IDLE).contains(&ended.elapsed()), "{:?}", ended.elapsed());
        let heard = async {
            tokio::time::sleep(IDLE / 2).await;
            inbox.heard.fetch_add(1, Ordering::Relaxed);
        };
        assert!(!tokio::join!(inbox.falls_silent(4 * IDLE), heard).0);
    }
}
