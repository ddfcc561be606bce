//! Tools for models without an API for them: tools, calls and results are written as text in a [`Format`], and calls are
//! read from the text of the answer. Pure but for the lock of a listener.

use std::sync::{Arc, Mutex, PoisonError};

use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, Message, ModelError, ModelEvent, ModelEvents, ModelRequest, ModelResponse, StopReason, ToolChoice,
    Traffic, WrittenCall,
};

use crate::write::shown_at_once;
use crate::{Choice, Decoded, Format, Options, TextDecoder, default_format};

/// How one model's tools go as text.
#[derive(Debug, Clone, Copy)]
pub struct TextTools {
    /// What is written.
    format: &'static Format,
    /// What is read.
    choice: Choice,
}

impl TextTools {
    /// In this format.
    #[must_use]
    pub fn in_format(format: &'static Format) -> Self {
        Self { format, choice: Choice::Format(format) }
    }

    /// In the format of the family of `model`. Where it is not known, tools are shown in a common format
    /// and calls are taken in any.
    #[must_use]
    pub fn for_model(model: &str) -> Self {
        match crate::for_model(model) {
            Some(format) => Self::in_format(format),
            None => Self { format: default_format(), choice: Choice::Auto },
        }
    }

    /// The request with its tools, past calls and results as text. It carries no tools of the API's own,
    /// so that every API takes it.
    #[must_use]
    pub fn request(&self, request: &ModelRequest) -> ModelRequest {
        let messages = request.messages.iter().map(|message| self.message(message, request)).collect();
        ModelRequest {
            system: self.system(request),
            messages,
            tools: Arc::default(),
            tool_choice: ToolChoice::Auto,
            parallel_calls: None,
            ..request.clone()
        }
    }

    fn system(&self, request: &ModelRequest) -> String {
        if shown_at_once(&request.tools).next().is_none() || request.tool_choice == ToolChoice::None {
            return request.system.clone();
        }
        let mut parts = vec![request.system.clone(), self.format.prompt(&request.tools)];
        match &request.tool_choice {
            ToolChoice::Required => parts.push("Your answer must call at least one tool.".into()),
            ToolChoice::Tool(name) => parts.push(format!("Your answer must call the tool {name}.")),
            ToolChoice::Auto | ToolChoice::None => {}
        }
        if request.parallel_calls == Some(false) {
            parts.push("Call one tool at a time.".into());
        }
        parts.retain(|part| !part.trim().is_empty());
        parts.join("\n\n")
    }

    fn message(&self, message: &Message, request: &ModelRequest) -> Message {
        match message {
            Message::User { .. } => message.clone(),
            Message::Assistant { text, calls, opaque } => {
                let calls =
                    if calls.is_empty() { String::new() } else { self.format.write_calls(calls, &request.tools) };
                let gap = if text.is_empty() || calls.is_empty() { "" } else { "\n" };
                Message::Assistant { text: format!("{text}{gap}{calls}"), calls: Vec::new(), opaque: opaque.clone() }
            }
            Message::Tool { results } => Message::User { content: self.results(results) },
        }
    }

    fn results(&self, results: &[CallResult]) -> Vec<ContentBlock> {
        let images = results.iter().flat_map(|result| &result.content);
        let images = images.filter(|block| matches!(block, ContentBlock::Image { .. })).cloned();
        std::iter::once(ContentBlock::text(self.format.write_results(results))).chain(images).collect()
    }

    /// Listens to the answer of [`TextTools::request`] and passes on what it means to `events`.
    pub fn listen<'a>(&self, request: &ModelRequest, events: &'a dyn ModelEvents) -> TextListener<'a> {
        let past = request.messages.iter().map(|message| match message {
            Message::Assistant { calls, .. } => calls.len(),
            _ => 0,
        });
        let options = Options { tools: Arc::clone(&request.tools), ..Options::default() };
        let reading = Reading { decoded: Decoded::default(), next_id: past.sum() };
        TextListener { state: Mutex::new((TextDecoder::new(self.choice, options), reading)), events }
    }
}

/// Reads calls out of the text of an answer as it comes.
pub struct TextListener<'a> {
    state: Mutex<(TextDecoder, Reading)>,
    events: &'a dyn ModelEvents,
}

struct Reading {
    decoded: Decoded,
    next_id: usize,
}

impl Reading {
    /// Takes a piece that was read, and passes it on. Calls get ids that no earlier call has.
    fn take(&mut self, event: ModelEvent, events: &dyn ModelEvents) {
        let event = match event {
            ModelEvent::Call(call) => {
                let id = format!("call_{}", self.next_id);
                self.next_id += 1;
                ModelEvent::Call(WrittenCall { id, ..call })
            }
            piece => piece,
        };
        self.decoded.add(event.clone());
        events.on_event(event);
    }
}

impl std::fmt::Debug for TextListener<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TextListener")
    }
}

impl ModelEvents for TextListener<'_> {
    fn on_event(&self, event: ModelEvent) {
        let ModelEvent::Text(piece) = event else { return self.events.on_event(event) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (decoder, reading) = &mut *state;
        decoder.feed(piece.as_bytes(), &mut |event| reading.take(event, self.events));
    }

    fn on_traffic(&self, traffic: Traffic) {
        self.events.on_traffic(traffic);
    }
}

impl TextListener<'_> {
    /// The answer as it was meant. Of one that broke off, calls that had closed are complete.
    ///
    /// # Errors
    /// The error of the answer, its partial answer read likewise.
    pub fn finish(self, answer: Result<ModelResponse, ModelError>) -> Result<ModelResponse, ModelError> {
        let (decoder, mut reading) = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        decoder.finish(&mut |event| reading.take(event, self.events));
        let read = reading.decoded;
        match answer {
            Ok(response) => Ok(meant(response, read)),
            Err(mut error) => {
                error.partial = error.partial.map(|partial| Box::new(meant(*partial, read)));
                Err(error)
            }
        }
    }
}

fn meant(response: ModelResponse, read: Decoded) -> ModelResponse {
    let stop = match response.stop {
        StopReason::End | StopReason::StopSequence if !read.calls.is_empty() => StopReason::ToolCalls,
        stop => stop,
    };
    let mut calls = response.calls;
    calls.extend(read.calls);
    ModelResponse { text: read.text, reasoning: response.reasoning + &read.reasoning, calls, stop, ..response }
}
