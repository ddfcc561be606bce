//! Writes answers of OpenAI Responses: items, and the events that build them.

use std::collections::HashMap;

use serde_json::{Value, json};
use toolwright_core::model::{RawToolCall, StopReason, Usage};

use super::references::item_id;
use super::writer::{Writer, event};
use super::{ResponseEnd, ResponseHead, ResponsePiece};
use crate::api::Api;

/// The `server_label` of calls that Toolwright runs.
const SERVER: &str = "toolwright";

/// The item that text is being added to.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    Message,
    Reasoning,
}

/// Writes an answer of Responses.
pub(super) struct ResponsesWriter {
    head: ResponseHead,
    output: Vec<Value>,
    /// The items of calls that run here and have not ended, by the ids of the calls.
    running: HashMap<String, usize>,
    open: Option<Open>,
    end: Option<ResponseEnd>,
    error: Value,
    is_cancelled: bool,
    sequence: u64,
}

impl ResponsesWriter {
    pub(super) fn new(head: ResponseHead) -> Self {
        Self {
            head,
            output: Vec::new(),
            running: HashMap::new(),
            open: None,
            end: None,
            error: Value::Null,
            is_cancelled: false,
            sequence: 0,
        }
    }

    fn event(&mut self, kind: &str, mut body: Value, out: &mut String) {
        body["type"] = json!(kind);
        body["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        event(Some(kind), &body, out);
    }

    /// The id of the item at this place.
    fn item_id(&self, prefix: &str, index: usize) -> String {
        item_id(prefix, &self.head.id, index)
    }

    /// Begins an item.
    fn add(&mut self, item: Value, out: &mut String) -> usize {
        let index = self.output.len();
        self.event("response.output_item.added", json!({"output_index": index, "item": item}), out);
        self.output.push(item);
        index
    }

    /// Ends an item.
    fn done(&mut self, index: usize, out: &mut String) {
        let item = self.output[index].clone();
        self.event("response.output_item.done", json!({"output_index": index, "item": item}), out);
    }

    /// Ends the item that text is being added to.
    fn close(&mut self, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        let index = self.output.len() - 1;
        let id = self.output[index]["id"].clone();
        let (list, place, said, part_done) = match open {
            Open::Message => ("content", "content_index", "response.output_text.done", "response.content_part.done"),
            Open::Reasoning => (
                "summary",
                "summary_index",
                "response.reasoning_summary_text.done",
                "response.reasoning_summary_part.done",
            ),
        };
        let part = self.output[index][list][0].clone();
        let mut text = json!({"item_id": id, "output_index": index, place: 0, "text": part["text"]});
        if open == Open::Message {
            text["logprobs"] = json!([]);
            self.output[index]["status"] = json!("completed");
        }
        self.event(said, text, out);
        self.event(part_done, json!({"item_id": id, "output_index": index, place: 0, "part": part}), out);
        self.done(index, out);
    }

    fn grow(&mut self, kind: Open, piece: &str, out: &mut String) {
        let (list, place, added, delta) = match kind {
            Open::Message => ("content", "content_index", "response.content_part.added", "response.output_text.delta"),
            Open::Reasoning => (
                "summary",
                "summary_index",
                "response.reasoning_summary_part.added",
                "response.reasoning_summary_text.delta",
            ),
        };
        if self.open != Some(kind) {
            self.close(out);
            let index = self.output.len();
            let (item, part) = match kind {
                Open::Message => (
                    json!({
                        "id": self.item_id("msg", index), "type": "message", "status": "in_progress",
                        "role": "assistant", "content": [],
                    }),
                    json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
                ),
                Open::Reasoning => (
                    json!({"id": self.item_id("rs", index), "type": "reasoning", "summary": []}),
                    json!({"type": "summary_text", "text": ""}),
                ),
            };
            let id = item["id"].clone();
            self.add(item, out);
            self.event(added, json!({"item_id": id, "output_index": index, place: 0, "part": part}), out);
            self.output[index][list] = json!([part]);
            self.open = Some(kind);
        }
        let index = self.output.len() - 1;
        let mut body = json!({"item_id": self.output[index]["id"], "output_index": index, place: 0, "delta": piece});
        if kind == Open::Message {
            body["logprobs"] = json!([]);
        }
        self.event(delta, body, out);
        if let Value::String(whole) = &mut self.output[index][list][0]["text"] {
            whole.push_str(piece);
        }
    }

    /// Reasoning as the API of the model encrypted it: added to the open item, else in an item without text.
    fn signed(&mut self, item: &Value, out: &mut String) {
        let content = &item["encrypted_content"];
        if self.open == Some(Open::Reasoning) {
            if let Some(open) = self.output.last_mut() {
                open["encrypted_content"] = content.clone();
            }
            return self.close(out);
        }
        self.close(out);
        let id = self.item_id("rs", self.output.len());
        let item = json!({"id": id, "type": "reasoning", "summary": [], "encrypted_content": content});
        let index = self.add(item, out);
        self.done(index, out);
    }

    /// A call for the client.
    fn call(&mut self, call: &RawToolCall, out: &mut String) {
        self.close(out);
        let RawToolCall { id: call_id, name, arguments } = call;
        let is_custom = self.head.custom_tools.contains(name);
        let (kind, prefix, key, event) = if is_custom {
            ("custom_tool_call", "ctc", "input", "response.custom_tool_call_input")
        } else {
            ("function_call", "fc", "arguments", "response.function_call_arguments")
        };
        let written = match serde_json::from_str::<Value>(arguments) {
            Ok(Value::Object(object)) if is_custom => {
                object.get("input").and_then(Value::as_str).unwrap_or_default().to_owned()
            }
            _ => arguments.clone(),
        };
        let id = self.item_id(prefix, self.output.len());
        let of = self.head.namespaced.get(name).cloned();
        let name = of.as_ref().map_or(name, |of| &of.name);
        let mut item = json!({
            "id": id, "type": kind, "status": "in_progress", "call_id": call_id, "name": name, key: "",
        });
        if let Some(of) = &of {
            item["namespace"] = json!(of.namespace);
        }
        let index = self.add(item, out);
        self.event(&format!("{event}.delta"), json!({"item_id": id, "output_index": index, "delta": written}), out);
        let mut done = json!({"item_id": id, "output_index": index, key: written});
        if !is_custom {
            done["name"] = json!(name);
        }
        self.event(&format!("{event}.done"), done, out);
        self.output[index][key] = json!(written);
        self.output[index]["status"] = json!("completed");
        self.done(index, out);
    }

    /// A call that runs here has begun.
    fn began(&mut self, call: &RawToolCall, out: &mut String) {
        self.close(out);
        let id = self.item_id("mcp", self.output.len());
        let item = json!({
            "id": id, "type": "mcp_call", "status": "in_progress", "server_label": SERVER, "name": call.name,
            "arguments": "", "output": null, "error": null, "approval_request_id": null,
        });
        let index = self.add(item, out);
        self.event("response.mcp_call.in_progress", json!({"item_id": id, "output_index": index}), out);
        let arguments = json!({"item_id": id, "output_index": index, "arguments": call.arguments});
        self.event("response.mcp_call_arguments.done", arguments, out);
        self.output[index]["arguments"] = json!(call.arguments);
        self.running.insert(call.id.clone(), index);
    }

    /// A call that ran here has ended.
    fn ended(&mut self, call: &str, ok: bool, text: &str, out: &mut String) {
        let Some(index) = self.running.remove(call) else { return };
        let id = self.output[index]["id"].clone();
        let (status, key) = if ok { ("completed", "output") } else { ("failed", "error") };
        self.output[index]["status"] = json!(status);
        self.output[index][key] = json!(text);
        self.event(&format!("response.mcp_call.{status}"), json!({"item_id": id, "output_index": index}), out);
        self.done(index, out);
    }

    fn question(&mut self, id: &str, call: &RawToolCall, out: &mut String) {
        self.close(out);
        let item = json!({
            "id": id, "type": "mcp_approval_request", "server_label": SERVER, "name": call.name,
            "arguments": call.arguments,
        });
        let index = self.add(item, out);
        self.done(index, out);
    }

    fn status(&self) -> (&'static str, Value) {
        match &self.end {
            _ if self.is_cancelled => ("cancelled", Value::Null),
            _ if !self.error.is_null() => ("failed", Value::Null),
            None => ("in_progress", Value::Null),
            Some(end) if end.pending => ("in_progress", Value::Null),
            Some(ResponseEnd { stop: StopReason::MaxTokens, .. }) => {
                ("incomplete", json!({"reason": "max_output_tokens"}))
            }
            Some(ResponseEnd { stop: StopReason::Refusal, .. }) => ("incomplete", json!({"reason": "content_filter"})),
            Some(_) => ("completed", Value::Null),
        }
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens, "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens, "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.tokens(),
    })
}

