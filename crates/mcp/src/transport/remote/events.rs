//! Server-sent events (WHATWG HTML, section 9.2.6), each bounded.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use memchr::memchr2;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use toolwright_core::json::read;

use super::target::excerpt;
use crate::protocol::batch::{each_of_batch, is_batch};
use crate::protocol::message::RpcError;
use crate::transport::{Incoming, RequestId, own_id};

/// Room on a line for the field's name and separators.
const LINE_SLACK: usize = 1024;
/// Maximal length of an event id kept for resuming; some servers put a token into it.
const MAX_ID: usize = 4096;

/// An event with data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// Its type; empty is `message`.
    pub(super) kind: &'a [u8],
    /// Its data, never empty.
    pub(super) data: &'a [u8],
}

impl Event<'_> {
    /// Whether it carries a protocol message.
    pub(super) fn is_message(&self) -> bool {
        matches!(self.kind, b"" | b"message")
    }
}

/// An event is over the bound. The parser is of no use afterwards.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// An incremental parser.
#[derive(Debug)]
pub(super) struct Events {
    max: usize,
    /// An incomplete line.
    line: Vec<u8>,
    data: Vec<u8>,
    kind: Vec<u8>,
    /// Id of the last dispatched event that had one.
    id: Option<HeaderValue>,
    /// Id of the current event, if it has one.
    next_id: Option<Option<HeaderValue>>,
    retry: Option<Duration>,
    after_return: bool,
    started: bool,
    /// Whether any event has ended, including events without data.
    any: bool,
}

impl Events {
    /// A parser of events with at most `max` bytes of data.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            line: Vec::new(),
            data: Vec::new(),
            kind: Vec::new(),
            id: None,
            next_id: None,
            retry: None,
            after_return: false,
            started: false,
            any: false,
        }
    }

    /// Id of the last event that had one, for `Last-Event-ID`. The id of an incomplete event does not
    /// count: the server would resume after it.
    pub(super) fn last_id(&self) -> Option<&HeaderValue> {
        self.id.as_ref()
    }

    /// Reconnection delay requested by the server.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Whether any event has arrived.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Reads bytes and passes on each completed event.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub(super) fn feed(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Event<'_>)) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(at) = memchr2(b'\n', b'\r', bytes) else {
                self.line.extend_from_slice(bytes);
                return if self.line.len() > self.max.saturating_add(LINE_SLACK) { Err(TooLarge) } else { Ok(()) };
            };
            self.after_return = bytes[at] == b'\r';
            if self.line.is_empty() {
                self.take_line(&bytes[..at], each)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..at]);
                self.take_line(&line, each)?;
            }
            bytes = &bytes[at + 1..];
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], each: &mut dyn FnMut(Event<'_>)) -> Result<(), TooLarge> {
        let first = !std::mem::replace(&mut self.started, true);
        let line = if first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        if line.is_empty() {
            self.dispatch(each);
            return Ok(());
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" if self.data.len() + value.len() > self.max => return Err(TooLarge),
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.kind = value[..value.len().min(LINE_SLACK)].to_vec(),
            b"id" => self.take_id(value),
            b"retry" => {
                let millis = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            // A comment, or an unknown field.
            _ => {}
        }
        Ok(())
    }

    /// An empty id is the wish to forget the last one.
    fn take_id(&mut self, value: &[u8]) {
        if value.is_empty() {
            self.next_id = Some(None);
        } else if value.len() <= MAX_ID
            && let Ok(id) = HeaderValue::from_bytes(value)
        {
            self.next_id = Some(Some(id));
        }
    }

    fn dispatch(&mut self, each: &mut dyn FnMut(Event<'_>)) {
        self.any = true;
        if let Some(id) = self.next_id.take() {
            self.id = id;
        }
        if self.data.len() > 1 {
            each(Event { kind: &self.kind, data: &self.data[..self.data.len() - 1] });
        }
        self.data.clear();
        self.kind.clear();
    }
}

/// Requests whose answer may arrive on another stream than the watched one.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests {
    requests: Mutex<HashMap<RequestId, oneshot::Sender<()>>>,
}

