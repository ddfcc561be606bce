//! Tool use for models without an API for it: tools, calls and results are written as text in a [`Format`], and calls are read
//! from the text of the response. Pure except for the lock of a listener.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, Message, ModelError, ModelEvent, ModelEvents, ModelRequest, ModelResponse, RawToolCall,
    RequestProgress, RequestTool, StopReason, ToolChoice, ToolVisibility,
};

use crate::syntax::{PastCall, json, markup, named, python, tag_per_argument};
use crate::table::format::Form;
use crate::{Choice, Decoded, Format, Options, TextDecoder, default_format};

/// The text format of one model's tools.
#[derive(Debug, Clone, Copy)]
pub struct TextTools {
    /// The format to write.
    format: &'static Format,
    /// The format to read.
    choice: Choice,
}

impl TextTools {
    /// Uses this format.
    #[must_use]
    pub fn in_format(format: &'static Format) -> Self {
        Self { format, choice: Choice::Format(format) }
    }

    /// Uses the format of `model`'s family. For an unknown family, tools are written in the default format and calls
    /// are read in any.
    #[must_use]
    pub fn for_model(model: &str) -> Self {
        match crate::for_model(model) {
            Some(format) => Self::in_format(format),
            None => Self { format: default_format(), choice: Choice::Auto },
        }
    }

