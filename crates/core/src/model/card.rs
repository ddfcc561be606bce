//! What is known of a model before it is asked.

use std::sync::Arc;

use super::usable_window;

/// Whether requests to a model have a chance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Usability {
    /// As far as is known here.
    #[default]
    Usable,
    /// Its provider wants a key, and there is none. Local providers want none.
    NoKey,
    /// No configured provider has it; the operator's message.
    Unknown(String),
}

/// One model's record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelCard {
    /// Whether it can be asked.
    pub usability: Usability,
    /// Tokens that it takes in, where that is configured.
    pub window: Option<usize>,
    /// Tokens that one answer may have, where that is configured.
    pub max_output: Option<u32>,
    /// Tokens that an answer may have whose request does not say how many, where its client knows.
    pub answer: Option<u32>,
    /// Tokens that it may think for beside the answer that a request limits, where the request says nothing of it: as
    /// is configured, else as it does by itself, as far as that is known. Its client adds them to the limit that it
    /// sends.
    pub thinking: u32,
    /// The model whose recorded answers it gives, where it is a recording: what goes by a model's name goes by this.
    pub stands_for: Option<Arc<str>>,
    /// The models whose answers a recording has, in the order in which they were first asked; empty for any other
    /// model.
    pub recorded: Arc<[Arc<str>]>,
}

impl ModelCard {
    /// Tokens that an answer may come to at most, thinking among them: to a request that limits it to `limit` and says that
    /// the model may think for `thinking`, `None` where it says nothing of that. `usual` is taken for a limit where neither
    /// the request nor the model's client has one.
    #[must_use]
    pub fn longest_answer(&self, limit: Option<u32>, thinking: Option<u32>, usual: u32) -> u32 {
        let room = thinking.unwrap_or(self.thinking);
        let longest = match (limit, self.answer) {
            (Some(limit), _) => limit.saturating_add(room),
            // What is configured is in it.
            (None, Some(answer)) => answer.saturating_add(room.saturating_sub(self.thinking)),
            (None, None) => usual.saturating_add(room),
        };
        longest.min(self.max_output.unwrap_or(u32::MAX))
    }

    /// Tokens that its window leaves to an answer, thinking among them, beside so many of a question; `None` where the
    /// window is not known.
    #[must_use]
    pub fn left_beside(&self, input: usize) -> Option<u32> {
        let left = usable_window(self.window?).saturating_sub(input);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_leaves_to_an_answer_what_the_question_and_a_margin_do_not_take() {
        for (window, input, left) in
            [(None, 5, None), (Some(8192), 5400, Some(2383)), (Some(8192), 7783, Some(0)), (Some(0), 1, Some(0))]
        {
            assert_eq!(ModelCard { window, ..ModelCard::default() }.left_beside(input), left, "{window:?} {input}");
        }
    }

    #[test]
    fn the_longest_answer_has_room_for_what_is_thought() {
        let card = |answer, thinking, max_output| ModelCard { answer, thinking, max_output, ..ModelCard::default() };
        for (card, limit, thinking, longest) in [
            (card(None, 0, None), Some(1000), None, 1000),
            (card(None, 24_576, None), Some(1000), None, 25_576),
            (card(None, 24_576, None), Some(1000), Some(0), 1000),
            (card(None, 0, None), Some(1000), Some(4096), 5096),
            (card(None, 24_576, Some(8000)), Some(1000), None, 8000),
            (card(None, 0, None), None, None, 4096),
            (card(None, 500, None), None, None, 4596),
            (card(Some(8192 + 500), 500, None), None, None, 8692),
            (card(Some(8192 + 500), 500, None), None, Some(700), 8892),
            (card(Some(2000), 500, Some(2000)), None, None, 2000),
            (card(None, u32::MAX, None), Some(u32::MAX), None, u32::MAX),
        ] {
            assert_eq!(card.longest_answer(limit, thinking, 4096), longest, "{card:?} {limit:?} {thinking:?}");
        }
    }
}
