//! Results and progress, taken from the wire before `rmcp` types them.
//!
//! A request that wants its raw result carries a [`Ticket`] in its extensions, which never reach the
//! wire. A transport registers the ticket before it writes the request, so no answer can overtake it, and
//! hands every incoming message to [`Inbox::take`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    ClientJsonRpcMessage, EmptyResult, GetExtensions as _, GetMeta as _, JsonRpcMessage, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use toolwright_core::context::PartialSink;
use toolwright_core::event::Partial;

/// Bound on requests in flight to one server; the queues of the executor are far below it.
pub(super) const MAX_IN_FLIGHT: usize = 1024;

/// What became of a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// The result, as it came.
    Result(Value),
    /// The peer broke the protocol or a bound; the request may have had its effect.
    Broken(String),
    /// The request was not accepted: it had no effect.
    NotSent(String),
}

/// Whether `rmcp` must see a result too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Typed {
    /// It is told only that the request has been answered.
    No,
    /// It learns from the result: which arguments of a tool are repeated in headers (2026-07-28, HTTP).
    Yes,
}

/// One request that wants its raw result.
pub(super) struct Ticket {
    typed: Typed,
    partials: Option<Arc<dyn PartialSink>>,
    answer: Mutex<Option<oneshot::Sender<Answer>>>,
    dispatched: AtomicBool,
    abandoned: AtomicBool,
}

/// A ticket as a request's extension.
#[derive(Clone)]
pub(super) struct TicketRef(pub(super) Arc<Ticket>);

impl Ticket {
    /// A ticket, and where its answer arrives.
    pub(super) fn new(typed: Typed, partials: Option<Arc<dyn PartialSink>>) -> (Arc<Self>, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        let ticket = Self {
            typed,
            partials,
            answer: Mutex::new(Some(sender)),
            dispatched: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        };
        (Arc::new(ticket), receiver)
    }

    /// Notes that the request may have reached the server.
    pub(super) fn dispatched(&self) {
        self.dispatched.store(true, Ordering::Release);
    }

    /// Whether the request may have reached the server.
    pub(super) fn was_dispatched(&self) -> bool {
        self.dispatched.load(Ordering::Acquire)
    }

    /// Notes that nobody waits any more.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Gives the answer; a second one is ignored.
    pub(super) fn settle(&self, answer: Answer) {
        let sender = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // Nobody waits for the answer of an abandoned request.
            let _ = sender.send(answer);
        }
    }
}

/// What a message was.
#[derive(Debug)]
pub(super) enum Taken {
    /// The result of the ticket with this id; [`answered`] tells `rmcp`.
    Answer(RequestId),
    /// Progress, passed on or too late.
    Progress,
    /// For `rmcp`, as it is.
    Other,
    /// Not a JSON-RPC message.
    Garbage,
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Write it.
    Send,
    /// Its caller has left before it was written: leave it out.
    Drop,
}

/// The tickets of one connection.
#[derive(Default)]
pub(super) struct Inbox {
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    by_id: HashMap<RequestId, Waiting>,
    /// Which request a progress token stands for.
    by_token: HashMap<RequestId, RequestId>,
}

struct Waiting {
    ticket: Arc<Ticket>,
    token: Option<RequestId>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    id: Option<RequestId>,
    #[serde(default, borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

/// `null` is a value too.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    progress_token: RequestId,
    progress: f64,
    #[serde(default)]
    total: Option<f64>,
    #[serde(default)]
    message: Option<String>,
}

impl Inbox {
    /// Requests in flight.
    pub(super) fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Registers an outgoing message's ticket, if it has one. Must come before the message is written.
    pub(super) fn register(&self, message: &ClientJsonRpcMessage) -> Admission {
        let Some((id, ticket)) = ticket_of(message) else { return Admission::Send };
        let mut pending = self.lock();
        if ticket.is_abandoned() {
            return Admission::Drop;
        }
        let token = match message {
            JsonRpcMessage::Request(request) => request.request.get_meta().get_progress_token().map(|token| token.0),
            _ => None,
        };
        if let Some(token) = &token {
            pending.by_token.insert(token.clone(), id.clone());
        }
        pending.by_id.insert(id, Waiting { ticket, token });
        Admission::Send
    }

    /// Forgets a request; late answers are then `rmcp`'s to ignore.
    pub(super) fn forget(&self, id: &RequestId) {
        let mut pending = self.lock();
        if let Some(Waiting { token: Some(token), .. }) = pending.by_id.remove(id) {
            pending.by_token.remove(&token);
        }
    }

