//! Ollama `/api/chat` (github.com/ollama/ollama, docs/api.md). Calls come whole, with their arguments as
//! objects and without ids.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolwright_core::content::joined_text;
use toolwright_core::model::{
    Message, ModelError, ModelRequest, OutputFormat, RawToolCall, StopReason, ToolChoice, Usage,
};

use crate::api::{Api, EncodedRequest, RequestPart};
use crate::codec::history::{Image, Part, Turn, legal_turns, parts};
use crate::codec::request::{SamplingNames, output_schema, set, tools_place, with_instruction, write_sampling};
use crate::codec::response::{ApiDecoder, ResponseBuilder, Sink, Text, arguments, lenient, parse, value};
use crate::codec::{EncodedTools, reasoning};
use crate::dialect::{Dialect, Toolset};
use crate::failure;

const API: Api = Api::Ollama;

const NAMES: SamplingNames = SamplingNames {
    temperature: Some("temperature"),
    top_p: Some("top_p"),
    top_k: Some("top_k"),
    seed: Some("seed"),
    stop: Some("stop"),
};

pub(crate) fn encode(request: &ModelRequest, model: &str, encoded_tools: &EncodedTools) -> EncodedRequest {
    let (mut body, mut losses) = (Map::new(), Vec::new());
    body.insert("model".into(), json!(model));
    // The API has no tool choice. `none` is sent as a request without tools; a call cannot be forced.
    let tools = encoded_tools.json.clone().filter(|_| request.tool_choice != ToolChoice::None);
    // A model with a response schema cannot write a call (github.com/ollama/ollama, issues 11185 and 13750): with tools
    // the system prompt contains the schema.
    let system: Cow<'_, str> = match request.output.as_ref().filter(|_| tools.is_some()) {
        Some(output) => with_instruction(&request.system, output).into(),
        None => request.system.as_str().into(),
    };
    body.insert("messages".into(), messages(&system, request, encoded_tools.set()));
    if tools.is_some() {
        body.insert("tools".into(), tools_place());
        losses.extend([RequestPart::ToolChoice, RequestPart::ParallelCalls]);
    }
    set(&mut body, "format", request.output.as_ref().filter(|_| tools.is_none()).map(format));
    let mut options = Map::new();
    set(&mut options, "num_predict", request.max_tokens);
    write_sampling(&mut options, request, model, &NAMES, &mut losses);
    set(&mut body, "options", Some(options).filter(|options| !options.is_empty()));
    let thinking = reasoning::ollama(model, &request.settings);
    reasoning::note_losses((API, model), &request.settings, (thinking.is_some(), None), &mut losses);
    set(&mut body, "think", thinking);
    // A conversation that does not fit is an error instead of being shortened silently.
    body.insert("truncate".into(), json!(false));
    body.insert("stream".into(), json!(true));
    EncodedRequest::new("/api/chat", body).with_tools(tools).without(losses)
}

/// Encodes the output format. The server's grammars support few patterns, and any other fails the request
/// (ollama/ollama#8325).
fn format(output: &OutputFormat) -> Value {
    output.schema.as_ref().map_or_else(|| json!("json"), |schema| output_schema(Dialect::Ollama, schema).schema)
}

/// Sets the context window in tokens. The server's default is far below the models' limits.
pub(crate) fn keep_window(encoded: &mut EncodedRequest, tokens: usize) {
    if let Some(options) = encoded.entry("options", json!({})).as_object_mut() {
        options.insert("num_ctx".into(), json!(tokens));
    }
}

/// Sets how long the server keeps the model in memory after the response.
pub(crate) fn keep_alive(encoded: &mut EncodedRequest, span: Duration) {
    *encoded.entry("keep_alive", json!(null)) = json!(span.as_secs());
}

/// The fewest tokens for which the estimate is meaningful.
pub(crate) const MIN_ESTIMATE: u64 = 1000;

/// Estimated tokens of a request's text, at four bytes each. Tools and images are not counted.
pub(crate) fn estimate(request: &ModelRequest) -> u64 {
    let of = |message: &Message| match message {
        Message::User { content } => joined_text(content).len(),
        Message::Assistant { text, calls, .. } => {
            text.len() + calls.iter().map(|call| call.arguments.len()).sum::<usize>()
        }
        Message::Tool { results } => results.iter().map(|result| joined_text(&result.content).len()).sum(),
    };
    let bytes = request.system.len() + request.messages.iter().map(of).sum::<usize>();
    bytes as u64 / 4
}

