//! Routes the messages of one connection: answers to their requests, progress to the calls, the
//! server's questions to the clients of its calls, and everything else to the [`Listener`].

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

use self::elicitation_pages::ElicitationPages;
use self::listener::{Listener, ServerRoots};
use self::questions::Questions;
use crate::transport::child_process::{StdoutNoise, id_of_head, looks_like_message, may_be_message};
use crate::transport::{Direction, Incoming, PipeIncoming, RequestId, SendError, Transport, UNREADABLE, own_id};

mod attribution;
pub(crate) mod elicitation_pages;
pub(crate) mod listener;
mod notifications;
pub(crate) mod questions;

pub(crate) use self::attribution::Attribution;
use self::attribution::RecentCalls;

/// Time for the remaining calls on a connection that takes no new ones.
pub(crate) const LAST_CALLS: Duration = Duration::from_secs(600);
/// Bound on requests in flight to one server; the queues of the executor are far below it.
pub(crate) const MAX_IN_FLIGHT: usize = 1024;

/// The error for JSON that is neither a request nor a response.
const NO_MESSAGE: &str = "not a JSON-RPC message";

/// Interval at which a server's silence is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Requests that only clients send: receiving one means that the peer echoes.
const HANDSHAKES: [&str; 2] = ["initialize", "server/discover"];

/// Result of a request.
#[derive(Debug)]
pub(crate) enum RequestOutcome {
    /// The raw result; the requester parses it.
    Result(Box<RawValue>),
    /// The server refuses.
    Error(RpcError),
    /// It will not come.
    Lost(SendError),
    /// The connection has ended.
    Ended,
}

/// The call that a request is made for, as far as the server may address it.
#[derive(Clone)]
pub(crate) struct Caller {
    /// Receives progress.
    pub(crate) partials: Arc<dyn PartialSink>,
    /// Answers questions and receives log messages.
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
    /// Whether both calls have the same client.
    fn is_same_client(&self, other: &Self) -> bool {
        self.session.id == other.session.id && self.client.identity() == other.client.identity()
    }
}

/// The purpose of a request.
pub(crate) enum RequestPurpose {
    /// Internal.
    Internal,
    /// A call.
    Call(Caller),
    /// A subscription; the sender receives the accepted part.
    Subscription(watch::Sender<Option<Value>>),
}

/// A request that waits, or that has been answered and is about to be forgotten.
struct InFlightRequest {
    answer: Option<oneshot::Sender<RequestOutcome>>,
    purpose: RequestPurpose,
}

impl InFlightRequest {
    /// Takes the receiver of the answer, if still awaited, and decrements `open`.
    fn take_answer(&mut self, open: &mut usize) -> Option<oneshot::Sender<RequestOutcome>> {
        let answer = self.answer.take()?;
        *open -= usize::from(!matches!(self.purpose, RequestPurpose::Subscription(_)));
        Some(answer)
    }
}

