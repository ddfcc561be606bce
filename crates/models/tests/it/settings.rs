//! How a model is to answer, on the wire of each API: effort, sampling, ends, and what its provider is to keep.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, Effort, IgnoreModelEvents, Message, ModelClient, ModelErrorKind, ModelRequest, ModelSettings,
    OpaqueData, Prices, PromptCache, PromptReuse, RequestSettings, RequestTool, ToolChoice, ToolVisibility, Usage,
};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient, ModelOverrides, decode_whole, encode};
use toolwright_testkit::model_server::{Script, ScriptedModel, Turn, WireApi};

use crate::golden::{call, check_golden, conversation};
use crate::http::client::PAIRS;

fn settings() -> ModelSettings {
    ModelSettings {
        effort: Some(Effort::Medium),
        thinking_tokens: None,
        top_p: Some(0.9),
        top_k: Some(40),
        seed: Some(7),
        stop: vec!["END".into(), "\n\n".into()],
        cache: Some(PromptCache::Hour),
    }
}

/// Everything that can be said, in a conversation that goes on.
fn reported() -> ModelRequest {
    ModelRequest { settings: settings().into(), reuse: PromptReuse::Conversation, ..conversation() }
}

#[test]
fn all_settings_are_written_for_each_api() {
    for api in Api::ALL {
        check_golden(&format!("{api}.settings.json"), api, &reported());
    }
}

/// The parts of a body that may hold what is looked for here.
fn found(body: &Value, pointers: &[&str]) -> Vec<Value> {
    pointers.iter().map(|pointer| body.pointer(pointer).cloned().unwrap_or_default()).collect()
}

#[test]
fn unsupported_parameters_are_not_sent() {
    let check = |api, model: &str, pointers: &[&str], expect: &[Value]| {
        let mut request = reported();
        request.settings.stop.truncate(1);
        assert_eq!(found(&encode(api, &request, model).body(), pointers), expect, "{api} {model}");
    };
    let null = Value::Null;
    let chat = ["/temperature", "/top_p", "/top_k", "/seed", "/stop", "/reasoning_effort"];
    let [half, most, forty, seven, end] = [json!(0.5), json!(0.9), json!(40), json!(7), json!(["END"])];
    check(
        Api::OpenAiChat,
        "gpt-4.1",
        &chat,
        &[half.clone(), most.clone(), null.clone(), seven.clone(), end.clone(), null.clone()],
    );
    check(
        Api::OpenAiChat,
        "gpt-5.2",
        &chat,
        &[null.clone(), null.clone(), null.clone(), seven.clone(), null.clone(), json!("medium")],
    );
    let responses = ["/temperature", "/top_p", "/seed", "/stop", "/reasoning"];
    check(
        Api::OpenAiResponses,
        "o3",
        &responses,
        &[null.clone(), null.clone(), null.clone(), null.clone(), json!({"effort": "medium"})],
    );
    let anthropic =
        ["/temperature", "/top_p", "/top_k", "/stop_sequences", "/thinking", "/output_config", "/max_tokens"];
    let thinks = json!({"type": "enabled", "budget_tokens": 8192});
    check(
        Api::Anthropic,
        "claude-sonnet-4-5",
        &anthropic,
        &[null.clone(), null.clone(), null.clone(), end.clone(), thinks, null.clone(), json!(16_384)],
    );
    check(
        Api::Anthropic,
        "claude-3-5-haiku-latest",
        &anthropic,
        &[half.clone(), most.clone(), forty.clone(), end.clone(), null.clone(), null.clone(), json!(8192)],
    );
    let effort = json!({"effort": "medium"});
    check(
        Api::Anthropic,
        "claude-opus-4-8",
        &anthropic,
        &[null.clone(), null.clone(), null.clone(), end.clone(), json!({"type": "adaptive"}), effort, json!(16_384)],
    );
    let gemini = ["/generationConfig/topP", "/generationConfig/topK", "/generationConfig/thinkingConfig"];
    check(Api::Gemini, "gemini-2.5-flash", &gemini, &[most, forty, json!({"thinkingBudget": 8192})]);
}

