//! Checks the order of the events in a stream, with one state machine for each served model API.

use std::collections::BTreeMap;

use serde_json::Value;

type Checked = Result<(), String>;

/// Returns the events of a stream as name and data, without comments.
fn events(stream: &str) -> Result<Vec<(String, String)>, String> {
    let mut events = Vec::new();
    for frame in stream.split("\n\n").filter(|frame| !frame.is_empty()) {
        let (mut name, mut data) = (String::new(), String::new());
        for line in frame.lines() {
            match line.split_once(": ") {
                Some(("event", value)) => value.clone_into(&mut name),
                Some(("data", value)) => data.push_str(value),
                _ if line.starts_with(':') => {}
                _ => return Err(format!("no line of an event: {line}")),
            }
        }
        if !data.is_empty() {
            events.push((name, data));
        }
    }
    if !stream.is_empty() && !stream.ends_with("\n\n") {
        return Err("the stream ends within an event".into());
    }
    Ok(events)
}

fn json(data: &str) -> Result<Value, String> {
    serde_json::from_str(data).map_err(|error| format!("{error}: {data}"))
}

fn need(holds: bool, what: &str, event: &Value) -> Checked {
    if holds { Ok(()) } else { Err(format!("{what}: {event}")) }
}

/// Checks a stream of the API served at this path.
///
/// # Errors
/// A message about the event that is out of order.
pub fn check_stream(path: &str, stream: &str) -> Checked {
    match path {
        "/v1/chat/completions" => check_chat(stream),
        "/v1/responses" => check_responses(stream),
        "/v1/messages" => check_messages(stream),
        other => Err(format!("no stream is served at {other}")),
    }
}

/// Checks a stream of Chat Completions.
///
/// # Errors
/// A message about the event that is out of order.
pub fn check_chat(stream: &str) -> Checked {
    let events = events(stream)?;
    let (mut id, mut finished, mut done, mut calls, mut said_role) = (None, false, false, 0, false);
    let (mut failed, mut counted, mut counts) = (false, false, false);
    for (name, data) in &events {
        if done || failed {
            return Err(format!("after the end: {data}"));
        }
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let event = json(data)?;
        need(name.is_empty(), "an event has a name", &event)?;
        if event.get("error").is_some() {
            need(!finished, "an error after the end", &event)?;
            need(event["error"]["message"].is_string(), "an error without a message", &event)?;
            failed = true;
            continue;
        }
        need(event["object"] == "chat.completion.chunk", "no chunk", &event)?;
        need(id.get_or_insert_with(|| event["id"].clone()) == &event["id"], "another id", &event)?;
        let Some(choice) = event["choices"].get(0) else {
            need(finished && !counted && event["usage"].is_object(), "no choice before the end", &event)?;
            counted = true;
            continue;
        };
        need(!finished, "a choice after the finish reason", &event)?;
        let has_role = choice["delta"]["role"] == "assistant";
        need(has_role != std::mem::replace(&mut said_role, true), "the role is not in the first chunk alone", &event)?;
        counts |= event.get("usage").is_some();
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().ok_or("a call has no index")?;
            if call.get("id").is_some() {
                need(index == calls, "a call is out of order", &event)?;
                need(call["function"]["name"].is_string(), "a call has no name", &event)?;
                calls += 1;
            } else {
                need(index + 1 == calls, "arguments of a call that is not the last", &event)?;
            }
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            need(reason != "tool_calls" || calls > 0, "tool_calls without calls", &event)?;
            finished = true;
        }
    }
    if failed || (finished && done && counted == counts) { Ok(()) } else { Err("the stream has no end".into()) }
}

