//! The served side against the client side: what our encoders send is read back, what is written is decoded to the same
//! answer, and every stream keeps the order of its API.

mod answers;
mod conversations;
mod fields;
mod round_trips;
mod upstream;

use serde_json::{Value, json};
use toolwright_models::served::{ServedApi, read_request};

fn least(api: ServedApi) -> Value {
    match api {
        ServedApi::Responses => json!({"model": "m", "input": "hi"}),
        ServedApi::Chat => json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
        ServedApi::Messages => {
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})
        }
    }
}

fn read(api: ServedApi, body: &Value) -> Result<toolwright_models::served::ServedRequest, String> {
    read_request(api, body.to_string().as_bytes()).map_err(|error| error.field)
}

/// The messages of a conversation in which a call has a result, with what is added to one of them.
fn with_call(api: ServedApi, at: &str, key: &str, value: Value) -> Value {
    let mut body = least(api);
    match api {
        ServedApi::Chat => {
            let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
            let result = json!({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}]});
            let mut messages = body["messages"].as_array().cloned().unwrap_or_default();
            messages.extend([json!({"role": "assistant", "content": null, "tool_calls": [call]}), result]);
            body["messages"] = json!(messages);
            body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
            body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {}}});
        }
        ServedApi::Responses => {
            body["input"] = json!([
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "x"},
            ]);
            body["tools"] = json!([{"type": "function", "name": "f"}]);
            body["text"] = json!({"format": {"type": "json_schema", "name": "s", "schema": {}}});
            body["reasoning"] = json!({"effort": "low"});
            body["stream_options"] = json!({});
        }
        ServedApi::Messages => {
            let result =
                json!({"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "x"}]});
            body["messages"] = json!([
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]},
                {"role": "user", "content": [result]},
            ]);
            body["tools"] = json!([{"name": "f", "input_schema": {}}]);
            body["output_config"] = json!({"effort": "low"});
            body["metadata"] = json!({"user_id": "x"});
        }
    }
    body.pointer_mut(at).unwrap()[key] = value;
    body
}