#[test]
fn claude_takes_temperature_or_top_p() {
    let mut request = ModelRequest { settings: ModelSettings { effort: None, ..settings() }.into(), ..reported() };
    let sent = |model: &str, request: &ModelRequest| {
        found(&encode(Api::Anthropic, request, model).body(), &["/temperature", "/top_p"])
    };
    assert_eq!(sent("claude-sonnet-4-5", &request), [json!(0.5), Value::Null]);
    assert_eq!(sent("claude-sonnet-4-0", &request), [json!(0.5), json!(0.9)]);
    request.temperature = None;
    assert_eq!(sent("claude-sonnet-4-5", &request), [Value::Null, json!(0.9)]);

    request.settings.effort = Some(Effort::High);
    request.tool_choice = ToolChoice::Tool("fs__read".into());
    let forced = json!({"type": "tool", "name": "fs__read"});
    for (model, expect) in [
        ("claude-sonnet-4-5", [forced.clone(), Value::Null, Value::Null]),
        ("claude-opus-4-7", [forced.clone(), Value::Null, json!("high")]),
        ("claude-opus-4-8", [forced.clone(), json!({"type": "adaptive"}), json!("high")]),
        ("claude-opus-5", [forced, Value::Null, json!("high")]),
        ("claude-opus-5-5", [Value::Null, Value::Null, json!("high")]),
        ("claude-fable-5-1", [Value::Null, Value::Null, json!("high")]),
    ] {
        let body = encode(Api::Anthropic, &request, model).body();
        assert_eq!(found(&body, &["/tool_choice", "/thinking", "/output_config/effort"]), expect, "{model}");
    }
}

/// Where marks stand, as JSON pointers.
fn marks(body: &Value) -> Vec<String> {
    fn walk(value: &Value, path: &str, out: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| match key.as_str() {
                "cache_control" => out.push(path.to_owned()),
                _ => walk(value, &format!("{path}/{key}"), out),
            }),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(at, item)| walk(item, &format!("{path}/{at}"), out));
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    walk(body, "", &mut out);
    out.sort();
    out
}

#[test]
fn anthropic_cache_marks_are_at_most_four() {
    let deferred =
        |name: &str| RequestTool { exposed: ToolVisibility::Deferred, ..crate::golden::tool(name, "d", json!({})) };
    let shown = |name: &str| crate::golden::tool(name, "quoted \" and all }]", json!({"type": "object"}));
    let three: Arc<[RequestTool]> = [shown("a"), shown("b"), deferred("c"), deferred("d")].into();
    let check = |reuse, cache, tools: &Arc<[RequestTool]>, expect: &[&str]| {
        let request = ModelRequest {
            reuse,
            settings: ModelSettings { cache, ..ModelSettings::default() }.into(),
            tools: Arc::clone(tools),
            ..conversation()
        };
        let encoded = encode(Api::Anthropic, &request, "claude-sonnet-4-5");
        assert_eq!(marks(&encoded.body()), expect, "{reuse:?} {cache:?}");
        assert_eq!(encoded.bytes(), encoded.body().to_string().into_bytes());
    };
    let (off, hour) = (Some(PromptCache::Off), Some(PromptCache::Hour));
    let all = ["/messages/2/content/2", "/messages/4/content/1", "/system/0", "/tools/1"];
    check(PromptReuse::Conversation, None, &three, &all);
    check(PromptReuse::Conversation, hour, &three, &all);
    check(PromptReuse::Conversation, off, &three, &[]);
    check(PromptReuse::Prompt, None, &three, &["/system/0", "/tools/1"]);
    check(PromptReuse::Once, hour, &three, &[]);
    let last: Arc<[RequestTool]> = [deferred("c"), shown("a")].into();
    // Deferred tools are sent behind the others.
    check(PromptReuse::Prompt, None, &last, &["/system/0", "/tools/0"]);
    // Past calls make tools of their own that are kept by nobody.
    check(PromptReuse::Prompt, None, &Arc::default(), &["/system/0"]);
}