impl WaitingRequests {
    /// Begins to wait; ends with [`WaitingRequests::answered`]. Dropping it ends it too.
    pub(super) fn begin(&self, id: RequestId) -> impl Future<Output = ()> + Send + '_ {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(id, sender);
        let guard = WaitGuard { waiting: self, id };
        async move {
            // The sender lives as long as the guard, or has been used.
            let _ = receiver.await;
            drop(guard);
        }
    }

    /// Notes that an answer has come.
    pub(super) fn answered(&self, id: RequestId) {
        let sender = self.lock().remove(&id);
        if let Some(sender) = sender {
            // It may have just ended.
            let _ = sender.send(());
        }
    }

    /// Reports that none of them will be answered.
    pub(super) fn end_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RequestId, oneshot::Sender<()>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct WaitGuard<'a> {
    waiting: &'a WaitingRequests,
    id: RequestId,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.id);
    }
}

/// What some bytes contained.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DeliveredMessages {
    /// Ids of requests that they answered.
    pub(super) answered: Vec<RequestId>,
    /// Whether they contained anything other than JSON-RPC messages.
    pub(super) garbage: bool,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<IgnoredAny>,
    #[serde(default)]
    result: Option<IgnoredAny>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

/// Hands over one message, or a batch of them, which revisions up to 2025-03-26 allow.
pub(super) fn deliver(incoming: &dyn Incoming, json: &[u8], during: Option<RequestId>) -> DeliveredMessages {
    let mut delivered = DeliveredMessages::default();
    let mut one = |json: &[u8]| match serde_json::from_slice::<Envelope<'_>>(json) {
        Ok(Envelope { id, method: None, result, error }) if result.is_some() || error.is_some() => {
            delivered.answered.extend(id.and_then(number));
            incoming.message(json, during);
        }
        // `"result": null` is no result that MCP knows, but an answer.
        Ok(Envelope { id: Some(id), method: None, .. }) if memchr::memmem::find(json, b"\"result\"").is_some() => {
            delivered.answered.extend(number(id));
            incoming.message(json, during);
        }
        Ok(Envelope { method: Some(_), .. }) => incoming.message(json, during),
        Ok(_) | Err(_) => {
            delivered.garbage = true;
            incoming.unreadable_message(&format!("not a JSON-RPC message: {}", excerpt(json)));
        }
    };
    let is_taken = is_batch(json)
        && each_of_batch(json, |message| {
            one(message.get().as_bytes());
            Ok(())
        })
        .is_ok();
    if !is_taken {
        one(json);
    }
    delivered
}

/// The number of an id of ours.
fn number(id: &RawValue) -> Option<RequestId> {
    own_id(id.get())
}

/// Returns the JSON-RPC error in the body of a failed response as the answer to request `id`,
/// even if the server could not read the id.
pub(super) fn error_for(id: RequestId, body: &[u8]) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct ErrorEnvelope<'a> {
        jsonrpc: IgnoredAny,
        #[serde(borrow)]
        error: &'a RawValue,
    }
    let ErrorEnvelope { jsonrpc: IgnoredAny, error } = serde_json::from_slice(body).ok()?;
    let error = error.get();
    error.starts_with('{').then(|| format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into_bytes())
}

/// The JSON-RPC error in a body, if it is one.
pub(super) fn rpc_error(body: &[u8]) -> Option<RpcError> {
    #[derive(Deserialize)]
    struct ErrorEnvelope {
        error: RpcError,
    }
    read::<ErrorEnvelope>(body, &OnceCell::new()).ok().map(|failed| failed.error)
}

