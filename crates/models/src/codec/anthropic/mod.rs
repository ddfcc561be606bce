//! Anthropic Messages (docs.anthropic.com/en/api/messages, version 2023-06-01).
//!
//! Deferred tools are loaded by results of ours (platform.claude.com/docs/en/agents-and-tools/tool-use/
//! tool-search-tool, "Custom tool search implementation"); that needs no beta header. Their definitions are not
//! part of the prompt's prefix, so loading one leaves the cache as it is.

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

/// Without it the API does not know the setting.
const BINDING_HEADER: (&str, &str) = ("anthropic-beta", "thinking-binding-controls-2026-08-01");

/// Has the API leave out thinking that it would refuse
/// (platform.claude.com/docs/en/build-with-claude/preserved-thinking): since Fable 5.1 a block of thinking that comes
/// back is refused if the system prompt, the tools or a message before it is another than when it was thought. Requests of
/// a run only grow, but room is made in them, tools join, and a run may be resumed with other tools. Such a refusal cannot
/// be told beforehand; after one the API is asked to leave such blocks out.
///
/// A model with such blocks thinks without being told to, so that it may be
/// told to where it was not. One that is told not to think up front has no such setting: it keeps its word, and all
/// thoughts are left out here. What only thoughts are in is never sent, so that no message is empty after it.
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