    /// Returns the request with tools, past calls and results as text. It has no API tools, so any API accepts it.
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
        if not_deferred(&request.tools).next().is_none() || request.tool_choice == ToolChoice::None {
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

    /// Returns a listener for the response to [`TextTools::request`] that passes the parsed pieces to `events`.
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

/// Reads calls from the text of a response while it is streamed.
pub struct TextListener<'a> {
    state: Mutex<(TextDecoder, Reading)>,
    events: &'a dyn ModelEvents,
}

struct Reading {
    decoded: Decoded,
    next_id: usize,
}

impl Reading {
    /// Keeps a decoded piece and passes it on. Calls get unused ids.
    fn take(&mut self, event: ModelEvent, events: &dyn ModelEvents) {
        let event = match event {
            ModelEvent::Call(call) => {
                let id = format!("call_{}", self.next_id);
                self.next_id += 1;
                ModelEvent::Call(RawToolCall { id, ..call })
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

    fn on_traffic(&self, traffic: RequestProgress) {
        self.events.on_traffic(traffic);
    }
}

impl TextListener<'_> {
    /// Returns the response with the calls in its text. A response that broke off keeps its closed calls.
    ///
    /// # Errors
    /// The error of the response, with its partial response decoded likewise.
    pub fn finish(self, answer: Result<ModelResponse, ModelError>) -> Result<ModelResponse, ModelError> {
        let (decoder, mut reading) = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        decoder.finish(&mut |event| reading.take(event, self.events));
        let read = reading.decoded;
        match answer {
            Ok(response) => Ok(with_decoded(response, read)),
            Err(mut error) => {
                error.partial = error.partial.map(|partial| Box::new(with_decoded(*partial, read)));
                Err(error)
            }
        }
    }
}

fn with_decoded(response: ModelResponse, read: Decoded) -> ModelResponse {
    let stop = match response.stop {
        StopReason::End | StopReason::StopSequence(_) if !read.calls.is_empty() => StopReason::ToolCalls,
        stop => stop,
    };
    let mut calls = response.calls;
    calls.extend(read.calls);
    ModelResponse { text: read.text, reasoning: response.reasoning + &read.reasoning, calls, stop, ..response }
}

impl Format {
    /// Returns the part of the system prompt that lists `tools` and shows how to call them, in the form that this model
    /// family was trained on. Empty without tools; deferred ones are left out.
    #[must_use]
    pub fn prompt(&self, tools: &[RequestTool]) -> String {
        if not_deferred(tools).next().is_none() {
            return String::new();
        }
        let mut prompt = String::from(
            "# Tools\n\nYou have the tools that are listed here, one a line, as JSON: the name, what the tool does, \
             and the JSON Schema of its arguments.\n\n",
        );
        for tool in not_deferred(tools) {
            let mut shown = json!({
                "name": tool.name, "description": tool.description, "parameters": tool.parameters,
            });
            if let (Some(body), true) = (&tool.body_argument, self.has_body()) {
                shown["body"] = json!(body);
            }
            prompt.push_str(&format!("{shown}\n"));
        }
        let arguments = json!({"path": "notes.txt", "content": "a longer text,\nperhaps of several lines"});
        let sample =
            RawToolCall { id: String::new(), name: "example_tool".to_owned(), arguments: arguments.to_string() };
        let result = CallResult {
            call_id: "functions.example_tool:0".to_owned(),
            name: sample.name.clone(),
            content: vec![ContentBlock::text("what the tool gave back")],
            ..CallResult::default()
        };
        prompt.push_str(&format!(
            "\nTo call a tool, write its name and arguments in this form, to the letter:\n\n{}\n\nYou may call several \
             tools in one answer, each call in this form. {}{}End your answer after the calls: the results come in \
             the next message, like this:\n\n{}\n\nNever write results yourself, and call only tools of the list.\n",
            self.write_call(&sample, &[]),
            self.hint,
            if self.hint.is_empty() { "" } else { " " },
            self.write_results(&[result]),
        ));
        prompt
    }

    /// Whether a call has a body, which holds one of its arguments.
    fn has_body(&self) -> bool {
        self.calls.first().is_some_and(|call| matches!(call.form, Form::Markup(_)))
    }

    /// A past call in the assistant's turn. `tools` say which argument is the body, in formats that have one. Arguments that are
    /// not a JSON object become an empty one.
    #[must_use]
    pub fn write_call(&self, call: &RawToolCall, tools: &[RequestTool]) -> String {
        self.write_calls(std::slice::from_ref(call), tools)
    }

    /// The past calls of one turn.
    #[must_use]
    pub fn write_calls(&self, calls: &[RawToolCall], tools: &[RequestTool]) -> String {
        let past: Vec<PastCall<'_>> = calls.iter().enumerate().map(PastCall::of).collect();
        let template = self.channels.map_or("{call}", |channels| channels.call);
        let Some(call) = self.calls.first() else {
            return past.iter().map(|past| fill(template, past.name, past.id, past.json)).collect();
        };
        let each = |past: &PastCall<'_>| match &call.form {
            Form::Json(form) => json::write(form, std::slice::from_ref(past)),
            Form::Named(form) => named::write(form, past),
            Form::Tagged(form) => tag_per_argument::write(form, past),
            Form::Nested(form) => tag_per_argument::write_nested(form, past),
            Form::Pythonic(form) => python::write(form, std::slice::from_ref(past)),
            Form::Braces(form) => python::write_braces(form, past),
            Form::Markup(form) => markup::write(*form, past, tools),
            Form::Raw(form) => format!("{}{}", form.open, past.json),
        };
        let section = |inner: String| match call.section {
            Some((open, close)) => format!("{open}\n{inner}\n{close}"),
            None => inner,
        };
        if self.channels.is_some() {
            return past.iter().map(|past| fill(template, past.name, past.id, &section(each(past)))).collect();
        }
        section(match &call.form {
            Form::Json(form) => json::write(form, &past),
            Form::Pythonic(form) => python::write(form, &past),
            _ => past.iter().map(each).collect::<Vec<_>>().join("\n"),
        })
    }

    /// Formats the results for the message after the calls. A failed one says so; content other than text is described.
    #[must_use]
    pub fn write_results(&self, results: &[CallResult]) -> String {
        let written = results.iter().map(|result| {
            let blocks: Vec<String> = result.content.iter().map(ContentBlock::placeholder).collect();
            let mut text = blocks.join("\n");
            if result.is_error && !text.starts_with("(tool failed") {
                text.insert_str(0, "(tool failed) ");
            }
            fill(self.result, &result.name, &result.call_id, &text)
        });
        let (open, close) = self.results;
        format!("{open}{}{close}", written.collect::<Vec<_>>().join("\n"))
    }
}

/// Fills in the names in braces in `template`, in one pass.
fn fill(template: &str, name: &str, id: &str, content: &str) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let values = [("{name}", name), ("{id}", id), ("{content}", content), ("{call}", content)];
        rest = if let Some((slot, value)) = values.iter().find(|(slot, _)| after.starts_with(slot)) {
            out.push_str(value);
            &after[slot.len()..]
        } else if let Some(after) = after.strip_prefix("{json}") {
            out.push_str(&Value::from(content).to_string());
            after
        } else {
            out.push('{');
            &after[1..]
        };
    }
    out + rest
}

/// Returns the tools that are not deferred: text cannot load the others.
fn not_deferred(tools: &[RequestTool]) -> impl Iterator<Item = &RequestTool> {
    tools.iter().filter(|tool| tool.exposed != ToolVisibility::Deferred)
}
