//! What both transports share: the protocol's own methods, sessions, and who listens for changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, Stdout};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Answer, Era, Exchange, LEGACY, MAX_RUNNING, META, Request, RpcError, Server, modern};

/// Most clients that may listen for changes; later ones are refused.
const MAX_LISTENERS: usize = 64;

/// Where the messages of one request or one listener go.
#[derive(Clone)]
pub(super) enum Outlet {
    Stdout(Arc<tokio::sync::Mutex<Stdout>>),
    /// The body of one HTTP response, as an event stream.
    Stream(mpsc::Sender<Frame>),
}

pub(super) enum Frame {
    Event(Bytes),
    Last(Answer),
}

impl Outlet {
    pub(super) async fn message(&self, message: &Value) -> bool {
        self.raw(&match self {
            Self::Stdout(_) => format!("{message}\n").into_bytes(),
            Self::Stream(_) => event(message),
        })
        .await
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Stdout(_) => true,
            Self::Stream(frames) => !frames.is_closed(),
        }
    }

    /// Whether the other side still takes anything.
    pub(super) async fn raw(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Stdout(stdout) => {
                let mut stdout = stdout.lock().await;
                stdout.write_all(bytes).await.is_ok() && stdout.flush().await.is_ok()
            }
            Self::Stream(frames) => frames.send(Frame::Event(Bytes::copy_from_slice(bytes))).await.is_ok(),
        }
    }
}

pub(super) fn event(message: &Value) -> Vec<u8> {
    format!("event: message\ndata: {message}\n\n").into_bytes()
}

/// What is kept between the requests of one client: the whole process on stdio, one `Mcp-Session-Id` on
/// legacy HTTP, nothing but the request itself on modern HTTP.
#[derive(Default)]
pub(super) struct Session {
    client_capabilities: Mutex<Value>,
    running: Mutex<HashMap<String, CancellationToken>>,
}

impl Session {
    /// `None` when too many requests run already.
    pub(super) fn begin(&self, id: &Value) -> Option<CancellationToken> {
        let mut running = lock(&self.running);
        (running.len() < MAX_RUNNING).then(|| running.entry(id.to_string()).or_default().clone())
    }

    pub(super) fn end(&self, id: &Value) {
        lock(&self.running).remove(&id.to_string());
    }

    pub(super) fn cancel(&self, id: &Value) {
        if let Some(cancel) = lock(&self.running).get(&id.to_string()) {
            cancel.cancel();
        }
    }
}

struct Listener {
    outlet: Outlet,
    /// The request that opened a modern subscription; legacy clients hear everything, unasked.
    subscription: Option<Value>,
}

pub(super) struct Host {
    server: Box<dyn Server>,
    listeners: Mutex<Vec<Arc<Listener>>>,
}

impl Host {
    pub(super) fn new(server: impl Server) -> Self {
        Self { server: Box::new(server), listeners: Mutex::default() }
    }

    pub(super) fn name(&self) -> &'static str {
        self.server.name()
    }

    /// Runs one request. `headers` are there on HTTP only, where they have to agree with the body.
    pub(super) async fn answer(
        &self,
        session: &Session,
        request: &Request,
        cancel: CancellationToken,
        outlet: Outlet,
        headers: Option<&HeaderMap>,
    ) -> Answer {
        if self.server.ignores(&request.method) {
            cancel.cancelled().await;
            return Answer::Silence;
        }
        let client_capabilities = match request.era {
            Era::Legacy => lock(&session.client_capabilities).clone(),
            Era::Modern if !self.server.speaks_modern() => return RpcError::unknown_method(&request.method).into(),
            Era::Modern => match modern::check(request, headers) {
                Ok(capabilities) => capabilities,
                Err(error) => return error.into(),
            },
        };
        match (request.era, request.method.as_str()) {
            (Era::Legacy, "initialize") => self.initialize(session, request, outlet),
            (Era::Legacy, "ping") => Answer::Result(json!({})),
            (Era::Modern, "server/discover") => {
                modern::finish(self.server.name(), request, modern::discover(&self.server.capabilities()))
            }
            (Era::Modern, "subscriptions/listen") => self.listen(request, cancel, outlet).await,
            _ => {
                let exchange = Exchange { host: self, outlet, client_capabilities, cancel };
                match (self.server.handle(request, &exchange).await, request.era) {
                    (Answer::Result(result), Era::Modern) => modern::finish(self.server.name(), request, result),
                    (answer, _) => answer,
                }
            }
        }
    }

    fn initialize(&self, session: &Session, request: &Request, outlet: Outlet) -> Answer {
        *lock(&session.client_capabilities) = request.params.get("capabilities").cloned().unwrap_or_default();
        if matches!(outlet, Outlet::Stdout(_)) {
            self.add_listener(outlet, None);
        }
        let wanted = request.text("protocolVersion");
        Answer::Result(json!({
            "protocolVersion": LEGACY.into_iter().find(|version| *version == wanted).unwrap_or(LEGACY[0]),
            "capabilities": self.server.capabilities(),
            "serverInfo": modern::server_info(self.server.name()),
        }))
    }

    /// Keeps a modern subscription open until the client gives it up. Only changes of the list of tools
    /// are ever told, so only that wish is acknowledged.
    async fn listen(&self, request: &Request, cancel: CancellationToken, outlet: Outlet) -> Answer {
        let wish = "toolsListChanged";
        let granted = request.params.get("notifications").and_then(|wishes| wishes.get(wish)) == Some(&json!(true));
        let acknowledged = json!({
            "_meta": {format!("{META}subscriptionId"): request.id},
            "notifications": if granted { json!({wish: true}) } else { json!({}) },
        });
        let method = "notifications/subscriptions/acknowledged";
        // Who has read the acknowledgement misses no change: it listens before it is told so.
        let listener = if granted { self.add_listener(outlet.clone(), Some(request.id.clone())) } else { None };
        if granted && listener.is_none() {
            return RpcError::new(RpcError::BUSY, "too many listeners").into();
        }
        outlet.message(&json!({"jsonrpc": "2.0", "method": method, "params": acknowledged})).await;
        cancel.cancelled().await;
        if let Some(listener) = listener {
            lock(&self.listeners).retain(|other| !Arc::ptr_eq(other, &listener));
        }
        Answer::Silence
    }

    /// Lets a client hear of changes; `None` when too many do already.
    fn add_listener(&self, outlet: Outlet, subscription: Option<Value>) -> Option<Arc<Listener>> {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.outlet.is_open());
        if listeners.len() >= MAX_LISTENERS {
            return None;
        }
        let listener = Arc::new(Listener { outlet, subscription });
        listeners.push(Arc::clone(&listener));
        Some(listener)
    }

    /// The stream on which a legacy HTTP session hears of changes.
    pub(super) fn hear_changes(&self, outlet: Outlet) -> bool {
        self.add_listener(outlet, None).is_some()
    }

    pub(super) async fn tools_changed(&self) {
        let listeners = lock(&self.listeners).clone();
        for listener in listeners {
            let params = match &listener.subscription {
                Some(id) => json!({"_meta": {format!("{META}subscriptionId"): id}}),
                None => json!({}),
            };
            let method = "notifications/tools/list_changed";
            listener.outlet.message(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
