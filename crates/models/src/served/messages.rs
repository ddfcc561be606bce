//! Anthropic Messages as a server has it (platform.claude.com/docs/en/api/messages).

use serde_json::{Map, Value, json};
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{
    MAX_THINKING_TOKENS, ModelRequest, ModelSettings, OutputFormat, RequestSettings, RequestTool, StopReason,
    ToolChoice, Usage,
};

use super::chat::chosen;
use super::reading::{Conversation, Object, ReadResult, content, distinct, file, function, image, output, resource};
use super::references::item_id;
use super::shapes::is_foreign;
use super::writer::{Writer, event};
use super::{ResponseEnd, ResponseHead, ResponsePiece, ServedApi, ServedRequest};
use crate::api::Api;
use crate::codec::reasoning::MIN_BUDGET;

pub(super) fn read(body: &Map<String, Value>) -> ReadResult<ServedRequest> {
    let body = Object::root(body);
    let mut conversation = Conversation::default();
    conversation.instruct(joined_text(&content(&body, "system", block)?));
    for message in body.objects("messages")? {
        match message.needed_text("role")? {
            "user" => read_user(&message, &mut conversation)?,
            "assistant" => read_assistant(&message, &mut conversation)?,
            "system" => conversation.instruct(joined_text(&content(&message, "content", block)?)),
            other => return Err(message.wrong("role", format!("there is no role `{other}`"))),
        }
    }
    if conversation.messages.is_empty() {
        return Err(body.wrong("messages", "there is no message of the user"));
    }
    let mut ignored = Vec::new();
    let mut tools = Vec::new();
    for tool in body.objects("tools")? {
        match tool.text("type")? {
            None | Some("custom") => tools.push(function(&tool, "input_schema")?),
            Some(hosted) if hosted.starts_with("web_search") || hosted.starts_with("web_fetch") => {
                ignored.push(format!("{}={hosted}", tool.at("type")));
            }
            Some(other) => {
                return Err(tool.wrong(
                    "type",
                    format!("tools of the type `{other}` are not taken: send tools with an `input_schema`"),
                ));
            }
        }
    }
    distinct(&tools)?;
    let (tool_choice, parallel_calls) = choice(&body, &tools)?;
    let config = body.object("output_config")?;
    let effort = config.as_ref().map(|config| config.effort("effort")).transpose()?.flatten();
    let format = match (&config, body.object("output_format")?) {
        (_, Some(format)) => output(&format, &format)?,
        (Some(config), None) => config.object("format")?.map(|format| output(&format, &format)).transpose()?.flatten(),
        (None, None) => None,
    };
    let max_tokens = body.count("max_tokens")?;
    let (thinking_tokens, asks_thinking) = thinking(&body, max_tokens)?;
    let thinks = asks_thinking == Some(true);
    let user = body.object("metadata")?.map(|metadata| metadata.text("user_id")).transpose()?.flatten();
    Ok(ServedRequest {
        model: body.needed_text("model")?.to_owned(),
        request: ModelRequest {
            system: conversation.system.join("\n\n"),
            messages: conversation.messages,
            tools: tools.into(),
            tool_choice,
            parallel_calls,
            output: format.map(|format| OutputFormat { name: "answer".into(), ..format }),
            max_tokens,
            temperature: body.number("temperature", 1.0)?,
            settings: RequestSettings {
                settings: ModelSettings {
                    effort,
                    thinking_tokens,
                    top_p: body.number("top_p", 1.0)?,
                    top_k: body.count("top_k")?,
                    stop: body.stop("stop_sequences")?,
                    ..ModelSettings::default()
                },
                // Without a word about thinking, an effort alone does not turn it on.
                asks_thinking: asks_thinking.or(effort.map(|_| false)),
                limit_covers_reasoning: max_tokens.is_some(),
            },
            ..ModelRequest::default()
        },
        stream: body.bool("stream")?.unwrap_or(false),
        wants_reasoning: thinks,
        wants_signatures: thinks,
        moves_system: conversation.moves_system,
        user: user.map(str::to_owned),
        ignored,
        ..ServedRequest::default()
    })
}

