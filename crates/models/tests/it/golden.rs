//! One conversation in the form of each API, compared to the byte. `TOOLWRIGHT_BLESS=1` rewrites.

use std::path::PathBuf;

use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{CallResult, Message, ModelRequest, OpaqueData, ShownTool, ToolChoice, WrittenCall};
use toolwright_models::{Api, encode};

const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn call(id: &str, name: &str, arguments: &str) -> WrittenCall {
    WrittenCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

fn result(id: &str, name: &str, content: Vec<ContentBlock>, is_error: bool) -> CallResult {
    CallResult { call_id: id.into(), name: name.into(), content, is_error }
}

fn tool(name: &str, description: &str, parameters: Value) -> ShownTool {
    ShownTool { name: name.into(), description: description.into(), parameters, ..ShownTool::default() }
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

#[test]
fn one_conversation_in_the_form_of_each_api() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("TOOLWRIGHT_BLESS").is_some();
    for api in Api::ALL {
        let encoded = encode(api, &conversation(), "some-model");
        let got = serde_json::to_string_pretty(&encoded.body()).unwrap() + "\n";
        let path = folder.join(format!("{api}.json"));
        if bless {
            std::fs::write(&path, &got).unwrap();
        }
        let want = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(got == want, "{api} differs from {}; TOOLWRIGHT_BLESS=1 rewrites it. Got:\n{got}", path.display());
        assert_eq!(
            encoded.bytes(),
            encode(api, &conversation(), "some-model").bytes(),
            "{api}: equal requests, equal bytes"
        );
    }
}

#[test]
fn a_choice_of_tools_has_its_form_in_each_api() {
    let check = |choice: ToolChoice, openai: Value, anthropic: Value, ollama_tools: usize| {
        let request = ModelRequest { tool_choice: choice, max_tokens: Some(7), ..conversation() };
        let body = |api| encode(api, &request, "m").body();
        let (chat, messages, ollama) = (body(Api::OpenAiChat), body(Api::Anthropic), body(Api::Ollama));
        assert_eq!((&chat["tool_choice"], &messages["tool_choice"]), (&openai, &anthropic));
        assert_eq!(ollama["tools"].as_array().map_or(0, Vec::len), ollama_tools);
        assert_eq!(
            (&chat["max_completion_tokens"], &messages["max_tokens"], &ollama["options"]["num_predict"]),
            (&json!(7), &json!(7), &json!(7))
        );
    };
    check(ToolChoice::Auto, Value::Null, Value::Null, 3);
    check(ToolChoice::Required, json!("required"), json!({"type": "any"}), 3);
    check(ToolChoice::None, json!("none"), json!({"type": "none"}), 0);
    check(
        ToolChoice::Tool("fs__read".into()),
        json!({"type": "function", "function": {"name": "fs__read"}}),
        json!({"type": "tool", "name": "fs__read"}),
        3,
    );
}

#[test]
fn past_calls_stay_legal_for_anthropic_when_no_tool_is_shown() {
    let body = encode(Api::Anthropic, &ModelRequest { tools: [].into(), ..conversation() }, "m").body();
    let names: Vec<&str> =
        body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fs__read", "fs__grep", "fs_read_"]);
    assert_eq!(body["tool_choice"], json!({"type": "none"}));
}
