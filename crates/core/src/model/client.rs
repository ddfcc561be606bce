//! Defines the trait `ModelClient`: it answers requests to models, with typed failures and facts about each model.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{
    FetchedFile, ModelPriority, ModelRequest, ModelResponse, OpaqueData, RawToolCall, RequestProgress, RequestSettings,
    RequestTool, Usage, usable_window,
};
use crate::cancel::Cancel;
use crate::sse::TooLong;

/// A piece of a streamed answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// Text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A closed call.
    Call(RawToolCall),
    /// Reasoning that its API signed or encrypted, once its block has closed: the item as the API has it.
    Opaque(OpaqueData),
}

/// The kind of a model failure; only [`ModelErrorKind::is_retryable`] ones may be retried.
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
    /// Returns its wire form.
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

    /// Whether a request that failed like this may be charged although no usage was reported: a model may have worked
    /// on it. Other failures are refusals.
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
    /// The message for the operator, secrets redacted.
    pub message: String,
    /// Milliseconds the provider asked to wait (Retry-After).
    pub retry_after_ms: Option<u64>,
    /// Whether a retry may help and is harmless, if the provider, or the client that knows how far the request came,
    /// says so; `None` leaves it to the kind.
    pub should_retry: Option<bool>,
    /// Whether it never reached the provider, which therefore bills nothing.
    pub unsent: bool,
    /// Usage of the failed request, as far as reported.
    pub usage: Usage,
    /// The complete part of an answer whose stream broke off or failed. Its calls are complete, but none
    /// of them may start because of it.
    pub partial: Option<Box<ModelResponse>>,
    /// Cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl From<TooLong> for ModelError {
    fn from(error: TooLong) -> Self {
        Self::new(ModelErrorKind::BadResponse, error.to_string())
    }
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

    /// Whether the client will send a refused request in another form: its form was wrong, or its token limit was too
    /// high for the rest of the context window. That is no retry of the same request, and the conversation need not be
    /// shortened.
    #[must_use]
    pub fn is_retried_differently(&self) -> bool {
        let is_of_form = matches!(self.kind, ModelErrorKind::Invalid | ModelErrorKind::ContextOverflow);
        is_of_form && self.should_retry == Some(true)
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Receives the pieces of a streamed answer. Must not block.
pub trait ModelEvents: Send + Sync {
    /// Receives a piece of the answer.
    fn on_event(&self, event: ModelEvent);

    /// Receives a notice about the request's transport.
    fn on_traffic(&self, _traffic: RequestProgress) {}
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
    /// Answers a request, streaming pieces to `events`. The response is the sum of the pieces.
    ///
    /// # Errors
    /// [`ModelError`]; `Unsupported` if the client has no such model.
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError>;

    /// The wrapped client, which answers the methods below by default.
    fn inner(&self) -> Option<&dyn ModelClient> {
        None
    }

    /// Sends a request other than a conversation to this model.
    ///
    /// # Errors
    /// [`ModelError`].
    async fn send_auxiliary(
        &self,
        model: &str,
        request: &dyn AuxiliaryRequest,
        priority: ModelPriority,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<Usage, ModelError> {
        if let Some(inner) = self.inner() {
            return inner.send_auxiliary(model, request, priority, events, cancel).await;
        }
        if let Some(cause) = cancel.cause() {
            let message = format!("the model request was cancelled {}", cause.describe());
            return Err(ModelError::new(ModelErrorKind::Canceled, message));
        }
        request.send(events).await
    }

    /// Whether this model's API supports deferred tools ([`Deferred`](crate::model::ToolVisibility::Deferred)) and loads them by the results
    /// of a tool search. `false` if unknown.
    fn has_tool_search(&self, model: &str) -> bool {
        self.inner().is_some_and(|inner| inner.has_tool_search(model))
    }

    /// Why a request to this model cannot declare a provider's native tool; `None` if it can. `beside_others`
    /// says whether it also declares functions.
    fn lacks_native(&self, model: &str, tool: &RequestTool, beside_others: bool) -> Option<String> {
        match self.inner() {
            Some(inner) => inner.lacks_native(model, tool, beside_others),
            None => Some("its client knows no tools that the provider runs".to_owned()),
        }
    }

    /// Fetches a file that a tool of this model's provider made from `path` ([`super::Artifact::path`]), once.
    ///
    /// # Errors
    /// `Unsupported` if its client fetches no files; else why the file could not be fetched completely.
    async fn fetch_file(&self, model: &str, path: &str, cancel: &Cancel) -> Result<FetchedFile, ModelError> {
        match self.inner() {
            Some(inner) => inner.fetch_file(model, path, cancel).await,
            None => Err(ModelError::new(ModelErrorKind::Unsupported, "its client fetches no files")),
        }
    }

    /// Prepares the data of [`ModelClient::card`], if that takes long: a recording is
    /// read on another thread. The card of an unprepared recording is empty until the recording has
    /// answered.
    ///
    /// # Errors
    /// `Unsupported` with the reason, if the model is known not to exist.
    async fn ready(&self, model: &str) -> Result<(), ModelError> {
        match self.inner() {
            Some(inner) => inner.ready(model).await,
            None => Ok(()),
        }
    }

    /// Returns what is known of this model before it is asked. Does no I/O.
    fn card(&self, model: &str) -> ModelCard {
        self.inner().map_or_else(ModelCard::default, |inner| inner.card(model))
    }

    /// Returns the token limit of this model's answer, including reasoning, for a request with this limit and these
    /// settings; `None` if unlimited or unknown. Does no I/O.
    fn answer_tokens(&self, model: &str, max_tokens: Option<u32>, settings: &RequestSettings) -> Option<u32> {
        self.inner().map_or(max_tokens, |inner| inner.answer_tokens(model, max_tokens, settings))
    }

    /// Like `answer_tokens`, with `usual` as the limit where none is known.
    fn longest_answer(&self, model: &str, max_tokens: Option<u32>, settings: &RequestSettings, usual: u32) -> u32 {
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

/// Whether a model can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Usability {
    /// It can be asked, as far as known.
    #[default]
    Usable,
    /// The provider needs a key, and there is none. Local providers need none.
    NoKey,
    /// No configured provider has it; the operator's message.
    Unknown(String),
}

/// Facts about a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelCard {
    /// Whether it can be asked.
    pub usability: Usability,
    /// Configured context window, in tokens.
    pub window: Option<usize>,
    /// Configured maximal tokens of one answer.
    pub max_output: Option<u32>,
    /// For a recording, the model whose answers it has; it applies wherever a model's name matters.
    pub stands_for: Option<Arc<str>>,
    /// For a recording, the models whose answers it has, in the order of their first request; otherwise empty.
    pub recorded: Arc<[Arc<str>]>,
}

impl ModelCard {
    /// Returns the tokens that its context window leaves for an answer, including reasoning, after `input` tokens;
    /// `None` if the window is unknown.
    #[must_use]
    pub fn output_room(&self, input: usize) -> Option<u32> {
        let left = usable_window(self.window?).saturating_sub(input);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }
}

/// A request to a model's API that is no conversation, like embeddings of texts: it sends itself, and keeps its
/// answer. It is queued and recorded like all model requests.
#[async_trait]
pub trait AuxiliaryRequest: Send + Sync {
    /// Sends the request once and reports its usage. May be called again after an error.
    ///
    /// # Errors
    /// [`ModelError`].
    async fn send(&self, events: &dyn ModelEvents) -> Result<Usage, ModelError>;

    /// The characters of the texts that are sent, for the ledger.
    fn characters(&self) -> u64;
}

/// Sends auxiliary requests: through the queue of their model, with retries, recorded in the ledger.
#[async_trait]
pub trait AuxiliarySender: Send + Sync {
    /// Sends `request` to `model` (`provider/model`).
    ///
    /// # Errors
    /// [`ModelError`] of its last attempt, or of the queue.
    async fn send(
        &self,
        model: &str,
        request: &dyn AuxiliaryRequest,
        priority: ModelPriority,
    ) -> Result<Usage, ModelError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_minus_margin_and_question_is_left() {
        for (window, input, left) in
            [(None, 5, None), (Some(8192), 5400, Some(2383)), (Some(8192), 7783, Some(0)), (Some(0), 1, Some(0))]
        {
            assert_eq!(ModelCard { window, ..ModelCard::default() }.output_room(input), left, "{window:?} {input}");
        }
    }
}
