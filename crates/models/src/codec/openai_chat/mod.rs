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

// Data that compatible servers want back, and OpenAI never sends: the reasoning of a message (DeepSeek's
// `reasoning_content`, others' `reasoning`, OpenRouter's `reasoning_details`), and data of a call beside its function (the
// signature in the `extra_content` of Gemini's endpoint of this API).

/// The key for the data of a message.
const MESSAGE: &str = "message";
/// The key for the data of a call, which is kept at the place before the call.
const CALL: &str = "tool_call";

/// The reasoning of a message, as it was received.
#[derive(Default)]
struct Echo {
    kept: Map<String, Value>,
}

impl Echo {
    /// A piece of a text. An empty one counts: servers that require the key back require it empty too.
    fn text(&mut self, key: &'static str, piece: &str) {
        grow(&mut self.kept, key, piece);
    }

    /// Further blocks of reasoning. A streamed block comes in pieces of the same type and index, and its
    /// signature is good for the whole of it.
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

    /// The data to keep, if anything came.
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

/// The data to keep of a call.
fn of_call(extra_content: Value) -> Value {
    json!({CALL: {"extra_content": extra_content}})
}

/// What `item` knows of the message; `None` when it is about a call.
fn for_message(item: &Value) -> Option<&Map<String, Value>> {
    item.get(MESSAGE)?.as_object()
}

/// What `item` knows of the call after it; `None` when it is about the message.
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
