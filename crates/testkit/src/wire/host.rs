//! Answers the protocol's own methods for all transports.

use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::outlet::Outlet;
use super::session::Session;
use super::{Answer, Era, Exchange, LEGACY, Level, Listeners, Request, RpcError, Server, modern};

pub(super) struct Host {
    server: Box<dyn Server>,
    listeners: Arc<Listeners>,
}

impl Host {
    pub(super) fn new(server: impl Server) -> Self {
        let listeners = Arc::<Listeners>::default();
        server.meet(&listeners);
        Self { server: Box::new(server), listeners }
    }

    pub(super) fn name(&self) -> &'static str {
        self.server.name()
    }

    /// Whether the server speaks 2026-07-28.
    pub(super) fn speaks_modern(&self) -> bool {
        self.server.speaks_modern()
    }

    /// Whether a client can resume the responses of this session.
    pub(super) fn is_resumable(&self, session: &Session) -> bool {
        self.server.is_resumable() && session.version() == LEGACY[0]
    }

    /// Runs one request. `headers` exist only on HTTP and must agree with the body.
    pub(super) async fn answer(
        &self,
        session: &Arc<Session>,
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
            Era::Legacy => session.capabilities(),
            Era::Modern if !self.server.speaks_modern() => return RpcError::unknown_method(&request.method).into(),
            Era::Modern => match modern::check(request, headers, &*self.server) {
                Ok(capabilities) => capabilities,
                Err(error) => return error.into(),
            },
        };
        let answer = match self.own_method(session, request, &cancel, &outlet).await {
            Some(answer) => answer,
            None => {
                let (listeners, session) = (Arc::clone(&self.listeners), Arc::clone(session));
                let exchange = Exchange { listeners, outlet, session, client_capabilities, cancel };
                self.server.handle(request, &exchange).await
            }
        };
        match (answer, request.era) {
            (Answer::Result(result), Era::Modern) => modern::finish(&*self.server, request, result),
            (answer, _) => answer,
        }
    }

    /// Answers the protocol's own methods; `None` for methods of the server.
    async fn own_method(
        &self,
        session: &Arc<Session>,
        request: &Request,
        cancel: &CancellationToken,
        outlet: &Outlet,
    ) -> Option<Answer> {
        let able = |pointer: &str| self.server.capabilities(request.era).pointer(pointer).is_some();
        Some(match (request.era, request.method.as_str()) {
            (Era::Legacy, "initialize") => self.initialize(session, request, outlet.clone()),
            (Era::Legacy, "ping") => Answer::Result(json!({})),
            (Era::Legacy, "logging/setLevel") if able("/logging") => match Level::parse(request.text("level")) {
                Some(_) => {
                    session.set_log_level(request.text("level"));
                    Answer::Result(json!({}))
                }
                None => RpcError::invalid("no such level").into(),
            },
            (Era::Legacy, "resources/subscribe") if able("/resources/subscribe") => {
                match session.subscribe(request.text("uri")) {
                    true => Answer::Result(json!({})),
                    false => RpcError::new(RpcError::BUSY, "too many subscriptions").into(),
                }
            }
            (Era::Legacy, "resources/unsubscribe") if able("/resources/subscribe") => {
                session.unsubscribe(request.text("uri"));
                Answer::Result(json!({}))
            }
            (Era::Modern, "server/discover") => Answer::Result(modern::discover(&*self.server)),
            (Era::Modern, "subscriptions/listen") => self.listen(request, cancel, outlet.clone()).await,
            (Era::Modern, "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe") => {
                RpcError::unknown_method(&request.method).into()
            }
            _ => return None,
        })
    }

    fn initialize(&self, session: &Arc<Session>, request: &Request, outlet: Outlet) -> Answer {
        let wanted = request.text("protocolVersion");
        let version = LEGACY.into_iter().find(|version| *version == wanted).unwrap_or(LEGACY[0]);
        session.introduce(request.params.get("capabilities").cloned().unwrap_or_default(), version);
        if matches!(outlet, Outlet::Stdout(_) | Outlet::Shared(_)) {
            self.add_listener(outlet, session);
        }
        let mut result = json!({
            "protocolVersion": version,
            "capabilities": self.server.capabilities(Era::Legacy),
            "serverInfo": modern::server_info(self.server.name()),
        });
        if let Some(instructions) = self.server.instructions() {
            result["instructions"] = json!(instructions);
        }
        Answer::Result(result)
    }

    /// Keeps a modern subscription open until the client ends it.
    async fn listen(&self, request: &Request, cancel: &CancellationToken, outlet: Outlet) -> Answer {
        let wishes = request.params.get("notifications").unwrap_or(&Value::Null);
        let capabilities = self.server.capabilities(Era::Modern);
        match self.listeners.add_modern(outlet, &request.id, wishes, &capabilities).await {
            Err(error) => error.into(),
            Ok(listener) => {
                cancel.cancelled().await;
                self.listeners.remove(&listener);
                Answer::Silence
            }
        }
    }

    /// Adds a legacy session as a listener; false if there are too many.
    pub(super) fn add_listener(&self, outlet: Outlet, session: &Arc<Session>) -> bool {
        self.listeners.add_legacy(outlet, Arc::clone(session))
    }
}
