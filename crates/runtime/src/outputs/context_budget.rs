//! The token budget of the conversation that receives the outcomes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Room for the results of a turn, in tokens. Every result reserves its part under one lock, so that concurrent results
/// cannot take more than there is.
#[derive(Debug, Default)]
pub struct ContextBudget(Mutex<BudgetFigures>);

/// The state of a budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct BudgetFigures {
    /// The limit of a request, in tokens.
    limit: usize,
    /// Tokens that the next request already has: conversation and tool definitions.
    current: usize,
    /// The removable part of these.
    removable: usize,
    /// Tokens of results that have been added.
    pending: usize,
}

/// Whether older results may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compact {
    No,
    Yes,
}

impl BudgetFigures {
    fn has(&self, tokens: usize, compact: Compact) -> bool {
        let removable = if compact == Compact::Yes { self.removable } else { 0 };
        let used = self.current.saturating_sub(removable);
        used.saturating_add(self.pending).saturating_add(tokens) <= self.limit
    }
}

impl ContextBudget {
    /// Creates a budget of `limit` tokens, all free.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Mutex::new(BudgetFigures { limit, ..BudgetFigures::default() }))
    }

    /// Sets the size of the next request without the results of this turn, and how much of it could be removed.
    pub fn holds(&self, current: usize, removable: usize) {
        let mut room = self.room();
        (room.current, room.removable) = (current, removable);
    }

    /// Reserves `tokens`; `None` if they do not fit.
    pub(crate) fn reserve(self: &Arc<Self>, tokens: usize, compact: Compact) -> Option<ContextReservation> {
        let mut room = self.room();
        room.has(tokens, compact).then(|| {
            room.pending += tokens;
            ContextReservation { budget: Arc::clone(self), tokens }
        })
    }

    /// Returns the free tokens if no older result is removed.
    pub(crate) fn free_tokens(&self) -> usize {
        let room = self.room();
        room.limit.saturating_sub(room.current.saturating_add(room.pending))
    }

    /// Takes `tokens` even if they do not fit, because a result must have some text.
    pub(crate) fn take(&self, tokens: usize) {
        let mut room = self.room();
        room.pending = room.pending.saturating_add(tokens);
    }

    fn room(&self) -> MutexGuard<'_, BudgetFigures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reserved room. It is released unless kept: when a call fails or is dropped before its result is committed.
pub(crate) struct ContextReservation {
    budget: Arc<ContextBudget>,
    tokens: usize,
}

impl ContextReservation {
    pub(crate) fn keep(mut self) {
        self.tokens = 0;
    }
}

impl Drop for ContextReservation {
    fn drop(&mut self) {
        let mut room = self.budget.room();
        room.pending = room.pending.saturating_sub(self.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: usize, current: usize, removable: usize) -> Arc<ContextBudget> {
        let budget = Arc::new(ContextBudget::new(limit));
        budget.holds(current, removable);
        budget
    }

    fn check(limit: usize, current: usize, removable: usize, new: usize, whole: bool, compacted: bool) {
        let fits = |compact| budget(limit, current, removable).reserve(new, compact).is_some();
        assert_eq!((fits(Compact::No), fits(Compact::Yes)), (whole, compacted), "{limit} {current} {removable} {new}");
    }

    #[test]
    fn current_pending_and_new_are_within_the_limit() {
        check(1000, 600, 0, 400, true, true);
        check(1000, 600, 0, 401, false, false);
        check(1000, 600, 300, 700, false, true);
        check(1000, 600, 300, 701, false, false);
        check(1000, 2000, 0, 0, false, false);
        check(0, 0, 0, usize::MAX, false, false);
    }

    #[test]
    fn dropped_reservations_return_their_room() {
        let budget = budget(1000, 0, 0);
        let first = budget.reserve(700, Compact::No).expect("room");
        assert!(budget.reserve(400, Compact::No).is_none(), "it is pending");
        drop(first);
        budget.reserve(1000, Compact::No).expect("room again").keep();
        assert!(budget.reserve(1, Compact::No).is_none(), "kept for good");
    }

    #[test]
    fn results_that_land_at_once_never_overbook() {
        let budget = budget(1000, 100, 0);
        let fitted: usize = std::thread::scope(|scope| {
            let land =
                || (0..100).filter(|_| budget.reserve(7, Compact::No).map(ContextReservation::keep).is_some()).count();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(land)).collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).sum()
        });
        assert_eq!((fitted, budget.room().pending), (128, 896));
    }
}
