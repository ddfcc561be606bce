//! Lists the parts of a request to one API that another API cannot express.

use toolwright_core::model::{Message, ModelRequest, ToolChoice};

use super::{ServedApi, ServedRequest};
use crate::api::Api;

/// Reasoning as its API signs or encrypts it.
pub const SIGNATURES: &str = "signatures of reasoning";

/// A feature that some APIs lack.
struct MissingFeature {
    /// Its name in responses.
    name: &'static str,
    /// The request fields that need it.
    fields: &'static [&'static str],
    apis: &'static [Api],
    is_asked: fn(&ModelRequest) -> bool,
}

const OPENAI: &[Api] = &[Api::OpenAiChat, Api::OpenAiResponses];

const LACKS: &[MissingFeature] = &[
    MissingFeature {
        name: "top_k",
        fields: &["top_k"],
        apis: OPENAI,
        is_asked: |request| request.settings.top_k.is_some(),
    },
    MissingFeature {
        name: "seed",
        fields: &["seed"],
        apis: &[Api::Anthropic, Api::OpenAiResponses],
        is_asked: |request| request.settings.seed.is_some(),
    },
    MissingFeature {
        name: "stop",
        fields: &["stop", "stop_sequences"],
        apis: &[Api::OpenAiResponses],
        is_asked: |request| !request.settings.stop.is_empty(),
    },
    MissingFeature {
        name: "thinking.budget_tokens",
        fields: &["thinking"],
        apis: OPENAI,
        is_asked: |request| request.settings.thinking_tokens.is_some_and(|tokens| tokens > 0),
    },
    MissingFeature {
        name: "tool_choice",
        fields: &["tool_choice"],
        apis: &[Api::Ollama],
        is_asked: |request| request.tool_choice != ToolChoice::Auto,
    },
    MissingFeature {
        name: "parallel_tool_calls",
        fields: &["parallel_tool_calls"],
        apis: &[Api::Gemini, Api::Ollama],
        is_asked: |request| request.parallel_calls.is_some(),
    },
];

/// Returns the APIs that lack a field, and the name of the loss.
#[must_use]
pub fn lost_with(field: &str) -> Option<(&'static str, &'static [Api])> {
    LACKS.iter().find(|lack| lack.fields.contains(&field)).map(|lack| (lack.name, lack.apis))
}

/// Returns what a request to `served` asks for that `upstream` lacks, so that it is left out of the request or the
/// answer.
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
    let thinks = |message: &Message| match message {
        Message::Assistant { opaque, .. } => opaque.iter().any(|data| data.api != upstream.as_str()),
        Message::User { .. } | Message::Tool { .. } => false,
    };
    let lacks = LACKS.iter().filter(|lack| lack.apis.contains(&upstream) && (lack.is_asked)(request));
    let blocks = request.messages.iter().any(thinks).then_some("thinking blocks");
    lacks.map(|lack| lack.name).chain(blocks).collect()
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
