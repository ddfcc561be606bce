//! Chat Completions as a server has it (platform.openai.com/docs/api-reference/chat).

use serde_json::{Map, Value, json};
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{
    ModelRequest, ModelSettings, RawToolCall, RequestSettings, RequestTool, StopReason, ToolChoice, Usage,
};

use super::reading::{Conversation, Object, ReadResult, content, distinct, file, function, image_by_url, output};
use super::writer::{Writer, event};
use super::{RequestError, ResponseEnd, ResponseHead, ResponsePiece, ServedRequest};

pub(super) fn read(body: &Map<String, Value>) -> ReadResult<ServedRequest> {
    let body = Object::root(body);
    let mut conversation = Conversation::default();
    for message in body.objects("messages")? {
        read_message(&message, &mut conversation)?;
    }
    if conversation.messages.is_empty() {
        return Err(body.wrong("messages", "there is no message of the user"));
    }
    let tools = body.objects("tools")?.iter().map(tool).collect::<ReadResult<Vec<_>>>()?;
    distinct(&tools)?;
    let format = body.object("response_format")?;
    let output = match &format {
        None => None,
        Some(format) => output(format, &format.object("json_schema")?.unwrap_or_else(|| format.clone()))?,
    };
    let options = body.object("stream_options")?;
    let include_usage = options.map(|options| options.bool("include_usage")).transpose()?.flatten().unwrap_or(false);
    let max_tokens = body.count("max_completion_tokens")?.or(body.count("max_tokens")?);
    Ok(ServedRequest {
        model: body.needed_text("model")?.to_owned(),
        request: ModelRequest {
            system: conversation.system.join("\n\n"),
            messages: conversation.messages,
            tool_choice: tool_choice(&body, &tools, "/function/name")?,
            tools: tools.into(),
            parallel_calls: body.bool("parallel_tool_calls")?,
            output,
            max_tokens,
            temperature: body.number("temperature", 2.0)?,
            settings: RequestSettings {
                settings: ModelSettings {
                    effort: body.effort("reasoning_effort")?,
                    top_p: body.number("top_p", 1.0)?,
                    seed: body.seed()?,
                    stop: body.stop("stop")?,
                    ..ModelSettings::default()
                },
                limit_covers_reasoning: max_tokens.is_some(),
                ..RequestSettings::default()
            },
            ..ModelRequest::default()
        },
        stream: body.bool("stream")?.unwrap_or(false),
        include_usage,
        moves_system: conversation.moves_system,
        user: body.text("user")?.map(str::to_owned),
        ..ServedRequest::default()
    })
}

fn read_message(message: &Object<'_>, out: &mut Conversation) -> ReadResult<()> {
    match message.needed_text("role")? {
        "system" | "developer" => out.instruct(joined_text(&content(message, "content", part)?)),
        "user" => out.user(content(message, "content", part)?),
        "assistant" => {
            out.begin_assistant();
            out.say(&joined_text(&content(message, "content", part)?));
            if let Some(refusal) = message.text("refusal")? {
                out.say(refusal);
            }
            for call in message.objects("tool_calls")? {
                out.call(read_call(&call)?);
            }
            if message.get("function_call").is_some() {
                return Err(message.wrong("function_call", "send `tool_calls`"));
            }
        }
        "tool" => out.result((message, "tool_call_id"), content(message, "content", part)?, false)?,
        other => return Err(message.wrong("role", format!("there is no role `{other}`"))),
    }
    Ok(())
}

fn read_call(call: &Object<'_>) -> ReadResult<RawToolCall> {
    let Some(function) = call.object("function")? else { return Err(call.wrong("function", "it is missing")) };
    let arguments = function.text("arguments")?.unwrap_or_default().to_owned();
    Ok(RawToolCall {
        id: call.needed_text("id")?.to_owned(),
        name: function.needed_text("name")?.to_owned(),
        arguments,
    })
}

fn part(part: &Object<'_>) -> ReadResult<ContentBlock> {
    match part.needed_text("type")? {
        "text" => Ok(ContentBlock::text(part.needed_text("text")?)),
        "refusal" => Ok(ContentBlock::text(part.needed_text("refusal")?)),
        "image_url" => match part.object("image_url")? {
            Some(image) => image_by_url(&image, "url", image.needed_text("url")?),
            None => Err(part.wrong("image_url", "it is missing")),
        },
        "file" => match part.object("file")? {
            Some(given) => {
                let name = given.text("filename")?.unwrap_or_default();
                file(&given, ("file_data", "file_data"), name, given.needed_text("file_data")?, None)
            }
            None => Err(part.wrong("file", "it is missing")),
        },
        other => Err(part.wrong("type", format!("parts of the type `{other}` are not taken: text, image_url or file"))),
    }
}

fn tool(tool: &Object<'_>) -> ReadResult<RequestTool> {
    match (tool.needed_text("type")?, tool.object("function")?) {
        ("function", Some(given)) => function(&given, "parameters"),
        ("function", None) => Err(tool.wrong("function", "it is missing")),
        (other, _) => Err(tool.wrong("type", format!("tools of the type `{other}` are not taken: send functions"))),
    }
}

