//! Which parts of a prompt the API is asked to keep (platform.claude.com/docs/en/build-with-claude/prompt-caching).
//!
//! A mark keeps everything up to it: tools, then the system prompt, then messages. The tools and the system prompt have
//! one each, since either may be the same where what follows is another. The last message of the user has one, which the
//! next request reads, and the one before it has one, which this request reads: the API looks only twenty blocks back
//! from a mark, and a turn may have more calls than that. Prompts that are too short for a model are not kept, and cost
//! nothing more.

use serde_json::{Value, json};
use toolwright_core::model::{ModelRequest, PromptCache, Reuse};

use crate::request::ShownTools;

/// Messages that are marked; with the tools and the system prompt that makes four, which the API allows.
const MESSAGES: usize = 2;

/// What a request asks to keep.
#[derive(Clone, Copy)]
pub(super) struct Marks {
    hour: bool,
    messages: usize,
}

impl Marks {
    /// Those of `request`, if it has any.
    pub(super) fn of(request: &ModelRequest) -> Option<Self> {
        let messages = match request.reuse {
            Reuse::Once => return None,
            Reuse::Prompt => 0,
            Reuse::Conversation => MESSAGES,
        };
        match request.settings.cache {
            Some(PromptCache::Off) => None,
            Some(PromptCache::Hour) => Some(Self { hour: true, messages }),
            Some(PromptCache::FiveMinutes) | None => Some(Self { hour: false, messages }),
        }
    }

    fn mark(self) -> Value {
        if self.hour { json!({"type": "ephemeral", "ttl": "1h"}) } else { json!({"type": "ephemeral"}) }
    }

    /// The mark of the last tool, as text, and where it goes.
    pub(super) fn tools(self, shown: &ShownTools) -> Option<(usize, &'static str)> {
        let mark = if self.hour {
            r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#
        } else {
            r#","cache_control":{"type":"ephemeral"}"#
        };
        shown.last().map(|at| (at, mark))
    }

    /// The system prompt as a block with a mark.
    pub(super) fn system(self, text: &str) -> Value {
        json!([{"type": "text", "text": text, "cache_control": self.mark()}])
    }

    /// Marks the last block of the user's last messages.
    pub(super) fn messages(self, messages: &mut [Value]) {
        let of_user = messages.iter_mut().rev().filter(|message| message["role"] == "user").take(self.messages);
        for message in of_user {
            if let Some(block) = message["content"].as_array_mut().and_then(|blocks| blocks.last_mut()) {
                block["cache_control"] = self.mark();
            }
        }
    }
}
