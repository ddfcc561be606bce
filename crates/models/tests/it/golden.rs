//! One conversation in the form of each API, compared to the byte. `TOOLWRIGHT_BLESS=1` rewrites.

use std::path::PathBuf;

use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, Message, ModelRequest, OpaqueData, OutputFormat, RawToolCall, RequestTool, ToolChoice,
};
use toolwright_models::dialect::translate;
use toolwright_models::{Api, EncodedTools, encode, encode_with, tools_json};

const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

pub(crate) fn call(id: &str, name: &str, arguments: &str) -> RawToolCall {
    RawToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

fn result(id: &str, name: &str, content: Vec<ContentBlock>, is_error: bool) -> CallResult {
    CallResult { call_id: id.into(), name: name.into(), content, is_error, loads: Vec::new() }
}

pub(crate) fn tool(name: &str, description: &str, parameters: Value) -> RequestTool {
    RequestTool { name: name.into(), description: description.into(), parameters, ..RequestTool::default() }
}

/// Everything a conversation can hold.
pub(crate) fn conversation() -> ModelRequest {
    let thinking = json!({"type": "thinking", "thinking": "Two files.", "signature": "c2ln"});
    ModelRequest {
        system: "You are terse.".into(),
        messages: vec![
            Message::User {
                content: vec![ContentBlock::text("What is on this picture?"), ContentBlock::image(PIXEL, "image/png")],
            },
            Message::Assistant {
                text: "Let me look.".into(),
                calls: vec![
                    call("call_1", "fs__read", r#"{"path":"a.png"}"#),
                    call("call_2", "fs__grep", r#"{"pattern": "TODO", "limit": 3}"#),
                ],
                opaque: vec![
                    OpaqueData { api: "anthropic".into(), data: thinking },
                    OpaqueData { api: "ollama".into(), data: json!({"thinking": "Two files."}) },
                    OpaqueData {
                        api: "openai_chat".into(),
                        data: json!({"message": {"reasoning_content": "Two files.", "role": "user"}}),
                    },
                    OpaqueData {
                        api: "openai_chat".into(),
                        data: json!({"tool_call": {"extra_content": {"google": {"thought_signature": "c2ln"}}}}),
                    },
                ],
            },
            Message::Tool {
                results: vec![
                    result(
                        "call_1",
                        "fs__read",
                        vec![ContentBlock::text("1 image"), ContentBlock::image(PIXEL, "image/png")],
                        false,
                    ),
                    result("call_2", "fs__grep", vec![ContentBlock::text("no such directory")], true),
                ],
            },
            Message::user("Go on."),
            Message::Assistant {
                text: String::new(),
                calls: vec![call("call_1", "fs read?", "{\"path\": ")],
                opaque: vec![],
            },
            Message::user("Stop."),
        ],
        tools: [
            tool(
                "fs__read",
                "Reads a file.",
                json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": false}),
            ),
            tool(
                "fs__grep",
                "Finds lines.",
                json!({"anyOf": [{"properties": {"pattern": {"type": "string"}}}, {"properties": {"limit": true}}]}),
            ),
            tool("odd__any", "Takes anything.", json!(true)),
        ]
        .into(),
        tool_choice: ToolChoice::Auto,
        max_tokens: None,
        temperature: Some(0.5),
        ..ModelRequest::default()
    }
}

/// A request that asks for all that APIs do differently beside the conversation.
fn demanding() -> ModelRequest {
    let schema = json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false,
    });
    ModelRequest {
        messages: vec![Message::user("Where?")],
        tool_choice: ToolChoice::Tool("fs__read".into()),
        parallel_calls: Some(false),
        output: Some(OutputFormat { name: "the city!".into(), schema: Some(schema) }),
        max_tokens: Some(7),
        ..conversation()
    }
}

/// A request for a JSON object of any kind.
fn json_object() -> ModelRequest {
    ModelRequest {
        system: "Be brief.".into(),
        messages: vec![Message::user("Where?")],
        output: Some(OutputFormat { name: "place".into(), schema: None }),
        ..ModelRequest::default()
    }
}

/// What each API is sent for the shape of an answer: the schema, and whether the model is held to it.
fn shape(api: Api, schema: &Value) -> (Option<Value>, bool, String) {
    let output = Some(OutputFormat { name: "o".into(), schema: Some(schema.clone()) });
    let request = ModelRequest {
        system: "Be brief.".into(),
        messages: vec![Message::user("q")],
        output,
        ..ModelRequest::default()
    };
    let body = encode(api, &request, "m").body();
    let (place, strict) = match api {
        Api::OpenAiChat => ("/response_format/json_schema/schema", &body["response_format"]["json_schema"]["strict"]),
        Api::OpenAiResponses => ("/text/format/schema", &body["text"]["format"]["strict"]),
        Api::Anthropic => ("/output_config/format/schema", &Value::Bool(true)),
        Api::Gemini => ("/generationConfig/responseJsonSchema", &Value::Bool(true)),
        Api::Ollama => ("/format", &Value::Bool(true)),
    };
    let schema = body.pointer(place).cloned();
    let held = schema.is_some() && *strict == true;
    (schema, held, body["system"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn bounded_shape_is_demanded_of_every_api() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["score", "code", "tags"], "properties": {
            "score": {"type": "number", "description": "How good.", "minimum": 0, "maximum": 1},
            "code": {"type": "string", "minLength": 3, "pattern": "^(?=a)b"},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 5, "uniqueItems": true},
        },
    });
    for api in Api::ALL {
        let (sent, held, system) = shape(api, &schema);
        let sent = sent.unwrap_or_else(|| panic!("{api} demands nothing"));
        assert!(held, "{api}: {sent}");
        assert!(!system.contains("JSON Schema"), "{api}: {system}");
        assert_eq!(sent["required"], schema["required"], "{api}");
    }
    let (sent, ..) = shape(Api::Anthropic, &schema);
    let expect = json!({
        "type": "object", "additionalProperties": false, "required": ["score", "code", "tags"], "properties": {
            "score": {"type": "number", "description": "How good. At least 0. At most 1."},
            "code": {"type": "string", "description": "At least 3 characters. Must match ^(?=a)b."},
            "tags": {"type": "array", "items": {"type": "string"},
                "description": "At least 2 items. At most 5 items. No item twice."},
        },
    });
    assert_eq!(sent, Some(expect));
    for api in [Api::OpenAiChat, Api::OpenAiResponses, Api::Ollama] {
        let (sent, ..) = shape(api, &schema);
        let code = &sent.unwrap()["properties"]["code"];
        let expect = match api {
            Api::Ollama => json!({"type": "string", "minLength": 3, "description": "Must match ^(?=a)b."}),
            _ => json!({"type": "string", "description": "At least 3 characters. Must match ^(?=a)b."}),
        };
        assert_eq!(*code, expect, "{api}: a pattern that it refuses is said");
    }
    let (sent, ..) = shape(Api::OpenAiChat, &schema);
    let sent = sent.unwrap();
    assert_eq!(
        (&sent["properties"]["score"], &sent["properties"]["tags"]["maxItems"]),
        (&schema["properties"]["score"], &json!(5))
    );
}

