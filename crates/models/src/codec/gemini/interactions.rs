//! Decodes the Interactions API (ai.google.dev/gemini-api/docs/interactions). Its responses are steps, streamed as
//! `step.*` events, or `content.*` in its first version.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use toolwright_core::model::{ModelError, ModelErrorKind, RawToolCall, StopReason, Usage};

use super::API;
use crate::codec::response::{
    ResponseBuilder, Sink, Text, arguments, count, lenient, may_open, parse, parse_part, value,
};
use crate::failure;

/// An event, or a whole interaction: every key that any of them has.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    event_type: Text<'a>,
    #[serde(default, deserialize_with = "lenient")]
    index: Option<u64>,
    #[serde(borrow, alias = "content")]
    step: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    interaction: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, alias = "outputs")]
    steps: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    status: Text<'a>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

/// The part of a step, or of a piece of one, that is read.
#[derive(Deserialize)]
struct Step<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    text: Text<'a>,
    /// A list for `model_output`, one part for a piece of a summary.
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
}

/// A step that has not stopped.
struct OpenStep {
    index: u64,
    step: Value,
    call: Option<RawToolCall>,
    arguments: String,
}

/// An interaction that is being decoded.
#[derive(Default)]
pub(super) struct Interaction {
    open: Vec<OpenStep>,
}

impl Interaction {
    /// Processes an event, or a whole interaction. Returns whether the response is complete.
    pub(super) fn event(
        &mut self,
        data: &[u8],
        answer: &mut ResponseBuilder,
        sink: Sink<'_>,
    ) -> Result<bool, ModelError> {
        let event: Event<'_> = parse(API, data)?;
        let index = event.index.unwrap_or_default();
        match event.event_type.as_str() {
            "step.start" | "content.start" => {
                if let Some(step) = event.step {
                    self.start(index, step, answer, sink)?;
                }
            }
            "step.delta" | "content.delta" => {
                if let Some(delta) = event.delta {
                    self.delta(index, delta, answer, sink)?;
                }
            }
            "step.stop" | "content.stop" => {
                if let Some(at) = self.open.iter().rposition(|open| open.index == index) {
                    close(self.open.remove(at), answer, sink);
                }
            }
            "interaction.completed" | "interaction.complete" => {
                let end: Event<'_> = event.interaction.map_or_else(|| parse(API, b"{}"), |end| parse_part(API, end))?;
                return self.over(&end, answer, sink);
            }
            "error" => return Err(failure::from_event(API, &event.error.map(value).unwrap_or_default())),
            "" => {
                for (index, step) in (0..).zip(event.steps.iter().flatten()) {
                    self.start(index, step, answer, sink)?;
                    if let Some(open) = self.open.pop() {
                        close(open, answer, sink);
                    }
                }
                return self.over(&event, answer, sink);
            }
            _ => {}
        }
        Ok(false)
    }

    fn start(
        &mut self,
        index: u64,
        raw: &RawValue,
        answer: &mut ResponseBuilder,
        sink: Sink<'_>,
    ) -> Result<(), ModelError> {
        may_open(self.open.len())?;
        let step: Step<'_> = parse_part(API, raw)?;
        let mut call = None;
        match step.kind.as_str() {
            "text" => answer.text(step.text.as_str(), sink),
            "model_output" => step.texts(step.content, &mut |text| answer.text(text, sink))?,
            "thought" => step.texts(step.summary, &mut |text| answer.reasoning(text, sink))?,
            "function_call" => call = Some(step.call()),
            _ => {}
        }
        self.open.push(OpenStep { index, step: value(raw), call, arguments: String::new() });
        Ok(())
    }

    fn delta(
        &mut self,
        index: u64,
        raw: &RawValue,
        answer: &mut ResponseBuilder,
        sink: Sink<'_>,
    ) -> Result<(), ModelError> {
        let delta: Step<'_> = parse_part(API, raw)?;
        match delta.kind.as_str() {
            "text" => answer.text(delta.text.as_str(), sink),
            "thought_summary" => {
                if let Some(part) = delta.content {
                    answer.reasoning(parse_part::<Step<'_>>(API, part)?.text.as_str(), sink);
                }
            }
            kind => {
                let Some(open) = self.open.iter_mut().rev().find(|open| open.index == index) else { return Ok(()) };
                match kind {
                    "arguments_delta" => open.arguments.push_str(&delta.arguments.map(arguments).unwrap_or_default()),
                    "function_call" => open.call = Some(delta.call()),
                    // Other steps are kept unchanged.
                    _ => {
                        if let (Some(step), Value::Object(delta)) = (open.step.as_object_mut(), value(raw)) {
                            step.extend(delta.into_iter().filter(|(key, _)| key != "type"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn over(&mut self, end: &Event<'_>, answer: &mut ResponseBuilder, sink: Sink<'_>) -> Result<bool, ModelError> {
        if let Some(error) = end.error {
            return Err(failure::from_event(API, &value(error)));
        }
        if let Some(usage) = end.usage.map(value) {
            let sum = |a, b| count(&usage, a).saturating_add(count(&usage, b));
            answer.usage = Usage {
                input_tokens: sum("/total_input_tokens", "/total_tool_use_tokens"),
                output_tokens: sum("/total_output_tokens", "/total_thought_tokens"),
                cached_tokens: count(&usage, "/total_cached_tokens"),
                reasoning_tokens: count(&usage, "/total_thought_tokens"),
                ..Usage::default()
            };
        }
        answer.stop = Some(match end.status.as_str() {
            "" | "completed" | "requires_action" => StopReason::End,
            "incomplete" => StopReason::MaxTokens,
            status => {
                let message = format!("the interaction ended with the status `{status}`");
                return Err(ModelError::new(ModelErrorKind::BadResponse, message));
            }
        });
        self.open.clear();
        answer.release(sink);
        Ok(true)
    }
}

impl Step<'_> {
    fn call(&self) -> RawToolCall {
        let arguments = self.arguments.map_or("{}".into(), |written| arguments(written).into_owned());
        RawToolCall { id: self.id.as_str().to_owned(), name: self.name.as_str().to_owned(), arguments }
    }

    /// The texts of a list of parts.
    fn texts(&self, parts: Option<&RawValue>, each: &mut dyn FnMut(&str)) -> Result<(), ModelError> {
        let Some(parts) = parts.filter(|parts| parts.get().starts_with('[')) else { return Ok(()) };
        parse_part::<Vec<Step<'_>>>(API, parts)?.iter().for_each(|part| each(part.text.as_str()));
        Ok(())
    }
}

fn close(open: OpenStep, answer: &mut ResponseBuilder, sink: Sink<'_>) {
    match open.call {
        Some(call) if !open.arguments.is_empty() => {
            answer.close_call(RawToolCall { arguments: open.arguments, ..call }, sink);
        }
        Some(call) => answer.close_call(call, sink),
        None if matches!(open.step["type"].as_str(), Some("text" | "model_output")) => {}
        None => answer.opaque(open.step),
    }
}
