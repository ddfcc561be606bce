//! A model client within a budget.

use std::sync::Arc;

use async_trait::async_trait;

use super::{ModelBudget, ModelClient, ModelError, ModelErrorKind, ModelEvents, ModelRequest, ModelResponse};
use crate::cancel::Cancel;

/// A model client with a budget: each request reserves its maximum, and settles its usage. Auxiliary requests do not
/// count.
pub struct BudgetedClient {
    /// The client that answers.
    pub client: Arc<dyn ModelClient>,
    /// The budget.
    pub budget: Arc<ModelBudget>,
    /// Tokens reserved for an answer without a limit.
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

    fn inner(&self) -> Option<&dyn ModelClient> {
        Some(&*self.client)
    }
}
