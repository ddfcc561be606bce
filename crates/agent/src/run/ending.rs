//! How a task ends before its limits do.

use toolwright_core::model::Message;

use super::limits::last_turn;
use super::{Phase, RunState};

impl RunState {
    /// Makes the next turn the last, as if it were the limit's: the model is told `why` (the beginning of a
    /// sentence, like "The conversation is full") and may not call tools. Calls that are under way end first. The
    /// first reason counts; a run that is over stays as it is.
    pub fn force_final(&mut self, why: impl Into<String>) {
        if self.is_over() || self.task.forced.is_some() {
            return;
        }
        let why = why.into();
        if let Phase::Model { last: last @ false, .. } = &mut self.phase {
            *last = true;
            self.messages.push(Message::user(last_turn(&why).text));
        }
        self.task.forced = Some(why);
    }

    /// Why a turn was the last, for a model that called tools in it nevertheless.
    pub(super) fn why_last(&self) -> String {
        match &self.task.forced {
            Some(why) => format!("the last turn was forced: {why}"),
            None => self.spec.limits.why_last(self.task.turns),
        }
    }
}
