//! Decodes responses of OpenAI Responses.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolwright_core::model::{ModelError, ModelErrorKind, NonFunctionCall, RawToolCall, StopReason};

use super::API;
use crate::codec::response::{
    ApiDecoder, ResponseBuilder, Sink, Text, UsagePointers, arguments, lenient, may_open, parse, parse_part, value,
};
use crate::failure;

const FIGURES: UsagePointers = UsagePointers {
    prompt: "/input_tokens",
    cached: "/input_tokens_details/cached_tokens",
    cache_written: "/input_tokens_details/cache_write_tokens",
    answer: "/output_tokens",
    reasoning: "/output_tokens_details/reasoning_tokens",
    all: "/total_tokens",
};

/// An event, a whole response, or an error: every key that any of them has.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    /// The item that an event is about. Its id is not reliable: some relays generate a new one for each event.
    #[serde(default, deserialize_with = "lenient")]
    output_index: Option<u64>,
    #[serde(borrow, default)]
    delta: Text<'a>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    object: Text<'a>,
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default)]
    status: Text<'a>,
    #[serde(borrow)]
    output: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    incomplete_details: Option<Incomplete<'a>>,
}

#[derive(Deserialize)]
struct Incomplete<'a> {
    #[serde(borrow, default)]
    reason: Text<'a>,
}

/// An item that has not been done.
struct OpenItem {
    index: u64,
    /// The call that it is, if it is one.
    call: Option<RawToolCall>,
    arguments: String,
    /// Whether its text was streamed.
    is_streamed: bool,
}

/// A response that is being decoded.
#[derive(Default)]
pub(crate) struct ResponsesDecoder {
    answer: ResponseBuilder,
    open: Vec<OpenItem>,
    /// Whether items were streamed; then the final response repeats them.
    itemised: bool,
}

impl ApiDecoder for ResponsesDecoder {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let event: Event<'_> = parse(API, data)?;
        let (index, delta) = (event.output_index.unwrap_or_default(), event.delta.as_str());
        match event.kind.as_str() {
            "response.output_text.delta" => {
                self.open(index)?.is_streamed = true;
                self.answer.text(delta, sink);
            }
            "response.refusal.delta" => {
                self.open(index)?.is_streamed = true;
                self.refusal(delta, sink);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let open = self.open(index)?;
                if !std::mem::replace(&mut open.is_streamed, true) {
                    self.answer.reasoning_part(sink);
                }
                self.answer.reasoning(delta, sink);
            }
            // The parts of a summary are paragraphs.
            "response.reasoning_summary_part.added" => self.open(index)?.is_streamed = false,
            "response.function_call_arguments.delta" => self.open(index)?.arguments.push_str(delta),
            "response.output_item.added" => {
                if let Some(item) = event.item {
                    self.added(index, item)?;
                }
            }
            "response.output_item.done" => {
                if let Some(item) = event.item {
                    self.finish_item(index, item, sink)?;
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                let response = event.response.ok_or_else(unfinished)?;
                self.over(parse_part(API, response)?, sink)?;
            }
            // Consecutive complete responses are one response.
            "response.created" => (self.itemised, self.answer.complete) = (false, false),
            "error" => return Err(error(data, event.error)),
            kind if kind.starts_with("response.") => {}
            _ if event.object.as_str() == "response" => self.over(parse(API, data)?, sink)?,
            _ => return failure::from_unknown(API, data).map_or(Ok(()), Err),
        }
        Ok(())
    }

    fn answer(&mut self) -> &mut ResponseBuilder {
        &mut self.answer
    }

    fn unclosed(&mut self) -> Vec<RawToolCall> {
        let open = std::mem::take(&mut self.open).into_iter();
        open.filter_map(|open| Some(RawToolCall { arguments: open.arguments, ..open.call? })).collect()
    }
}

impl ResponsesDecoder {
    fn open(&mut self, index: u64) -> Result<&mut OpenItem, ModelError> {
        let at = match self.open.iter().rposition(|open| open.index == index) {
            Some(at) => at,
            None => {
                may_open(self.open.len())?;
                self.open.push(OpenItem { index, call: None, arguments: String::new(), is_streamed: false });
                self.open.len() - 1
            }
        };
        Ok(&mut self.open[at])
    }

