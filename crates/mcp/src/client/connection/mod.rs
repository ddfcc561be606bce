//! A connection to a server, from its handshake to its end.

pub(crate) mod connect;
pub(crate) mod handshake;
pub(crate) mod inbox;
pub(crate) mod managed;
pub(crate) mod peer;
pub(crate) mod pool;
mod sessions;
pub(crate) mod subscription;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::handshake::{ServerInfo, modern_meta};
use self::inbox::elicitation_pages::ElicitationPages;
use self::inbox::{Caller, Inbox};
use self::peer::{AskError, MayHaveReached, Params, Peer, Request};
use self::subscription::{FollowedResources, LogLevel, follow};
use crate::protocol::revision::Era;
use crate::transport::{Incoming as _, RequestId, is_reply_failure};

/// Bound on learning why a connection has ended.
const CAUSE_BOUND: Duration = Duration::from_secs(2);
/// Time limit for closing a connection, including the end of its process.
const CLOSE_BOUND: Duration = Duration::from_secs(2);
/// Bound on telling how much to log.
const LOG_LEVEL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bound on the answer to a probe.
const PROBE_BOUND: Duration = Duration::from_secs(5);
/// Time limit for an older server to list its tools after it has answered a ping: computing them may
/// take a while.
const PROBE_LIST_BOUND: Duration = Duration::from_secs(20);
/// How long a server may be silent after a caller gave up, once its older calls are done: single-threaded servers
/// are silent during calls.
const SILENCE: Duration = Duration::from_secs(10);

/// A connection in use.
pub(crate) struct Connection {
    peer: Arc<Peer>,
    server: ServerInfo,
    log_level: Arc<LogLevel>,
    close: CancellationToken,
    /// Cancelled when another connection takes over the subscriptions.
    retired: CancellationToken,
    /// Why we ended it, if we did.
    verdict: OnceLock<String>,
    end: watch::Sender<Option<Arc<str>>>,
    probing: AtomicBool,
    watching: AtomicBool,
    teller: Arc<LevelSender>,
}

/// Ensures that only one task at a time sends the log level.
#[derive(Default)]
struct LevelSender(Mutex<LevelSending>);

#[derive(Default, Clone, Copy)]
enum LevelSending {
    /// Nobody is sending.
    #[default]
    No,
    /// A task is sending.
    Once,
    /// A task is sending and must check once more.
    Again,
}

impl LevelSender {
    /// Whether another task is already sending, which will check once more; otherwise the caller must send.
    fn is_sending_in_other_task(&self) -> bool {
        let mut sending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was = std::mem::replace(&mut *sending, LevelSending::Again);
        if matches!(was, LevelSending::No) {
            *sending = LevelSending::Once;
        }
        !matches!(was, LevelSending::No)
    }

    /// Whether there is nothing more to send.
    fn is_finished(&self) -> bool {
        let mut sending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sending = if matches!(*sending, LevelSending::Again) { LevelSending::Once } else { LevelSending::No };
        matches!(*sending, LevelSending::No)
    }
}

impl Connection {
    /// A connection after its handshake. It takes over subscriptions and log level of the previous connection.
    /// Must be called inside a runtime.
    pub(crate) fn new(
        peer: Arc<Peer>,
        server: ServerInfo,
        followed: &Arc<FollowedResources>,
        log_level: &Arc<LogLevel>,
    ) -> Arc<Self> {
        let retired = peer.inbox.over.child_token();
        tokio::spawn(follow(Arc::clone(&peer), server.clone(), Arc::clone(followed), retired.clone()));
        let connection = Arc::new(Self {
            peer: Arc::clone(&peer),
            server,
            log_level: Arc::clone(log_level),
            close: CancellationToken::new(),
            retired,
            verdict: OnceLock::new(),
            end: watch::Sender::new(None),
            probing: AtomicBool::new(false),
            watching: AtomicBool::new(false),
            teller: Arc::default(),
        });
        connection.send_level();
        let (watched, close) = (Arc::downgrade(&connection), connection.close.clone());
        tokio::spawn(async move {
            let ended_itself = tokio::select! {
                () = peer.inbox.over.cancelled() => true,
                () = close.cancelled() => false,
            };
            close.cancel();
            let end_reason = if ended_itself { peer.transport.end_reason().await } else { None };
            if !ended_itself {
                peer.transport.close().await;
            }
            if let Some(connection) = watched.upgrade() {
                let cause = connection.verdict.get().cloned().or(end_reason);
                let cause = cause.or_else(|| peer.inbox.last_word.get().cloned());
                connection.end.send_replace(Some(cause.unwrap_or_default().into()));
            }
            if ended_itself {
                peer.transport.close().await;
            }
            // Regardless of the transport's result.
            peer.inbox.ended("the connection is closed".to_owned());
        });
        connection
    }