impl Writer for ResponsesWriter {
    fn forget(&mut self, lost: &[&str]) {
        for name in ["temperature", "top_p"].into_iter().filter(|name| lost.contains(name)) {
            self.head.echo.insert(name.into(), 1.0.into());
        }
    }

    fn begin(&mut self, out: &mut String) {
        let response = self.body();
        self.event("response.created", json!({"response": response}), out);
        self.event("response.in_progress", json!({"response": response}), out);
    }

    fn piece(&mut self, piece: &ResponsePiece, out: &mut String) {
        match piece {
            ResponsePiece::Text(text) => self.grow(Open::Message, text, out),
            ResponsePiece::Reasoning(text) => self.grow(Open::Reasoning, text, out),
            ResponsePiece::Break => self.close(out),
            ResponsePiece::Call(call) => self.call(call, out),
            ResponsePiece::Began(_) if !self.head.shows_calls => self.close(out),
            ResponsePiece::Began(call) => self.began(call, out),
            ResponsePiece::Ended { id, ok, text } => self.ended(id, *ok, text, out),
            ResponsePiece::Question { id, call } => self.question(id, call, out),
            ResponsePiece::Opaque(data) if data.api == Api::OpenAiResponses.as_str() => self.signed(&data.data, out),
            ResponsePiece::Opaque(_) => {}
        }
    }

