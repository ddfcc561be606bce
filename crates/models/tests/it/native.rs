//! Tools that providers run themselves: their declarations, what answers say of them, and what is sent back.

use serde_json::{Value, json};
use toolwright_core::model::{
    Artifact, Citation, Message, ModelRequest, ModelResponse, NativeTool, NativeUse, RequestTool,
};
use toolwright_models::{Api, decode_whole, encode};

use crate::golden::{check_golden, conversation};
use crate::streams::{decode_all, sse};

fn native(name: &str, declarations: Value) -> RequestTool {
    RequestTool { name: name.into(), native: declarations.as_object().cloned(), ..RequestTool::default() }
}

/// A request that declares tools of its provider beside functions.
fn request(messages: Vec<Message>) -> ModelRequest {
    let natives = [
        native(
            "native__web_search",
            json!({
                "anthropic": {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
                "openai_responses": {"type": "web_search"},
                "gemini": {"googleSearch": {}},
            }),
        ),
        native(
            "native__code_execution",
            json!({
                "anthropic": {"type": "code_execution_20250825", "name": "code_execution"},
                "openai_responses": {"type": "code_interpreter", "container": {"type": "auto"}},
                "gemini": {"codeExecution": {}},
            }),
        ),
        native("media__image_gen", json!({"openai_responses": {"type": "image_generation"}})),
    ];
    let functions = conversation().tools.to_vec();
    ModelRequest { messages, tools: natives.into_iter().chain(functions).collect(), ..ModelRequest::default() }
}

#[test]
fn each_api_gets_its_own_declarations() {
    let asked = request(vec![Message::user("When is high water?")]);
    for api in [Api::OpenAiResponses, Api::Anthropic, Api::Gemini] {
        check_golden(&format!("{api}.native.json"), api, &asked);
    }
    for api in [Api::OpenAiChat, Api::Ollama] {
        let without = ModelRequest { tools: conversation().tools, ..asked.clone() };
        assert_eq!(encode(api, &asked, "m").bytes(), encode(api, &without, "m").bytes(), "{api}");
    }
    // Without functions the tools of the provider stand alone.
    let alone = ModelRequest { tools: asked.tools[..1].into(), ..asked };
    let body = encode(Api::Gemini, &alone, "gemini-2.5-flash").body();
    assert_eq!((&body["tools"], body.get("toolConfig")), (&json!([{"googleSearch": {}}]), None));
}

fn used(tool: NativeTool, id: &str, input: Value, ok: bool) -> NativeUse {
    NativeUse { tool, id: id.into(), input, ok }
}

fn cited(title: &str, url: Option<&str>) -> Citation {
    Citation { title: title.into(), url: url.map(Into::into) }
}

fn file(media_type: &str, data: Option<&str>, name: &str) -> Artifact {
    Artifact { media_type: media_type.into(), data: data.map(Into::into), name: name.into(), path: None }
}

fn stored(name: &str, path: &str) -> Artifact {
    Artifact { path: Some(path.into()), ..file("application/octet-stream", None, name) }
}

/// The answer as the API gets it back.
fn sent_back(api: Api, answer: &ModelResponse) -> Value {
    let said =
        Message::Assistant { text: answer.text.clone(), calls: answer.calls.clone(), opaque: answer.opaque.clone() };
    let body = encode(api, &request(vec![Message::user("When?"), said, Message::user("Sure?")]), "some-model").body();
    match api {
        Api::Anthropic => body["messages"][1]["content"].clone(),
        Api::Gemini => body["contents"][1]["parts"].clone(),
        _ => body["input"].clone(),
    }
}

const URL: &str = "https://tide.example/bergen";

#[test]
fn searches_of_anthropic_are_read_and_sent_back() {
    let stream = include_str!("../fixtures/anthropic/web_search_and_pause.chunks.txt");
    let answer = decode_all(Api::Anthropic, &sse(stream, false));
    assert!(answer.stop.is_pause(), "{:?}", answer.stop);
    let native = &answer.native;
    assert_eq!(
        native.uses,
        [
            used(NativeTool::WebSearch, "srvtoolu_1", json!({"query": "tide in Bergen"}), true),
            used(NativeTool::CodeExecution, "srvtoolu_2", json!({"command": "plot"}), true),
        ]
    );
    assert_eq!(native.citations, [cited("Tide in Bergen", Some(URL))]);
    assert_eq!(native.artifacts, [stored("file_1", "/v1/files/file_1/content")]);
    assert_eq!((native.charged(NativeTool::WebSearch), native.charged(NativeTool::CodeExecution)), (1, 1));
    let back = sent_back(Api::Anthropic, &answer);
    let kinds: Vec<&str> = back.as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    let expect = ["text", "server_tool_use", "web_search_tool_result", "text", "server_tool_use"];
    assert_eq!((&kinds[..5], kinds[5]), (&expect[..], "bash_code_execution_tool_result"), "{back}");
    assert_eq!(back[2]["content"][0]["encrypted_content"], "ZW5jcnlwdGVk");
    assert_eq!(
        (&back[3]["text"], &back[3]["citations"][0]["encrypted_index"]),
        (&json!("High water is at 14:02."), &json!("aW5kZXg="))
    );
    // A paused answer is sent again as it is, and the model goes on.
    let said = Message::Assistant { text: answer.text, calls: Vec::new(), opaque: answer.opaque };
    let body = encode(Api::Anthropic, &request(vec![Message::user("When?"), said]), "m").body();
    assert_eq!((body["messages"].as_array().unwrap().len(), &body["messages"][1]["role"]), (2, &json!("assistant")));
}

#[test]
fn tools_of_openai_are_read_and_sent_back() {
    let whole = include_bytes!("../fixtures/openai_responses/provider_tools.json");
    let answer = decode_whole(Api::OpenAiResponses, whole).unwrap();
    let native = &answer.native;
    let tools: Vec<_> = native.uses.iter().map(|used| (used.tool, used.id.as_str(), used.ok)).collect();
    assert_eq!(
        tools,
        [
            (NativeTool::WebSearch, "ws_1", true),
            (NativeTool::CodeExecution, "ci_1", true),
            (NativeTool::FileSearch, "fs_1", false),
            (NativeTool::ImageGen, "ig_1", true),
        ]
    );
    assert_eq!(native.citations, [cited("Tide in Bergen", Some(URL)), cited("rules.pdf", None)]);
    let image = file("image/png", Some("iVBORw0KGgo="), "ig_1");
    assert_eq!(native.artifacts, [image, stored("plot.csv", "/containers/cntr_1/files/cfile_1/content")]);
    let back = sent_back(Api::OpenAiResponses, &answer);
    let kinds: Vec<&str> = back.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    let expect = ["message", "web_search_call", "code_interpreter_call", "file_search_call", "image_generation_call"];
    assert_eq!((&kinds[..5], &kinds[5..]), (&expect[..], &["message", "message"][..]), "{back}");
    assert_eq!(back[4]["result"], "iVBORw0KGgo=");
    // A picture counts as one, not by its bytes.
    let large = json!({"item": {"type": "image_generation_call", "result": "x".repeat(1 << 20)}});
    let opaque = vec![toolwright_core::model::OpaqueData { api: "openai_responses".into(), data: large }];
    assert!(Message::Assistant { text: String::new(), calls: Vec::new(), opaque }.tokens() < 5000);
}

#[test]
fn searches_and_code_of_gemini_are_kept() {
    let stream = include_str!("../fixtures/gemini/search_and_code.chunks.txt");
    let answer = decode_all(Api::Gemini, &sse(stream, false));
    let native = &answer.native;
    assert_eq!(
        native.uses,
        [
            used(NativeTool::WebSearch, "tc_1", json!({"queries": ["tide in Bergen"]}), true),
            used(NativeTool::CodeExecution, "ec_1", json!("print(6*7)"), true),
        ]
    );
    assert_eq!(native.citations, [cited("tide.example", Some(URL))]);
    assert_eq!(native.artifacts, [file("image/png", Some("iVBORw0KGgo="), "")]);
    let back = sent_back(Api::Gemini, &answer);
    let keys: Vec<&String> =
        back.as_array().unwrap().iter().filter_map(|part| part.as_object()?.keys().next()).collect();
    assert_eq!(keys, ["toolCall", "toolResponse", "executableCode", "codeExecutionResult", "inlineData", "text"]);
    assert_eq!((&back[0]["thoughtSignature"], &back[1]["thoughtSignature"]), (&json!("c2lnMQ=="), &json!("c2lnMg==")));
}
