//! Makes a conversation legal: APIs refuse requests with unpaired calls and results, repeated ids, or
//! names with illegal characters.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{CallResult, Message, OpaqueData, RawToolCall, ToolVisibility};
use toolwright_core::tool_id::{MAX_WIRE_NAME, short_hash};

use crate::api::Api;
use crate::dialect::{Toolset, TranslatedTool};

/// Maximal length of a call id in every API (OpenAI's limit).
const MAX_CALL_ID: usize = 40;
/// The result of a call without one.
const NO_RESULT: &str = "(tool failed: there is no result, the call was interrupted)";

/// The media type of documents that models read.
pub(crate) const PDF: &str = "application/pdf";
/// Marks a failed call for APIs that have no flag for it.
const FAILED: &str = "(tool failed) ";
/// Text for places where an API requires some.
pub(crate) const NOTHING: &str = "(nothing)";

/// A legal turn.
pub(crate) enum Turn<'a> {
    /// A message of the user.
    User(&'a [ContentBlock]),
    /// A message of the model; [`Turn::Results`] follows if it has calls.
    Assistant {
        /// Its text, perhaps empty.
        text: &'a str,
        /// Its calls.
        calls: Vec<LegalCall<'a>>,
        /// The opaque data of the API that is encoded for, in its order.
        opaque: Vec<&'a Value>,
    },
    /// A result for each call of the previous turn, in call order.
    Results(Vec<LegalResult<'a>>),
}

/// A past call with a legal id and name.
pub(crate) struct LegalCall<'a> {
    /// Unique in the conversation, `[a-zA-Z0-9_-]`, at most forty characters.
    pub id: String,
    /// `[a-zA-Z0-9_-]`, at most 64 characters.
    pub name: String,
    text: Cow<'a, str>,
    object: Map<String, Value>,
}

impl LegalCall<'_> {
    /// The arguments as JSON text, as the model wrote them if that is a legal object.
    pub(crate) fn arguments_text(&self) -> &str {
        &self.text
    }

    /// The arguments as an object.
    pub(crate) fn arguments_object(&self) -> Value {
        Value::Object(self.object.clone())
    }
}

/// A result with its call's id and name.
pub(crate) struct LegalResult<'a> {
    /// Id of the call.
    pub id: String,
    /// Name of the call.
    pub name: String,
    result: Option<&'a CallResult>,
}

/// An image for an API.
pub(crate) struct Image<'a> {
    /// Media type.
    pub mime_type: &'a str,
    /// Base64.
    pub data: &'a str,
}

/// A block for a model.
pub(crate) enum Part<'a> {
    /// Text, or a line that replaces content which cannot be shown.
    Text(String),
    /// An image of a type that every API accepts.
    Image(Image<'a>),
    /// A PDF, only in messages of the user: models differ in support for PDFs from tools.
    Document(Document<'a>),
}

/// A PDF for an API.
pub(crate) struct Document<'a> {
    /// Its name.
    pub name: &'a str,
    /// Base64.
    pub data: &'a str,
}

impl Document<'_> {
    /// Returns a text for APIs that cannot show it.
    pub(crate) fn placeholder(&self) -> String {
        format!("[document {}, not shown]", self.name)
    }

    /// Formats it as a data URL.
    pub(crate) fn url(&self) -> String {
        format!("data:{PDF};base64,{}", self.data)
    }
}

