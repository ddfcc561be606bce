//! What sources of tools may spend of a model.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwright_core::error::{ErrorKind, ToolError};

/// The bound on requests and tokens of one client, over all its calls.
#[derive(Debug)]
pub(super) struct Budget {
    max_requests: u32,
    max_tokens: u64,
    spent: Mutex<Spent>,
}

#[derive(Debug, Default)]
struct Spent {
    requests: u32,
    /// Those of requests on their way as far as they were reserved.
    tokens: u64,
}

impl Budget {
    pub(super) fn new(max_requests: u32, max_tokens: u64) -> Arc<Self> {
        Arc::new(Self { max_requests, max_tokens, spent: Mutex::default() })
    }

    /// Room for one request whose answer has at most so many tokens.
    ///
    /// # Errors
    /// `limit_exceeded`, naming the setting.
    pub(super) fn reserve(self: &Arc<Self>, tokens: u64) -> Result<Reserved, ToolError> {
        let mut spent = self.spent();
        let refused = |what: String| Err(ToolError::new(ErrorKind::LimitExceeded, what));
        if spent.requests >= self.max_requests {
            return refused(format!("a model was asked {} times, which is sampling.max_requests", self.max_requests));
        }
        if spent.tokens.saturating_add(tokens) > self.max_tokens {
            return refused(format!(
                "{} tokens are spent or reserved, and {tokens} more are over sampling.max_total_tokens ({})",
                spent.tokens, self.max_tokens
            ));
        }
        spent.requests += 1;
        spent.tokens += tokens;
        Ok(Reserved { budget: Arc::clone(self), tokens })
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one request. Dropped, it stays spent: what a request that broke off used is not known.
#[derive(Debug)]
pub(super) struct Reserved {
    budget: Arc<Budget>,
    tokens: u64,
}

impl Reserved {
    /// Puts what was really used in the place of what was reserved; nothing where the API did not say.
    pub(super) fn settle(self, used: u64) {
        if used > 0 {
            let mut spent = self.budget.spent();
            spent.tokens = spent.tokens.saturating_sub(self.tokens).saturating_add(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_tokens_are_bounded_those_on_their_way_too() {
        let budget = Budget::new(3, 100);
        let first = budget.reserve(60).expect("room");
        let why = budget.reserve(60).expect_err("reserved already").message().to_owned();
        assert!(why.contains("sampling.max_total_tokens"), "{why}");
        first.settle(30);
        budget.reserve(60).expect("room again").settle(0);
        assert!(budget.reserve(20).is_err(), "what the API did not tell counts as reserved");
        drop(budget.reserve(10).expect("room"));
        let why = budget.reserve(0).expect_err("three were asked").message().to_owned();
        assert!(why.contains("sampling.max_requests"), "{why}");
    }
}
