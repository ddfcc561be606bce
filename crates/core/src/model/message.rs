//! The conversation as Toolwright holds it: messages, tools as a request shows them, requests and answers; and their size in
//! estimated tokens.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ModelPriority, NativeOutput, PromptReuse, RequestAllowance, RequestSettings, Usage};
use crate::content::{ContentBlock, EstimatedTokens, json_bytes};

/// A tool as shown in a request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RequestTool {
    /// Wire name.
    pub name: String,
    /// Description.
    pub description: String,
    /// Argument schema as its author wrote it; each API gets a translation.
    pub parameters: Value,
    /// The author's setting for strict decoding: `Some(false)` forbids it, `Some(true)` requests it
    /// if the API supports it and the schema has an equivalent strict form, `None` leaves it to the encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// The argument that takes a call's body, for text formats whose calls have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_argument: Option<String>,
    /// How it is exposed to the model. Deferred tools are declared to APIs with a native tool search, and
    /// loaded by a result ([`CallResult::loads`]); other APIs do not get them.
    #[serde(default, skip_serializing_if = "ToolVisibility::is_shown")]
    pub exposed: ToolVisibility,
    /// Its namespace, for APIs that group tools; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Set for a tool that the provider runs itself: its declaration for each API, by the API's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Map<String, Value>>,
}

/// How a request exposes a tool to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolVisibility {
    /// Its whole definition is in the prompt.
    #[default]
    Shown,
    /// Hidden until a result loads it.
    Deferred,
    /// Its whole definition is in the prompt, and it is the tool search: APIs with a special type for it use that type.
    Search,
}

impl ToolVisibility {
    /// Whether it is [`ToolVisibility::Shown`].
    #[must_use]
    pub fn is_shown(&self) -> bool {
        *self == Self::Shown
    }
}

/// Whether the model may, must or must not call tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// At least one call.
    Required,
    /// No calls.
    None,
    /// This tool, by wire name.
    Tool(String),
}

/// A call as a model wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RawToolCall {
    /// The model's id, or a generated one if the API has none.
    pub id: String,
    /// The name as written.
    pub name: String,
    /// The arguments as written, usually JSON text.
    pub arguments: String,
}

/// A message of the conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// A message of the user.
    User {
        /// Its blocks.
        content: Vec<ContentBlock>,
    },
    /// A message of the model.
    Assistant {
        /// Its text.
        text: String,
        /// Its calls, in order.
        calls: Vec<RawToolCall>,
        /// Provider data to be echoed unread (thinking blocks, signatures), tagged by API.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        opaque: Vec<OpaqueData>,
    },
    /// The results of the calls before it, in call order.
    Tool {
        /// One result for each call.
        results: Vec<CallResult>,
    },
}

impl Message {
    /// A user message of one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { content: vec![ContentBlock::text(text)] }
    }
}

/// Data of one API that only this API understands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpaqueData {
    /// Name of the API.
    pub api: String,
    /// The data, verbatim.
    pub data: Value,
}

impl OpaqueData {
    /// Estimated tokens. A picture that the provider drew counts as a picture, not by its bytes.
    fn tokens(&self) -> usize {
        let item = &self.data["item"];
        if item["type"] == "image_generation_call" {
            return ContentBlock::image("", "image/png").tokens();
        }
        EstimatedTokens::of_bytes(json_bytes(&self.data))
    }
}

/// A call's result in a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallResult {
    /// Id of the call.
    pub call_id: String,
    /// Resolved wire name, for APIs that want it.
    pub name: String,
    /// Content.
    pub content: Vec<ContentBlock>,
    /// Whether the call failed.
    pub is_error: bool,
    /// Deferred tools that it loads, by wire name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<String>,
}

/// The shape that the final text of an answer must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputFormat {
    /// A name for the shape, `[a-zA-Z0-9_-]`, at most 64 characters; others are made legal.
    pub name: String,
    /// JSON Schema of the text, which is JSON then; `None` for any JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// An item of an answer for the client to run that is no function call: free text of a custom
/// tool, a shell command, a patch, a computer action, a tool search. Toolwright passes it on and runs none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NonFunctionCall {
    /// Its type in the API.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its id; empty if the API gave none.
    pub id: String,
    /// Its name, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its input, as the API gave it.
    pub input: Value,
}

/// A request to a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelRequest {
    /// System prompt; may be empty.
    pub system: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools, in catalogue order. Shared, so that they are translated once, not per request.
    pub tools: Arc<[RequestTool]>,
    /// Whether to call tools.
    pub tool_choice: ToolChoice,
    /// Whether an answer may hold several calls; `None` for the API's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_calls: Option<bool>,
    /// The shape of the final text; absent for free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputFormat>,
    /// Token limit of the answer, without reasoning unless [`RequestSettings::limit_covers_reasoning`]. APIs that require
    /// one get a default.
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Further settings.
    #[serde(default, skip_serializing_if = "RequestSettings::is_empty")]
    pub settings: RequestSettings,
    /// The part that will soon be sent again. Not part of the request's content, and not recorded.
    #[serde(default, skip_serializing)]
    pub reuse: PromptReuse,
    /// Priority in the queue. Not part of the request's content.
    #[serde(skip)]
    pub priority: ModelPriority,
    /// The limit on its attempts. Not part of the request's content.
    #[serde(skip)]
    pub room: RequestAllowance,
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It was done.
    #[default]
    End,
    /// A stop text ended the answer ([`ModelSettings::stop`](super::ModelSettings::stop)), if the API reports that; with the text, if
    /// reported.
    StopSequence(Option<String>),
    /// It wants its calls run.
    ToolCalls,
    /// The token limit cut it.
    MaxTokens,
    /// The provider's filter or the model refused.
    Refusal,
    /// Another reason, with the API's name for it.
    Other(String),
}

