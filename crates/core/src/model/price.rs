//! What requests use, and what that costs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::is_replay;

/// Tokens and money of one or more requests. Absent figures stay absent: nothing is guessed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input_tokens: u64,
    /// Answer tokens.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    pub cached_tokens: u64,
    /// Prompt tokens written to the provider's cache, where they are billed apart.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_written_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(tokens: &u64) -> bool {
    *tokens == 0
}

impl Usage {
    /// Adds another request's figures.
    pub fn add(&mut self, other: Usage) {
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cached_tokens += other.cached_tokens;
        self.cache_written_tokens += other.cache_written_tokens;
    }
}

/// What a model costs, in US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Prices {
    /// Prompt tokens that are neither read from a cache nor written to one.
    pub input: f64,
    /// Answer tokens.
    pub output: f64,
    /// Prompt tokens read from the provider's cache; as `input` where it is not given.
    pub cached: Option<f64>,
    /// Prompt tokens written to the provider's cache; as `input` where it is not given.
    pub cache_written: Option<f64>,
}

impl Prices {
    /// What this usage costs, in US dollars.
    #[must_use]
    pub fn cost(&self, usage: Usage) -> f64 {
        // Past 2^53 tokens a rounded figure will do.
        let part = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        let fresh = usage.input_tokens.saturating_sub(usage.cached_tokens).saturating_sub(usage.cache_written_tokens);
        part(fresh, self.input)
            + part(usage.cached_tokens, self.cached.unwrap_or(self.input))
            + part(usage.cache_written_tokens, self.cache_written.unwrap_or(self.input))
            + part(usage.output_tokens, self.output)
    }

    /// What an answer of this usage cost, in US dollars. Of one whose server reports no usage that is not known, unless
    /// everything is free.
    #[must_use]
    pub fn known_cost(&self, usage: Usage) -> Option<f64> {
        let dearest = [Some(self.input), Some(self.output), self.cached, self.cache_written];
        let is_free = dearest.into_iter().flatten().all(|price| price == 0.0);
        (is_free || usage != Usage::default()).then(|| self.cost(usage))
    }
}

/// Prices by model id (`provider/model`) or provider; the nearer name counts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PriceTable(BTreeMap<String, Prices>);

impl PriceTable {
    /// The prices of this model; `None` where they are not known. A recording costs nothing.
    #[must_use]
    pub fn of(&self, model: &str) -> Option<Prices> {
        if is_replay(model) {
            return Some(Prices::default());
        }
        let provider = || self.0.get(model.split_once('/')?.0);
        self.0.get(model).or_else(provider).copied()
    }
}

impl FromIterator<(String, Prices)> for PriceTable {
    fn from_iter<T: IntoIterator<Item = (String, Prices)>>(prices: T) -> Self {
        Self(prices.into_iter().collect())
    }
}
