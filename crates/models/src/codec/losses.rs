//! Names the parts of a request that a model may not get. Encoders and configuration note what they leave out; this file
//! only names it.

use toolwright_core::model::{Effort, Message, ModelRequest};

use super::encode;
use crate::api::{Api, EncodedRequest, RequestPart};

impl RequestPart {
    /// The APIs that lack it for all models: those that leave it out of `request`, which has it.
    pub(crate) fn lacking(self, request: &ModelRequest) -> Vec<Api> {
        let lacks = |api: &Api| {
            let model = match api {
                Api::Anthropic => "claude-sonnet-4-5",
                Api::Gemini => "gemini-2.5-pro",
                Api::OpenAiChat | Api::OpenAiResponses | Api::Ollama => "model",
            };
            encode(*api, request, model).losses().contains(&self)
        };
        Api::ALL.into_iter().filter(lacks).collect()
    }
}

/// Returns the parts of `asked` that `api` does not get: those that `encoded`, made of `configured`, leaves out, and those
/// that the configuration changed.
pub(crate) fn losses(
    api: Api,
    asked: &ModelRequest,
    configured: &ModelRequest,
    encoded: &EncodedRequest,
) -> Vec<RequestPart> {
    let (before, after) = (&asked.settings, &configured.settings);
    let budget = after.thinking_tokens.unwrap_or(0);
    let is_silent = after.effort.is_none_or(|effort| effort == Effort::None) && budget == 0;
    let is_foreign = |message: &Message| match message {
        Message::Assistant { opaque, .. } => opaque.iter().any(|data| data.api != api.as_str()),
        Message::User { .. } | Message::Tool { .. } => false,
    };
    let changed = [
        (RequestPart::MaxTokens, configured.max_tokens < asked.max_tokens),
        (RequestPart::Effort, is_silent),
        (RequestPart::Thinking, before.thinking_tokens.is_some() && budget == 0),
        (RequestPart::Budget, before.thinking_tokens.is_some_and(|tokens| tokens != budget)),
        (RequestPart::ThinkingBlocks, asked.messages.iter().any(is_foreign)),
    ];
    let changed = changed.into_iter().filter_map(|(part, is_lost)| is_lost.then_some(part));
    let mut lost: Vec<_> = encoded.losses().iter().copied().chain(changed).collect();
    // What the configuration adds is no loss of the request.
    lost.retain(|part| part.is_asked(asked));
    lost.sort_unstable();
    lost.dedup();
    lost
}
