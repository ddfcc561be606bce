//! Shaping: how much of a result goes back, and what is said about the rest. Whatever is cut says who
//! cut how much, and names a handle.

use serde_json::{Value, json};

use crate::content::ContentBlock;
use crate::store::StoredOutput;

/// Cap on the text of a result (SPEC section 9), in bytes.
pub const DEFAULT_MAX_BYTES: usize = 12_288;

/// Bytes of all text in `content`: text blocks and the text of embedded resources.
#[must_use]
pub fn text_bytes(content: &[ContentBlock]) -> usize {
    content.iter().filter_map(countable).map(str::len).sum()
}

/// All text that counts, joined by line feeds: what is stored when a result is over its cap.
#[must_use]
pub fn countable_text(content: &[ContentBlock]) -> String {
    content.iter().filter_map(countable).collect::<Vec<_>>().join("\n")
}

fn countable(block: &ContentBlock) -> Option<&str> {
    match block {
        ContentBlock::Text { text, .. } => Some(text),
        ContentBlock::Resource { resource, .. } => resource.get("text").and_then(Value::as_str),
        _ => None,
    }
}

/// Whether bytes, the beginning of something, are not text: an eighth of them is neither UTF-8 nor printable.
#[must_use]
pub fn is_binary(sample: &[u8]) -> bool {
    let invalid: usize = sample.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    let nulls = sample.iter().filter(|&&byte| byte == 0).count();
    (invalid + nulls) * 8 > sample.len()
}

/// Head and tail of `text` within some `max` bytes, with a line between them that says how much is
/// missing. UTF-8 safe; a text that fits is returned whole.
#[must_use]
pub fn head_and_tail(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let head = floor_boundary(text, max * 2 / 3);
    let tail = ceil_boundary(text, text.len() - max / 3);
    // Whole lines read better, where one ends near enough.
    let head = text[..head].rfind('\n').filter(|&end| end * 2 > head).map_or(head, |end| end + 1);
    let tail = text[tail..]
        .find('\n')
        .map(|n| tail + n + 1)
        .filter(|&start| (text.len() - start) * 2 > text.len() - tail)
        .unwrap_or(tail);
    let cut = tail - head;
    format!(
        "{}\n[… toolwright cut {cut} of {} bytes here …]\n{}",
        text[..head].trim_end_matches('\n'),
        text.len(),
        &text[tail..]
    )
}

fn floor_boundary(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0)
}

fn ceil_boundary(text: &str, index: usize) -> usize {
    (index.min(text.len())..=text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(text.len())
}

/// What takes the place of an output that is over its cap.
#[must_use]
pub fn stored_message(stored: &StoredOutput, text: &str, max: usize) -> String {
    let preview = head_and_tail(text, max.saturating_sub(400).max(200).min(max));
    format!(
        "The result has {} bytes in {} lines (about {} tokens), over the cap of {max} bytes, so it was stored under the handle {}.\n\
         Read on with output__read {{\"handle\": \"{}\", \"offset\": 0}}. Beginning and end:\n\n{preview}",
        stored.bytes, stored.lines, stored.tokens, stored.handle, stored.handle,
    )
}

/// The structured form of [`stored_message`], for `_meta` and extras.
#[must_use]
pub fn stored_note(stored: &StoredOutput) -> Value {
    json!({
        "handle": stored.handle,
        "reason": "size_limit_exceeded",
        "bytes": stored.bytes,
        "lines": stored.lines,
        "tokens": stored.tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_marker_says_how_much() {
        let text = "line\n".repeat(1000);
        let cut = head_and_tail(&text, 300);
        assert!(cut.starts_with("line\n") && cut.ends_with("line\n"));
        let kept = cut.matches("line").count();
        let marker = format!("toolwright cut {} of 5000 bytes", 5000 - kept * 5);
        assert!(cut.contains(&marker), "{cut}");
    }

    #[test]
    fn the_stored_message_names_handle_and_reader() {
        let stored = StoredOutput { handle: "session-a/b".into(), bytes: 50_000, lines: 10, tokens: 12_500 };
        let text = "x".repeat(50_000);
        let message = stored_message(&stored, &text, 2000);
        assert!(message.len() < 2500 && message.contains("session-a/b") && message.contains("output__read"));
        assert_eq!(stored_note(&stored)["reason"], "size_limit_exceeded");
    }

    proptest! {
        #[test]
        fn cutting_is_utf8_safe_and_bounded(text in "\\PC{0,400}", max in 0usize..300) {
            let cut = head_and_tail(&text, max);
            prop_assert!(cut.len() <= max + 80 || cut == text);
            if text.len() <= max { prop_assert_eq!(cut, text); }
        }
    }
}
