//! Anthropic Messages (docs.anthropic.com/en/api/messages, version 2023-06-01).

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest, StopReason, ToolChoice, Usage, WrittenCall};

use crate::answer::{Answer, Assemble, Sink, count, parse};
use crate::api::{Api, EncodedRequest};
use crate::dialect::{ToolView, Toolset};
use crate::failure;
use crate::history::{Image, Part, Turn, legal_turns, parts};

const API: Api = Api::Anthropic;
/// The API demands a limit.
const DEFAULT_MAX_TOKENS: u32 = 8192;
/// Stands where the API demands words and there are none.
const NOTHING: &str = "(nothing)";

pub(crate) fn encode(request: &ModelRequest, model: &str, toolset: &Toolset) -> EncodedRequest {
    let messages = messages(request);
    let mut body = Map::new();
    body.insert("model".into(), json!(model));
    body.insert("max_tokens".into(), json!(request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)));
    if !request.system.trim().is_empty() {
        body.insert("system".into(), json!(request.system));
    }
    if toolset.tools.is_empty() {
        // Past calls are refused where no tools are declared.
        let called = called_names(&messages);
        if !called.is_empty() {
            body.insert("tools".into(), called.iter().map(|name| retired(name)).collect());
            body.insert("tool_choice".into(), json!({"type": "none"}));
        }
    } else {
        body.insert("tools".into(), toolset.tools.iter().map(tool).collect());
        match &request.tool_choice {
            ToolChoice::Auto => None,
            ToolChoice::Required => Some(json!({"type": "any"})),
            ToolChoice::None => Some(json!({"type": "none"})),
            ToolChoice::Tool(name) => Some(json!({"type": "tool", "name": name})),
        }
        .map(|choice| body.insert("tool_choice".into(), choice));
    }
    body.insert("messages".into(), Value::Array(messages));
    if let Some(temperature) = request.temperature {
        body.insert("temperature".into(), json!(temperature));
    }
    body.insert("stream".into(), json!(true));
    EncodedRequest { path: "/v1/messages", headers: &[("anthropic-version", "2023-06-01")], body: Value::Object(body) }
}

fn tool(tool: &ToolView) -> Value {
    json!({"name": tool.name, "description": tool.description, "input_schema": tool.parameters})
}

fn retired(name: &str) -> Value {
    let schema = json!({"type": "object", "properties": {}});
    json!({"name": name, "description": "Not available any more.", "input_schema": schema})
}

fn called_names(messages: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for block in messages.iter().filter_map(|message| message["content"].as_array()).flatten() {
        if block["type"] == "tool_use"
            && let Some(name) = block["name"].as_str()
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
    }
    names
}

fn messages(request: &ModelRequest) -> Vec<Value> {
    let mut out = Alternating::default();
    for turn in legal_turns(&request.messages, API) {
        match turn {
            Turn::User(content) => out.push("user", blocks(parts(content))),
            Turn::Assistant { text, calls, opaque } => {
                // Thinking comes first; the API refuses it elsewhere.
                let mut content: Vec<Value> = opaque.into_iter().cloned().collect();
                content.extend(blocks(vec![Part::Text(text.to_owned())]));
                content.extend(calls.iter().map(|call| {
                    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments_object()})
                }));
                out.push("assistant", content);
            }
            Turn::Results(results) => {
                let results = results.iter().map(|result| {
                    let mut block = json!({"type": "tool_result", "tool_use_id": result.id});
                    let content = blocks(result.parts());
                    if !content.is_empty() {
                        block["content"] = Value::Array(content);
                    }
                    if result.is_error() {
                        block["is_error"] = json!(true);
                    }
                    block
                });
                out.push("user", results.collect());
            }
        }
    }
    out.messages
}

/// Messages whose roles alternate, beginning with the user: what follows in the same role is joined.
#[derive(Default)]
struct Alternating {
    messages: Vec<Value>,
}

impl Alternating {
    fn push(&mut self, role: &str, content: Vec<Value>) {
        if self.messages.is_empty() && role == "assistant" {
            self.push("user", blocks(vec![Part::Text(NOTHING.into())]));
        }
        match self.messages.last_mut() {
            Some(last) if last["role"] == role => {
                if let Some(blocks) = last["content"].as_array_mut() {
                    blocks.extend(content);
                }
            }
            // An empty answer is left out; an empty question cannot be.
            _ if content.is_empty() && role == "assistant" => {}
            _ if content.is_empty() => {
                self.messages.push(json!({"role": role, "content": [{"type": "text", "text": NOTHING}]}))
            }
            _ => self.messages.push(json!({"role": role, "content": content})),
        }
    }
}

