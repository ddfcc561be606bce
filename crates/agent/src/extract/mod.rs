//! Extracts answers from stored outputs with a model, either part by part or by search. Each request runs through
//! the executor as an operation inside the call that asks for it.

mod chunked;
mod search;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::context::{Extractor, ToolContext};
use toolwright_core::model::{Message, ModelBounds, ModelBudget, ModelRequest, PriceTable, StopReason};
use toolwright_core::output::{ExtractError, ExtractMode, ExtractRequest};

/// Tokens that a model takes in, where that is not known.
const DEFAULT_WINDOW: usize = 32_000;
/// Tokens of one answer at most.
const ANSWER_TOKENS: u32 = 2000;
/// How long an extraction may take where its call has no deadline.
const DEFAULT_TIME: Duration = Duration::from_secs(240);
/// Parts up to which all of an output is read when the caller leaves it open.
const AUTO_PARTS: u64 = 12;

/// Tokens that a model takes in, by `provider/model`, where it is known.
pub type WindowOf = Arc<dyn Fn(&str) -> Option<usize> + Send + Sync>;

/// An [`Extractor`] by models. Cheap to clone.
#[derive(Clone)]
pub struct ModelExtractor {
    /// The model that extracts, `provider/model`; `None` for that of the run.
    pub model: Option<String>,
    /// The model outside of a run.
    pub default_model: Option<String>,
    /// How much models take in.
    pub window: WindowOf,
    /// What one extraction may spend.
    pub bounds: ModelBounds,
    /// What models cost.
    pub prices: PriceTable,
}

impl fmt::Debug for ModelExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelExtractor").field("model", &self.model).finish_non_exhaustive()
    }
}

/// One extraction: what is wanted, by whom.
struct Extraction<'a> {
    request: &'a ExtractRequest,
    context: &'a ToolContext,
    model: String,
    window: usize,
    budget: Arc<ModelBudget>,
}

#[async_trait]
impl Extractor for ModelExtractor {
    async fn extract(&self, request: ExtractRequest, context: &ToolContext) -> Result<String, ExtractError> {
        let run = context.calls.model().map(str::to_owned);
        let model = self.model.clone().or(run).or_else(|| context.services.model_id.clone());
        let model = model.or_else(|| self.default_model.clone()).ok_or_else(|| {
            ExtractError("no model is configured for it (outputs.extract_model, or models.default)".into())
        })?;
        let window = (self.window)(&model).unwrap_or(DEFAULT_WINDOW);
        let budget = ModelBudget::new(self.bounds.clone(), self.prices.clone());
        let extraction = Extraction { request: &request, context, model, window, budget };
        let time = extraction.time();
        match tokio::time::timeout(time, extraction.run()).await {
            Ok(found) => found,
            Err(_) => Err(ExtractError(format!("it took longer than {}", toolwright_core::duration::format(time)))),
        }
    }

    fn has_model(&self) -> bool {
        self.model.is_some() || self.default_model.is_some()
    }
}

impl Extraction<'_> {
    async fn run(&self) -> Result<String, ExtractError> {
        match self.request.mode {
            ExtractMode::FullChunked => self.chunked().await,
            ExtractMode::ReadGrep => self.search().await,
            _ if self.parts() <= AUTO_PARTS => self.chunked().await,
            _ => self.search().await,
        }
    }

    /// What is left, less some for coming back without a result.
    fn time(&self) -> Duration {
        let now = self.context.services.clock.now();
        let left = self.context.deadline.map(|deadline| deadline.saturating_duration_since(now));
        left.map_or(DEFAULT_TIME, |left| left / 10 * 9)
    }

    /// One answer of the model to one message.
    async fn answer(&self, system: &str, message: String) -> Result<String, ExtractError> {
        let request = ModelRequest {
            system: system.to_owned(),
            messages: vec![Message::user(message)],
            max_tokens: Some(ANSWER_TOKENS),
            ..ModelRequest::default()
        };
        let answer = self.ask(&request).await?;
        let text = answer.text.trim();
        match answer.stop {
            StopReason::Refusal => Err(ExtractError(format!("{} refused to do it", self.model))),
            StopReason::MaxTokens if text.is_empty() => {
                let why = "was cut at its token limit before it began to answer: thinking has taken all of it, and a lower \
                           `effort` in `models` would leave some";
                Err(ExtractError(format!("{} {why}", self.model)))
            }
            _ if text.is_empty() => Err(ExtractError(format!("{} gave an empty answer", self.model))),
            StopReason::MaxTokens => Ok(format!("{text}\n[cut at {ANSWER_TOKENS} tokens]")),
            _ => Ok(text.to_owned()),
        }
    }

    async fn ask(&self, request: &ModelRequest) -> Result<toolwright_core::ModelResponse, ExtractError> {
        let client = &self.context.services.model;
        let answer = client.longest_answer(&self.model, request.max_tokens, &request.settings, ANSWER_TOKENS);
        let reserved = self.budget.reserve(&self.model, request.tokens() as u64, answer.into());
        let reserved = reserved.map_err(|error| ExtractError(error.message().to_owned()))?;
        let failed = |error| ExtractError(format!("{} could not be asked: {error}", self.model));
        let answer = self.context.calls.ask(&self.model, request).await.map_err(failed)?;
        reserved.settle(answer.usage);
        Ok(answer)
    }
}
