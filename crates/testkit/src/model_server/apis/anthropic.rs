//! Anthropic Messages.

use serde_json::{Value, json};

use crate::model_server::check::{Checked, answer_schema, ensure, filled, is_base64, is_name, tool, word};
use crate::model_server::sending::{Sent, pieces};
use crate::model_server::{Answer, RecordedRequest, Reply, Stop};
use crate::rules::ApiRules;

pub(in crate::model_server) fn check(body: &Value) -> Checked {
    word(body, "model", "body")?;
    ensure(body["max_tokens"].as_u64().is_some_and(|n| n > 0), || "max_tokens: Field required".into())?;
    let messages = &joined(filled(body, "messages")?);
    let uses_tools = check_messages(messages)?;
    match body.get("tools") {
        Some(tools) => {
            let mut seen = Vec::new();
            let mut deferred = Vec::new();
            for (at, shown) in tools.as_array().ok_or("tools: must be an array")?.iter().enumerate() {
                let place = format!("tools.{at}");
                let schema = &shown["input_schema"];
                let name = word(shown, "name", &place)?;
                // Tools of the provider have a version in place of a schema.
                if shown["type"].as_str().is_some_and(|kind| kind != "custom") {
                    ensure(schema.is_null(), || format!("{place}.input_schema: Extra inputs are not permitted"))?;
                    seen.push(name.to_owned());
                    continue;
                }
                tool(name, schema, &mut seen, &place)?;
                if shown["defer_loading"] == true {
                    ensure(shown["cache_control"].is_null(), || {
                        format!("Tool '{name}' cannot have both defer_loading=true and cache_control set.")
                    })?;
                    deferred.push(name);
                }
                let legal = |key: &String| {
                    (1..=64).contains(&key.len())
                        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
                };
                ensure(schema["properties"].as_object().is_none_or(|properties| properties.keys().all(legal)), || {
                    format!(
                        "{place}.input_schema.properties: property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"
                    )
                })?;
            }
            ensure(deferred.is_empty() || deferred.len() < seen.len(), || {
                "All tools have defer_loading set. At least one tool must be non-deferred.".into()
            })?;
            references(messages).try_for_each(|name| {
                ensure(deferred.contains(&name), || format!("Tool reference '{name}' not found in available tools"))
            })?;
        }
        None => {
            ensure(!uses_tools, || {
                "requests which have `tool_use` or `tool_result` blocks in messages must define tools".into()
            })?;
            ensure(body.get("tool_choice").is_none(), || "tool_choice: may only be given with tools".into())?;
        }
    }
    answer_schema(ApiRules::Anthropic, body)?;
    match &body["system"] {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(blocks) if blocks.iter().all(|block| block["type"] == "text") => Ok(()),
        _ => Err("system: must be a string or text blocks".into()),
    }
}

/// Returns the messages as the API reads them: a text becomes one block, and consecutive messages of the same role are
/// joined.
fn joined(messages: &[Value]) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::new();
    for message in messages {
        let mut message = message.clone();
        if let Some(text) = message["content"].as_str() {
            message["content"] = json!([{"type": "text", "text": text}]);
        }
        match (turns.last_mut().filter(|last| last["role"] == message["role"]), &mut message["content"]) {
            (Some(Value::Object(last)), Value::Array(more)) if !more.is_empty() => {
                if let Some(blocks) = last.get_mut("content").and_then(Value::as_array_mut) {
                    blocks.append(more);
                }
            }
            _ => turns.push(message),
        }
    }
    turns
}

/// Returns the names of the tools that results load.
fn references(messages: &[Value]) -> impl Iterator<Item = &str> {
    let results = messages.iter().flat_map(blocks).filter(|block| block["type"] == "tool_result");
    results
        .flat_map(blocks)
        .filter(|block| block["type"] == "tool_reference")
        .filter_map(|block| block["tool_name"].as_str())
}

