//! Applies configuration and known facts about a model to its requests.

use std::borrow::Cow;

use toolwright_core::model::{
    Effort, ModelRequest, ModelSettings, PromptCache, PromptReuse, RequestTool, usable_window,
};

use super::endpoint::{Endpoint, ModelOverrides};
use super::refusals::{ThinkingAllowance, Workaround, Workarounds};
use crate::api::Api;
use crate::codec::anthropic::DEFAULT_MAX_TOKENS;
use crate::codec::reasoning::{self, MIN_BUDGET};
use crate::codec::request::{ClaudeFamily, ModelFamily, ModelKind, excludes_temperature_with_top_p};

/// Returns the request with the configuration of `model` (the name without its provider) at `endpoint`: missing
/// settings are filled in, parameters adapted to the server, and the token limit includes an allowance for thinking and
/// stays within the model's maximum. `workarounds` are those for earlier refusals.
pub(crate) fn configured_request<'r>(
    request: &'r ModelRequest,
    endpoint: &Endpoint,
    model: &str,
    overrides: &ModelOverrides,
    workarounds: &Workarounds,
) -> Cow<'r, ModelRequest> {
    let request = for_server(with_settings(request, model, overrides), endpoint, model, workarounds);
    with_limit(request, endpoint.api, model, overrides, workarounds)
}

/// Returns the thinking allowance that the token limit of `configured` has over that of `asked`, if the request could
/// go without it. A budget's allowance does not count: the model is sent the budget too.
pub(crate) fn thinking_allowance(
    asked: &ModelRequest,
    configured: &ModelRequest,
    api: Api,
    model: &str,
    overrides: &ModelOverrides,
) -> Option<ThinkingAllowance> {
    let answer = match (asked.max_tokens, overrides.max_output) {
        (Some(answer), _) => answer,
        (None, None) if api == Api::Anthropic => DEFAULT_MAX_TOKENS,
        (None, _) => return None,
    };
    let limit = configured.max_tokens.filter(|&limit| limit > answer)?;
    let has_budget = reasoning::budget(api, model, &configured.settings).is_some();
    (!has_budget).then(|| ThinkingAllowance { limit, total: configured.tokens().saturating_add(limit as usize) })
}

/// Returns the request with configured settings filled in. If the model allows only one of temperature and `top_p`, the
/// request's own counts.
fn with_settings<'r>(request: &'r ModelRequest, model: &str, overrides: &ModelOverrides) -> Cow<'r, ModelRequest> {
    if overrides.temperature.is_none() && overrides.settings.is_empty() {
        return Cow::Borrowed(request);
    }
    let is_free = request.settings.top_p.is_none() || !excludes_temperature_with_top_p(model);
    Cow::Owned(ModelRequest {
        temperature: request.temperature.or(overrides.temperature.filter(|_| is_free)),
        settings: request.settings.clone().or(&overrides.settings),
        ..request.clone()
    })
}

/// Adapts the request to the server: parameters that OpenAI's server supports and others refuse, or the reverse.
///
/// Over Chat Completions, GPT since 5.4 takes tools only with the effort `none` ("Function tools with reasoning_effort
/// are not supported …": openai/openai-openapi#541), and 5.6 requires it. Azure's Foundry has refused that effort too
/// (agentgateway/agentgateway#2894), and proxies before OpenAI behave as it does; a refusal overrides this knowledge.
/// Other servers of the API may refuse a `prompt_cache_key`.
fn for_server<'r>(
    request: Cow<'r, ModelRequest>,
    endpoint: &Endpoint,
    model: &str,
    workarounds: &Workarounds,
) -> Cow<'r, ModelRequest> {
    if !matches!(endpoint.api, Api::OpenAiChat | Api::OpenAiResponses) {
        return request;
    }
    let (maker, is_of_openai) = (ModelFamily::of(model), endpoint.is_of_openai());
    let is_chat_with_tools = endpoint.api == Api::OpenAiChat && !request.tools.is_empty();
    let needs_no_effort = workarounds.has(Workaround::NoEffort)
        || is_of_openai && matches!(maker, ModelFamily::Gpt((5, 4..) | (6.., _), _));
    let settings = if is_chat_with_tools && (needs_no_effort || workarounds.has(Workaround::SilentEffort)) {
        let silent = ModelSettings { effort: Some(Effort::None), ..ModelSettings::default() };
        // Some models do not know the value.
        let says_none =
            !workarounds.has(Workaround::SilentEffort) && reasoning::openai_effort(model, &silent) == Some("none");
        let mut settings = request.settings.clone();
        (settings.effort, settings.thinking_tokens) = (silent.effort.filter(|_| says_none), None);
        Some(settings)
    } else {
        None
    };
    let keeps_nothing = !is_of_openai && maker.is_openai() && request.reuse != PromptReuse::Once;
    if settings.is_none() && !keeps_nothing {
        return request;
    }
    let mut request = request.into_owned();
    request.settings = settings.unwrap_or(request.settings);
    if keeps_nothing {
        request.settings.cache = Some(PromptCache::Off);
    }
    Cow::Owned(request)
}

