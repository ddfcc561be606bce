//! The answer under assembly, the same for every API: what is streamed out is what is kept.

use std::collections::{HashSet, VecDeque};

use serde::de::IgnoredAny;
use serde_json::Value;
use toolwright_core::model::{
    ModelError, ModelErrorKind, ModelEvent, ModelResponse, OpaqueData, StopReason, Usage, WrittenCall,
};

use crate::api::Api;

/// Takes the pieces as they come.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(ModelEvent);

/// Assembles the answer of one API.
pub(crate) trait Assemble: Send {
    /// Takes the JSON of one event.
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError>;

    /// Takes the JSON of a whole answer.
    fn whole(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError>;

    /// Whether the API has said that the answer is over.
    fn is_complete(&self) -> bool;

    /// The answer, once complete.
    fn into_answer(self: Box<Self>) -> Answer;
}

/// What has been received.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    text: String,
    reasoning: String,
    calls: Vec<WrittenCall>,
    closed: VecDeque<WrittenCall>,
    ids: HashSet<String>,
    /// Why the model stopped, once it said.
    pub stop: Option<StopReason>,
    /// What it used.
    pub usage: Usage,
    opaque: Vec<Value>,
}

impl Answer {
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

    /// Data to echo.
    pub(crate) fn opaque(&mut self, data: Value) {
        self.opaque.push(data);
    }

    /// The reasoning so far.
    pub(crate) fn shown_reasoning(&self) -> &str {
        &self.reasoning
    }

    /// Whether a piece other than reasoning has been given out.
    pub(crate) fn has_output(&self) -> bool {
        !self.text.is_empty() || !self.calls.is_empty()
    }

    /// A call whose block has closed. It goes out at once when its arguments are JSON, and otherwise
    /// waits for [`Answer::release`]: they may have been cut by the token limit.
    pub(crate) fn close_call(&mut self, call: WrittenCall, sink: Sink<'_>) {
        self.closed.push_back(call);
        while self.closed.front().is_some_and(|call| is_json(&call.arguments)) {
            self.release_first(sink);
        }
    }

    /// Gives out the calls that wait, once the reason to stop is known; a last one that the token limit
    /// cut is half done and is dropped.
    pub(crate) fn release(&mut self, sink: Sink<'_>) {
        if self.stop == Some(StopReason::MaxTokens) && self.closed.back().is_some_and(|call| !is_json(&call.arguments))
        {
            self.closed.pop_back();
        }
        while !self.closed.is_empty() {
            self.release_first(sink);
        }
    }

    fn release_first(&mut self, sink: Sink<'_>) {
        let Some(mut call) = self.closed.pop_front() else { return };
        let mut number = self.calls.len();
        while call.id.is_empty() || !self.ids.insert(call.id.clone()) {
            number += 1;
            call.id = format!("call_{number}");
        }
        sink(ModelEvent::Call(call.clone()));
        self.calls.push(call);
    }

    /// The response. Whether calls are wanted is read off the calls: some servers say `stop` with calls.
    pub(crate) fn into_response(self, api: Api) -> ModelResponse {
        let stop = match self.stop {
            Some(StopReason::End) | None if !self.calls.is_empty() => StopReason::ToolCalls,
            Some(StopReason::ToolCalls) | None if self.calls.is_empty() => StopReason::End,
            Some(stop) => stop,
            None => StopReason::End,
        };
        let opaque = self.opaque.into_iter().map(|data| OpaqueData { api: api.as_str().into(), data }).collect();
        ModelResponse {
            text: self.text,
            reasoning: self.reasoning,
            calls: self.calls,
            other_calls: Vec::new(),
            stop,
            usage: self.usage,
            opaque,
        }
    }
}

fn is_json(arguments: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(arguments).is_ok()
}

/// Parses the JSON of an event or answer.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(api: Api, data: &[u8]) -> Result<T, ModelError> {
    serde_json::from_slice(data).map_err(|error| {
        let start = String::from_utf8_lossy(&data[..data.len().min(120)]).into_owned();
        let message = format!("the answer holds something that is no {api} event ({error}): {start}");
        ModelError { source: Some(Box::new(error)), ..ModelError::new(ModelErrorKind::BadResponse, message) }
    })
}

/// The number at `pointer`, zero where there is none.
pub(crate) fn count(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}