    /// The server's log level, kept across connections.
    pub(crate) fn log_level(&self) -> &LogLevel {
        &self.log_level
    }

    /// Sends the log level to the server, if one is set. One send at a time, each bounded by ten seconds and the
    /// end of the connection; changes during it are sent afterwards. Must be called inside a runtime.
    pub(crate) fn send_level(&self) {
        if self.teller.is_sending_in_other_task() {
            return;
        }
        let (peer, server) = (Arc::clone(&self.peer), self.server.clone());
        let (level, teller) = (Arc::clone(&self.log_level), Arc::clone(&self.teller));
        tokio::spawn(async move {
            let mut last = None;
            loop {
                let sent = tokio::time::timeout(LOG_LEVEL_TIMEOUT, level.send_level(&peer, &server, &mut last));
                tokio::select! {
                    sent = sent => if sent.is_err() {
                        tracing::debug!(server = &*peer.inbox.listener.server, "it answers no log level");
                    },
                    () = peer.inbox.over.cancelled() => {}
                }
                if teller.is_finished() {
                    return;
                }
            }
        });
    }

    /// Pages that its users must visit.
    pub(crate) fn pages(&self) -> &ElicitationPages {
        &self.peer.inbox.pages
    }

    /// The server's self-description.
    pub(crate) fn server(&self) -> &ServerInfo {
        &self.server
    }

    /// Lists tools again. Must be called inside a runtime.
    pub(crate) fn tools_have_changed(&self) {
        self.peer.inbox.listener.tools_changed();
    }

    /// Whether it takes no new calls: the session is forgotten, or the process has closed its input.
    pub(crate) fn is_expired(&self) -> bool {
        self.peer.inbox.has_expired()
    }

    /// Whether nothing can be sent any more: the process has closed its input.
    pub(crate) fn is_write_closed(&self) -> bool {
        self.peer.transport.is_write_closed()
    }