/// Returns the request with an allowance for thinking in its token limit ([`reasoning::thinking_allowance`]), because
/// the limits of all APIs count both. The limit stays within the model's maximum, window and known name, and gets no
/// allowance if the server refused a limit of that size. An API that requires a limit gets one. If there is not enough
/// for both, the answer keeps its requested limit, and at least a quarter; thinking gets the rest, or is turned off. A
/// limit that covers reasoning gets no allowance: the encoder keeps the budget below it.
fn with_limit<'r>(
    request: Cow<'r, ModelRequest>,
    api: Api,
    model: &str,
    overrides: &ModelOverrides,
    workarounds: &Workarounds,
) -> Cow<'r, ModelRequest> {
    let (budget, room) = match &request.settings {
        settings if settings.limit_covers_reasoning => (None, 0),
        settings => (reasoning::budget(api, model, settings), reasoning::thinking_allowance(api, model, settings)),
    };
    let (answer, whole, unthinking) = match (request.max_tokens, overrides.max_output) {
        (None, _) if api != Api::Anthropic => return request,
        (None, Some(most)) => (most / 4, most, most),
        (asked, most) => {
            let most = most.unwrap_or(u32::MAX);
            let answer = asked.unwrap_or(DEFAULT_MAX_TOKENS).min(most);
            let bound = if room == 0 { u32::MAX } else { bound(&request, model, overrides) };
            let whole = answer.saturating_add(room).min(bound.max(answer)).min(most);
            let is_refused = budget.is_none() && whole > answer && workarounds.refuse_limit(whole, || request.tokens());
            (answer, if is_refused { answer } else { whole }, answer)
        }
    };
    let (max_tokens, thinking_tokens) = match budget {
        Some(budget) if whole < answer.saturating_add(budget) => match whole - answer.max(whole / 4) {
            left @ MIN_BUDGET.. => (whole, Some(left)),
            _ => (unthinking, Some(0)),
        },
        _ => (whole, None),
    };
    if request.max_tokens == Some(max_tokens) && thinking_tokens.is_none() {
        return request;
    }
    let mut request = request.into_owned();
    request.max_tokens = Some(max_tokens);
    if thinking_tokens.is_some() {
        request.settings.thinking_tokens = thinking_tokens;
        request.settings.effort = None;
    }
    Cow::Owned(request)
}

/// Returns the maximal tokens of answer and thinking together, by the model's name and the rest of its window, less a
/// margin for estimation errors.
fn bound(request: &ModelRequest, model: &str, overrides: &ModelOverrides) -> u32 {
    let left = overrides.window.map(|window| usable_window(window).saturating_sub(request.tokens()));
    let left = left.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    [left, ModelFamily::of(model).max_output()].into_iter().flatten().min().unwrap_or(u32::MAX)
}

