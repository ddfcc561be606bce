//! The server side of three model APIs: reads their requests into a conversation, and writes answers, streamed or
//! whole. Pure, like the encoders and decoders that they mirror.
//!
//! Each documented field of a request is honoured, refused or listed as ignored; [`FIELDS`] is the only table of
//! request fields, and [`SHAPES`] that of nested objects.

mod chat;
mod error;
mod fields;
mod losses;
mod messages;
mod reading;
mod references;
mod responses;
mod responses_writer;
mod shapes;
mod writer;

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolwright_core::model::{ModelRequest, OpaqueData, RawToolCall, StopReason, Usage};

use crate::api::Api;
pub use error::{Fault, error_body};
pub use fields::{FIELDS, Field, Handling, fields_of};
pub use losses::{SIGNATURES, losses, unsupported_by};
pub use references::References;
pub use responses::{
    ConversationBody, Metadata, check_include, input_items, input_messages, input_system, read_conversation,
};
pub use shapes::{SHAPES, Shape};
pub use writer::ResponseWriter;

/// An API that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServedApi {
    /// `OpenAI` Chat Completions.
    Chat,
    /// `OpenAI` Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
}

impl ServedApi {
    /// Every served API.
    pub const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    /// The corresponding client API.
    #[must_use]
    pub fn api(self) -> Api {
        match self {
            Self::Chat => Api::OpenAiChat,
            Self::Responses => Api::OpenAiResponses,
            Self::Messages => Api::Anthropic,
        }
    }

    /// The path of its endpoint.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }
}

/// A request that cannot be served, and the field that is the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct RequestError {
    /// Path of the field, like `messages[2].content[0].type`.
    pub field: String,
    /// The fault, and what to send instead.
    pub message: String,
}

impl RequestError {
    /// An error in this field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// A request to a served API.
#[derive(Debug, Clone, Default)]
pub struct ServedRequest {
    /// The `model` as written.
    pub model: String,
    /// The conversation, the client's tools, and the answer settings. For Responses, without the content of a stored
    /// conversation.
    pub request: ModelRequest,
    /// Whether to stream the answer.
    pub stream: bool,
    /// Whether a stream of Chat ends with its usage.
    pub include_usage: bool,
    /// Whether the client requested the reasoning.
    pub wants_reasoning: bool,
    /// Whether the client requested reasoning signed or encrypted, to send it back.
    pub wants_signatures: bool,
    /// The most calls of tools that run here.
    pub max_calls: Option<u32>,
    /// The client's name for its user.
    pub user: Option<String>,
    /// Data of the client that comes back with the answer.
    pub metadata: Map<String, Value>,
    /// Whether to store the answer, if possible.
    pub store: bool,
    /// The answer that it continues.
    pub previous_response: Option<String>,
    /// The conversation that it belongs to.
    pub conversation: Option<String>,
    /// Whether the answer may be fetched later.
    pub background: bool,
    /// Decisions about calls that waited for one: the id of the question, whether it is approved, the reason.
    pub approvals: Vec<(String, bool, String)>,
    /// Tools whose calls have free text instead of arguments.
    pub custom_tools: Vec<String>,
    /// Tools of namespaces, under the names that they are shown by.
    pub namespaced: HashMap<String, Namespaced>,
    /// The items of `input`, as they are listed.
    pub items: Vec<Value>,
    /// Fields that a response of Responses repeats.
    pub echo: Map<String, Value>,
    /// The fields of this request that have no effect.
    pub ignored: Vec<String>,
    /// Whether a system message stands amid others. All of them are read into the system prompt.
    pub moves_system: bool,
}

impl ServedRequest {
    /// Checks that its model's API supports its files.
    ///
    /// # Errors
    /// [`RequestError`], naming the field.
    pub fn check_files(&self, api: ServedApi, upstream: Option<Api>) -> Result<(), RequestError> {
        let field = if api == ServedApi::Responses { "input" } else { "messages" };
        reading::check_documents(&self.request.messages, upstream, field)
    }
}

/// Reads a request to `api`.
///
/// # Errors
/// [`RequestError`], naming the field.
pub fn read_request(api: ServedApi, body: &[u8]) -> Result<ServedRequest, RequestError> {
    let body = read_body(body)?;
    let ignored = fields::check(api, &body)?;
    let mut read = match api {
        ServedApi::Chat => chat::read(&body),
        ServedApi::Responses => responses::read(&body),
        ServedApi::Messages => messages::read(&body),
    }?;
    read.ignored.splice(0..0, ignored);
    Ok(read)
}

fn read_body(body: &[u8]) -> Result<Map<String, Value>, RequestError> {
    let body =
        serde_json::from_slice(body).map_err(|error| RequestError::new("body", format!("it is not JSON: {error}")))?;
    match body {
        Value::Object(body) => Ok(body),
        _ => Err(RequestError::new("body", "it is not a JSON object")),
    }
}

/// A part of an answer, in the order in which it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponsePiece {
    /// A piece of text.
    Text(String),
    /// The next text is separate from the last one.
    Break,
    /// A piece of reasoning.
    Reasoning(String),
    /// A call for the client.
    Call(RawToolCall),
    /// A call that runs here has begun.
    Began(RawToolCall),
    /// It has ended: its id, whether it succeeded, and a line about its result.
    Ended {
        /// Id of the call.
        id: String,
        /// Whether it succeeded.
        ok: bool,
        /// A short text of its result.
        text: String,
    },
    /// A call waits for a person: the id of the question, and the call.
    Question {
        /// Id of the question.
        id: String,
        /// The call.
        call: RawToolCall,
    },
    /// Data that the API's clients send back unread.
    Opaque(OpaqueData),
}

/// How an answer ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResponseEnd {
    /// Why.
    pub stop: StopReason,
    /// Its usage.
    pub usage: Usage,
    /// Whether it is unfinished: a call waits for a person.
    pub pending: bool,
}

/// Metadata of an answer.
#[derive(Debug, Clone, Default)]
pub struct ResponseHead {
    /// Its id.
    pub id: String,
    /// The model as the client named it.
    pub model: String,
    /// Start time, in seconds since 1970.
    pub created: u64,
    /// Whether a stream of Chat ends with its usage.
    pub include_usage: bool,
    /// Whether it shows calls that run here; Chat does so as reasoning, and Messages always.
    pub shows_calls: bool,
    /// Fields that Responses repeats.
    pub echo: Map<String, Value>,
    /// Tools whose calls have free text instead of arguments.
    pub custom_tools: Vec<String>,
    /// Tools of namespaces, under the names that they are shown by.
    pub namespaced: HashMap<String, Namespaced>,
}

/// A tool of a namespace, as Responses has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespaced {
    /// The namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl Namespaced {
    /// The name that it is shown by.
    fn quoted_name(&self) -> String {
        format!("{}__{}", self.namespace, self.name)
    }
}

impl fmt::Display for ServedApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.api().as_str())
    }
}
