//! Pins, policy, agents, triggers and saved runs: what the program around the gateway has besides tools and calls.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::content::EstimatedTokens;
use toolwright_core::model::ShownTool;
use toolwright_models::dialect::translate;
use toolwright_models::{Api as ModelApi, tools_json};

use super::{Answer, Api, JsonBody, PathParam, QueryParams};
use crate::http::{ApiError, Connection, Identity};
use crate::operator::{Operator, PinWord};

/// The default and largest number of tools that a prompt is shown.
const PICKED: usize = 20;
const MAX_PICKED: usize = 200;
/// The default and largest number of recorded calls that a policy is tried on.
const REPLAYED: usize = 1000;
const MAX_REPLAYED: usize = 10_000;

impl Api {
    fn operator(&self) -> Result<&dyn Operator, ApiError> {
        self.operator.as_deref().ok_or_else(|| ApiError::not_found("this server has no such thing"))
    }
}

fn bounded(name: &str, given: Option<usize>, usual: usize, most: usize) -> Result<usize, ApiError> {
    let number = given.unwrap_or(usual);
    let fits = (1..=most).contains(&number);
    if fits { Ok(number) } else { Err(ApiError::bad_request(format!("`{name}` is from 1 to {most}"))) }
}

/// `GET /api/me`.
pub(super) async fn me(State(api): State<Arc<Api>>, Extension(identity): Extension<Identity>) -> Answer {
    let principal = identity.principal();
    let info = &api.gateway.options.info;
    api.ok(&json!({
        "principal": principal.id,
        "roles": principal.roles,
        "changes": identity.may_change(),
        "server": info.title.as_deref().unwrap_or(&info.name),
        "version": info.version,
        "model_apis": ModelApi::ALL.map(ModelApi::as_str),
    }))
}

/// `GET /api/pins`.
pub(super) async fn pins(State(api): State<Arc<Api>>) -> Answer {
    api.ok(&api.operator()?.pins().await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinDecision {
    provider: String,
    tool: String,
    hash: String,
    decision: PinWord,
}

/// `POST /api/pins`.
pub(super) async fn decide_pin(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    JsonBody(asked): JsonBody<PinDecision>,
) -> Answer {
    api.not_nested(&connection).await?;
    let PinDecision { provider, tool, hash, decision } = asked;
    api.operator()?.decide_pin(&provider, &tool, &hash, decision, &api.principal.id).await?;
    api.ok(&json!({"provider": provider, "tool": tool, "hash": hash}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prompt {
    prompt: String,
    max: Option<usize>,
}

/// `GET /api/pick`.
pub(super) async fn pick(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Prompt>) -> Answer {
    let max = bounded("max", asked.max, PICKED, MAX_PICKED)?;
    api.ok(&api.operator()?.pick(&asked.prompt, max).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Encoding {
    api: Option<String>,
}

/// `GET /api/tokens`: each definition as the API of a model is sent it.
pub(super) async fn tokens(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Encoding>) -> Answer {
    let wanted = asked.api.as_deref().unwrap_or(ModelApi::OpenAiChat.as_str());
    let Some(model_api) = ModelApi::ALL.into_iter().find(|api| api.as_str() == wanted) else {
        let all = ModelApi::ALL.map(ModelApi::as_str).join(", ");
        return Err(ApiError::bad_request(format!("`api` is one of {all}")));
    };
    let snapshot = api.snapshot();
    let mut total = 0;
    let rows = snapshot.list().iter().map(|entry| {
        let shown = ShownTool {
            name: entry.wire_name.clone(),
            description: entry.definition().description.clone(),
            parameters: entry.shown_schema(),
            ..ShownTool::default()
        };
        let set = translate(model_api.dialect(), &[shown], false);
        let bytes = tools_json(model_api, &set).to_string().len();
        let tokens = if set.tools.is_empty() { 0 } else { EstimatedTokens::of_bytes(bytes) };
        total += tokens;
        json!({
            "wire_name": entry.wire_name,
            "provider": entry.provider_name(),
            "bytes": bytes,
            "tokens": tokens,
            "losses": set.losses.len(),
        })
    });
    let rows: Value = rows.collect();
    api.ok(&json!({"api": model_api.as_str(), "tools": rows, "tokens": total}))
}

/// `GET /api/agents`.
pub(super) async fn agents(State(api): State<Arc<Api>>) -> Answer {
    api.ok(&api.operator()?.agents().await?)
}

/// `GET /api/triggers`.
pub(super) async fn triggers(State(api): State<Arc<Api>>) -> Answer {
    api.ok(&api.operator()?.triggers().await?)
}

/// `POST /api/triggers/{id}/fire`.
pub(super) async fn fire(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    PathParam(id): PathParam,
) -> Answer {
    api.not_nested(&connection).await?;
    api.ok(&api.operator()?.fire(&id).await?)
}

/// `GET /api/runs/{id}`.
pub(super) async fn run(State(api): State<Arc<Api>>, PathParam(id): PathParam) -> Answer {
    api.ok(&api.operator()?.run(&id).await?)
}

/// `GET /api/sessions/{id}`.
pub(super) async fn session(State(api): State<Arc<Api>>, PathParam(id): PathParam) -> Answer {
    api.ok(&api.operator()?.session(&id).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replayed {
    calls: Option<usize>,
}

/// `GET /api/policy`.
pub(super) async fn policy(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Replayed>) -> Answer {
    let calls = bounded("calls", asked.calls, REPLAYED, MAX_REPLAYED)?;
    api.ok(&api.operator()?.policy(calls).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Draft {
    draft: String,
    calls: Option<usize>,
}

/// `POST /api/policy/test`.
pub(super) async fn test_policy(State(api): State<Arc<Api>>, JsonBody(asked): JsonBody<Draft>) -> Answer {
    let calls = bounded("calls", asked.calls, REPLAYED, MAX_REPLAYED)?;
    api.ok(&api.operator()?.test_policy(&asked.draft, calls).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    draft: String,
    base: String,
}

/// `POST /api/policy/save`.
pub(super) async fn save_policy(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    JsonBody(asked): JsonBody<Saved>,
) -> Answer {
    api.not_nested(&connection).await?;
    api.ok(&api.operator()?.save_policy(&asked.draft, &asked.base).await?)
}
