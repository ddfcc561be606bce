//! Ollama `/api/chat`.

use serde_json::{Value, json};

use crate::model_server::check::{Checked, answer_schema, ensure, is_base64, word};
use crate::model_server::sending::{Sent, pieces};
use crate::model_server::{Answer, RecordedRequest, Reply, Stop};
use crate::rules::ApiRules;

const CREATED: &str = "2026-11-20T09:00:00.000000Z";

pub(in crate::model_server) fn check(body: &Value) -> Checked {
    word(body, "model", "body")?;
    for (at, message) in body["messages"].as_array().ok_or("messages: must be an array")?.iter().enumerate() {
        let place = format!("messages[{at}]");
        let role = word(message, "role", &place)?;
        ensure(["system", "user", "assistant", "tool"].contains(&role), || format!("{place}: invalid role: {role}"))?;
        ensure(message.get("content").is_none_or(Value::is_string), || {
            format!("{place}: cannot unmarshal content into Go struct field of type string")
        })?;
        let images = message.get("images").map_or(Some(&[][..]), |images| images.as_array().map(Vec::as_slice));
        ensure(images.is_some_and(|images| images.iter().all(|image| image.as_str().is_some_and(is_base64))), || {
            format!("{place}: illegal base64 data in images")
        })?;
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            word(&call["function"], "name", &place)?;
            ensure(call["function"]["arguments"].is_object(), || {
                format!("{place}: cannot unmarshal tool call arguments into an object")
            })?;
        }
    }
    answer_schema(ApiRules::Ollama, body)?;
    for (at, tool) in body["tools"].as_array().into_iter().flatten().enumerate() {
        let place = format!("tools[{at}]");
        let function = &tool["function"];
        word(function, "name", &place)?;
        ensure(function["parameters"]["type"].is_string(), || {
            format!("{place}: cannot unmarshal parameters.type into a string")
        })?;
        ensure(
            function["parameters"]["properties"].as_object().is_none_or(|all| all.values().all(Value::is_object)),
            || format!("{place}: cannot unmarshal a property into an object"),
        )?;
    }
    Ok(())
}

pub(in crate::model_server) fn speak(asked: &RecordedRequest, reply: &Reply, _number: usize) -> Sent {
    let Reply::Answer(Answer { thinking, text, calls, stop, tokens, .. }) = reply else {
        return Sent::error(reply, error_body);
    };
    let reason = if *stop == Stop::MaxTokens { "length" } else { "stop" };
    let line =
        |message: Value| json!({"model": asked.model(), "created_at": CREATED, "message": message, "done": false});
    let call = |(name, arguments): &(String, Value)| json!({"function": {"name": name, "arguments": arguments}});
    let finish = |mut last: Value| {
        for (key, value) in [
            ("done", json!(true)),
            ("done_reason", json!(reason)),
            ("total_duration", json!(4_883_583_458_u64)),
            ("load_duration", json!(1_334_875)),
            ("prompt_eval_count", json!(tokens.input)),
            ("prompt_eval_duration", json!(342_546_000)),
            ("eval_count", json!(tokens.output)),
            ("eval_duration", json!(4_535_599_000_u64)),
        ] {
            last[key] = value;
        }
        last
    };
    if !asked.wants_stream() {
        let mut message = json!({"role": "assistant", "content": text});
        if !thinking.is_empty() {
            message["thinking"] = json!(thinking);
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.iter().map(call).collect();
        }
        return Sent::Whole(finish(line(message)));
    }
    let thoughts =
        pieces(thinking, 12).map(|piece| line(json!({"role": "assistant", "content": "", "thinking": piece})));
    let words = pieces(text, 12).map(|piece| line(json!({"role": "assistant", "content": piece})));
    let mut frames: Vec<Value> = thoughts.chain(words).collect();
    frames
        .extend(calls.iter().map(|made| line(json!({"role": "assistant", "content": "", "tool_calls": [call(made)]}))));
    frames.push(finish(line(json!({"role": "assistant", "content": ""}))));
    Sent::Stream { media: "application/x-ndjson", frames: frames.iter().map(|frame| format!("{frame}\n")).collect() }
}

pub(in crate::model_server) fn error_body(_status: u16, _code: &str, message: &str) -> Value {
    json!({"error": message})
}

pub(in crate::model_server) fn error_frame(message: &str) -> String {
    format!("{}\n", error_body(500, "", message))
}