impl LegalResult<'_> {
    /// Whether the call failed.
    pub(crate) fn is_error(&self) -> bool {
        self.result.is_none_or(|result| result.is_error)
    }

    /// Returns the deferred tools among `tools` that it loads, without duplicates. A failed call loads none.
    pub(crate) fn loads<'t>(&self, tools: &'t Toolset) -> Vec<&'t TranslatedTool> {
        let mut loaded: Vec<&TranslatedTool> = Vec::new();
        for name in self.result.filter(|result| !result.is_error).into_iter().flat_map(|result| &result.loads) {
            let tool = tools.get(name).filter(|tool| tool.exposed == ToolVisibility::Deferred);
            loaded.extend(tool.filter(|_| loaded.iter().all(|other| other.name != *name)));
        }
        loaded
    }

    /// Returns the content for the model.
    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        self.result.map_or_else(|| vec![Part::Text(NO_RESULT.to_owned())], |result| parts(&result.content))
    }

    /// Returns the content for APIs without a flag for failed calls: the text says so.
    pub(crate) fn plain_parts(&self) -> Vec<Part<'_>> {
        let mut parts = self.parts();
        match parts.first_mut() {
            _ if !self.is_error() => {}
            Some(Part::Text(text)) => mark_failure(text),
            _ => parts.insert(0, Part::Text(FAILED.trim_end().to_owned())),
        }
        parts
    }

    /// Separates text and images, for APIs with text-only results and no flag for failure: a note marks the place of
    /// each image, and the text reports a failure.
    pub(crate) fn plain_text_and_images(&self) -> (String, Vec<Part<'_>>) {
        let (mut text, images) = self.text_and_images();
        if self.is_error() {
            mark_failure(&mut text);
        }
        (text, images)
    }

    /// Separates text and images, for APIs with text-only results: a note marks the place of each image, and a caption
    /// precedes the images, which go into a user message.
    pub(crate) fn text_and_images(&self) -> (String, Vec<Part<'_>>) {
        let mut images = Vec::new();
        let mut lines = Vec::new();
        for part in self.parts() {
            match part {
                Part::Text(text) => lines.push(text),
                Part::Document(document) => lines.push(document.placeholder()),
                Part::Image(image) => {
                    lines.push(format!("[image {}, {}: shown after the results]", images.len() + 1, image.mime_type));
                    images.push(image);
                }
            }
        }
        let mut parts = Vec::new();
        if !images.is_empty() {
            parts.push(Part::Text(format!("[images in the result of {}, call {}]", self.name, self.id)));
            parts.extend(images.into_iter().map(Part::Image));
        }
        (lines.join("\n"), parts)
    }

    /// A caption for this result in a user message.
    pub(crate) fn caption(&self) -> Part<'static> {
        Part::Text(format!("[result of {}, call {}]", self.name, self.id))
    }
}

fn mark_failure(text: &mut String) {
    if !text.starts_with("(tool failed") {
        text.insert_str(0, FAILED);
    }
}

/// Converts blocks for a model.
pub(crate) fn parts(content: &[ContentBlock]) -> Vec<Part<'_>> {
    content
        .iter()
        .map(|block| match block {
            ContentBlock::Image { data, mime_type, .. } if is_sendable(mime_type, data) => {
                Part::Image(Image { mime_type, data })
            }
            other => Part::Text(other.placeholder()),
        })
        .collect()
}

/// Converts blocks of a user message for a model that reads PDFs.
pub(crate) fn user_parts(content: &[ContentBlock]) -> Vec<Part<'_>> {
    let part = |block| match document(block) {
        Some(document) => vec![Part::Document(document)],
        None => parts(std::slice::from_ref(block)),
    };
    content.iter().flat_map(part).collect()
}

/// The PDF that a block holds.
pub(crate) fn document(block: &ContentBlock) -> Option<Document<'_>> {
    let ContentBlock::Resource { resource, .. } = block else { return None };
    let text = |key: &str| resource.get(key).and_then(Value::as_str);
    let data = text("blob").filter(|data| text("mimeType") == Some(PDF) && is_base64(data.as_bytes()))?;
    Some(Document { name: text("uri").unwrap_or("file"), data })
}

fn is_sendable(mime_type: &str, data: &str) -> bool {
    matches!(mime_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp") && is_base64(data.as_bytes())
}

/// Whether `data` is nonempty base64 with padding (RFC 4648 section 4). Only the last four
/// characters can hold padding or stray bits, so only these are decoded.
fn is_base64(data: &[u8]) -> bool {
    let Some((head, last)) = data.split_last_chunk::<4>() else { return false };
    head.len().is_multiple_of(4)
        && head.iter().all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
        && STANDARD.decode(last).is_ok()
}

/// The turns of `messages` for `api` with `tools`: every call has a result and every result a call.
pub(crate) fn legal_turns<'a>(messages: &'a [Message], api: Api, tools: &Toolset) -> Vec<Turn<'a>> {
    let mut turns = Vec::with_capacity(messages.len());
    let mut used = HashSet::new();
    let mut rest = messages;
    while let Some((message, after)) = rest.split_first() {
        rest = after;
        match message {
            Message::User { content } => turns.push(Turn::User(content)),
            Message::Assistant { text, calls, opaque } => {
                let answers = rest.iter().take_while(|next| matches!(next, Message::Tool { .. })).count();
                let results = rest[..answers].iter().flat_map(|next| match next {
                    Message::Tool { results } => results.as_slice(),
                    _ => &[],
                });
                let (calls, results) = pair(calls, results.collect(), &mut used, tools);
                turns.push(Turn::Assistant { text, calls, opaque: own(opaque, api) });
                if !results.is_empty() {
                    turns.push(Turn::Results(results));
                }
                rest = &rest[answers..];
            }
            Message::Tool { .. } => {}
        }
    }
    turns
}

