//! The conversation as Toolwright holds it: messages, tools as a request shows them, requests and answers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ModelPriority, ModelSettings, RequestAllowance, Reuse, Usage};
use crate::content::ContentBlock;

/// One tool as a request shows it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShownTool {
    /// Wire name.
    pub name: String,
    /// Description.
    pub description: String,
    /// Argument schema as its author wrote it; each API is shown its own view of it.
    pub parameters: Value,
    /// The author's word on strict decoding: `Some(false)` forbids it, `Some(true)` asks for it
    /// where the API has it and the strict form of the schema says the same, `None` leaves it to the encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// The argument that takes the body of a call, for text formats whose calls have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_argument: Option<String>,
    /// How it is put before the model. Deferred tools are declared to APIs with a tool search of their own and
    /// come before the model when a result loads them ([`CallResult::loads`]); the other APIs are not sent them.
    #[serde(default, skip_serializing_if = "Exposed::is_shown")]
    pub exposed: Exposed,
    /// The namespace it belongs to, for APIs that group tools; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// How a request puts a tool before the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exposed {
    /// With its whole definition.
    #[default]
    Shown,
    /// Not until a result loads it.
    Deferred,
    /// With its whole definition, and it is the one that finds deferred tools: an API that has a type of its
    /// own for such a tool is told so.
    Search,
}

impl Exposed {
    /// Whether it is simply shown.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        *self == Self::Shown
    }
}

/// Whether the model may, must or must not call tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// Its own choice.
    #[default]
    Auto,
    /// At least one call.
    Required,
    /// No call.
    None,
    /// This tool, by wire name.
    Tool(String),
}

/// One call as a model wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WrittenCall {
    /// The model's id, or one we made where the API has none.
    pub id: String,
    /// The name as written.
    pub name: String,
    /// The arguments as written, usually JSON text.
    pub arguments: String,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// From the user.
    User {
        /// Its blocks.
        content: Vec<ContentBlock>,
    },
    /// From the model.
    Assistant {
        /// Its text.
        text: String,
        /// Its calls, in order.
        calls: Vec<WrittenCall>,
        /// Provider data to be echoed unread (thinking blocks, signatures), tagged by API.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        opaque: Vec<OpaqueData>,
    },
    /// The results of the calls before it, in call order.
    Tool {
        /// One a call.
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

/// One result as a request carries it.
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
    /// Deferred tools that it puts before the model, by wire name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<String>,
}

/// The shape that the final text of an answer must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputFormat {
    /// A name for the shape, `[a-zA-Z0-9_-]`, at most 64 characters; others are made legal.
    pub name: String,
    /// JSON Schema of the text, which is JSON then; none for a JSON object of any kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// An item of an answer that the client is to run and that is no function call: a custom tool's free
/// text, a shell command, a patch, a computer action, a tool search. Toolwright hands it on and runs none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OtherCall {
    /// Its type, in the API's word.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its id, empty where the API gave none.
    pub id: String,
    /// Its name, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it asks for, as the API gave it.
    pub input: Value,
}

/// One request to a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelRequest {
    /// System prompt; empty for none.
    pub system: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools, in catalogue order. Shared, so that an API's view of them is made once and not per request.
    pub tools: Arc<[ShownTool]>,
    /// Whether to call them.
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls; absent for the API's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_calls: Option<bool>,
    /// The shape of the final text; absent for free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputFormat>,
    /// Limit of the answer in tokens; what a model is told to think comes on top. APIs that require one get a default.
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// How it is to answer beside that.
    #[serde(default, skip_serializing_if = "ModelSettings::is_empty")]
    pub settings: ModelSettings,
    /// What of it will be sent again soon. No part of what is said, so that it is not written down.
    #[serde(default, skip_serializing)]
    pub reuse: Reuse,
    /// Who goes first where requests wait for each other. No part of what is sent.
    #[serde(skip)]
    pub priority: ModelPriority,
    /// What attempts at it are taken of. No part of what is sent.
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
    /// One of the texts that end an answer came ([`ModelSettings::stop`]), where the API tells that apart.
    StopSequence,
    /// It wants its calls run.
    ToolCalls,
    /// The token limit cut it.
    MaxTokens,
    /// The provider's filter or the model refused.
    Refusal,
    /// Something else, in the API's word.
    Other(String),
}

/// One answer of a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelResponse {
    /// Text.
    pub text: String,
    /// Reasoning that the API shows, apart from the text.
    pub reasoning: String,
    /// Complete function calls, in order.
    pub calls: Vec<WrittenCall>,
    /// Complete items of other kinds that the client is to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_calls: Vec<OtherCall>,
    /// Why it stopped.
    pub stop: StopReason,
    /// What it used.
    pub usage: Usage,
    /// Provider data to echo.
    pub opaque: Vec<OpaqueData>,
}
