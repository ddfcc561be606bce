//! Decodes responses of Chat Completions.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use toolwright_core::model::{ModelError, NonFunctionCall, RawToolCall, StopReason};

use super::{API, ReasoningEcho, of_call};
use crate::codec::response::{
    ApiDecoder, ResponseBuilder, Sink, Text, UsagePointers, arguments, is_whole, lenient, may_open, parse, value,
};
use crate::failure;

const FIGURES: UsagePointers = UsagePointers {
    prompt: "/prompt_tokens",
    cached: "/prompt_tokens_details/cached_tokens",
    cache_written: "/prompt_tokens_details/cache_write_tokens",
    answer: "/completion_tokens",
    reasoning: "/completion_tokens_details/reasoning_tokens",
    all: "/total_tokens",
};

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default, deserialize_with = "lenient")]
    index: Option<u64>,
    /// In a stream.
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    /// In a response without streaming.
    #[serde(borrow)]
    message: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Text<'a>,
    /// The text that ended the answer, from servers that report it (vLLM).
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Content<'a>,
    #[serde(borrow, default)]
    refusal: Text<'a>,
    #[serde(borrow)]
    reasoning_content: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning_details: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<CallDelta<'a>>>,
    /// The one call of servers with the API of 2023.
    #[serde(borrow)]
    function_call: Option<FunctionDelta<'a>>,
}

/// Text, or a list of parts from servers that send reasoning among them.
#[derive(Default)]
enum Content<'a> {
    #[default]
    None,
    Text(Text<'a>),
    Parts(Vec<Part<'a>>),
}

/// `{"type": "text", "text"}` or Mistral's `{"type": "thinking", "thinking": [{"text"}]}`.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    thinking: Content<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of parts")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Content::Text(Text::borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(Text::owned(text)))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Content::None)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

#[derive(Deserialize, Default)]
struct CallDelta<'a> {
    #[serde(default, deserialize_with = "lenient")]
    index: Option<u64>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    function: Option<FunctionDelta<'a>>,
    /// A call of a tool with free text.
    #[serde(borrow)]
    custom: Option<FunctionDelta<'a>>,
    /// Data that the server wants back with the call.
    #[serde(borrow)]
    extra_content: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct FunctionDelta<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    /// JSON text; some servers send the object itself.
    #[serde(borrow, alias = "input")]
    arguments: Option<&'a RawValue>,
}

/// A call that is being received.
struct PartialCall {
    index: Option<u64>,
    custom: bool,
    call: RawToolCall,
    extra_content: Option<Value>,
}

/// Decodes a response. The stream does not mark the end of a call: a call ends when another begins and its
/// arguments are complete, else when the choice finishes.
#[derive(Default)]
pub(crate) struct ChatDecoder {
    answer: ResponseBuilder,
    slots: Vec<PartialCall>,
    echo: ReasoningEcho,
}

impl ApiDecoder for ChatDecoder {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let chunk: Chunk<'_> = parse(API, data)?;
        if let Some(error) = chunk.error {
            return Err(failure::from_event(API, &value(error)));
        }
        if let Some(usage) = chunk.usage.map(value) {
            self.answer.usage = FIGURES.read(&usage);
        } else if chunk.choices.is_none() {
            return failure::from_unknown(API, data).map_or(Ok(()), Err);
        }
        // We request one choice. Without an index, its position counts.
        for (position, choice) in (0..).zip(chunk.choices.into_iter().flatten()) {
            if choice.index.unwrap_or(position) != 0 {
                continue;
            }
            if let Some(delta) = choice.delta.or(choice.message) {
                self.delta(delta, sink)?;
            }
            if let Some(reason) = choice.finish_reason.filled() {
                let refused = self.answer.stop == Some(StopReason::Refusal);
                self.answer.stop =
                    Some(if refused { StopReason::Refusal } else { stop_reason(reason, &choice.stop_reason) });
                self.close(sink);
            }
        }
        Ok(())
    }

    fn done(&mut self, sink: Sink<'_>) {
        self.close(sink);
    }

    fn answer(&mut self) -> &mut ResponseBuilder {
        &mut self.answer
    }

    fn unclosed(&mut self) -> Vec<RawToolCall> {
        self.keep_echo();
        for slot in std::mem::take(&mut self.slots) {
            if !slot.custom && is_whole(&slot.call.arguments) {
                self.close_slot(slot, &mut |_| {});
            }
        }
        Vec::new()
    }
}

