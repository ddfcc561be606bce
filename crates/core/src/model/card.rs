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
    /// The model whose recorded answers it gives, where it is a recording: what goes by a model's name goes by this.
    pub stands_for: Option<Arc<str>>,
    /// The models whose answers a recording has, in the order in which they were first asked; empty for any other
    /// model.
    pub recorded: Arc<[Arc<str>]>,
}

impl ModelCard {
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
}