fn blocks(value: &Value) -> &[Value] {
    value["content"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Checks the messages and returns whether they use tools.
fn check_messages(messages: &[Value]) -> Result<bool, String> {
    let mut used: Vec<&str> = Vec::new();
    let mut waiting: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let place = format!("messages.{at}");
        let expected = if at % 2 == 0 { "user" } else { "assistant" };
        ensure(message["role"] == expected, || {
            format!(
                "{place}: roles must alternate beginning with 'user', expected '{expected}' and got {}",
                message["role"]
            )
        })?;
        let mut past_results = false;
        let mut next: Vec<&str> = Vec::new();
        for (b, block) in filled(message, "content").map_err(|error| format!("{place}.{error}"))?.iter().enumerate() {
            let place = format!("{place}.content.{b}");
            let kind = word(block, "type", &place)?;
            match (expected, kind) {
                ("user", "tool_result") => {
                    ensure(!past_results, || format!("{place}: tool_result blocks must come first in their message"))?;
                    let id = word(block, "tool_use_id", &place)?;
                    let found = waiting.iter().position(|waits| *waits == id);
                    waiting.remove(found.ok_or_else(|| {
                        format!(
                            "{place}: unexpected `tool_use_id` '{id}': no `tool_use` of the previous message has it"
                        )
                    })?);
                    result_content(&block["content"], &place)?;
                }
                ("assistant", "tool_use") => {
                    let id = word(block, "id", &place)?;
                    ensure(is_id(id), || format!("{place}.id: '{id}' does not match '^[a-zA-Z0-9_-]+$'"))?;
                    ensure(!used.contains(&id), || format!("{place}: `tool_use` ids must be unique, '{id}' is not"))?;
                    ensure(is_name(word(block, "name", &place)?), || format!("{place}.name: illegal tool name"))?;
                    ensure(block["input"].is_object(), || format!("{place}.input: must be an object"))?;
                    used.push(id);
                    next.push(id);
                }
                ("assistant", "thinking" | "redacted_thinking" | "server_tool_use") => {}
                ("assistant", kind) if kind.ends_with("_tool_result") => {
                    let id = word(block, "tool_use_id", &place)?;
                    let uses = message["content"].as_array().into_iter().flatten();
                    let mut uses = uses.filter(|block| block["type"] == "server_tool_use");
                    ensure(uses.any(|used| used["id"] == id), || {
                        format!("{place}: no `server_tool_use` block with id '{id}' in its message")
                    })?;
                }
                (_, "text" | "image" | "document") => plain(block, &place)?,
                _ => return Err(format!("{place}: unexpected block of type '{kind}' from the {expected}")),
            }
            past_results |= kind != "tool_result";
        }
        let last = message["content"].as_array().and_then(|blocks| blocks.last());
        ensure(!last.is_some_and(|block| block["type"] == "thinking" || block["type"] == "redacted_thinking"), || {
            format!("{place}: The final block in an assistant message cannot be `thinking`.")
        })?;
        ensure(waiting.is_empty(), || unanswered(&place, &waiting))?;
        waiting = next;
    }
    ensure(waiting.is_empty(), || unanswered("messages", &waiting))?;
    Ok(!used.is_empty())
}

fn unanswered(place: &str, ids: &[&str]) -> String {
    format!("{place}: `tool_use` ids were found without `tool_result` blocks immediately after: {}", ids.join(", "))
}

fn is_id(id: &str) -> bool {
    id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn result_content(content: &Value, place: &str) -> Checked {
    match content {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(blocks) if blocks.iter().any(|block| block["type"] == "tool_reference") => {
            ensure(blocks.iter().all(|block| block["type"] == "tool_reference"), || {
                format!("{place}: Tool definitions/code execution functions cannot be mixed with other content")
            })?;
            blocks.iter().try_for_each(|block| word(block, "tool_name", place).map(drop))
        }
        Value::Array(blocks) => blocks.iter().try_for_each(|block| plain(block, place)),
        _ => Err(format!("{place}.content: must be a string or blocks")),
    }
}

fn plain(block: &Value, place: &str) -> Checked {
    if block["type"] == "image" {
        let source = &block["source"];
        let known =
            ["image/png", "image/jpeg", "image/gif", "image/webp"].iter().any(|media| source["media_type"] == *media);
        return ensure(source["type"] == "url" || (known && source["data"].as_str().is_some_and(is_base64)), || {
            format!("{place}.source: not an image")
        });
    }
    if block["type"] == "document" {
        let source = &block["source"];
        let is_pdf = source["type"] == "base64" && source["media_type"] == "application/pdf";
        return ensure(is_pdf && source["data"].as_str().is_some_and(is_base64), || {
            format!("{place}.source: not a document")
        });
    }
    ensure(block["text"].as_str().is_some_and(|text| !text.trim().is_empty()), || {
        format!("{place}: text content blocks must contain non-whitespace text")
    })
}

pub(in crate::model_server) fn speak(asked: &RecordedRequest, reply: &Reply, number: usize) -> Sent {
    let Reply::Answer(answer) = reply else { return Sent::error(reply, error_body) };
    let Answer { thinking, native, text, calls, tokens, .. } = answer;
    let (stop, details) = stopped(answer);
    let mut blocks = Vec::new();
    if !thinking.is_empty() {
        let signature = format!("c2lnbmF0dXJl{number}");
        blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": signature}));
    }
    blocks.extend(native.iter().cloned());
    if !text.is_empty() {
        blocks.push(json!({"type": "text", "text": text}));
    }
    for (n, (name, arguments)) in (1..).zip(calls) {
        blocks.push(json!({"type": "tool_use", "id": format!("toolu_{number}_{n}"), "name": name, "input": arguments}));
    }
    let mut message = json!({
        "id": format!("msg_{number}"), "type": "message", "role": "assistant", "model": asked.model(), "content": [],
        "stop_reason": null, "stop_sequence": null, "stop_details": null,
        "usage": {
            "input_tokens": tokens.input.saturating_sub(tokens.cached + tokens.cache_written),
            "cache_creation_input_tokens": tokens.cache_written, "cache_read_input_tokens": tokens.cached,
            "output_tokens": 1,
        },
    });
    let used = json!({"thinking_tokens": tokens.thinking});
    if !asked.wants_stream() {
        message["content"] = Value::Array(blocks);
        message["stop_reason"] = json!(stop);
        message["stop_details"] = details;
        message["usage"]["output_tokens"] = json!(tokens.output);
        message["usage"]["output_tokens_details"] = used;
        return Sent::Whole(message);
    }
    let mut frames =
        vec![frame(&json!({"type": "message_start", "message": message})), frame(&json!({"type": "ping"}))];
    for (index, mut block) in blocks.into_iter().enumerate() {
        let deltas: Vec<Value> = if block["type"] == "thinking" {
            let signature = std::mem::replace(&mut block["signature"], json!(""));
            block["thinking"] = json!("");
            pieces(thinking, 12)
                .map(|piece| json!({"type": "thinking_delta", "thinking": piece}))
                .chain([json!({"type": "signature_delta", "signature": signature})])
                .collect()
        } else if block["type"].as_str().is_some_and(|kind| kind.ends_with("_tool_result")) {
            // Results of the provider's tools are not streamed in pieces.
            Vec::new()
        } else if block["type"] == "text" {
            block["text"] = json!("");
            pieces(text, 12).map(|piece| json!({"type": "text_delta", "text": piece})).collect()
        } else {
            let input = std::mem::replace(&mut block["input"], json!({})).to_string();
            // The API begins with an empty piece, and sends no more for a call without arguments.
            let input = if input == "{}" { String::new() } else { input };
            std::iter::once("")
                .chain(pieces(&input, 9))
                .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}))
                .collect()
        };
        frames.push(frame(&json!({"type": "content_block_start", "index": index, "content_block": block})));
        frames.extend(
            deltas
                .into_iter()
                .map(|delta| frame(&json!({"type": "content_block_delta", "index": index, "delta": delta}))),
        );
        frames.push(frame(&json!({"type": "content_block_stop", "index": index})));
    }
    frames.push(frame(&json!({
        "type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null, "stop_details": details},
        "usage": {"output_tokens": tokens.output, "output_tokens_details": used},
    })));
    frames.push(frame(&json!({"type": "message_stop"})));
    Sent::Stream { media: "text/event-stream; charset=utf-8", frames }
}

/// Returns the stop reason and the stop details.
fn stopped(answer: &Answer) -> (&'static str, Value) {
    match answer.stop {
        Stop::Done if answer.calls.is_empty() => ("end_turn", Value::Null),
        Stop::Done => ("tool_use", Value::Null),
        Stop::MaxTokens => ("max_tokens", Value::Null),
        Stop::Refusal | Stop::Filtered => {
            ("refusal", json!({"type": "refusal", "category": "cyber", "explanation": null}))
        }
    }
}

fn frame(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
}

pub(in crate::model_server) fn error_body(status: u16, code: &str, message: &str) -> Value {
    let usual = match status {
        400 | 422 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let kind = if code.is_empty() { usual } else { code };
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"})
}

pub(in crate::model_server) fn error_frame(message: &str) -> String {
    frame(&error_body(529, "", message))
}