impl ChatDecoder {
    fn delta(&mut self, delta: Delta<'_>, sink: Sink<'_>) -> Result<(), ModelError> {
        let reasoning = [("reasoning_content", &delta.reasoning_content), ("reasoning", &delta.reasoning)];
        let reasoning = reasoning.map(|(key, piece)| (key, piece.as_ref().map(Text::as_str)));
        for (key, piece) in reasoning {
            piece.into_iter().for_each(|piece| self.echo.text(key, piece));
        }
        // Some servers send the same text under both names.
        if let Some(piece) = reasoning.iter().filter_map(|(_, piece)| *piece).find(|piece| !piece.is_empty()) {
            self.answer.reasoning(piece, sink);
        }
        if let Some(details) = delta.reasoning_details {
            self.echo.details(details);
        }
        match &delta.content {
            Content::None => {}
            Content::Text(text) => self.answer.text(text.as_str(), sink),
            Content::Parts(parts) => parts.iter().for_each(|part| self.content_part(part, sink)),
        }
        if let Some(refusal) = delta.refusal.filled() {
            self.answer.text(refusal, sink);
            self.answer.stop = Some(StopReason::Refusal);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call, sink)?;
        }
        if let Some(function) = delta.function_call {
            let (index, function) = (Some(0), Some(function));
            self.call(CallDelta { index, function, ..CallDelta::default() }, sink)?;
        }
        Ok(())
    }

    fn content_part(&mut self, part: &Part<'_>, sink: Sink<'_>) {
        self.answer.text(part.text.as_str(), sink);
        match &part.thinking {
            Content::None => {}
            Content::Text(text) => self.answer.reasoning(text.as_str(), sink),
            Content::Parts(thoughts) => {
                thoughts.iter().for_each(|thought| self.answer.reasoning(thought.text.as_str(), sink));
            }
        }
    }

    /// Adds a delta to its call. The API identifies the call by index; some servers leave it out, and some send index 0 for
    /// every call and different ids.
    fn call(&mut self, delta: CallDelta<'_>, sink: Sink<'_>) -> Result<(), ModelError> {
        let custom = delta.custom.is_some() || delta.kind.as_str() == "custom";
        let function = delta.custom.or(delta.function).unwrap_or_default();
        let extra = delta.extra_content.map(value);
        let (id, name) = (delta.id.as_str(), function.name.as_str());
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
        let arguments = function.arguments.map(arguments).unwrap_or_default();
        match slot {
            Some(PartialCall { call, extra_content, .. }) => {
                if call.id.is_empty() {
                    call.id.push_str(id);
                }
                if call.name.is_empty() {
                    call.name.push_str(name);
                }
                call.arguments.push_str(&arguments);
                *extra_content = extra.or(extra_content.take());
            }
            // White space after a call that was passed on.
            None if id.is_empty() && name.is_empty() && arguments.trim().is_empty() => {}
            None => {
                self.close_whole(sink);
                may_open(self.slots.len())?;
                let arguments = arguments.into_owned();
                let call = RawToolCall { id: id.to_owned(), name: name.to_owned(), arguments };
                self.slots.push(PartialCall { index: delta.index, custom, call, extra_content: extra });
            }
        }
        Ok(())
    }

    /// Closes the first calls with complete arguments, because another one begins.
    fn close_whole(&mut self, sink: Sink<'_>) {
        let whole = self.slots.iter().take_while(|slot| !slot.custom && is_whole(&slot.call.arguments)).count();
        let whole: Vec<PartialCall> = self.slots.drain(..whole).collect();
        whole.into_iter().for_each(|slot| self.close_slot(slot, sink));
    }

    /// Closes a function call, after the data that the server wants back with it.
    fn close_slot(&mut self, slot: PartialCall, sink: Sink<'_>) {
        if let Some(extra) = slot.extra_content {
            self.answer.opaque(of_call(extra));
        }
        self.answer.close_call(slot.call, sink);
    }

    fn keep_echo(&mut self) {
        if let Some(kept) = self.echo.take() {
            self.answer.opaque(kept);
        }
    }

    fn close(&mut self, sink: Sink<'_>) {
        self.answer.complete = true;
        let mut slots = std::mem::take(&mut self.slots);
        let cut = matches!(self.answer.stop, Some(StopReason::MaxTokens | StopReason::Refusal));
        if cut && slots.last().is_some_and(|slot| slot.custom) {
            slots.pop();
        }
        for slot in slots {
            if slot.custom {
                let RawToolCall { id, name, arguments } = slot.call;
                let input = arguments.into();
                self.answer.other_call(NonFunctionCall { kind: "custom".into(), id, name: Some(name), input });
            } else {
                self.close_slot(slot, sink);
            }
        }
        self.answer.release(sink);
        self.keep_echo();
    }
}

fn stop_reason(reason: &str, sequence: &Text<'_>) -> StopReason {
    match (reason, sequence.filled()) {
        ("stop", Some(sequence)) => StopReason::StopSequence(Some(sequence.to_owned())),
        ("stop", None) => StopReason::End,
        ("tool_calls" | "function_call", _) => StopReason::ToolCalls,
        ("length", _) => StopReason::MaxTokens,
        ("content_filter", _) => StopReason::Refusal,
        (other, _) => StopReason::Other(other.to_owned()),
    }
}
