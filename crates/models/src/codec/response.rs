//! Provides the parts that the decoders share: reads events without copying them, and builds the response in the same
//! way for every API, so that the streamed pieces add up to the response that is returned.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use toolwright_core::model::{
    ModelError, ModelErrorKind, ModelEvent, ModelResponse, NativeOutput, NonFunctionCall, OpaqueData, RawToolCall,
    StopReason, Usage,
};

use crate::api::Api;
use crate::codec::history::placed;
use crate::codec::native;
use crate::dialect::Toolset;

/// Bound on concurrently open calls and items of one response, which each event is looked up among.
pub(crate) const MAX_OPEN: usize = 1024;

/// Bound on calls and items of one response. Each takes a few bytes on the wire and some hundred in memory.
const MAX_ITEMS: usize = 1 << 16;

/// Receives the pieces as they arrive.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(ModelEvent);

/// Decodes the events of one API.
pub(crate) trait ApiDecoder: Send {
    /// Processes the JSON of one event, or of a whole response. Changes nothing if it is not JSON.
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError>;

    /// Processes `[DONE]`, which ends the streams of some APIs. Only Chat Completions needs it.
    fn done(&mut self, _sink: Sink<'_>) {}

    /// Returns the response so far.
    fn answer(&mut self) -> &mut ResponseBuilder;

    /// Returns unclosed calls of a response that broke off. A call is complete if its arguments are a whole object; a
    /// call in several parts may lack one.
    fn unclosed(&mut self) -> Vec<RawToolCall> {
        Vec::new()
    }
}

/// A response under construction.
#[derive(Debug, Default)]
pub(crate) struct ResponseBuilder {
    text: String,
    reasoning: String,
    calls: Vec<RawToolCall>,
    other_calls: Vec<NonFunctionCall>,
    closed: VecDeque<ClosedCall>,
    ids: HashSet<String>,
    /// The first number that was not tried for a generated id.
    free_id: usize,
    /// Whether the API has reported the response complete.
    pub complete: bool,
    /// Why the model stopped, once reported.
    pub stop: Option<StopReason>,
    /// Usage as the API reports it.
    pub usage: Usage,
    opaque: Vec<Value>,
    /// Output of the provider's native tools.
    pub native: NativeOutput,
    /// Whether calls or items exceeded the bound.
    overfull: bool,
    tools: Option<Arc<Toolset>>,
}

/// A closed call.
#[derive(Debug)]
struct ClosedCall {
    call: RawToolCall,
    is_complete: bool,
}

impl ResponseBuilder {
    /// Converts the arguments of calls back to the tools' own schemas.
    pub(crate) fn set_tools(&mut self, tools: Arc<Toolset>) {
        self.tools = Some(tools);
    }

    /// The name of the tool that was declared as the API's tool search.
    pub(crate) fn tool_search(&self) -> Option<&str> {
        Some(self.tools.as_ref()?.tool_search()?.name.as_str())
    }

    /// Drops everything that was received.
    pub(crate) fn reset(&mut self) {
        *self = Self { tools: self.tools.take(), ..Self::default() };
    }

    /// A piece of text.
    pub(crate) fn text(&mut self, piece: &str, sink: Sink<'_>) {
        if !piece.is_empty() {
            self.text.push_str(piece);
            sink(ModelEvent::Text(piece.to_owned()));
        }
    }

    /// A piece of reasoning.
    pub(crate) fn reasoning(&mut self, piece: &str, sink: Sink<'_>) {
        if !piece.is_empty() {
            self.reasoning.push_str(piece);
            sink(ModelEvent::Reasoning(piece.to_owned()));
        }
    }

    /// Begins a new paragraph of the reasoning.
    pub(crate) fn reasoning_part(&mut self, sink: Sink<'_>) {
        if !self.reasoning.is_empty() {
            self.reasoning("\n\n", sink);
        }
    }

    /// Data to send back at this place of the response.
    pub(crate) fn opaque(&mut self, item: Value) {
        self.opaque_with(item, 0);
    }

    /// Adds reasoning to send back at this place, which clients of the API see.
    pub(crate) fn signed(&mut self, api: Api, item: Value, sink: Sink<'_>) {
        sink(ModelEvent::Opaque(OpaqueData { api: api.as_str().to_owned(), data: item.clone() }));
        self.opaque(item);
    }

    /// Data to send back at this place, to which the next `own` bytes of the text belong.
    pub(crate) fn opaque_with(&mut self, item: Value, own: usize) {
        self.opaque_at(item, self.text.len(), own);
    }

    /// Data to send back at the byte `start` of the text, to which the `own` bytes after it belong.
    pub(crate) fn opaque_at(&mut self, item: Value, start: usize, own: usize) {
        if self.has_room() {
            native::note(&item, &mut self.native);
            let calls = self.calls.len() + self.closed.len();
            self.opaque.push(placed(item, start, calls, own));
        }
    }

    /// Adds data on the provider's native tools, which is not sent back.
    pub(crate) fn native_note(&mut self, item: &Value) {
        native::note(item, &mut self.native);
    }

