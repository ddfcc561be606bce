//! Anthropic Messages (docs.anthropic.com/en/api/messages, version 2023-06-01).
//!
//! A tool result of the client can load deferred tools (platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool, "Custom
//! tool search implementation"); that needs no beta header. Their definitions are not part of the prompt's prefix, so loading
//! one keeps the cache.

mod decode;
mod encode;

use serde_json::{Value, json};

use crate::api::{Api, EncodedRequest};
pub(crate) use decode::AnthropicDecoder;
use encode::is_thought;
pub(crate) use encode::{DEFAULT_MAX_TOKENS, encode, tool};

/// The version of the API.
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");
const API: Api = Api::Anthropic;
/// Headers of a request for a file (platform.claude.com/docs/en/build-with-claude/files).
pub(crate) const FILE_HEADERS: &[(&str, &str)] = &[VERSION, ("anthropic-beta", "files-api-2025-04-14")];

/// The API requires this header for `thinking.block_binding`.
const BINDING_HEADER: (&str, &str) = ("anthropic-beta", "thinking-binding-controls-2026-08-01");

/// Makes the API drop thinking that it would refuse (platform.claude.com/docs/en/build-with-claude/preserved-thinking):
/// since Fable 5.1 it refuses a thinking block if the system prompt, the tools or a message before it have changed.
/// That happens when a conversation is compacted, tools are added, or a run is resumed with other tools. It cannot be
/// predicted, so this is applied after such a refusal.
///
/// A model with such blocks thinks by default, so an unset mode can become `adaptive`. Other modes do not support the
/// setting, so all thinking blocks are removed here. Messages of thinking alone are never sent, so no message becomes
/// empty.
pub(crate) fn drop_foreign_thinking(encoded: &mut EncodedRequest) {
    encoded.headers = &[VERSION, BINDING_HEADER];
    let thinking = encoded.entry("thinking", json!({"type": "adaptive"}));
    if thinking["type"] == "adaptive" {
        thinking["block_binding"] = json!({"prefix_mismatch_behavior": "drop_block"});
        return;
    }
    for message in encoded.entry("messages", json!([])).as_array_mut().into_iter().flatten() {
        if let Some(Value::Array(blocks)) = message.get_mut("content") {
            blocks.retain(|block| !is_thought(block));
        }
    }
}
