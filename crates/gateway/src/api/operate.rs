//! Serves the parts of the program around the gateway: pins, policy, agents, triggers and saved runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::Entry;
use toolwright_core::context::{EstimatedTokens, Exactness, TokenCounter};
use toolwright_core::model::RequestTool;
use toolwright_models::dialect::translate;
use toolwright_models::{Api as ModelApi, tools_json};

use super::routes::{Method, Parameter, Route, UNKNOWN, optional, required};
use super::{Api, ApiResult, JsonBody, PathParam, QueryParams, bounded};
use crate::http::{ApiError, Connection, Identity};
use crate::operator::{Operator, PinAction};

/// The default and largest number of tools that are picked for a prompt.
const PICKED: usize = 20;
const MAX_PICKED: usize = 200;
/// The default and largest number of rows of a list, and the default number of a trigger's firings.
const LISTED: usize = 50;
const MAX_LISTED: usize = 1000;
const FIRINGS: usize = 5;
/// The default and largest number of recorded calls that a policy is tested on.
const REPLAYED: usize = 1000;
const MAX_REPLAYED: usize = 10_000;

const CALLS: Parameter = optional("calls", "integer", "Recorded calls at most, the last ones. Default: 1000.");
const NONE_HERE: &[(u16, &str, &str)] = &[(404, "There is no such thing here.", "Error")];
const NOT_SO: &[(u16, &str, &str)] =
    &[(404, "There is no such thing.", "Error"), (409, "The state does not allow it: the message says why.", "Error")];

/// Returns the operations of this file.
pub(super) fn routes() -> Vec<Route> {
    use Method::{Get, Post};
    vec![
        Route::new(Get, "/api/me", "whoAmI", me, "Says whose token it is, and whether it may change anything.")
            .response_schema("Me"),
        Route::new(
            Get,
            "/api/tokens",
            "countTokens",
            tokens,
            "Counts what each definition, each source and the whole list take as the API of a model is sent them.",
        )
        .query([
            optional("api", "string", "The model API: openai_chat, openai_responses, anthropic, gemini or ollama."),
            optional(
                "model",
                "string",
                "Counts as this model, PROVIDER/MODEL, does, where its tokenizer is configured.",
            ),
        ])
        .response_schema("TokenCounts"),
        Route::new(
            Get,
            "/api/pick",
            "pickTools",
            pick,
            "Says which tools a model would be shown for a prompt, and why.",
        )
        .query([
            required("prompt", "string", "What the user wants done."),
            optional("max", "integer", "Tools at most, from 1 to 200. Default: 20."),
        ])
        .response_schema("Picks")
        .with_responses(NONE_HERE),
        Route::new(
            Get,
            "/api/pins",
            "listPins",
            pins,
            "Lists pinned definitions, and what changed in those that wait for approval.",
        )
        .response_schema("PinList")
        .with_responses(NONE_HERE),
        Route::new(Post, "/api/pins", "decidePin", decide_pin, "Approves or rejects a changed definition.")
            .body("PinDecision")
            .response_schema("PinDecided")
            .with_responses(NOT_SO),
        Route::new(
            Get,
            "/api/agents",
            "listAgents",
            agents,
            "Lists agents, members of groups, mailboxes, and the budgets of trees of agents, the newest first.",
        )
        .query([
            optional("after", "string", "Only trees behind `next` of an earlier answer."),
            optional("limit", "integer", "Trees and mailboxes at most, from 1 to 1000. Default: 50."),
        ])
        .response_schema("AgentList")
        .with_responses(NONE_HERE),
        Route::new(Get, "/api/triggers", "listTriggers", triggers, "Lists triggers with their firings.")
            .query([optional("firings", "integer", "Firings of each at most, the newest, from 1 to 1000. Default: 5.")])
            .response_schema("TriggerList")
            .with_responses(NONE_HERE),
        Route::new(Post, "/api/triggers/{id}/fire", "fireTrigger", fire, "Fires a trigger now.")
            .response_schema("Firing")
            .with_responses(NOT_SO),
        Route::new(
            Get,
            "/api/runs/{id}",
            "showRun",
            run,
            "Shows the conversation of a saved run, with its calls and results, and its to-do list.",
        )
        .response_schema("SavedRun")
        .with_responses(UNKNOWN),
        Route::new(
            Get,
            "/api/sessions/{id}",
            "showSession",
            session,
            "Shows the messages and values that a session or channel keeps.",
        )
        .query([optional("after", "integer", "Only messages behind `next` of an earlier answer. Default: 0.")])
        .response_schema("SessionState")
        .with_responses(NONE_HERE),
        Route::new(
            Get,
            "/api/policy",
            "showPolicy",
            policy,
            "Shows the policy in force, and how often each rule decided the last recorded calls.",
        )
        .query([CALLS])
        .response_schema("PolicyInForce")
        .with_responses(NONE_HERE),
        Route::new(
            Post,
            "/api/policy/test",
            "testPolicy",
            test_policy,
            "Checks a draft of the policy, and says which recorded calls it decides otherwise. Nothing is written.",
        )
        .body("PolicyDraft")
        .response_schema("PolicyTried")
        .with_responses(NONE_HERE),
        Route::new(
            Post,
            "/api/policy/save",
            "savePolicy",
            save_policy,
            "Writes a draft of the policy into its file, and keeps a copy of the file as it was.",
        )
        .body("PolicySave")
        .response_schema("PolicySaved")
        .with_responses(NOT_SO),
    ]
}

