//! The size of a conversation, in estimated tokens ([`EstimatedTokens`]).

use super::{CallResult, Message, ModelRequest, ShownTool};
use crate::catalogue::shown_tokens;
use crate::content::ContentBlock;
use crate::context::EstimatedTokens;
use crate::output::json_bytes;

/// What an API puts around a message, a call or a result, in tokens.
pub const FRAME_TOKENS: usize = 4;

/// Tokens of a window that a question and its answer may take together: a twentieth is left free, since counts are not
/// certain.
#[must_use]
pub fn usable_window(window: usize) -> usize {
    window - window / 20
}

impl Message {
    /// Estimated tokens, those of images and of data that only its API reads (thinking, signatures) included.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let text = EstimatedTokens::of_text;
        FRAME_TOKENS
            + match self {
                Self::User { content } => content.iter().map(ContentBlock::tokens).sum(),
                Self::Assistant { text: said, calls, opaque } => {
                    let call = |call: &super::WrittenCall| FRAME_TOKENS + text(&call.name) + text(&call.arguments);
                    let opaque = opaque.iter().map(|data| EstimatedTokens::of_bytes(json_bytes(&data.data)));
                    text(said) + calls.iter().map(call).sum::<usize>() + opaque.sum::<usize>()
                }
                Self::Tool { results } => results.iter().map(CallResult::tokens).sum(),
            }
    }
}

impl CallResult {
    /// Estimated tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        FRAME_TOKENS + self.content.iter().map(ContentBlock::tokens).sum::<usize>()
    }
}

impl ModelRequest {
    /// Estimated tokens of all that it shows: system prompt, tools, conversation.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let shown = self.tools.iter().filter(|tool| !tool.is_deferred());
        EstimatedTokens::of_text(&self.system)
            + shown.map(shown_tokens).sum::<usize>()
            + self.messages.iter().map(Message::tokens).sum::<usize>()
    }
}

impl ShownTool {
    /// Whether its definition is not in the prompt until a result loads it.
    #[must_use]
    pub fn is_deferred(&self) -> bool {
        self.exposed == super::Exposed::Deferred
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{OpaqueData, WrittenCall};

    #[test]
    fn everything_that_is_sent_is_counted() {
        let opaque = OpaqueData { api: "a".into(), data: json!({"thinking": "x".repeat(385)}) };
        let call = WrittenCall { id: "1".into(), name: "four".into(), arguments: "{\"a\":1}".into() };
        let said = |text: &str, calls, opaque| Message::Assistant { text: text.into(), calls, opaque };
        let result =
            |content| Message::Tool { results: vec![CallResult { content: vec![content], ..CallResult::default() }] };
        for (message, tokens) in [
            (Message::user("four".repeat(10)), 14),
            (said("four", Vec::new(), Vec::new()), 5),
            (said("", vec![call], Vec::new()), 13),
            (said("", Vec::new(), vec![opaque]), 104),
            (result(ContentBlock::text("four")), 9),
            (result(ContentBlock::image("AAAA", "image/png")), 1508),
        ] {
            assert_eq!(message.tokens(), tokens, "{message:?}");
        }
        let tool = ShownTool { name: "t".into(), parameters: json!({}), ..ShownTool::default() };
        let deferred = ShownTool { exposed: crate::model::Exposed::Deferred, ..tool.clone() };
        let request = ModelRequest {
            system: "four".into(),
            messages: vec![Message::user("four")],
            tools: vec![tool.clone(), deferred].into(),
            ..ModelRequest::default()
        };
        assert_eq!(request.tokens(), 6 + shown_tokens(&tool));
    }
}