    fn added(&mut self, index: u64, item: &RawValue) -> Result<(), ModelError> {
        self.itemised = true;
        let item = Item::read(item)?;
        self.head(&item);
        let call = (item.kind.as_str() == "function_call").then(|| item.call());
        let open = self.open(index)?;
        *open = OpenItem { index, call, arguments: String::new(), is_streamed: false };
        Ok(())
    }

    /// Records data of a message besides its text, at the start of the text.
    fn head(&mut self, item: &Item<'_>) {
        if item.kind.as_str() == "message"
            && let Some(phase) = item.phase.filled()
        {
            self.answer.opaque(json!({"type": "message", "phase": phase}));
        }
    }

    fn finish_item(&mut self, index: u64, raw: &RawValue, sink: Sink<'_>) -> Result<(), ModelError> {
        self.itemised = true;
        let item = Item::read(raw)?;
        let open = self.open.iter().rposition(|open| open.index == index).map(|at| self.open.remove(at));
        let known = open.is_some();
        let (arguments, is_streamed) = open.map(|open| (open.arguments, open.is_streamed)).unwrap_or_default();
        if !known {
            self.head(&item);
        }
        if !is_streamed {
            self.words(&item, sink);
        }
        for annotations in item.content.iter().flatten().filter_map(|part| part.annotations) {
            self.answer.native_note(&json!({"type": "message", "annotations": value(annotations)}));
        }
        match item.meaning(raw, arguments, self.answer.tool_search()) {
            ItemMeaning::Call(call) => self.answer.close_call(call, sink),
            ItemMeaning::Other(call) => self.answer.other_call(call),
            ItemMeaning::Opaque(data) if data["encrypted_content"].is_string() => self.answer.signed(API, data, sink),
            ItemMeaning::Opaque(data) => self.answer.opaque(data),
            ItemMeaning::Nothing => {}
        }
        Ok(())
    }

    /// The text of an item that was not streamed.
    fn words(&mut self, item: &Item<'_>, sink: Sink<'_>) {
        let filled = |parts: &Option<Vec<ContentPart<'_>>>| parts.as_ref().is_some_and(|parts| !parts.is_empty());
        match item.kind.as_str() {
            "message" => {
                for part in item.content.iter().flatten() {
                    self.answer.text(part.text.as_str(), sink);
                    self.refusal(part.refusal.as_str(), sink);
                }
            }
            "reasoning" => {
                let parts = if filled(&item.summary) { &item.summary } else { &item.content };
                for part in parts.iter().flatten() {
                    self.answer.reasoning_part(sink);
                    self.answer.reasoning(part.text.as_str(), sink);
                }
            }
            _ => {}
        }
    }

    fn refusal(&mut self, words: &str, sink: Sink<'_>) {
        if !words.is_empty() {
            self.answer.text(words, sink);
            self.answer.stop = Some(StopReason::Refusal);
        }
    }

    fn over(&mut self, response: Response<'_>, sink: Sink<'_>) -> Result<(), ModelError> {
        if let Some(error) = response.error {
            return Err(failure::from_event(API, &value(error)));
        }
        let stop = match (response.status.as_str(), response.incomplete_details) {
            ("completed" | "", _) => StopReason::End,
            ("incomplete", details) => match details.as_ref().map_or("", |details| details.reason.as_str()) {
                "max_output_tokens" | "max_tokens" | "" => StopReason::MaxTokens,
                "content_filter" => StopReason::Refusal,
                reason => StopReason::Other(reason.to_owned()),
            },
            _ => return Err(unfinished()),
        };
        if let Some(usage) = response.usage.map(value) {
            self.answer.usage = FIGURES.read(&usage);
        }
        if !self.itemised {
            for (index, item) in (0..).zip(response.output.into_iter().flatten()) {
                self.finish_item(index, item, sink)?;
            }
        }
        if self.answer.stop != Some(StopReason::Refusal) {
            self.answer.stop = Some(stop);
        }
        self.answer.complete = true;
        self.open.clear();
        self.answer.release(sink);
        Ok(())
    }
}

/// Reads an error event: `{"error": {…}}`, or the error's own keys beside `type`.
fn error(data: &[u8], error: Option<&RawValue>) -> ModelError {
    let error = error.map(value).unwrap_or_else(|| {
        let mut event: Value = serde_json::from_slice(data).unwrap_or_default();
        if let Some(event) = event.as_object_mut() {
            event.shift_remove("type");
        }
        event
    });
    failure::from_event(API, &error)
}

