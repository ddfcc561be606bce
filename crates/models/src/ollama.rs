//! Ollama `/api/chat` (github.com/ollama/ollama, docs/api.md). Calls come whole, with their arguments as
//! objects and without ids.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest, StopReason, ToolChoice, Usage, WrittenCall};

use crate::answer::{Answer, Assemble, Sink, parse};
use crate::api::{Api, EncodedRequest};
use crate::dialect::Toolset;
use crate::failure;
use crate::history::{Image, Part, Turn, legal_turns, parts};
use crate::openai_chat::tools;

const API: Api = Api::Ollama;

pub(crate) fn encode(request: &ModelRequest, model: &str, toolset: &Toolset) -> EncodedRequest {
    let mut body = Map::new();
    body.insert("model".into(), json!(model));
    body.insert("messages".into(), messages(request));
    // The API has no tool choice: that none may be called is said by showing none. A call cannot be forced.
    if !toolset.tools.is_empty() && request.tool_choice != ToolChoice::None {
        body.insert("tools".into(), tools(toolset));
    }
    let mut options = Map::new();
    if let Some(limit) = request.max_tokens {
        options.insert("num_predict".into(), json!(limit));
    }
    if let Some(temperature) = request.temperature {
        options.insert("temperature".into(), json!(temperature));
    }
    if !options.is_empty() {
        body.insert("options".into(), Value::Object(options));
    }
    body.insert("stream".into(), json!(true));
    EncodedRequest { path: "/api/chat", headers: &[], body: Value::Object(body) }
}

fn messages(request: &ModelRequest) -> Value {
    let mut out = Vec::new();
    if !request.system.is_empty() {
        out.push(json!({"role": "system", "content": request.system}));
    }
    for turn in legal_turns(&request.messages, API) {
        match turn {
            Turn::User(content) => out.push(user(parts(content))),
            Turn::Assistant { text, calls, opaque } => {
                let mut message = json!({"role": "assistant", "content": text});
                if let Some(thinking) = opaque.first().and_then(|data| data.get("thinking")) {
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
                    let (text, found) = result.text_and_images();
                    out.push(json!({"role": "tool", "tool_name": result.name, "content": text}));
                    if !found.is_empty() {
                        images.push(Part::Text(result.images_caption()));
                        images.extend(found.into_iter().map(Part::Image));
                    }
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
struct Line {
    message: Option<Message>,
    #[serde(default)]
    done: bool,
    done_reason: Option<String>,
    prompt_eval_count: Option<u64>,
    eval_count: Option<u64>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    /// Newer servers give one.
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// An answer under assembly.
#[derive(Default)]
pub(crate) struct Assembly {
    answer: Answer,
    complete: bool,
}

impl Assemble for Assembly {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let line: Line = parse(API, data)?;
        if let Some(error) = line.error.filter(|error| !error.is_null()) {
            return Err(failure::from_event(API, &error));
        }
        if let Some(message) = line.message {
            self.answer.reasoning(message.thinking.as_deref().unwrap_or_default(), sink);
            self.answer.text(message.content.as_deref().unwrap_or_default(), sink);
            for Call { id, function } in message.tool_calls.into_iter().flatten() {
                let arguments = match function.arguments {
                    Value::String(text) => text,
                    Value::Null => "{}".into(),
                    object => object.to_string(),
                };
                let call = WrittenCall { id: id.unwrap_or_default(), name: function.name, arguments };
                self.answer.close_call(call, sink);
            }
        }
        if line.done {
            self.complete = true;
            self.answer.stop = line.done_reason.as_deref().map(stop_reason);
            self.answer.usage = Usage {
                input_tokens: line.prompt_eval_count.unwrap_or(0),
                output_tokens: line.eval_count.unwrap_or(0),
                cached_tokens: 0,
            };
            self.answer.release(sink);
            if !self.answer.shown_reasoning().is_empty() {
                let thinking = json!({"thinking": self.answer.shown_reasoning()});
                self.answer.opaque(thinking);
            }
        }
        Ok(())
    }

    fn whole(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        self.event(data, sink)?;
        if self.complete {
            Ok(())
        } else {
            Err(ModelError::new(ModelErrorKind::BadResponse, "the answer is not marked as done"))
        }
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn into_answer(self: Box<Self>) -> Answer {
        self.answer
    }
}

fn stop_reason(reason: &str) -> StopReason {
    match reason {
        "stop" => StopReason::End,
        "length" => StopReason::MaxTokens,
        other => StopReason::Other(other.to_owned()),
    }
}
