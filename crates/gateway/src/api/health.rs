//! Whether the process lives, whether it takes calls, and how the sources of its tools are doing.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use toolwright_core::catalogue::{Health, Provider, ProviderStatus};

use super::{Answer, Api};
use crate::http::respond;

/// How a provider is doing, and why it failed.
enum Doing {
    Ready,
    Starting,
    Failed(String),
}

impl Doing {
    /// Of a provider with what the catalogue knows of it: the error of its last list, in words that may be shown,
    /// comes before its own word.
    fn of(provider: &dyn Provider, status: Option<&ProviderStatus>) -> Self {
        if let Some(error) = status.and_then(|status| status.error.clone()) {
            return Self::Failed(error);
        }
        match provider.health() {
            Health::Ready => Self::Ready,
            Health::Starting => Self::Starting,
            Health::Failed { reason } => Self::Failed(reason),
        }
    }

    fn state(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Starting => "starting",
            Self::Failed(_) => "failed",
        }
    }
}

/// One provider as it is now.
struct Known {
    provider: Arc<dyn Provider>,
    tools: usize,
    doing: Doing,
    withheld: Vec<Value>,
}

impl Api {
    fn providers(&self) -> Vec<Known> {
        let catalogue = &self.gateway.options.catalogue;
        let (providers, snapshot) = (catalogue.sources(), catalogue.snapshot());
        let known = |provider: &Arc<dyn Provider>| {
            let status = snapshot.providers().iter().find(|status| status.name == provider.name());
            let (tools, doing) = (status.map_or(0, |status| status.tools), Doing::of(&**provider, status));
            let unapproved = snapshot.unapproved().iter().filter(|held| held.provider == provider.name());
            let withheld = unapproved.map(|held| json!({"tool": held.raw_name, "why": held.why})).collect();
            Known { provider: Arc::clone(provider), tools, doing, withheld }
        };
        providers.iter().map(known).collect()
    }
}

/// `GET /api/providers`.
pub(super) async fn providers(State(api): State<Arc<Api>>) -> Answer {
    let shown = |known: Known| {
        let state = known.doing.state();
        let error = match known.doing {
            Doing::Failed(why) => Some(why),
            Doing::Ready | Doing::Starting => None,
        };
        let (name, kind, tools) = (known.provider.name(), known.provider.kind(), known.tools);
        let withheld = known.withheld;
        json!({"name": name, "kind": kind, "tools": tools, "state": state, "error": error, "withheld": withheld})
    };
    api.ok(&api.providers().into_iter().map(shown).collect::<Value>())
}

/// `GET /health`: the process answers, and nothing more.
pub(super) async fn health() -> &'static str {
    "ok"
}

/// `GET /ready`: 200 while calls are taken and entered in the ledger. A provider that failed keeps nobody out, nor does one
/// that starts with the tools of its last list. One of which nobody knows what it has is waited for as first lists are,
/// and no longer: it counts as starting from then on.
pub(super) async fn ready(State(api): State<Arc<Api>>) -> Response {
    let providers = api.providers();
    let count = |state: &str| providers.iter().filter(|known| known.doing.state() == state).count();
    let is_unknown = |known: &Known| matches!(known.doing, Doing::Starting) && known.tools == 0;
    let ledger = api.gateway.options.executor.ledger().check().await;
    let state = if api.gateway.is_draining() {
        "draining"
    } else if ledger.is_err() {
        "ledger_failed"
    } else if api.gateway.awaits_first_lists() && providers.iter().any(is_unknown) {
        "starting"
    } else {
        "ready"
    };
    let (is_ready, counts) = (state == "ready", ["ready", "starting", "failed"].map(|state| (state, count(state))));
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let counts: Value = counts.into_iter().map(|(state, count)| (state.to_owned(), Value::from(count))).collect();
    let mut answer = json!({"ready": is_ready, "state": state, "providers": counts});
    if let Err(error) = ledger {
        // Its words may have paths; the operator has them in the log.
        tracing::debug!("not ready: {error}");
        answer["reason"] = "the ledger cannot be written; the log of the server says why".into();
    }
    respond(status, &answer)
}
