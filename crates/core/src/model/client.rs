//! Defines the trait `ModelClient`: it answers requests to models, with typed failures and facts about each model.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{
    FetchedFile, ModelPriority, ModelRequest, ModelResponse, ModelSettings, OpaqueData, ShownTool, Traffic, Usage,
    WrittenCall, usable_window,
};
use crate::cancel::Cancel;

/// A piece of a streamed answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// Text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A call whose block has closed.
    Call(WrittenCall),
    /// Reasoning that its API signed or encrypted, once its block has closed: the item as the API has it.
    Opaque(OpaqueData),
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

    /// The client that this one is in front of, which answers what it does not: what follows goes to it.
    fn inner(&self) -> Option<&dyn ModelClient> {
        None
    }

    /// Sends something else than a conversation, as a request to this model.
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

    /// Whether the API of this model takes deferred tools ([`Exposed::Deferred`]) and loads them by the results
    /// of the one that finds them. False where that is not known.
    fn has_tool_search(&self, model: &str) -> bool {
        self.inner().is_some_and(|inner| inner.has_tool_search(model))
    }

    /// Why a request to this model cannot declare a tool that providers run themselves; `None` where it can. `beside_others`
    /// says whether it declares functions too.
    fn lacks_native(&self, model: &str, tool: &ShownTool, beside_others: bool) -> Option<String> {
        match self.inner() {
            Some(inner) => inner.lacks_native(model, tool, beside_others),
            None => Some("its client knows no tools that the provider runs".to_owned()),
        }
    }

    /// Fetches a file that a tool of this model's provider made from `path` ([`super::Artifact::path`]), once.
    ///
    /// # Errors
    /// `Unsupported` where its client fetches none; else why it could not be fetched whole.
    async fn fetch_file(&self, model: &str, path: &str, cancel: &Cancel) -> Result<FetchedFile, ModelError> {
        match self.inner() {
            Some(inner) => inner.fetch_file(model, path, cancel).await,
            None => Err(ModelError::new(ModelErrorKind::Unsupported, "its client fetches no files")),
        }
    }

    /// Makes ready what [`ModelClient::card`] tells of this model, where that takes more than a look: a recording is
    /// read, off the caller's thread. Of a recording that was not made ready the card says nothing, until it has
    /// answered.
    ///
    /// # Errors
    /// `Unsupported` with the reason, where there is no such model as far as can be told without asking it.
    async fn ready(&self, model: &str) -> Result<(), ModelError> {
        match self.inner() {
            Some(inner) => inner.ready(model).await,
            None => Ok(()),
        }
    }

    /// What is known of this model before it is asked. Does no I/O.
    fn card(&self, model: &str) -> ModelCard {
        self.inner().map_or_else(ModelCard::default, |inner| inner.card(model))
    }

    /// Tokens that an answer of this model may have, its thoughts among them, to a request with this limit and these
    /// settings; `None` where its client knows of no limit. Does no I/O.
    fn answer_tokens(&self, model: &str, max_tokens: Option<u32>, settings: &ModelSettings) -> Option<u32> {
        self.inner().map_or(max_tokens, |inner| inner.answer_tokens(model, max_tokens, settings))
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

/// Whether requests to a model have a chance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Usability {
    /// As far as is known here.
    #[default]
    Usable,
    /// Its provider wants a key, and there is none. Local providers want none.
    NoKey,
    /// No configured provider has it; the operator's message.
    Unknown(String),
}

/// One model's record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelCard {
    /// Whether it can be asked.
    pub usability: Usability,
    /// Tokens that it takes in, where that is configured.
    pub window: Option<usize>,
    /// Tokens that one answer may have, where that is configured.
    pub max_output: Option<u32>,
    /// The model whose recorded answers it gives, where it is a recording: what goes by a model's name goes by this.
    pub stands_for: Option<Arc<str>>,
    /// The models whose answers a recording has, in the order in which they were first asked; empty for any other
    /// model.
    pub recorded: Arc<[Arc<str>]>,
}

impl ModelCard {
    /// Tokens that its window leaves to an answer, thinking among them, beside so many of a question; `None` where the
    /// window is not known.
    #[must_use]
    pub fn left_beside(&self, input: usize) -> Option<u32> {
        let left = usable_window(self.window?).saturating_sub(input);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }
}

/// A request to a model's API that is no conversation, like the embeddings of texts: it knows how it is sent, and keeps its
/// answer for whoever made it. It goes the same way as all requests to models.
#[async_trait]
pub trait AuxiliaryRequest: Send + Sync {
    /// Sends the request once and reports what it used. May be called again after an error.
    ///
    /// # Errors
    /// [`ModelError`].
    async fn send(&self, events: &dyn ModelEvents) -> Result<Usage, ModelError>;

    /// The characters of the texts that are sent, for the ledger.
    fn characters(&self) -> u64;
}

/// Sends auxiliary requests: through the queue of their model, retried where that may help, recorded in the ledger.
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
            assert_eq!(ModelCard { window, ..ModelCard::default() }.left_beside(input), left, "{window:?} {input}");
        }
    }
}
