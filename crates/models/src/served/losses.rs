//! What a request to one API asks that another has no word for.

use toolwright_core::model::{Message, ModelRequest, ToolChoice};

use super::{ServedApi, ServedRequest};
use crate::api::Api;

/// Reasoning as its API signs or encrypts it.
pub const SIGNATURES: &str = "signatures of reasoning";

/// What a request to `served` asks that `upstream` has no word for, and is therefore left out of the request or the answer.
#[must_use]
pub fn losses(served: ServedApi, upstream: Api, request: &ServedRequest) -> Vec<&'static str> {
    if served.api() == upstream {
        return Vec::new();
    }
    let mut lost = of_request(upstream, &request.request);
    if request.wants_signatures {
        lost.push(SIGNATURES);
    }
    lost
}

fn of_request(upstream: Api, request: &ModelRequest) -> Vec<&'static str> {
    let is_openai = matches!(upstream, Api::OpenAiChat | Api::OpenAiResponses);
    let thinks = |message: &Message| match message {
        Message::Assistant { opaque, .. } => opaque.iter().any(|data| data.api != upstream.as_str()),
        Message::User { .. } | Message::Tool { .. } => false,
    };
    let settings = &request.settings;
    [
        ("top_k", settings.top_k.is_some() && is_openai),
        ("seed", settings.seed.is_some() && matches!(upstream, Api::Anthropic | Api::OpenAiResponses)),
        ("stop", !settings.stop.is_empty() && upstream == Api::OpenAiResponses),
        ("thinking.budget_tokens", settings.thinking_tokens.is_some_and(|tokens| tokens > 0) && is_openai),
        ("tool_choice", request.tool_choice != ToolChoice::Auto && upstream == Api::Ollama),
        ("parallel_tool_calls", request.parallel_calls.is_some() && matches!(upstream, Api::Gemini | Api::Ollama)),
        ("thinking blocks", request.messages.iter().any(thinks)),
    ]
    .into_iter()
    .filter_map(|(name, is_lost)| is_lost.then_some(name))
    .collect()
}

#[cfg(test)]
mod tests {
    use toolwright_core::model::ModelSettings;

    use super::*;

    #[test]
    fn what_an_api_lacks_is_named() {
        let settings =
            ModelSettings { top_k: Some(1), seed: Some(2), stop: vec!["x".into()], ..ModelSettings::default() };
        let request = ModelRequest { settings, parallel_calls: Some(false), ..ModelRequest::default() };
        let request = ServedRequest { request, wants_signatures: true, ..ServedRequest::default() };
        for (served, upstream, expect) in [
            (ServedApi::Messages, Api::OpenAiChat, vec!["top_k", "signatures of reasoning"]),
            (ServedApi::Messages, Api::OpenAiResponses, vec!["top_k", "seed", "stop", "signatures of reasoning"]),
            (ServedApi::Messages, Api::Anthropic, vec![]),
            (ServedApi::Responses, Api::Anthropic, vec!["seed", "signatures of reasoning"]),
            (ServedApi::Messages, Api::Gemini, vec!["parallel_tool_calls", "signatures of reasoning"]),
            (ServedApi::Messages, Api::Ollama, vec!["parallel_tool_calls", "signatures of reasoning"]),
        ] {
            assert_eq!(losses(served, upstream, &request), expect, "{served} {upstream}");
        }
    }
}
