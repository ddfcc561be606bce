//! Requests to one server with their parameters, and their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::inbox::listener::ServerRoots;
use super::inbox::{Inbox, RegisterError, RequestOutcome, RequestPurpose};
use crate::protocol::message::{RpcError, notification, read, write_json};
use crate::transport::{CancelNotice, Outgoing, OutgoingKind, RequestId, SendError, Traced, Transport, UNREADABLE};

/// The error for a request sent after its session expired.
pub(crate) const EXPIRED: &str = "the server has forgotten the session; the next call begins a new one";
/// Bound on telling a server about a cancellation.
const CANCEL_BOUND: Duration = Duration::from_secs(5);

/// A request that failed.
#[derive(Debug)]
pub(crate) enum AskError {
    /// The server answered with an error.
    Rpc(RpcError),
    /// The answer cannot be had; the request may have had its effect.
    Broken(String),
    /// The same, because of a server fault; the server's message.
    Fault(String),
    /// The request had no effect.
    NotSent(String),
    /// The same, because the server has forgotten the session, or no longer supports the negotiated version.
    Expired,
    /// The request had no effect, and a retry would not help.
    Final(String),
    /// The connection ended; whether the request may have had its effect.
    Ended(MayHaveReached),
    /// Too many requests are in flight.
    Full,
}

/// Whether a request may have reached the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayHaveReached {
    /// It may have.
    Perhaps,
    /// It has not.
    No,
}

impl From<SendError> for AskError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::NotSent(reason) => Self::NotSent(reason),
            SendError::Broken(reason) => Self::Broken(reason),
            SendError::Fault(reason) => Self::Fault(reason),
            SendError::Final(reason) => Self::Final(reason),
            SendError::Expired => Self::Expired,
        }
    }
}

/// A request.
pub(crate) struct Request<'a> {
    /// Its method.
    pub(crate) method: &'a str,
    /// The object that it names, for the header `Mcp-Name`.
    pub(crate) name: Option<&'a str>,
    /// Further headers over HTTP.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Its purpose.
    pub(crate) purpose: RequestPurpose,
    /// Its protocol revision, if not the negotiated one.
    pub(crate) version: Option<&'static str>,
}

impl<'a> Request<'a> {
    /// A request for ourselves.
    pub(crate) fn internal(method: &'a str) -> Self {
        Self { method, name: None, headers: Vec::new(), purpose: RequestPurpose::Internal, version: None }
    }
}

/// Our end of a connection.
pub(crate) struct Peer {
    /// The transport.
    pub(crate) transport: Arc<dyn Transport>,
    /// Handles incoming messages.
    pub(crate) inbox: Arc<Inbox>,
    next_id: AtomicU64,
}

impl Peer {
    /// A peer that sends over `transport` and passes incoming messages to `inbox`.
    pub(crate) fn new(transport: Arc<dyn Transport>, inbox: Arc<Inbox>) -> Arc<Self> {
        let listener = &inbox.listener;
        let transport: Arc<dyn Transport> = match listener.frames.clone() {
            Some(frames) => Arc::new(Traced { inner: transport, server: Arc::clone(&listener.server), frames }),
            None => transport,
        };
        inbox.attach(Arc::downgrade(&transport));
        Arc::new(Self { transport, inbox, next_id: AtomicU64::new(1) })
    }

    /// Notes the revision that both ends agreed on.
    pub(crate) fn set_version(&self, version: &'static str) {
        // A connection has one handshake that succeeds.
        let _ = self.inbox.version.set(version);
    }

    /// Sends a request and waits for its result, parsed as `R`. For a call, a progress token is added to `params`.
    /// Dropping the future sends a cancellation without waiting for the server.
    ///
    /// # Errors
    /// [`AskError`].
    pub(crate) async fn ask<R>(&self, request: Request<'_>, params: &mut Params<'_>) -> Result<R, AskError>
    where
        R: DeserializeOwned,
    {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let Request { method, name, headers, purpose, version } = request;
        if matches!(purpose, RequestPurpose::Call(_)) {
            params.meta.progress_token = Some(id);
        }
        let mut json = request_json(id, method, params);
        // Room for the line feed of a pipe.
        json.reserve_exact(1);
        let answer = match self.inbox.register(id, purpose) {
            Ok(answer) => answer,
            Err(RegisterError::Full) => return Err(AskError::Full),
            Err(RegisterError::Ended) => return Err(AskError::Ended(MayHaveReached::No)),
        };
        let mut in_flight = InFlight { peer: self, id, is_open: method != "initialize" };
        let kind = OutgoingKind::Request { id, method, name };
        let version = version.or_else(|| self.version());
        if let Err(error) = self.transport.send(Outgoing { json, kind, version, headers }).await {
            in_flight.is_open = false;
            if error == SendError::Expired {
                self.inbox.expire();
            }
            return Err(error.into());
        }
        let answer = answer.await;
        in_flight.is_open = false;
        match answer {
            Ok(RequestOutcome::Result(result)) => {
                read(&result).map_err(|problem| AskError::Broken(format!("{UNREADABLE}: {problem}")))
            }
            Ok(RequestOutcome::Error(error)) => Err(AskError::Rpc(error)),
            Ok(RequestOutcome::Lost(error)) => Err(error.into()),
            Ok(RequestOutcome::Ended) => Err(AskError::Ended(MayHaveReached::Perhaps)),
            Err(_) => Err(AskError::Broken("the request was lost".to_owned())),
        }
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// [`SendError`].
    pub(crate) async fn notify(&self, method: &str, params: Option<&Value>) -> Result<(), SendError> {
        let json = notification(method, params).to_vec();
        let kind = OutgoingKind::Notification { method };
        self.transport.send(Outgoing { json, kind, version: self.version(), headers: Vec::new() }).await
    }

    fn version(&self) -> Option<&'static str> {
        self.inbox.version.get().copied()
    }

