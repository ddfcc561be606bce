//! OpenAI Chat Completions (platform.openai.com/docs/api-reference/chat), and the freedom that
//! compatible servers take with it.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest, StopReason, ToolChoice, Usage, WrittenCall};

use crate::answer::{Answer, Assemble, Sink, count, parse};
use crate::api::{Api, EncodedRequest};
use crate::dialect::{ToolView, Toolset};
use crate::failure;
use crate::history::{Image, Part, Turn, legal_turns, parts};

const API: Api = Api::OpenAiChat;

pub(crate) fn encode(request: &ModelRequest, model: &str, toolset: &Toolset) -> EncodedRequest {
    let mut body = Map::new();
    body.insert("model".into(), json!(model));
    body.insert("messages".into(), messages(request));
    if !toolset.tools.is_empty() {
        body.insert("tools".into(), tools(toolset));
        match &request.tool_choice {
            ToolChoice::Auto => None,
            ToolChoice::Required => Some(json!("required")),
            ToolChoice::None => Some(json!("none")),
            ToolChoice::Tool(name) => Some(json!({"type": "function", "function": {"name": name}})),
        }
        .map(|choice| body.insert("tool_choice".into(), choice));
    }
    if let Some(limit) = request.max_tokens {
        body.insert("max_completion_tokens".into(), json!(limit));
    }
    if let Some(temperature) = request.temperature {
        body.insert("temperature".into(), json!(temperature));
    }
    body.insert("stream".into(), json!(true));
    body.insert("stream_options".into(), json!({"include_usage": true}));
    EncodedRequest { path: "/chat/completions", headers: &[], body: Value::Object(body) }
}

/// The tools as Chat Completions and Ollama wrap them.
pub(crate) fn tools(toolset: &Toolset) -> Value {
    let wrap = |tool: &ToolView| {
        let function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
        json!({"type": "function", "function": function})
    };
    toolset.tools.iter().map(wrap).collect()
}

fn messages(request: &ModelRequest) -> Value {
    let mut out = Vec::new();
    if !request.system.is_empty() {
        out.push(json!({"role": "system", "content": request.system}));
    }
    for turn in legal_turns(&request.messages, API) {
        match turn {
            Turn::User(content) => out.push(json!({"role": "user", "content": user_content(parts(content))})),
            Turn::Assistant { text, calls, .. } => {
                let mut message = json!({"role": "assistant", "content": text});
                if !calls.is_empty() {
                    let calls = calls.iter().map(|call| {
                        let function = json!({"name": call.name, "arguments": call.arguments_text()});
                        json!({"id": call.id, "type": "function", "function": function})
                    });
                    message["tool_calls"] = calls.collect();
                    if text.is_empty() {
                        message["content"] = Value::Null;
                    }
                }
                out.push(message);
            }
            Turn::Results(results) => {
                let mut images = Vec::new();
                for result in &results {
                    let (text, found) = result.text_and_images();
                    out.push(json!({"role": "tool", "tool_call_id": result.id, "content": text}));
                    if !found.is_empty() {
                        images.push(Part::Text(result.images_caption()));
                        images.extend(found.into_iter().map(Part::Image));
                    }
                }
                if !images.is_empty() {
                    out.push(json!({"role": "user", "content": user_content(images)}));
                }
            }
        }
    }
    Value::Array(out)
}

fn user_content(mut parts: Vec<Part<'_>>) -> Value {
    if let [Part::Text(text)] = parts.as_mut_slice() {
        return Value::String(std::mem::take(text));
    }
    let part = |part: Part<'_>| match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(Image { mime_type, data }) => {
            json!({"type": "image_url", "image_url": {"url": format!("data:{mime_type};base64,{data}")}})
        }
    };
    if parts.is_empty() { json!("") } else { parts.into_iter().map(part).collect() }
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    /// In a stream.
    delta: Option<Delta>,
    /// In a whole answer.
    message: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    /// Text, or a list of parts from servers that show reasoning among them.
    content: Option<Value>,
    refusal: Option<String>,
    reasoning_content: Option<Value>,
    reasoning: Option<Value>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: Option<u64>,
    id: Option<String>,
    function: Option<FunctionDelta>,
}

#[derive(Deserialize, Default)]
struct FunctionDelta {
    name: Option<String>,
    /// JSON text; some servers give the object itself.
    arguments: Option<Value>,
}

/// One call while it grows.
struct Slot {
    index: Option<u64>,
    call: WrittenCall,
}

