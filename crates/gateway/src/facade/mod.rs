//! Facades: the APIs of `OpenAI` and Anthropic at `/v1`, behind which agents and models answer. A request becomes a run of
//! the ordinary driver, whose tools go through the executor; tools of the client are the client's to run.

mod conversations;
mod endpoints;
mod output;
mod reserve;
mod start;
mod stored_responses;
mod work;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::Value;
use tokio::sync::Semaphore;
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{Bound, BudgetedClient, ModelBounds, ModelBudget, ModelClient};
use toolwright_core::pattern::allowed_by;
use toolwright_core::session::Principal;
use toolwright_core::store::StoreError;
use toolwright_models::served::{Fault, ServedApi};

use crate::agents::{AgentSource, Target};
use crate::config::{ClientBudget, ClientConfig, FacadeApprovals, FacadeConfig};
use crate::http::Identity;
use crate::http::body::Bodies;
use crate::{Gateway, GatewayOptions};
use output::{Output, Refusal};

/// Tokens that an answer counts as in the budget of a token before it has come, where nothing limits it.
const USUAL_ANSWER: u32 = 8192;

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Response,
    Conversation,
    /// A run that waits for its client.
    Turn,
    /// Which turn waits for the result of this call.
    Call,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::Conversation => "conversation",
            Self::Turn => "turn",
            Self::Call => "call",
        }
    }
}

/// A response that is being worked on.
#[derive(Clone)]
struct Live {
    cancel: Cancel,
    output: Arc<Output>,
}

impl Live {
    /// The response as it is now.
    fn body(&self) -> Value {
        let mut body = self.output.body();
        if self.cancel.cause().is_some() && body["status"] == "in_progress" {
            body["status"] = Value::from("cancelled");
        }
        body
    }
}

/// What all requests share.
pub(crate) struct Facade {
    gateway: Arc<Gateway>,
    source: Arc<dyn AgentSource>,
    config: FacadeConfig,
    /// Bounds requests, those of the other endpoints included.
    requests: Arc<Semaphore>,
    bodies: Arc<Bodies>,
    /// Silence after which a stream says that it is alive.
    keep_alive: Duration,
    /// What a request of this process works on; see [`reserve`].
    busy: Mutex<HashSet<reserve::Key>>,
    /// By owner and id.
    live: Mutex<HashMap<(String, String), Live>>,
}

impl Facade {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        source: Arc<dyn AgentSource>,
        (requests, bodies): (Arc<Semaphore>, Arc<Bodies>),
        keep_alive: Duration,
    ) -> Arc<Self> {
        let config = gateway.options.server.facades.clone();
        Arc::new(Self {
            gateway,
            source,
            config,
            requests,
            bodies,
            keep_alive,
            busy: Mutex::default(),
            live: Mutex::default(),
        })
    }

    fn live(&self, owner: &str, id: &str) -> Option<Live> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.get(&(owner.to_owned(), id.to_owned())).cloned()
    }

    fn set_live(&self, owner: &str, id: &str, live: Option<Live>) {
        let key = (owner.to_owned(), id.to_owned());
        let mut all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        match live {
            Some(live) => drop(all.insert(key, live)),
            None => drop(all.remove(&key)),
        }
    }

    /// The tools that a caller may use, by id; empty for all.
    fn tools_of(&self, identity: &Identity) -> Vec<String> {
        let Some(names) = identity.views() else { return Vec::new() };
        let snapshot = self.gateway.options.catalogue.snapshot();
        let principal = identity.principal();
        let views: Vec<_> = names.iter().map(|name| (name, self.gateway.view(name))).collect();
        let is_in = |entry: &toolwright_core::Entry| {
            views.iter().any(|(name, view)| match view {
                Some(view) => principal.may_use(&view.roles) && view.shows(&entry.wire_name),
                None => entry.provider.name() == name.as_str(),
            })
        };
        let mut tools: Vec<String> =
            snapshot.list().iter().filter(|entry| is_in(entry)).map(|entry| entry.id().to_string()).collect();
        if tools.is_empty() {
            // An empty list would be all of them.
            tools.push("no tool".into());
        }
        tools
    }

    /// What the `model` of a request stands for, if its sender may ask it.
    fn target(&self, model: &str, principal: &Principal) -> Result<Target, Refusal> {
        let about = |fault, message: String| Refusal::new(fault, message).about("model");
        let allowed = self.client(principal).map(|client| client.models.as_slice()).unwrap_or_default();
        if !allowed.is_empty() && !allowed_by(allowed, &[], model) {
            return Err(about(Fault::Forbidden, format!("this token may not ask `{model}`")));
        }
        self.source.resolve(model, self.config.models).map_err(|why| about(Fault::NotFound, why))
    }

    /// `model`, within the budget of the token.
    fn within_budget(&self, model: Arc<dyn ModelClient>, principal: &Principal) -> Arc<dyn ModelClient> {
        match self.gateway.budgets.get(&principal.id).filter(|_| !principal.owner) {
            Some(budget) => {
                let budget = Arc::clone(budget);
                Arc::new(BudgetedClient { client: model, budget, usual_answer: USUAL_ANSWER })
            }
            None => model,
        }
    }

    fn approvals(&self, principal: &Principal) -> FacadeApprovals {
        self.client(principal).and_then(|client| client.approvals).unwrap_or(self.config.approvals)
    }

    fn client(&self, principal: &Principal) -> Option<&ClientConfig> {
        if principal.owner { None } else { self.gateway.options.server.tokens.get(&principal.id) }
    }
}

/// What tokens with a budget may use at `/v1`, by name.
pub(crate) fn budgets(options: &GatewayOptions) -> HashMap<String, Arc<ModelBudget>> {
    let prices = options.executor.models().prices();
    let budget = |(name, client): (&String, &ClientConfig)| {
        Some((name.clone(), ModelBudget::new(bounds(client.budget.as_ref()?), prices.clone())))
    };
    options.server.tokens.iter().filter_map(budget).collect()
}

/// What the requests of one token may use of models, until the server ends.
fn bounds(budget: &ClientBudget) -> ModelBounds {
    ModelBounds {
        requests: Bound::new(budget.requests.unwrap_or(u32::MAX), "budget.requests of the token"),
        tokens: Bound::new(budget.tokens.unwrap_or(u64::MAX), "budget.tokens of the token"),
        cost_usd: budget.cost_usd.map(|most| Bound::new(most, "budget.cost_usd of the token")),
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

/// A header's text.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The routes.
pub(crate) fn router(facade: Option<Arc<Facade>>) -> Router {
    let Some(facade) = facade else { return Router::new() };
    let answers = ServedApi::ALL
        .into_iter()
        .fold(Router::new(), |router, api| router.route(api.path(), post(endpoints::answer).layer(Extension(api))));
    answers
        .route("/v1/models", get(endpoints::models))
        .route("/v1/models/{*name}", get(endpoints::model))
        .route("/v1/messages/count_tokens", post(endpoints::count_tokens))
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
