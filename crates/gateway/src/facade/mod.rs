//! Facades: the APIs of `OpenAI` and Anthropic at `/v1`, behind which agents and models answer. A request becomes a run
//! of the agent driver, whose tool calls go through the executor. The client runs its own tools.

mod continuation;
mod continuation_lock;
mod conversations;
mod endpoints;
mod output;
mod refusal;
mod response_work;
mod start;
mod stored_responses;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::Value;
use tokio::sync::Semaphore;
use toolwright_core::pattern::allowed_by;
use toolwright_core::policy::Profile;
use toolwright_core::session::Principal;
use toolwright_core::store::{StoreError, StoredObject};
use toolwright_models::served::{Fault, ServedApi};

use crate::Gateway;
use crate::agents::{AgentSource, RunTarget};
use crate::config::{ClientConfig, FacadeApprovals, FacadeConfig};
use crate::http::Identity;
use crate::http::body::BodyLimits;
use refusal::Refusal;
use response_work::ResponseWork;

/// The kind of a stored object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RecordKind {
    Response,
    Conversation,
    /// A run that waits for its client, and the request that answered it.
    Turn,
    /// Maps a call to the turn that waits for its result.
    Call,
    /// An answer whose client may have disconnected, or the last answers of a session.
    Answer,
}

impl RecordKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::Conversation => "conversation",
            Self::Turn => "turn",
            Self::Call => "call",
            Self::Answer => "answer",
        }
    }

    /// An object of this kind, to keep.
    fn stored_object(self, id: &str, object: Value) -> StoredObject {
        StoredObject { kind: self.as_str(), id: id.to_owned(), object, only_if_there: false }
    }
}

/// Returns what the ids of an API's answers begin with.
fn id_prefix(api: ServedApi) -> &'static str {
    match api {
        ServedApi::Chat => "chatcmpl-",
        ServedApi::Responses => "resp_",
        ServedApi::Messages => "msg_",
    }
}

/// State that all requests share.
pub(crate) struct Facade {
    gateway: Arc<Gateway>,
    source: Arc<dyn AgentSource>,
    config: FacadeConfig,
    /// Bounds concurrent requests, including those of the other endpoints.
    requests: Arc<Semaphore>,
    bodies: Arc<BodyLimits>,
    /// A stream sends a keep-alive after this much silence.
    keep_alive: Duration,
    /// Objects reserved by requests of this process; see `continuation_lock`.
    reserved: Mutex<HashSet<continuation_lock::RecordKey>>,
    /// Work in progress that can be fetched, by owner and id.
    live: Mutex<HashMap<(String, String), Arc<ResponseWork>>>,
}