/// Returns why a native tool of `model`'s provider (the name without its provider) cannot be declared at `endpoint`;
/// `None` if it can. Depends on the model's maker: other servers of the same API refuse such declarations, or ignore
/// them.
pub(crate) fn lacks_native(
    endpoint: &Endpoint,
    model: &str,
    overrides: &ModelOverrides,
    tool: &RequestTool,
    beside_others: bool,
) -> Option<String> {
    let api = endpoint.api;
    if overrides.tool_format.is_some() {
        return Some("its calls are written in text".to_owned());
    }
    if tool.native.as_ref().is_none_or(|native| !native.contains_key(api.as_str())) {
        return Some(format!("its API ({api}) has no such tool"));
    }
    let family = ModelFamily::of(model);
    let is_of_maker = match api {
        Api::Anthropic => matches!(family, ModelFamily::Claude(..)),
        Api::OpenAiResponses => family.is_openai(),
        Api::Gemini => matches!(family, ModelFamily::Gemini(..)),
        Api::OpenAiChat | Api::Ollama => false,
    };
    if !overrides.native_tools.unwrap_or(is_of_maker) {
        return Some(
            "its server is not known to have such tools (`native_tools: true` under `models` says that it has)"
                .to_owned(),
        );
    }
    // ai.google.dev/gemini-api/docs/tool-combination
    if beside_others && matches!(family, ModelFamily::Gemini(Some((..3, _)), _)) {
        return Some("Gemini before 3 takes it only without functions beside it".to_owned());
    }
    None
}

/// Whether an API supports deferred tools.
pub(crate) fn has_deferred_tools(api: Api) -> bool {
    match api {
        Api::Anthropic | Api::OpenAiResponses => true,
        Api::OpenAiChat | Api::Gemini | Api::Ollama => false,
    }
}

/// Whether `model` (the name without its provider) supports deferred tools at `endpoint`. Only the makers' own
/// endpoints do: other servers of the same API often ignore `defer_loading` and declare every tool.
pub(crate) fn takes_deferred_tools(endpoint: &Endpoint, model: &str) -> bool {
    let Some(host) = url::Url::parse(&endpoint.base_url).ok().and_then(|url| url.host_str().map(str::to_owned)) else {
        return false;
    };
    match endpoint.api {
        Api::Anthropic => host == "api.anthropic.com" && is_able(model),
        Api::OpenAiResponses => {
            let regional = host.strip_suffix("api.openai.com").is_some_and(|region| region.ends_with('.'));
            (host == "api.openai.com" || regional) && is_able(model)
        }
        Api::OpenAiChat | Api::Gemini | Api::Ollama => false,
    }
}

