//! The size of the conversation, estimated, and how room is made in it.

use toolwright_core::ContentBlock;
use toolwright_core::context::{EstimatedTokens, TokenCounter as _};
use toolwright_core::model::{CallResult, Message};

/// Results below this are kept: removing them gains next to nothing.
const WORTH_REMOVING: usize = 100;
/// Tokens of the note that takes the place of a result, at most.
const NOTE: usize = 40;

/// The part of a window that is left free, since tokens are estimated.
const BUFFER: usize = 20;
/// Tokens that an answer is reckoned with where it has no limit, but a quarter of the window at most.
const ANSWER: usize = 4096;

/// Tokens that a request may have.
pub(super) fn limit(window: usize, max_tokens: Option<u32>) -> usize {
    let answer = max_tokens.map_or(ANSWER.min(window / 4), |tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
    window.saturating_sub(window / BUFFER).saturating_sub(answer)
}

/// Tokens of the results that could be removed.
pub(super) fn removable(messages: &[Message]) -> usize {
    let results = messages.iter().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    results.flatten().map(result_tokens).filter(|&tokens| tokens >= WORTH_REMOVING).map(|tokens| tokens - NOTE).sum()
}

pub(super) fn tokens(system: &str, messages: &[Message]) -> usize {
    text_tokens(system) + messages.iter().map(message_tokens).sum::<usize>()
}

/// Removes the oldest results, but never those of the last turn, until the conversation is down to three
/// quarters of `budget`: making room costs the provider's prompt cache, so it should be rare. Returns
/// how many were removed.
pub(super) fn fit(system: &str, messages: &mut [Message], budget: usize) -> usize {
    let mut now = tokens(system, messages);
    if now <= budget {
        return 0;
    }
    let target = budget / 4 * 3;
    let newest = messages.iter().rposition(|message| matches!(message, Message::Tool { .. })).unwrap_or(0);
    let old = messages[..newest].iter_mut().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    let mut removed = 0;
    for result in old.flatten() {
        let before = result_tokens(result);
        if now <= target {
            break;
        }
        if before < WORTH_REMOVING {
            continue;
        }
        result.content = vec![ContentBlock::text(format!(
            "[toolwright removed this result, about {before} tokens, to make room in the conversation; call the tool again if you need it]"
        ))];
        now = now - before + result_tokens(result);
        removed += 1;
    }
    removed
}

fn text_tokens(text: &str) -> usize {
    EstimatedTokens.count(text).0
}

fn message_tokens(message: &Message) -> usize {
    match message {
        Message::User { content } => content.iter().map(ContentBlock::tokens).sum(),
        Message::Assistant { text, calls, .. } => {
            let calls: usize = calls.iter().map(|call| text_tokens(&call.name) + text_tokens(&call.arguments)).sum();
            text_tokens(text) + calls
        }
        Message::Tool { results } => results.iter().map(result_tokens).sum(),
    }
}

fn result_tokens(result: &CallResult) -> usize {
    result.content.iter().map(ContentBlock::tokens).sum()
}
