//! OpenAI Responses.

use serde_json::{Value, json};

use super::openai::{call_id, error_body};
use super::tool_search::{self, LoadedNamespaces};
use crate::model_server::check::{
    Checked, answer_schema, contains_json_word, ensure, filled, is_base64, is_file, is_name, tool, word,
};
use crate::model_server::sending::{Sent, pieces};
use crate::model_server::{Answer, RecordedRequest, Reply, Stop};
use crate::rules::ApiRules;

const CREATED: u64 = 1_700_000_000;
const NATIVE: [&str; 4] = ["web_search", "file_search", "code_interpreter", "image_generation"];

pub(in crate::model_server) fn check(body: &Value) -> Checked {
    word(body, "model", "body")?;
    // A text stands for one user message.
    if body["input"].as_str().is_none_or(str::is_empty) {
        items(filled(body, "input")?)?;
    }
    if let Some(tools) = body.get("tools") {
        let mut seen = Vec::new();
        for (at, shown) in tools.as_array().ok_or("tools: must be an array")?.iter().enumerate() {
            let place = format!("tools[{at}]");
            if tool_search::is_search(shown) {
                tool_search::check_tool(shown, &place)?;
                continue;
            }
            // Tools that the provider runs.
            if NATIVE.iter().any(|kind| shown["type"] == *kind) {
                continue;
            }
            ensure(shown["type"] == "function", || format!("{place}.type: must be 'function'"))?;
            ensure(shown["strict"].is_boolean(), || format!("{place}.strict: required"))?;
            tool(word(shown, "name", &place)?, &shown["parameters"], &mut seen, &place)?;
        }
    }
    ensure(body.get("tool_choice").is_none() || body.get("tools").is_some(), || {
        "Tool choice is only allowed when 'tools' are specified".into()
    })?;
    let format = &body["text"]["format"];
    if format["type"] == "json_object" {
        let speaks = body["input"].as_array().is_none_or(|items| contains_json_word(items));
        return ensure(speaks, || {
            "Response input messages must contain the word 'json' in some form to use 'text.format' of type \
             'json_object'."
                .into()
        });
    }
    answer_schema(ApiRules::OpenAiResponses, body)?;
    ensure(
        format.is_null() || (is_name(format["name"].as_str().unwrap_or_default()) && format["schema"].is_object()),
        || "text.format: needs a name and a schema".into(),
    )
}

fn items(items: &[Value]) -> Checked {
    let mut waiting: Vec<&str> = Vec::new();
    let mut searching: Vec<&str> = Vec::new();
    let mut loaded = LoadedNamespaces::new();
    let mut dangling: Option<usize> = None;
    for (at, item) in items.iter().enumerate() {
        let place = format!("input[{at}]");
        // A message may leave out its type.
        let untyped = item.get("type").is_none() && item.get("role").is_some();
        let kind = if untyped { "message" } else { word(item, "type", &place)? };
        match kind {
            "message" => content(&item["content"], word(item, "role", &place)?, &place)?,
            "function_call" => {
                let name = word(item, "name", &place)?;
                ensure(is_name(name), || format!("{place}.name: illegal function name"))?;
                tool_search::check_namespace(item, name, &loaded)?;
                ensure(item["arguments"].is_string(), || format!("{place}.arguments: must be a string"))?;
                let id = word(item, "call_id", &place)?;
                ensure(id.len() <= 64, || format!("{place}.call_id: '{id}' is longer than 64"))?;
                waiting.push(id);
            }
            "function_call_output" => {
                let id = word(item, "call_id", &place)?;
                let call = waiting.iter().position(|waits| *waits == id);
                waiting.remove(
                    call.ok_or_else(|| format!("No tool call found for function call output with call_id {id}."))?,
                );
                content(&item["output"], "user", &place)?;
            }
            "tool_search_call" => searching.push(tool_search::check_call(item, &place)?),
            "tool_search_output" => {
                let id = word(item, "call_id", &place)?;
                let call = searching.iter().position(|waits| *waits == id);
                searching.remove(
                    call.ok_or_else(|| format!("No tool call found for tool search output with call_id {id}."))?,
                );
                tool_search::check_output(item, &mut loaded, &place)?;
            }
            "reasoning" => {
                ensure(item["encrypted_content"].is_string(), || {
                    format!(
                        "Item with id '{}' not found. Items are not persisted when `store` is set to false.",
                        item["id"]
                    )
                })?;
            }
            _ => {}
        }
        if kind == "reasoning" {
            dangling = dangling.or(Some(at));
        } else if kind == "message" && item["role"] != "assistant" || kind.ends_with("_output") {
            ensure(dangling.is_none(), || following(dangling.unwrap_or_default()))?;
        } else {
            dangling = None;
        }
    }
    ensure(dangling.is_none(), || following(dangling.unwrap_or_default()))?;
    ensure(waiting.is_empty(), || format!("No tool output found for function call {}.", waiting.join(", ")))?;
    ensure(searching.is_empty(), || format!("No tool output found for tool search call {}.", searching.join(", ")))
}

