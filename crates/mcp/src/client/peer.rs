//! Requests to one server, and their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::protocol::message::{RpcError, notification, read};
use http::{HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::inbox::{Answer, Inbox, NoRoom, Purpose};
use super::params::{self, Params};
use crate::transport::{Outgoing, OutgoingKind, RequestId, SendError, Told, Transport, UNREADABLE};

/// What is said of a request that came too late for its session.
pub(crate) const EXPIRED: &str = "the server has forgotten the session; the next call begins a new one";
/// Bound on telling a server about a cancellation.
const CANCEL_BOUND: Duration = Duration::from_secs(5);

/// A request that failed.
#[derive(Debug)]
pub(crate) enum AskError {
    /// The server says so.
    Rpc(RpcError),
    /// The answer cannot be had; the request may have had its effect.
    Broken(String),
    /// The same, since something went wrong on the server's side; what it says of itself.
    Fault(String),
    /// The request had no effect.
    NotSent(String),
    /// The same, since the server has forgotten the session, or does not speak any more what was agreed on.
    Expired,
    /// The request had no effect, and another would fare no better.
    Final(String),
    /// The connection ended; whether the request may have had its effect.
    Ended(Reached),
    /// Too many requests are in flight.
    Full,
}

/// Whether a request may have reached the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
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

/// One request.
pub(crate) struct Request<'a> {
    /// Its method.
    pub(crate) method: &'a str,
    /// What it names, for the header `Mcp-Name`.
    pub(crate) name: Option<&'a str>,
    /// Headers of its own over HTTP.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// What it is for.
    pub(crate) purpose: Purpose,
    /// The revision that it is written in, where that is not the agreed one.
    pub(crate) version: Option<&'static str>,
}

impl<'a> Request<'a> {
    /// A request for ourselves.
    pub(crate) fn internal(method: &'a str) -> Self {
        Self { method, name: None, headers: Vec::new(), purpose: Purpose::Internal, version: None }
    }
}

/// Our end of a connection.
pub(crate) struct Peer {
    /// What carries it.
    pub(crate) transport: Arc<dyn Transport>,
    /// What arrives over it.
    pub(crate) inbox: Arc<Inbox>,
    next_id: AtomicU64,
}

impl Peer {
    /// An end over `transport`, which hands what arrives to `inbox`.
    pub(crate) fn new(transport: Arc<dyn Transport>, inbox: Arc<Inbox>) -> Arc<Self> {
        inbox.attach(Arc::downgrade(&transport));
        Arc::new(Self { transport, inbox, next_id: AtomicU64::new(1) })
    }

    /// Notes the revision that both ends agreed on.
    pub(crate) fn speak(&self, version: &'static str) {
        // A connection has one handshake that succeeds.
        let _ = self.inbox.version.set(version);
    }

    /// Sends a request and waits for its result, read as an `R`. For a call, a progress token is added to `params`.
    /// Dropping the future tells the server that the result is not wanted any more; nothing waits for the server then.
    ///
    /// # Errors
    /// [`AskError`].
    pub(crate) async fn ask<R>(&self, request: Request<'_>, params: &mut Params<'_>) -> Result<R, AskError>
    where
        R: DeserializeOwned,
    {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let Request { method, name, headers, purpose, version } = request;
        if matches!(purpose, Purpose::Call(_)) {
            params.meta.progress_token = Some(id);
        }
        let mut json = params::request(id, method, params);
        // Room for the line feed of a pipe.
        json.reserve_exact(1);
        let answer = match self.inbox.register(id, purpose) {
            Ok(answer) => answer,
            Err(NoRoom::Full) => return Err(AskError::Full),
            Err(NoRoom::Ended) => return Err(AskError::Ended(Reached::No)),
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
            Ok(Answer::Result(result)) => {
                read(&result).map_err(|problem| AskError::Broken(format!("{UNREADABLE}: {problem}")))
            }
            Ok(Answer::Error(error)) => Err(AskError::Rpc(error)),
            Ok(Answer::Lost(error)) => Err(error.into()),
            Ok(Answer::Ended) => Err(AskError::Ended(Reached::Perhaps)),
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

    /// Tells the server that an answer is not wanted any more.
    fn cancel(&self, id: RequestId) {
        if self.transport.abandon(id) == Told::Yes {
            return self.inbox.asks_no_more_for(id);
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let params = json!({"requestId": id, "reason": "the result is not wanted any more"});
        let method = "notifications/cancelled";
        let json = notification(method, Some(&params)).to_vec();
        let kind = OutgoingKind::Notification { method };
        let message = Outgoing { json, kind, version: self.version(), headers: Vec::new() };
        let transport = Arc::clone(&self.transport);
        runtime.spawn(async move {
            // A server that takes no cancellation is found out by the probe.
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
        inbox.give_up(self.id);
        if !inbox.over.is_cancelled() {
            self.peer.cancel(self.id);
        }
    }
}