    fn end(&mut self, end: ResponseEnd, out: &mut String) {
        self.close(out);
        self.end = Some(end);
        let kind = match self.status().0 {
            "incomplete" => "response.incomplete",
            "in_progress" => "response.in_progress",
            _ => "response.completed",
        };
        let response = self.body();
        self.event(kind, json!({"response": response}), out);
    }

    fn fail(&mut self, error: &Value, out: &mut String) {
        self.close(out);
        self.error = json!({"code": error["error"]["type"], "message": error["error"]["message"]});
        let response = self.body();
        self.event("response.failed", json!({"response": response}), out);
    }

    /// The API has the status `cancelled`, and no event of that name: of its three last events, `response.incomplete` is the
    /// one of a response that neither failed nor is complete.
    fn cancel(&mut self, _error: &Value, out: &mut String) {
        self.close(out);
        self.is_cancelled = true;
        let response = self.body();
        self.event("response.incomplete", json!({"response": response}), out);
    }

    fn interrupt(&self, error: &Value, out: &mut String) {
        let error = &error["error"];
        let body = json!({
            "type": "error", "code": error["type"], "message": error["message"], "param": null,
            "sequence_number": self.sequence,
        });
        event(Some("error"), &body, out);
    }

    fn body(&self) -> Value {
        let (status, incomplete) = self.status();
        let mut body = json!({
            "id": self.head.id, "object": "response", "created_at": self.head.created, "status": status,
            "error": self.error, "incomplete_details": incomplete, "model": self.head.model, "output": self.output,
        });
        for (key, value) in &self.head.echo {
            body[key] = value.clone();
        }
        body["usage"] = self.end.as_ref().map(|end| usage(&end.usage)).unwrap_or_default();
        body
    }
}