/// Handles the messages that arrive over one connection.
pub(crate) struct Inbox {
    /// Handles messages outside of calls.
    pub(crate) listener: Arc<Listener>,
    /// The revision that is spoken, once the handshake is done.
    pub(crate) version: OnceLock<&'static str>,
    /// Cancelled at the end.
    pub(crate) over: CancellationToken,
    /// Why it has ended.
    pub(crate) last_word: OnceLock<String>,
    /// Pages that its users must visit. Another connection may use the same names for other pages.
    pub(crate) pages: ElicitationPages,
    /// Output that is not a message.
    pub(crate) stdout_noise: StdoutNoise,
    /// Notified when an unsolicited message may have been missed.
    pub(crate) has_missed: Notify,
    /// Changes with every message; only compared for equality.
    messages_seen: AtomicU64,
    state: Mutex<State>,
    questions: Arc<Questions>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<RequestId, InFlightRequest>,
    /// Number of requests that wait for an answer, without subscriptions.
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
            pages: ElicitationPages::default(),
            stdout_noise: StdoutNoise::default(),
            has_missed: Notify::new(),
            messages_seen: AtomicU64::new(0),
            state: Mutex::default(),
            questions: Arc::default(),
        })
    }

    /// Sets the transport for our answers to the server's questions, once.
    pub(crate) fn attach(&self, transport: Weak<dyn Transport>) {
        self.questions.attach(transport);
    }

    /// Sets the folders for requests outside of calls, once.
    pub(crate) fn answer_roots(&self, folders: Arc<ServerRoots>) {
        self.questions.answer_roots(folders);
    }

    /// Waits until the server was told its folders outside of calls.
    pub(crate) async fn has_folders(&self) {
        self.questions.has_folders().await;
    }

    /// Whether the server has asked for folders outside of calls.
    pub(crate) fn has_asked_for_roots(&self) -> bool {
        self.questions.has_asked_for_roots()
    }

    /// Registers a request for its answer. Must precede sending.
    ///
    /// # Errors
    /// Nothing may be sent: too much is in flight, or the connection has ended.
    pub(crate) fn register(
        &self,
        id: RequestId,
        purpose: RequestPurpose,
    ) -> Result<oneshot::Receiver<RequestOutcome>, RegisterError> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        if state.has_ended {
            return Err(RegisterError::Ended);
        }
        if state.waiting.len() >= MAX_IN_FLIGHT {
            return Err(RegisterError::Full);
        }
        state.open += usize::from(!matches!(purpose, RequestPurpose::Subscription(_)));
        state.waiting.insert(id, InFlightRequest { answer: Some(sender), purpose });
        Ok(receiver)
    }

    /// Routes progress and questions of this answered request to `caller`.
    pub(crate) fn hold(&self, id: RequestId, caller: Caller) {
        self.lock().waiting.insert(id, InFlightRequest { answer: None, purpose: RequestPurpose::Call(caller) });
    }

    /// Removes a finished request with its questions.
    pub(crate) fn forget(&self, id: RequestId) {
        self.leave(id, false);
    }

    /// Abandons a request; a late answer is ignored.
    pub(crate) fn abandon(&self, id: RequestId) {
        self.leave(id, true);
    }

    /// Removes an abandoned request that never reached the server, or for which it asks nothing more.
    pub(crate) fn release_request(&self, id: RequestId) {
        self.lock().recent_calls.forget(id);
    }

    fn leave(&self, id: RequestId, is_abandoned: bool) {
        let waiting = {
            let mut state = self.lock();
            let State { waiting, open, recent_calls, .. } = &mut *state;
            let mut waiting = waiting.remove(&id);
            let is_open = waiting.as_mut().and_then(|waiting| waiting.take_answer(open)).is_some();
            // Under the same lock, so that a call is always either in flight or past.
            if let Some(InFlightRequest { purpose: RequestPurpose::Call(caller), .. }) = &waiting {
                // The answer may have come just before.
                if is_open && is_abandoned {
                    recent_calls.record_abandoned(id, caller, Instant::now());
                } else {
                    recent_calls.end(&caller.session, Instant::now());
                }
            }
            waiting
        };
        if matches!(waiting, Some(InFlightRequest { purpose: RequestPurpose::Call(_), .. })) {
            self.questions.call_ended(id, |caller, busy| self.call_of(caller, busy));
        }
    }

    /// Whether a new session must be created.
    pub(crate) fn has_expired(&self) -> bool {
        self.lock().has_expired
    }

    /// The server has forgotten the session.
    pub(crate) fn expire(&self) {
        self.lock().has_expired = true;
    }

    /// Returns the only waiting request; `None` if there are several, or none.
    fn only(&self) -> Option<RequestId> {
        let state = self.lock();
        let mut waiting = state.waiting.iter().filter(|(_, waiting)| waiting.answer.is_some()).map(|(id, _)| *id);
        waiting.next().filter(|_| waiting.next().is_none())
    }

    /// The calls that wait for their answers.
    fn calls(&self) -> Vec<RequestId> {
        let state = self.lock();
        let is_call = |one: &InFlightRequest| one.answer.is_some() && matches!(one.purpose, RequestPurpose::Call(_));
        state.waiting.iter().filter(|(_, one)| is_call(one)).map(|(id, _)| *id).collect()
    }

    /// Waits until nothing has arrived for `idle`, while no call is in flight that was in flight at the start:
    /// those may cause the silence, and their own time limits probe the server. `false` as soon as anything
    /// arrives.
    pub(crate) async fn wait_for_silence(&self, idle: Duration) -> bool {
        let heard = self.messages_seen.load(Ordering::Relaxed);
        let newest = self.calls().into_iter().max();
        let (mut idle_since, mut looked) =
            (Instant::now(), tokio::time::interval_at(Instant::now() + POLL_INTERVAL, POLL_INTERVAL));
        loop {
            looked.tick().await;
            if self.messages_seen.load(Ordering::Relaxed) != heard {
                return false;
            }
            if self.calls().into_iter().any(|id| Some(id) <= newest) {
                idle_since = Instant::now();
            } else if idle_since.elapsed() >= idle {
                return true;
            }
        }
    }

    /// Whether a request waits for its answer; a subscription waits only for its end.
    fn awaits_answers(&self) -> bool {
        let awaits =
            |one: &InFlightRequest| one.answer.is_some() && !matches!(one.purpose, RequestPurpose::Subscription(_));
        self.lock().waiting.values().any(awaits)
    }

    /// Fails every request that waits; how many did.
    fn fail_all(&self, reason: &str) -> usize {
        let senders = self.senders();
        let count = senders.len();
        for sender in senders {
            // The receiver may be gone.
            let _ = sender.send(RequestOutcome::Lost(SendError::Broken(reason.to_owned())));
        }
        count
    }

    fn senders(&self) -> Vec<oneshot::Sender<RequestOutcome>> {
        let mut state = self.lock();
        state.open = 0;
        state.waiting.values_mut().filter_map(|waiting| waiting.answer.take()).collect()
    }

    fn complete_request(&self, id: RequestId, answer: RequestOutcome) {
        let sender = {
            let mut state = self.lock();
            state.is_at_work |= self.version.get().is_some();
            let State { waiting, open, recent_calls, .. } = &mut *state;
            recent_calls.answered(id, Instant::now());
            waiting.get_mut(&id).and_then(|waiting| waiting.take_answer(open))
        };
        if let Some(sender) = sender {
            // The receiver may be gone.
            let _ = sender.send(answer);
        }
    }

    /// Whether this request has no answer yet, awaited or not.
    fn is_unanswered(&self, id: RequestId) -> bool {
        let state = self.lock();
        state.waiting.get(&id).is_some_and(|waiting| waiting.answer.is_some()) || state.recent_calls.has(id)
    }

    /// Handles unreadable input, in the response stream of `during` if known.
    fn unreadable_line(&self, json: &[u8], during: Option<RequestId>, problem: &str) {
        if !self.fail_for(json, during, problem) {
            self.stdout_noise.add(json);
            self.listener.count_garbage(json);
        }
    }

    /// Fails requests in flight after an unreadable message: it may have been the answer, and its request would
    /// otherwise wait until its timeout. Returns whether any request failed.
    fn fail_for(&self, json: &[u8], during: Option<RequestId>, problem: &str) -> bool {
        if !looks_like_message(json) {
            return false;
        }
        let is_json = serde_json::from_slice::<IgnoredAny>(json).is_ok();
        let what = if is_json { UNREADABLE } else { "the server's answer is not a valid message" };
        if let Some(id) = during.or_else(|| self.only()) {
            self.complete_request(id, RequestOutcome::Lost(SendError::Broken(format!("{what}: {problem}"))));
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
pub(crate) enum RegisterError {
    /// [`MAX_IN_FLIGHT`] are in flight.
    Full,
    /// The connection has ended.
    Ended,
}

impl Incoming for Inbox {
    fn message(&self, json: &[u8], during: Option<RequestId>) {
        // Not added atomically: one of two concurrent additions may be lost, but the value changes.
        self.messages_seen.store(self.messages_seen.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if let Some(frames) = &self.listener.frames {
            frames.frame(&self.listener.server, Direction::Received, json);
        }
        let room = OnceCell::new();
        let envelope = match read::<Envelope<'_>>(json, &room) {
            Ok(envelope) => envelope,
            Err(error) => return self.unreadable_line(json, during, &error.to_string()),
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
                self.fail_all("it echoes what it receives; is it an MCP server?");
            }
            Envelope { method: Some(method), id: Some(id), params, .. } => {
                let version = self.version.get().copied();
                let is_at_work = self.lock().is_at_work;
                self.questions.asked((id, &method, params), version, is_at_work, |busy| self.asked_of(during, busy));
            }
            // Checked before the result: some serializers write `"result":null` beside an error.
            Envelope { error: Some(error), result, id, .. } if result.is_none_or(|result| result.get() == "null") => {
                let own = id.and_then(|id| own_id(id.get())).filter(|id| self.is_unanswered(*id));
                // A server that could not read a request cannot send its id.
                let Some(id) = own.or(during).or_else(|| id.is_none().then(|| self.only()).flatten()) else { return };
                let error = read_part(error).unwrap_or_else(|problem| {
                    RpcError::new(RpcError::INTERNAL, format!("a broken error object ({problem}): {error}"))
                });
                self.pages.refused(id, &error);
                self.complete_request(id, RequestOutcome::Error(error));
            }
            Envelope { result: Some(result), id: Some(id), .. } => {
                if let Some(id) = own_id(id.get()) {
                    self.complete_request(id, RequestOutcome::Result(result.to_owned()));
                }
            }
            Envelope { id, .. } => {
                self.unreadable_line(json, id.and_then(|id| own_id(id.get())).or(during), NO_MESSAGE)
            }
        }
    }

    fn unreadable(&self, json: &[u8]) -> bool {
        match serde_json::from_slice::<Envelope<'_>>(json) {
            Ok(envelope) => self.fail_for(json, envelope.id.and_then(|id| own_id(id.get())), NO_MESSAGE),
            Err(error) => self.fail_for(json, None, &error.to_string()),
        }
    }

    fn request_failed(&self, id: RequestId, error: SendError) {
        if error == SendError::Expired {
            self.expire();
        }
        self.complete_request(id, RequestOutcome::Lost(error));
    }

    fn unreadable_message(&self, what: &str) {
        self.listener.broken(what);
    }

    fn expired(&self) {
        self.expire();
        // Listing tools now starts a session, in which the server can send more.
        self.listener.tools_changed();
    }

    fn session_may_be_lost(&self) {
        self.expire();
    }

    fn messages_missed(&self) {
        self.has_missed.notify_one();
    }

    fn message_too_large(&self, too_large: String) {
        let others = format!(
            "the connection was closed for one message, which may be the answer to another request: {too_large}"
        );
        if let Some(id) = self.only() {
            self.complete_request(id, RequestOutcome::Lost(SendError::Broken(too_large)));
        }
        self.ended(others);
    }

    fn ended(&self, reason: String) {
        // The first reason is kept.
        let _ = self.last_word.set(reason);
        self.lock().has_ended = true;
        for sender in self.senders() {
            // The receiver may be gone.
            let _ = sender.send(RequestOutcome::Ended);
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

    fn unreadable_line(&self, line: &[u8], problem: &str) {
        self.unreadable_line(line, None, problem);
    }

    fn line_too_long(&self, too_long: String, head: &[u8]) {
        self.listener.warn("mcp_message_too_long", &too_long);
        if let Some(id) = id_of_head(head) {
            return self.complete_request(id, RequestOutcome::Lost(SendError::Broken(too_long)));
        }
        // The request is unknown: the id may be at the end, a gigabyte later.
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

    /// The server can get no cancellations or requests any more, so new calls start another process at once; the
    /// running calls continue to their own time limits, for ten minutes at most. The process is ended after the last of
    /// them, even if it keeps writing.
    async fn last_answers(&self) {
        if !self.awaits_answers() {
            return;
        }
        self.expired();
        let answered = async {
            let mut looked = tokio::time::interval(POLL_INTERVAL / 10);
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
    use crate::config::AsTools;

    fn caller() -> Caller {
        let principal = Principal { id: "p".into(), owner: true, roles: Vec::new() };
        let session = Session { id: SessionId::new("s"), principal, root: ".".into(), agent: None };
        Caller { partials: Arc::new(NoPartials), client: Arc::new(NoClient), session: Arc::new(session) }
    }

    #[tokio::test]
    async fn silence_during_older_calls_is_ignored() {
        const IDLE: Duration = Duration::from_secs(1);
        let inbox = Inbox::new(Listener::new("s".into(), Arc::new(NoEvents), Arc::new(|| {}), AsTools::No));
        let _answer = inbox.register(1, RequestPurpose::Call(caller())).expect("room");
        let mut watched = Box::pin(inbox.wait_for_silence(IDLE));
        let long = tokio::time::timeout(8 * IDLE, watched.as_mut());
        assert!(long.await.is_err(), "an older call may be its work, however long it takes");
        // A later request does not explain the silence.
        let _newer = inbox.register(2, RequestPurpose::Call(caller())).expect("room");
        inbox.forget(1);
        let ended = Instant::now();
        assert!(watched.await);
        // Silence is checked at intervals, so it may have begun just before a check.
        assert!((IDLE / 2..5 * IDLE).contains(&ended.elapsed()), "{:?}", ended.elapsed());
        let heard = async {
            tokio::time::sleep(IDLE / 2).await;
            inbox.messages_seen.fetch_add(1, Ordering::Relaxed);
        };
        assert!(!tokio::join!(inbox.wait_for_silence(4 * IDLE), heard).0);
    }
}
