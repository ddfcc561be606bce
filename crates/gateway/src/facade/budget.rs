//! What the requests of one token may use of models, until the server ends.

use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    AuxiliaryRequest, Bound, ModelBounds, ModelBudget, ModelCard, ModelClient, ModelError, ModelErrorKind, ModelEvents,
    ModelPriority, ModelRequest, ModelResponse, ModelSettings, PriceTable, Usage,
};

/// Tokens that an answer counts as before it has come, where nothing limits it.
const USUAL_ANSWER: u32 = 8192;

/// `budget` of a token: what its requests at `/v1` may use until the server ends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientBudget {
    /// Requests to models. Default: no limit.
    pub requests: Option<u32>,
    /// Tokens of all of them, questions and answers. Default: no limit.
    pub tokens: Option<u64>,
    /// What all of them cost, in US dollars. It needs `prices` of each model. Default: no limit.
    #[schemars(range(min = 0.0))]
    pub cost_usd: Option<f64>,
}

impl ClientBudget {
    /// A budget of which nothing is spent.
    pub(super) fn open(&self, prices: PriceTable) -> Arc<ModelBudget> {
        let bounds = ModelBounds {
            requests: Bound::new(self.requests.unwrap_or(u32::MAX), "budget.requests of the token"),
            tokens: Bound::new(self.tokens.unwrap_or(u64::MAX), "budget.tokens of the token"),
            cost_usd: self.cost_usd.map(|most| Bound::new(most, "budget.cost_usd of the token")),
        };
        ModelBudget::new(bounds, prices)
    }
}

/// Asks models within a budget.
pub(super) struct Budgeted {
    pub(super) inner: Arc<dyn ModelClient>,
    pub(super) budget: Arc<ModelBudget>,
}

#[async_trait]
impl ModelClient for Budgeted {
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let input = u64::try_from(request.tokens()).unwrap_or(u64::MAX);
        let output = self.inner.longest_answer(model, request.max_tokens, &request.settings, USUAL_ANSWER);
        let room = self.budget.reserve(model, input, output.into()).map_err(|error| ModelError {
            should_retry: Some(false),
            unsent: true,
            ..ModelError::new(ModelErrorKind::Quota, error.message())
        })?;
        let answer = self.inner.complete(model, request, events, cancel).await;
        room.settle(answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage));
        answer
    }

    async fn send_auxiliary(
        &self,
        model: &str,
        request: &dyn AuxiliaryRequest,
        priority: ModelPriority,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<Usage, ModelError> {
        self.inner.send_auxiliary(model, request, priority, events, cancel).await
    }

    fn has_tool_search(&self, model: &str) -> bool {
        self.inner.has_tool_search(model)
    }

    async fn ready(&self, model: &str) -> Result<(), ModelError> {
        self.inner.ready(model).await
    }

    fn card(&self, model: &str) -> ModelCard {
        self.inner.card(model)
    }

    fn answer_tokens(&self, model: &str, max_tokens: Option<u32>, settings: &ModelSettings) -> Option<u32> {
        self.inner.answer_tokens(model, max_tokens, settings)
    }
}
