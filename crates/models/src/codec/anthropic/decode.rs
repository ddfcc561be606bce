//! Decodes responses of Anthropic Messages.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelError, ModelErrorKind, NativeTool, RawToolCall, StopReason, Usage};

use super::API;
use crate::api::Api;
use crate::codec::response::{
    ApiDecoder, ResponseBuilder, Sink, Text, arguments, count, lenient, may_open, parse, parse_part, value,
};
use crate::failure;

/// An event, a whole message, or an error: every key that any of them has.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(default, deserialize_with = "lenient")]
    index: Option<u64>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    content_block: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
    #[serde(borrow, default)]
    stop_sequence: Text<'a>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    #[serde(borrow, default)]
    signature: Text<'a>,
    #[serde(borrow, default)]
    partial_json: Text<'a>,
    /// A summary that replaces the conversation so far.
    #[serde(borrow, default)]
    content: Text<'a>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
    #[serde(borrow, default)]
    stop_sequence: Text<'a>,
    /// A source of the text.
    #[serde(borrow)]
    citation: Option<&'a RawValue>,
}

/// The part of a block's start that is read.
#[derive(Deserialize)]
struct Start<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    citations: Option<&'a RawValue>,
}

/// A content block that has not closed.
struct Block {
    index: u64,
    kind: Kind,
    /// The streamed input.
    input: String,
}

enum Kind {
    /// A text, with its start in the answer, and its citations.
    Text { start: usize, citations: Vec<Value> },
    /// A call, with the input that its start had.
    Call(RawToolCall),
    /// Thinking, and calls that the server ran: sent back unchanged.
    Opaque { start: Map<String, Value>, thinking: String, signature: String, content: String },
}

/// A response that is being decoded.
#[derive(Default)]
pub(crate) struct AnthropicDecoder {
    answer: ResponseBuilder,
    open: Vec<Block>,
    started: bool,
}

