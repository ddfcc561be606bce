//! Encodes requests to Chat Completions.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelRequest, OutputFormat};

use super::{API, for_call, for_message, write};
use crate::api::EncodedRequest;
use crate::codec::history::{
    AssistantPiece, Image, LegalCall, Part, Turn, legal_name, legal_turns, pieces, user_parts,
};
use crate::codec::request::{SamplingNames, cache_key, output_schema, set, with_instruction, write_sampling};
use crate::codec::{EncodedTools, reasoning};
use crate::dialect::{Dialect, Toolset, TranslatedTool};

/// The API has no `top_k`.
const NAMES: SamplingNames = SamplingNames {
    temperature: Some("temperature"),
    top_p: Some("top_p"),
    top_k: None,
    seed: Some("seed"),
    stop: Some("stop"),
};

pub(crate) fn encode(request: &ModelRequest, model: &str, encoded_tools: &EncodedTools) -> EncodedRequest {
    let (mut body, mut losses) = (Map::new(), Vec::new());
    body.insert("model".into(), json!(model));
    body.insert("messages".into(), messages(request, encoded_tools.set()));
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tools = encoded_tools.write_openai(&mut body, request, named, &mut losses);
    set(&mut body, "response_format", request.output.as_ref().map(response_format));
    set(&mut body, "max_completion_tokens", request.max_tokens);
    write_sampling(&mut body, request, model, &NAMES, &mut losses);
    let effort = reasoning::openai_effort(model, &request.settings);
    reasoning::note_losses((API, model), &request.settings, (effort.is_some(), None), &mut losses);
    set(&mut body, "reasoning_effort", effort);
    set(&mut body, "prompt_cache_key", cache_key(request, model));
    body.insert("stream".into(), json!(true));
    body.insert("stream_options".into(), json!({"include_usage": true}));
    EncodedRequest::new("/chat/completions", body).with_tools(tools).without(losses)
}

fn response_format(output: &OutputFormat) -> Value {
    let Some(schema) = &output.schema else { return json!({"type": "json_object"}) };
    let form = output_schema(Dialect::OpenAi, schema);
    let schema = json!({"name": legal_name(&output.name), "schema": form.schema, "strict": form.strict});
    json!({"type": "json_schema", "json_schema": schema})
}

/// A tool as Chat Completions and Ollama have it.
#[derive(Serialize)]
pub(crate) struct Tool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

pub(crate) fn tool(view: &TranslatedTool) -> Tool<'_> {
    let TranslatedTool { name, description, parameters, .. } = view;
    Tool {
        r#type: "function",
        function: Function { name, description, parameters, strict: view.strict.then_some(true) },
    }
}

fn messages(request: &ModelRequest, tools: &Toolset) -> Value {
    let mut out = Vec::new();
    // The API accepts `json_object` only if the messages mention JSON.
    let system = match &request.output {
        Some(output) if output.schema.is_none() => Cow::Owned(with_instruction(&request.system, output)),
        _ => Cow::Borrowed(&request.system),
    };
    if !system.is_empty() {
        out.push(json!({"role": "system", "content": system}));
    }
    for turn in legal_turns(&request.messages, API, tools) {
        match turn {
            Turn::User(content) => out.push(json!({"role": "user", "content": user_content(user_parts(content))})),
            Turn::Assistant { text, calls, opaque } => out.push(answer(text, &calls, &opaque)),
            Turn::Results(results) => {
                let mut images = Vec::new();
                for result in &results {
                    let (text, found) = result.plain_text_and_images();
                    out.push(json!({"role": "tool", "tool_call_id": result.id, "content": text}));
                    images.extend(found);
                }
                if !images.is_empty() {
                    out.push(json!({"role": "user", "content": user_content(images)}));
                }
            }
        }
    }
    Value::Array(out)
}

fn answer(text: &str, calls: &[LegalCall<'_>], opaque: &[&Value]) -> Value {
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_empty() && text.is_empty() {
        message["content"] = Value::Null;
    }
    let mut written = Vec::with_capacity(calls.len());
    let mut head = None;
    for piece in pieces(text, calls, opaque) {
        match piece {
            AssistantPiece::Text(_) => {}
            AssistantPiece::Call(_, call) => {
                let function = json!({"name": call.name, "arguments": call.arguments_text()});
                let mut call = json!({"id": call.id, "type": "function", "function": function});
                if let Some(kept) = head.take() {
                    write(kept, &mut call);
                }
                written.push(call);
            }
            AssistantPiece::Item(item) => match for_message(item) {
                Some(kept) => write(kept, &mut message),
                None => head = for_call(item),
            },
        }
    }
    if !written.is_empty() {
        message["tool_calls"] = Value::Array(written);
    }
    message
}

fn user_content(mut parts: Vec<Part<'_>>) -> Value {
    if let [Part::Text(text)] = parts.as_mut_slice() {
        return Value::String(std::mem::take(text));
    }
    let part = |part: Part<'_>| match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Document(document) => {
            json!({"type": "file", "file": {"filename": document.name, "file_data": document.url()}})
        }
        Part::Image(Image { mime_type, data }) => {
            json!({"type": "image_url", "image_url": {"url": format!("data:{mime_type};base64,{data}")}})
        }
    };
    if parts.is_empty() { json!("") } else { parts.into_iter().map(part).collect() }
}