/// Messages with alternating roles, beginning with the user. Consecutive messages of one role are joined.
pub(crate) struct AlternatingMessages {
    /// The API's name for the model's role.
    pub model: &'static str,
    /// The key of a message's blocks.
    pub key: &'static str,
    /// A block to use if the API requires one.
    pub nothing: fn() -> Value,
    /// The messages so far.
    pub messages: Vec<Value>,
}

impl AlternatingMessages {
    /// Adds blocks in the user's or the model's role.
    pub(crate) fn push(&mut self, role: &str, content: Vec<Value>) {
        if self.messages.is_empty() && role == self.model && !content.is_empty() {
            self.push("user", Vec::new());
        }
        match self.messages.last_mut() {
            Some(last) if last["role"] == role => {
                if let Some(blocks) = last[self.key].as_array_mut() {
                    blocks.extend(content);
                }
            }
            // An empty answer is left out; an empty question cannot be.
            _ if content.is_empty() && role == self.model => {}
            _ if content.is_empty() => self.messages.push(json!({"role": role, self.key: [(self.nothing)()]})),
            _ => self.messages.push(json!({"role": role, self.key: content})),
        }
    }
}

fn own(opaque: &[OpaqueData], api: Api) -> Vec<&Value> {
    opaque.iter().filter(|data| data.api == api.as_str()).map(|data| &data.data).collect()
}

fn pair<'a>(
    calls: &'a [RawToolCall],
    mut results: Vec<&'a CallResult>,
    used: &mut HashSet<String>,
    tools: &Toolset,
) -> (Vec<LegalCall<'a>>, Vec<LegalResult<'a>>) {
    calls
        .iter()
        .map(|call| {
            let result = results.iter().position(|result| result.call_id == call.id).map(|at| results.remove(at));
            let id = unique_id(&call.id, used);
            let name = legal_name(&call.name);
            let (text, object) = arguments(call, tools);
            let legal = LegalCall { id: id.clone(), name: name.clone(), text, object };
            (legal, LegalResult { id, name, result })
        })
        .unzip()
}

/// The arguments by the translated schema, as the model wrote them.
fn arguments<'a>(call: &'a RawToolCall, tools: &Toolset) -> (Cow<'a, str>, Map<String, Value>) {
    let written = serde_json::from_str::<Value>(&call.arguments).ok();
    let viewed = written.as_ref().and_then(|written| tools.replay(&call.name, written));
    match (viewed, written) {
        (Some(Value::Object(object)), _) => (Cow::Owned(Value::Object(object.clone()).to_string()), object),
        (_, Some(Value::Object(object))) => (Cow::Borrowed(&call.arguments), object),
        _ => (Cow::Borrowed("{}"), Map::new()),
    }
}

fn legal_characters(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect()
}

/// Converts `written` to a name that every API accepts.
pub(crate) fn legal_name(written: &str) -> String {
    let mut name = legal_characters(written.trim());
    name.truncate(MAX_WIRE_NAME);
    if name.is_empty() { "unnamed".into() } else { name }
}

fn unique_id(written: &str, used: &mut HashSet<String>) -> String {
    let mut base = legal_characters(written);
    if base.is_empty() {
        base.push_str("call");
    } else if base.len() > MAX_CALL_ID {
        // Long ids of one answer often share their beginning.
        base = format!("{}_{}", &base[..MAX_CALL_ID - 13], short_hash(written, 12));
    }
    let mut id = base.clone();
    let mut copy = 1;
    while !used.insert(id.clone()) {
        copy += 1;
        let suffix = format!("_{copy}");
        id = format!("{}{suffix}", &base[..base.len().min(MAX_CALL_ID - suffix.len())]);
    }
    id
}

/// Marks `item` with its place: the bytes of text and the number of calls before it, and the bytes of following
/// text that belong to it.
pub(crate) fn placed(item: Value, text: usize, calls: usize, own: usize) -> Value {
    json!({"after": {"text": text, "calls": calls}, "own": own, "item": item})
}

