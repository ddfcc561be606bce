//! Deferred tools: a search, what it loads, a call of that, and its result.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, IgnoreModelEvents, Message, ModelClient, ModelRequest, RawToolCall, RequestTool, ToolChoice,
    ToolVisibility,
};
use toolwright_models::dialect::translate;
use toolwright_models::{
    Api, Decoder, Endpoint, Endpoints, HttpModelClient, ModelOverrides, ToolFormat, encode, tools_json,
};
use toolwright_testkit::model_server::{Reply, ScriptedModel, Turn, WireApi};
use toolwright_testkit::rules::{ApiRules, check_tools};

use crate::golden::{call, check_golden, tool};
use crate::streams::sse;

const SEARCH: &str = "tools__search";

fn tools() -> Arc<[RequestTool]> {
    let text = |key: &str| json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key]});
    let deferred = |name: &str, namespace: &str, parameters| RequestTool {
        exposed: ToolVisibility::Deferred,
        namespace: namespace.into(),
        ..tool(name, "One of many.", parameters)
    };
    // One whose calls look different by its view.
    let strict = RequestTool { strict: Some(true), ..deferred("hub__issue", "hub", text("title")) };
    [
        deferred("hub__pull", "hub", text("branch")),
        RequestTool { exposed: ToolVisibility::Search, ..tool(SEARCH, "Finds tools.", text("query")) },
        tool("fs__read", "Reads a file.", text("path")),
        strict,
        deferred("clock", "", json!({"type": "object", "properties": {}})),
        deferred("mail__send", "mail v2", text("to")),
    ]
    .into()
}

fn assistant(calls: Vec<RawToolCall>) -> Message {
    Message::Assistant { text: String::new(), calls, opaque: Vec::new() }
}

