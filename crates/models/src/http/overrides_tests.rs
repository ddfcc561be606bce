use serde_json::{Value, json};
use toolwright_core::model::{Message, ShownTool};

use super::*;
use crate::encoder::encode;

fn read(settings: Value) -> ModelSettings {
    serde_json::from_value(settings).expect("settings")
}

fn request(settings: Value, max_tokens: Option<u32>) -> ModelRequest {
    let messages = vec![Message::user("q")];
    ModelRequest { messages, max_tokens, settings: read(settings), ..ModelRequest::default() }
}

fn sent(api: Api, url: &str, model: &str, request: &ModelRequest, overrides: &ModelOverrides) -> Value {
    let endpoint = Endpoint::new("p", api, url);
    encode(api, &as_configured(request, &endpoint, model, overrides, &Forms::default()), model).body()
}

const OPENAI: &str = "https://api.openai.com/v1";
const AZURE: &str = "https://acme.openai.azure.com/openai/v1";
const COGNITIVE: &str = "https://acme.cognitiveservices.azure.com/openai/v1";
const FOUNDRY: &str = "https://acme.services.ai.azure.com/openai/v1";
const OTHER: &str = "https://api.groq.com/openai/v1";

#[test]
fn over_chat_completions_no_gpt_since_5_4_thinks_beside_tools() {
    let check = |url, api, model: &str, settings: Value, tools: usize, expect: Value| {
        let tools = (0..tools).map(|at| ShownTool { name: format!("t{at}"), ..ShownTool::default() }).collect();
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
    // It does not know the word, so it is told nothing, and thinks as much as it does by itself.
    check(OPENAI, Api::OpenAiChat, "gpt-5.4-chat-latest", high, 1, json!([null, 300 + 8192]));
}

#[test]
fn only_servers_of_openai_get_a_name_for_what_they_keep() {
    let request = ModelRequest { reuse: Reuse::Conversation, ..request(json!({}), None) };
    for api in [Api::OpenAiChat, Api::OpenAiResponses] {
        let ours = [OPENAI, AZURE, COGNITIVE, FOUNDRY].map(|url| (url, true));
        for (url, expect) in ours.into_iter().chain([(OTHER, false), ("http://127.0.0.1:8080/v1", false)]) {
            let body = sent(api, url, "gpt-5", &request, &ModelOverrides::default());
            assert_eq!(body.get("prompt_cache_key").is_some(), expect, "{api} {url}");
        }
    }
}

#[test]
fn room_to_think_is_made_as_far_as_there_is_any() {
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
    // What the name tells: 32,000 of Opus 4 and 4.1, 64,000 of those that followed.
    check(claude, "claude-opus-4-1", None, high(), none, is(32_000, Some(32_000 - 8192)));
    check(claude, "claude-opus-4-20250514", Some(20_000), high(), none, is(32_000, Some(12_000)));
    check(claude, "claude-opus-4-1", Some(31_500), high(), none, is(31_500, None));
    check(claude, "claude-sonnet-4-5", None, high(), none, is(32_768, Some(24_576)));
    check(claude, "claude-sonnet-4-5", Some(50_000), high(), none, is(64_000, Some(14_000)));
    check(claude, "claude-opus-4-8", Some(50_000), high(), none, is(74_576, None));
    // What is configured: a quarter is the answer's, and all that was asked for it.
    check(claude, "claude-haiku-4-5", Some(300), high(), none, is(24_876, Some(24_576)));
    check(claude, "claude-haiku-4-5", Some(300), high(), (None, Some(20_000)), is(20_000, Some(15_000)));
    check(claude, "claude-haiku-4-5", Some(12_000), high(), (None, Some(20_000)), is(20_000, Some(8000)));
    check(claude, "claude-haiku-4-5", Some(19_500), high(), (None, Some(20_000)), is(19_500, None));
    check(claude, "claude-haiku-4-5", Some(90_000), high(), (None, Some(20_000)), is(20_000, None));
    check(claude, "claude-haiku-4-5", None, high(), (None, Some(20_000)), is(20_000, Some(15_000)));
    check(claude, "claude-haiku-4-5", None, high(), (None, Some(1200)), is(1200, None));
    check(claude, "claude-haiku-4-5", Some(300), json!({"thinking_tokens": 100}), none, is(1324, Some(1024)));
    // What is left of the window, of which the question takes a few tokens and errors of the estimate a twentieth.
    let rest = 4096 - 4096 / 20 - u32::try_from(request(json!({}), None).tokens()).expect("few");
    check(Api::OpenAiChat, "some-model", Some(1000), high(), (Some(4096), None), is(rest, None));
    check(Api::OpenAiChat, "some-model", Some(1000), json!({}), (Some(4096), None), is(1000, None));
    check(Api::OpenAiChat, "gpt-5-mini", Some(528), json!({}), none, is(528 + 8192, None));
    check(Api::OpenAiChat, "gpt-5-mini", Some(528), json!({}), (Some(4096), None), is(rest, None));
    check(Api::OpenAiChat, "gpt-5-mini", None, json!({}), none, (None, None));
    // No more than the model gives, and no less than was asked for.
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
        let body = sent(Api::Gemini, "http://h", model, &request(json!({}), Some(asked)), &ModelOverrides::default());
        body["generationConfig"]["maxOutputTokens"].clone()
    };
    for model in ["gemini-2.5-pro", "gemini-3-pro", "gemini-flash-latest"] {
        assert_eq!((at(model, 60_000), at(model, 65_536)), (json!(65_535), json!(65_536)), "{model}");
    }
}

#[test]
fn of_a_temperature_and_top_p_the_nearer_counts() {
    let overrides =
        |temperature, settings| ModelOverrides { temperature, settings: read(settings), ..ModelOverrides::default() };
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
