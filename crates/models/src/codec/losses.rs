//! Names the parts of a request that a model may not get. Encoders and configuration note what they leave out; this file
//! only names it.

use toolwright_core::model::{Effort, Message, ModelRequest, ToolChoice};

use super::encode;
use crate::api::{Api, EncodedRequest};

/// A part of a request that a model or its API may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestPart {
    /// The token limit as high as asked.
    MaxTokens,
    /// `temperature`.
    Temperature,
    /// `top_p`.
    TopP,
    /// `top_k`.
    TopK,
    /// `seed`.
    Seed,
    /// Stop sequences.
    Stop,
    /// The effort of reasoning.
    Effort,
    /// Thinking at all.
    Thinking,
    /// The budget of thinking, as asked.
    Budget,
    /// A forced call.
    ToolChoice,
    /// Whether there may be several calls.
    ParallelCalls,
    /// Thinking that another API signed.
    ThinkingBlocks,
}

impl RequestPart {
    /// Its name in responses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::TopK => "top_k",
            Self::Seed => "seed",
            Self::Stop => "stop",
            Self::Effort => "reasoning_effort",
            Self::Thinking => "thinking",
            Self::Budget => "thinking.budget_tokens",
            Self::ToolChoice => "tool_choice",
            Self::ParallelCalls => "parallel_tool_calls",
            Self::ThinkingBlocks => "thinking blocks",
        }
    }

    /// Returns the parameter of this name, if a client can ask for it.
    pub(crate) fn of_parameter(name: &str) -> Option<Self> {
        let parts = [Self::Temperature, Self::TopP, Self::TopK, Self::Seed, Self::Stop, Self::ParallelCalls];
        parts.into_iter().find(|part| part.name() == name)
    }

    /// Whether `request` has it.
    pub(crate) fn is_asked(self, request: &ModelRequest) -> bool {
        let settings = &request.settings;
        let has_budget = settings.thinking_tokens.is_some_and(|tokens| tokens > 0);
        match self {
            Self::MaxTokens => request.max_tokens.is_some(),
            Self::Temperature => request.temperature.is_some(),
            Self::TopP => settings.top_p.is_some(),
            Self::TopK => settings.top_k.is_some(),
            Self::Seed => settings.seed.is_some(),
            Self::Stop => !settings.stop.is_empty(),
            Self::Effort => settings.effort.is_some_and(|effort| effort > Effort::None),
            Self::Thinking => has_budget || settings.asks_thinking == Some(true),
            Self::Budget => has_budget,
            Self::ToolChoice => request.tool_choice != ToolChoice::Auto,
            Self::ParallelCalls => request.parallel_calls.is_some(),
            Self::ThinkingBlocks => request
                .messages
                .iter()
                .any(|message| matches!(message, Message::Assistant { opaque, .. } if !opaque.is_empty())),
        }
    }

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
