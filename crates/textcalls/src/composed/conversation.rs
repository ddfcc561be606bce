//! Carries a conversation in the composed form: the request with one schema in place of tools, and the answer with its calls.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{
    CallResult, Message, ModelError, ModelEvent, ModelEvents, ModelRequest, ModelResponse, OutputFormat, RawToolCall,
    RequestProgress, RequestTool, StopReason, ToolChoice, ToolVisibility,
};

use super::{Composed, ComposedCall, ComposedTool, OUTPUT_KEY, Transport, UnusableAnswer};

const INSTRUCTIONS: &str = "Answer with one JSON object of the given schema and nothing around it. `output` is the final result, or null as long as \
calls are needed to find it. `calls` are the tools to call now; their results come in the next message. With both, the calls run and `output` is \
the answer.";

/// The tools of one request in the composed form.
#[derive(Debug, Clone)]
pub struct ComposedTools {
    transport: Transport,
    /// Whether the output has a schema; otherwise it is text.
    has_schema: bool,
    /// Calls of the conversation so far.
    past: usize,
}

impl ComposedTools {
    /// Builds it for this request: its tools, unless calls are forbidden, and the answer's format.
    #[must_use]
    pub fn of(request: &ModelRequest) -> Self {
        let none = request.tool_choice == ToolChoice::None;
        let offered = request.tools.iter().filter(|tool| !none && tool.exposed != ToolVisibility::Deferred);
        let split: Vec<(RequestTool, Option<Value>)> = offered.map(split).collect();
        let tools: Vec<ComposedTool<'_>> =
            split.iter().map(|(tool, latent)| ComposedTool { tool, latent: latent.as_ref() }).collect();
        let schema = request.output.as_ref().and_then(|output| output.schema.as_ref());
        let past = request.messages.iter().map(|message| match message {
            Message::Assistant { calls, .. } => calls.len(),
            _ => 0,
        });
        Self { transport: Transport::new(schema, &tools), has_schema: schema.is_some(), past: past.sum() }
    }

    /// The request with one schema in place of tools, and past calls and results as text.
    #[must_use]
    pub fn request(&self, request: &ModelRequest) -> ModelRequest {
        let system = if request.system.trim().is_empty() {
            INSTRUCTIONS.to_owned()
        } else {
            format!("{}\n\n{INSTRUCTIONS}", request.system)
        };
        ModelRequest {
            system,
            messages: request.messages.iter().map(|message| self.message(message)).collect(),
            tools: Arc::default(),
            tool_choice: ToolChoice::Auto,
            parallel_calls: None,
            output: Some(OutputFormat { name: "answer".into(), schema: Some(self.transport.schema().clone()) }),
            ..request.clone()
        }
    }

    fn message(&self, message: &Message) -> Message {
        match message {
            Message::User { .. } => message.clone(),
            Message::Assistant { text, calls, opaque } => {
                let output = match serde_json::from_str(text) {
                    Ok(value) if self.has_schema => Some(value),
                    _ if text.is_empty() => None,
                    _ => Some(Value::from(text.as_str())),
                };
                let answer = Composed { output, calls: calls.iter().map(composed).collect(), complete: true };
                Message::Assistant { text: self.transport.encode(&answer), calls: Vec::new(), opaque: opaque.clone() }
            }
            Message::Tool { results } => {
                let values: Vec<Value> = results.iter().map(result_value).collect();
                let images = results.iter().flat_map(|result| &result.content);
                let images = images.filter(|block| matches!(block, ContentBlock::Image { .. })).cloned();
                let text = ContentBlock::text(json!({ "results": values }).to_string());
                Message::User { content: std::iter::once(text).chain(images).collect() }
            }
        }
    }

    /// Returns a listener for a streamed answer. It does not pass on its text, which is JSON.
    pub fn listen<'a>(&self, events: &'a dyn ModelEvents) -> ComposedListener<'a> {
        ComposedListener { events }
    }

    /// Returns the answer with its calls, and its output as text. An unusable answer keeps its text.
    ///
    /// # Errors
    /// The error of the answer.
    pub fn finish(
        &self,
        answer: Result<ModelResponse, ModelError>,
        events: &dyn ModelEvents,
    ) -> Result<ModelResponse, ModelError> {
        let response = answer?;
        let response = match self.transport.decode(&response.text) {
            Ok(read) => self.read(response, read),
            Err(UnusableAnswer::Neither | UnusableAnswer::Cut) => ModelResponse { text: String::new(), ..response },
            Err(UnusableAnswer::NoObject | UnusableAnswer::TooLong) => response,
        };
        if !response.text.is_empty() {
            events.on_event(ModelEvent::Text(response.text.clone()));
        }
        response.calls.iter().for_each(|call| events.on_event(ModelEvent::Call(call.clone())));
        Ok(response)
    }

    fn read(&self, response: ModelResponse, read: Composed) -> ModelResponse {
        let text = match &read.output {
            None => String::new(),
            Some(Value::String(text)) if !self.has_schema => text.clone(),
            Some(output) => output.to_string(),
        };
        let calls: Vec<RawToolCall> =
            read.calls.into_iter().enumerate().map(|(index, call)| written(call, self.past + index)).collect();
        let stop = match response.stop {
            StopReason::End | StopReason::StopSequence(_) if !calls.is_empty() => StopReason::ToolCalls,
            stop => stop,
        };
        let is_final = read.output.is_some() && !calls.is_empty();
        ModelResponse { text, calls, stop, is_final, ..response }
    }
}

