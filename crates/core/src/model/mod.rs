//! The conversation as Toolwright holds it, and the client that answers it. Wire formats live in
//! `toolwright-models`; nothing here knows an API.

mod auxiliary;
mod budget;
mod card;
mod price;
mod recording;
mod request_allowance;
mod settings;
mod size;
mod traffic;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cancel::Cancel;
use crate::content::ContentBlock;

pub use auxiliary::{AuxiliaryRequest, AuxiliarySender};
pub use budget::{Bound, ModelBounds, ModelBudget, Reserved};
pub use card::{ModelCard, Usability};
pub(crate) use price::is_zero;
pub use price::{MAX_TOKENS, PriceTable, Prices, Usage};
pub use recording::{
    MAX_RECORDED_LINE, MAX_RECORDING, NotRecorded, RECORDED_OF, RECORDING_VERSION, REPLAY, RecordedError, RecordedLine,
    is_replay, recorded_of,
};
pub use request_allowance::RequestAllowance;
pub use settings::{Effort, MAX_SEED, MAX_STOP, MAX_THINKING_TOKENS, ModelSettings, PromptCache, Reuse, UnknownEffort};
pub use size::{FRAME_TOKENS, usable_window};
pub use traffic::{Allowance, Limits, MAX_REFUSED_FORMS, ModelPriority, RetryTerms, Traffic, pause, retry};

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

/// A piece of a streamed answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// Text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A call whose block has closed.
    Call(WrittenCall),
}

/// What kind of model failure; only [`ModelErrorKind::is_retryable`] ones are worth another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrorKind {
    /// The key is missing or refused.
    Auth,
    /// Too many requests.
    RateLimit,
    /// The account is out of credit.
    Quota,
    /// The conversation does not fit.
    ContextOverflow,
    /// The provider's filter refused.
    ContentFilter,
    /// The provider is down, overloaded or unreachable.
    Unavailable,
    /// The request is wrong.
    Invalid,
    /// The answer cannot be understood, or broke off.
    BadResponse,
    /// Cancelled by us.
    Canceled,
    /// This client cannot do it.
    Unsupported,
}

impl ModelErrorKind {
    /// The kind as it is written on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::RateLimit => "rate_limit",
            Self::Quota => "quota",
            Self::ContextOverflow => "context_overflow",
            Self::ContentFilter => "content_filter",
            Self::Unavailable => "unavailable",
            Self::Invalid => "invalid",
            Self::BadResponse => "bad_response",
            Self::Canceled => "canceled",
            Self::Unsupported => "unsupported",
        }
    }

    /// Whether a request that failed like this may be charged though nobody said what it used: a model may have worked
    /// on it. The others were refused before.
    #[must_use]
    pub fn may_be_charged(self) -> bool {
        match self {
            // An answer may have been cut off, or thrown away.
            Self::Unavailable | Self::BadResponse | Self::Canceled | Self::ContentFilter => true,
            Self::Auth | Self::RateLimit | Self::Quota | Self::ContextOverflow | Self::Invalid | Self::Unsupported => {
                false
            }
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::RateLimit | Self::Unavailable)
    }
}

