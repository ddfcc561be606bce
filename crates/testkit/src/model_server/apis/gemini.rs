//! Gemini `generateContent` and `streamGenerateContent`.

use serde_json::{Value, json};

use super::openai::call_id;
use crate::model_server::check::{Checked, ensure, filled, is_base64, is_name, tool, word};
use crate::model_server::sending::{Sent, pieces};
use crate::model_server::{Answer, RecordedRequest, Reply, Stop};

const NATIVE: [&str; 2] = ["googleSearch", "codeExecution"];

pub(in crate::model_server) fn check(body: &Value) -> Checked {
    contents(filled(body, "contents")?)?;
    let mut seen = Vec::new();
    for (at, shown) in body["tools"].as_array().into_iter().flatten().enumerate() {
        // Tools that the provider runs.
        if NATIVE.iter().any(|kind| shown[kind].is_object()) {
            continue;
        }
        for declared in filled(shown, "functionDeclarations")? {
            let place = format!("tools[{at}].functionDeclarations[{}]", seen.len());
            let name = word(declared, "name", &place)?;
            match declared.get("parametersJsonSchema") {
                Some(schema) => tool(name, schema, &mut seen, &place)?,
                None => {
                    ensure(is_name(name), || format!("{place}.name: illegal function name"))?;
                    seen.push(name.to_owned());
                }
            }
        }
    }
    for allowed in body["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"].as_array().into_iter().flatten()
    {
        ensure(seen.iter().any(|name| allowed == name), || {
            format!("allowed_function_names: {allowed} is not declared")
        })?;
    }
    let config = &body["generationConfig"];
    ensure(config.get("responseJsonSchema").is_none() || config["responseMimeType"] == "application/json", || {
        "response_json_schema requires response_mime_type application/json".into()
    })
}

fn contents(contents: &[Value]) -> Checked {
    let mut waiting: Vec<&Value> = Vec::new();
    for (at, content) in contents.iter().enumerate() {
        let place = format!("contents[{at}]");
        let role = word(content, "role", &place)?;
        ensure(["user", "model"].contains(&role), || "Please use a valid role: user, model.".into())?;
        let parts = filled(content, "parts").map_err(|error| format!("{place}.{error}"))?;
        let (mut calls, mut responses) = (Vec::new(), Vec::new());
        for (p, part) in parts.iter().enumerate() {
            let place = format!("{place}.parts[{p}]");
            if let Some(call) = part.get("functionCall") {
                ensure(role == "model" && at > 0, || {
                    format!(
                        "{place}: a function call turn comes immediately after a user turn or a function response turn"
                    )
                })?;
                ensure(is_name(word(call, "name", &place)?), || format!("{place}: illegal function name"))?;
                // Empty fields may be left out, as the API itself does.
                ensure(call.get("args").is_none_or(Value::is_object), || format!("{place}: args must be an object"))?;
                // The first call of a step has the signature.
                ensure(!calls.is_empty() || part["thoughtSignature"].is_string(), || {
                    format!("Function call is missing a thought_signature in functionCall parts: {place}")
                })?;
                calls.push(call);
            } else if let Some(response) = part.get("functionResponse") {
                ensure(role == "user", || format!("{place}: a function response is the user's"))?;
                ensure(response["response"].is_object(), || format!("{place}: response must be an object"))?;
                let parts = response["parts"].as_array().into_iter().flatten();
                // Protocol buffers accept field names in both spellings.
                let inside = |part: &Value| part.get("inlineData").or(part.get("inline_data")).cloned();
                ensure(parts.map(inside).all(|data| data.is_some_and(|data| is_bytes(&data))), || {
                    format!("{place}: parts of a response are inline data")
                })?;
                responses.push(response);
            } else if let Some(data) = part.get("inlineData") {
                ensure(is_bytes(data), || format!("{place}: not base64"))?;
            } else {
                ensure(part["text"].is_string(), || {
                    format!("{place}: required oneof field 'data' must have one initialized field")
                })?;
            }
        }
        ensure(responses.len() == waiting.len(), || {
            "Please ensure that the number of function response parts is equal to the number of function call parts \
             of the function call turn."
                .into()
        })?;
        for (call, response) in waiting.iter().zip(&responses) {
            ensure(call["name"] == response["name"] && call.get("id") == response.get("id"), || {
                format!("{place}: the response answers another call")
            })?;
        }
        waiting = calls;
    }
    ensure(waiting.is_empty(), || "a function call has no response".into())
}