/// Checks a stream of Messages.
///
/// # Errors
/// A message about the event that is out of order.
pub fn check_messages(stream: &str) -> Checked {
    let (mut started, mut open, mut next, mut settled, mut stopped) = (false, None::<(u64, String)>, 0, false, false);
    let mut input = String::new();
    for (name, data) in events(stream)? {
        let event = json(&data)?;
        need(event["type"] == name, "name and type differ", &event)?;
        if name == "ping" {
            continue;
        }
        if name == "error" {
            need(event["error"]["type"].is_string(), "no error", &event)?;
            need(!stopped, "an error after the end", &event)?;
            stopped = true;
            continue;
        }
        need(!stopped, "an event after the end", &event)?;
        need(started != (name == "message_start"), "message_start is not the first event, or comes twice", &event)?;
        match name.as_str() {
            "message_start" => {
                started = true;
                need(event["message"]["content"] == serde_json::json!([]), "content at the start", &event)?;
                need(event["message"]["usage"]["input_tokens"].is_u64(), "no usage", &event)?;
            }
            "content_block_start" => {
                need(open.is_none() && !settled, "a block within another or after the end", &event)?;
                need(event["index"] == next, "the index is not the next", &event)?;
                let kind = event["content_block"]["type"].as_str().ok_or("a block has no type")?;
                open = Some((next, kind.to_owned()));
                input.clear();
                next += 1;
            }
            "content_block_delta" => {
                let Some((index, kind)) = &open else { return Err(format!("no block is open: {event}")) };
                need(event["index"] == *index, "a delta of another block", &event)?;
                let delta = event["delta"]["type"].as_str().unwrap_or_default();
                let fits = match kind.as_str() {
                    "text" => delta == "text_delta",
                    "thinking" => matches!(delta, "thinking_delta" | "signature_delta"),
                    _ => delta == "input_json_delta",
                };
                need(fits, "the delta does not fit its block", &event)?;
                input.push_str(event["delta"]["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" => {
                let Some((index, kind)) = open.take() else { return Err(format!("no block is open: {event}")) };
                need(event["index"] == index, "another block stops", &event)?;
                let whole = input.is_empty() || json(&input)?.is_object();
                need(!kind.ends_with("tool_use") || whole, "the input is no object", &event)?;
            }
            "message_delta" => {
                need(open.is_none() && !settled, "a block is open, or this is the second", &event)?;
                need(event["delta"]["stop_reason"].is_string(), "no stop reason", &event)?;
                need(event["usage"]["output_tokens"].is_u64(), "no usage", &event)?;
                settled = true;
            }
            "message_stop" => {
                need(settled, "no message_delta came before", &event)?;
                stopped = true;
            }
            _ => return Err(format!("no event of this API: {event}")),
        }
    }
    if stopped { Ok(()) } else { Err("the stream has no end".into()) }
}

/// Checks a stream of Responses.
///
/// # Errors
/// A message about the event that is out of order.
pub fn check_responses(stream: &str) -> Checked {
    let mut open: BTreeMap<u64, (Value, String)> = BTreeMap::new();
    let mut done: BTreeMap<u64, Value> = BTreeMap::new();
    let (mut next, mut id, mut ended) = (0_u64, Value::Null, false);
    for (sequence, (name, data)) in events(stream)?.into_iter().enumerate() {
        let event = json(&data)?;
        need(!ended, "an event after the end", &event)?;
        need(event["type"] == name, "name and type differ", &event)?;
        need(event["sequence_number"] == sequence, "the sequence number is not the next", &event)?;
        let index = event["output_index"].as_u64();
        match (sequence, name.as_str()) {
            (_, "error") => {
                need(event["message"].is_string(), "an error without a message", &event)?;
                ended = true;
            }
            (0, "response.created") => id = event["response"]["id"].clone(),
            (0, _) => return Err(format!("response.created is not the first event: {event}")),
            (1, "response.in_progress") => {}
            (_, "response.output_item.added") => {
                need(index == Some(next), "the index is not the next", &event)?;
                open.insert(next, (event["item"]["id"].clone(), String::new()));
                next += 1;
            }
            (_, "response.output_item.done") => {
                let item = index.and_then(|index| open.remove(&index)).ok_or_else(|| format!("not open: {event}"))?;
                need(event["item"]["id"] == item.0, "another id", &event)?;
                let said = ["/arguments", "/input", "/content/0/text", "/summary/0/text"];
                let whole = said.iter().find_map(|place| event["item"].pointer(place)).and_then(Value::as_str);
                need(item.1.is_empty() || whole == Some(&item.1), "the deltas are not the item", &event)?;
                done.insert(index.unwrap_or_default(), event["item"].clone());
            }
            (_, "response.completed" | "response.incomplete" | "response.failed" | "response.in_progress") => {
                need(event["response"]["id"] == id, "another id", &event)?;
                let is_broken = name == "response.failed" || event["response"]["status"] == "cancelled";
                need(open.is_empty() || is_broken, "items are open", &event)?;
                let output: Vec<Value> = done.values().cloned().collect();
                let same = event["response"]["output"] == Value::Array(output);
                need(same || is_broken, "the output is not the items", &event)?;
                ended = true;
            }
            (_, kind) => {
                let item = index.and_then(|index| open.get_mut(&index)).ok_or_else(|| format!("not open: {event}"))?;
                need(event["item_id"] == item.0, "another id", &event)?;
                if kind.ends_with(".delta") {
                    item.1.push_str(event["delta"].as_str().unwrap_or_default());
                }
            }
        }
    }
    if ended { Ok(()) } else { Err("the stream has no end".into()) }
}
