//! `sampling/createMessage` as a request to a model of ours, and its answer as the result (MCP 2025-11-25 and
//! 2026-07-28, "Sampling").

use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{MAX_STOP, Message, ModelRequest, ModelResponse, ModelSettings, StopReason};

/// Messages of one request.
const MAX_MESSAGES: usize = 256;

/// What a request says that is heeded. Which model answers, and what it knows of a server's context, is not the
/// server's to say.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    messages: Vec<Written>,
    system_prompt: Option<String>,
    temperature: Option<f64>,
    max_tokens: u32,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Value>,
    tool_choice: Option<Value>,
}

#[derive(Deserialize)]
struct Written {
    role: Role,
    content: Content,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Several(Vec<ContentBlock>),
    One(ContentBlock),
}

/// The request to a model that these parameters ask for, its answer bounded by `max_tokens` too.
///
/// # Errors
/// In words, for parameters that cannot be read or ask for what is not offered.
pub fn request_of(params: &Value, max_tokens: u32) -> Result<ModelRequest, String> {
    let params = Params::deserialize(params).map_err(|error| format!("the request cannot be read: {error}"))?;
    if params.tools.is_some_and(|tools| !tools.is_null()) || params.tool_choice.is_some_and(|choice| !choice.is_null())
    {
        return Err("sampling with tools is not offered here".into());
    }
    if params.messages.is_empty() || params.messages.len() > MAX_MESSAGES {
        return Err(format!("a request has from 1 to {MAX_MESSAGES} messages"));
    }
    // More than APIs take, and blank ones, which some refuse, are a wish that is not granted.
    let mut stop = params.stop_sequences.unwrap_or_default();
    stop.retain(|text| !text.trim().is_empty());
    stop.truncate(MAX_STOP);
    let messages: Result<_, String> = params.messages.into_iter().map(message).collect();
    Ok(ModelRequest {
        system: params.system_prompt.unwrap_or_default(),
        messages: messages?,
        max_tokens: Some(params.max_tokens.clamp(1, max_tokens)),
        temperature: params.temperature,
        settings: ModelSettings { stop, ..ModelSettings::default() },
        ..ModelRequest::default()
    })
}

fn message(written: Written) -> Result<Message, String> {
    let content = match written.content {
        Content::Several(content) => content,
        Content::One(block) => vec![block],
    };
    let is_plain = |block: &ContentBlock| matches!(block, ContentBlock::Text { .. });
    let is_seen = |block: &ContentBlock| {
        is_plain(block) || matches!(block, ContentBlock::Image { .. } | ContentBlock::Audio { .. })
    };
    match written.role {
        Role::User if content.iter().all(is_seen) => Ok(Message::User { content }),
        Role::Assistant if content.iter().all(is_plain) => {
            Ok(Message::Assistant { text: joined_text(&content), calls: Vec::new(), opaque: Vec::new() })
        }
        Role::User => Err("a user's message holds text, images and sound".into()),
        Role::Assistant => Err("an assistant's message holds text".into()),
    }
}

/// `CreateMessageResult` of an answer of `model`.
#[must_use]
pub fn result_of(response: &ModelResponse, model: &str) -> Value {
    let stopped = match &response.stop {
        StopReason::End | StopReason::ToolCalls => "endTurn",
        StopReason::StopSequence => "stopSequence",
        StopReason::MaxTokens => "maxTokens",
        StopReason::Refusal => "refusal",
        StopReason::Other(word) => word,
    };
    let content = json!({"type": "text", "text": response.text});
    json!({"role": "assistant", "content": content, "model": model, "stopReason": stopped})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_over_within_its_bounds() {
        let asked = json!({
            "messages": [
                {"role": "user", "content": {"type": "text", "text": "Hi"}},
                {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
                {"role": "user", "content": [{"type": "image", "data": "AA==", "mimeType": "image/png"}]},
            ],
            "systemPrompt": "Be brief.", "maxTokens": 100_000, "temperature": 0.5,
            "modelPreferences": {"hints": [{"name": "x"}]}, "includeContext": "allServers", "stopSequences": ["a", " ", "b", "c", "d", "e"],
        });
        let request = request_of(&asked, 500).expect("read");
        assert_eq!((&*request.system, request.max_tokens, request.temperature), ("Be brief.", Some(500), Some(0.5)));
        assert_eq!(request.messages[0], Message::user("Hi"));
        assert_eq!((request.messages.len(), &*request.settings.stop.concat()), (3, "abcd"));
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        let text = json!({"type": "text", "text": "a"});
        let one = json!([{"role": "user", "content": text}]);
        let link = json!({"type": "resource_link", "uri": "a:b", "name": "n"});
        for (asked, says) in [
            (json!({"messages": one}), "maxTokens"),
            (json!({"messages": [], "maxTokens": 1}), "from 1 to"),
            (json!({"messages": one, "maxTokens": 1, "tools": []}), "tools"),
            (json!({"messages": [{"role": "system", "content": text}], "maxTokens": 1}), "system"),
            (json!({"messages": [{"role": "user", "content": link}], "maxTokens": 1}), "text, images"),
        ] {
            let why = request_of(&asked, 10).expect_err("refused");
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn an_answer_says_who_gave_it_and_why_it_ended() {
        for (stop, word) in [
            (StopReason::End, "endTurn"),
            (StopReason::StopSequence, "stopSequence"),
            (StopReason::MaxTokens, "maxTokens"),
            (StopReason::Other("pause_turn".into()), "pause_turn"),
        ] {
            let response = ModelResponse { text: "Hello".into(), stop, ..ModelResponse::default() };
            let expect = json!({
                "role": "assistant", "content": {"type": "text", "text": "Hello"}, "model": "p/m", "stopReason": word,
            });
            assert_eq!(result_of(&response, "p/m"), expect);
        }
    }
}
