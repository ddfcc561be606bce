//! The store of principals' spending in budget periods.

use async_trait::async_trait;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::error::{ToolError, Unsupported};
use crate::model::{ModelBounds, ModelSpending};

/// How long a budget lasts, before the next begins. Days and months are those of UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    /// A day.
    Day,
    /// A month.
    #[default]
    Month,
    /// There is one for ever.
    Ever,
}

impl BudgetPeriod {
    /// Returns the period at this time, in milliseconds since the epoch: its name, which sorts before later ones, and
    /// its end.
    #[must_use]
    pub fn at(self, now_ms: u64) -> (String, Option<u64>) {
        let now =
            i64::try_from(now_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX);
        let today = now.to_zoned(TimeZone::UTC).date();
        let (name, next) = match self {
            Self::Ever => return (String::new(), None),
            Self::Day => (today.strftime("%Y-%m-%d").to_string(), today.tomorrow()),
            Self::Month => (today.strftime("%Y-%m").to_string(), today.first_of_month().checked_add(1.month())),
        };
        let ends = next.and_then(|next| next.to_zoned(TimeZone::UTC));
        (name, ends.ok().and_then(|ends| u64::try_from(ends.timestamp().as_millisecond()).ok()))
    }
}

/// A request within a budget.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetedRequest {
    /// The principal of the budget.
    pub owner: String,
    /// The period, by its name.
    pub period: String,
    /// Its bounds.
    pub bounds: ModelBounds,
    /// The model, `provider/model`.
    pub model: String,
    /// Tokens that it may use at most.
    pub tokens: u64,
    /// Their cost, if known.
    pub cost_usd: Option<f64>,
}

/// Stores spending of budgets. Each method is one transaction, also between processes.
#[async_trait]
pub trait BudgetStore: Send + Sync {
    /// Reserves budget for a request, if [`ModelBounds::reserve`] allows it. Earlier periods are deleted.
    async fn reserve_budget(&self, _request: BudgetedRequest) -> Result<Result<ModelSpending, ToolError>, StoreError> {
        Err(Unsupported("the store of budgets").into())
    }

    /// Returns the spending in a period.
    async fn budget_spent(&self, _owner: &str, _period: &str) -> Result<ModelSpending, StoreError> {
        Err(Unsupported("the store of budgets").into())
    }

    /// Replaces a reservation with the actual usage.
    async fn settle_budget(
        &self,
        _owner: &str,
        _period: &str,
        _reserved: ModelSpending,
        _used: ModelSpending,
    ) -> Result<(), StoreError> {
        Err(Unsupported("the store of budgets").into())
    }
}

impl BudgetStore for super::NoStore {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_have_names_and_ends() {
        let ms = |text: &str| {
            let at: Timestamp = text.parse().expect("a time");
            u64::try_from(at.as_millisecond()).expect("after 1970")
        };
        let now = ms("2026-12-31T23:59:59Z");
        for (period, name, ends) in [
            (BudgetPeriod::Day, "2026-12-31", Some("2027-01-01T00:00:00Z")),
            (BudgetPeriod::Month, "2026-12", Some("2027-01-01T00:00:00Z")),
            (BudgetPeriod::Ever, "", None),
        ] {
            assert_eq!(period.at(now), (name.to_owned(), ends.map(ms)), "{period:?}");
        }
        assert_eq!(BudgetPeriod::Month.at(ms("2026-02-01T00:00:00Z")).1, Some(ms("2026-03-01T00:00:00Z")));
    }
}