#[test]
fn loose_shape_has_no_failing_pattern() {
    let open = |pattern: &str| json!({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}});
    for (api, keeps) in [(Api::OpenAiChat, true), (Api::OpenAiResponses, true), (Api::Ollama, false)] {
        for (pattern, is_regular) in [("^(?!undefined$|null$)", false), ("^[0-9]+$", true)] {
            let sent = shape(api, &open(pattern)).0.unwrap();
            let kept = sent["properties"]["a"].get("pattern").is_some();
            assert_eq!(kept, keeps && is_regular, "{api}: {sent}");
            assert_eq!(sent["properties"]["a"].get("description").is_some(), !kept, "{api}: {sent}");
        }
    }
}

#[test]
fn ollama_gets_the_shape_as_text_with_tools() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let asked = |request: &ModelRequest| {
        let body = encode(Api::Ollama, request, "m").body();
        let system = body["messages"][0]["content"].as_str().unwrap_or_default().to_owned();
        (body.get("format").is_some(), system)
    };
    let output = |schema| Some(OutputFormat { name: "o".into(), schema });
    let mut request = ModelRequest { output: output(Some(schema)), ..conversation() };
    let (is_held, system) = asked(&request);
    assert!(!is_held && system.contains("JSON Schema"), "{system}");
    let none = ModelRequest { tool_choice: ToolChoice::None, ..request.clone() };
    assert!(asked(&none).0, "no tools are shown");
    request.output = output(None);
    let (is_held, system) = asked(&request);
    assert!(!is_held && system.ends_with("Your final answer is one JSON object and nothing else."), "{system}");
    request.tools = std::sync::Arc::default();
    assert!(asked(&request).0);
}