/// An answer under assembly. Calls close together, when the choice finishes: nothing earlier says that
/// their arguments are complete.
#[derive(Default)]
pub(crate) struct Assembly {
    answer: Answer,
    slots: Vec<Slot>,
    complete: bool,
}

impl Assemble for Assembly {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        if data.trim_ascii() == b"[DONE]" {
            self.close(sink);
            return Ok(());
        }
        let chunk: Chunk = parse(API, data)?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(failure::from_event(API, &error));
        }
        if let Some(usage) = chunk.usage.filter(Value::is_object) {
            self.answer.usage = Usage {
                input_tokens: count(&usage, "/prompt_tokens"),
                output_tokens: count(&usage, "/completion_tokens"),
                cached_tokens: count(&usage, "/prompt_tokens_details/cached_tokens"),
            };
        }
        // We ask for one choice.
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            if let Some(delta) = choice.delta.or(choice.message) {
                self.delta(delta, sink);
            }
            if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
                let refused = self.answer.stop == Some(StopReason::Refusal);
                self.answer.stop = Some(if refused { StopReason::Refusal } else { stop_reason(&reason) });
                self.close(sink);
            }
        }
        Ok(())
    }

    fn whole(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        self.event(data, sink)?;
        if self.complete {
            Ok(())
        } else {
            Err(ModelError::new(ModelErrorKind::BadResponse, "the answer holds no finished choice"))
        }
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn into_answer(self: Box<Self>) -> Answer {
        self.answer
    }
}

impl Assembly {
    fn delta(&mut self, delta: Delta, sink: Sink<'_>) {
        for reasoning in
            [&delta.reasoning_content, &delta.reasoning].into_iter().flatten().filter_map(Value::as_str).take(1)
        {
            self.answer.reasoning(reasoning, sink);
        }
        match &delta.content {
            Some(Value::String(text)) => self.answer.text(text, sink),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| self.content_part(part, sink)),
            _ => {}
        }
        if let Some(refusal) = delta.refusal.filter(|refusal| !refusal.is_empty()) {
            self.answer.text(&refusal, sink);
            self.answer.stop = Some(StopReason::Refusal);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call);
        }
    }

    /// `{"type": "text", "text"}` or Mistral's `{"type": "thinking", "thinking": [{"text"}]}`.
    fn content_part(&mut self, part: &Value, sink: Sink<'_>) {
        if let Some(text) = part.get("text").and_then(Value::as_str) {
            self.answer.text(text, sink);
        }
        for thought in part.get("thinking").and_then(Value::as_array).into_iter().flatten() {
            if let Some(text) = thought.get("text").and_then(Value::as_str) {
                self.answer.reasoning(text, sink);
            }
        }
    }

    /// Adds to the call that a delta means. By the API it is the one of that index; but some servers
    /// leave the index out, and some give every call of a turn index 0 and tell them apart by id.
    fn call(&mut self, delta: CallDelta) {
        let function = delta.function.unwrap_or_default();
        let id = delta.id.unwrap_or_default();
        let name = function.name.unwrap_or_default();
        let starts = !id.is_empty() && !name.is_empty();
        let slot = match delta.index {
            Some(_) => self
                .slots
                .iter_mut()
                .rev()
                .find(|slot| slot.index == delta.index)
                .filter(|slot| !starts || slot.call.id == id || slot.call.id.is_empty()),
            None => self.slots.last_mut().filter(|_| id.is_empty() && name.is_empty()),
        };
        let arguments = match function.arguments {
            Some(Value::String(text)) => text,
            Some(Value::Null) | None => String::new(),
            Some(value) => value.to_string(),
        };
        match slot {
            Some(Slot { call, .. }) => {
                if call.id.is_empty() {
                    call.id = id;
                }
                if call.name.is_empty() {
                    call.name = name;
                }
                call.arguments.push_str(&arguments);
            }
            None => self.slots.push(Slot { index: delta.index, call: WrittenCall { id, name, arguments } }),
        }
    }

    fn close(&mut self, sink: Sink<'_>) {
        self.complete = true;
        for slot in std::mem::take(&mut self.slots) {
            self.answer.close_call(slot.call, sink);
        }
        self.answer.release(sink);
    }
}

fn stop_reason(reason: &str) -> StopReason {
    match reason {
        "stop" => StopReason::End,
        "tool_calls" | "function_call" => StopReason::ToolCalls,
        "length" => StopReason::MaxTokens,
        "content_filter" => StopReason::Refusal,
        other => StopReason::Other(other.to_owned()),
    }
}
