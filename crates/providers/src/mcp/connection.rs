//! One connection to a server, from its handshake to its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rmcp::model::{
    CancelledNotificationParam, ClientRequest, ErrorData, GetExtensions as _, ListToolsRequest, PingRequest, RequestId,
    RequestMetaObject, ServerPeerInfo, SubscriptionFilter,
};
use rmcp::service::{Peer, PeerRequestOptions, RoleClient, RunningService, ServiceError};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolwright_core::context::PartialSink;

use super::handler::Handler;
use super::http::HttpPeer;
use super::inbox::{Answer, Inbox, MAX_IN_FLIGHT, Ticket, TicketRef, Typed};
use super::process::Process;

/// How long the end of a process may lag behind that of its output.
const END_LAG: Duration = Duration::from_secs(1);
/// Bound on closing a connection, the end of its process included.
const CLOSE_BOUND: Duration = Duration::from_secs(2);
/// Bound on telling a server about a cancellation.
const CANCEL_BOUND: Duration = Duration::from_secs(5);
/// Bound on the answer to a probe.
const PROBE_BOUND: Duration = Duration::from_secs(5);
/// First and longest pause before a broken subscription is made again.
const SUBSCRIBE_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generation {
    /// `initialize`, up to 2025-11-25.
    Legacy,
    /// `server/discover` and stateless requests, 2026-07-28.
    Modern,
}

/// What carries a connection.
pub(super) enum Carrier {
    /// A child process.
    Process(Process),
    /// HTTP.
    Http(HttpPeer),
}

/// A request that failed.
#[derive(Debug)]
pub(super) enum AskError {
    /// The server says so.
    Rpc(ErrorData),
    /// The answer cannot be had; the request may have had its effect.
    Broken(String),
    /// The request had no effect.
    NotSent(String),
    /// Too many requests are in flight.
    Full,
}

/// A connection in use.
pub(super) struct Connection {
    peer: Peer<RoleClient>,
    generation: Generation,
    inbox: Arc<Inbox>,
    carrier: Carrier,
    close: CancellationToken,
    /// Why we ended it, if we did.
    verdict: OnceLock<String>,
    end: watch::Sender<Option<Arc<str>>>,
    probing: AtomicBool,
}

impl Connection {
    /// Takes over after a handshake; `close` is the token that `running` was started with.
    pub(super) fn new(
        running: RunningService<RoleClient, Arc<Handler>>,
        generation: Generation,
        inbox: Arc<Inbox>,
        carrier: Carrier,
        close: CancellationToken,
    ) -> Arc<Self> {
        let connection = Arc::new(Self {
            peer: running.peer().clone(),
            generation,
            inbox,
            carrier,
            close,
            verdict: OnceLock::new(),
            end: watch::Sender::new(None),
            probing: AtomicBool::new(false),
        });
        if generation == Generation::Modern && connection.announces_changes() {
            let tools_changed = Arc::clone(&running.service().tools_changed);
            tokio::spawn(subscribe(connection.peer.clone(), tools_changed, connection.close.clone()));
        }
        let watched = Arc::downgrade(&connection);
        tokio::spawn(async move {
            // How the service ended does not matter: it has.
            let _ = running.waiting().await;
            if let Some(connection) = watched.upgrade() {
                connection.close.cancel();
                let cause = connection.cause_of_end().await;
                connection.end.send_replace(Some(cause.into()));
            }
        });
        connection
    }

    /// What the server speaks.
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// What the server said of itself.
    pub(super) fn server_info(&self) -> Option<Arc<ServerPeerInfo>> {
        self.peer.peer_info()
    }

    /// Whether a new session must be made.
    pub(super) fn is_expired(&self) -> bool {
        matches!(&self.carrier, Carrier::Http(http) if http.is_expired())
    }

    /// Whether it is over.
    pub(super) fn is_closed(&self) -> bool {
        self.close.is_cancelled() || self.peer.is_transport_closed()
    }

    /// Waits for its end; the reason, with a process's last words.
    pub(super) async fn ended(&self) -> Arc<str> {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await {
            Ok(cause) => cause.clone().unwrap_or_default(),
            Err(_) => "the connection is closed".into(),
        }
    }

    /// Ends it without waiting.
    pub(super) fn hang_up(&self) {
        self.close.cancel();
    }

    /// Ends it: input closed, a grace, then signals to the process tree; bounded by two seconds.
    pub(super) async fn close(&self, reason: &str) {
        // The first verdict stands.
        let _ = self.verdict.set(reason.to_owned());
        self.close.cancel();
        let closed = async {
            self.ended().await;
            if let Carrier::Process(process) = &self.carrier {
                process.stop().await;
            }
        };
        if tokio::time::timeout(CLOSE_BOUND, closed).await.is_err() {
            tracing::debug!("a connection was not closed within {CLOSE_BOUND:?}");
        }
    }

    async fn cause_of_end(&self) -> String {
        if let Some(verdict) = self.verdict.get() {
            return verdict.clone();
        }
        match &self.carrier {
            Carrier::Process(process) => process.epitaph(END_LAG).await,
            Carrier::Http(http) => {
                http.last_failure().map_or_else(|| "the connection is closed".to_owned(), |failure| failure.to_string())
            }
        }
    }

    fn announces_changes(&self) -> bool {
        let tools = self.server_info().and_then(|info| info.capabilities.tools.clone());
        tools.is_some_and(|tools| tools.list_changed == Some(true))
    }