    /// The length of the text so far, in bytes.
    pub(crate) fn text_len(&self) -> usize {
        self.text.len()
    }

    /// A piece of the text so far.
    pub(crate) fn text_since(&self, start: usize) -> &str {
        self.text.get(start..).unwrap_or_default()
    }

    fn has_room(&mut self) -> bool {
        let items = self.opaque.len() + self.other_calls.len() + self.calls.len() + self.closed.len();
        self.overfull |= items >= MAX_ITEMS;
        !self.overfull
    }

    /// Fails if calls or items exceeded the bound.
    pub(crate) fn all_kept(&self) -> Result<(), ModelError> {
        if !self.overfull {
            return Ok(());
        }
        let message = format!("the answer holds more than {MAX_ITEMS} calls and items");
        Err(ModelError::new(ModelErrorKind::BadResponse, message))
    }

    /// The reasoning so far.
    pub(crate) fn shown_reasoning(&self) -> &str {
        &self.reasoning
    }

    /// Whether a piece other than reasoning was passed on.
    pub(crate) fn has_output(&self) -> bool {
        !self.text.is_empty() || !self.calls.is_empty() || !self.other_calls.is_empty()
    }

    /// An item for the client that is not a function call.
    pub(crate) fn other_call(&mut self, call: NonFunctionCall) {
        if self.has_room() {
            self.other_calls.push(call);
        }
    }

    /// Adds a closed call. It is passed on at once if its arguments are JSON; otherwise it waits for
    /// [`ResponseBuilder::release`], because the token limit or a filter may have cut them.
    pub(crate) fn close_call(&mut self, call: RawToolCall, sink: Sink<'_>) {
        if !self.has_room() {
            return;
        }
        let whole = is_json(&call.arguments);
        self.closed.push_back(ClosedCall { call, is_complete: whole });
        while self.closed.front().is_some_and(|closed| closed.is_complete) {
            self.release_first(sink);
        }
    }

    /// Adds a closed call without arguments. It has none, or was cut before the first.
    pub(crate) fn close_bare_call(&mut self, call: RawToolCall) {
        if self.has_room() {
            self.closed.push_back(ClosedCall { call, is_complete: false });
        }
    }

    /// Passes on waiting calls, once the stop reason is known. Drops a last call cut by the token limit or a filter.
    pub(crate) fn release(&mut self, sink: Sink<'_>) {
        let cut = matches!(self.stop, Some(StopReason::MaxTokens | StopReason::Refusal));
        if cut && self.closed.back().is_some_and(|closed| !closed.is_complete) {
            self.closed.pop_back();
        }
        while !self.closed.is_empty() {
            self.release_first(sink);
        }
    }

    fn release_first(&mut self, sink: Sink<'_>) {
        let Some(ClosedCall { mut call, .. }) = self.closed.pop_front() else { return };
        if let Some(restored) = self.tools.as_ref().and_then(|tools| tools.restore(&call.name, &call.arguments)) {
            call.arguments = restored;
        }
        // Other ids may look like generated ones: each number is tried once.
        while call.id.is_empty() || !self.ids.insert(call.id.clone()) {
            self.free_id = self.free_id.max(self.calls.len());
            call.id = format!("call_{}", self.free_id);
            self.free_id += 1;
        }
        sink(ModelEvent::Call(call.clone()));
        self.calls.push(call);
    }

    /// Keeps the complete calls of a broken response.
    pub(crate) fn keep_complete_calls(&mut self, unclosed: Vec<RawToolCall>) {
        let waiting = std::mem::take(&mut self.closed).into_iter().map(|closed| closed.call);
        for call in waiting.chain(unclosed) {
            if is_whole(&call.arguments) {
                self.closed.push_back(ClosedCall { call, is_complete: true });
                self.release_first(&mut |_| {});
            }
        }
    }

    /// Usage within plausible bounds.
    pub(crate) fn used(&self) -> Usage {
        self.usage.bounded()
    }

    /// Describes the content so far; `None` if there is none.
    pub(crate) fn describe(&self) -> Option<String> {
        let mut kept = Vec::new();
        if !self.text.is_empty() {
            kept.push(format!("{} bytes of text", self.text.len()));
        }
        if !self.reasoning.is_empty() {
            kept.push(format!("{} bytes of reasoning", self.reasoning.len()));
        }
        match self.calls.len() + self.other_calls.len() {
            0 => {}
            1 => kept.push("1 whole call".to_owned()),
            calls => kept.push(format!("{calls} whole calls")),
        }
        (!kept.is_empty()).then(|| kept.join(", "))
    }