fn following(at: usize) -> String {
    format!("input[{at}]: item of type 'reasoning' was provided without its required following item.")
}

fn content(content: &Value, role: &str, place: &str) -> Checked {
    let word = if role == "assistant" { "output_text" } else { "input_text" };
    match content {
        Value::String(_) => Ok(()),
        Value::Array(parts) if !parts.is_empty() => parts.iter().try_for_each(|part| match part["type"].as_str() {
            Some(kind) if kind == word => {
                ensure(part["text"].is_string(), || format!("{place}.content: text is missing"))
            }
            Some("refusal") => ensure(role == "assistant" && part["refusal"].is_string(), || {
                format!("{place}.content: a refusal is the model's, with its words")
            }),
            Some("input_image") => {
                let url = part["image_url"].as_str().unwrap_or_default();
                let data =
                    url.strip_prefix("data:image/").and_then(|rest| rest.split_once(";base64,")).map(|(_, data)| data);
                ensure(role == "user" && data.is_some_and(is_base64), || format!("{place}.content: not an image URL"))
            }
            Some("input_file") => ensure(role == "user" && is_file(part), || {
                format!("{place}.content: a file needs 'filename' and 'file_data'")
            }),
            other => Err(format!("{place}.content: Invalid value: {other:?}. Supported values are: '{word}'")),
        }),
        _ => Err(format!("{place}.content: must be a string or a non-empty array of parts")),
    }
}