/// Returns the thinking tokens, and whether the client asks for thinking, if it says so. A budget is at least the API's
/// minimum, and below the limit of the answer.
fn thinking(body: &Object<'_>, max_tokens: Option<u32>) -> ReadResult<(Option<u32>, Option<bool>)> {
    let Some(thinking) = body.object("thinking")? else { return Ok((None, None)) };
    match thinking.needed_text("type")? {
        "disabled" => Ok((Some(0), Some(false))),
        "adaptive" => Ok((None, Some(true))),
        "enabled" => {
            let wrong = |message: String| Err(thinking.wrong("budget_tokens", message));
            match (thinking.count("budget_tokens")?, max_tokens) {
                (None, _) => wrong("it is missing".into()),
                (Some(..MIN_BUDGET), _) => wrong(format!("it is below {MIN_BUDGET}")),
                (Some(budget), Some(most)) if budget >= most => wrong("it is not below `max_tokens`".into()),
                (Some(budget), _) => Ok((Some(budget.min(MAX_THINKING_TOKENS)), Some(true))),
            }
        }
        other => Err(thinking.wrong("type", format!("there is no thinking `{other}`: enabled, adaptive or disabled"))),
    }
}

fn choice(body: &Object<'_>, tools: &[RequestTool]) -> ReadResult<(ToolChoice, Option<bool>)> {
    let Some(choice) = body.object("tool_choice")? else { return Ok((ToolChoice::Auto, None)) };
    let parallel = choice.bool("disable_parallel_tool_use")?.map(|disabled| !disabled);
    let wanted = match choice.needed_text("type")? {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => chosen(tools, choice.needed_text("name")?)?,
        other => return Err(choice.wrong("type", format!("there is no choice `{other}`: auto, any, none or tool"))),
    };
    Ok((wanted, parallel))
}

/// Reads a message of the user: results of calls, then its other content.
fn read_user(message: &Object<'_>, out: &mut Conversation) -> ReadResult<()> {
    let Some(Value::Array(_)) = message.get("content") else {
        out.user(content(message, "content", block)?);
        return Ok(());
    };
    let mut said = Vec::new();
    let mut has_results = false;
    for part in message.objects("content")? {
        if part.text("type")? == Some("tool_result") {
            has_results = true;
            let is_error = part.bool("is_error")?.unwrap_or(false);
            out.result((&part, "tool_use_id"), content(&part, "content", block)?, is_error)?;
        } else {
            said.push(block(&part)?);
        }
    }
    if !said.is_empty() || !has_results {
        out.user(said);
    }
    Ok(())
}

fn read_assistant(message: &Object<'_>, out: &mut Conversation) -> ReadResult<()> {
    if !matches!(message.get("content"), Some(Value::Array(_))) {
        let text = joined_text(&content(message, "content", block)?);
        out.begin_assistant();
        out.say(&text);
        return Ok(());
    }
    out.begin_assistant();
    for part in message.objects("content")? {
        match part.needed_text("type")? {
            "text" => out.say(part.needed_text("text")?),
            "thinking" if part.text("signature")?.unwrap_or_default().is_empty() => {}
            "thinking" | "redacted_thinking" => out.opaque(Api::Anthropic.as_str(), Value::Object(part.map.clone()), 0),
            "tool_use" => out.call(toolwright_core::model::RawToolCall {
                id: part.needed_text("id")?.to_owned(),
                name: part.needed_text("name")?.to_owned(),
                arguments: part.get("input").unwrap_or(&json!({})).to_string(),
            }),
            // The following texts contain the output of tools that ran here.
            "server_tool_use" | "mcp_tool_use" | "mcp_tool_result" => {}
            kind if kind.ends_with("_tool_result") || is_foreign(ServedApi::Messages, "block", kind) => {}
            other => return Err(part.wrong("type", format!("blocks of the type `{other}` are not taken here"))),
        }
    }
    Ok(())
}

