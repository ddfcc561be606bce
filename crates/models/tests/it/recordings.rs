//! Answers written after the APIs' documentation and, where they are, recordings of real ones. What they hold is found by a walk over their JSON that knows nothing of
//! our decoders; every recorded call must come out with equal arguments, and nothing else as a call.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelEvent, ModelResponse};
use toolwright_models::{Api, Decoder};
use toolwright_testkit::test_data;

/// One call: name and arguments.
type Found = (String, Value);

/// The fixtures, and the recordings of the test data.
fn recordings() -> Vec<PathBuf> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folders = std::iter::once(fixtures).chain(test_data("tool_calls/api_recordings"));
    let apis = folders.flat_map(|folder| entries(&folder)).filter(|path| path.is_dir());
    let mut files: Vec<PathBuf> = apis.flat_map(|folder| entries(&folder)).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "json" || end == "txt"));
    files.sort();
    files
}

/// The values of a recording. A line that lost its last bracket gets it back.
fn values(text: &str) -> Vec<Value> {
    if let Ok(whole) = serde_json::from_str::<Value>(text) {
        return vec![whole];
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| serde_json::from_str(line).or_else(|_| serde_json::from_str(&format!("{line}}}"))).unwrap())
        .collect()
}

fn api_of(values: &[Value]) -> Api {
    let first = &values[0];
    let kind = first["type"].as_str().unwrap_or_default();
    if first["object"] == "response" || kind.starts_with("response.") {
        Api::OpenAiResponses
    } else if first.get("candidates").is_some() || first.get("event_type").is_some() || first["object"] == "interaction"
    {
        Api::Gemini
    } else if first.get("choices").is_some() {
        Api::OpenAiChat
    } else {
        assert!(kind.starts_with("message"), "{first}");
        Api::Anthropic
    }
}

fn parsed(arguments: &Value) -> Value {
    match arguments {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        Value::Null => json!({}),
        other => other.clone(),
    }
}

fn name(value: &Value) -> String {
    value["name"].as_str().unwrap().to_owned()
}

fn expected(api: Api, values: &[Value]) -> Vec<Found> {
    match api {
        Api::OpenAiResponses => {
            let done = values.iter().filter(|value| value["type"] == "response.output_item.done").map(|v| &v["item"]);
            let whole = values.iter().flat_map(|value| value["output"].as_array().into_iter().flatten());
            done.chain(whole)
                .filter(|item| item["type"] == "function_call" && item["status"] != "incomplete")
                .map(|item| (name(item), parsed(&item["arguments"])))
                .collect()
        }
        Api::Anthropic => anthropic(values),
        Api::OpenAiChat => {
            let mut calls: Vec<(String, String)> = Vec::new();
            let choices = values.iter().flat_map(|value| value["choices"].as_array().into_iter().flatten());
            let deltas = choices.map(|choice| choice.get("delta").unwrap_or(&choice["message"]));
            for call in deltas.flat_map(|delta| delta["tool_calls"].as_array().into_iter().flatten()) {
                let function = &call["function"];
                if call["id"].is_string() {
                    calls.push((name(function), String::new()));
                }
                calls.last_mut().unwrap().1.push_str(function["arguments"].as_str().unwrap());
            }
            calls.into_iter().map(|(name, arguments)| (name, parsed(&json!(arguments)))).collect()
        }
        Api::Gemini if values[0].get("candidates").is_some() => gemini(values),
        Api::Gemini => interaction(values),
        Api::Ollama => vec![],
    }
}