/// A model's answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelResponse {
    /// Text.
    pub text: String,
    /// Reasoning that the API shows, apart from the text.
    pub reasoning: String,
    /// Complete function calls, in order.
    pub calls: Vec<RawToolCall>,
    /// Complete items of other kinds for the client to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_calls: Vec<NonFunctionCall>,
    /// Whether its text is final although it has calls: they run, and the task is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    /// Why it stopped.
    pub stop: StopReason,
    /// Its usage.
    pub usage: Usage,
    /// Provider data to echo.
    pub opaque: Vec<OpaqueData>,
    /// Output of the provider's native tools.
    #[serde(default, skip_serializing_if = "NativeOutput::is_empty")]
    pub native: NativeOutput,
}

impl StopReason {
    /// Whether the provider paused a long answer that uses its own tools: the conversation so far must be sent again.
    #[must_use]
    pub fn is_pause(&self) -> bool {
        // Anthropic's name.
        matches!(self, Self::Other(word) if word == "pause_turn")
    }
}

/// Tokens of overhead for a message, a call or a result.
pub const FRAME_TOKENS: usize = 4;

/// Tokens of a window that question and answer may use together: a twentieth is reserved, because counts are not
/// exact.
#[must_use]
pub fn usable_window(window: usize) -> usize {
    window - window / 20
}

impl Message {
    /// Estimates its tokens, including images and data that only its API reads (thinking, signatures).
    #[must_use]
    pub fn tokens(&self) -> usize {
        let text = EstimatedTokens::of_text;
        FRAME_TOKENS
            + match self {
                Self::User { content } => content.iter().map(ContentBlock::tokens).sum(),
                Self::Assistant { text: said, calls, opaque } => {
                    let call = |call: &RawToolCall| FRAME_TOKENS + text(&call.name) + text(&call.arguments);
                    let opaque = opaque.iter().map(OpaqueData::tokens);
                    text(said) + calls.iter().map(call).sum::<usize>() + opaque.sum::<usize>()
                }
                Self::Tool { results } => results.iter().map(CallResult::tokens).sum(),
            }
    }
}

impl CallResult {
    /// Estimated tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        FRAME_TOKENS + self.content.iter().map(ContentBlock::tokens).sum::<usize>()
    }
}

impl ModelRequest {
    /// Estimated tokens of all that it shows: system prompt, tools, conversation.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let listed_tools = self.tools.iter().filter(|tool| !tool.is_deferred());
        EstimatedTokens::of_text(&self.system)
            + listed_tools.map(shown_tokens).sum::<usize>()
            + self.messages.iter().map(Message::tokens).sum::<usize>()
    }
}

impl RequestTool {
    /// Whether its definition is not in the prompt until a result loads it.
    #[must_use]
    pub fn is_deferred(&self) -> bool {
        self.exposed == ToolVisibility::Deferred
    }
}

/// Estimates ([`EstimatedTokens`]) the tokens of a definition in a request: the compact JSON
/// `{"name", "description", "parameters"}`. The APIs' own overhead differs by a few tokens a tool.
#[must_use]
pub fn shown_tokens(tool: &RequestTool) -> usize {
    EstimatedTokens::of_bytes(definition_bytes(&tool.name, &tool.description, &tool.parameters))
}

/// Bytes of a tool's definition as a request carries it.
pub(crate) fn definition_bytes(name: &str, description: &str, parameters: &Value) -> usize {
    #[derive(Serialize)]
    struct Definition<'a> {
        name: &'a str,
        description: &'a str,
        parameters: &'a Value,
    }
    json_bytes(&Definition { name, description, parameters })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_estimates_count_all_sent_parts() {
        let opaque = OpaqueData { api: "a".into(), data: json!({"thinking": "x".repeat(385)}) };
        let call = RawToolCall { id: "1".into(), name: "four".into(), arguments: "{\"a\":1}".into() };
        let said = |text: &str, calls, opaque| Message::Assistant { text: text.into(), calls, opaque };
        let result =
            |content| Message::Tool { results: vec![CallResult { content: vec![content], ..CallResult::default() }] };
        for (message, tokens) in [
            (Message::user("four".repeat(10)), 14),
            (said("four", Vec::new(), Vec::new()), 5),
            (said("", vec![call], Vec::new()), 13),
            (said("", Vec::new(), vec![opaque]), 104),
            (result(ContentBlock::text("four")), 9),
            (result(ContentBlock::image("AAAA", "image/png")), 1508),
        ] {
            assert_eq!(message.tokens(), tokens, "{message:?}");
        }
        let tool = RequestTool { name: "t".into(), parameters: json!({}), ..RequestTool::default() };
        let deferred = RequestTool { exposed: ToolVisibility::Deferred, ..tool.clone() };
        let request = ModelRequest {
            system: "four".into(),
            messages: vec![Message::user("four")],
            tools: vec![tool.clone(), deferred].into(),
            ..ModelRequest::default()
        };
        assert_eq!(request.tokens(), 6 + shown_tokens(&tool));
    }
}
