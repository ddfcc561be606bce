//! OpenAI Chat Completions.

use serde_json::{Value, json};

use crate::model_server::check::{
    Checked, answer_schema, contains_json_word, ensure, filled, is_base64, is_file, is_name, tool, word,
};
use crate::model_server::sending::{Sent, pieces};
use crate::model_server::{Answer, RecordedRequest, Reply, Stop};
use crate::rules::ApiRules;

const CREATED: u64 = 1_700_000_000;

pub(in crate::model_server) fn check(body: &Value) -> Checked {
    word(body, "model", "body")?;
    messages(filled(body, "messages")?)?;
    if let Some(tools) = body.get("tools") {
        let mut seen = Vec::new();
        for (at, wrapped) in tools
            .as_array()
            .filter(|tools| !tools.is_empty())
            .ok_or("tools: must be a non-empty array")?
            .iter()
            .enumerate()
        {
            let place = format!("tools[{at}]");
            ensure(wrapped["type"] == "function", || format!("{place}.type: must be 'function'"))?;
            let function = &wrapped["function"];
            tool(word(function, "name", &place)?, &function["parameters"], &mut seen, &place)?;
        }
    }
    ensure(body.get("tool_choice").is_none() || body.get("tools").is_some(), || {
        "'tool_choice' is only allowed when 'tools' are specified".into()
    })?;
    answer_schema(ApiRules::OpenAiChat, body)?;
    ensure(body["response_format"]["type"] != "json_object" || contains_json_word(filled(body, "messages")?), || {
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.".into()
    })?;
    ensure(body.get("stream_options").is_none() || body["stream"] == true, || {
        "'stream_options' is only allowed when 'stream' is enabled".into()
    })
}

fn messages(messages: &[Value]) -> Checked {
    let mut waiting: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let place = format!("messages[{at}]");
        let role = word(message, "role", &place)?;
        if role == "tool" {
            let id = word(message, "tool_call_id", &place)?;
            let call = waiting.iter().position(|waits| *waits == id);
            waiting.remove(call.ok_or_else(|| {
                format!("{place}: a 'tool' message must respond to preceding 'tool_calls'; none has id '{id}'")
            })?);
        } else {
            ensure(waiting.is_empty(), || {
                format!(
                    "{place}: 'tool_calls' must be followed by tool messages for each 'tool_call_id'; missing: {}",
                    waiting.join(", ")
                )
            })?;
        }
        let calls = message["tool_calls"].as_array();
        match role {
            "system" | "developer" | "user" | "tool" => {}
            "assistant" => {
                ensure(message.get("tool_calls").is_none() || calls.is_some_and(|calls| !calls.is_empty()), || {
                    format!("{place}.tool_calls: must not be empty")
                })?;
                for call in calls.into_iter().flatten() {
                    ensure(call["type"] == "function", || format!("{place}.tool_calls: type must be 'function'"))?;
                    ensure(is_name(word(&call["function"], "name", &place)?), || {
                        format!("{place}.tool_calls: illegal function name")
                    })?;
                    ensure(call["function"]["arguments"].is_string(), || {
                        format!("{place}.tool_calls: function.arguments must be a string")
                    })?;
                    let id = word(call, "id", &place)?;
                    ensure(id.len() <= 40, || format!("{place}.tool_calls: id '{id}' is longer than 40"))?;
                    waiting.push(id);
                }
            }
            other => return Err(format!("{place}.role: '{other}' is not a role")),
        }
        content(&message["content"], role, calls.is_some() || message["refusal"].is_string(), &place)?;
    }
    ensure(waiting.is_empty(), || format!("no tool messages respond to tool_call_ids: {}", waiting.join(", ")))
}

fn content(content: &Value, role: &str, may_be_null: bool, place: &str) -> Checked {
    match content {
        Value::String(_) => Ok(()),
        Value::Null => ensure(may_be_null, || format!("{place}.content: null is only allowed with 'tool_calls'")),
        Value::Array(parts) if !parts.is_empty() => parts.iter().try_for_each(|part| match part["type"].as_str() {
            Some("text") => ensure(part["text"].is_string(), || format!("{place}.content: a text part needs 'text'")),
            Some("image_url") => {
                ensure(role == "user", || format!("{place}.content: images are only allowed in user messages"))?;
                let url = part["image_url"]["url"].as_str().unwrap_or_default();
                let data =
                    url.strip_prefix("data:image/").and_then(|rest| rest.split_once(";base64,")).map(|(_, data)| data);
                ensure(url.starts_with("https://") || data.is_some_and(is_base64), || {
                    format!("{place}.content: not an image URL")
                })
            }
            Some("file") => ensure(role == "user" && is_file(&part["file"]), || {
                format!("{place}.content: a file needs 'filename' and 'file_data'")
            }),
            other => Err(format!("{place}.content: part type {other:?} is not supported")),
        }),
        _ => Err(format!("{place}.content: must be a string or a non-empty array of parts")),
    }
}