/// Whether a body is a JSON-RPC error with this request's id: its author has read the request.
pub(super) fn is_answer_to(id: RequestId, body: &[u8]) -> bool {
    let envelope = serde_json::from_slice::<Envelope<'_>>(body).ok();
    envelope.is_some_and(|envelope| envelope.error.is_some() && envelope.id.and_then(number) == Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stream: &str, expect: &[(&str, &str)], id: Option<&str>, retry: Option<u64>) {
        for chunk in 1..=stream.len().max(1) {
            let mut events = Events::new(16);
            let mut got = Vec::new();
            for piece in stream.as_bytes().chunks(chunk) {
                let taken = events.feed(piece, &mut |event| {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    got.push((text(event.kind), text(event.data)));
                });
                assert_eq!(taken, Ok(()), "{stream:?} in chunks of {chunk}");
            }
            let expect: Vec<_> = expect.iter().map(|(kind, data)| ((*kind).to_owned(), (*data).to_owned())).collect();
            assert_eq!(got, expect, "{stream:?} in chunks of {chunk}");
            assert_eq!(events.last_id().map(|id| id.to_str().expect("text")), id, "{stream:?}");
            assert_eq!(events.retry(), retry.map(Duration::from_millis), "{stream:?}");
        }
    }

    #[test]
    fn events_are_found_at_every_chunking() {
        check("data: a\n\n", &[("", "a")], None, None);
        check(
            "\u{feff}event: x\r\ndata:a\r\ndata: b\r\n\r\n: ping\r\n\r\ndata: c\r\n\r\n",
            &[("x", "a\nb"), ("", "c")],
            None,
            None,
        );
        check("data: a\r\rdata\n\n", &[("", "a")], None, None);
        check("id: 1\nretry: 5\ndata: \n\n", &[], Some("1"), Some(5));
        check("id: 1\ndata: a\n\nid\ndata: b\n\n", &[("", "a"), ("", "b")], None, None);
        check("id: 1\ndata: a\n\nid: 2\ndata: cu", &[("", "a")], Some("1"), None);
        check("id: 1\ndata: a\n\nid: 2\ndata: cut\n", &[("", "a")], Some("1"), None);
        check("id: 1\ndata: a\n\nid\ndata: cut", &[("", "a")], Some("1"), None);
        check("id: 7\nretry: soon\nevent: endpoint\ndata: /m\n\ndata: cut", &[("endpoint", "/m")], Some("7"), None);
    }

    #[test]
    fn events_are_bounded_one_by_one() {
        let feed = |text: &str| {
            let mut events = Events::new(10);
            let mut count = 0;
            events.feed(text.as_bytes(), &mut |_| count += 1).map(|()| count)
        };
        assert_eq!(feed(&"data: 1234567890\n\n".repeat(1000)), Ok(1000));
        assert_eq!(feed("data: 12345678901\n\n"), Err(TooLarge));
        assert_eq!(feed("data: 12345\ndata: 12345\n\n"), Err(TooLarge));
        assert_eq!(feed(&format!("data: {}", "x".repeat(2000))), Err(TooLarge));
        assert_eq!(feed(&format!(": {}\n\n", "x".repeat(500))), Ok(0));
    }
}

#[cfg(test)]
mod deliver_tests {
    use std::sync::Mutex;

    use super::*;
    use crate::transport::SendError;

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);
    impl Incoming for Log {
        fn message(&self, json: &[u8], _during: Option<RequestId>) {
            self.0.lock().expect("log").push(String::from_utf8_lossy(json).into_owned());
        }
        fn unreadable(&self, _json: &[u8]) -> bool {
            false
        }
        fn lost(&self, _id: RequestId, _error: SendError) {}
        fn unreadable_message(&self, _what: &str) {}
        fn expired(&self) {}
        fn session_doubted(&self) {}
        fn missed(&self) {}
        fn burst(&self, _too_large: String) {}
        fn ended(&self, _reason: String) {}
    }

    #[test]
    fn events_are_sorted_into_messages_and_answers() {
        for (text, messages, answered, garbage) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, 1, &[7][..], false),
            (r#"{"jsonrpc":"2.0","id":"7","error":{"code":1,"message":""}}"#, 1, &[], false),
            (r#"{"jsonrpc":"2.0","id":7,"result":null}"#, 1, &[7], false),
            (r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#, 1, &[], false),
            (r#"{"jsonrpc":"2.0","method":"x"}"#, 1, &[], false),
            (r#" [{"id":1,"result":{}},{"id":2,"result":{}},{"method":"x"}]"#, 3, &[1, 2], false),
            (r#"[{"id":1,"result":{}},{"id":2,"#, 1, &[1], true),
            (r#"{"jsonrpc":"2.0","id":7}"#, 0, &[], true),
            ("hello", 0, &[], true),
            (r#"{"id":7,"result":{"#, 0, &[], true),
        ] {
            let log = Log::default();
            let expect = DeliveredMessages { answered: answered.to_vec(), garbage };
            assert_eq!(deliver(&log, text.as_bytes(), None), expect, "{text}");
            assert_eq!(log.0.lock().expect("log").len(), messages, "{text}");
        }
    }

    #[test]
    fn errors_in_failed_responses_answer_requests() {
        let check = |body: &str, expect: Option<&str>| {
            let got = error_for(7, body.as_bytes()).map(|json| String::from_utf8_lossy(&json).into_owned());
            assert_eq!(got.as_deref(), expect, "{body}");
        };
        check(
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32000,"message":"m","data":{"z":0.1}}}"#,
            Some(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"m","data":{"z":0.1}}}"#),
        );
        check(r#"{"error":{"code":1,"message":"m"}}"#, None);
        check(r#"{"jsonrpc":"2.0","error":"no"}"#, None);
        check("<html>", None);
    }
}