pub(in crate::model_server) fn speak(asked: &RecordedRequest, reply: &Reply, number: usize) -> Sent {
    let Reply::Answer(Answer { thinking, native, text, calls, stop, tokens }) = reply else {
        return Sent::error(reply, error_body);
    };
    let refused = *stop == Stop::Refusal;
    let part = |text: &str| match refused {
        true => json!({"type": "refusal", "refusal": text}),
        false => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
    };
    let (status, kind, incomplete) = match stop {
        Stop::Done | Stop::Refusal => ("completed", "response.completed", Value::Null),
        Stop::MaxTokens => ("incomplete", "response.incomplete", json!({"reason": "max_output_tokens"})),
        Stop::Filtered => ("incomplete", "response.incomplete", json!({"reason": "content_filter"})),
    };
    let mut output = Vec::new();
    if !thinking.is_empty() {
        output.push(json!({
            "id": format!("rs_{number}"), "type": "reasoning", "summary": [{"type": "summary_text", "text": thinking}],
            "encrypted_content": format!("ZW5jcnlwdGVk{number}"),
        }));
    }
    output.extend(native.iter().cloned());
    if !text.is_empty() {
        output.push(json!({
            "id": format!("msg_{number}"), "type": "message", "status": status, "role": "assistant",
            "content": [part(text)],
        }));
    }
    for (n, (name, arguments)) in calls.iter().enumerate() {
        let id = format!("fc_{number}_{n}");
        output.push(tool_search::call(&asked.body, &id, &call_id(number, n), name, arguments));
    }
    let response = |status: &str, incomplete: &Value, output: &[Value], usage: Value| {
        let asked_for = |key: &str, default: Value| asked.body.get(key).cloned().unwrap_or(default);
        json!({
            "id": format!("resp_{number}"), "object": "response", "created_at": CREATED, "status": status,
            "error": null, "incomplete_details": incomplete, "model": asked.model(), "output": output,
            "parallel_tool_calls": true, "store": false, "usage": usage,
            "tools": asked_for("tools", json!([])), "tool_choice": asked_for("tool_choice", json!("auto")),
        })
    };
    let usage = json!({
        "input_tokens": tokens.input, "output_tokens": tokens.output, "total_tokens": tokens.input + tokens.output,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.cache_written},
        "output_tokens_details": {"reasoning_tokens": tokens.thinking},
    });
    let ended = response(status, &incomplete, &output, usage);
    if !asked.wants_stream() {
        return Sent::Whole(ended);
    }
    let begun = response("in_progress", &Value::Null, &[], Value::Null);
    let mut events = vec![
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.in_progress", "response": begun}),
    ];
    for (index, item) in output.iter().enumerate() {
        let mut start = item.clone();
        let id = &item["id"];
        if item["type"] == "reasoning" {
            (start["summary"], start["encrypted_content"]) = (json!([]), json!(""));
            let of = |kind: &str, key: &str, value: Value| {
                let kind = format!("response.reasoning_summary_{kind}");
                json!({"type": kind, "item_id": id, "output_index": index, "summary_index": 0, key: value})
            };
            let summary = |text: &str| json!({"type": "summary_text", "text": text});
            events.push(json!({"type": "response.output_item.added", "output_index": index, "item": start}));
            events.push(of("part.added", "part", summary("")));
            events.extend(pieces(thinking, 12).map(|piece| of("text.delta", "delta", json!(piece))));
            events.push(of("text.done", "text", json!(thinking)));
            events.push(of("part.done", "part", summary(thinking)));
            events.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
            continue;
        }
        start["status"] = json!("in_progress");
        if native.contains(item) {
            events.push(json!({"type": "response.output_item.added", "output_index": index, "item": start}));
            events.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
            continue;
        }
        if item["type"] == "message" {
            start["content"] = json!([]);
            let of = |kind: &str, key: &str, value: Value| {
                let kind = format!("response.{kind}");
                let mut event =
                    json!({"type": kind, "item_id": id, "output_index": index, "content_index": 0, key: value});
                // Text events have a list of probabilities, refusal events have none.
                if kind.starts_with("response.output_text.") {
                    event["logprobs"] = json!([]);
                }
                event
            };
            let (words, whole) = if refused { ("refusal", "refusal") } else { ("output_text", "text") };
            events.push(json!({"type": "response.output_item.added", "output_index": index, "item": start}));
            events.push(of("content_part.added", "part", part("")));
            events.extend(pieces(text, 12).map(|piece| of(&format!("{words}.delta"), "delta", json!(piece))));
            events.push(of(&format!("{words}.done"), whole, json!(text)));
            events.push(of("content_part.done", "part", part(text)));
        } else if item["type"] == "tool_search_call" {
            start["arguments"] = json!({});
            events.push(json!({"type": "response.output_item.added", "output_index": index, "item": start}));
        } else {
            start["arguments"] = json!("");
            let arguments = item["arguments"].as_str().unwrap_or_default();
            events.push(json!({"type": "response.output_item.added", "output_index": index, "item": start}));
            events.extend(pieces(arguments, 9).map(|piece| {
                json!({
                    "type": "response.function_call_arguments.delta", "item_id": id, "output_index": index,
                    "delta": piece,
                })
            }));
            events.push(json!({
                "type": "response.function_call_arguments.done", "item_id": id, "output_index": index,
                "name": item["name"], "arguments": arguments,
            }));
        }
        events.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
    }
    events.push(json!({"type": kind, "response": ended}));
    let frames = events.into_iter().enumerate().map(|(number, mut event)| {
        event["sequence_number"] = json!(number);
        frame(&event)
    });
    Sent::Stream { media: "text/event-stream; charset=utf-8", frames: frames.collect() }
}

fn frame(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
}

pub(in crate::model_server) fn error_frame(message: &str) -> String {
    frame(
        &json!({"type": "error", "error": {"type": "server_error", "code": "server_error", "message": message, "param": null}}),
    )
}