pub(in crate::model_server) fn speak(asked: &RecordedRequest, reply: &Reply, number: usize) -> Sent {
    let Reply::Answer(Answer { thinking, text, calls, stop, tokens, .. }) = reply else {
        return Sent::error(reply, error_body);
    };
    let id = format!("chatcmpl-{number}");
    let finish = match stop {
        Stop::MaxTokens => "length",
        Stop::Filtered => "content_filter",
        Stop::Done if !calls.is_empty() => "tool_calls",
        Stop::Done | Stop::Refusal => "stop",
    };
    let words = if *stop == Stop::Refusal { "refusal" } else { "content" };
    let usage = json!({
        "prompt_tokens": tokens.input, "completion_tokens": tokens.output, "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.cache_written},
        "completion_tokens_details": {"reasoning_tokens": tokens.thinking},
    });
    let call_ids: Vec<String> = (0..calls.len()).map(|n| call_id(number, n)).collect();
    if !asked.wants_stream() {
        let mut message = json!({"role": "assistant", "content": null, "refusal": null});
        if !text.is_empty() || calls.is_empty() {
            message[words] = json!(text);
        }
        if !thinking.is_empty() {
            message["reasoning_content"] = json!(thinking);
        }
        if !calls.is_empty() {
            let call = |((name, arguments), id): (&(String, Value), &String)| {
                let function = json!({"name": name, "arguments": arguments.to_string()});
                json!({"id": id, "type": "function", "function": function})
            };
            message["tool_calls"] = calls.iter().zip(&call_ids).map(call).collect();
        }
        return Sent::Whole(json!({
            "id": id, "object": "chat.completion", "created": CREATED, "model": asked.model(),
            "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish}], "usage": usage,
        }));
    }
    let with_usage = asked.body["stream_options"]["include_usage"] == true;
    let frame = |choices: Value, usage: Value| {
        let mut chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": CREATED, "model": asked.model(), "choices": choices,
        });
        if with_usage {
            chunk["usage"] = usage;
        }
        format!("data: {chunk}\n\n")
    };
    let delta = |delta: Value| {
        frame(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]), Value::Null)
    };
    let mut first = json!({"role": "assistant", "content": null, "refusal": null});
    if !text.is_empty() {
        first[words] = json!("");
    }
    let mut frames = vec![delta(first)];
    frames.extend(pieces(thinking, 12).map(|piece| delta(json!({"reasoning_content": piece}))));
    frames.extend(pieces(text, 12).map(|piece| delta(json!({words: piece}))));
    for (index, ((name, arguments), id)) in calls.iter().zip(&call_ids).enumerate() {
        let begin = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        frames.push(delta(json!({"tool_calls": [begin]})));
        for piece in pieces(&arguments.to_string(), 9) {
            frames.push(delta(json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})));
        }
    }
    frames.push(frame(json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": finish}]), Value::Null));
    if with_usage {
        frames.push(frame(json!([]), usage));
    }
    frames.push("data: [DONE]\n\n".into());
    Sent::Stream { media: "text/event-stream; charset=utf-8", frames }
}

/// Returns the id of call `n`, from zero, of an answer.
pub(in crate::model_server) fn call_id(number: usize, n: usize) -> String {
    format!("call_{number}_{}", n + 1)
}

pub(in crate::model_server) fn error_body(status: u16, code: &str, message: &str) -> Value {
    let kind = match status {
        400..=428 | 430..=499 => "invalid_request_error",
        429 => "rate_limit_error",
        _ => "server_error",
    };
    let code = if code.is_empty() { Value::Null } else { json!(code) };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

pub(in crate::model_server) fn error_frame(message: &str) -> String {
    format!("data: {}\n\n", error_body(500, "", message))
}
