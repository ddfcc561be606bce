//! Health of the process, readiness for calls, and the state of providers.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use toolwright_core::catalogue::{Health, Provider};

use super::{Api, ApiResult};
use crate::http::respond;

/// The current state of one provider.
struct ProviderHealth {
    provider: Arc<dyn Provider>,
    tools: usize,
    state: &'static str,
    /// The reason of its failure.
    error: Option<String>,
    withheld: Vec<Value>,
}

impl Api {
    fn providers(&self) -> Vec<ProviderHealth> {
        let catalogue = &self.gateway.options.catalogue;
        let (providers, snapshot) = (catalogue.sources(), catalogue.snapshot());
        let health_of = |provider: &Arc<dyn Provider>| {
            let status = snapshot.providers().iter().find(|status| status.name == provider.name());
            // The error of the last list is written for display, so it is preferred to the provider's own.
            let (state, error) = match (status.and_then(|status| status.error.clone()), provider.health()) {
                (Some(error), _) => ("failed", Some(error)),
                (None, Health::Failed { reason }) => ("failed", Some(reason)),
                (None, Health::Ready) => ("ready", None),
                (None, Health::Starting) => ("starting", None),
            };
            let unapproved = snapshot.unapproved().iter().filter(|held| held.provider == provider.name());
            let withheld = unapproved.map(|held| json!({"tool": held.raw_name, "why": held.why})).collect();
            let tools = status.map_or(0, |status| status.tools);
            ProviderHealth { provider: Arc::clone(provider), tools, state, error, withheld }
        };
        providers.iter().map(health_of).collect()
    }
}

/// Handles `GET /api/providers`.
pub(super) async fn providers(State(api): State<Arc<Api>>) -> ApiResult {
    let to_json = |known: ProviderHealth| {
        let ProviderHealth { provider, tools, state, error, withheld } = known;
        let (name, kind) = (provider.name(), provider.kind());
        json!({"name": name, "kind": kind, "tools": tools, "state": state, "error": error, "withheld": withheld})
    };
    let providers: Vec<Value> = api.providers().into_iter().map(to_json).collect();
    let mut left_out = api.operator.as_ref().map(|operator| operator.left_out()).unwrap_or_default();
    left_out.retain(|(name, _)| providers.iter().all(|known| known["name"] != json!(name)));
    let left_out = left_out.into_iter().map(
        |(name, why)| json!({"name": name, "kind": "mcp", "tools": 0, "state": "failed", "error": why, "withheld": []}),
    );
    api.ok(&providers.into_iter().chain(left_out).collect::<Value>())
}

/// Handles `GET /health`: the process answers.
pub(super) async fn health() -> &'static str {
    "ok"
}

/// `GET /ready`: 200 while calls are accepted and recorded in the ledger. Failed providers, and starting ones with a
/// cached list, do not delay it. Other starting providers do, as long as requests wait for first lists.
pub(super) async fn ready(State(api): State<Arc<Api>>) -> Response {
    let providers = api.providers();
    let count = |state: &str| providers.iter().filter(|known| known.state == state).count();
    let is_unknown = |known: &ProviderHealth| known.state == "starting" && known.tools == 0;
    let ledger = api.gateway.options.executor.ledger().check().await;
    let state = if api.gateway.is_draining() {
        "draining"
    } else if ledger.is_err() {
        "ledger_failed"
    } else if api.gateway.is_awaiting_first_lists() && providers.iter().any(is_unknown) {
        "starting"
    } else {
        "ready"
    };
    let (is_ready, counts) = (state == "ready", ["ready", "starting", "failed"].map(|state| (state, count(state))));
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let counts: Value = counts.into_iter().map(|(state, count)| (state.to_owned(), Value::from(count))).collect();
    let mut answer = json!({"ready": is_ready, "state": state, "providers": counts});
    if let Err(error) = ledger {
        // The error may contain paths; the operator finds it in the log.
        tracing::debug!("not ready: {error}");
        answer["reason"] = "the ledger cannot be written; the log of the server says why".into();
    }
    respond(status, &answer)
}
