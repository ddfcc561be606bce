//! Room in the conversation that outcomes go to.

use async_trait::async_trait;
use toolwright_core::outcome::Outcome;

/// The room left in the conversation that the outcomes go to.
#[async_trait]
pub trait ContextBudget: Send + Sync {
    /// Reserves room for an outcome, or replaces its content by what fits.
    async fn admit(&self, outcome: Outcome) -> Outcome;
}