#[test]
fn gemini_models_are_known_by_name() {
    for (model, takes) in [("gemini-2.5-flash", false), ("Gemini-2.5-Flash", false), ("gemini-3-pro", true)] {
        let body = encode(Api::Gemini, &demanding(), model).body();
        assert_eq!(body.pointer("/generationConfig/responseMimeType").is_some(), takes, "{model}");
    }
}

#[test]
fn openai_reasoning_models_are_asked_for_thoughts() {
    for (model, asks) in [
        ("ft:gpt-4o-mini-2024-07-18:acme::a1", false),
        ("GPT-4o", false),
        ("openai/gpt-4.1", false),
        ("gpt-3.5-turbo", false),
        ("chatgpt-4o-latest", false),
        ("gpt-5-chat-latest", false),
        ("gpt-5.1-chat-latest", true),
        ("ft:gpt-5-mini:acme::a1", true),
        ("o4-mini", true),
        ("gpt-oss-120b", true),
        ("prod-4o", true),
    ] {
        let body = encode(Api::OpenAiResponses, &conversation(), model).body();
        assert_eq!(body.get("include").is_some(), asks, "{model}");
    }
}

#[test]
fn shape_is_strict_only_if_the_view_agrees() {
    let closed = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let text = || json!({"type": "string"});
    let check = |schema: Value, openai: bool, anthropic: bool| {
        for (api, expect) in [(Api::OpenAiChat, openai), (Api::OpenAiResponses, openai), (Api::Anthropic, anthropic)] {
            let (sent, held, system) = shape(api, &schema);
            assert_eq!(held, expect, "{api}: {schema} as {sent:?}");
            assert_eq!(system.contains("JSON Schema"), api == Api::Anthropic && !expect, "{api}: {schema}");
        }
    };
    check(closed(json!({"a": text()}), json!(["a"])), true, true);
    check(closed(json!({"a": {"type": "integer", "exclusiveMinimum": 0}}), json!(["a"])), true, true);
    check(closed(json!({"a": text()}), json!([])), false, true);
    check(closed(json!({"a": {"enum": ["x", 1]}}), json!(["a"])), true, true);
    // Open objects, by their word or by their silence, would be closed.
    check(json!({"type": "object", "properties": {"a": text()}, "required": ["a"]}), false, false);
    check(json!({"type": "object", "additionalProperties": text()}), false, false);
    // Other shapes.
    check(json!({"type": "array", "items": text()}), false, false);
    check(
        json!({"type": ["object", "null"], "properties": {"a": text()}, "required": ["a"], "additionalProperties": false}),
        false,
        false,
    );
    check(json!({"anyOf": [closed(json!({"a": text()}), json!(["a"]))]}), false, false);
    check(closed(json!({"a": {}}), json!(["a"])), false, false);
    check(closed(json!({"a": {"items": text()}}), json!(["a"])), false, false);
    check(closed(json!({"a": {"type": "string", "not": {"const": "x"}}}), json!(["a"])), false, false);
    check(closed(json!({"a!": text()}), json!(["a!"])), true, false);
}