/// Content blocks; blank text is left out, the API refuses it.
fn blocks(parts: Vec<Part<'_>>) -> Vec<Value> {
    let block = |part| match part {
        Part::Text(text) if text.trim().is_empty() => None,
        Part::Text(text) => Some(json!({"type": "text", "text": text})),
        Part::Image(Image { mime_type, data }) => {
            Some(json!({"type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data}}))
        }
    };
    parts.into_iter().filter_map(block).collect()
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: Message,
    },
    ContentBlockStart {
        index: u64,
        content_block: Value,
    },
    ContentBlockDelta {
        index: u64,
        delta: Delta,
    },
    ContentBlockStop {
        index: u64,
    },
    MessageDelta {
        delta: StopDelta,
        usage: Option<Value>,
    },
    MessageStop,
    Error {
        error: Value,
    },
    /// `ping`, and whatever is added later.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Message {
    content: Option<Vec<Value>>,
    stop_reason: Option<String>,
    usage: Option<Value>,
}

#[derive(Deserialize)]
struct StopDelta {
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(other)]
    Other,
}

/// A content block that has not closed.
struct Block {
    index: u64,
    /// As it began.
    start: Value,
    thinking: String,
    signature: String,
    input: String,
}

/// An answer under assembly.
#[derive(Default)]
pub(crate) struct Assembly {
    answer: Answer,
    open: Vec<Block>,
    started: bool,
    complete: bool,
}

impl Assemble for Assembly {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        match parse(API, data)? {
            Event::MessageStart { message } => self.start(message)?,
            Event::ContentBlockStart { index, content_block } => self.open(index, content_block, sink),
            Event::ContentBlockDelta { index, delta } => self.delta(index, delta, sink),
            Event::ContentBlockStop { index } => {
                if let Some(at) = self.open.iter().position(|block| block.index == index) {
                    let block = self.open.remove(at);
                    self.close(block, sink);
                }
            }
            Event::MessageDelta { delta, usage } => {
                self.usage(usage);
                if let Some(reason) = delta.stop_reason {
                    self.answer.stop = Some(stop_reason(&reason));
                }
            }
            Event::MessageStop => {
                self.complete = true;
                // What has not closed by now was never finished.
                self.open.clear();
                self.answer.release(sink);
            }
            Event::Error { error } => return Err(failure::from_event(API, &error)),
            Event::Other => {}
        }
        Ok(())
    }

    fn whole(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let value: Value = parse(API, data)?;
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Err(failure::from_event(API, error));
        }
        let message: Message = parse(API, data)?;
        let (Some(content), Some(reason)) = (message.content, message.stop_reason) else {
            return Err(ModelError::new(ModelErrorKind::BadResponse, "the answer holds no finished message"));
        };
        self.usage(message.usage);
        self.answer.stop = Some(stop_reason(&reason));
        for (index, block) in (0..).zip(content) {
            self.open(index, block, sink);
            if let Some(block) = self.open.pop() {
                self.close(block, sink);
            }
        }
        self.answer.release(sink);
        self.complete = true;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn into_answer(self: Box<Self>) -> Answer {
        self.answer
    }
}

impl Assembly {
    /// Some relays begin again when their upstream breaks. That is fine while nothing has been given
    /// out; after that the pieces could not be taken back.
    fn start(&mut self, message: Message) -> Result<(), ModelError> {
        if self.started && self.answer.has_output() {
            return Err(ModelError::new(
                ModelErrorKind::BadResponse,
                "the stream began a second message after text or calls of a first; nothing of it was kept",
            ));
        }
        *self = Self { started: true, ..Self::default() };
        self.usage(message.usage);
        Ok(())
    }

    fn open(&mut self, index: u64, start: Value, sink: Sink<'_>) {
        match start["type"].as_str() {
            Some("text") => self.answer.text(start["text"].as_str().unwrap_or_default(), sink),
            Some("thinking") => self.answer.reasoning(start["thinking"].as_str().unwrap_or_default(), sink),
            _ => {}
        }
        self.open.push(Block { index, start, thinking: String::new(), signature: String::new(), input: String::new() });
    }

    fn delta(&mut self, index: u64, delta: Delta, sink: Sink<'_>) {
        let Some(block) = self.open.iter_mut().find(|block| block.index == index) else { return };
        match delta {
            Delta::Text { text } => self.answer.text(&text, sink),
            Delta::Thinking { thinking } => {
                block.thinking.push_str(&thinking);
                self.answer.reasoning(&thinking, sink);
            }
            Delta::Signature { signature } => block.signature.push_str(&signature),
            Delta::InputJson { partial_json } => block.input.push_str(&partial_json),
            Delta::Other => {}
        }
    }

    /// Text has gone out already; a call goes out now; anything else is kept to be echoed.
    fn close(&mut self, block: Block, sink: Sink<'_>) {
        let Block { mut start, thinking, signature, input, .. } = block;
        match start["type"].as_str() {
            Some("text") => {}
            Some("tool_use") => {
                let word = |key: &str| start[key].as_str().unwrap_or_default().to_owned();
                let arguments = match &start["input"] {
                    _ if !input.is_empty() => input,
                    Value::Null => "{}".into(),
                    whole => whole.to_string(),
                };
                self.answer.close_call(WrittenCall { id: word("id"), name: word("name"), arguments }, sink);
            }
            _ => {
                for (key, grown) in [("thinking", thinking), ("signature", signature)] {
                    if !grown.is_empty() {
                        start[key] = json!(format!("{}{grown}", start[key].as_str().unwrap_or_default()));
                    }
                }
                if let Ok(input) = serde_json::from_str::<Value>(&input) {
                    start["input"] = input;
                }
                self.answer.opaque(start);
            }
        }
    }

    /// Later figures replace earlier ones. The API counts cached tokens apart; we count them in.
    fn usage(&mut self, usage: Option<Value>) {
        let Some(usage) = usage else { return };
        if usage.get("input_tokens").is_some_and(Value::is_u64) {
            let cached = count(&usage, "/cache_read_input_tokens");
            let written = count(&usage, "/cache_creation_input_tokens");
            self.answer.usage.input_tokens =
                count(&usage, "/input_tokens").saturating_add(cached).saturating_add(written);
            self.answer.usage.cached_tokens = cached;
        }
        if usage.get("output_tokens").is_some_and(Value::is_u64) {
            self.answer.usage = Usage { output_tokens: count(&usage, "/output_tokens"), ..self.answer.usage };
        }
    }
}

fn stop_reason(reason: &str) -> StopReason {
    match reason {
        "end_turn" | "stop_sequence" => StopReason::End,
        "tool_use" => StopReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => StopReason::MaxTokens,
        "refusal" => StopReason::Refusal,
        other => StopReason::Other(other.to_owned()),
    }
}