    /// Sends a cancellation to the server.
    fn cancel(&self, id: RequestId) {
        if self.transport.abandon(id) == CancelNotice::Unneeded {
            return self.inbox.release_request(id);
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let params = json!({"requestId": id, "reason": "the result is not wanted any more"});
        let method = "notifications/cancelled";
        let json = notification(method, Some(&params)).to_vec();
        let kind = OutgoingKind::Notification { method };
        let message = Outgoing { json, kind, version: self.version(), headers: Vec::new() };
        let transport = Arc::clone(&self.transport);
        runtime.spawn(async move {
            // The probe will notice a server that reads no cancellation.
            let _ = tokio::time::timeout(CANCEL_BOUND, transport.send(message)).await;
        });
    }
}

/// A request on its way: dropped unanswered, it is cancelled at the server.
struct InFlight<'a> {
    peer: &'a Peer,
    id: RequestId,
    is_open: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let inbox = &self.peer.inbox;
        if !self.is_open {
            return inbox.forget(self.id);
        }
        inbox.abandon(self.id);
        if !inbox.over.is_cancelled() {
            self.peer.cancel(self.id);
        }
    }
}

/// `_meta` key of a call's idempotency key.
const IDEMPOTENCY_KEY: &str = "io.github.toolwright/idempotency-key";
const TRACEPARENT: &str = "traceparent";
const PROGRESS_TOKEN: &str = "progressToken";

/// Parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Params<'a> {
    /// Name of the tool of a call.
    pub(crate) name: Option<&'a str>,
    /// Arguments of a call.
    pub(crate) arguments: Option<Value>,
    /// The other parameters.
    pub(crate) others: Map<String, Value>,
    /// `_meta`.
    pub(crate) meta: Meta<'a>,
}

/// `_meta`. For equal keys, the later field counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meta<'a> {
    /// Members passed on, or required by the revision.
    pub(crate) others: Map<String, Value>,
    /// The call's key, for servers that may get it twice.
    pub(crate) idempotency_key: Option<&'a str>,
    /// W3C trace context.
    pub(crate) traceparent: Option<&'a str>,
    /// Id of the request that they went out with last, under which progress is reported.
    pub(crate) progress_token: Option<RequestId>,
}

impl From<Map<String, Value>> for Params<'_> {
    /// Ignores a `_meta` member.
    fn from(mut others: Map<String, Value>) -> Self {
        others.shift_remove("_meta");
        Self { others, ..Self::default() }
    }
}

impl<'a> Params<'a> {
    /// Sets the `_meta`.
    pub(crate) fn with(self, meta: Meta<'a>) -> Self {
        Self { meta, ..self }
    }
}

impl From<Map<String, Value>> for Meta<'_> {
    fn from(others: Map<String, Value>) -> Self {
        Self { others, ..Self::default() }
    }
}

impl Meta<'_> {
    fn is_empty(&self) -> bool {
        let Self { others, idempotency_key, traceparent, progress_token } = self;
        others.is_empty() && idempotency_key.is_none() && traceparent.is_none() && progress_token.is_none()
    }

    fn is_own(&self, key: &str) -> bool {
        match key {
            IDEMPOTENCY_KEY => self.idempotency_key.is_some(),
            TRACEPARENT => self.traceparent.is_some(),
            PROGRESS_TOKEN => self.progress_token.is_some(),
            _ => false,
        }
    }
}

/// The text of a request.
fn request_json(id: RequestId, method: &str, params: &Params<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let mut request = Object::begin(&mut out);
    request.entry("jsonrpc", &"2.0");
    request.entry("id", &id);
    request.entry("method", &method);
    params.write(request.key("params"));
    request.end();
    out
}

