//! Limits the spending on model requests: requests, tokens and money. The decisions are pure: the executor
//! keeps one budget in memory, another in the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde::Serialize;

use super::{ModelClient, ModelError, ModelErrorKind, ModelEvents, ModelRequest, ModelResponse, PriceTable, Usage};
use crate::cancel::Cancel;
use crate::error::{ErrorKind, ToolError};

/// The bounds of a budget.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelBounds {
    /// Requests.
    pub requests: Bound<u32>,
    /// Tokens of all of them, questions and answers.
    pub tokens: Bound<u64>,
    /// Total cost in US dollars, finite and not negative; otherwise no request is allowed. Models without known prices
    /// cannot be asked under this bound.
    pub cost_usd: Option<Bound<f64>>,
}

/// A bound, and the setting it comes from, for messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bound<T> {
    /// The bound.
    pub most: T,
    /// The setting.
    pub setting: &'static str,
}

impl<T> Bound<T> {
    /// A bound by this setting.
    pub fn new(most: T, setting: &'static str) -> Self {
        Self { most, setting }
    }
}

impl ModelBounds {
    /// Adds the reservation of a request to `model`: so many tokens at most, at this cost if known.
    ///
    /// # Errors
    /// `limit_exceeded`, naming the setting; then nothing is added.
    pub fn reserve(
        &self,
        spent: &mut ModelSpending,
        model: &str,
        tokens: u64,
        cost: Option<f64>,
    ) -> Result<ModelSpending, ToolError> {
        let refused = |what: String| Err(ToolError::new(ErrorKind::LimitExceeded, what));
        let Self { requests: most, tokens: most_tokens, cost_usd: most_cost } = self;
        if spent.requests >= most.most {
            return refused(format!("a model was asked {} times, which is {}", most.most, most.setting));
        }
        if spent.tokens.saturating_add(tokens) > most_tokens.most {
            return refused(format!(
                "{} tokens are spent or reserved, and an estimated {tokens} more are over {} ({})",
                spent.tokens, most_tokens.setting, most_tokens.most
            ));
        }
        match (most_cost, cost) {
            (Some(Bound { most, setting }), _) if !is_amount(*most) => {
                return refused(format!("{setting} is {most}, and must be an amount of US dollars, 0 or more"));
            }
            (Some(Bound { setting, .. }), None) => {
                return refused(format!(
                    "{setting} is set, and what {model} costs is not known: set models.\"{model}\".prices"
                ));
            }
            (Some(Bound { most, setting }), Some(cost)) if spent.cost_usd + cost > *most => {
                return refused(format!(
                    "{:.4} US dollars are spent or reserved, and an estimated {cost:.4} more are over {setting} ({most})",
                    spent.cost_usd
                ));
            }
            _ => {}
        }
        let reserved = ModelSpending { requests: 1, tokens, cost_usd: cost.unwrap_or_default() };
        spent.requests += 1;
        spent.tokens = spent.tokens.saturating_add(tokens);
        spent.cost_usd += reserved.cost_usd;
        Ok(reserved)
    }
}

/// The spent part of a budget, including reservations of pending requests.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ModelSpending {
    /// Requests.
    pub requests: u32,
    /// Tokens.
    pub tokens: u64,
    /// US dollars.
    pub cost_usd: f64,
}

impl ModelSpending {
    /// Replaces a reservation with the actual usage. The request still counts.
    pub fn settle(&mut self, reserved: Self, used: Self) {
        self.tokens = self.tokens.saturating_sub(reserved.tokens).saturating_add(used.tokens);
        self.cost_usd = (self.cost_usd - reserved.cost_usd).max(0.0) + used.cost_usd;
    }
}

/// Returns the usage of a request; `None` if the reservation stands: the API did not report usage, or the failure may
/// be charged ([`ModelErrorKind::may_be_charged`](super::ModelErrorKind::may_be_charged)). A request that was refused
/// or never sent used nothing.
#[must_use]
pub fn used_by(prices: &PriceTable, model: &str, answer: Result<&ModelResponse, &ModelError>) -> Option<ModelSpending> {
    let (usage, is_free) = match answer {
        Ok(answer) => (answer.usage, false),
        Err(error) => (error.usage, error.unsent || !error.kind.may_be_charged()),
    };
    let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
    if tokens == 0 && !is_free {
        return None;
    }
    Some(ModelSpending { requests: 1, tokens, cost_usd: cost(prices, model, usage).unwrap_or_default() })
}

