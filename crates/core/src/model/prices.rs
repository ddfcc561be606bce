//! Counts the tokens that requests to models use, and computes their cost.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NativeOutput, NativeTool, is_replay};

/// Tokens and money of one or more requests. Unreported values stay absent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens, including cached ones.
    pub input_tokens: u64,
    /// Answer tokens.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    pub cached_tokens: u64,
    /// Prompt tokens written to the provider's cache, if billed separately.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_written_tokens: u64,
    /// Answer tokens used for reasoning, if reported. They are included in the answer tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Bound on the accepted tokens of one request, of each kind: far above any real count, and low enough that sums do not
/// overflow.
pub const MAX_TOKENS: u64 = 1 << 40;

impl Usage {
    /// Adds another request's usage, saturating.
    pub fn add(&mut self, other: Usage) {
        let sum = |mine: &mut u64, other: u64| *mine = mine.saturating_add(other);
        sum(&mut self.input_tokens, other.input_tokens);
        sum(&mut self.output_tokens, other.output_tokens);
        sum(&mut self.cached_tokens, other.cached_tokens);
        sum(&mut self.cache_written_tokens, other.cache_written_tokens);
        sum(&mut self.reasoning_tokens, other.reasoning_tokens);
    }

    /// Subtracts `other`.
    #[must_use]
    pub fn saturating_sub(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_sub(other.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(other.output_tokens),
            cached_tokens: self.cached_tokens.saturating_sub(other.cached_tokens),
            cache_written_tokens: self.cache_written_tokens.saturating_sub(other.cache_written_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_sub(other.reasoning_tokens),
        }
    }

    /// Prompt and answer tokens together.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Bounds each value to [`MAX_TOKENS`]. Values reported by others must pass through this.
    #[must_use]
    pub fn bounded(self) -> Self {
        let Self { input_tokens, output_tokens, cached_tokens, cache_written_tokens, reasoning_tokens } = self;
        Self {
            input_tokens: input_tokens.min(MAX_TOKENS),
            output_tokens: output_tokens.min(MAX_TOKENS),
            cached_tokens: cached_tokens.min(MAX_TOKENS),
            cache_written_tokens: cache_written_tokens.min(MAX_TOKENS),
            reasoning_tokens: reasoning_tokens.min(MAX_TOKENS),
        }
    }
}

/// What a model costs, in US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Input tokens that do not come from the provider's cache.
    #[schemars(range(min = 0.0))]
    pub input: f64,
    /// Output tokens.
    #[schemars(range(min = 0.0))]
    pub output: f64,
    /// Input tokens that come from the provider's cache. Default: as `input`.
    #[schemars(range(min = 0.0))]
    pub cached: Option<f64>,
    /// Input tokens that the provider writes to its cache, for the time that `cache` sets. Default: as `input`.
    #[schemars(range(min = 0.0))]
    pub cache_written: Option<f64>,
}

impl Prices {
    /// Cost of this usage, in US dollars.
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

    /// Cost of an answer with this usage, in US dollars; `None` if no usage was reported, unless everything is free.
    #[must_use]
    pub fn known_cost(&self, usage: Usage) -> Option<f64> {
        let dearest = [Some(self.input), Some(self.output), self.cached, self.cache_written];
        let is_free = dearest.into_iter().flatten().all(|price| price == 0.0);
        (is_free || usage != Usage::default()).then(|| self.cost(usage))
    }
}

/// Total cost of model requests, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Cost {
    usd: f64,
    /// Whether some requests may have had further, unknown costs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_open: bool,
}

impl Cost {
    /// The cost of a request; `None` if unknown.
    #[must_use]
    pub fn of(usd: Option<f64>) -> Self {
        Self { usd: usd.unwrap_or_default(), is_open: usd.is_none() }
    }

    /// The cost of this usage at these prices. No usage costs nothing.
    #[must_use]
    pub fn of_usage(usage: Usage, prices: Option<Prices>) -> Self {
        if usage == Usage::default() { Self::default() } else { Self::of(prices.map(|prices| prices.cost(usage))) }
    }

    /// Adds the cost of other requests.
    pub fn add(&mut self, other: Self) {
        self.usd += other.usd;
        self.is_open |= other.is_open;
    }

    /// US dollars; `None` if the price of some request is unknown.
    #[must_use]
    pub fn usd(&self) -> Option<f64> {
        (!self.is_open).then_some(self.usd)
    }
}

/// Prices by model id (`provider/model`) or provider; the model's own price counts first. Also of native tools.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PriceTable {
    models: BTreeMap<String, Prices>,
    tools: BTreeMap<NativeTool, f64>,
}

impl PriceTable {
    /// Prices of this model; `None` if unknown. Recordings are free.
    #[must_use]
    pub fn of(&self, model: &str) -> Option<Prices> {
        if is_replay(model) {
            return Some(Prices::default());
        }
        let provider = || self.models.get(model.split_once('/')?.0);
        self.models.get(model).or_else(provider).copied()
    }

    /// Adds prices for one use of each of these native tools, in US dollars.
    #[must_use]
    pub fn with_tools(self, tools: impl IntoIterator<Item = (NativeTool, f64)>) -> Self {
        Self { tools: tools.into_iter().collect(), ..self }
    }

    /// Cost of the uses of `tool` in an answer, in US dollars, if the price is known. Recordings are free.
    #[must_use]
    pub fn of_uses(&self, model: &str, tool: NativeTool, output: &NativeOutput) -> Option<f64> {
        if is_replay(model) {
            return Some(0.0);
        }
        // Past 2^53 uses a rounded figure will do.
        self.tools.get(&tool).map(|price| price * output.charged(tool) as f64)
    }
}

impl FromIterator<(String, Prices)> for PriceTable {
    fn from_iter<T: IntoIterator<Item = (String, Prices)>>(prices: T) -> Self {
        Self { models: prices.into_iter().collect(), tools: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate() {
        let all = |tokens| Usage {
            input_tokens: tokens,
            output_tokens: tokens,
            cached_tokens: tokens,
            cache_written_tokens: tokens,
            reasoning_tokens: tokens,
        };
        for (one, other, sum, together) in
            [(1, 2, 3, 6), (u64::MAX, 1, u64::MAX, u64::MAX), (1 << 63, 1 << 63, u64::MAX, u64::MAX)]
        {
            let mut usage = all(one);
            usage.add(all(other));
            assert_eq!((usage, usage.tokens()), (all(sum), together));
        }
        for (reported, believed) in
            [(7, 7), (MAX_TOKENS, MAX_TOKENS), (MAX_TOKENS + 1, MAX_TOKENS), (u64::MAX, MAX_TOKENS)]
        {
            assert_eq!(all(reported).bounded(), all(believed));
        }
    }
}