    /// Sends a request and waits for its raw result. Dropping the future tells the server that the result
    /// is not wanted any more; nothing waits for the server then.
    pub(super) async fn ask(
        &self,
        mut request: ClientRequest,
        meta: RequestMetaObject,
        partials: Option<Arc<dyn PartialSink>>,
    ) -> Result<Value, AskError> {
        if self.inbox.len() >= MAX_IN_FLIGHT {
            return Err(AskError::Full);
        }
        // What rmcp learns from a list matters over modern HTTP only.
        let learns = matches!(request, ClientRequest::ListToolsRequest(_))
            && self.generation == Generation::Modern
            && matches!(self.carrier, Carrier::Http(_));
        let (ticket, mut answer) = Ticket::new(if learns { Typed::Yes } else { Typed::No }, partials);
        request.extensions_mut().insert(TicketRef(Arc::clone(&ticket)));
        let options = PeerRequestOptions::no_options().with_meta(meta);
        let Ok(mut handle) = self.peer.send_cancellable_request(request, options).await else {
            return Err(AskError::NotSent(self.cause().await));
        };
        let mut in_flight = InFlight { connection: self, ticket: &ticket, id: handle.id.clone(), wanted: true };
        let response = tokio::select! {
            biased;
            answer = &mut answer => {
                if matches!(answer, Ok(Answer::Result(_))) {
                    in_flight.wanted = false;
                    // rmcp is about to learn that the request has been answered; it complains if nobody listens.
                    let _ = (&mut handle.rx).await;
                }
                return settled(answer.ok());
            }
            response = &mut handle.rx => response,
        };
        in_flight.wanted = false;
        let answer = answer.try_recv().ok();
        match response {
            _ if answer.is_some() => settled(answer),
            Ok(Err(ServiceError::McpError(error))) => Err(AskError::Rpc(error)),
            Ok(Ok(typed)) => serde_json::to_value(typed).map_err(|error| AskError::Broken(error.to_string())),
            Ok(Err(ServiceError::TransportSend(error))) if !ticket.was_dispatched() => {
                Err(AskError::NotSent(error.error.to_string()))
            }
            // One response has ended, not the connection (HTTP).
            Ok(Err(ServiceError::TransportClosed)) if !self.is_closed() => {
                Err(AskError::Broken("the server ended its response before the result".to_owned()))
            }
            Ok(Err(error)) if !self.is_closed() => Err(AskError::Broken(error.to_string())),
            Ok(Err(_)) | Err(_) => {
                let cause = self.cause().await;
                Err(if ticket.was_dispatched() { AskError::Broken(cause) } else { AskError::NotSent(cause) })
            }
        }
    }

    /// Why a connection that is ending ends.
    async fn cause(&self) -> String {
        match tokio::time::timeout(END_LAG * 2, self.ended()).await {
            Ok(cause) => cause.to_string(),
            Err(_) => "the connection is closed".to_owned(),
        }
    }

    /// Checks a server that let a call run into its time limit, and ends the connection if it is sick.
    /// One check at a time.
    pub(super) fn probe(self: &Arc<Self>) {
        if self.is_closed() || self.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            let (request, name): (ClientRequest, _) = match connection.generation {
                Generation::Legacy => (PingRequest::default().into(), "a ping"),
                Generation::Modern => (ListToolsRequest::default().into(), "tools/list"),
            };
            let answered =
                connection.peer.send_request_with_option(request, PeerRequestOptions::with_timeout(PROBE_BOUND));
            let answered = async { answered.await?.await_response().await };
            let sick = match tokio::time::timeout(PROBE_BOUND * 2, answered).await {
                // A refusal is an answer too.
                Ok(Ok(_) | Err(ServiceError::McpError(_))) => false,
                Ok(Err(_)) | Err(_) => true,
            };
            connection.probing.store(false, Ordering::Release);
            if sick && !connection.is_closed() {
                connection.close(&format!("it answered neither a call nor {name} in time and was stopped")).await;
            }
        });
    }
}

fn settled(answer: Option<Answer>) -> Result<Value, AskError> {
    match answer {
        Some(Answer::Result(value)) => Ok(value),
        Some(Answer::Broken(reason)) => Err(AskError::Broken(reason)),
        Some(Answer::NotSent(reason)) => Err(AskError::NotSent(reason)),
        None => Err(AskError::Broken("the request was lost".to_owned())),
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

/// A request on its way: dropped unanswered, it is cancelled at the server.
struct InFlight<'a> {
    connection: &'a Connection,
    ticket: &'a Ticket,
    id: RequestId,
    wanted: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.ticket.abandon();
        self.connection.inbox.forget(&self.id);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.wanted || self.connection.is_closed() {
            return;
        }
        let peer = self.connection.peer.clone();
        let reason = "the result is not wanted any more".to_owned();
        let cancelled = CancelledNotificationParam::new(Some(self.id.clone()), Some(reason));
        runtime.spawn(async move {
            // A server that takes no cancellation is found out by the probe.
            let _ = tokio::time::timeout(CANCEL_BOUND, peer.notify_cancelled(cancelled)).await;
        });
    }
}

/// Follows a 2026-07-28 server's announcements, which older ones send unasked.
async fn subscribe(peer: Peer<RoleClient>, tools_changed: Arc<dyn Fn() + Send + Sync>, close: CancellationToken) {
    let (first, longest) = SUBSCRIBE_PAUSES;
    let mut pause = first;
    let follow = async {
        loop {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            match peer.listen(filter).await {
                Ok(mut subscription) => {
                    let since = Instant::now();
                    while let Ok(Some(_)) = subscription.next().await {
                        tools_changed();
                    }
                    if since.elapsed() > longest {
                        pause = first;
                    }
                }
                Err(ServiceError::McpError(error)) => {
                    tracing::debug!("no subscription to tool changes: {}", error.message);
                    return;
                }
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
            // What was announced meanwhile was missed.
            tools_changed();
        }
    };
    tokio::select! {
        () = follow => {}
        () = close.cancelled() => {}
    }
}