    /// Takes one incoming message.
    pub(super) fn take(&self, text: &[u8]) -> Taken {
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(text) else { return Taken::Garbage };
        match (envelope.method, envelope.id, envelope.result) {
            (Some(method), None, _) if method == "notifications/progress" => {
                self.progress(envelope.params);
                Taken::Progress
            }
            (Some(_), ..) => Taken::Other,
            (None, Some(id), Some(result)) => match self.ticket(&id) {
                Some((id, ticket)) => {
                    ticket.settle(Answer::Result(result));
                    if ticket.typed == Typed::Yes { Taken::Other } else { Taken::Answer(id) }
                }
                None => Taken::Other,
            },
            _ if envelope.error.is_some() => Taken::Other,
            _ => Taken::Garbage,
        }
    }

    /// Fails the request with this id, if it waits here.
    pub(super) fn fail(&self, id: &RequestId, reason: &str) {
        if let Some((_, ticket)) = self.ticket(id) {
            ticket.settle(Answer::Broken(reason.to_owned()));
        }
    }

    /// The one request that waits here; `None` where there are more, or none.
    pub(super) fn only(&self) -> Option<RequestId> {
        let pending = self.lock();
        let mut ids = pending.by_id.keys();
        ids.next().filter(|_| pending.by_id.len() == 1).cloned()
    }

    /// Fails every request that waits here.
    pub(super) fn fail_all(&self, reason: &str) {
        let tickets: Vec<_> = self.lock().by_id.values().map(|waiting| Arc::clone(&waiting.ticket)).collect();
        for ticket in tickets {
            ticket.settle(Answer::Broken(reason.to_owned()));
        }
    }

    fn progress(&self, params: Option<&RawValue>) {
        let Some(Ok(progress)) = params.map(|params| serde_json::from_str::<Progress>(params.get())) else { return };
        let sink = {
            let pending = self.lock();
            let waiting = pending.by_token.get(&progress.progress_token).and_then(|id| pending.by_id.get(id));
            waiting.and_then(|waiting| waiting.ticket.partials.clone())
        };
        if let Some(sink) = sink {
            let Progress { progress, total, message, .. } = progress;
            sink.send(Partial::Progress { progress, total, message });
        }
    }