/// Reads the tool choice in the form of both OpenAI APIs; `name` is the path of a forced call's function name.
pub(super) fn tool_choice(body: &Object<'_>, tools: &[RequestTool], name: &str) -> ReadResult<ToolChoice> {
    match body.get("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => {
                Err(body.wrong("tool_choice", format!("there is no choice `{other}`: auto, none, required or a tool")))
            }
        },
        Some(choice) => match (choice["type"].as_str(), choice.pointer(name).and_then(Value::as_str)) {
            (Some(kind), _) if !matches!(kind, "function" | "custom") => Err(body.wrong(
                "tool_choice.type",
                format!("choices of the type `{kind}` are not taken: send auto, none, required or a tool"),
            )),
            (_, Some(name)) => chosen(tools, name),
            (_, None) => Err(body.wrong("tool_choice", "it names no tool")),
        },
    }
}

/// A forced call of a tool of the client.
pub(super) fn chosen(tools: &[RequestTool], name: &str) -> ReadResult<ToolChoice> {
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(ToolChoice::Tool(name.to_owned()));
    }
    Err(RequestError::new("tool_choice", format!("`{name}` is not among `tools`")))
}

/// Writes an answer of Chat Completions.
pub(super) struct ChatWriter {
    head: ResponseHead,
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    end: ResponseEnd,
}

impl ChatWriter {
    pub(super) fn new(head: ResponseHead) -> Self {
        Self { head, text: String::new(), reasoning: String::new(), calls: Vec::new(), end: ResponseEnd::default() }
    }

    fn chunk(&self, choices: Value, usage: Option<Value>, out: &mut String) {
        let ResponseHead { id, model, created, include_usage, .. } = &self.head;
        let mut chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": choices,
        });
        if *include_usage {
            chunk["usage"] = usage.unwrap_or_default();
        }
        event(None, &chunk, out);
    }

    fn delta(&self, delta: Value, finish: Option<&str>, out: &mut String) {
        self.chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]), None, out);
    }

    fn reason(&mut self, text: &str, out: &mut String) {
        self.reasoning.push_str(text);
        self.delta(json!({"reasoning_content": text}), None, out);
    }

    fn finish_reason(&self) -> &'static str {
        match self.end.stop {
            StopReason::MaxTokens => "length",
            StopReason::Refusal => "content_filter",
            _ if !self.calls.is_empty() => "tool_calls",
            _ => "stop",
        }
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens, "total_tokens": usage.tokens(),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0},
    })
}

impl Writer for ChatWriter {
    fn begin(&mut self, out: &mut String) {
        self.delta(json!({"role": "assistant", "content": "", "refusal": null}), None, out);
    }

    fn piece(&mut self, piece: &ResponsePiece, out: &mut String) {
        match piece {
            ResponsePiece::Text(text) => {
                self.text.push_str(text);
                self.delta(json!({"content": text}), None, out);
            }
            ResponsePiece::Break if !self.text.is_empty() => {
                self.text.push_str("\n\n");
                self.delta(json!({"content": "\n\n"}), None, out);
            }
            ResponsePiece::Reasoning(text) => self.reason(text, out),
            // The API has no items for them.
            ResponsePiece::Began(call) if self.head.shows_calls => {
                self.reason(&format!("{} {}\n", call.name, call.arguments), out);
            }
            ResponsePiece::Ended { ok, text, .. } if self.head.shows_calls => {
                let what = if *ok { "result" } else { "error" };
                self.reason(&format!("{what}: {text}\n"), out);
            }
            ResponsePiece::Call(call) | ResponsePiece::Question { call, .. } => {
                let index = self.calls.len();
                let written = |arguments: &str| json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}});
                let mut first = written("");
                first["index"] = json!(index);
                self.delta(json!({"tool_calls": [first]}), None, out);
                let rest = json!({"index": index, "function": {"arguments": call.arguments}});
                self.delta(json!({"tool_calls": [rest]}), None, out);
                self.calls.push(written(&call.arguments));
            }
            ResponsePiece::Break | ResponsePiece::Began(_) | ResponsePiece::Ended { .. } | ResponsePiece::Opaque(_) => {
            }
        }
    }

    fn end(&mut self, end: ResponseEnd, out: &mut String) {
        self.end = end;
        self.delta(json!({}), Some(self.finish_reason()), out);
        if self.head.include_usage {
            self.chunk(json!([]), Some(usage(&self.end.usage)), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn interrupt(&self, error: &Value, out: &mut String) {
        event(None, error, out);
    }

    fn body(&self) -> Value {
        let ResponseHead { id, model, created, .. } = &self.head;
        let content = if self.text.is_empty() && !self.calls.is_empty() { Value::Null } else { json!(self.text) };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null, "annotations": []});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = json!(self.calls);
        }
        json!({
            "id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": self.finish_reason()}],
            "usage": usage(&self.end.usage),
        })
    }
}
