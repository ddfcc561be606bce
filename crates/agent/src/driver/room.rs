//! The token budget for the results of a turn, if the context window of the model is known.

use std::sync::Arc;

use toolwright_runtime::executor::ContextBudget;

use crate::run::RunState;

/// What the results of one turn may take.
pub(super) struct Room {
    /// `None` where the window is not known.
    pub(super) budget: Option<Arc<ContextBudget>>,
    /// Tokens of the tools that the model is shown.
    tools: usize,
}

impl Room {
    /// For the turn that `state` is in, with definitions of `tools` tokens.
    pub(super) fn of(state: &RunState, tools: usize) -> Self {
        let room = Self { budget: state.context_limit().map(|limit| Arc::new(ContextBudget::new(limit))), tools };
        room.holds(state);
        room
    }

    /// The conversation has changed but for results of this turn.
    pub(super) fn holds(&self, state: &RunState) {
        if let Some(budget) = &self.budget {
            budget.holds(state.context_tokens() + self.tools, state.removable_tokens());
        }
    }
}
