//! One connection to a server, from its handshake to its end.

pub(crate) mod connect;
pub(crate) mod handshake;
pub(crate) mod inbox;
pub(crate) mod managed;
pub(crate) mod peer;
pub(crate) mod pool;
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
use self::inbox::pages::Pages;
use self::inbox::{Caller, Inbox};
use self::peer::{AskError, Params, Peer, Reached, Request};
use self::subscription::{Followed, LogLevel, follow};
use crate::protocol::revision::Era;
use crate::transport::{Incoming as _, RequestId, has_come};

/// Bound on learning why a connection has ended.
const CAUSE_BOUND: Duration = Duration::from_secs(2);
/// Bound on closing a connection, the end of its process included.
const CLOSE_BOUND: Duration = Duration::from_secs(2);
/// Bound on telling how much to log.
const TELL_BOUND: Duration = Duration::from_secs(10);
/// Bound on the answer to a probe.
const PROBE_BOUND: Duration = Duration::from_secs(5);
/// Bound on the list that an older server is asked for once it has answered a ping: one that works out its tools may
/// take a while.
const PROBE_LIST_BOUND: Duration = Duration::from_secs(20);
/// How long a server that somebody gave up may say nothing at all, once it is done with older calls: servers that do one
/// thing at a time say nothing during them.
const SILENCE: Duration = Duration::from_secs(10);

/// A connection in use.
pub(crate) struct Connection {
    peer: Arc<Peer>,
    server: ServerInfo,
    log_level: Arc<LogLevel>,
    close: CancellationToken,
    /// Cancelled once another connection is to follow what this one followed.
    retired: CancellationToken,
    /// Why we ended it, if we did.
    verdict: OnceLock<String>,
    end: watch::Sender<Option<Arc<str>>>,
    probing: AtomicBool,
    watching: AtomicBool,
    teller: Arc<Teller>,
}

/// Whether somebody tells the server how much to log.
#[derive(Default)]
struct Teller(Mutex<Telling>);

#[derive(Default, Clone, Copy)]
enum Telling {
    /// Nobody does.
    #[default]
    No,
    /// Somebody does.
    Once,
    /// And is to look once more.
    Again,
}

impl Teller {
    /// Whether somebody tells it already; they look once more then. Else whoever asks is to tell it.
    fn is_begun_by_another(&self) -> bool {
        let mut telling = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was = std::mem::replace(&mut *telling, Telling::Again);
        if matches!(was, Telling::No) {
            *telling = Telling::Once;
        }
        !matches!(was, Telling::No)
    }

    /// Whether there is nothing more to tell.
    fn is_at_its_end(&self) -> bool {
        let mut telling = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *telling = if matches!(*telling, Telling::Again) { Telling::Once } else { Telling::No };
        matches!(*telling, Telling::No)
    }
}