/// The tool, and the schema of the result that the model writes itself.
fn split(tool: &RequestTool) -> (RequestTool, Option<Value>) {
    let mut tool = tool.clone();
    let result = tool.parameters.get_mut("properties").and_then(Value::as_object_mut);
    let result = result.and_then(|properties| properties.shift_remove(OUTPUT_KEY));
    if let (Some(_), Some(Value::Array(required))) = (&result, tool.parameters.get_mut("required")) {
        required.retain(|name| name != OUTPUT_KEY);
    }
    (tool, result)
}

/// Converts a past call: the model's own result is separate.
fn composed(call: &RawToolCall) -> ComposedCall {
    let mut call = call.clone();
    let mut arguments: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
    let output = arguments.shift_remove(OUTPUT_KEY);
    if output.is_some() {
        call.arguments = Value::from(arguments).to_string();
    }
    ComposedCall { call, reasoning: None, output }
}

/// A call as every other API writes it: the result that the model wrote is among its arguments.
fn written(call: ComposedCall, number: usize) -> RawToolCall {
    let ComposedCall { mut call, output, .. } = call;
    call.id = format!("call_{number}");
    if let Some(output) = output
        && let Ok(mut arguments) = serde_json::from_str::<Map<String, Value>>(&call.arguments)
    {
        arguments.insert(OUTPUT_KEY.into(), output);
        call.arguments = Value::from(arguments).to_string();
    }
    call
}

fn result_value(result: &CallResult) -> Value {
    json!({"_tool": result.name, "ok": !result.is_error, "result": joined_text(&result.content)})
}

/// Passes on everything but the text of an answer.
pub struct ComposedListener<'a> {
    events: &'a dyn ModelEvents,
}

impl std::fmt::Debug for ComposedListener<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ComposedListener")
    }
}

impl ModelEvents for ComposedListener<'_> {
    fn on_event(&self, event: ModelEvent) {
        if !matches!(event, ModelEvent::Text(_)) {
            self.events.on_event(event);
        }
    }

    fn on_traffic(&self, traffic: RequestProgress) {
        self.events.on_traffic(traffic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::model::IgnoreModelEvents;

    fn request(output: Option<Value>) -> ModelRequest {
        let greet = json!({"type": "object", "properties": {"userName": {"type": "string"}}, "required": ["userName"]});
        let mood = json!({
            "type": "object",
            "properties": {"text": {"type": "string"}, "_output": {"type": "string"}},
            "required": ["_output"],
        });
        let tool = |name: &str, parameters| RequestTool { name: name.into(), parameters, ..RequestTool::default() };
        ModelRequest {
            messages: vec![Message::user("some prompt here")],
            tools: vec![tool("greetUser", greet), tool("mood", mood)].into(),
            output: output.map(|schema| OutputFormat { name: "x".into(), schema: Some(schema) }),
            ..ModelRequest::default()
        }
    }

    fn check(output: Option<Value>, answer: Value, text: &str, calls: &[(&str, &str)], is_final: bool) {
        let tools = ComposedTools::of(&request(output));
        let response = ModelResponse { text: answer.to_string(), ..ModelResponse::default() };
        let read = tools.finish(Ok(response), &IgnoreModelEvents).expect("an answer");
        let seen: Vec<_> = read.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!((read.text.as_str(), seen.as_slice(), read.is_final), (text, calls, is_final), "{answer}");
    }

    #[test]
    fn an_answer_has_calls_an_output_or_both() {
        let greet = json!({"_tool": "greetUser", "_reasoningForCall": "polite", "userName": "Ada"});
        let greeted = [("greetUser", r#"{"userName":"Ada"}"#)];
        check(None, json!({"output": null, "calls": [greet]}), "", &greeted, false);
        check(None, json!({"output": "Hello.", "calls": []}), "Hello.", &[], false);
        let schema = json!({"type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]});
        let both = json!({"output": {"summary": "done"}, "calls": [greet]});
        check(Some(schema), both, r#"{"summary":"done"}"#, &greeted, true);
    }

    #[test]
    fn a_latent_call_brings_its_result() {
        let mood = json!({"_tool": "mood", "_reasoningForCall": "", "text": "x", "_output": "glad"});
        check(
            None,
            json!({"output": null, "calls": [mood]}),
            "",
            &[("mood", r#"{"text":"x","_output":"glad"}"#)],
            false,
        );
    }

    #[test]
    fn past_calls_and_results_are_text() {
        let mut request = request(None);
        let call = RawToolCall {
            id: "call_0".into(),
            name: "mood".into(),
            arguments: r#"{"text":"x","_output":"glad"}"#.into(),
        };
        let result = CallResult {
            call_id: "call_0".into(),
            name: "mood".into(),
            content: vec![ContentBlock::text("ok")],
            ..CallResult::default()
        };
        request.messages.push(Message::Assistant { text: String::new(), calls: vec![call], opaque: Vec::new() });
        request.messages.push(Message::Tool { results: vec![result] });
        let asked = ComposedTools::of(&request).request(&request);
        assert!(asked.tools.is_empty() && asked.output.is_some());
        let Message::Assistant { text, calls, .. } = &asked.messages[1] else { panic!("{:?}", asked.messages) };
        assert!(calls.is_empty() && text.contains(r#""_output":"glad""#), "{text}");
        let Message::User { content } = &asked.messages[2] else { panic!("{:?}", asked.messages) };
        assert_eq!(joined_text(content), r#"{"results":[{"_tool":"mood","ok":true,"result":"ok"}]}"#);
    }
}
