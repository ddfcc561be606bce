//! Turns as text: for the models that put them together, and as the stored original.

use std::collections::HashMap;
use std::fmt::Write as _;

use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{CallResult, Message};
use toolwright_core::output::truncate;

/// Bytes of a result, from the first try to the last.
const RESULT: [usize; 7] = [12_288, 6144, 3072, 1536, 768, 384, 192];
/// Bytes of a message or of the arguments of a call where even short results are too much.
const MESSAGE: usize = 2048;
/// Bytes of the marker that says what was cut.
const MARKER: usize = 100;

/// The whole results, as far as they are known, by the ids of their calls: in the conversation something else stands
/// in their place.
pub(crate) type Originals = HashMap<String, String>;

/// The turns as the model saw them.
pub(super) fn whole(messages: &[&Message]) -> String {
    render(messages, &HashMap::new(), usize::MAX, usize::MAX)
}

/// The turns in at most `max` bytes, results as they were and of at most `longest` bytes each: where that is too much,
/// the results are cut ever shorter, then messages, then the whole.
pub(super) fn within(messages: &[&Message], originals: &Originals, longest: usize, max: usize) -> String {
    let mut text = String::new();
    for result in RESULT.into_iter().filter(|&result| result <= longest) {
        text = render(messages, originals, result, usize::MAX);
        if text.len() <= max {
            return text;
        }
    }
    for message in [MESSAGE, MESSAGE / 8] {
        text = render(messages, originals, RESULT[RESULT.len() - 1], message);
        if text.len() <= max {
            return text;
        }
    }
    truncate(&text, max.saturating_sub(MARKER))
}

fn render(messages: &[&Message], originals: &Originals, result: usize, message: usize) -> String {
    let mut out = String::new();
    // Writing to a text cannot fail.
    for one in messages {
        match one {
            Message::User { content } => {
                let _ = writeln!(out, "User: {}\n", cut(&content_text(content), message));
            }
            Message::Assistant { text, calls, .. } => {
                if !text.trim().is_empty() {
                    let _ = writeln!(out, "Assistant: {}\n", cut(text, message));
                }
                for call in calls {
                    let _ = writeln!(out, "Assistant calls {} {}\n", call.name, cut(&call.arguments, message));
                }
            }
            Message::Tool { results } => {
                for one in results {
                    let failed = if one.is_error { " (failed)" } else { "" };
                    let _ = writeln!(out, "Result of {}{failed}: {}\n", one.name, cut(&said(one, originals), result));
                }
            }
        }
    }
    out
}

fn said(result: &CallResult, originals: &Originals) -> String {
    originals.get(&result.call_id).cloned().unwrap_or_else(|| content_text(&result.content))
}

fn content_text(content: &[ContentBlock]) -> String {
    if content.iter().all(|block| block.as_text().is_some()) {
        return joined_text(content);
    }
    content.iter().map(ContentBlock::stand_in).collect::<Vec<_>>().join("\n")
}

fn cut(text: &str, max: usize) -> String {
    if text.len() <= max { text.to_owned() } else { truncate(text, max) }
}

/// A text in at most `max` parts of about `bytes`, cut between lines where there are any.
pub(super) fn parts(text: &str, bytes: usize, max: usize) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.trim().is_empty() && parts.len() < max {
        if rest.len() <= bytes {
            parts.push(rest.to_owned());
            break;
        }
        let most = rest.floor_char_boundary(bytes.max(4));
        let end = rest[..most].rfind('\n').filter(|&at| at > most / 2).map_or(most, |at| at + 1);
        parts.push(rest[..end].to_owned());
        rest = &rest[end..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use toolwright_core::model::WrittenCall;

    use super::*;

    fn turn(text: &str, said: &str) -> [Message; 2] {
        let call = WrittenCall { id: "1".into(), name: "fs__read".into(), arguments: "{\"a\":1}".into() };
        let result = CallResult {
            call_id: "1".into(),
            name: "fs__read".into(),
            content: vec![ContentBlock::text(said)],
            is_error: true,
            ..CallResult::default()
        };
        [
            Message::Assistant { text: text.into(), calls: vec![call], opaque: Vec::new() },
            Message::Tool { results: vec![result] },
        ]
    }

    #[test]
    fn turns_read_as_a_conversation_with_results_as_they_were() {
        let [answer, results] = turn("Let me see.", "a note");
        let user = Message::user("Go");
        let messages = [&user, &answer, &results];
        let originals = Originals::from([("1".to_owned(), "all of it".to_owned())]);
        let expect =
            "User: Go\n\nAssistant: Let me see.\n\nAssistant calls fs__read {\"a\":1}\n\nResult of fs__read (failed): ";
        assert_eq!(whole(&messages), format!("{expect}a note\n\n"));
        assert_eq!(within(&messages, &originals, usize::MAX, 1000), format!("{expect}all of it\n\n"));
    }

    #[test]
    fn what_is_too_long_is_cut_from_the_results_on() {
        let turns: Vec<Message> = (0..20).flat_map(|_| turn("said", &"found it ".repeat(400))).collect();
        let messages: Vec<&Message> = turns.iter().collect();
        for max in [100_000, 40_000, 9_000, 3_000, 500] {
            let text = within(&messages, &Originals::new(), usize::MAX, max);
            assert!(text.len() <= max, "{max}");
            assert_eq!(text.matches("Assistant: said").count() == 20, max >= 9_000, "{max}");
        }
    }

    #[test]
    fn parts_end_with_lines_and_hold_all_that_fits() {
        let text: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let all = parts(&text, 100, 50);
        assert_eq!(all.concat(), text);
        assert!(all.iter().all(|part| part.len() <= 100 && part.ends_with('\n')));
        assert_eq!(parts(&text, 100, 3).len(), 3);
        assert_eq!(parts(&"é".repeat(300), 101, 9).concat(), "é".repeat(300));
        assert!(parts("  \n", 10, 3).is_empty());
    }
}