    /// The ticket of an answer's id. Some servers write the number as a string.
    fn ticket(&self, id: &RequestId) -> Option<(RequestId, Arc<Ticket>)> {
        let pending = self.lock();
        let number = || match id {
            RequestId::String(text) => text.parse().ok().map(RequestId::Number),
            RequestId::Number(_) => None,
        };
        let id = if pending.by_id.contains_key(id) { id.clone() } else { number()? };
        let ticket = Arc::clone(&pending.by_id.get(&id)?.ticket);
        Some((id, ticket))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ticket that a message carries.
pub(super) fn ticket_of(message: &ClientJsonRpcMessage) -> Option<(RequestId, Arc<Ticket>)> {
    let JsonRpcMessage::Request(request) = message else { return None };
    let ticket = request.request.extensions().get::<TicketRef>()?;
    Some((request.id.clone(), Arc::clone(&ticket.0)))
}

/// What `rmcp` gets in place of a result that went to its ticket.
pub(super) fn answered(id: RequestId) -> ServerJsonRpcMessage {
    JsonRpcMessage::response(ServerResult::EmptyResult(EmptyResult {}), id)
}

/// The id of an answer that cannot be parsed or is too long, from its beginning or its end. `None` when it
/// is no answer (a log line in JSON may have an `id` too), or its id is elsewhere.
pub(super) fn sniff_id(head: &[u8], tail: &[u8]) -> Option<RequestId> {
    if [head, tail].iter().all(|part| memchr::memmem::find(part, b"\"jsonrpc\"").is_none()) {
        return None;
    }
    let head = String::from_utf8_lossy(head);
    let key = |name: &str| head.find(&format!("\"{name}\""));
    let body = [key("method"), key("params"), key("result"), key("error")].into_iter().flatten().min();
    if let Some(at) = key("id")
        && body.is_none_or(|body| at < body)
    {
        // A question of the server's has an id too.
        return number_after_key(&head[at..]).filter(|_| key("method").is_none()).map(|(id, _)| id);
    }
    if key("method").is_some_and(|method| Some(method) == body) {
        return None;
    }
    let tail = String::from_utf8_lossy(tail);
    let (id, rest) = number_after_key(&tail[tail.rfind("\"id\"")?..])?;
    let rest: String = rest.split_whitespace().collect();
    // Anything else is a field of the result.
    matches!(rest.as_str(), "}" | ",\"jsonrpc\":\"2.0\"}").then_some(id)
}

/// The number in `"id": 7`, and what follows it. Every id of ours is a number, though some servers make a
/// text of it.
fn number_after_key(text: &str) -> Option<(RequestId, &str)> {
    let value = text.strip_prefix("\"id\"")?.trim_start().strip_prefix(':')?;
    let (number, rest) = value.split_at(value.find([',', '}'])?);
    number.trim().trim_matches('"').parse().ok().map(|number| (RequestId::Number(number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::{ClientRequest, PingRequest};

    fn request(id: i64, ticket: Option<&Arc<Ticket>>) -> ClientJsonRpcMessage {
        let mut request = ClientRequest::PingRequest(PingRequest::default());
        request.get_meta_mut().set_progress_token(rmcp::model::ProgressToken(RequestId::Number(id + 100)));
        if let Some(ticket) = ticket {
            request.extensions_mut().insert(TicketRef(Arc::clone(ticket)));
        }
        JsonRpcMessage::request(request, RequestId::Number(id))
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<Partial>>);
    impl PartialSink for Log {
        fn send(&self, partial: Partial) {
            self.0.lock().expect("log").push(partial);
        }
    }

    #[test]
    fn a_raw_result_reaches_its_ticket_untouched() {
        let inbox = Inbox::default();
        let (ticket, mut answer) = Ticket::new(Typed::No, None);
        assert_eq!(inbox.register(&request(5, Some(&ticket))), Admission::Send);
        assert!(matches!(inbox.take(br#"{"jsonrpc":"2.0","id":6,"result":{}}"#), Taken::Other));
        let text = br#"{"jsonrpc":"2.0","id":"5","result":{"z":0.1,"a":{"later":null}}}"#;
        assert!(matches!(inbox.take(text), Taken::Answer(RequestId::Number(5))));
        let Ok(Answer::Result(value)) = answer.try_recv() else { panic!("no result") };
        assert_eq!(value.to_string(), r#"{"z":0.1,"a":{"later":null}}"#);
        inbox.forget(&RequestId::Number(5));
        assert_eq!(inbox.len(), 0);
    }

    #[test]
    fn progress_reaches_the_call_that_asked_and_no_other() {
        let inbox = Inbox::default();
        let log = Arc::new(Log::default());
        let (ticket, _answer) = Ticket::new(Typed::No, Some(Arc::clone(&log) as Arc<dyn PartialSink>));
        inbox.register(&request(5, Some(&ticket)));
        for token in ["105", "106", "\"105\""] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1,"total":3}}}}"#
            );
            assert!(matches!(inbox.take(text.as_bytes()), Taken::Progress));
        }
        let expect = [Partial::Progress { progress: 1.0, total: Some(3.0), message: None }];
        assert_eq!(*log.0.lock().expect("log"), expect);
    }

    #[test]
    fn an_abandoned_request_is_not_written() {
        let inbox = Inbox::default();
        let (ticket, _answer) = Ticket::new(Typed::No, None);
        ticket.abandon();
        assert_eq!(inbox.register(&request(1, Some(&ticket))), Admission::Drop);
        assert_eq!(inbox.register(&request(2, None)), Admission::Send);
        assert_eq!(inbox.len(), 0);
    }

    #[test]
    fn messages_are_sorted() {
        let inbox = Inbox::default();
        for (text, garbage) in [
            ("hello", true),
            ("{\"a\":1}", true),
            ("[]", true),
            ("{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":1,\"message\":\"\"}}", false),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}", false),
            ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}", false),
        ] {
            assert_eq!(matches!(inbox.take(text.as_bytes()), Taken::Garbage), garbage, "{text}");
        }
    }

    #[test]
    fn ids_are_found_in_what_cannot_be_parsed() {
        for (head, tail, expect) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"id":9"#, "", Some(7)),
            (r#"{"id" : "7" ,"jsonrpc":"2.0","#, "", Some(7)),
            (r#"{"jsonrpc":"2.0","result":{"id":9,"content":["#, r#""x"]},"id":7}"#, Some(7)),
            (r#"{"level":"info","id":7}"#, "", None),
            (r#"{"jsonrpc":"2.0","result":{"content":["#, r#"{"id":9},"x"]}}"#, None),
            (r#"{"result":{"content":["#, r#""x"]},"id":7,"jsonrpc":"2.0"}"#, Some(7)),
            (r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"id":3,"#, r#""id":4}}"#, None),
            (r#"{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"#, "", None),
            ("garbage", "more", None),
        ] {
            assert_eq!(sniff_id(head.as_bytes(), tail.as_bytes()), expect.map(RequestId::Number), "{head}");
        }
    }
}
