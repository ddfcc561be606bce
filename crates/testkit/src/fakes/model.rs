//! A model client without a server, for tests below HTTP.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    ModelCard, ModelClient, ModelError, ModelErrorKind, ModelEvents, ModelRequest, ModelResponse, RequestSettings,
    RequestTool,
};

/// One request to a [`FakeModel`].
#[derive(Clone, Copy)]
pub struct FakeRequest<'a> {
    /// The requested model, `provider/model`.
    pub model: &'a str,
    /// The request.
    pub request: &'a ModelRequest,
    /// The receiver of the answer's events.
    pub events: &'a dyn ModelEvents,
    /// Cancels the request.
    pub cancel: &'a Cancel,
    /// The number of requests before this one.
    pub number: usize,
}

/// The future answer to a [`FakeRequest`].
pub type FakeAnswer<'a> = Pin<Box<dyn Future<Output = Result<ModelResponse, ModelError>> + Send + 'a>>;

type Answer = Box<dyn for<'a> Fn(FakeRequest<'a>) -> FakeAnswer<'a> + Send + Sync>;
type Card = Box<dyn Fn(&str) -> ModelCard + Send + Sync>;

/// A model client that gives configured answers and records its requests.
pub struct FakeModel {
    answer: Answer,
    card: Card,
    has_tool_search: Box<dyn Fn() -> bool + Send + Sync>,
    natives: Vec<&'static str>,
    thinking_tokens: Option<u32>,
    asked: Mutex<Vec<(String, ModelRequest)>>,
}

impl std::fmt::Debug for FakeModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeModel").field("asked", &self.asked().len()).finish_non_exhaustive()
    }
}

impl FakeModel {
    /// Creates a model that answers at once with the result of `answer`.
    pub fn new(answer: impl Fn(FakeRequest<'_>) -> Result<ModelResponse, ModelError> + Send + Sync + 'static) -> Self {
        Self::with_future(move |call| {
            let answer = answer(call);
            Box::pin(async move { answer })
        })
    }

    /// Creates a model that answers with the result of the future from `answer`.
    pub fn with_future(answer: impl for<'a> Fn(FakeRequest<'a>) -> FakeAnswer<'a> + Send + Sync + 'static) -> Self {
        Self {
            answer: Box::new(answer),
            card: Box::new(|_| ModelCard::default()),
            has_tool_search: Box::new(|| false),
            natives: Vec::new(),
            thinking_tokens: None,
            asked: Mutex::default(),
        }
    }

    /// Creates a model that answers every request with this text.
    pub fn saying(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::new(move |_| Ok(ModelResponse { text: text.clone(), ..ModelResponse::default() }))
    }

    /// Creates a model that fails every request with this error.
    pub fn failing(kind: ModelErrorKind, message: &'static str) -> Self {
        Self::new(move |_| Err(ModelError::new(kind, message)))
    }

    /// Creates a model that never answers.
    pub fn hanging() -> Self {
        Self::with_future(|_| Box::pin(std::future::pending()))
    }

    /// Sets the function that returns the model cards.
    #[must_use]
    pub fn with_card(mut self, card: impl Fn(&str) -> ModelCard + Send + Sync + 'static) -> Self {
        self.card = Box::new(card);
        self
    }

    /// Sets whether the models' API loads deferred tools.
    #[must_use]
    pub fn with_tool_search(mut self, has: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.has_tool_search = Box::new(has);
        self
    }

    /// Sets the wire names of the tools that the models' provider runs.
    #[must_use]
    pub fn with_natives(mut self, names: &[&'static str]) -> Self {
        self.natives = names.to_vec();
        self
    }

    /// Sets the tokens that a request asks for in addition to its answer's.
    #[must_use]
    pub fn with_thinking_tokens(mut self, tokens: u32) -> Self {
        self.thinking_tokens = Some(tokens);
        self
    }

    /// Returns the requests so far, in order, each with its model.
    pub fn asked(&self) -> Vec<(String, ModelRequest)> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> usize {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[async_trait]
impl ModelClient for FakeModel {
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let number = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.push((model.to_owned(), request.clone()));
            asked.len() - 1
        };
        (self.answer)(FakeRequest { model, request, events, cancel, number }).await
    }

    fn has_tool_search(&self, _model: &str) -> bool {
        (self.has_tool_search)()
    }

    fn lacks_native(&self, _model: &str, tool: &RequestTool, _beside_others: bool) -> Option<String> {
        (!self.natives.contains(&&*tool.name)).then(|| "it has no such tool".to_owned())
    }

    fn card(&self, model: &str) -> ModelCard {
        (self.card)(model)
    }

    fn answer_tokens(&self, _model: &str, max_tokens: Option<u32>, _settings: &RequestSettings) -> Option<u32> {
        match self.thinking_tokens {
            Some(more) => max_tokens.map(|tokens| tokens + more),
            None => max_tokens,
        }
    }
}