fn block(part: &Object<'_>) -> ReadResult<ContentBlock> {
    match part.needed_text("type")? {
        "text" => Ok(ContentBlock::text(part.needed_text("text")?)),
        "image" => {
            let source = needed(part, "source")?;
            match source.needed_text("type")? {
                "base64" => image(
                    &source,
                    ("media_type", "data"),
                    source.needed_text("media_type")?,
                    source.needed_text("data")?,
                ),
                other => {
                    Err(source.wrong("type", format!("images of the source `{other}` are not taken: send base64")))
                }
            }
        }
        "document" => {
            let source = needed(part, "source")?;
            let name = part.text("title")?.unwrap_or_default();
            match source.needed_text("type")? {
                "text" => Ok(resource(name, "text/plain", source.needed_text("data")?)),
                "base64" => file(
                    &source,
                    ("media_type", "data"),
                    name,
                    source.needed_text("data")?,
                    Some(source.needed_text("media_type")?),
                ),
                "content" => Ok(resource(name, "text/plain", &joined_text(&content(&source, "content", block)?))),
                other => {
                    Err(source.wrong("type", format!("documents of the source `{other}` are not taken: send text")))
                }
            }
        }
        "search_result" => {
            let text = joined_text(&content(part, "content", block)?);
            Ok(resource(part.text("source")?.unwrap_or_default(), "text/plain", &text))
        }
        "tool_reference" => Ok(ContentBlock::text(format!("[tool {}]", part.needed_text("tool_name")?))),
        other => Err(part.wrong("type", format!("blocks of the type `{other}` are not taken here"))),
    }
}

fn needed<'a>(part: &Object<'a>, key: &str) -> ReadResult<Object<'a>> {
    part.object(key)?.ok_or_else(|| part.wrong(key, "it is missing"))
}

/// The block that is being written.
#[derive(Clone, Copy, PartialEq)]
enum OpenBlock {
    Text,
    Thinking,
}

/// Writes an answer of Messages.
pub(super) struct MessagesWriter {
    head: ResponseHead,
    content: Vec<Value>,
    open: Option<OpenBlock>,
    end: ResponseEnd,
}

impl MessagesWriter {
    pub(super) fn new(head: ResponseHead) -> Self {
        Self { head, content: Vec::new(), open: None, end: ResponseEnd::default() }
    }

    fn event(kind: &str, mut body: Value, out: &mut String) {
        body["type"] = json!(kind);
        event(Some(kind), &body, out);
    }

    /// Closes the block that is being written.
    fn close(&mut self, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        let index = self.content.len() - 1;
        if open == OpenBlock::Thinking {
            let delta = json!({"type": "signature_delta", "signature": self.content[index]["signature"]});
            Self::event("content_block_delta", json!({"index": index, "delta": delta}), out);
        }
        Self::event("content_block_stop", json!({"index": index}), out);
    }

    /// Adds to the open block of this kind, or begins one.
    fn grow(&mut self, kind: OpenBlock, piece: &str, out: &mut String) {
        let (name, key) = match kind {
            OpenBlock::Text => ("text", "text"),
            OpenBlock::Thinking => ("thinking", "thinking"),
        };
        if self.open != Some(kind) {
            self.close(out);
            let mut block = json!({"type": name, key: ""});
            if kind == OpenBlock::Thinking {
                block["signature"] = json!("");
            }
            Self::event("content_block_start", json!({"index": self.content.len(), "content_block": block}), out);
            self.content.push(block);
            self.open = Some(kind);
        }
        let index = self.content.len() - 1;
        if !piece.is_empty() {
            let delta = json!({"type": format!("{name}_delta"), key: piece});
            Self::event("content_block_delta", json!({"index": index, "delta": delta}), out);
        }
        if let Value::String(whole) = &mut self.content[index][key] {
            whole.push_str(piece);
        }
    }

    /// Thinking as the API of the model signed it: the signature of the block that is open, or a block without a text.
    fn signed(&mut self, item: &Value, out: &mut String) {
        if item["type"] == "thinking" {
            if self.open != Some(OpenBlock::Thinking) {
                self.grow(OpenBlock::Thinking, "", out);
            }
            if let Some(block) = self.content.last_mut() {
                block["signature"] = item["signature"].clone();
            }
            self.close(out);
        } else {
            self.close(out);
            let index = self.content.len();
            Self::event("content_block_start", json!({"index": index, "content_block": item}), out);
            Self::event("content_block_stop", json!({"index": index}), out);
            self.content.push(item.clone());
        }
    }