/// Whether `data` holds bytes. Protocol buffers accept both alphabets of base64.
fn is_bytes(data: &Value) -> bool {
    data["data"].as_str().is_some_and(|data| is_base64(&data.replace('-', "+").replace('_', "/")))
}

pub(in crate::model_server) fn speak(asked: &RecordedRequest, reply: &Reply, number: usize) -> Sent {
    let Reply::Answer(Answer { thinking, text, calls, stop, tokens, .. }) = reply else {
        return Sent::error(reply, error_body);
    };
    let signature = format!("c2lnbmF0dXJl{number:04}");
    // In an answer without calls, the last text has the signature of the thoughts.
    let signs_text = !thinking.is_empty() && calls.is_empty();
    let finish = match stop {
        Stop::Done => "STOP",
        Stop::MaxTokens => "MAX_TOKENS",
        Stop::Refusal | Stop::Filtered => "SAFETY",
    };
    let call = |(at, (name, arguments)): (usize, &(String, Value))| {
        let mut function = json!({"name": name});
        if asked.names_calls() {
            function["id"] = json!(call_id(number, at));
        }
        // The API leaves out empty fields.
        if arguments.as_object().is_none_or(|arguments| !arguments.is_empty()) {
            function["args"] = arguments.clone();
        }
        let mut part = json!({"functionCall": function});
        if at == 0 {
            part["thoughtSignature"] = json!(signature);
        }
        part
    };
    let chunk = |parts: Vec<Value>, finish: Option<&str>| {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        let mut usage = json!({"promptTokenCount": tokens.input, "totalTokenCount": tokens.input});
        if let Some(finish) = finish {
            candidate["finishReason"] = json!(finish);
            usage["totalTokenCount"] = json!(tokens.input + tokens.output);
            usage["candidatesTokenCount"] = json!(tokens.output - tokens.thinking.min(tokens.output));
            for (key, count) in [("thoughtsTokenCount", tokens.thinking), ("cachedContentTokenCount", tokens.cached)] {
                if count > 0 {
                    usage[key] = json!(count);
                }
            }
        }
        json!({
            "candidates": [candidate], "usageMetadata": usage, "modelVersion": asked.model(),
            "responseId": format!("response-{number}"),
        })
    };
    let calls = calls.iter().enumerate().map(call);
    let thought = |text: &str| json!({"text": text, "thought": true});
    let last = |text: &str| match signs_text {
        true => json!({"text": text, "thoughtSignature": signature}),
        false => json!({"text": text}),
    };
    if !asked.wants_stream() {
        let thoughts = Some(thought(thinking)).filter(|_| !thinking.is_empty());
        let words = Some(last(text)).filter(|_| !text.is_empty());
        return Sent::Whole(chunk(thoughts.into_iter().chain(words).chain(calls).collect(), Some(finish)));
    }
    let thoughts = pieces(thinking, 12).map(|piece| chunk(vec![thought(piece)], None));
    let words = pieces(text, 12).map(|piece| chunk(vec![json!({"text": piece})], None));
    let mut chunks: Vec<Value> = thoughts.chain(words).collect();
    chunks.extend(calls.map(|call| chunk(vec![call], None)));
    chunks.push(chunk(vec![last("")], Some(finish)));
    let frames = chunks.iter().map(|chunk| format!("data: {chunk}\r\n\r\n")).collect();
    Sent::Stream { media: "text/event-stream", frames }
}

pub(in crate::model_server) fn error_body(status: u16, code: &str, message: &str) -> Value {
    let usual = match status {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    };
    json!({"error": {"code": status, "message": message, "status": if code.is_empty() { usual } else { code }}})
}

pub(in crate::model_server) fn error_frame(message: &str) -> String {
    format!("data: {}\r\n\r\n", error_body(503, "", message))
}