#[test]
fn openai_gets_the_conversation_cache_key() {
    let key = |request: &ModelRequest, api, model: &str| {
        encode(api, request, model).body()["prompt_cache_key"].as_str().map(str::to_owned)
    };
    let request = ModelRequest { reuse: PromptReuse::Conversation, ..conversation() };
    let first = key(&request, Api::OpenAiChat, "gpt-5").unwrap();
    assert!(first.len() <= 64, "{first}");
    let mut grown = request.clone();
    grown.messages.push(Message::user("And then?"));
    assert_eq!(key(&grown, Api::OpenAiResponses, "ft:gpt-4.1-mini:acme"), Some(first.clone()), "turns share it");
    let other = ModelRequest { messages: vec![Message::user("Another task")], ..request.clone() };
    assert_ne!(key(&other, Api::OpenAiChat, "gpt-5"), Some(first), "conversations do not");
    let off = RequestSettings::from(ModelSettings { cache: Some(PromptCache::Off), ..ModelSettings::default() });
    for (request, model) in [
        (&request, "some-model"),
        (&request, "gpt-oss:20b"),
        (&ModelRequest { reuse: PromptReuse::Once, ..request.clone() }, "gpt-5"),
        (&ModelRequest { settings: off, ..request.clone() }, "gpt-5"),
    ] {
        assert_eq!(key(request, Api::OpenAiChat, model), None, "{model}");
    }
}

/// What is said of a conversation, without the marks in it: tools and system prompt, then its messages one by one.
pub(crate) fn prompt(api: Api, body: &Value) -> (String, Vec<String>) {
    fn bare(value: &Value) -> Value {
        match value {
            Value::Object(fields) => fields
                .iter()
                .filter(|(key, _)| *key != "cache_control")
                .map(|(key, value)| (key.clone(), bare(value)))
                .collect(),
            Value::Array(items) => items.iter().map(bare).collect(),
            other => other.clone(),
        }
    }
    let body = bare(body);
    let (system, messages) = match api {
        Api::OpenAiChat | Api::Ollama => ("", "messages"),
        Api::OpenAiResponses => ("instructions", "input"),
        Api::Anthropic => ("system", "messages"),
        Api::Gemini => ("systemInstruction", "contents"),
    };
    let before = format!("{} {}", body["tools"], body.get(system).unwrap_or(&Value::Null));
    (before, body[messages].as_array().unwrap().iter().map(Value::to_string).collect())
}

#[test]
fn each_prompt_extends_the_one_before() {
    // The conversation of the goldens has thoughts, images, a failure and a broken call in it.
    let whole = ModelRequest { reuse: PromptReuse::Conversation, ..conversation() };
    for api in Api::ALL {
        let turns =
            (1..=whole.messages.len()).filter(|&end| !matches!(whole.messages[end - 1], Message::Assistant { .. }));
        let prompts: Vec<_> = turns
            .map(|end| {
                let request = ModelRequest { messages: whole.messages[..end].to_vec(), ..whole.clone() };
                prompt(api, &encode(api, &request, "m").body())
            })
            .collect();
        for pair in prompts.windows(2) {
            assert_eq!(pair[0].0, pair[1].0, "{api}: tools and system prompt");
            let (shorter, longer) = (pair[0].1.concat(), pair[1].1.concat());
            // A message of the user may grow by what follows it from the user.
            let shorter = shorter.trim_end_matches(['}', ']']);
            assert!(longer.starts_with(shorter), "{api}:\n{shorter}\n{longer}");
        }
    }
}

fn client(api: Api, url: &str, overrides: ModelOverrides) -> HttpModelClient {
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("p", api, url).with_key("k"));
    endpoints.set_overrides("p", overrides);
    HttpModelClient::new(endpoints)
}

#[tokio::test]
async fn configured_settings_fill_gaps() {
    let overrides = ModelOverrides {
        temperature: Some(0.1),
        settings: ModelSettings { stop: vec!["X".into()], ..settings() },
        keep_alive: Some(Duration::from_secs(90)),
        ..ModelOverrides::default()
    };
    let own = RequestSettings::from(ModelSettings {
        top_p: Some(0.3),
        effort: Some(Effort::None),
        ..ModelSettings::default()
    });
    for (api, wire) in PAIRS {
        let server = ScriptedModel::start(Script::echo()).await.unwrap();
        let client = client(api, &server.base_url(wire), overrides.clone());
        let request = ModelRequest { settings: own.clone(), max_tokens: Some(50), temperature: None, ..conversation() };
        client.complete("p/some-model", &request, &IgnoreModelEvents, &Cancel::new()).await.unwrap();
        let merged = ModelRequest {
            settings: own.clone().or(&overrides.settings),
            temperature: overrides.temperature,
            ..request
        };
        let mut expect = encode(api, &merged, "some-model").body();
        if api == Api::Ollama {
            expect["keep_alive"] = json!(90);
        }
        assert_eq!(server.requests()[0].body, expect, "{api}");
    }
}