/// Returns the cost of this usage, if the model has nonzero prices.
#[must_use]
pub fn cost(prices: &PriceTable, model: &str, usage: Usage) -> Option<f64> {
    prices.of(model).map(|prices| prices.cost(usage)).filter(|cost| is_amount(*cost))
}

/// A shared budget. Each request reserves its estimated maximum, so that concurrent
/// requests cannot overspend by that estimate; the reservation is settled when the usage is known. The tokens of a
/// question are estimated before sending, so a request may exceed the bound by the error of the estimate; the
/// next one is refused.
#[derive(Debug)]
pub struct ModelBudget {
    bounds: ModelBounds,
    prices: PriceTable,
    spent: Mutex<ModelSpending>,
}

impl ModelBudget {
    /// A budget without spending.
    #[must_use]
    pub fn new(bounds: ModelBounds, prices: PriceTable) -> Arc<Self> {
        Arc::new(Self { bounds, prices, spent: Mutex::default() })
    }

    /// Reserves one request to `model`, with about `input` tokens of question and at most `output` of answer.
    ///
    /// # Errors
    /// `limit_exceeded`, naming the setting.
    pub fn reserve(
        self: &Arc<Self>,
        model: &str,
        input: u64,
        output: u64,
    ) -> Result<ModelBudgetReservation, ToolError> {
        let usage = Usage { input_tokens: input, output_tokens: output, ..Usage::default() };
        let cost = cost(&self.prices, model, usage);
        let reserved = self.bounds.reserve(&mut self.spent(), model, input.saturating_add(output), cost)?;
        Ok(ModelBudgetReservation { budget: Arc::clone(self), model: model.to_owned(), reserved })
    }

    fn spent(&self) -> MutexGuard<'_, ModelSpending> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a number is a valid amount of money.
fn is_amount(usd: f64) -> bool {
    usd.is_finite() && usd >= 0.0
}

/// A reservation of one request. If dropped, it stays spent, because the usage of an aborted request is unknown.
#[derive(Debug)]
pub struct ModelBudgetReservation {
    budget: Arc<ModelBudget>,
    model: String,
    reserved: ModelSpending,
}

impl ModelBudgetReservation {
    /// Replaces the reservation with the actual usage; see [`used_by`].
    pub fn settle(self, answer: Result<&ModelResponse, &ModelError>) {
        if let Some(used) = used_by(&self.budget.prices, &self.model, answer) {
            self.budget.spent().settle(self.reserved, used);
        }
    }
}

/// A shared limit on attempts at model requests. Unlimited by default.
#[derive(Debug, Clone, Default)]
pub struct RequestAllowance(Option<Arc<Attempts>>);

#[derive(Debug)]
struct Attempts {
    whole: u64,
    /// Attempts wanted, including refused ones.
    requested: AtomicU64,
}

impl RequestAllowance {
    /// An allowance of so many attempts.
    #[must_use]
    pub fn of(attempts: u64) -> Self {
        Self(Some(Arc::new(Attempts { whole: attempts, requested: AtomicU64::new(0) })))
    }

    /// Takes one attempt; `false` if none is left.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.as_ref().is_none_or(|room| room.requested.fetch_add(1, Ordering::Relaxed) < room.whole)
    }

    /// Number of attempts made; `None` if unlimited.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        self.0.as_ref().map(|room| room.requested.load(Ordering::Relaxed).min(room.whole))
    }

    /// Whether an attempt was refused.
    #[must_use]
    pub fn has_refused_attempt(&self) -> bool {
        self.0.as_ref().is_some_and(|room| room.requested.load(Ordering::Relaxed) > room.whole)
    }

    /// Whether it is unlimited.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        self.0.is_none()
    }
}

/// Compares identity, not the remaining amount.
impl PartialEq for RequestAllowance {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for RequestAllowance {}

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

#[cfg(test)]
mod tests {
    use super::super::{ModelErrorKind, Prices};
    use super::*;

    fn budget(requests: u32, tokens: u64, cost: Option<f64>) -> Arc<ModelBudget> {
        let bounds = ModelBounds {
            requests: Bound::new(requests, "x.max_requests"),
            tokens: Bound::new(tokens, "x.max_tokens"),
            cost_usd: cost.map(|cost| Bound::new(cost, "x.max_cost")),
        };
        let prices = Prices { input: 1000.0, output: 10_000.0, ..Prices::default() };
        ModelBudget::new(bounds, [("p/m".to_owned(), prices)].into_iter().collect())
    }