impl Facade {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        source: Arc<dyn AgentSource>,
        (requests, bodies): (Arc<Semaphore>, Arc<BodyLimits>),
        keep_alive: Duration,
    ) -> Arc<Self> {
        let server = &gateway.options.server;
        let config = server.facades.clone();
        Arc::new(Self {
            gateway,
            source,
            config,
            requests,
            bodies,
            keep_alive,
            reserved: Mutex::default(),
            live: Mutex::default(),
        })
    }

    fn live(&self, owner: &str, id: &str) -> Option<Arc<ResponseWork>> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.get(&(owner.to_owned(), id.to_owned())).cloned()
    }

    /// Returns work in progress of a session.
    fn live_in_session(&self, session: &str) -> Option<Arc<ResponseWork>> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.values().find(|work| work.is_left() && work.session.as_deref() == Some(session)).cloned()
    }

    fn set_live(&self, owner: &str, id: &str, live: Option<Arc<ResponseWork>>) {
        let key = (owner.to_owned(), id.to_owned());
        let mut all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        match live {
            Some(live) => drop(all.insert(key, live)),
            None => drop(all.remove(&key)),
        }
    }

    /// Returns the ids of the tools that a caller may use; `None` for all.
    fn tools_of(&self, identity: &Identity) -> Option<Vec<String>> {
        let names = identity.views()?;
        let snapshot = self.gateway.options.catalogue.snapshot();
        let principal = identity.principal();
        let views: Vec<_> = names.iter().map(|name| (name, self.gateway.view(name))).collect();
        let is_in = |entry: &toolwright_core::Entry| {
            views.iter().any(|(name, view)| match view {
                Some(view) => principal.may_use(&view.roles) && view.shows(&entry.wire_name),
                None => entry.provider.name() == name.as_str(),
            })
        };
        Some(snapshot.list().iter().filter(|entry| is_in(entry)).map(|entry| entry.id().to_string()).collect())
    }

    /// Returns the profile that decides for a caller if no policy rule matches: the strictest of its views, as at each
    /// view's address.
    fn profile_of(&self, identity: &Identity) -> Profile {
        let usual = self.gateway.policy().profile;
        let views = identity.views().unwrap_or_default().iter().filter_map(|name| self.gateway.view(name));
        let views = views.filter(|view| identity.principal().may_use(&view.roles));
        views.map(|view| view.profile.unwrap_or(usual)).reduce(Profile::stricter).unwrap_or(usual)
    }

    /// Resolves the `model` of a request, if its sender may use it.
    fn target(&self, model: &str, principal: &Principal) -> Result<RunTarget, Refusal> {
        let about = |fault, message: String| Refusal::new(fault, message).with_field("model");
        let allowed = self.client(principal).map(|client| client.models.as_slice()).unwrap_or_default();
        if !allowed.is_empty() && !allowed_by(allowed, &[], model) {
            return Err(about(Fault::Forbidden, format!("this token may not ask `{model}`")));
        }
        self.source.resolve(model, self.config.models).map_err(|why| about(Fault::NotFound, why))
    }

    fn approvals(&self, principal: &Principal) -> FacadeApprovals {
        self.client(principal).and_then(|client| client.approvals).unwrap_or(self.config.approvals)
    }

    fn client(&self, principal: &Principal) -> Option<&ClientConfig> {
        if principal.owner { None } else { self.gateway.options.server.tokens.get(&principal.id) }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        tracing::error!("a request could not be answered: {error}");
        Self::new(Fault::Internal, error.to_string())
    }
}

impl Refusal {
    fn response(&self, api: ServedApi) -> Response {
        let mut response = json(self.fault.status(), &self.body(api));
        if matches!(self.fault, Fault::RateLimited | Fault::Overloaded) {
            let seconds = self.retry_after_ms.map_or(1, |ms| ms.div_ceil(1000).max(1));
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

fn json(status: u16, body: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// Returns a header's text.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the routes.
pub(crate) fn router(facade: Option<Arc<Facade>>) -> Router {
    let Some(facade) = facade else { return Router::new() };
    let answers = ServedApi::ALL
        .into_iter()
        .fold(Router::new(), |router, api| router.route(api.path(), post(endpoints::answer).layer(Extension(api))));
    let left = [ServedApi::Chat, ServedApi::Messages].into_iter().fold(Router::new(), |router, api| {
        router.route(&format!("{}/{{id}}", api.path()), get(stored_responses::answer).layer(Extension(api)))
    });
    answers
        .route("/v1/models", get(endpoints::models))
        .route("/v1/models/{*name}", get(endpoints::model))
        .route("/v1/messages/count_tokens", post(endpoints::count_tokens))
        .merge(left)
        .route("/v1/responses/{id}", get(stored_responses::response).delete(stored_responses::delete_response))
        .route("/v1/responses/{id}/cancel", post(stored_responses::cancel_response))
        .route("/v1/responses/{id}/input_items", get(stored_responses::input_items))
        .route("/v1/conversations", post(conversations::create))
        .route(
            "/v1/conversations/{id}",
            get(conversations::conversation).post(conversations::update).delete(conversations::delete),
        )
        .route("/v1/conversations/{id}/items", get(conversations::items).post(conversations::add_items))
        .route("/v1/conversations/{id}/items/{item}", get(conversations::item).delete(conversations::delete_item))
        .with_state(facade)
}