impl Params<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let mut params = Object::begin(out);
        if let Some(name) = self.name {
            params.entry("name", &name);
        }
        if let Some(arguments) = &self.arguments {
            params.entry("arguments", arguments);
        }
        params.entries(self.others.iter());
        if !self.meta.is_empty() {
            self.meta.write(params.key("_meta"));
        }
        params.end();
    }
}

impl Meta<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let mut meta = Object::begin(out);
        meta.entries(self.others.iter().filter(|(key, _)| !self.is_own(key)));
        if let Some(key) = self.idempotency_key {
            meta.entry(IDEMPOTENCY_KEY, &key);
        }
        if let Some(traceparent) = self.traceparent {
            meta.entry(TRACEPARENT, &traceparent);
        }
        if let Some(token) = self.progress_token {
            meta.entry(PROGRESS_TOKEN, &token);
        }
        meta.end();
    }
}

/// Writes a JSON object. Known keys need no escaping.
struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> Object<'o> {
    fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    fn comma(&mut self) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
    }

    fn key(&mut self, name: &str) -> &mut Vec<u8> {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    fn entry(&mut self, key: &str, value: &impl Serialize) {
        write_json(self.key(key), value);
    }

    fn entries<'e>(&mut self, entries: impl Iterator<Item = (&'e String, &'e Value)>) {
        for (key, value) in entries {
            self.comma();
            write_json(self.out, key);
            self.out.push(b':');
            write_json(self.out, value);
        }
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

/// How long the first call of a connection waits for a server that is known to ask for folders.
const FIRST: Duration = Duration::from_secs(2);

impl ServerRoots {
    /// Sends a new connection the folders' changes while it lasts. If its server is known to ask for folders, waits for
    /// that first. Must be called inside a runtime.
    pub(crate) async fn follow(&self, peer: &Arc<Peer>) {
        let (roots, inbox, peer_of) = (Arc::clone(&self.roots), Arc::clone(&peer.inbox), Arc::downgrade(peer));
        let mut seen_version = roots.version();
        // The caller may stop waiting: an abandoned connection must leave nothing behind.
        let abandoned = CancellationToken::new();
        let unless_held = abandoned.clone().drop_guard();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = inbox.over.cancelled() => return,
                    () = abandoned.cancelled() => return,
                    newer = roots.newer_than(seen_version) => seen_version = newer,
                }
                let Some(peer) = peer_of.upgrade() else { return };
                if let Err(error) = peer.notify("notifications/roots/list_changed", None).await {
                    tracing::debug!(server = &*inbox.listener.server, "a change of folders was not told: {error:?}");
                }
            }
        });
        if self.are_asked_for() && self.are_known() {
            let inbox = &peer.inbox;
            tokio::select! {
                () = inbox.has_folders() => {}
                () = inbox.over.cancelled() => {}
                () = tokio::time::sleep(FIRST) => if !inbox.has_asked_for_roots() {
                    tracing::debug!(server = &*inbox.listener.server, "it did not ask for folders this time");
                    self.asked_for(false);
                },
            }
        }
        unless_held.disarm();
    }
}

#[cfg(test)]
mod params_tests {
    use super::*;
    use serde_json::json;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn parameters_are_written_once_each() {
        let check = |params: Params<'_>, expect: &str| {
            let expect = format!(r#"{{"jsonrpc":"2.0","id":3,"method":"a\"b","params":{expect}}}"#);
            assert_eq!(String::from_utf8_lossy(&request_json(3, "a\"b", &params)), expect);
            serde_json::from_str::<Value>(&expect).expect("JSON");
        };
        check(Params::default(), "{}");
        check(map(json!({"u\"": "a:b", "_meta": {"x": 1}, "v": [1]})).into(), r#"{"u\"":"a:b","v":[1]}"#);
        let call = Params {
            name: Some("t"),
            arguments: Some(json!({"a": 1})),
            others: map(json!({"task": {}})),
            meta: Meta {
                others: map(json!({"x": 1, "traceparent": "theirs", "progressToken": "theirs"})),
                idempotency_key: Some("k"),
                traceparent: Some("ours"),
                progress_token: Some(7),
            },
        };
        check(
            call.clone(),
            r#"{"name":"t","arguments":{"a":1},"task":{},"_meta":{"x":1,"io.github.toolwright/idempotency-key":"k","traceparent":"ours","progressToken":7}}"#,
        );
        let passed_on = Meta { traceparent: None, progress_token: None, idempotency_key: None, ..call.meta.clone() };
        check(
            Params { meta: passed_on, ..Params::default() },
            r#"{"_meta":{"x":1,"traceparent":"theirs","progressToken":"theirs"}}"#,
        );
    }
}