    /// Whether it has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.close.is_cancelled() || self.peer.inbox.over.is_cancelled()
    }

    /// Hands subscriptions over to its successor. From then on it only serves its running calls,
    /// and ends with them.
    pub(crate) fn retire(&self) {
        self.retired.cancel();
    }

    /// Waits for its end; returns the reason, with a process's last output. Does not keep the connection.
    pub(crate) fn ending(&self) -> impl Future<Output = Arc<str>> + Send + use<> {
        let mut end = self.end.subscribe();
        async move {
            match end.wait_for(Option::is_some).await {
                Ok(cause) => cause.clone().unwrap_or_default(),
                Err(_) => "the connection is closed".into(),
            }
        }
    }

    /// Ends it without waiting.
    pub(crate) fn close_now(&self) {
        self.close.cancel();
    }

    /// Ends it: input closed, a grace, then signals to the process tree; bounded by two seconds.
    pub(crate) async fn close(&self, reason: &str) {
        // The first verdict is kept.
        let _ = self.verdict.set(reason.to_owned());
        self.close.cancel();
        if tokio::time::timeout(CLOSE_BOUND, self.ending()).await.is_err() {
            tracing::debug!("a connection was not closed within {CLOSE_BOUND:?}");
        }
    }

    /// Sends a request of ours, without a call behind it, and waits for its result.
    ///
    /// # Errors
    /// [`AskError`].
    pub(crate) async fn ask_without_caller<R>(&self, method: &str, params: Map<String, Value>) -> Result<R, AskError>
    where
        R: DeserializeOwned,
    {
        let mut params = Params::from(params);
        if self.server.era == Era::Modern {
            params.meta.others = modern_meta(Map::new());
        }
        self.ask(Request::internal(method), &mut params).await
    }

    /// Sends a request with complete `_meta` and waits for its result. Dropping the future sends a cancellation
    /// without waiting for the server.
    ///
    /// # Errors
    /// [`AskError`]; never [`AskError::Ended`], which becomes its reason.
    pub(crate) async fn ask<R>(&self, request: Request<'_>, params: &mut Params<'_>) -> Result<R, AskError>
    where
        R: DeserializeOwned,
    {
        match pin!(self.peer.ask(request, params)).await {
            Err(AskError::Ended(reached)) => {
                let cause = Box::pin(self.cause()).await;
                Err(if reached == MayHaveReached::Perhaps { AskError::Broken(cause) } else { AskError::NotSent(cause) })
            }
            other => other,
        }
    }

    /// Routes progress and questions of an answered request to `caller` until the guard is dropped.
    pub(crate) fn hold(&self, id: RequestId, caller: Caller) -> HeldRequest {
        self.peer.inbox.hold(id, caller);
        HeldRequest { inbox: Arc::clone(&self.peer.inbox), id }
    }

    /// Why a connection that is ending ends.
    async fn cause(&self) -> String {
        match tokio::time::timeout(CAUSE_BOUND, self.ending()).await {
            Ok(cause) => cause.to_string(),
            Err(_) => "the connection is closed".to_owned(),
        }
    }

    /// Checks a server after a caller gave up before its time limit: it is asked at once, if it has
    /// nothing newer to do, and the connection is ended if nothing arrives for long. One check at a time.
    pub(crate) fn watch(self: &Arc<Self>) {
        if self.is_closed() || self.watching.swap(true, Ordering::AcqRel) {
            return;
        }
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            let (method, name) = match connection.server.era {
                Era::Legacy => ("ping", "a ping"),
                Era::Modern => ("server/discover", "server/discover"),
            };
            let inbox = &connection.peer.inbox;
            let silent = inbox.wait_for_silence(SILENCE);
            let is_sick = tokio::select! {
                is_silent = silent => is_silent,
                // Any answer counts. Others will notice if nothing could be sent.
                _ = connection.ask_without_caller::<IgnoredAny>(method, Map::new()) => false,
                () = inbox.over.cancelled() => false,
                () = connection.close.cancelled() => false,
            };
            connection.watching.store(false, Ordering::Release);
            if is_sick && !connection.is_closed() {
                connection.close(&stopped(name)).await;
            }
        });
    }

    /// Checks a server after a call reached its time limit, and ends the connection if the server does not respond.
    /// One check at a time, and none on a connection that takes no new calls: it ends with its last call.
    pub(crate) fn probe(self: &Arc<Self>) {
        if self.is_closed() || self.is_expired() || self.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            let checks: &[_] = match connection.server.era {
                // A server that answers a ping may still be stuck.
                Era::Legacy => &[("ping", "a ping", PROBE_BOUND), ("tools/list", "tools/list", PROBE_LIST_BOUND)],
                Era::Modern => &[("tools/list", "tools/list", PROBE_BOUND)],
            };
            let mut sick = None;
            for (method, name, bound) in checks {
                let answered = connection.ask_without_caller::<IgnoredAny>(method, Map::new());
                sick = match tokio::time::timeout(*bound, answered).await {
                    // A refusal is an answer too; a server without capacity for the probe is not sick.
                    Ok(Ok(_) | Err(AskError::Rpc(_) | AskError::Full)) => None,
                    Ok(Err(AskError::Broken(reason))) if is_reply_failure(&reason) => None,
                    Ok(Err(_)) | Err(_) => Some(*name),
                };
                if sick.is_some() {
                    break;
                }
            }
            connection.probing.store(false, Ordering::Release);
            if let Some(name) = sick
                && !connection.is_closed()
            {
                connection.close(&stopped(name)).await;
            }
        });
    }
}

/// Why a server was stopped that did not answer `name` either.
fn stopped(name: &str) -> String {
    format!("it answered neither a call nor {name} in time and was stopped")
}

/// A request that was answered but continues.
pub(crate) struct HeldRequest {
    inbox: Arc<Inbox>,
    id: RequestId,
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        self.inbox.forget(self.id);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close.cancel();
    }
}
