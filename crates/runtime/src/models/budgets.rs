//! The budgets of principals. Every request on behalf of a principal is limited by its budget.

use std::collections::HashMap;
use std::sync::Arc;

use toolwright_core::model::{
    ModelBounds, ModelClient, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ModelSpending, PriceTable,
    Usage, cost, used_by,
};
use toolwright_core::session::Principal;
use toolwright_core::store::{BudgetPeriod, BudgetStore, BudgetedRequest, StoreError};

/// Tokens reserved for an answer whose model has no known limit.
pub(super) const USUAL_ANSWER: u32 = 4096;

/// The limits on principals' spending for models, and the store of their spending.
#[derive(Clone)]
pub struct Budgets {
    /// By principal. The owner has none.
    pub by_principal: HashMap<String, (ModelBounds, BudgetPeriod)>,
    /// The store of what was spent.
    pub store: Arc<dyn BudgetStore>,
}

/// Reserved room for one request.
pub(super) struct BudgetReservation<'a> {
    budgets: &'a Budgets,
    principal: &'a Principal,
    period: String,
    reserved: ModelSpending,
}

impl Budgets {
    /// Reserves room for a request, if its principal has a budget.
    ///
    /// # Errors
    /// `Quota`, naming the setting, until the period ends; and failures of the store.
    pub(super) async fn reserve<'a>(
        &'a self,
        principal: &'a Principal,
        (model, request): (&str, &ModelRequest),
        client: &dyn ModelClient,
        prices: &PriceTable,
        now_ms: u64,
    ) -> Result<Option<BudgetReservation<'a>>, ModelError> {
        let budget = self.by_principal.get(&principal.id).filter(|_| !principal.owner);
        let Some((bounds, period)) = budget else { return Ok(None) };
        let answer = client.longest_answer(model, request.max_tokens, &request.settings, USUAL_ANSWER);
        let usage = Usage { input_tokens: request.tokens() as u64, output_tokens: answer.into(), ..Usage::default() };
        let (period, ends_ms) = period.at(now_ms);
        let budgeted_request = BudgetedRequest {
            owner: principal.id.clone(),
            period: period.clone(),
            bounds: bounds.clone(),
            model: model.to_owned(),
            tokens: usage.input_tokens.saturating_add(usage.output_tokens),
            cost_usd: cost(prices, model, usage),
        };
        let unsent = |kind, message: String, retry_after_ms| ModelError {
            should_retry: Some(false),
            unsent: true,
            retry_after_ms,
            ..ModelError::new(kind, message)
        };
        match self.store.reserve_budget(budgeted_request).await {
            Ok(Ok(reserved)) => Ok(Some(BudgetReservation { budgets: self, principal, period, reserved })),
            Ok(Err(error)) => {
                let again = ends_ms.map(|ends| ends.saturating_sub(now_ms));
                Err(unsent(ModelErrorKind::Quota, error.message().to_owned(), again))
            }
            Err(error) => Err(unsent(ModelErrorKind::Unavailable, store_failure(&error), None)),
        }
    }
}

impl BudgetReservation<'_> {
    /// Replaces the reserved amount by the actual one. If dropped instead, the reserved amount stays spent.
    pub(super) async fn settle(self, prices: &PriceTable, model: &str, answer: Result<&ModelResponse, &ModelError>) {
        let Some(used) = used_by(prices, model, answer) else { return };
        let store = &self.budgets.store;
        if let Err(error) = store.settle_budget(&self.principal.id, &self.period, self.reserved, used).await {
            tracing::warn!("{}", store_failure(&error));
        }
    }
}

fn store_failure(error: &StoreError) -> String {
    format!("the use of a budget cannot be recorded: {error}")
}
