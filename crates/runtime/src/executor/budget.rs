//! Room in the conversation that outcomes go to (SPEC section 9, context budget).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use toolwright_core::catalogue::Entry;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::EstimatedTokens;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::Outcome;
use toolwright_core::output::{DEFAULT_MAX_BYTES, json_bytes, stored_message, stored_note};
use toolwright_core::store::StoredOutput;

use super::cap::{TOOL_OUTPUT, readers};
use super::{Executor, RunContext};

/// What a model is told of a result for which there is no room at all.
const EXCEEDED: &str = "context window budget exceeded";
/// Set in the extras of such an outcome, and code of the warning.
pub const BUDGET_EXCEEDED: &str = "context_budget_exceeded";

/// Room for the results of a turn, in tokens. All that lands reserves its part under one lock, so that results
/// that come at once cannot take more than there is.
#[derive(Debug, Default)]
pub struct ContextBudget(Mutex<Room>);

/// The figures of a budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Room {
    /// Tokens that a request may have.
    limit: usize,
    /// What the next one has already: conversation and definitions of tools.
    current: usize,
    /// How much of that could be removed.
    removable: usize,
    /// Results that have landed.
    pending: usize,
}

/// Whether older results may give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compact {
    No,
    Yes,
}

impl Room {
    fn has(&self, tokens: usize, compact: Compact) -> bool {
        let removable = if compact == Compact::Yes { self.removable } else { 0 };
        let used = self.current.saturating_sub(removable);
        used.saturating_add(self.pending).saturating_add(tokens) <= self.limit
    }
}

impl ContextBudget {
    /// A budget of `limit` tokens, of which none are used.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Mutex::new(Room { limit, ..Room::default() }))
    }

    /// Tells what the next request has already without the results of this turn, and how much of that could be
    /// removed if need be.
    pub fn holds(&self, current: usize, removable: usize) {
        let mut room = self.room();
        (room.current, room.removable) = (current, removable);
    }

    /// Reserves `tokens`; `None` if they do not fit.
    fn reserve(self: &Arc<Self>, tokens: usize, compact: Compact) -> Option<Reserved> {
        let mut room = self.room();
        room.has(tokens, compact).then(|| {
            room.pending += tokens;
            Reserved { budget: Arc::clone(self), tokens }
        })
    }

    /// Tokens that are left where no older result gives way.
    fn left(&self) -> usize {
        let room = self.room();
        room.limit.saturating_sub(room.current.saturating_add(room.pending))
    }

    /// Takes `tokens` whether they fit or not: something has to be said.
    fn take(&self, tokens: usize) {
        let mut room = self.room();
        room.pending = room.pending.saturating_add(tokens);
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room that is given back unless it is kept: when a call fails or is dropped before its result is committed.
struct Reserved {
    budget: Arc<ContextBudget>,
    tokens: usize,
}

impl Reserved {
    fn keep(mut self) {
        self.tokens = 0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut room = self.budget.room();
        room.pending = room.pending.saturating_sub(self.tokens);
    }
}

impl Executor {
    /// Reserves room for an outcome in the conversation of its run. One for which there is none is stored, and its
    /// handle takes its place; if that does not fit either, even when older results give way, an error does. Where no
    /// handle can be, older results give way to the whole.
    pub(super) async fn fit(&self, mut outcome: Outcome, entry: &Entry, run: &RunContext) -> Outcome {
        let Some(budget) = run.budget.as_ref().filter(|_| outcome.pending.is_none()) else { return outcome };
        let needed = tokens(&outcome);
        if let Some(reserved) = budget.reserve(needed, Compact::No) {
            reserved.keep();
            return outcome;
        }
        let left = budget.left();
        let stored = self.store_whole(&mut outcome, run).await;
        if stored.is_none()
            && let Some(reserved) = budget.reserve(needed, Compact::Yes)
        {
            reserved.keep();
            return outcome;
        }
        self.options.services.events.tell(|| Event::BudgetExceeded {
            session: run.session.id.clone(),
            call: outcome.call_id.clone(),
            tool: Some(entry.id().clone()),
            needed: needed as u64,
            left: left as u64,
            handle: stored.as_ref().map(|stored| stored.handle.to_string()),
        });
        if let Some(stored) = &stored {
            let message = vec![ContentBlock::text(stored_message(stored, "", 0, &readers(run)))];
            if let Some(reserved) = budget.reserve(message.iter().map(ContentBlock::tokens).sum(), Compact::Yes) {
                reserved.keep();
                outcome.content = message;
                outcome.structured = None;
                return outcome;
            }
        }
        self.no_room(outcome, stored.as_ref(), budget)
    }

    /// Stores all of an outcome that a model would see, unless that is done.
    async fn store_whole(&self, outcome: &mut Outcome, run: &RunContext) -> Option<StoredOutput> {
        if let Some(known) = outcome.extras.get(TOOL_OUTPUT).and_then(noted) {
            return Some(known);
        }
        if readers(run).is_empty() {
            return None;
        }
        let text = match &outcome.structured {
            Some(structured) if outcome.content.is_empty() => structured.to_string(),
            _ => outcome.model_text(),
        };
        match self.options.services.outputs.put(&run.session.id, text.as_bytes()).await {
            Ok(stored) => {
                let mut note = stored_note(&stored);
                note["reason"] = BUDGET_EXCEEDED.into();
                outcome.extras.insert(TOOL_OUTPUT.into(), note);
                Some(stored)
            }
            Err(error) => {
                tracing::warn!("a result that does not fit the conversation was not stored: {error}");
                None
            }
        }
    }

    fn no_room(&self, mut outcome: Outcome, stored: Option<&StoredOutput>, budget: &ContextBudget) -> Outcome {
        let error = ToolError::new(ErrorKind::ExecutionError, EXCEEDED);
        let kept = match stored {
            Some(stored) => {
                format!("Its result, {} bytes, is stored under the handle {}.", stored.bytes, stored.handle)
            }
            None => "Its result was not kept.".into(),
        };
        let content = ContentBlock::text(format!("{}\n{kept}", error.for_model()));
        budget.take(content.tokens());
        let call = &outcome.call_id;
        let message = format!("the result of call {call} does not fit the context window: the next turn is the last");
        self.options.services.events.emit(Event::Warning { code: BUDGET_EXCEEDED.into(), message });
        outcome.extras.insert(BUDGET_EXCEEDED.into(), json!(true));
        Outcome { ok: false, content: vec![content], structured: None, error: Some(error), ..outcome }
    }
}

/// Estimated tokens of what a model sees of an outcome.
fn tokens(outcome: &Outcome) -> usize {
    match &outcome.structured {
        Some(structured) if outcome.content.is_empty() => {
            EstimatedTokens::of_bytes(json_bytes(structured).min(DEFAULT_MAX_BYTES))
        }
        _ => outcome.content.iter().map(ContentBlock::tokens).sum(),
    }
}

/// What was stored, out of a note about it.
fn noted(note: &Value) -> Option<StoredOutput> {
    serde_json::from_value(note.clone()).ok()
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
    fn what_is_not_kept_is_given_back() {
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
            let land = || (0..100).filter(|_| budget.reserve(7, Compact::No).map(Reserved::keep).is_some()).count();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(land)).collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).sum()
        });
        assert_eq!((fitted, budget.room().pending), (128, 896));
    }
}
