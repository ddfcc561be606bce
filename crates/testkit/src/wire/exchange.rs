//! Lets a handler send messages while a request runs, besides its answer.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::outlet::Outlet;
use super::session::Session;
use super::{Change, Era, Listeners, META, Request, RpcError};

/// The time that a client, or its user, has for an answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(300);

/// The severity of a log message (RFC 5424), in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl Level {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Debug, "debug"),
        (Self::Info, "info"),
        (Self::Notice, "notice"),
        (Self::Warning, "warning"),
        (Self::Error, "error"),
        (Self::Critical, "critical"),
        (Self::Alert, "alert"),
        (Self::Emergency, "emergency"),
    ];

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, own)| *own == name).map(|(level, _)| level)
    }

    fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(level, _)| *level == self).map_or("info", |(_, name)| name)
    }
}

pub(crate) struct Exchange {
    pub(super) listeners: Arc<Listeners>,
    pub(super) outlet: Outlet,
    pub(super) session: Arc<Session>,
    pub(super) client_capabilities: Value,
    pub(super) cancel: CancellationToken,
}

impl Exchange {
    /// Sends a notification that belongs to this request.
    async fn notify(&self, method: &str, params: Value) {
        self.outlet.message(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Reports progress if the client asked for it.
    pub(crate) async fn progress(&self, request: &Request, done: u64, total: u64) {
        if let Some(token) = request.meta("progressToken") {
            self.notify("notifications/progress", json!({"progressToken": token, "progress": done, "total": total}))
                .await;
        }
    }

    /// Sends a log message if the client wants this severity: for the request (modern), or for the session (legacy,
    /// where [`Level::Info`] and above are sent until the client sets a level).
    pub(crate) async fn log(&self, request: &Request, level: Level, data: &str) {
        let wanted = match request.era {
            Era::Modern => request.meta(&format!("{META}logLevel")).and_then(Value::as_str).and_then(Level::parse),
            Era::Legacy => match self.session.log_level() {
                Some(name) => Level::parse(&name),
                None => Some(Level::Info),
            },
        };
        if wanted.is_some_and(|wanted| level >= wanted) {
            let entry = json!({"level": level.name(), "logger": "testkit", "data": data});
            self.notify("notifications/message", entry).await;
        }
    }

    /// Sends a request to a legacy client during its own request.
    pub(crate) async fn ask(&self, method: &str, params: &Value) -> Result<Value, RpcError> {
        let busy = || RpcError::new(RpcError::BUSY, "too many questions are open");
        let (id, answer) = self.session.begin_ask().ok_or_else(busy)?;
        let mut question = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        if method == "roots/list"
            && let Some(question) = question.as_object_mut()
        {
            question.remove("params");
        }
        self.outlet.message(&question).await;
        let answer = tokio::select! {
            answer = answer => answer.map_err(|_| RpcError::new(RpcError::INTERNAL, "the client has gone")),
            () = self.cancel.cancelled() => Err(RpcError::new(RpcError::INTERNAL, "the request was cancelled")),
            () = tokio::time::sleep(ASK_TIMEOUT) => Err(RpcError::new(RpcError::INTERNAL, "the client did not answer")),
        };
        if answer.is_err() {
            self.session.forget_ask(&id);
            self.notify("notifications/cancelled", json!({"requestId": id})).await;
        }
        answer?
    }

    /// Writes raw bytes into the stream of the answer.
    pub(crate) async fn raw(&self, bytes: &[u8]) {
        self.outlet.raw(bytes).await;
    }

    /// Ends the connection of the answer if the client can resume it.
    pub(crate) async fn disconnect(&self) {
        if let Outlet::Resumable(log) = &self.outlet {
            log.disconnect().await;
        }
    }

    /// Notifies every listener.
    pub(crate) async fn announce(&self, change: &Change) {
        self.listeners.announce(change).await;
    }

    pub(crate) fn client_has(&self, capability: &str) -> bool {
        self.client_capabilities.get(capability).is_some()
    }

    pub(crate) fn client_extends(&self, extension: &str) -> bool {
        self.client_capabilities.get("extensions").is_some_and(|extensions| extensions.get(extension).is_some())
    }

    /// Whether the client has cancelled this request or hung up.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Resolves when the client cancels this request or hangs up.
    pub(crate) async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}
