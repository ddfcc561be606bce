//! The tools of the suite. Those that answer with a constant come first in the list: one scenario calls
//! the first tool without arguments and expects no error.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Fixture;
use crate::wire::{Answer, Era, Exchange, Request, RpcError, text_result};

/// Between two steps of a tool that reports progress.
const STEP: Duration = Duration::from_millis(50);

/// A PNG of one red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";

pub(super) fn list(fixture: &Fixture) -> Value {
    let tool = |name: &str, description: &str| {
        json!({
            "name": name,
            "description": description,
            "inputSchema": {"type": "object", "properties": {}, "additionalProperties": false},
        })
    };
    let mut tools = vec![
        tool("test_simple_text", "Answers with one text block"),
        tool("test_image_content", "Answers with an image"),
        tool("test_audio_content", "Answers with a sound"),
        tool("test_embedded_resource", "Answers with an embedded resource"),
        tool("test_multiple_content_types", "Answers with text, an image and a resource"),
        tool("test_error_handling", "Answers with an error result"),
        tool("test_tool_with_progress", "Reports progress three times before it answers"),
        tool("test_missing_capability", "Refuses clients that offer no sampling"),
        tool("test_streaming_elicitation", "Asks clients that offer elicitation for a name"),
        tool("test_logging_tool", "Logs while it runs, if the client asked for logs"),
        tool("test_trigger_tool_change", "Adds a tool to this list, or takes it away again"),
        json!({
            "name": "json_schema_2020_12_tool",
            "description": "Has a schema that must arrive unchanged",
            "inputSchema": rich_schema(),
        }),
    ];
    if fixture.extra_tool.load(Ordering::Relaxed) {
        tools.push(tool("test_extra_tool", "Comes and goes"));
    }
    json!({"tools": tools})
}

pub(super) async fn call(fixture: &Fixture, request: &Request, exchange: &Exchange<'_>) -> Answer {
    let image = || json!({"type": "image", "data": PNG, "mimeType": "image/png"});
    let resource = |uri: &str, mime_type: &str, text: &str| json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": text}});
    let content = |blocks: &[Value]| Answer::Result(json!({"content": blocks}));
    match request.text("name") {
        "test_simple_text" => Answer::text("This is a simple text response for testing."),
        "test_image_content" => content(&[image()]),
        "test_audio_content" => {
            content(&[json!({"type": "audio", "data": STANDARD.encode(silence()), "mimeType": "audio/wav"})])
        }
        "test_embedded_resource" => {
            content(&[resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")])
        }
        "test_multiple_content_types" => content(&[
            json!({"type": "text", "text": "Multiple content types test:"}),
            image(),
            resource("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
        ]),
        "test_error_handling" => {
            let mut result = text_result("This tool intentionally returns an error for testing");
            result["isError"] = json!(true);
            Answer::Result(result)
        }
        "test_tool_with_progress" => {
            for done in [0, 50, 100] {
                exchange.progress(request, done, 100).await;
                tokio::time::sleep(STEP).await;
            }
            Answer::text("Tool with progress completed")
        }
        "test_missing_capability" if exchange.client_has("sampling") => Answer::text("Sampling is available"),
        "test_missing_capability" => RpcError::new(RpcError::MISSING_CAPABILITY, "this tool needs sampling")
            .with_data(json!({"requiredCapabilities": {"sampling": {}}}))
            .into(),
        "test_streaming_elicitation" => ask_for_name(request, exchange),
        "test_logging_tool" => {
            for step in ["started", "processing data", "completed"] {
                if request.wants_log() {
                    let entry = json!({"level": "info", "data": format!("Tool execution {step}")});
                    exchange.notify("notifications/message", entry).await;
                }
            }
            Answer::text("Tool with logging completed")
        }
        "test_trigger_tool_change" => {
            fixture.extra_tool.fetch_not(Ordering::Relaxed);
            exchange.tools_changed().await;
            Answer::text("The list of tools has changed")
        }
        "json_schema_2020_12_tool" | "test_extra_tool" => Answer::text("ok"),
        name => RpcError::new(RpcError::INVALID_PARAMS, format!("unknown tool: {name}")).into(),
    }
}

/// The multi-round-trip form of an elicitation: the answer says what is missing, and the client calls
/// again with it. Only modern clients that offer elicitation are asked.
fn ask_for_name(request: &Request, exchange: &Exchange<'_>) -> Answer {
    let answered = request.params.get("inputResponses").is_some_and(|responses| responses.get("user_name").is_some());
    if answered || request.era == Era::Legacy || !exchange.client_has("elicitation") {
        return Answer::text("Tool with elicitation completed");
    }
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let question = json!({"mode": "form", "message": "What is your name?", "requestedSchema": schema});
    Answer::Result(json!({
        "resultType": "input_required",
        "inputRequests": {"user_name": {"method": "elicitation/create", "params": question}},
    }))
}

/// A WAV file of eight silent samples: mono, 8 kHz, 16 bits.
fn silence() -> Vec<u8> {
    const SAMPLES: [u8; 16] = [0; 16];
    let mut wav = b"RIFF\x34\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    wav.extend(8000_u32.to_le_bytes());
    wav.extend(16000_u32.to_le_bytes());
    wav.extend(b"\x02\0\x10\0data\x10\0\0\0");
    wav.extend(SAMPLES);
    wav
}

/// Every keyword that gateways are known to lose.
fn rich_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}