impl Connection {
    /// Takes over after a handshake. What was followed, and how much is logged, goes on as on the connection before.
    /// Must be called inside a runtime.
    pub(crate) fn new(
        peer: Arc<Peer>,
        server: ServerInfo,
        followed: &Arc<Followed>,
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
            let said = if ended_itself { peer.transport.end_reason().await } else { None };
            if !ended_itself {
                peer.transport.close().await;
            }
            if let Some(connection) = watched.upgrade() {
                let cause = connection.verdict.get().cloned().or(said);
                let cause = cause.or_else(|| peer.inbox.last_word.get().cloned());
                connection.end.send_replace(Some(cause.unwrap_or_default().into()));
            }
            if ended_itself {
                peer.transport.close().await;
            }
            // Whatever the transport says of it.
            peer.inbox.ended("the connection is closed".to_owned());
        });
        connection
    }

    /// How much its server is to log, on this connection and those that follow it.
    pub(crate) fn log_level(&self) -> &LogLevel {
        &self.log_level
    }

    /// Has the server told how much to log, if that is known. One telling at a time, each bounded by ten seconds and the
    /// end of the connection; what comes meanwhile is told after it. Must be called inside a runtime.
    pub(crate) fn send_level(&self) {
        if self.teller.is_begun_by_another() {
            return;
        }
        let (peer, server) = (Arc::clone(&self.peer), self.server.clone());
        let (level, teller) = (Arc::clone(&self.log_level), Arc::clone(&self.teller));
        tokio::spawn(async move {
            let mut last = None;
            loop {
                let sent = tokio::time::timeout(TELL_BOUND, level.tell(&peer, &server, &mut last));
                tokio::select! {
                    sent = sent => if sent.is_err() {
                        tracing::debug!(server = &*peer.inbox.listener.server, "it answers no log level");
                    },
                    () = peer.inbox.over.cancelled() => {}
                }
                if teller.is_at_its_end() {
                    return;
                }
            }
        });
    }

    /// What its users have to do elsewhere.
    pub(crate) fn pages(&self) -> &Pages {
        &self.peer.inbox.pages
    }

    /// What the server said of itself.
    pub(crate) fn server(&self) -> &ServerInfo {
        &self.server
    }

    /// Has the list of tools asked for again. Must be called inside a runtime.
    pub(crate) fn tools_have_changed(&self) {
        self.peer.inbox.listener.tools_changed();
    }

    /// Whether it takes no new calls: the session is forgotten, or the process has closed its input.
    pub(crate) fn is_expired(&self) -> bool {
        self.peer.inbox.has_expired()
    }

    /// Whether nothing can be sent over it any more: a process has closed its input.
    pub(crate) fn is_write_closed(&self) -> bool {
        self.peer.transport.is_write_closed()
    }

    /// Whether it is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.close.is_cancelled() || self.peer.inbox.over.is_cancelled()
    }

    /// Leaves what is followed to the connection that comes after this one, which is only for the calls on it from here
    /// on, and ends with them.
    pub(crate) fn retire(&self) {
        self.retired.cancel();
    }

    /// Waits for its end; the reason, with a process's last words. Does not keep the connection.
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
    pub(crate) fn hang_up(&self) {
        self.close.cancel();
    }

    /// Ends it: input closed, a grace, then signals to the process tree; bounded by two seconds.
    pub(crate) async fn close(&self, reason: &str) {
        // The first verdict stands.
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
    pub(crate) async fn ask_plainly<R>(&self, method: &str, params: Map<String, Value>) -> Result<R, AskError>
    where
        R: DeserializeOwned,
    {
        let mut params = Params::from(params);
        if self.server.era == Era::Modern {
            params.meta.others = modern_meta(Map::new());
        }
        self.ask(Request::internal(method), &mut params).await
    }

    /// Sends a request whose `_meta` is complete and waits for its result. Dropping the future tells the server
    /// that the result is not wanted any more; nothing waits for the server then.
    ///
    /// # Errors
    /// [`AskError`]; never [`AskError::Ended`], whose reason is told.
    pub(crate) async fn ask<R>(&self, request: Request<'_>, params: &mut Params<'_>) -> Result<R, AskError>
    where
        R: DeserializeOwned,
    {
        match pin!(self.peer.ask(request, params)).await {
            Err(AskError::Ended(reached)) => {
                let cause = Box::pin(self.cause()).await;
                Err(if reached == Reached::Perhaps { AskError::Broken(cause) } else { AskError::NotSent(cause) })
            }
            other => other,
        }
    }

    /// Has progress and questions of a request that has been answered go to `caller` until this is dropped.
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

    /// Checks a server that somebody gave up before their time limit, with more patience: it is asked at once, while it has
    /// nothing newer to do, and the connection is ended if nothing at all comes for long. One such check at a time.
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
            let silent = inbox.falls_silent(SILENCE);
            let is_sick = tokio::select! {
                is_silent = silent => is_silent,
                // Whatever it answers. What could not be sent is for others to find out.
                _ = connection.ask_plainly::<IgnoredAny>(method, Map::new()) => false,
                () = inbox.over.cancelled() => false,
                () = connection.close.cancelled() => false,
            };
            connection.watching.store(false, Ordering::Release);
            if is_sick && !connection.is_closed() {
                connection.close(&stopped(name)).await;
            }
        });
    }

    /// Checks a server that let a call run into its time limit, and ends the connection if it is sick.
    /// One check at a time, and none of a connection that takes no new calls: it ends with those on it.
    pub(crate) fn probe(self: &Arc<Self>) {
        if self.is_closed() || self.is_expired() || self.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            let checks: &[_] = match connection.server.era {
                // One that answers a ping may be stuck behind it all the same.
                Era::Legacy => &[("ping", "a ping", PROBE_BOUND), ("tools/list", "tools/list", PROBE_LIST_BOUND)],
                Era::Modern => &[("tools/list", "tools/list", PROBE_BOUND)],
            };
            let mut sick = None;
            for (method, name, bound) in checks {
                let answered = connection.ask_plainly::<IgnoredAny>(method, Map::new());
                sick = match tokio::time::timeout(*bound, answered).await {
                    // A refusal is an answer too; who is too busy to be asked is not sick.
                    Ok(Ok(_) | Err(AskError::Rpc(_) | AskError::Full)) => None,
                    Ok(Err(AskError::Broken(reason))) if has_come(&reason) => None,
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

/// A request that has been answered and goes on all the same.
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