impl Api {
    fn operator(&self) -> Result<&dyn Operator, ApiError> {
        self.operator.as_deref().ok_or_else(|| ApiError::not_found("this server has no such thing"))
    }
}

/// Handles `GET /api/me`.
pub(super) async fn me(State(api): State<Arc<Api>>, Extension(identity): Extension<Identity>) -> ApiResult {
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

/// Handles `GET /api/pins`.
pub(super) async fn pins(State(api): State<Arc<Api>>) -> ApiResult {
    api.ok(&api.operator()?.pins().await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinDecision {
    provider: String,
    tool: String,
    hash: String,
    decision: PinAction,
}

/// Handles `POST /api/pins`.
pub(super) async fn decide_pin(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    JsonBody(asked): JsonBody<PinDecision>,
) -> ApiResult {
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

/// Handles `GET /api/pick`.
pub(super) async fn pick(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Prompt>) -> ApiResult {
    let max = bounded("max", asked.max, PICKED, MAX_PICKED)?;
    api.ok(&api.operator()?.pick(&asked.prompt, max).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Encoding {
    api: Option<String>,
    model: Option<String>,
}

/// Handles `GET /api/tokens`: each definition in the encoding of a model API.
pub(super) async fn tokens(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Encoding>) -> ApiResult {
    let api_name = asked.api.as_deref().unwrap_or(ModelApi::OpenAiChat.as_str());
    let Some(model_api) = ModelApi::ALL.into_iter().find(|api| api.as_str() == api_name) else {
        let all = ModelApi::ALL.map(ModelApi::as_str).join(", ");
        return Err(ApiError::bad_request(format!("`api` is one of {all}")));
    };
    let tokens = &api.gateway.options.executor.services().tokens;
    let counter = asked.model.as_deref().and_then(|model| tokens.of_model(model));
    let snapshot = api.snapshot();
    // Counting may have to read a tokenizer from disk.
    let counted = tokio::task::spawn_blocking(move || {
        let entries: Vec<&Entry> = snapshot.list().iter().map(|entry| &**entry).collect();
        let count = |entries: &[&Entry]| EncodedSize::of(entries, model_api, counter.as_deref());
        let rows = entries.iter().map(|entry| {
            let EncodedSize { bytes, tokens, losses, .. } = count(&[entry]);
            let (wire_name, provider) = (&entry.wire_name, entry.provider_name());
            json!({"wire_name": wire_name, "provider": provider, "bytes": bytes, "tokens": tokens, "losses": losses})
        });
        let rows: Value = rows.collect();
        let mut of_providers: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        entries.iter().for_each(|entry| of_providers.entry(entry.provider_name()).or_default().push(entry));
        let providers = of_providers.iter().map(|(name, entries)| {
            let EncodedSize { bytes, tokens, .. } = count(entries);
            json!({"name": name, "tools": entries.len(), "bytes": bytes, "tokens": tokens})
        });
        let providers: Value = providers.collect();
        let EncodedSize { bytes, tokens, is_exact, .. } = count(&entries);
        json!({
            "api": model_api.as_str(), "model": asked.model.filter(|_| is_exact), "tools": rows, "providers": providers,
            "bytes": bytes, "tokens": tokens,
        })
    });
    api.ok(&counted.await.map_err(|error| ApiError::internal(error.to_string()))?)
}

/// Tool definitions together in the encoding of a model API.
struct EncodedSize {
    bytes: usize,
    tokens: usize,
    /// Whether the model's own tokenizer counted them.
    is_exact: bool,
    /// Number of schema features that the API cannot express.
    losses: usize,
}

impl EncodedSize {
    fn of(entries: &[&Entry], api: ModelApi, counter: Option<&dyn TokenCounter>) -> Self {
        let request_tools = entries.iter().map(|entry| RequestTool {
            name: entry.wire_name.clone(),
            description: entry.definition().description.clone(),
            parameters: entry.shown_schema(),
            ..RequestTool::default()
        });
        let request_tools: Vec<RequestTool> = request_tools.collect();
        let set = translate(api.dialect(), &request_tools, false);
        let text = if set.tools.is_empty() { String::new() } else { tools_json(api, &set).to_string() };
        let exact = counter.map(|counter| counter.count(&text)).filter(|(_, how)| *how == Exactness::Exact);
        let tokens = exact.map_or_else(|| EstimatedTokens::of_bytes(text.len()), |(tokens, _)| tokens);
        Self { bytes: text.len(), tokens, is_exact: exact.is_some(), losses: set.losses.len() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    after: Option<String>,
    limit: Option<usize>,
}

/// Handles `GET /api/agents`.
pub(super) async fn agents(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<PageQuery>) -> ApiResult {
    let limit = bounded("limit", asked.limit, LISTED, MAX_LISTED)?;
    api.ok(&api.operator()?.agents(asked.after.as_deref(), limit).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Firings {
    firings: Option<usize>,
}

/// Handles `GET /api/triggers`.
pub(super) async fn triggers(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Firings>) -> ApiResult {
    let firings = bounded("firings", asked.firings, FIRINGS, MAX_LISTED)?;
    api.ok(&api.operator()?.triggers(firings).await?)
}

/// Handles `POST /api/triggers/{id}/fire`.
pub(super) async fn fire(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    PathParam(id): PathParam,
) -> ApiResult {
    api.not_nested(&connection).await?;
    api.ok(&api.operator()?.fire(&id).await?)
}

/// Handles `GET /api/runs/{id}`.
pub(super) async fn run(State(api): State<Arc<Api>>, PathParam(id): PathParam) -> ApiResult {
    api.ok(&api.operator()?.run(&id).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mail {
    #[serde(default)]
    after: u64,
}

/// Handles `GET /api/sessions/{id}`.
pub(super) async fn session(
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam,
    QueryParams(asked): QueryParams<Mail>,
) -> ApiResult {
    api.ok(&api.operator()?.session(&id, asked.after).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replayed {
    calls: Option<usize>,
}

/// Handles `GET /api/policy`.
pub(super) async fn policy(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Replayed>) -> ApiResult {
    let calls = bounded("calls", asked.calls, REPLAYED, MAX_REPLAYED)?;
    api.ok(&api.operator()?.policy(calls).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyDraft {
    draft: String,
    calls: Option<usize>,
}

/// Handles `POST /api/policy/test`.
pub(super) async fn test_policy(State(api): State<Arc<Api>>, JsonBody(asked): JsonBody<PolicyDraft>) -> ApiResult {
    let calls = bounded("calls", asked.calls, REPLAYED, MAX_REPLAYED)?;
    api.ok(&api.operator()?.test_policy(&asked.draft, calls).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicySave {
    draft: String,
    base: String,
}

/// Handles `POST /api/policy/save`.
pub(super) async fn save_policy(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    JsonBody(asked): JsonBody<PolicySave>,
) -> ApiResult {
    api.not_nested(&connection).await?;
    api.ok(&api.operator()?.save_policy(&asked.draft, &asked.base).await?)
}