    /// Returns the response. Its stop reason is calls if it has any: some servers say `stop` with calls.
    pub(crate) fn into_response(self, api: Api) -> ModelResponse {
        let usage = self.used();
        let calls = !self.calls.is_empty() || !self.other_calls.is_empty();
        let stop = match self.stop {
            Some(StopReason::End | StopReason::StopSequence(_)) | None if calls => StopReason::ToolCalls,
            Some(StopReason::ToolCalls) | None if !calls => StopReason::End,
            Some(stop) => stop,
            None => StopReason::End,
        };
        let opaque = self.opaque.into_iter().map(|data| OpaqueData { api: api.as_str().into(), data }).collect();
        ModelResponse {
            text: self.text,
            reasoning: self.reasoning,
            calls: self.calls,
            other_calls: self.other_calls,
            is_final: false,
            stop,
            usage,
            opaque,
            native: self.native,
        }
    }
}

/// Whether arguments are a complete JSON object.
pub(crate) fn is_whole(arguments: &str) -> bool {
    arguments.trim_start().starts_with('{') && is_json(arguments)
}

fn is_json(arguments: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(arguments).is_ok()
}

/// Fails if `open` calls and items are open and no other may begin.
pub(crate) fn may_open(open: usize) -> Result<(), ModelError> {
    if open < MAX_OPEN {
        return Ok(());
    }
    let message = format!("the answer holds more than {MAX_OPEN} calls or items that have not ended");
    Err(ModelError::new(ModelErrorKind::BadResponse, message))
}

/// A text of an event, borrowed from it if it has no escapes. Any other value counts as an empty text: servers send `null`,
/// and sometimes an object, where the API has a text.
#[derive(Debug, Default)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl<'a> Text<'a> {
    /// A text of the event itself.
    pub(crate) fn borrowed(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// A text that had escapes.
    pub(crate) fn owned(text: &str) -> Self {
        Self(Cow::Owned(text.to_owned()))
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, unless it is empty.
    pub(crate) fn filled(&self) -> Option<&str> {
        Some(self.as_str()).filter(|text| !text.is_empty())
    }

    /// Converts it to an owned text.
    pub(crate) fn into_string(self) -> String {
        self.0.into_owned()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text::borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text::owned(text))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Text::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text::default())
    }
}

/// Reads a number or boolean of an event, also if written as text. Any other value counts as absent.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let written = <&RawValue>::deserialize(deserializer)?.get();
    Ok(serde_json::from_str(written.trim_matches('"')).ok())
}

/// Parses the JSON of an event or answer.
pub(crate) fn parse<'a, T: Deserialize<'a>>(api: Api, data: &'a [u8]) -> Result<T, ModelError> {
    serde_json::from_slice(data).map_err(|error| {
        let start = String::from_utf8_lossy(&data[..data.len().min(120)]).into_owned();
        let message = format!("the answer holds something that is no {api} event ({error}): {start}");
        ModelError { source: Some(Box::new(error)), ..ModelError::new(ModelErrorKind::BadResponse, message) }
    })
}

/// Parses a part of an event that was set aside unread.
pub(crate) fn parse_part<'a, T: Deserialize<'a>>(api: Api, part: &'a RawValue) -> Result<T, ModelError> {
    parse(api, part.get().as_bytes())
}

/// A part of an event as a value.
pub(crate) fn value(part: &RawValue) -> Value {
    serde_json::from_str(part.get()).unwrap_or_default()
}

/// Arguments as they were written: JSON text, or the JSON itself from servers that do not wrap it.
pub(crate) fn arguments(part: &RawValue) -> Cow<'_, str> {
    let written = part.get();
    match written.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<Text<'_>>(written).unwrap_or_default().0,
        _ if written == "null" => Cow::Borrowed(""),
        _ => Cow::Borrowed(written),
    }
}

/// Returns the number at `pointer`; zero if there is none.
pub(crate) fn count(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// JSON Pointers to usage in OpenAI's two APIs.
pub(crate) struct UsagePointers {
    pub(crate) prompt: &'static str,
    pub(crate) cached: &'static str,
    pub(crate) cache_written: &'static str,
    pub(crate) answer: &'static str,
    pub(crate) reasoning: &'static str,
    pub(crate) all: &'static str,
}

impl UsagePointers {
    /// Reads the usage of a request.
    pub(crate) fn read(&self, usage: &Value) -> Usage {
        let (output_tokens, reasoning_tokens) = self.answer_tokens(usage);
        Usage {
            input_tokens: count(usage, self.prompt),
            output_tokens,
            cached_tokens: count(usage, self.cached),
            cache_written_tokens: count(usage, self.cache_written),
            reasoning_tokens,
        }
    }

    /// Returns the tokens of the response including reasoning, as OpenAI counts them, and those of its reasoning. Two
    /// servers count reasoning separately, so that the total is larger: xAI, which reports the amount, and Google's
    /// endpoint of this API, which reports only the three totals.
    fn answer_tokens(&self, usage: &Value) -> (u64, u64) {
        let [prompt, answer, all] = [self.prompt, self.answer, self.all].map(|place| count(usage, place));
        let beside = all.saturating_sub(prompt).saturating_sub(answer);
        let reported = usage.pointer(self.reasoning).and_then(Value::as_u64);
        let is_reasoning = match reported {
            Some(reasoning) => beside == reasoning,
            None => usage.pointer(self.cached).is_none(),
        };
        if is_reasoning { (answer.saturating_add(beside), beside) } else { (answer, reported.unwrap_or(0).min(answer)) }
    }
}
