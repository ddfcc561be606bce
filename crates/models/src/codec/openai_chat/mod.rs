//! OpenAI Chat Completions (platform.openai.com/docs/api-reference/chat), and compatible servers.

mod decode;
mod encode;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::api::Api;
use crate::codec::response::value;
pub(crate) use decode::ChatDecoder;
pub(crate) use encode::{encode, tool};

const API: Api = Api::OpenAiChat;

// Data that compatible servers need back, and OpenAI never sends: a message's reasoning (DeepSeek's
// `reasoning_content`, others' `reasoning`, OpenRouter's `reasoning_details`), and data of a call besides its function
// (the signature in the `extra_content` of Gemini's endpoint of this API).

/// The key for the data of a message.
const MESSAGE: &str = "message";
/// The key for the data of a call, which is placed before the call.
const CALL: &str = "tool_call";

/// The reasoning of a message, as received.
#[derive(Default)]
struct ReasoningEcho {
    kept: Map<String, Value>,
}

impl ReasoningEcho {
    /// A piece of a text. An empty one counts: servers that require the key back require it empty too.
    fn text(&mut self, key: &'static str, piece: &str) {
        grow(&mut self.kept, key, piece);
    }

    /// Adds further blocks of reasoning. Pieces of a streamed block have the same type and index, and its
    /// signature covers the whole block.
    fn details(&mut self, pieces: &RawValue) {
        let Value::Array(pieces) = value(pieces) else { return };
        let kept = self.kept.entry("reasoning_details").or_insert_with(|| json!([]));
        let Some(blocks) = kept.as_array_mut() else { return };
        for piece in pieces {
            match (blocks.last_mut(), piece) {
                (Some(Value::Object(block)), Value::Object(piece)) if is_one_block(block, &piece) => join(block, piece),
                (_, piece) => blocks.push(piece),
            }
        }
    }

    /// Returns the data to keep, if any.
    fn take(&mut self) -> Option<Value> {
        let kept = std::mem::take(&mut self.kept);
        (!kept.is_empty()).then(|| json!({MESSAGE: kept}))
    }
}

fn is_one_block(block: &Map<String, Value>, piece: &Map<String, Value>) -> bool {
    block.get("index").is_some_and(Value::is_u64)
        && ["index", "type"].iter().all(|key| block.get(*key) == piece.get(*key))
}

fn join(block: &mut Map<String, Value>, piece: Map<String, Value>) {
    for (key, value) in piece {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            ("text" | "summary" | "data", Value::String(more)) => grow(block, &key, &more),
            (_, value) => drop(block.insert(key, value)),
        }
    }
}

fn grow(map: &mut Map<String, Value>, key: &str, piece: &str) {
    match map.get_mut(key) {
        Some(Value::String(text)) => text.push_str(piece),
        _ => drop(map.insert(key.to_owned(), piece.into())),
    }
}

/// Returns the data of a call to keep.
fn of_call(extra_content: Value) -> Value {
    json!({CALL: {"extra_content": extra_content}})
}

/// Returns the data in `item` for the message; `None` if it belongs to a call.
fn for_message(item: &Value) -> Option<&Map<String, Value>> {
    item.get(MESSAGE)?.as_object()
}

/// Returns the data in `item` for the following call; `None` if it belongs to the message.
fn for_call(item: &Value) -> Option<&Map<String, Value>> {
    item.get(CALL)?.as_object()
}

/// Adds the kept data to `out`. Existing keys stay.
fn write(kept: &Map<String, Value>, out: &mut Value) {
    let Some(out) = out.as_object_mut() else { return };
    for (key, value) in kept {
        out.entry(key.as_str()).or_insert_with(|| value.clone());
    }
}