fn unfinished() -> ModelError {
    ModelError::new(ModelErrorKind::BadResponse, "the answer holds no finished response")
}

/// Items for the client to run besides function calls, with the key of their input. The server ran items of other
/// types, or they are not calls.
const FOR_THE_CLIENT: [(&str, &str); 8] = [
    ("custom_tool_call", "input"),
    ("shell_call", "action"),
    ("local_shell_call", "action"),
    ("apply_patch_call", "operation"),
    ("computer_call", "action"),
    ("computer_call", "actions"),
    ("tool_search_call", "arguments"),
    ("mcp_approval_request", "arguments"),
];

/// The members of an item that are read.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    call_id: Text<'a>,
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    status: Text<'a>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    phase: Text<'a>,
    #[serde(borrow, default)]
    execution: Text<'a>,
    #[serde(borrow)]
    environment: Option<Environment<'a>>,
    #[serde(borrow, default)]
    content: Option<Vec<ContentPart<'a>>>,
    #[serde(borrow, default)]
    summary: Option<Vec<ContentPart<'a>>>,
}

#[derive(Deserialize)]
struct Environment<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
}

/// A part of a message or of reasoning.
#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    refusal: Text<'a>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
}

/// The meaning of an item.
enum ItemMeaning {
    /// A function call.
    Call(RawToolCall),
    /// Another item for the client.
    Other(NonFunctionCall),
    /// Data of the server that is sent back unchanged.
    Opaque(Value),
    /// Not kept: a message, or a cut item.
    Nothing,
}

impl<'a> Item<'a> {
    fn read(item: &'a RawValue) -> Result<Self, ModelError> {
        parse_part(API, item)
    }

    /// The meaning of `item`, from which `self` was read. `streamed` are its streamed arguments; `search` is the tool that was
    /// declared as the tool search.
    fn meaning(&self, item: &RawValue, streamed: String, search: Option<&str>) -> ItemMeaning {
        let kind = self.kind.as_str();
        if kind == "message" {
            return ItemMeaning::Nothing;
        }
        let cut = self.status.as_str() == "incomplete";
        let called = match kind {
            "function_call" => Some(self.name.as_str()),
            "tool_search_call" if self.runs_at_client() => search,
            _ => None,
        };
        if let Some(name) = called {
            let written = self.arguments.map(arguments).unwrap_or_default();
            let arguments = if written.is_empty() { streamed } else { written.into_owned() };
            return if cut {
                ItemMeaning::Nothing
            } else {
                ItemMeaning::Call(RawToolCall { id: self.id(), name: name.to_owned(), arguments })
            };
        }
        if !self.runs_at_client() {
            return ItemMeaning::Opaque(value(item));
        }
        if cut {
            return ItemMeaning::Nothing;
        }
        let mut whole = value(item);
        let mut asked = FOR_THE_CLIENT.iter().filter(|(name, _)| *name == kind).map(|(_, key)| *key);
        let input = asked.find_map(|key| whole.get_mut(key).map(Value::take).filter(|input| !input.is_null()));
        ItemMeaning::Other(NonFunctionCall {
            kind: kind.to_owned(),
            id: self.id(),
            name: self.name.filled().map(str::to_owned),
            input: input.unwrap_or_default(),
        })
    }

    /// The function call that begins with this item.
    fn call(&self) -> RawToolCall {
        RawToolCall { id: self.id(), name: self.name.as_str().to_owned(), arguments: String::new() }
    }

    /// The id for the result.
    fn id(&self) -> String {
        self.call_id.filled().unwrap_or(self.id.as_str()).to_owned()
    }

    fn runs_at_client(&self) -> bool {
        match self.kind.as_str() {
            // Either side may run the search; the item says which.
            "tool_search_call" => self.execution.as_str() == "client",
            // A shell in a container of the server's names that container.
            "shell_call" => {
                self.environment.as_ref().is_none_or(|environment| matches!(environment.kind.as_str(), "" | "local"))
            }
            kind => FOR_THE_CLIENT.iter().any(|(name, _)| *name == kind),
        }
    }
}
