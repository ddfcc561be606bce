//! A model client within a budget.

use std::sync::Arc;

use async_trait::async_trait;

use super::{
    AuxiliaryRequest, ModelBudget, ModelCard, ModelClient, ModelError, ModelErrorKind, ModelEvents, ModelPriority,
    ModelRequest, ModelResponse, ModelSettings, Usage,
};
use crate::cancel::Cancel;

/// Asks models within a budget: each request reserves its room, and settles what it used. Auxiliary requests do not count.
pub struct BudgetedClient {
    /// Answers.
    pub client: Arc<dyn ModelClient>,
    /// What may be spent.
    pub budget: Arc<ModelBudget>,
    /// Tokens that an answer is reserved where nothing limits it.
    pub usual_answer: u32,
}

impl std::fmt::Debug for BudgetedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BudgetedClient").field("budget", &self.budget).finish_non_exhaustive()
    }
}

#[async_trait]
impl ModelClient for BudgetedClient {
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let output = self.client.longest_answer(model, request.max_tokens, &request.settings, self.usual_answer);
        let room = self.budget.reserve(model, request.tokens() as u64, output.into()).map_err(|error| ModelError {
            should_retry: Some(false),
            unsent: true,
            ..ModelError::new(ModelErrorKind::Quota, error.message())
        })?;
        let answer = self.client.complete(model, request, events, cancel).await;
        room.settle(answer.as_ref());
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
        self.client.send_auxiliary(model, request, priority, events, cancel).await
    }

    fn has_tool_search(&self, model: &str) -> bool {
        self.client.has_tool_search(model)
    }

    async fn ready(&self, model: &str) -> Result<(), ModelError> {
        self.client.ready(model).await
    }

    fn card(&self, model: &str) -> ModelCard {
        self.client.card(model)
    }

    fn answer_tokens(&self, model: &str, max_tokens: Option<u32>, settings: &ModelSettings) -> Option<u32> {
        self.client.answer_tokens(model, max_tokens, settings)
    }
}
