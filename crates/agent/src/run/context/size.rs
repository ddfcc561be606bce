//! The size of a conversation: an estimate, and what to count for the exact value.

use toolwright_core::ContentBlock;
use toolwright_core::context::EstimatedTokens;
use toolwright_core::model::{FRAME_TOKENS, Message, ShownTool};
use toolwright_core::output::json_bytes;
use toolwright_core::select::shown_tokens;

/// Estimated tokens of system prompt and messages.
pub(super) fn conversation(system: &str, messages: &[Message]) -> usize {
    EstimatedTokens::of_text(system) + messages.iter().map(Message::tokens).sum::<usize>()
}

/// What the results that no request had yet may take more than is estimated: of dense texts (dumps, tables) each digit and
/// sign may be a token of its own, where the estimate takes two for one.
pub(super) fn unsure(messages: &[Message]) -> usize {
    let unseen = messages.iter().rev().take_while(|message| !matches!(message, Message::Assistant { .. }));
    let results = unseen.filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    let texts = results.flatten().flat_map(|result| &result.content).filter_map(ContentBlock::as_text);
    let is_sign = |c: &char| c.is_ascii() && !c.is_ascii_alphabetic() && !c.is_ascii_whitespace();
    texts.map(|text| text.chars().filter(is_sign).count() / 2).sum()
}

/// What is to be counted to know a request exactly: its texts, and the tokens of all else.
#[derive(Debug, Default)]
pub(crate) struct Countable {
    /// The texts.
    pub(crate) texts: Vec<String>,
    /// Frames, and what no tokenizer counts: images, sound, and data that only the API reads.
    pub(crate) besides: usize,
    /// What the whole is estimated at.
    pub(crate) estimate: usize,
}

impl Countable {
    /// `tools`: what the definitions are estimated at, those that results have loaded included.
    pub(super) fn of(system: &str, messages: &[Message], shown: &[ShownTool], tools: usize) -> Self {
        let mut all = Self { estimate: conversation(system, messages) + tools, ..Self::default() };
        all.text(system);
        for message in messages {
            all.besides += FRAME_TOKENS;
            match message {
                Message::User { content } => all.content(content),
                Message::Assistant { text, calls, opaque } => {
                    all.text(text);
                    for call in calls {
                        all.besides += FRAME_TOKENS;
                        all.text(&call.name);
                        all.text(&call.arguments);
                    }
                    let opaque = opaque.iter().map(|data| EstimatedTokens::of_bytes(json_bytes(&data.data)));
                    all.besides += opaque.sum::<usize>();
                }
                Message::Tool { results } => {
                    for result in results {
                        all.besides += FRAME_TOKENS;
                        all.content(&result.content);
                    }
                }
            }
        }
        let mut known = 0;
        for tool in shown.iter().filter(|tool| !tool.is_deferred()) {
            known += shown_tokens(tool);
            all.text(&tool.name);
            all.text(&tool.description);
            all.text(&tool.parameters.to_string());
        }
        all.besides += tools.saturating_sub(known);
        all
    }

    fn content(&mut self, content: &[ContentBlock]) {
        for block in content {
            match block {
                ContentBlock::Text { text, .. } => self.text(text),
                ContentBlock::Image { .. } | ContentBlock::Audio { .. } => self.besides += block.tokens(),
                other => self.texts.push(other.stand_in()),
            }
        }
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.texts.push(text.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::model::CallResult;

    use super::*;

    #[test]
    fn dense_results_are_unsure_until_they_were_sent() {
        let result = |text: &str| CallResult { content: vec![ContentBlock::text(text)], ..CallResult::default() };
        let tool = Message::Tool { results: vec![result("plain words"), result("0123456789abcd{}")] };
        assert_eq!(unsure(&[tool.clone(), Message::user("a notice")]), 6);
        let answer = Message::Assistant { text: "Yes.".into(), calls: Vec::new(), opaque: Vec::new() };
        assert_eq!(unsure(&[tool, answer]), 0);
        assert_eq!(unsure(&[]), 0);
    }
}
