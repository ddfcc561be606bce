//! Assembles an answer, the same way for every API: the pieces that are streamed add up to the answer that is kept.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::Value;
use toolwright_core::model::{
    ModelError, ModelErrorKind, ModelEvent, ModelResponse, OpaqueData, OtherCall, StopReason, Usage, WrittenCall,
};

use crate::api::Api;
use crate::codec::history::placed;
use crate::dialect::Toolset;

/// Calls and items of one answer that may be open at the same time. More is no answer: each event is looked
/// up among them.
pub(crate) const MAX_OPEN: usize = 1024;

/// Calls and items of one answer. A few bytes on the wire make one, and each takes some hundred here.
const MAX_ITEMS: usize = 1 << 16;

/// Takes the pieces as they come.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(ModelEvent);

/// Assembles the answer of one API.
pub(crate) trait ApiDecoder: Send {
    /// Takes the JSON of one event, or of a whole answer. Nothing has changed when it is no JSON.
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError>;

    /// Takes the mark `[DONE]` that ends the streams of some APIs, and means something to one.
    fn done(&mut self, _sink: Sink<'_>) {}

    /// Whether the API has said that the answer is over.
    fn is_complete(&self) -> bool;

    /// What has been received.
    fn answer(&mut self) -> &mut ResponseBuilder;

    /// Calls that have not closed, for an answer that broke off: those whose arguments are a whole object
    /// lack nothing but the word that they do.
    fn unclosed(&mut self) -> Vec<WrittenCall>;
}

/// What has been received.
#[derive(Debug, Default)]
pub(crate) struct ResponseBuilder {
    text: String,
    reasoning: String,
    calls: Vec<WrittenCall>,
    other_calls: Vec<OtherCall>,
    closed: VecDeque<Closed>,
    ids: HashSet<String>,
    /// The first number that was not tried for an id of our own.
    free_id: usize,
    /// Why the model stopped, once it said.
    pub stop: Option<StopReason>,
    /// What it used, as the API says it.
    pub usage: Usage,
    opaque: Vec<Value>,
    /// Whether there were more calls or items than are kept.
    overfull: bool,
    tools: Option<Arc<Toolset>>,
}

/// A call whose block has closed.
#[derive(Debug)]
struct Closed {
    call: WrittenCall,
    whole: bool,
}

impl ResponseBuilder {
    /// Undoes in calls what the view of the tools changed.
    pub(crate) fn set_tools(&mut self, tools: Arc<Toolset>) {
        self.tools = Some(tools);
    }

    /// The name of the tool that was shown as the API's tool search.
    pub(crate) fn tool_search(&self) -> Option<&str> {
        Some(self.tools.as_ref()?.tool_search()?.name.as_str())
    }

    /// Forgets everything that was received.
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

    /// A part of the reasoning begins that is a paragraph of its own.
    pub(crate) fn reasoning_part(&mut self, sink: Sink<'_>) {
        if !self.reasoning.is_empty() {
            self.reasoning("\n\n", sink);
        }
    }

    /// Data to echo at this place of the answer.
    pub(crate) fn opaque(&mut self, item: Value) {
        self.opaque_with(item, 0);
    }

    /// Data to echo at this place, which itself holds the next `own` bytes of the text.
    pub(crate) fn opaque_with(&mut self, item: Value, own: usize) {
        if self.has_room() {
            let calls = self.calls.len() + self.closed.len();
            self.opaque.push(placed(item, self.text.len(), calls, own));
        }
    }

    fn has_room(&mut self) -> bool {
        let items = self.opaque.len() + self.other_calls.len() + self.calls.len() + self.closed.len();
        self.overfull |= items >= MAX_ITEMS;
        !self.overfull
    }

    /// Refuses an answer of which not everything could be kept.
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

    /// Whether a piece other than reasoning has been given out.
    pub(crate) fn has_output(&self) -> bool {
        !self.text.is_empty() || !self.calls.is_empty() || !self.other_calls.is_empty()
    }