fn answered(id: &str, name: &str, text: &str, loads: &[&str]) -> CallResult {
    CallResult {
        call_id: id.into(),
        name: name.into(),
        content: vec![ContentBlock::text(text)],
        is_error: false,
        loads: loads.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// The conversation after so many answers of the model.
fn conversation(answers: usize) -> ModelRequest {
    // What is loaded twice, is no deferred tool or is not in the request loads nothing more.
    let loads = ["hub__issue", "clock", "fs__read", "gone__away", "hub__pull", "clock"];
    let messages = vec![
        Message::user("Open an issue about the clock."),
        assistant(vec![call("call_1", SEARCH, r#"{"query":"issue"}"#)]),
        Message::Tool { results: vec![answered("call_1", SEARCH, "3 tools", &loads)] },
        assistant(vec![
            call("call_2", "hub__issue", r#"{"title":"Late"}"#),
            call("call_3", SEARCH, r#"{"query":"x"}"#),
        ]),
        Message::Tool {
            results: vec![
                answered("call_2", "hub__issue", "#7", &[]),
                answered("call_3", SEARCH, "nothing found", &[]),
            ],
        },
    ];
    let messages = messages.into_iter().take(1 + 2 * answers).collect();
    ModelRequest { messages, tools: tools(), max_tokens: Some(64), ..ModelRequest::default() }
}

fn body(api: Api, request: &ModelRequest) -> Value {
    encode(api, request, "m").body()
}

#[test]
fn the_requests_of_a_conversation_that_loads_tools() {
    for api in [Api::Anthropic, Api::OpenAiResponses] {
        let key = if api == Api::Anthropic { "messages" } else { "input" };
        let turns: Vec<Value> = (0..3).map(|answers| body(api, &conversation(answers))).collect();
        for (answers, turn) in turns.iter().enumerate() {
            check_golden(&format!("{api}.deferred.{answers}.json"), api, &conversation(answers));
            // The prompt cache holds: what was sent stays what is sent.
            assert_eq!(turn["tools"], turns[0]["tools"], "{api}");
            let (now, last) =
                (turn[key].as_array().unwrap(), turns[answers.saturating_sub(1)][key].as_array().unwrap());
            assert!(now.starts_with(last), "{api}");
        }
    }
}

#[test]
fn sent_requests_keep_api_rules() {
    let sent = body(Api::Anthropic, &conversation(2));
    assert_eq!(check_tools(ApiRules::Anthropic, &sent["tools"]), []);
    assert_eq!(WireApi::Anthropic.check(&sent), Ok(()));
    assert!(encode(Api::Anthropic, &conversation(2), "m").headers.iter().all(|(name, _)| *name != "anthropic-beta"));

    let sent = body(Api::OpenAiResponses, &conversation(2));
    assert_eq!(check_tools(ApiRules::OpenAiResponses, &sent["tools"]), []);
    let output = sent["input"].as_array().unwrap().iter().find(|item| item["type"] == "tool_search_output").unwrap();
    assert_eq!(check_tools(ApiRules::OpenAiResponses, &output["tools"]), []);
    assert_eq!(WireApi::Responses.check(&sent), Ok(()));
}

#[test]
fn other_transports_are_sent_no_deferred_tools() {
    for api in [Api::OpenAiChat, Api::Gemini, Api::Ollama] {
        let shown = ModelRequest {
            tools: tools().iter().filter(|tool| tool.exposed != ToolVisibility::Deferred).cloned().collect(),
            ..conversation(2)
        };
        assert_eq!(body(api, &conversation(2)), body(api, &shown), "{api}");
        let set = translate(api.dialect(), &tools(), false);
        assert_eq!(tools_json(api, &set), body(api, &shown)["tools"], "{api}");
    }
    let prompt = toolwright_textcalls::by_name("hermes").unwrap().prompt(&tools());
    assert!(prompt.contains(SEARCH) && prompt.contains("fs__read") && !prompt.contains("hub__"), "{prompt}");
    let only: Vec<RequestTool> =
        tools().iter().filter(|tool| tool.exposed == ToolVisibility::Deferred).cloned().collect();
    assert_eq!(toolwright_textcalls::by_name("hermes").unwrap().prompt(&only), "");
}

#[test]
fn unloadable_deferred_tools_are_not_sent() {
    let keep = |names: &[&str]| ModelRequest {
        tools: tools().iter().filter(|tool| names.contains(&tool.name.as_str())).cloned().collect(),
        ..conversation(2)
    };
    let names = |api, names: &[&str]| {
        let body = body(api, &keep(names));
        let tools = body["tools"].as_array().cloned().unwrap_or_default();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // Past calls are declared for what they were.
    assert_eq!(names(Api::Anthropic, &["clock", "hub__pull"]), [SEARCH, "hub__issue"]);
    assert_eq!(names(Api::Anthropic, &["clock", "fs__read"]), ["fs__read", "clock"]);
    assert_eq!(names(Api::OpenAiResponses, &["clock", "fs__read"]), ["fs__read"]);
    // Without anything to find, the search is a tool like others.
    assert_eq!(names(Api::OpenAiResponses, &[SEARCH, "fs__read"]), [SEARCH, "fs__read"]);
    let body = body(Api::OpenAiResponses, &keep(&[SEARCH, "fs__read"]));
    assert!(!body.to_string().contains("tool_search"), "{body}");
    assert_eq!(WireApi::Responses.check(&body), Ok(()));
}

#[test]
fn failed_searches_give_the_reason() {
    let mut request = conversation(1);
    let Some(Message::Tool { results }) = request.messages.last_mut() else { unreachable!("results") };
    results[0].is_error = true;
    let message = &body(Api::Anthropic, &request)["messages"][2]["content"][0];
    assert_eq!((&message["is_error"], &message["content"][0]["text"]), (&json!(true), &json!("3 tools")));
    let body = body(Api::OpenAiResponses, &request);
    assert_eq!(body["input"][2]["tools"], json!([]));
    assert_eq!(body["input"][3]["content"], "[result of tools__search, call call_1]\n(tool failed) 3 tools");
    assert_eq!(WireApi::Responses.check(&body), Ok(()));
}

#[test]
fn only_functions_can_be_forced() {
    let choice = |api, name: &str| {
        let request = ModelRequest { tool_choice: ToolChoice::Tool(name.into()), ..conversation(0) };
        body(api, &request)["tool_choice"].clone()
    };
    for api in [Api::Anthropic, Api::OpenAiResponses] {
        assert_eq!(choice(api, "clock"), Value::Null, "{api}");
        assert_eq!(choice(api, "fs__read")["name"], "fs__read", "{api}");
    }
    assert_eq!(choice(Api::Anthropic, SEARCH)["name"], SEARCH);
    assert_eq!(choice(Api::OpenAiResponses, SEARCH), Value::Null);
}

#[test]
fn deferred_tools_use_no_strict_budget() {
    let strict = |exposed, at: usize| RequestTool {
        strict: Some(true),
        exposed,
        ..tool(&format!("t{at}"), "d", json!({"type": "object", "properties": {}, "additionalProperties": false}))
    };
    let tools: Vec<RequestTool> =
        (0..30).map(|at| strict(ToolVisibility::Deferred, at)).chain([strict(ToolVisibility::Shown, 30)]).collect();
    let set = translate(Api::Anthropic.dialect(), &tools, false);
    assert_eq!(set.tools.iter().filter(|tool| tool.strict).count(), 20);
    assert!(set.get("t30").unwrap().strict);
}

const SEARCHED: &str = include_str!("../fixtures/openai_responses/tool_search_call.chunks.txt");

fn decode(stream: &[u8], tools: &[RequestTool], chunk: usize) -> (Vec<RawToolCall>, usize) {
    let set = Arc::new(translate(Api::OpenAiResponses.dialect(), tools, false));
    let mut decoder = Decoder::detecting(Api::OpenAiResponses).with_tools(set);
    let mut calls = 0;
    let mut sink = |_| calls += 1;
    stream.chunks(chunk).for_each(|piece| decoder.feed(piece, &mut sink));
    decoder.end(&mut sink);
    let answer = decoder.finish().unwrap();
    assert_eq!(calls, answer.calls.len(), "the pieces are the answer");
    (answer.calls, answer.other_calls.len())
}

#[test]
fn search_item_calls_the_search_tool() {
    let stream = sse(SEARCHED, false);
    for chunk in (1..=64).chain([stream.len()]) {
        let (calls, others) = decode(stream.as_bytes(), &tools(), chunk);
        assert_eq!((calls.len(), others, calls[0].name.as_str()), (1, 0, SEARCH), "chunks of {chunk}");
        assert!(calls[0].id.starts_with("call_"), "{}", calls[0].id);
        assert!(serde_json::from_str::<Value>(&calls[0].arguments).unwrap()["goal"].is_string());
    }
    // Nobody was told of a search: it stays what it is.
    assert_eq!(decode(stream.as_bytes(), &[], 7), (Vec::new(), 1));
}

proptest! {
    #[test]
    fn whole_answers_and_their_arguments_survive_any_chunking(chunk in 1usize..200, query in "\\PC{0,12}") {
        let item = |execution: &str, status: &str| json!({
            "type": "tool_search_call", "id": "tsc_1", "call_id": "call_9", "execution": execution, "status": status,
            "arguments": {"query": query},
        });
        let called = json!({
            "type": "function_call", "call_id": "call_8", "name": "hub__issue", "namespace": "hub", "arguments": "{\"title\":\"a\"}",
        });
        let output = json!([item("client", "completed"), item("server", "completed"), item("client", "incomplete"), called]);
        let whole = json!({"object": "response", "status": "completed", "output": output}).to_string();
        let (calls, others) = decode(whole.as_bytes(), &tools(), chunk);
        prop_assert_eq!(others, 0);
        prop_assert_eq!(calls.len(), 2);
        prop_assert_eq!((&*calls[0].id, &*calls[0].name), ("call_9", SEARCH));
        prop_assert_eq!(serde_json::from_str::<Value>(&calls[0].arguments).unwrap(), json!({"query": query}));
        prop_assert_eq!((&*calls[1].id, &*calls[1].name), ("call_8", "hub__issue"));
    }
}

#[tokio::test]
async fn a_conversation_over_a_socket() {
    for (api, wire) in [(Api::Anthropic, WireApi::Anthropic), (Api::OpenAiResponses, WireApi::Responses)] {
        let server = ScriptedModel::start(vec![
            Turn::calls(vec![(SEARCH, json!({"query": "issue"}))]),
            Turn::calls(vec![("hub__issue", json!({"title": "Late"}))])
                .expecting("what was loaded", |asked| asked.last_result_text() == "hub__issue\nclock"),
            Turn::computed(|asked| Reply::text(asked.last_result_text())),
        ])
        .await
        .unwrap();
        let mut endpoints = Endpoints::default();
        endpoints.insert(Endpoint::new("test", api, server.base_url(wire)).with_key("k"));
        let client = HttpModelClient::new(endpoints);
        let mut request = ModelRequest { messages: vec![Message::user("go")], ..conversation(0) };
        let mut said = String::new();
        for (name, text, loads) in
            [(SEARCH, "2 tools", &["hub__issue", "clock"][..]), ("hub__issue", "#7", &[]), ("", "", &[])]
        {
            let answer = client.complete("test/m", &request, &IgnoreModelEvents, &Cancel::new()).await.unwrap();
            let names: Vec<&str> = answer.calls.iter().map(|call| call.name.as_str()).collect();
            assert_eq!(names, Vec::from_iter(Some(name).filter(|name| !name.is_empty())), "{api}");
            said = answer.text.clone();
            let results = answer.calls.iter().map(|call| answered(&call.id, name, text, loads)).collect();
            let past = Message::Assistant { text: answer.text, calls: answer.calls, opaque: answer.opaque };
            request.messages.extend([past, Message::Tool { results }]);
        }
        assert_eq!((said.as_str(), server.failures()), ("#7", Vec::new()), "{api}");
    }
}

#[test]
fn clients_know_which_models_support_deferred_tools() {
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("claude", Api::Anthropic, "https://api.anthropic.com"));
    endpoints.insert(Endpoint::new("relay", Api::Anthropic, "https://relay.example"));
    endpoints.set_overrides("relay/known", ModelOverrides { tool_search: Some(true), ..ModelOverrides::default() });
    let text =
        ModelOverrides { tool_format: Some(ToolFormat::Auto), tool_search: Some(true), ..ModelOverrides::default() };
    endpoints.set_overrides("relay/text", text);
    let client = HttpModelClient::new(endpoints);
    for (model, expect) in [
        ("claude/claude-opus-4-5", true),
        ("claude/claude-3-5-haiku-20241022", false),
        ("relay/claude-opus-4-5", false),
        ("relay/known", true),
        ("relay/text", false),
        ("nobody/claude-opus-4-5", false),
        ("claude-opus-4-5", false),
    ] {
        assert_eq!(client.has_tool_search(model), expect, "{model}");
    }
}