    fn answer(input_tokens: u64, output_tokens: u64) -> ModelResponse {
        let usage = Usage { input_tokens, output_tokens, ..Usage::default() };
        ModelResponse { usage, ..ModelResponse::default() }
    }

    fn refused(budget: &Arc<ModelBudget>, model: &str, input: u64, output: u64, setting: &str) {
        let why = budget.reserve(model, input, output).expect_err("no room");
        assert!(why.message().contains(setting), "{why}");
        assert_eq!(why.kind(), ErrorKind::LimitExceeded);
    }

    #[test]
    fn budget_counts_requests_in_flight() {
        let budget = budget(3, 100, None);
        let first = budget.reserve("p/m", 10, 50).expect("room");
        refused(&budget, "p/m", 0, 60, "x.max_tokens");
        first.settle(Ok(&answer(20, 10)));
        budget.reserve("p/m", 0, 60).expect("room again").settle(Ok(&answer(0, 0)));
        // Unreported usage counts as reserved.
        refused(&budget, "p/m", 0, 20, "x.max_tokens");
        drop(budget.reserve("unknown/m", 0, 10).expect("room"));
        refused(&budget, "p/m", 0, 0, "x.max_requests");
    }

    #[test]
    fn free_failures_return_their_budget() {
        for (kind, unsent, used, left) in [
            (ModelErrorKind::RateLimit, false, 0, 100),
            (ModelErrorKind::Invalid, false, 0, 100),
            (ModelErrorKind::Unavailable, true, 0, 100),
            (ModelErrorKind::Unavailable, false, 0, 40),
            (ModelErrorKind::Canceled, false, 30, 70),
        ] {
            let budget = budget(3, 100, None);
            let usage = Usage { output_tokens: used, ..Usage::default() };
            let error = ModelError { unsent, usage, ..ModelError::new(kind, "failed") };
            budget.reserve("p/m", 10, 50).expect("room").settle(Err(&error));
            refused(&budget, "p/m", 0, left + 1, "x.max_tokens");
            budget.reserve("p/m", 0, left).expect("room");
        }
    }

    #[test]
    fn money_is_bounded_and_needs_prices() {
        // A token in is a tenth of a cent, one out a cent.
        let budget = budget(10, 10_000, Some(1.0));
        refused(&budget, "unknown/m", 1, 1, "models.\"unknown/m\".prices");
        let first = budget.reserve("p/m", 100, 50).expect("sixty cents");
        refused(&budget, "p/m", 100, 50, "x.max_cost");
        first.settle(Ok(&answer(100, 10)));
        drop(budget.reserve("p/m", 100, 70).expect("twenty and eighty cents"));
        refused(&budget, "p/m", 1, 0, "x.max_cost");
    }

    #[test]
    fn non_finite_or_negative_cost_bound_is_refused() {
        for most in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.01] {
            refused(&budget(10, 10_000, Some(most)), "p/m", 0, 0, "x.max_cost");
        }
        budget(10, 10_000, Some(0.0)).reserve("p/m", 0, 0).expect("it costs nothing");
        // Prices that are no amounts are not known.
        let bounds = budget(10, 10_000, Some(1.0)).bounds.clone();
        let prices = Prices { input: -1.0, output: f64::NAN, ..Prices::default() };
        let budget = ModelBudget::new(bounds, [("p/m".to_owned(), prices)].into_iter().collect());
        refused(&budget, "p/m", 10, 10, "models.\"p/m\".prices");
    }

    #[test]
    fn allowance_bounds_attempts() {
        let room = RequestAllowance::of(2);
        let same = room.clone();
        assert_eq!((room.take(), same.used(), same.has_refused_attempt()), (true, Some(1), false));
        assert_eq!((same.take(), room.take(), room.take()), (true, false, false));
        assert_eq!((room.used(), room.has_refused_attempt(), room == same), (Some(2), true, true));
        let endless = RequestAllowance::default();
        assert_eq!((endless.take(), endless.used(), endless.has_refused_attempt()), (true, None, false));
        assert!(endless.is_endless() && !room.is_endless() && room != RequestAllowance::of(2));
    }
}
