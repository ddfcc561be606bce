//! Delivers the messages of responses and event streams, and notes which requests they answer.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use toolwright_core::json::read;
use toolwright_core::sse::Event;

use super::target::excerpt;
use crate::protocol::batch::{each_of_batch, is_batch};
use crate::protocol::message::RpcError;
use crate::transport::{Incoming, RequestId, own_id};

/// Whether an event carries a protocol message. One without data only names its id, to resume from.
pub(super) fn is_message(event: &Event<'_>) -> bool {
    matches!(event.kind, b"" | b"message") && !event.data.is_empty()
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
        fn request_failed(&self, _id: RequestId, _error: SendError) {}
        fn unreadable_message(&self, _what: &str) {}
        fn expired(&self) {}
        fn session_may_be_lost(&self) {}
        fn messages_missed(&self) {}
        fn message_too_large(&self, _too_large: String) {}
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