    /// An item for the client that is no function call.
    pub(crate) fn other_call(&mut self, call: OtherCall) {
        if self.has_room() {
            self.other_calls.push(call);
        }
    }

    /// A call whose block has closed. It goes out at once when its arguments are JSON, and otherwise
    /// waits for [`ResponseBuilder::release`]: they may have been cut by the token limit or a filter.
    pub(crate) fn close_call(&mut self, call: WrittenCall, sink: Sink<'_>) {
        if !self.has_room() {
            return;
        }
        let whole = is_json(&call.arguments);
        self.closed.push_back(Closed { call, whole });
        while self.closed.front().is_some_and(|closed| closed.whole) {
            self.release_first(sink);
        }
    }

    /// A call whose block has closed with no arguments at all. It may have none, or none yet.
    pub(crate) fn close_bare_call(&mut self, call: WrittenCall) {
        if self.has_room() {
            self.closed.push_back(Closed { call, whole: false });
        }
    }

    /// Gives out the calls that wait, once the reason to stop is known; a last one that the token limit
    /// or a filter cut is half done and is dropped.
    pub(crate) fn release(&mut self, sink: Sink<'_>) {
        let cut = matches!(self.stop, Some(StopReason::MaxTokens | StopReason::Refusal));
        if cut && self.closed.back().is_some_and(|closed| !closed.whole) {
            self.closed.pop_back();
        }
        while !self.closed.is_empty() {
            self.release_first(sink);
        }
    }

    fn release_first(&mut self, sink: Sink<'_>) {
        let Some(Closed { mut call, .. }) = self.closed.pop_front() else { return };
        if let Some(restored) = self.tools.as_ref().and_then(|tools| tools.restore(&call.name, &call.arguments)) {
            call.arguments = restored;
        }
        // Ids of others may look like ours: no number is tried twice.
        while call.id.is_empty() || !self.ids.insert(call.id.clone()) {
            self.free_id = self.free_id.max(self.calls.len());
            call.id = format!("call_{}", self.free_id);
            self.free_id += 1;
        }
        sink(ModelEvent::Call(call.clone()));
        self.calls.push(call);
    }

    /// Keeps, of an answer that broke off, the calls that lack nothing.
    pub(crate) fn salvage(&mut self, unclosed: Vec<WrittenCall>) {
        let waiting = std::mem::take(&mut self.closed).into_iter().map(|closed| closed.call);
        for call in waiting.chain(unclosed) {
            if is_whole(&call.arguments) {
                self.closed.push_back(Closed { call, whole: true });
                self.release_first(&mut |_| {});
            }
        }
    }

    /// What it used, as far as that is believed.
    pub(crate) fn used(&self) -> Usage {
        self.usage.bounded()
    }

    /// What there is, in words; `None` when there is nothing.
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

    /// The response. Whether calls are wanted is read off the calls: some servers say `stop` with calls.
    pub(crate) fn into_response(self, api: Api) -> ModelResponse {
        let usage = self.used();
        let calls = !self.calls.is_empty() || !self.other_calls.is_empty();
        let stop = match self.stop {
            Some(StopReason::End | StopReason::StopSequence) | None if calls => StopReason::ToolCalls,
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
            stop,
            usage,
            opaque,
        }
    }
}

/// Whether these are all of a call's arguments: a JSON object that has ended.
pub(crate) fn is_whole(arguments: &str) -> bool {
    arguments.trim_start().starts_with('{') && is_json(arguments)
}

fn is_json(arguments: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(arguments).is_ok()
}

/// Refuses an answer that has `open` calls and items open and begins another.
pub(crate) fn may_open(open: usize) -> Result<(), ModelError> {
    if open < MAX_OPEN {
        return Ok(());
    }
    let message = format!("the answer holds more than {MAX_OPEN} calls or items that have not ended");
    Err(ModelError::new(ModelErrorKind::BadResponse, message))
}
