//! The limits of a task, and the notices to the model when one is near.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolwright_core::duration;
use toolwright_core::model::Usage;

/// Model answers in one task unless configured otherwise.
pub(super) const DEFAULT_TURNS: u32 = 50;

/// Limits of one task: of what is done for one message of the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Model answers; 0 counts as 1. The model is told when two and one are left, and may not call tools
    /// in the last.
    pub turns: u32,
    /// Calls, refused ones included. Once they are used up, the next turn is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u32>,
    /// Time from the first step, waits for model, tools and people included. The model is told once when four fifths
    /// of it are over.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub time: Option<Duration>,
    /// Input and output tokens of all turns together, those of a model that mended calls, and what the calls asked of
    /// models themselves, included; looked at between turns. The model is told once when four fifths of them are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns: DEFAULT_TURNS, calls: None, time: None, tokens: None }
    }
}

/// A word to the model before its next turn.
pub(super) struct Notice {
    pub(super) text: String,
    /// No calls in that turn.
    pub(super) last: bool,
}

/// The word before a last turn.
pub(super) fn last_turn(why: &str) -> Notice {
    let text = format!(
        "[toolwright notice] {why}: calls will not run any more. Give your final answer now; say what is done, and what is not."
    );
    Notice { text, last: true }
}

impl Limits {
    /// Why the model is not asked again.
    pub(super) fn exhausted(&self, turns: u32, usage: &Usage) -> Option<String> {
        if turns >= self.turns.max(1) {
            return Some(self.why_turns());
        }
        let used = usage.tokens();
        self.tokens.filter(|&limit| used >= limit).map(|limit| format!("the limit of {limit} tokens was reached"))
    }

    /// What four fifths are used up of, of limits that end a run without a last turn: a word before the next turn.
    pub(super) fn near(&self, elapsed: Duration, usage: &Usage) -> Option<Notice> {
        let used = usage.input_tokens.saturating_add(usage.output_tokens);
        let tokens = self.tokens.filter(|&limit| used >= limit - limit / 5).map(|limit| format!("{limit} tokens"));
        let time = self.time.filter(|&limit| elapsed >= limit / 5 * 4);
        let what = tokens.or_else(|| Some(format!("{} that this task may take", duration::format(time?))))?;
        let text = format!(
            "[toolwright notice] Four fifths of the {what} are used up, and at the end of them the run ends at once. Finish what \
             matters most, and give your final answer soon."
        );
        Some(Notice { text, last: false })
    }

    pub(super) fn notice(&self, turns: u32, calls: u32) -> Option<Notice> {
        match self.turns.max(1).saturating_sub(turns) {
            1 => Some(last_turn("This is your last turn")),
            _ if self.calls.is_some_and(|limit| calls >= limit) => Some(last_turn("All calls of this run are used up")),
            2 => Some(Notice {
                text: "[toolwright notice] Two turns are left, and calls run in the first of them only. Finish what matters most."
                    .into(),
                last: false,
            }),
            _ => None,
        }
    }

    /// Why a turn was the last, for a model that called tools in it nevertheless.
    pub(super) fn why_last(&self, turns: u32) -> String {
        match self.calls {
            Some(limit) if turns < self.turns.max(1) => format!("the limit of {limit} calls was reached"),
            _ => self.why_turns(),
        }
    }

    pub(super) fn why_time(&self) -> String {
        match self.time {
            Some(limit) => format!("the time limit of {} was reached", duration::format(limit)),
            None => "a limit of the run was reached".into(),
        }
    }

    fn why_turns(&self) -> String {
        format!("the limit of {} turns was reached", self.turns.max(1))
    }
}