#[tokio::test]
async fn thinking_budget_adds_to_the_answer_limit() {
    for (api, wire, model, at, max) in [
        (Api::OpenAiChat, WireApi::OpenAi, "gpt-5", "/max_completion_tokens", 300 + 8192),
        (Api::OpenAiChat, WireApi::OpenAi, "gpt-4.1", "/max_completion_tokens", 300),
        (Api::OpenAiResponses, WireApi::Responses, "o3", "/max_output_tokens", 300 + 8192),
        (Api::Anthropic, WireApi::Anthropic, "claude-sonnet-4-5", "/max_tokens", 300 + 8192),
        (Api::Anthropic, WireApi::Anthropic, "claude-opus-5", "/max_tokens", 300 + 8192),
        (Api::Anthropic, WireApi::Anthropic, "claude-3-5-sonnet-latest", "/max_tokens", 300),
        (Api::Gemini, WireApi::Gemini, "gemini-3-pro", "/generationConfig/maxOutputTokens", 300 + 24_576),
        (Api::Ollama, WireApi::Ollama, "qwen3", "/options/num_predict", 300 + 8192),
    ] {
        let server = ScriptedModel::start(Script::echo()).await.unwrap();
        let overrides = ModelOverrides {
            settings: ModelSettings { effort: Some(Effort::Medium), ..ModelSettings::default() },
            ..ModelOverrides::default()
        };
        let client = client(api, &server.base_url(wire), overrides);
        let request =
            ModelRequest { messages: vec![Message::user("q")], max_tokens: Some(300), ..ModelRequest::default() };
        client.complete(&format!("p/{model}"), &request, &IgnoreModelEvents, &Cancel::new()).await.unwrap();
        assert_eq!(server.requests()[0].body.pointer(at), Some(&json!(max)), "{api} {model}");
    }
}

#[test]
fn answer_size_is_reported_as_asked() {
    let high = RequestSettings::from(ModelSettings { effort: Some(Effort::High), ..ModelSettings::default() });
    let usual = RequestSettings::default();
    for (api, model, max_tokens, settings, max_output, expect) in [
        (Api::OpenAiChat, "gpt-5", Some(300), &high, None, Some(300 + 24_576)),
        (Api::OpenAiChat, "gpt-5", Some(300), &usual, None, Some(300 + 8192)),
        (Api::OpenAiChat, "gpt-5.2", Some(300), &usual, None, Some(300)),
        (Api::OpenAiChat, "gpt-5", Some(300), &high, Some(9000), Some(9000)),
        (Api::OpenAiChat, "gpt-5", None, &high, Some(9000), Some(9000)),
        (Api::OpenAiChat, "gpt-5", None, &high, None, None),
        (Api::Anthropic, "claude-opus-5", None, &high, None, Some(8192 + 24_576)),
        (Api::Anthropic, "claude-opus-5", None, &usual, None, Some(8192 + 24_576)),
        (Api::Anthropic, "claude-opus-4-8", None, &usual, None, Some(8192)),
        (Api::Anthropic, "claude-opus-4-1", None, &high, None, Some(32_000)),
    ] {
        let client = client(api, "http://h", ModelOverrides { max_output, ..ModelOverrides::default() });
        let got = client.answer_tokens(&format!("p/{model}"), max_tokens, settings);
        assert_eq!(got, expect, "{model} {max_tokens:?} {max_output:?}");
    }
}