/// Whether the maker says that `model` takes deferred tools: Fable and Mythos, Sonnet and Opus from 4.0 on, Haiku from 4.5
/// on (platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool, "Limits"), and GPT from 5.4 on
/// (developers.openai.com/api/docs/guides/tools-tool-search). The nano models refuse it («Tool 'tool_search' is not
/// supported with gpt-5.4-nano»), and chat models have no tools of this kind.
fn is_able(model: &str) -> bool {
    match ModelFamily::of(model) {
        ModelFamily::Claude(ClaudeFamily::Fable, _) => true,
        ModelFamily::Claude(ClaudeFamily::Sonnet | ClaudeFamily::Opus, Some(version)) => version >= (4, 0),
        ModelFamily::Claude(ClaudeFamily::Haiku, Some(version)) => version >= (4, 5),
        ModelFamily::Gpt(version, kind) => version >= (5, 4) && kind != ModelKind::Chat && !model.contains("-nano"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use toolwright_core::model::{Message, RequestSettings, RequestTool};

    use crate::codec::encode;

    fn read(settings: Value) -> RequestSettings {
        serde_json::from_value(settings).expect("settings")
    }

    fn request(settings: Value, max_tokens: Option<u32>) -> ModelRequest {
        let messages = vec![Message::user("q")];
        ModelRequest { messages, max_tokens, settings: read(settings), ..ModelRequest::default() }
    }

    fn sent(api: Api, url: &str, model: &str, request: &ModelRequest, overrides: &ModelOverrides) -> Value {
        let endpoint = Endpoint::new("p", api, url);
        encode(api, &configured_request(request, &endpoint, model, overrides, &Workarounds::default()), model).body()
    }

    const OPENAI: &str = "https://api.openai.com/v1";
    const AZURE: &str = "https://acme.openai.azure.com/openai/v1";
    const COGNITIVE: &str = "https://acme.cognitiveservices.azure.com/openai/v1";
    const FOUNDRY: &str = "https://acme.services.ai.azure.com/openai/v1";
    const OTHER: &str = "https://api.groq.com/openai/v1";

    #[test]
    fn chat_gpt_5_4_never_thinks_beside_tools() {
        let check = |url, api, model: &str, settings: Value, tools: usize, expect: Value| {
            let tools = (0..tools).map(|at| RequestTool { name: format!("t{at}"), ..RequestTool::default() }).collect();
            let request = ModelRequest { tools, ..request(settings.clone(), Some(300)) };
            let body = sent(api, url, model, &request, &ModelOverrides::default());
            let limit = body.get("max_completion_tokens").or(body.get("max_output_tokens"));
            let effort = body.get("reasoning_effort").or_else(|| body.pointer("/reasoning/effort"));
            assert_eq!(json!([effort, limit]), expect, "{url} {api} {model} {settings}");
        };
        let high = json!({"effort": "high"});
        let asked = json!(["high", 300 + 24_576]);
        for model in ["gpt-5.4", "gpt-5.6-sol", "gpt-6-astra", "ft:gpt-5.4-mini:acme"] {
            for url in [OPENAI, AZURE, COGNITIVE, FOUNDRY, "https://eu.api.openai.com/v1"] {
                check(url, Api::OpenAiChat, model, high.clone(), 1, json!(["none", 300]));
            }
            check(OPENAI, Api::OpenAiChat, model, json!({}), 1, json!(["none", 300]));
            check(OPENAI, Api::OpenAiChat, model, high.clone(), 0, asked.clone());
            check(OPENAI, Api::OpenAiResponses, model, high.clone(), 1, asked.clone());
            check(OTHER, Api::OpenAiChat, model, high.clone(), 1, asked.clone());
            check("https://api.openai.com.example/v1", Api::OpenAiChat, model, high.clone(), 1, asked.clone());
        }
        for model in ["gpt-5", "gpt-5.2", "o3"] {
            check(OPENAI, Api::OpenAiChat, model, high.clone(), 1, asked.clone());
        }
        // The value is unknown there, so none is sent, and the model uses its default.
        check(OPENAI, Api::OpenAiChat, "gpt-5.4-chat-latest", high, 1, json!([null, 300 + 8192]));
    }

    #[test]
    fn only_openai_gets_a_cache_key() {
        let request = ModelRequest { reuse: PromptReuse::Conversation, ..request(json!({}), None) };
        for api in [Api::OpenAiChat, Api::OpenAiResponses] {
            let ours = [OPENAI, AZURE, COGNITIVE, FOUNDRY].map(|url| (url, true));
            for (url, expect) in ours.into_iter().chain([(OTHER, false), ("http://127.0.0.1:8080/v1", false)]) {
                let body = sent(api, url, "gpt-5", &request, &ModelOverrides::default());
                assert_eq!(body.get("prompt_cache_key").is_some(), expect, "{api} {url}");
            }
        }
    }

    #[test]
    fn thinking_room_stays_within_the_window() {
        let check =
            |api, model: &str, asked: Option<u32>, settings: Value, overrides: (Option<usize>, Option<u32>), expect| {
                let (window, max_output) = overrides;
                let overrides = ModelOverrides { window, max_output, ..ModelOverrides::default() };
                let body = sent(api, "http://h", model, &request(settings.clone(), asked), &overrides);
                let limit = body.get("max_tokens").or(body.get("max_completion_tokens")).cloned();
                let budget = body.pointer("/thinking/budget_tokens").cloned();
                assert_eq!((limit, budget), expect, "{model} {asked:?} {settings} {overrides:?}");
            };
        let high = || json!({"effort": "high"});
        let is = |limit: u32, budget: Option<u32>| (Some(json!(limit)), budget.map(|tokens| json!(tokens)));
        let none = (None, None);
        let claude = Api::Anthropic;
        // By name: 32,000 for Opus 4 and 4.1, 64,000 for later ones.
        check(claude, "claude-opus-4-1", None, high(), none, is(32_000, Some(32_000 - 8192)));
        check(claude, "claude-opus-4-20250514", Some(20_000), high(), none, is(32_000, Some(12_000)));
        check(claude, "claude-opus-4-1", Some(31_500), high(), none, is(31_500, None));
        check(claude, "claude-sonnet-4-5", None, high(), none, is(32_768, Some(24_576)));
        check(claude, "claude-sonnet-4-5", Some(50_000), high(), none, is(64_000, Some(14_000)));
        check(claude, "claude-opus-4-8", Some(50_000), high(), none, is(74_576, None));
        // By configuration: a quarter is for the answer, which gets all it requested.
        check(claude, "claude-haiku-4-5", Some(300), high(), none, is(24_876, Some(24_576)));
        check(claude, "claude-haiku-4-5", Some(300), high(), (None, Some(20_000)), is(20_000, Some(15_000)));
        check(claude, "claude-haiku-4-5", Some(12_000), high(), (None, Some(20_000)), is(20_000, Some(8000)));
        check(claude, "claude-haiku-4-5", Some(19_500), high(), (None, Some(20_000)), is(19_500, None));
        check(claude, "claude-haiku-4-5", Some(90_000), high(), (None, Some(20_000)), is(20_000, None));
        check(claude, "claude-haiku-4-5", None, high(), (None, Some(20_000)), is(20_000, Some(15_000)));
        check(claude, "claude-haiku-4-5", None, high(), (None, Some(1200)), is(1200, None));
        check(claude, "claude-haiku-4-5", Some(300), json!({"thinking_tokens": 100}), none, is(1324, Some(1024)));
        // The rest of the window: the question takes a few tokens, and the error margin a twentieth.
        let rest = 4096 - 4096 / 20 - u32::try_from(request(json!({}), None).tokens()).expect("few");
        check(Api::OpenAiChat, "some-model", Some(1000), high(), (Some(4096), None), is(rest, None));
        check(Api::OpenAiChat, "some-model", Some(1000), json!({}), (Some(4096), None), is(1000, None));
        check(Api::OpenAiChat, "gpt-5-mini", Some(528), json!({}), none, is(528 + 8192, None));
        check(Api::OpenAiChat, "gpt-5-mini", Some(528), json!({}), (Some(4096), None), is(rest, None));
        check(Api::OpenAiChat, "gpt-5-mini", None, json!({}), none, (None, None));
        // Not above the model's maximum, and not below the request.
        for (model, most) in [("gpt-5", 128_000), ("gpt-5.2-chat-latest", 16_384), ("o3", 100_000)] {
            check(Api::OpenAiChat, model, Some(most), json!({}), none, is(most, None));
            check(Api::OpenAiChat, model, Some(most - 9), json!({}), none, is(most, None));
            check(Api::OpenAiChat, model, Some(most + 9), json!({}), none, is(most + 9, None));
        }
        for model in ["claude-opus-5", "claude-haiku-5-5", "claude-fable-5-1", "claude-mythos-preview"] {
            check(claude, model, Some(127_000), json!({}), none, is(128_000, None));
        }
        check(Api::OpenAiChat, "gpt-35-turbo", Some(4000), json!({}), none, is(4000, None));
        check(claude, "claude-opus-5", Some(528), json!({}), none, is(528 + 24_576, None));
        check(claude, "claude-opus-5", Some(528), json!({"effort": "none"}), none, is(528, None));
        check(Api::OpenAiChat, "some-model", Some(5000), high(), (Some(4096), None), is(5000, None));
        check(Api::OpenAiChat, "some-model", None, high(), (Some(4096), None), (None, None));
        check(
            claude,
            "claude-haiku-4-5",
            Some(1000),
            high(),
            (Some(4096), None),
            is(rest, Some(rest - (rest / 4).max(1000))),
        );
    }

    #[test]
    fn gemini_has_room_within_its_range() {
        let at = |model: &str, asked| {
            let body =
                sent(Api::Gemini, "http://h", model, &request(json!({}), Some(asked)), &ModelOverrides::default());
            body["generationConfig"]["maxOutputTokens"].clone()
        };
        for model in ["gemini-2.5-pro", "gemini-3-pro", "gemini-flash-latest"] {
            assert_eq!((at(model, 60_000), at(model, 65_536)), (json!(65_535), json!(65_536)), "{model}");
        }
    }

    #[test]
    fn nearer_of_temperature_and_top_p_counts() {
        let overrides = |temperature, settings| ModelOverrides {
            temperature,
            settings: read(settings).settings,
            ..ModelOverrides::default()
        };
        let check = |model: &str, own: (Option<f64>, Value), overrides: &ModelOverrides, expect: Value| {
            let request = ModelRequest { temperature: own.0, ..request(own.1, None) };
            let body = sent(Api::Anthropic, "http://h", model, &request, overrides);
            assert_eq!(json!([body.get("temperature"), body.get("top_p")]), expect, "{model} {:?}", request.settings);
        };
        let warm = overrides(Some(0.1), json!({}));
        check("claude-sonnet-4-5", (None, json!({"top_p": 0.3})), &warm, json!([null, 0.3]));
        check("claude-sonnet-4-5", (None, json!({})), &warm, json!([0.1, null]));
        check("claude-sonnet-4-5", (Some(0.7), json!({})), &overrides(None, json!({"top_p": 0.3})), json!([0.7, null]));
        check("claude-sonnet-4-0", (None, json!({"top_p": 0.3})), &warm, json!([0.1, 0.3]));
    }

    #[test]
    fn models_are_known_by_maker_family_and_version() {
        const CLAUDE: &str = "https://api.anthropic.com";
        const OPENAI: &str = "https://api.openai.com/v1";
        let check = |api, base: &str, models: &[&str], expect| {
            for model in models {
                assert_eq!(takes_deferred_tools(&Endpoint::new("p", api, base), model), expect, "{api} {base} {model}");
            }
        };
        let able = ["claude-opus-4-20250514", "claude-sonnet-4-5", "claude-haiku-4-5-20251001", "claude-opus-5"];
        check(Api::Anthropic, CLAUDE, &able, true);
        check(Api::Anthropic, CLAUDE, &["claude-fable-5", "claude-mythos-preview", "claude-haiku-5"], true);
        let old = ["claude-3-5-sonnet-20241022", "claude-haiku-4", "claude-sonnet-3-7", "claude-new-9", "claude-", "m"];
        check(Api::Anthropic, CLAUDE, &old, false);
        check(Api::Anthropic, "https://api.anthropic.com.example.org", &able, false);
        check(Api::Anthropic, "https://api.deepseek.com/anthropic", &able, false);
        check(Api::Anthropic, "http://127.0.0.1:9", &able, false);
        check(Api::Anthropic, "no URL", &able, false);

        let able = ["gpt-5.4", "gpt-5.4-mini", "gpt-5.4-2026-03-05", "gpt-5.10", "gpt-6", "gpt-6-astra"];
        check(Api::OpenAiResponses, OPENAI, &able, true);
        check(Api::OpenAiResponses, "https://eu.api.openai.com/v1", &able, true);
        check(Api::OpenAiResponses, "https://notapi.openai.com/v1", &able, false);
        check(Api::OpenAiChat, OPENAI, &able, false);
        let unable = ["gpt-5", "gpt-5.1-codex", "gpt-4.1", "gpt-5.4-nano", "gpt-5.5-chat-latest", "gpt-oss-120b", "o3"];
        check(Api::OpenAiResponses, OPENAI, &unable, false);
    }
}
