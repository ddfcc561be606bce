//! The tools of the suite. Tools with constant answers come first in the list, because one scenario calls the first
//! tool without arguments and expects no error.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Fixture, blocks, dialogue, questions};
use crate::wire::{Answer, Change, Exchange, Level, Request, RpcError, text_result};

/// The pause between two steps of a slow tool.
const STEP: Duration = Duration::from_millis(50);
/// The time that a tool continues to work after it has ended its connection.
const WORK_AFTER_CLOSE: Duration = Duration::from_millis(100);

fn tool(name: &str, description: &str) -> Value {
    taking(name, description, &json!({}), &[])
}

fn taking(name: &str, description: &str, properties: &Value, required: &[&str]) -> Value {
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    json!({"name": name, "description": description, "inputSchema": schema})
}

pub(super) fn list(fixture: &Fixture) -> Value {
    let text = json!({"type": "string"});
    let mut tools = vec![
        tool("test_simple_text", "Answers with one text block"),
        tool("test_image_content", "Answers with an image"),
        tool("test_audio_content", "Answers with a sound"),
        tool("test_embedded_resource", "Answers with an embedded resource"),
        tool("test_multiple_content_types", "Answers with text, an image and a resource"),
        tool("test_resource_link", "Answers with a link to a resource"),
        structured(),
        tool("test_error_handling", "Answers with an error result"),
        tool("test_tool_with_progress", "Reports progress three times before it answers"),
        tool("test_tool_with_logging", "Logs three times before it answers"),
        tool("test_logging_tool", "Logs while it runs, if the client asked for logs"),
        tool("test_reconnection", "Ends its connection, and answers when the client is back"),
        tool("test_missing_capability", "Refuses clients that offer no sampling"),
        tool("test_trigger_tool_change", "Adds a tool to this list, or takes it away again"),
        tool("test_trigger_prompt_change", "Adds a prompt to the list, or takes it away again"),
        tool("test_trigger_resource_change", "Adds a resource to the list, or takes it away again"),
        tool("test_trigger_resource_update", "Changes the watched resource"),
        json!({
            "name": "json_schema_2020_12_tool",
            "description": "Has a schema that must arrive unchanged",
            "inputSchema": rich_schema(),
        }),
        with_headers(),
        taking("greet", "Greets", &json!({"name": text}), &["name"]),
        taking(
            "slow_compute",
            "Works for so many seconds, as a task where the client knows tasks",
            &json!({"seconds": {"type": "integer", "minimum": 0}, "label": text}),
            &[],
        ),
        tool("failing_job", "Fails, and only as a task"),
        tool("protocol_error_job", "Ends in a protocol error"),
        taking("confirm_delete", "Asks before it deletes", &json!({"filename": text}), &["filename"]),
        tool("multi_input", "Asks two questions at once"),
        tool("test_tool_with_task", "Asks for a name, then greets as a task"),
        taking("test_elicitation", "Asks the user for a contact", &json!({"message": text}), &["message"]),
        taking("test_sampling", "Asks the client's model", &json!({"prompt": text}), &["prompt"]),
        tool("test_elicitation_sep1034_defaults", "Asks with a default for every type"),
        tool("test_elicitation_sep1330_enums", "Asks with every kind of choice"),
        tool("test_streaming_elicitation", "Asks clients that offer elicitation for a name"),
    ];
    for (name, description) in [
        ("elicitation", "Asks the user for a name"),
        ("sampling", "Asks the client's model for a capital"),
        ("list_roots", "Asks the client for its roots"),
        ("request_state", "Asks to confirm, with a state"),
        ("multiple_inputs", "Asks for a name, a greeting and the roots at once"),
        ("multi_round", "Asks twice, one after the other"),
        ("tampered_state", "Asks to confirm, with a state that nobody may change"),
        ("capabilities", "Asks whatever the client is able to answer"),
    ] {
        tools.push(tool(&format!("test_input_required_result_{name}"), description));
    }
    if fixture.extra_tool.load(Ordering::Relaxed) {
        tools.push(tool("test_extra_tool", "Comes and goes"));
    }
    json!({"tools": tools})
}

pub(super) fn input_schema(fixture: &Fixture, name: &str) -> Option<Value> {
    let list = list(fixture);
    let tool = list["tools"].as_array()?.iter().find(|tool| tool["name"] == name)?;
    Some(tool["inputSchema"].clone())
}