impl ApiDecoder for AnthropicDecoder {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let event: Event<'_> = parse(API, data)?;
        let index = event.index.unwrap_or_default();
        match event.kind.as_str() {
            "content_block_delta" => {
                if let Some(delta) = event.delta {
                    self.delta(index, &delta, sink);
                }
            }
            "content_block_start" => {
                if let Some(start) = event.content_block {
                    self.open(index, start, sink)?;
                }
            }
            "content_block_stop" => {
                if let Some(at) = self.open.iter().position(|block| block.index == index) {
                    let block = self.open.remove(at);
                    self.close(block, sink);
                }
            }
            "message_start" => self.start(event.message, sink)?,
            "message_delta" => {
                self.usage(event.usage);
                if let Some((reason, delta)) =
                    event.delta.as_ref().and_then(|delta| Some((delta.stop_reason.filled()?, delta)))
                {
                    self.answer.stop = Some(stop_reason(reason, &delta.stop_sequence));
                }
            }
            "message_stop" => self.finish(sink),
            "message" => self.whole(data, sink)?,
            "error" => return Err(failure::from_event(API, &event.error.map(value).unwrap_or_default())),
            "ping" => {}
            _ => {
                if let Some(error) = event.error {
                    return Err(failure::from_event(API, &value(error)));
                }
                return failure::from_unknown(API, data).map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> &mut ResponseBuilder {
        &mut self.answer
    }

    fn unclosed(&mut self) -> Vec<RawToolCall> {
        let call = |block: Block| match block.kind {
            Kind::Call(call) => Some(RawToolCall { arguments: block.input, ..call }),
            Kind::Text { .. } | Kind::Opaque { .. } => None,
        };
        std::mem::take(&mut self.open).into_iter().filter_map(call).collect()
    }
}

impl AnthropicDecoder {
    /// Reads a whole message. If the token limit cuts a call, the server closes its input, so that it looks complete: a
    /// call at the end of such a message is dropped.
    fn whole(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let message: Message<'_> = parse(API, data)?;
        let (Some(mut content), Some(reason)) = (message.content, message.stop_reason.filled()) else {
            return Err(ModelError::new(ModelErrorKind::BadResponse, "the answer holds no finished message"));
        };
        self.usage(message.usage);
        let stop = stop_reason(reason, &message.stop_sequence);
        if let (StopReason::MaxTokens | StopReason::Refusal, Some(last)) = (&stop, content.last())
            && parse_part::<Start<'_>>(API, last)?.kind.as_str() == "tool_use"
        {
            content.pop();
        }
        self.answer.stop = Some(stop);
        self.blocks(content, sink)?;
        self.finish(sink);
        Ok(())
    }

    /// Starts a message. Consecutive complete messages are one response. A message that begins inside another replaces
    /// it, because some relays restart when their upstream breaks; this works only before any piece was passed on.
    fn start(&mut self, message: Option<&RawValue>, sink: Sink<'_>) -> Result<(), ModelError> {
        if std::mem::take(&mut self.answer.complete) {
            self.started = false;
        }
        if self.started && self.answer.has_output() {
            return Err(ModelError::new(
                ModelErrorKind::BadResponse,
                "the stream began a second message after text or calls of a first",
            ));
        }
        if self.started {
            self.answer.reset();
        }
        self.open.clear();
        self.started = true;
        let Some(message) = message else { return Ok(()) };
        let message: Message<'_> = parse_part(API, message)?;
        self.usage(message.usage);
        // A turn that continues after a program of the server begins with its earlier blocks.
        self.blocks(message.content.unwrap_or_default(), sink)
    }

    /// Blocks that come whole.
    fn blocks(&mut self, blocks: Vec<&RawValue>, sink: Sink<'_>) -> Result<(), ModelError> {
        for (index, block) in (0..).zip(blocks) {
            self.open(index, block, sink)?;
            if let Some(block) = self.open.pop() {
                self.close(block, sink);
            }
        }
        Ok(())
    }

    fn open(&mut self, index: u64, block: &RawValue, sink: Sink<'_>) -> Result<(), ModelError> {
        may_open(self.open.len())?;
        let start: Start<'_> = parse_part(API, block)?;
        let kind = match start.kind.as_str() {
            "text" => {
                let at = self.answer.text_len();
                self.answer.text(start.text.as_str(), sink);
                let citations =
                    start.citations.and_then(|all| serde_json::from_str(all.get()).ok()).unwrap_or_default();
                Kind::Text { start: at, citations }
            }
            "tool_use" => {
                let arguments = start.input.map(arguments).unwrap_or_default().into_owned();
                Kind::Call(RawToolCall { id: start.id.into_string(), name: start.name.into_string(), arguments })
            }
            _ => {
                self.answer.reasoning(start.thinking.as_str(), sink);
                let (thinking, signature, content) = Default::default();
                Kind::Opaque { start: parse_part(API, block)?, thinking, signature, content }
            }
        };
        self.open.push(Block { index, kind, input: String::new() });
        Ok(())
    }

    fn delta(&mut self, index: u64, delta: &Delta<'_>, sink: Sink<'_>) {
        let Some(block) = self.open.iter_mut().rev().find(|block| block.index == index) else { return };
        block.input.push_str(delta.partial_json.as_str());
        match &mut block.kind {
            Kind::Text { citations, .. } => {
                citations.extend(delta.citation.map(value));
                self.answer.text(delta.text.as_str(), sink);
            }
            Kind::Call(_) => {}
            Kind::Opaque { thinking, signature, content, .. } => {
                thinking.push_str(delta.thinking.as_str());
                signature.push_str(delta.signature.as_str());
                content.push_str(delta.content.as_str());
                self.answer.reasoning(delta.thinking.as_str(), sink);
            }
        }
    }

    /// Closes a block. Text was passed on already; a call is passed on now; other blocks are kept to be sent back.
    fn close(&mut self, block: Block, sink: Sink<'_>) {
        match block.kind {
            Kind::Text { citations, .. } if citations.is_empty() => {}
            // A text with citations is sent back with them.
            Kind::Text { start, citations } => {
                let text = self.answer.text_since(start);
                let (own, item) = (text.len(), json!({"type": "text", "text": text, "citations": citations}));
                self.answer.opaque_at(item, start, own);
            }
            Kind::Call(call) if !block.input.is_empty() => {
                self.answer.close_call(RawToolCall { arguments: block.input, ..call }, sink);
            }
            // A call without arguments looks like one that was cut before the first.
            Kind::Call(mut call) if matches!(call.arguments.as_str(), "" | "{}") => {
                call.arguments = "{}".into();
                self.answer.close_bare_call(call);
            }
            Kind::Call(call) => self.answer.close_call(call, sink),
            Kind::Opaque { mut start, thinking, signature, content } => {
                for (key, grown) in [("thinking", thinking), ("signature", signature), ("content", content)] {
                    if !grown.is_empty() {
                        let begun = start.get(key).and_then(Value::as_str).unwrap_or_default();
                        start.insert(key.into(), format!("{begun}{grown}").into());
                    }
                }
                if let Ok(input) = serde_json::from_str::<Value>(&block.input) {
                    start.insert("input".into(), input);
                }
                match start.get("type").and_then(Value::as_str) {
                    Some("thinking" | "redacted_thinking") => self.answer.signed(Api::Anthropic, start.into(), sink),
                    _ => self.answer.opaque(start.into()),
                }
            }
        }
    }

    /// Drops blocks that have not closed.
    fn finish(&mut self, sink: Sink<'_>) {
        self.answer.complete = true;
        self.open.clear();
        self.answer.release(sink);
    }

    /// Later values replace earlier ones; cache counts only if they are repeated. The API counts cached tokens
    /// separately; here they are included in the input.
    fn usage(&mut self, usage: Option<&RawValue>) {
        let Some(usage) = usage.map(value) else { return };
        if usage.get("input_tokens").is_some_and(Value::is_u64) {
            let before = self.answer.usage;
            let cached = usage.get("cache_read_input_tokens").and_then(Value::as_u64).unwrap_or(before.cached_tokens);
            let written = usage.get("cache_creation_input_tokens").and_then(Value::as_u64);
            let written = written.unwrap_or(before.cache_written_tokens);
            self.answer.usage.input_tokens =
                count(&usage, "/input_tokens").saturating_add(cached).saturating_add(written);
            self.answer.usage.cached_tokens = cached;
            self.answer.usage.cache_written_tokens = written;
        }
        if let Some(searches) = usage.pointer("/server_tool_use/web_search_requests").and_then(Value::as_u64) {
            self.answer.native.reported.insert(NativeTool::WebSearch, searches);
        }
        if usage.get("output_tokens").is_some_and(Value::is_u64) {
            let reasoning_tokens = count(&usage, "/output_tokens_details/thinking_tokens");
            self.answer.usage =
                Usage { output_tokens: count(&usage, "/output_tokens"), reasoning_tokens, ..self.answer.usage };
        }
    }
}

fn stop_reason(reason: &str, sequence: &Text<'_>) -> StopReason {
    match reason {
        "end_turn" => StopReason::End,
        "stop_sequence" => StopReason::StopSequence(sequence.filled().map(str::to_owned)),
        "tool_use" => StopReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => StopReason::MaxTokens,
        "refusal" => StopReason::Refusal,
        other => StopReason::Other(other.to_owned()),
    }
}