/// The items that the client is to run and that are no function calls: only this API has any here.
fn others(values: &[Value]) -> Vec<String> {
    let done = values.iter().filter(|value| value["type"] == "response.output_item.done").map(|value| &value["item"]);
    let whole = values.iter().flat_map(|value| value["output"].as_array().into_iter().flatten());
    done.chain(whole)
        .filter(|item| match item["type"].as_str().unwrap_or_default() {
            "custom_tool_call" | "local_shell_call" | "apply_patch_call" | "mcp_approval_request" => true,
            "shell_call" => item["environment"]["type"] != "container_reference",
            "tool_search_call" => item["execution"] == "client",
            _ => false,
        })
        .map(|item| item["type"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// A message that begins amid another takes its place; one after another adds to it.
fn anthropic(values: &[Value]) -> Vec<Found> {
    let mut calls = Vec::new();
    let mut before = 0;
    for (at, value) in values.iter().enumerate() {
        match value["type"].as_str() {
            Some("message_start") => calls.truncate(before),
            Some("message_stop") => before = calls.len(),
            _ => {}
        }
        for block in value["content"].as_array().or(value["message"]["content"].as_array()).into_iter().flatten() {
            if block["type"] == "tool_use" {
                calls.push((name(block), block["input"].clone()));
            }
        }
        let block = &value["content_block"];
        if block["type"] == "tool_use" {
            let mut input = String::new();
            for later in values[at..].iter().filter(|later| later["index"] == value["index"]) {
                input.push_str(later["delta"]["partial_json"].as_str().unwrap_or_default());
                if later["type"] == "content_block_stop" {
                    break;
                }
            }
            calls.push((name(block), if input.is_empty() { block["input"].clone() } else { parsed(&json!(input)) }));
        }
    }
    calls
}

fn gemini(values: &[Value]) -> Vec<Found> {
    let mut calls: Vec<(String, Value)> = Vec::new();
    let parts =
        values.iter().flat_map(|value| value["candidates"][0]["content"]["parts"].as_array().into_iter().flatten());
    for call in parts.filter_map(|part| part.get("functionCall")) {
        if call["name"].is_string() {
            calls.push((name(call), call.get("args").cloned().unwrap_or(json!({}))));
        }
        for arg in call["partialArgs"].as_array().into_iter().flatten() {
            // `$.a.b[0].c` as the pointer `/a/b/0/c`, step by step.
            let path = arg["jsonPath"].as_str().unwrap()[2..].replace('[', ".").replace(']', "");
            let mut place = &mut calls.last_mut().unwrap().1;
            for step in path.split('.') {
                match step.parse::<usize>() {
                    Ok(at) => {
                        if place.is_null() {
                            *place = json!([]);
                        }
                        let list = place.as_array_mut().unwrap();
                        if list.len() <= at {
                            list.resize(at + 1, Value::Null);
                        }
                        place = &mut list[at];
                    }
                    Err(_) => {
                        if place.is_null() {
                            *place = Value::Object(Map::new());
                        }
                        place = place.as_object_mut().unwrap().entry(step).or_insert(Value::Null);
                    }
                }
            }
            match arg["stringValue"].as_str() {
                Some(piece) => *place = json!(place.as_str().unwrap_or_default().to_owned() + piece),
                None => *place = arg.get("numberValue").or(arg.get("boolValue")).cloned().unwrap_or_default(),
            }
        }
    }
    calls
}

fn interaction(values: &[Value]) -> Vec<Found> {
    let whole = values[0]["steps"].as_array().into_iter().flatten();
    let mut calls: Vec<Found> = whole
        .filter(|step| step["type"] == "function_call")
        .map(|step| (name(step), step["arguments"].clone()))
        .collect();
    for start in values.iter().filter(|value| value["step"]["type"] == "function_call") {
        let deltas = values
            .iter()
            .filter(|value| value["delta"]["type"] == "arguments_delta" && value["index"] == start["index"]);
        let written: String = deltas.map(|value| value["delta"]["arguments"].as_str().unwrap()).collect();
        calls.push((name(&start["step"]), parsed(&json!(written))));
    }
    calls
}

/// What an answer gives, whether it ended well or with an error.
fn decode(api: Api, bytes: &[u8], chunk: usize, make: fn(Api) -> Decoder) -> (ModelResponse, Option<String>) {
    let mut decoder = make(api);
    let mut calls = Vec::new();
    let mut sink = |event| {
        if let ModelEvent::Call(call) = event {
            calls.push(call);
        }
    };
    bytes.chunks(chunk).for_each(|piece| decoder.feed(piece, &mut sink));
    decoder.end(&mut sink);
    match decoder.finish() {
        Ok(answer) => {
            assert_eq!(answer.calls, calls);
            (answer, None)
        }
        Err(error) => (error.partial.map(|partial| *partial).unwrap_or_default(), Some(error.message)),
    }
}

fn sse(text: &str) -> String {
    text.lines().filter(|line| !line.is_empty()).map(|line| format!("data: {line}\r\n\r\n")).collect()
}

#[test]
fn every_call_is_found_at_every_chunking() {
    let files = recordings();
    assert!(files.len() >= 22, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let values = values(&text);
        let api = api_of(&values);
        let (answer, error) = decode(api, text.as_bytes(), usize::MAX, Decoder::detecting);
        let at = file.display();
        let failed = |value: &Value| value["type"] == "error" || value["status"] == "failed";
        assert_eq!(error.is_some(), values.iter().any(failed), "{at}: {error:?}");
        let got: Vec<Found> =
            answer.calls.iter().map(|call| (call.name.clone(), parsed(&json!(call.arguments)))).collect();
        assert_eq!(got, expected(api, &values), "{at}");
        let kinds: Vec<String> = answer.other_calls.iter().map(|call| call.kind.clone()).collect();
        assert_eq!(kinds, others(&values), "{at}");
        assert!(answer.other_calls.iter().all(|call| !call.input.is_null() && !call.id.is_empty()), "{at}");
        for chunk in [1, 7, 4096] {
            let again = decode(api, text.as_bytes(), chunk, Decoder::detecting);
            assert_eq!(again, (answer.clone(), error.clone()), "{at} in chunks of {chunk}");
        }
        if file.extension().is_some_and(|end| end == "txt") {
            for chunk in [7, usize::MAX] {
                let streamed = decode(api, sse(&text).as_bytes(), chunk, Decoder::new);
                assert_eq!(streamed, (answer.clone(), error.clone()), "{at} as server-sent events");
            }
        }
    }
}

/// Cut anywhere, a recording gives a beginning of what it gives whole, and says that it broke off.
#[test]
fn an_answer_cut_short_keeps_what_was_complete() {
    for file in recordings().into_iter().filter(|file| file.extension().is_some_and(|end| end == "txt")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let api = api_of(&values(&text));
        let (whole, error) = decode(api, text.as_bytes(), usize::MAX, Decoder::detecting);
        if error.is_some() || text.len() > 20_000 {
            continue;
        }
        for end in (0..text.len()).step_by(97).filter(|end| text.is_char_boundary(*end)) {
            let (part, error) = decode(api, &text.as_bytes()[..end], usize::MAX, Decoder::detecting);
            let at = format!("{} cut at {end}: {error:?}", file.display());
            let spliced = text.matches("\"message_start\"").count() > 1;
            assert!(whole.calls.starts_with(&part.calls) || spliced, "{at}: {:?}", part.calls);
            assert!(whole.text.starts_with(&part.text), "{at}");
        }
    }
}
