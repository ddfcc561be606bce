//! Defines the requests that a server may send to the client of a call, the capabilities that each needs, and sampling
//! by our own models.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{MAX_STOP, Message, ModelRequest, ModelResponse, ModelSettings, StopReason};

/// Asks a person.
pub const ELICIT: &str = "elicitation/create";
/// Asks a model.
pub const SAMPLE: &str = "sampling/createMessage";
/// Asks for the client's folders.
pub const ROOTS: &str = "roots/list";

/// Returns the capabilities that this request needs and `capabilities` (MCP's `ClientCapabilities`) lack, in the form
/// of `requiredCapabilities` (MCP 2026-07-28, error -32021); `None` if nothing is missing.
#[must_use]
pub fn missing(capabilities: &Map<String, Value>, method: &str, params: &Value) -> Option<Value> {
    let has = |key: &str| capabilities.get(key).and_then(Value::as_object);
    let uses = |key: &str| params.get(key).is_some_and(|value| !value.is_null());
    match method {
        ELICIT => {
            let is_url = params.get("mode").and_then(Value::as_str) == Some("url");
            let mode = if is_url { "url" } else { "form" };
            // An empty object means forms, which were the only mode at first.
            let offered =
                has("elicitation").is_some_and(|modes| modes.contains_key(mode) || (modes.is_empty() && !is_url));
            (!offered).then(|| json!({"elicitation": {mode: {}}}))
        }
        SAMPLE => {
            let Some(offered) = has("sampling") else { return Some(json!({"sampling": {}})) };
            let tools = uses("tools") || uses("toolChoice");
            (tools && !offered.contains_key("tools")).then(|| json!({"sampling": {"tools": {}}}))
        }
        ROOTS => has("roots").is_none().then(|| json!({"roots": {}})),
        _ => Some(json!({})),
    }
}

/// Messages of one request of [`SAMPLE`].
const MAX_MESSAGES: usize = 256;

/// The supported parameters of [`SAMPLE`]. The server chooses neither the model nor the context that the
/// model sees.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SamplingParams {
    messages: Vec<RawSamplingMessage>,
    system_prompt: Option<String>,
    temperature: Option<f64>,
    max_tokens: u32,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Value>,
    tool_choice: Option<Value>,
}

#[derive(Deserialize)]
struct RawSamplingMessage {
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

/// Builds the model request for the parameters of [`SAMPLE`] (MCP 2025-11-25 and 2026-07-28, "Sampling"), with
/// `max_tokens` as an additional bound.
///
/// # Errors
/// The reason, for parameters that cannot be read or are not supported.
pub fn request_of(params: &Value, max_tokens: u32) -> Result<ModelRequest, String> {
    let params = SamplingParams::deserialize(params).map_err(|error| format!("the request cannot be read: {error}"))?;
    if params.tools.is_some_and(|tools| !tools.is_null()) || params.tool_choice.is_some_and(|choice| !choice.is_null())
    {
        return Err("sampling with tools is not offered here".into());
    }
    if params.messages.is_empty() || params.messages.len() > MAX_MESSAGES {
        return Err(format!("a request has from 1 to {MAX_MESSAGES} messages"));
    }
    // More than APIs support, and blank ones, which some refuse, are dropped.
    let mut stop = params.stop_sequences.unwrap_or_default();
    stop.retain(|text| !text.trim().is_empty());
    stop.truncate(MAX_STOP);
    let messages: Result<_, String> = params.messages.into_iter().map(message).collect();
    Ok(ModelRequest {
        system: params.system_prompt.unwrap_or_default(),
        messages: messages?,
        max_tokens: Some(params.max_tokens.clamp(1, max_tokens)),
        temperature: params.temperature,
        settings: ModelSettings { stop, ..ModelSettings::default() }.into(),
        ..ModelRequest::default()
    })
}

fn message(written: RawSamplingMessage) -> Result<Message, String> {
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
        StopReason::StopSequence(_) => "stopSequence",
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
    fn a_client_is_asked_only_what_it_offers() {
        let check = |capabilities: Value, method: &str, params: Value, expect: Value| {
            let capabilities = capabilities.as_object().expect("object");
            let missing = missing(capabilities, method, &params).unwrap_or_default();
            assert_eq!(missing, expect, "{capabilities:?} {method} {params}");
        };
        check(json!({}), ROOTS, json!({}), json!({"roots": {}}));
        check(json!({"roots": {"listChanged": true}}), ROOTS, json!({}), json!(null));
        check(json!({"elicitation": {}}), ELICIT, json!({"message": "m"}), json!(null));
        check(json!({"elicitation": {}}), ELICIT, json!({"mode": "url"}), json!({"elicitation": {"url": {}}}));
        check(json!({"elicitation": {"url": {}}}), ELICIT, json!({}), json!({"elicitation": {"form": {}}}));
        check(json!({"elicitation": {"url": {}}}), ELICIT, json!({"mode": "url"}), json!(null));
        check(json!({}), SAMPLE, json!({}), json!({"sampling": {}}));
        check(json!({"sampling": {}}), SAMPLE, json!({"messages": []}), json!(null));
        check(json!({"sampling": {}}), SAMPLE, json!({"tools": []}), json!({"sampling": {"tools": {}}}));
        check(json!({"sampling": {"tools": {}}}), SAMPLE, json!({"tools": []}), json!(null));
        check(json!({"roots": {}}), "tools/list", json!({}), json!({}));
    }

    #[test]
    fn a_request_is_parsed_within_its_bounds() {
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
    fn unsupported_sampling_requests_are_refused() {
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
    fn answers_name_their_source_and_reason() {
        for (stop, word) in [
            (StopReason::End, "endTurn"),
            (StopReason::StopSequence(None), "stopSequence"),
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