fn messages(system: &str, request: &ModelRequest, tools: &Toolset) -> Value {
    let mut out = Vec::new();
    if !system.is_empty() {
        out.push(json!({"role": "system", "content": system}));
    }
    for turn in legal_turns(&request.messages, API, tools) {
        match turn {
            Turn::User(content) => out.push(user(parts(content))),
            Turn::Assistant { text, calls, opaque } => {
                let mut message = json!({"role": "assistant", "content": text});
                if let Some(thinking) = opaque.iter().find_map(|data| data.get("item").unwrap_or(data).get("thinking"))
                {
                    message["thinking"] = thinking.clone();
                }
                if !calls.is_empty() {
                    let calls = calls
                        .iter()
                        .map(|call| json!({"function": {"name": call.name, "arguments": call.arguments_object()}}));
                    message["tool_calls"] = calls.collect();
                }
                out.push(message);
            }
            Turn::Results(results) => {
                let mut images = Vec::new();
                for result in &results {
                    let (text, found) = result.plain_text_and_images();
                    out.push(json!({"role": "tool", "tool_name": result.name, "content": text}));
                    images.extend(found);
                }
                if !images.is_empty() {
                    out.push(user(images));
                }
            }
        }
    }
    Value::Array(out)
}

fn user(parts: Vec<Part<'_>>) -> Value {
    let mut lines = Vec::new();
    let mut images = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => lines.push(text),
            Part::Document(document) => lines.push(document.placeholder()),
            Part::Image(Image { data, .. }) => images.push(json!(data)),
        }
    }
    let mut message = json!({"role": "user", "content": lines.join("\n")});
    if !images.is_empty() {
        message["images"] = Value::Array(images);
    }
    message
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    message: Option<AnswerMessage<'a>>,
    #[serde(default, deserialize_with = "lenient")]
    done: Option<bool>,
    #[serde(borrow, default)]
    done_reason: Text<'a>,
    #[serde(default, deserialize_with = "lenient")]
    prompt_eval_count: Option<u64>,
    /// Cached tokens among them, if the server reports that.
    #[serde(default, deserialize_with = "lenient")]
    prompt_eval_cached_count: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    eval_count: Option<u64>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnswerMessage<'a> {
    #[serde(borrow, default)]
    content: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Call<'a>>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    /// Sent only by newer servers.
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// A response that is being decoded.
#[derive(Default)]
pub(crate) struct OllamaDecoder {
    answer: ResponseBuilder,
}

impl ApiDecoder for OllamaDecoder {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let line: Line<'_> = parse(API, data)?;
        if let Some(error) = line.error {
            return Err(failure::from_event(API, &value(error)));
        }
        if line.message.is_none() && line.done.is_none() {
            return failure::from_unknown(API, data).map_or(Ok(()), Err);
        }
        if let Some(message) = line.message {
            self.answer.reasoning(message.thinking.as_str(), sink);
            self.answer.text(message.content.as_str(), sink);
            for Call { id, function } in message.tool_calls.into_iter().flatten() {
                let arguments = function.arguments.map_or("{}".into(), arguments).into_owned();
                let call = RawToolCall { id: id.into_string(), name: function.name.into_string(), arguments };
                self.answer.close_call(call, sink);
            }
        }
        if line.done == Some(true) {
            self.answer.complete = true;
            self.answer.stop = line.done_reason.filled().map(stop_reason);
            self.answer.usage = Usage {
                input_tokens: line.prompt_eval_count.unwrap_or(0),
                output_tokens: line.eval_count.unwrap_or(0),
                cached_tokens: line.prompt_eval_cached_count.unwrap_or(0),
                ..Usage::default()
            };
            self.answer.release(sink);
            if !self.answer.shown_reasoning().is_empty() {
                let thinking = json!({"thinking": self.answer.shown_reasoning()});
                self.answer.opaque(thinking);
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> &mut ResponseBuilder {
        &mut self.answer
    }
}

fn stop_reason(reason: &str) -> StopReason {
    match reason {
        "stop" => StopReason::End,
        "length" => StopReason::MaxTokens,
        other => StopReason::Other(other.to_owned()),
    }
}
