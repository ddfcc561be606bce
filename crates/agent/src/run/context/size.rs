//! The size of a conversation, in estimated tokens.

use toolwright_core::ContentBlock;
use toolwright_core::context::EstimatedTokens;
use toolwright_core::model::{CallResult, Message, ShownTool};
use toolwright_core::output::json_bytes;
use toolwright_core::select::shown_tokens;

/// What an API puts around a message, a call or a result, in tokens.
const FRAME: usize = 4;

/// Tokens of a text.
pub(super) fn text(text: &str) -> usize {
    EstimatedTokens::of_bytes(text.len())
}

/// Tokens of system prompt and messages.
pub(crate) fn conversation(system: &str, messages: &[Message]) -> usize {
    text(system) + messages.iter().map(message).sum::<usize>()
}

/// Tokens of a message, data that only its API reads (thinking, signatures) and images included.
pub(super) fn message(message: &Message) -> usize {
    FRAME
        + match message {
            Message::User { content } => content.iter().map(ContentBlock::tokens).sum(),
            Message::Assistant { text: said, calls, opaque } => {
                let calls: usize = calls.iter().map(|call| FRAME + text(&call.name) + text(&call.arguments)).sum();
                let opaque: usize = opaque.iter().map(|data| EstimatedTokens::of_bytes(json_bytes(&data.data))).sum();
                text(said) + calls + opaque
            }
            Message::Tool { results } => results.iter().map(result).sum(),
        }
}

/// Tokens of a result.
pub(super) fn result(result: &CallResult) -> usize {
    FRAME + result.content.iter().map(ContentBlock::tokens).sum::<usize>()
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
    pub(super) fn of(system: &str, messages: &[Message], tools: &[ShownTool], tools_estimate: usize) -> Self {
        let mut all = Self { estimate: conversation(system, messages) + tools_estimate, ..Self::default() };
        all.text(system);
        for message in messages {
            all.besides += FRAME;
            match message {
                Message::User { content } => all.content(content),
                Message::Assistant { text, calls, opaque } => {
                    all.text(text);
                    for call in calls {
                        all.besides += FRAME;
                        all.text(&call.name);
                        all.text(&call.arguments);
                    }
                    let opaque = opaque.iter().map(|data| EstimatedTokens::of_bytes(json_bytes(&data.data)));
                    all.besides += opaque.sum::<usize>();
                }
                Message::Tool { results } => {
                    for result in results {
                        all.besides += FRAME;
                        all.content(&result.content);
                    }
                }
            }
        }
        // Deferred tools are not in the prompt but by a search.
        let shown = tools.iter().filter(|tool| tool.exposed != toolwright_core::model::Exposed::Deferred);
        let mut known = 0;
        for tool in shown {
            known += shown_tokens(tool);
            all.text(&tool.name);
            all.text(&tool.description);
            all.text(&tool.parameters.to_string());
        }
        all.besides += tools_estimate.saturating_sub(known);
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