pub(super) async fn call(fixture: &Fixture, request: &Request, exchange: &Exchange) -> Answer {
    let name = request.text("name");
    let Some(schema) = input_schema(fixture, name) else {
        return RpcError::invalid(format!("unknown tool: {name}")).into();
    };
    let none = json!({});
    if let Err(error) = jsonschema::validate(&schema, request.params.get("arguments").unwrap_or(&none)) {
        return Answer::failure(format!("Invalid arguments for tool {name}: {error}"));
    }
    if let Some(answer) = fixture.tasks.call(request, exchange, &fixture.seal).await {
        return answer;
    }
    // This tool alone accepts clients that cannot be asked.
    if name == "test_streaming_elicitation" && !exchange.client_has("elicitation") {
        return Answer::text("Hello, whoever you are!");
    }
    match questions::script(name) {
        Some(script) => dialogue::hold(&fixture.seal, request, exchange, script).await,
        None => run(fixture, request, exchange).await,
    }
}

/// Runs the tools that ask nothing.
async fn run(fixture: &Fixture, request: &Request, exchange: &Exchange) -> Answer {
    let content = |blocks: &[Value]| Answer::Result(json!({"content": blocks}));
    match request.text("name") {
        "test_simple_text" => Answer::text("This is a simple text response for testing."),
        "test_image_content" => content(&[blocks::image()]),
        "test_audio_content" => content(&[blocks::audio()]),
        "test_embedded_resource" => {
            let text = "This is an embedded resource content.";
            content(&[blocks::resource("test://embedded-resource", "text/plain", text)])
        }
        "test_multiple_content_types" => content(&[
            blocks::text("Multiple content types test:"),
            blocks::image(),
            blocks::resource("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
        ]),
        "test_resource_link" => {
            let link = json!({"type": "resource_link", "uri": "test://static-text", "name": "static-text"});
            content(&[link])
        }
        "test_structured_content" => {
            let mut result = text_result(r#"{"temperature":21.5,"unit":"C"}"#);
            result["structuredContent"] = json!({"temperature": 21.5, "unit": "C"});
            Answer::Result(result)
        }
        "test_error_handling" => Answer::failure("This tool intentionally returns an error for testing"),
        "test_tool_with_progress" => {
            for done in [0, 50, 100] {
                exchange.progress(request, done, 100).await;
                tokio::time::sleep(STEP).await;
            }
            Answer::text("Tool with progress completed")
        }
        "test_tool_with_logging" | "test_logging_tool" => {
            for step in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                exchange.log(request, Level::Info, step).await;
                tokio::time::sleep(STEP).await;
            }
            Answer::text("Tool with logging completed")
        }
        "test_reconnection" => {
            exchange.disconnect().await;
            tokio::time::sleep(WORK_AFTER_CLOSE).await;
            Answer::text("Reconnection test completed successfully.")
        }
        "test_missing_capability" if exchange.client_has("sampling") => Answer::text("Sampling is available"),
        "test_missing_capability" => RpcError::missing_capability(json!({"sampling": {}})).into(),
        "test_trigger_tool_change" => {
            fixture.extra_tool.fetch_not(Ordering::Relaxed);
            exchange.announce(&Change::Tools).await;
            Answer::text("The list of tools has changed")
        }
        "test_trigger_prompt_change" => {
            fixture.extra_prompt.fetch_not(Ordering::Relaxed);
            exchange.announce(&Change::Prompts).await;
            Answer::text("The list of prompts has changed")
        }
        "test_trigger_resource_change" => {
            fixture.resources.toggle_extra(exchange).await;
            Answer::text("The list of resources has changed")
        }
        "test_trigger_resource_update" => {
            fixture.resources.update(exchange).await;
            Answer::text("The watched resource has changed")
        }
        "greet" => {
            let name = request.argument("name").and_then(Value::as_str).unwrap_or_default();
            Answer::text(format!("Hello, {name}!"))
        }
        "test_x_mcp_header" => {
            let arguments = request.params.get("arguments").cloned().unwrap_or_else(|| json!({}));
            Answer::text(format!("The arguments are {arguments}"))
        }
        _ => Answer::text("ok"),
    }
}

fn structured() -> Value {
    let mut tool = tool("test_structured_content", "Answers with structured content");
    tool["title"] = json!("Weather");
    tool["annotations"] = json!({"readOnlyHint": true, "openWorldHint": false});
    tool["outputSchema"] = json!({
        "type": "object",
        "properties": {"temperature": {"type": "number"}, "unit": {"type": "string"}},
        "required": ["temperature", "unit"],
    });
    tool
}

/// Returns a tool with arguments that are also sent as headers, on transports with headers.
fn with_headers() -> Value {
    let properties = json!({
        "region": {"type": "string", "x-mcp-header": "Region"},
        "priority": {"type": "integer", "x-mcp-header": "Priority"},
        "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
        "query": {"type": "string"},
    });
    taking("test_x_mcp_header", "Has arguments that come as headers too", &properties, &[])
}

/// Returns a schema with every keyword that gateways are known to lose.
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