/// A piece of an assistant message, in order.
pub(crate) enum AssistantPiece<'a> {
    /// Text, never empty.
    Text(&'a str),
    /// A call, and its number in the answer.
    Call(usize, &'a LegalCall<'a>),
    /// Opaque data.
    Item(&'a Value),
}

/// Splits an assistant message into pieces. A place that no longer exists becomes the nearest one; data
/// without a place comes first.
pub(crate) fn pieces<'a>(text: &'a str, calls: &'a [LegalCall<'a>], opaque: &[&'a Value]) -> Vec<AssistantPiece<'a>> {
    let mut out = Vec::with_capacity(calls.len() + opaque.len() + 1);
    let (mut written, mut called) = (0, 0);
    for data in opaque {
        let count =
            |key| data.pointer(key).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let until = text.floor_char_boundary(count("/after/text").min(text.len()));
        let calls_before = count("/after/calls").min(calls.len());
        advance(&mut out, text, &mut written, until);
        let next = calls.iter().enumerate().take(calls_before).skip(called);
        out.extend(next.map(|(number, call)| AssistantPiece::Call(number, call)));
        called = called.max(calls_before);
        match data.get("item") {
            Some(item) if data.get("after").is_some() => out.push(AssistantPiece::Item(item)),
            _ => out.push(AssistantPiece::Item(data)),
        }
        written = text.floor_char_boundary(written.saturating_add(count("/own")).min(text.len()));
    }
    advance(&mut out, text, &mut written, text.len());
    out.extend(calls.iter().enumerate().skip(called).map(|(number, call)| AssistantPiece::Call(number, call)));
    out
}

fn advance<'a>(out: &mut Vec<AssistantPiece<'a>>, text: &'a str, written: &mut usize, until: usize) {
    if *written < until {
        out.push(AssistantPiece::Text(&text[*written..until]));
        *written = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, arguments: &str) -> RawToolCall {
        RawToolCall { id: id.into(), name: "fs read!".into(), arguments: arguments.into() }
    }

    fn assistant(calls: Vec<RawToolCall>) -> Message {
        Message::Assistant { text: String::new(), calls, opaque: vec![] }
    }

    fn result(id: &str) -> CallResult {
        CallResult {
            call_id: id.into(),
            name: "x".into(),
            content: vec![ContentBlock::text(id)],
            ..CallResult::default()
        }
    }

    #[test]
    fn calls_and_results_pair_up_after_trimming() {
        let messages = [
            Message::Tool { results: vec![result("orphan")] },
            assistant(vec![call("call_1", "{\"a\": 1}"), call("call_2", "{broken")]),
            Message::Tool { results: vec![result("call_2"), result("stranger")] },
            assistant(vec![call("call_1", "[1]")]),
            Message::user("go on"),
        ];
        let mut seen = Vec::new();
        let none = crate::dialect::translate(Api::Anthropic.dialect(), &[], false);
        for turn in legal_turns(&messages, Api::Anthropic, &none) {
            match turn {
                Turn::User(_) => seen.push("user".to_owned()),
                Turn::Assistant { calls, .. } => {
                    seen.extend(calls.iter().map(|c| format!("{} {} {}", c.id, c.name, c.arguments_text())));
                }
                Turn::Results(results) => {
                    seen.extend(
                        results.iter().map(|r| format!("{} -> {} {}", r.id, r.is_error(), r.text_and_images().0)),
                    );
                }
            }
        }
        let lost = NO_RESULT;
        assert_eq!(
            seen,
            [
                "call_1 fs_read_ {\"a\": 1}".to_owned(),
                "call_2 fs_read_ {}".into(),
                format!("call_1 -> true {lost}"),
                "call_2 -> false call_2".into(),
                "call_1_2 fs_read_ {}".into(),
                format!("call_1_2 -> true {lost}"),
                "user".into(),
            ]
        );
    }

    #[test]
    fn long_ids_stay_distinct_within_the_limit() {
        let mut used = HashSet::new();
        let ids: Vec<String> =
            ["x", "y", "y"].iter().map(|end| unique_id(&("z".repeat(60) + end), &mut used)).collect();
        assert!(ids.iter().all(|id| id.len() <= MAX_CALL_ID), "{ids:?}");
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 3);
    }

    #[test]
    fn images_that_apis_refuse_become_notes() {
        let png = |data: &str| ContentBlock::image(data, "image/png");
        let mut content = vec![ContentBlock::image("AA==", "image/svg+xml")];
        content.extend(["", "not base64", "a", "AAAAA", "AA=", "AB==", "AA==AAAA"].map(png));
        assert!(parts(&content).iter().all(|part| matches!(part, Part::Text(text) if text.contains("not shown"))));
        for data in ["AA==", "AAA=", "AAAA", "a+/0AA=="] {
            assert!(matches!(parts(&[png(data)])[0], Part::Image(_)), "{data}");
        }
    }
}