    /// A call as a block of this type.
    fn call(&mut self, kind: &str, id: &str, name: &str, arguments: &str, out: &mut String) {
        self.close(out);
        let index = self.content.len();
        let block = |input: Value| json!({"type": kind, "id": id, "name": name, "input": input});
        Self::event("content_block_start", json!({"index": index, "content_block": block(json!({}))}), out);
        let delta = json!({"type": "input_json_delta", "partial_json": arguments});
        Self::event("content_block_delta", json!({"index": index, "delta": delta}), out);
        Self::event("content_block_stop", json!({"index": index}), out);
        self.content.push(block(serde_json::from_str(arguments).unwrap_or_else(|_| json!({}))));
    }

    fn stop_reason(&self) -> &'static str {
        match self.end.stop {
            StopReason::MaxTokens => "max_tokens",
            StopReason::Refusal => "refusal",
            StopReason::StopSequence(_) => "stop_sequence",
            _ if self.content.iter().any(|block| block["type"] == "tool_use") => "tool_use",
            _ => "end_turn",
        }
    }

    fn stop_sequence(&self) -> Option<&str> {
        match &self.end.stop {
            StopReason::StopSequence(sequence) => sequence.as_deref(),
            _ => None,
        }
    }

    fn message(&self, content: &[Value], stop: Option<&str>, usage: Value) -> Value {
        json!({
            "id": self.head.id, "type": "message", "role": "assistant", "model": self.head.model,
            "content": content, "stop_reason": stop, "stop_sequence": self.stop_sequence(), "usage": usage,
        })
    }
}

/// Cached tokens are counted apart.
fn usage(usage: &Usage) -> Value {
    let fresh = usage.input_tokens.saturating_sub(usage.cached_tokens).saturating_sub(usage.cache_written_tokens);
    json!({
        "input_tokens": fresh, "cache_creation_input_tokens": usage.cache_written_tokens,
        "cache_read_input_tokens": usage.cached_tokens, "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    })
}

/// Returns the text of an object: invalid arguments become the empty object.
fn object_text(arguments: &str) -> &str {
    let is_object = matches!(serde_json::from_str(arguments), Ok(Value::Object(_)));
    if is_object { arguments } else { "{}" }
}

impl Writer for MessagesWriter {
    fn begin(&mut self, out: &mut String) {
        let message = self.message(&[], None, usage(&Usage::default()));
        Self::event("message_start", json!({"message": message}), out);
    }

    fn piece(&mut self, piece: &ResponsePiece, out: &mut String) {
        match piece {
            ResponsePiece::Text(text) => self.grow(OpenBlock::Text, text, out),
            ResponsePiece::Reasoning(text) => self.grow(OpenBlock::Thinking, text, out),
            ResponsePiece::Break => self.close(out),
            ResponsePiece::Call(call) | ResponsePiece::Question { call, .. } => {
                self.call("tool_use", &call.id, &call.name, object_text(&call.arguments), out);
            }
            ResponsePiece::Began(call) => {
                // Runs number their calls anew, and a client may have the blocks of several.
                let id = item_id("srvtoolu", &self.head.id, self.content.len());
                self.call("server_tool_use", &id, &call.name, object_text(&call.arguments), out);
            }
            ResponsePiece::Opaque(data) if data.api == Api::Anthropic.as_str() => self.signed(&data.data, out),
            ResponsePiece::Ended { .. } | ResponsePiece::Opaque(_) => {}
        }
    }

    fn end(&mut self, end: ResponseEnd, out: &mut String) {
        self.end = end;
        self.close(out);
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": self.stop_sequence()});
        Self::event("message_delta", json!({"delta": delta, "usage": usage(&self.end.usage)}), out);
        Self::event("message_stop", json!({}), out);
    }

    fn interrupt(&self, error: &Value, out: &mut String) {
        event(Some("error"), error, out);
    }

    fn body(&self) -> Value {
        self.message(&self.content, Some(self.stop_reason()), usage(&self.end.usage))
    }
}