/// A failed model request.
#[derive(Debug, thiserror::Error)]
pub struct ModelError {
    /// Kind.
    pub kind: ModelErrorKind,
    /// For the operator, secrets redacted.
    pub message: String,
    /// Milliseconds the provider asked to wait (Retry-After).
    pub retry_after_ms: Option<u64>,
    /// Whether another try may help and can do no harm, by the word of the provider or of the client that knows how
    /// far the request came; absent for what its kind says.
    pub should_retry: Option<bool>,
    /// Whether it never reached the provider, which therefore bills nothing of it.
    pub unsent: bool,
    /// What the failed request used, as far as the provider said it.
    pub usage: Usage,
    /// What was complete when an answer broke off or failed amid its stream. Its calls are whole, but the
    /// answer is not: none of them may start because of it.
    pub partial: Option<Box<ModelResponse>>,
    /// Cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ModelError {
    /// An error without a source.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after_ms: None,
            should_retry: None,
            unsent: false,
            usage: Usage::default(),
            partial: None,
            source: None,
        }
    }

    /// Whether a request that was refused will be sent in another form, as the client says: what is wrong is the form, or
    /// the limit that makes it too long with its answer, so that it is no second try of the same and nothing need be
    /// taken out of the conversation.
    #[must_use]
    pub fn wants_another_form(&self) -> bool {
        let is_of_form = matches!(self.kind, ModelErrorKind::Invalid | ModelErrorKind::ContextOverflow);
        is_of_form && self.should_retry == Some(true)
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Takes the pieces of a streamed answer as they come. Must not block.
pub trait ModelEvents: Send + Sync {
    /// One piece.
    fn on_event(&self, event: ModelEvent);

    /// What becomes of the request on its way.
    fn on_traffic(&self, _traffic: Traffic) {}
}

/// Ignores the pieces.
#[derive(Debug, Clone, Copy, Default)]
pub struct IgnoreModelEvents;

impl ModelEvents for IgnoreModelEvents {
    fn on_event(&self, _event: ModelEvent) {}
}

/// A model that answers requests. `model` ids are `provider/model`.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Answers one request, streaming pieces to `events`. The response is the sum of the pieces.
    ///
    /// # Errors
    /// [`ModelError`]; `Unsupported` from a client that has no such model.
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError>;

    /// Sends something else than a conversation, as a request to this model.
    ///
    /// # Errors
    /// [`ModelError`].
    async fn send_auxiliary(
        &self,
        _model: &str,
        request: &dyn AuxiliaryRequest,
        _priority: ModelPriority,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<Usage, ModelError> {
        if let Some(cause) = cancel.cause() {
            let message = format!("the model request was cancelled {}", cause.describe());
            return Err(ModelError::new(ModelErrorKind::Canceled, message));
        }
        request.send(events).await
    }

    /// Whether the API of this model takes deferred tools ([`Exposed::Deferred`]) and loads them by the results
    /// of the one that finds them. False where that is not known.
    fn has_tool_search(&self, _model: &str) -> bool {
        false
    }

    /// Makes ready what [`ModelClient::card`] tells of this model, where that takes more than a look: a recording is
    /// read, off the caller's thread. Of a recording that was not made ready the card says nothing, until it has
    /// answered.
    ///
    /// # Errors
    /// `Unsupported` with the reason, where there is no such model as far as can be told without asking it.
    async fn ready(&self, _model: &str) -> Result<(), ModelError> {
        Ok(())
    }

    /// What is known of this model before it is asked. Does no I/O.
    fn card(&self, _model: &str) -> ModelCard {
        ModelCard::default()
    }

    /// Tokens that an answer of this model may have, its thoughts among them, to a request with this limit and these
    /// settings; `None` where its client knows of no limit. Does no I/O.
    fn answer_tokens(&self, _model: &str, max_tokens: Option<u32>, _settings: &ModelSettings) -> Option<u32> {
        max_tokens
    }

    /// The same, for who has to reckon with some limit: a request without one, of a model whose client knows of none
    /// either, counts as limited to `usual`.
    fn longest_answer(&self, model: &str, max_tokens: Option<u32>, settings: &ModelSettings, usual: u32) -> u32 {
        let limited = |limit| self.answer_tokens(model, limit, settings);
        limited(max_tokens).or_else(|| limited(Some(usual))).unwrap_or(usual)
    }
}

/// A client with no model.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoModel;

#[async_trait]
impl ModelClient for NoModel {
    async fn complete(
        &self,
        model: &str,
        _request: &ModelRequest,
        _events: &dyn ModelEvents,
        _cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        Err(ModelError::new(
            ModelErrorKind::Unsupported,
            format!("no model client is configured to answer for `{model}`"),
        ))
    }
}