/// Tools whose author wants them strict: one with a parameter that may be left out, and one whose arguments
/// are one of two objects; and past calls of both, as the model would have had to write them.
fn strictly() -> ModelRequest {
    let find = json!({
        "type": "object", "required": ["pattern"], "properties": {
            "pattern": {"type": "string", "description": "What to find."}, "limit": {"type": "integer"},
        },
    });
    let by = |kind: &str, key: &str| {
        json!({
            "type": "object", "required": ["kind", key], "additionalProperties": false,
            "properties": {"kind": {"const": kind}, key: {"type": "string"}},
        })
    };
    let open = json!({"oneOf": [by("path", "path"), by("link", "url")]});
    let strict =
        |name, description, parameters| RequestTool { strict: Some(true), ..tool(name, description, parameters) };
    ModelRequest {
        messages: vec![
            Message::user("Find it."),
            Message::Assistant {
                text: String::new(),
                calls: vec![
                    call("call_1", "fs__find", r#"{"pattern":"TODO"}"#),
                    call("call_2", "fs__open", r#"{"kind":"path","path":"a.rs"}"#),
                ],
                opaque: vec![],
            },
            Message::Tool {
                results: vec![
                    result("call_1", "fs__find", vec![ContentBlock::text("a.rs")], false),
                    result("call_2", "fs__open", vec![ContentBlock::text("// TODO")], false),
                ],
            },
        ],
        tools: [strict("fs__find", "Finds lines.", find), strict("fs__open", "Opens a file.", open)].into(),
        ..ModelRequest::default()
    }
}

pub(crate) fn check_golden(file: &str, api: Api, request: &ModelRequest) {
    let encoded = encode(api, request, "some-model");
    let got = serde_json::to_string_pretty(&encoded.body()).unwrap() + "\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("TOOLWRIGHT_BLESS").is_some() {
        std::fs::write(&path, &got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(got == want, "{api} differs from {}; TOOLWRIGHT_BLESS=1 rewrites it. Got:\n{got}", path.display());
    assert_eq!(encoded.bytes(), encode(api, request, "some-model").bytes(), "{api}: equal requests, equal bytes");
    assert_eq!(encoded.bytes(), encoded.body().to_string().into_bytes(), "{api}: the body is what is sent");
}

#[test]
fn one_conversation_in_the_form_of_each_api() {
    for api in Api::ALL {
        check_golden(&format!("{api}.json"), api, &conversation());
        check_golden(&format!("{api}.demanding.json"), api, &demanding());
    }
    for api in Api::ALL {
        check_golden(&format!("{api}.json_object.json"), api, &json_object());
    }
    for api in [Api::OpenAiChat, Api::OpenAiResponses, Api::Anthropic] {
        check_golden(&format!("{api}.strict.json"), api, &strictly());
    }
}

/// A call that failed and shows the failure, between two that did not.
fn failing_with_an_image() -> ModelRequest {
    let picture = || vec![ContentBlock::text("the page"), ContentBlock::image(PIXEL, "image/png")];
    let names = [("call_1", false), ("call_2", true), ("call_3", false)];
    ModelRequest {
        messages: vec![
            Message::user("Open it."),
            Message::Assistant {
                text: String::new(),
                calls: names.iter().map(|(id, _)| call(id, "fs__read", r#"{"path":"a.png"}"#)).collect(),
                opaque: vec![],
            },
            Message::Tool {
                results: names.iter().map(|(id, failed)| result(id, "fs__read", picture(), *failed)).collect(),
            },
        ],
        tools: [].into(),
        ..conversation()
    }
}

#[test]
fn image_of_failed_result_follows_results() {
    check_golden("anthropic.failed_image.json", Api::Anthropic, &failing_with_an_image());
    let body = encode(Api::Anthropic, &failing_with_an_image(), "m").body();
    let content = body["messages"][2]["content"].as_array().unwrap();
    let kinds: Vec<&str> = content.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tool_result", "tool_result", "tool_result", "text", "image"]);
    let inside = |at: usize| content[at]["content"].as_array().unwrap().iter().any(|block| block["type"] == "image");
    assert_eq!([inside(0), inside(1), inside(2)], [true, false, true]);
}

#[test]
fn gemini_3_takes_images_in_results() {
    let inside = |model: &str| {
        let body = encode(Api::Gemini, &failing_with_an_image(), model).body();
        let parts = body["contents"][2]["parts"].as_array().unwrap().clone();
        let images: Vec<usize> =
            parts.iter().map(|part| part["functionResponse"]["parts"].as_array().map_or(0, Vec::len)).collect();
        (images, parts[1]["functionResponse"]["response"].clone())
    };
    let (images, failed) = inside("gemini-3-pro");
    assert_eq!((images, failed), (vec![1, 1, 1], json!({"error": "the page"})));
    for model in ["gemini-2.5-flash", "tunedModels/mine", "gemma-3"] {
        let (images, failed) = inside(model);
        assert_eq!(images, [0; 9], "{model}: three results, then a caption and an image for each");
        assert_eq!(failed, json!({"error": "the page\n[image 1, image/png: shown after the results]"}), "{model}");
    }
}

#[test]
fn temperature_is_sent_only_to_supporting_models() {
    let sent = |api, model: &str| {
        let body = encode(api, &conversation(), model).body();
        body.get("temperature").or_else(|| body["generationConfig"].get("temperature")).is_some()
    };
    for (api, takes, refuses) in [
        (Api::OpenAiChat, "gpt-4.1", Some("gpt-5")),
        (Api::OpenAiResponses, "gpt-4.1", Some("o3")),
        (Api::Anthropic, "claude-sonnet-4-5", Some("claude-opus-4-7")),
        (Api::Gemini, "gemini-3-pro", None),
    ] {
        assert!(sent(api, takes), "{api}");
        assert!(!refuses.is_some_and(|model| sent(api, model)), "{api}");
    }
}

#[test]
fn several_texts_stay_apart_where_possible() {
    let content = vec![ContentBlock::text("First."), ContentBlock::text("Then.")];
    let request = ModelRequest { messages: vec![Message::User { content }], ..ModelRequest::default() };
    let body = |api| encode(api, &request, "m").body();
    let parts = |kind: &str| json!([{"type": kind, "text": "First."}, {"type": kind, "text": "Then."}]);
    assert_eq!(body(Api::OpenAiChat)["messages"][0]["content"], parts("text"));
    assert_eq!(body(Api::OpenAiResponses)["input"][0]["content"], parts("input_text"));
    assert_eq!(body(Api::Anthropic)["messages"][0]["content"], parts("text"));
    assert_eq!(body(Api::Gemini)["contents"][0]["parts"], json!([{"text": "First."}, {"text": "Then."}]));
    assert_eq!(body(Api::Ollama)["messages"][0]["content"], json!("First.\nThen."));
}

#[test]
fn request_tools_are_those_of_the_view() {
    let request = ModelRequest { messages: vec![Message::user("go")], ..conversation() };
    for api in Api::ALL {
        let mut set = translate(api.dialect(), &request.tools, true);
        set.tools.remove(0);
        let body = encode_with(&request, "m", &EncodedTools::of(api, set.clone())).body();
        assert_eq!(body["tools"], tools_json(api, &set), "{api}");
        assert!(!body["tools"].to_string().contains("fs__read"), "{api}");
        // A tool that is not shown cannot be demanded.
        let request = ModelRequest { tool_choice: ToolChoice::Tool("fs__read".into()), ..request.clone() };
        assert_eq!(encode_with(&request, "m", &EncodedTools::of(api, set.clone())).body(), body, "{api}");
    }
}

#[test]
fn tool_choice_is_written_for_each_api() {
    let check = |choice: ToolChoice, parallel: Option<bool>, expect: [Value; 4], ollama_tools: usize| {
        let request = ModelRequest { tool_choice: choice, parallel_calls: parallel, ..conversation() };
        let body = |api| encode(api, &request, "m").body();
        let (chat, responses) = (body(Api::OpenAiChat), body(Api::OpenAiResponses));
        assert_eq!(chat["tool_choice"], expect[0]);
        assert_eq!(responses["tool_choice"], expect[1]);
        assert_eq!(body(Api::Anthropic)["tool_choice"], expect[2]);
        assert_eq!(body(Api::Gemini)["toolConfig"]["functionCallingConfig"], expect[3]);
        assert_eq!(body(Api::Ollama)["tools"].as_array().map_or(0, Vec::len), ollama_tools);
        let parallel = parallel.map_or(Value::Null, Value::from);
        assert_eq!((&chat["parallel_tool_calls"], &responses["parallel_tool_calls"]), (&parallel, &parallel));
    };
    let null = Value::Null;
    check(ToolChoice::Auto, None, [null.clone(), null.clone(), null.clone(), null.clone()], 3);
    let one = json!({"type": "auto", "disable_parallel_tool_use": true});
    check(ToolChoice::Auto, Some(false), [null.clone(), null.clone(), one, null], 3);
    let required = || json!("required");
    check(ToolChoice::Required, None, [required(), required(), json!({"type": "any"}), json!({"mode": "ANY"})], 3);
    let any = json!({"type": "any", "disable_parallel_tool_use": false});
    check(ToolChoice::Required, Some(true), [required(), required(), any, json!({"mode": "ANY"})], 3);
    let none = || json!("none");
    check(ToolChoice::None, Some(false), [none(), none(), json!({"type": "none"}), json!({"mode": "NONE"})], 0);
    let tool = [
        json!({"type": "function", "function": {"name": "fs__read"}}),
        json!({"type": "function", "name": "fs__read"}),
        json!({"type": "tool", "name": "fs__read"}),
        json!({"mode": "ANY", "allowedFunctionNames": ["fs__read"]}),
    ];
    check(ToolChoice::Tool("fs__read".into()), None, tool, 3);
}

#[test]
fn the_model_of_gemini_is_in_its_path() {
    let path = |model: &str| encode(Api::Gemini, &conversation(), model).path.into_owned();
    assert_eq!(path("gemini-3-pro"), "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse");
    assert_eq!(path("tunedModels/a?b#c"), "/v1beta/tunedModels/a%3Fb%23c:streamGenerateContent?alt=sse");
}

#[test]
fn past_calls_stay_legal_without_tools() {
    let body = encode(Api::Anthropic, &ModelRequest { tools: [].into(), ..conversation() }, "m").body();
    let names: Vec<&str> =
        body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fs__read", "fs__grep", "fs_read_"]);
    assert_eq!(body["tool_choice"], json!({"type": "none"}));
}
