//! The client of all models. A model's id decides whether an HTTP server, a recording or a client of the embedding
//! program answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use async_trait::async_trait;
use toolwright_core::Redactor;
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    FetchedFile, ModelCard, ModelClient, ModelError, ModelErrorKind, ModelEvents, ModelRequest, ModelResponse,
    RequestSettings, RequestTool, is_replay,
};

use crate::http::HttpModelClient;
use crate::http::endpoint::Endpoints;
use crate::replay::{Replayed, Replays};

/// Called with a recording when it gives its first answer.
type ReplayListener = Arc<dyn Fn(&Replayed) + Send + Sync>;

/// Sends requests to the configured endpoints, to the embedding program's own clients, and to recordings. A model is a
/// recording if and only if its id begins with `replay:`.
pub struct Models {
    http: HttpModelClient,
    replays: Arc<Replays>,
    listeners: Mutex<Vec<ReplayListener>>,
    /// Clients of the embedding program, by provider.
    own: RwLock<HashMap<String, Arc<dyn ModelClient>>>,
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Models").field("http", &self.http).finish_non_exhaustive()
    }
}

impl Models {
    /// A client over `http`. Recordings are searched for requests as `redactor` leaves them.
    #[must_use]
    pub fn new(http: HttpModelClient, redactor: Arc<dyn Redactor>) -> Self {
        Self { http, replays: Arc::new(Replays::new(redactor)), listeners: Mutex::default(), own: RwLock::default() }
    }

    /// Sends requests to all models of `provider` to `client` in place of an endpoint of that name.
    pub fn answer_by(&self, provider: &str, client: Arc<dyn ModelClient>) {
        self.own.write().unwrap_or_else(PoisonError::into_inner).insert(provider.to_owned(), client);
    }

    fn own(&self, model: &str) -> Option<Arc<dyn ModelClient>> {
        let own = self.own.read().unwrap_or_else(PoisonError::into_inner);
        own.get(model.split_once('/')?.0).cloned()
    }

    /// Calls `listener` once per recording, before its first answer. It must not block.
    pub fn on_replay(&self, listener: impl Fn(&Replayed) + Send + Sync + 'static) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(listener));
    }

    /// The HTTP client.
    #[must_use]
    pub fn http(&self) -> &HttpModelClient {
        &self.http
    }

    /// The endpoints of the HTTP client.
    #[must_use]
    pub fn endpoints(&self) -> &Endpoints {
        self.http.endpoints()
    }

    /// Checks that the model exists, as far as known without I/O. An unread recording
    /// ([`ModelClient::ready`]) passes.
    ///
    /// # Errors
    /// `Unsupported` with the reason.
    pub fn check(&self, model: &str) -> Result<(), ModelError> {
        match self.own(model) {
            _ if is_replay(model) => self.replays.check(model),
            Some(_) => Ok(()),
            None => self.endpoints().resolve(model).map(drop),
        }
    }

    fn announce(&self, replayed: &Replayed) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners.iter().for_each(|listener| listener(replayed));
    }
}

#[async_trait]
impl ModelClient for Models {
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        if !is_replay(model) {
            return match self.own(model) {
                Some(own) => own.complete(model, request, events, cancel).await,
                None => self.http.complete(model, request, events, cancel).await,
            };
        }
        if let Some(cause) = cancel.cause() {
            let message = format!("the model request was cancelled {}", cause.describe());
            return Err(ModelError::new(ModelErrorKind::Canceled, message));
        }
        self.replays.answer(model, request, events, &|replayed| self.announce(replayed)).await
    }

    async fn ready(&self, model: &str) -> Result<(), ModelError> {
        match self.own(model) {
            _ if is_replay(model) => self.replays.ready(model).await.map(drop),
            Some(own) => own.ready(model).await,
            None => self.check(model),
        }
    }

    fn lacks_native(&self, model: &str, tool: &RequestTool, beside_others: bool) -> Option<String> {
        match self.own(model) {
            _ if is_replay(model) => self.replays.lacks_native(model, tool),
            Some(own) => own.lacks_native(model, tool, beside_others),
            None => self.http.lacks_native(model, tool, beside_others),
        }
    }

    async fn fetch_file(&self, model: &str, path: &str, cancel: &Cancel) -> Result<FetchedFile, ModelError> {
        match self.own(model) {
            _ if is_replay(model) => Err(ModelError::new(ModelErrorKind::Unsupported, "a recording has no files")),
            Some(own) => own.fetch_file(model, path, cancel).await,
            None => self.http.fetch_file(model, path, cancel).await,
        }
    }

    fn has_tool_search(&self, model: &str) -> bool {
        match self.own(model) {
            _ if is_replay(model) => self.replays.has_tool_search(model),
            Some(own) => own.has_tool_search(model),
            None => self.http.has_tool_search(model),
        }
    }

    fn card(&self, model: &str) -> ModelCard {
        match self.own(model) {
            _ if is_replay(model) => self.replays.card(model),
            Some(own) => own.card(model),
            None => self.http.card(model),
        }
    }

    fn answer_tokens(&self, model: &str, max_tokens: Option<u32>, settings: &RequestSettings) -> Option<u32> {
        match self.own(model) {
            _ if is_replay(model) => max_tokens,
            Some(own) => own.answer_tokens(model, max_tokens, settings),
            None => self.http.answer_tokens(model, max_tokens, settings),
        }
    }
}
