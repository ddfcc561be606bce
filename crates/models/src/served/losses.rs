//! Lists the parts of a served request that its model or the API of the model cannot express.

use serde_json::json;
use toolwright_core::model::{ModelRequest, ModelSettings, RequestTool, ToolChoice};

use super::{ServedApi, ServedRequest};
use crate::api::{Api, RequestPart};

/// Reasoning as its API signs or encrypts it.
pub const SIGNATURES: &str = "signatures of reasoning";
/// The place of a system message amid others: all system messages come first.
const PLACE: &str = "place of system messages";

/// The parts that whole APIs lack, by the request fields that need them.
const FIELDS: &[(&str, RequestPart)] = &[
    ("parallel_tool_calls", RequestPart::ParallelCalls),
    ("seed", RequestPart::Seed),
    ("stop", RequestPart::Stop),
    ("stop_sequences", RequestPart::Stop),
    ("thinking", RequestPart::Budget),
    ("tool_choice", RequestPart::ToolChoice),
    ("top_k", RequestPart::TopK),
];

/// Returns the APIs that lack a field, and the name of the loss.
#[must_use]
pub fn unsupported_by(field: &str) -> Option<(&'static str, Vec<Api>)> {
    let (_, part) = FIELDS.iter().find(|(name, _)| *name == field)?;
    let tool = RequestTool { name: "f".into(), parameters: json!({"type": "object"}), ..RequestTool::default() };
    let mut asked = ModelRequest { tools: vec![tool].into(), ..ModelRequest::default() };
    let settings = match part {
        RequestPart::Seed => ModelSettings { seed: Some(1), ..ModelSettings::default() },
        RequestPart::Stop => ModelSettings { stop: vec!["a".into()], ..ModelSettings::default() },
        RequestPart::TopK => ModelSettings { top_k: Some(1), ..ModelSettings::default() },
        RequestPart::Budget => ModelSettings { thinking_tokens: Some(2000), ..ModelSettings::default() },
        RequestPart::ToolChoice => {
            asked.tool_choice = ToolChoice::Required;
            ModelSettings::default()
        }
        _ => {
            asked.parallel_calls = Some(false);
            ModelSettings::default()
        }
    };
    Some((part.name(), part.apis_without(&ModelRequest { settings: settings.into(), ..asked })))
}

/// Returns the names of what the answer to a request to `served` goes without, whatever its model is sent: `upstream` is the
/// model's API. [`RequestProgress::Lost`](toolwright_core::model::RequestProgress::Lost) names the rest.
#[must_use]
pub fn losses(served: ServedApi, upstream: Option<Api>, request: &ServedRequest) -> Vec<&'static str> {
    let signatures = request.wants_signatures && upstream.is_some_and(|upstream| upstream != served.api());
    signatures.then_some(SIGNATURES).into_iter().chain(request.moves_system.then_some(PLACE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_apis_lack_are_known() {
        use Api::{Anthropic, Gemini, Ollama, OpenAiChat, OpenAiResponses};
        for (field, apis) in [
            ("top_k", vec![OpenAiChat, OpenAiResponses]),
            ("seed", vec![OpenAiResponses, Anthropic]),
            ("stop", vec![OpenAiResponses]),
            ("thinking", vec![OpenAiChat, OpenAiResponses, Ollama]),
            ("tool_choice", vec![Ollama]),
            ("parallel_tool_calls", vec![Gemini, Ollama]),
        ] {
            let mut found = unsupported_by(field).expect(field).1;
            found.sort_by_key(|api| api.as_str());
            let mut expect = apis;
            expect.sort_by_key(|api| api.as_str());
            assert_eq!(found, expect, "{field}");
        }
        assert_eq!(unsupported_by("temperature"), None);
    }
}