#[tokio::test]
async fn thinking_of_another_prefix_is_left_out() {
    let refusal = "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different \
                   conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \
                   \"drop_block\".";
    let answers = ["a", "b", "c"].map(Turn::text);
    let turns: Vec<Turn> = [vec![Turn::error(400, refusal)], answers.into(), vec![Turn::error(400, refusal)]]
        .into_iter()
        .flatten()
        .collect();
    let server = ScriptedModel::start(turns).await.unwrap();
    let client = client(Api::Anthropic, &server.base_url(WireApi::Anthropic), ModelOverrides::default());
    let ask = async |model: &str, effort| {
        let request =
            ModelRequest { settings: ModelSettings { effort, ..ModelSettings::default() }.into(), ..conversation() };
        client.complete(model, &request, &IgnoreModelEvents, &Cancel::new()).await
    };
    let error = ask("p/claude-opus-5-5", None).await.unwrap_err();
    assert_eq!((error.kind, error.should_retry), (ModelErrorKind::Invalid, Some(true)), "{error}");
    ask("p/claude-opus-5-5", None).await.unwrap();
    ask("p/claude-opus-5-5", Some(Effort::Low)).await.unwrap();
    ask("p/claude-sonnet-5-5", None).await.unwrap();
    // Once more is no use.
    assert_eq!(ask("p/claude-opus-5-5", None).await.unwrap_err().should_retry, None);
    let reported: Vec<_> = server
        .requests()
        .iter()
        .map(|sent| (sent.header("anthropic-beta").to_owned(), sent.body["thinking"].clone()))
        .collect();
    let drops = json!({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
    let dropping = || ("thinking-binding-controls-2026-08-01".to_owned(), drops.clone());
    assert_eq!(
        reported,
        [(String::new(), Value::Null), dropping(), dropping(), (String::new(), Value::Null), dropping()]
    );
}

#[tokio::test]
async fn configured_beta_header_joins_the_demanded_one() {
    let refusal = "The block is bound to a different conversation.";
    let ours = "thinking-binding-controls-2026-08-01";
    for (name, configured, expect) in [
        ("anthropic-beta", "context-1m-2025-08-07", format!("context-1m-2025-08-07,{ours}")),
        ("Anthropic-Beta", "a, b", format!("a, b,{ours}")),
        ("anthropic-beta", &format!("a, {ours}"), format!("a, {ours}")),
        ("anthropic-version", "2026-10-21", ours.to_owned()),
    ] {
        let server = ScriptedModel::start(vec![Turn::error(400, refusal), Turn::text("a")]).await.unwrap();
        let mut endpoint = Endpoint::new("p", Api::Anthropic, server.base_url(WireApi::Anthropic)).with_key("k");
        endpoint.headers = [(name.into(), configured.into())].into();
        let mut endpoints = Endpoints::default();
        endpoints.insert(endpoint);
        let client = HttpModelClient::new(endpoints);
        for _ in 0..2 {
            let _ = client.complete("p/claude-opus-5-5", &conversation(), &IgnoreModelEvents, &Cancel::new()).await;
        }
        let sent = server.requests();
        assert_eq!(sent[1].header("anthropic-beta"), expect, "{name}: {configured}");
        assert_eq!(sent[0].header(name), configured);
    }
}

#[tokio::test]
async fn bound_thinking_needs_the_drop_setting() {
    let refusal = "The block is bound to a different conversation.";
    let server = ScriptedModel::start(vec![Turn::error(400, refusal), Turn::text("a")]).await.unwrap();
    let client = client(Api::Anthropic, &server.base_url(WireApi::Anthropic), ModelOverrides::default());
    let settings = RequestSettings::from(ModelSettings { effort: Some(Effort::None), ..ModelSettings::default() });
    let request = ModelRequest { settings, ..conversation() };
    for _ in 0..2 {
        let _ = client.complete("p/claude-sonnet-5-5", &request, &IgnoreModelEvents, &Cancel::new()).await;
    }
    let thoughts = |body: &Value| body["messages"].to_string().matches(r#""type":"thinking""#).count();
    let sent = server.requests();
    assert_eq!(sent[1].body["thinking"], json!({"type": "between_tools"}));
    assert_eq!((thoughts(&sent[0].body), thoughts(&sent[1].body)), (1, 0));
    let bodies = [0, 1].map(|at| sent[at].body["messages"].as_array().unwrap().len());
    assert_eq!(bodies[0], bodies[1], "no message is gone");
    assert!(sent[1].body["messages"].as_array().unwrap().iter().all(|message| message["content"] != json!([])));
}

#[test]
fn unthinking_turn_continues_without_budget() {
    let thought = |text: &str| OpaqueData { api: "anthropic".into(), data: json!({"type": text, "signature": "s"}) };
    let asks = |id: &str, opaque: Vec<OpaqueData>| Message::Assistant {
        text: String::new(),
        calls: vec![call(id, "fs__read", "{}")],
        opaque,
    };
    let result = |id: &str| Message::Tool {
        results: vec![CallResult {
            call_id: id.into(),
            name: "fs__read".into(),
            content: vec![ContentBlock::text("r")],
            is_error: false,
            loads: Vec::new(),
        }],
    };
    let said = || Message::Assistant { text: "It is.".into(), calls: Vec::new(), opaque: Vec::new() };
    let user = || Message::user("q");
    for (why, messages, thinks) in [
        ("nothing yet", vec![user()], true),
        ("calls without a thought", vec![user(), asks("a", vec![]), result("a")], false),
        ("with one", vec![user(), asks("a", vec![thought("thinking")]), result("a")], true),
        ("with a hidden one", vec![user(), asks("a", vec![thought("redacted_thinking")]), result("a")], true),
        (
            "it need not think before each call",
            vec![user(), asks("a", vec![thought("thinking")]), result("a"), asks("b", vec![]), result("b")],
            true,
        ),
        ("the turn before is over", vec![user(), asks("a", vec![]), result("a"), said(), user()], true),
        ("what is said amid it changes nothing", vec![user(), asks("a", vec![]), result("a"), user()], false),
    ] {
        let settings =
            RequestSettings::from(ModelSettings { effort: Some(Effort::Medium), ..ModelSettings::default() });
        let request = ModelRequest { messages, settings, tools: conversation().tools, ..ModelRequest::default() };
        for (model, expect) in [("claude-sonnet-4-5", thinks), ("claude-opus-4-8", true)] {
            let body = encode(Api::Anthropic, &request, model).body();
            assert_eq!(body.get("thinking").is_some(), expect, "{why}: {model}");
        }
    }
}

#[test]
fn cached_tokens_count_once_in_every_api() {
    // 1000 tokens of prompt, of which 600 are read from a cache, and 300 written where the API tells; 50 of answer.
    let text = |reason: &str| json!({"message": {"role": "assistant", "content": "a"}, "finish_reason": reason});
    let cases = [
        (
            Api::OpenAiChat,
            json!({"choices": [text("stop")], "usage": {"prompt_tokens": 1000, "completion_tokens": 50,
                "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300}}}),
            300,
        ),
        (
            Api::OpenAiResponses,
            json!({"object": "response", "status": "completed", "output": [], "usage": {"input_tokens": 1000,
                "output_tokens": 50, "input_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300}}}),
            300,
        ),
        (
            Api::Anthropic,
            json!({"type": "message", "content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn",
                "usage": {"input_tokens": 100, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 300,
                    "output_tokens": 50}}),
            300,
        ),
        (
            Api::Gemini,
            json!({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 1000, "cachedContentTokenCount": 600,
                    "candidatesTokenCount": 30, "thoughtsTokenCount": 20}}),
            0,
        ),
        (
            Api::Ollama,
            json!({"message": {"content": "a"}, "done": true, "done_reason": "stop", "prompt_eval_count": 1000,
                "prompt_eval_cached_count": 600, "eval_count": 50}),
            0,
        ),
    ];
    let prices = Prices { input: 10.0, output: 100.0, cached: Some(1.0), cache_written: Some(12.5) };
    for (api, answer, written) in cases {
        let reasoning_tokens = if api == Api::Gemini { 20 } else { 0 };
        let usage =
            decode_whole(api, answer.to_string().as_bytes()).unwrap_or_else(|error| panic!("{api}: {error}")).usage;
        let expect = Usage {
            input_tokens: 1000,
            output_tokens: 50,
            cached_tokens: 600,
            cache_written_tokens: written,
            reasoning_tokens,
        };
        assert_eq!(usage, expect, "{api}");
        let fresh = (400 - written) as f64;
        let cost = (fresh * 10.0 + 600.0 + written as f64 * 12.5 + 5000.0) / 1e6;
        assert!((prices.cost(usage) - cost).abs() < 1e-12, "{api}");
    }
}

#[test]
fn later_usage_without_caches_keeps_them() {
    let stream = [
        json!({"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 100,
            "cache_read_input_tokens": 600, "cache_creation_input_tokens": 300, "output_tokens": 1}}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": 100, "output_tokens": 50}}),
        json!({"type": "message_stop"}),
    ];
    let lines = stream.map(|event| event.to_string()).join("\n");
    let usage = decode_whole(Api::Anthropic, crate::streams::sse(&lines, false).as_bytes()).unwrap().usage;
    assert_eq!((usage.input_tokens, usage.cached_tokens, usage.cache_written_tokens), (1000, 600, 300));
    assert_eq!(usage.output_tokens, 50);
}
