//! Shaping: how much of a result goes back, and what is said about the rest. Whatever is cut says who
//! cut how much, and names a handle where there is one that the caller can read.

mod clients;
mod extract;
mod json;
mod stored;
mod truncate;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::ContentBlock;

pub use clients::{MAX_RESULT_CHARS, announced_chars, client_max_bytes};
pub use extract::{EXTRACT_ID, GREP_ID, READ_ID};
pub use extract::{ExtractError, ExtractMode, ExtractRequest, Extractor, is_output_tool};
pub use stored::{Ends, Readers, add_note, cut_message, noted_outputs, shown_ends, stored_message, stored_note};
pub use truncate::{CUT, head_and_tail, truncate};

/// Cap on the text of a result that goes into a conversation of ours, in bytes.
pub const DEFAULT_MAX_BYTES: usize = 12_288;
/// The extra of an outcome that says what was cut out of it: `{bytes, reason}`, and `handle` and more where it is kept
/// ([`add_note`]).
pub const TOOL_OUTPUT: &str = "tool_output";
/// The extra of an outcome of which something was cut and not kept: the bytes that there were.
pub const CUT_BYTES: &str = "cut_bytes";
/// Cap on what goes on whole or not at all, in bytes of JSON: the structured result of a tool with an output schema,
/// and what a protocol's method gives. As much as one message of a server may have.
pub const DEFAULT_MAX_WHOLE: usize = 16 * 1024 * 1024;

/// Bytes of all text in `content`: text blocks and the text of embedded resources.
#[must_use]
pub fn text_bytes(content: &[ContentBlock]) -> usize {
    content.iter().filter_map(countable).map(str::len).sum()
}

/// Whom results are for, as far as the cap on their text depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultsFor {
    /// A conversation of ours, which may have to keep many of them.
    #[default]
    Conversation,
    /// A client of the gateway, which keeps house with its own.
    Client,
}

/// All text that counts, joined by line feeds: what is stored when a result is over its cap.
#[must_use]
pub fn countable_text(content: &[ContentBlock]) -> String {
    content.iter().filter_map(countable).collect::<Vec<_>>().join("\n")
}

/// The text of a block that counts against the cap.
#[must_use]
pub fn countable(block: &ContentBlock) -> Option<&str> {
    match block {
        ContentBlock::Text { text, .. } => Some(text),
        ContentBlock::Resource { resource, .. } => resource.get("text").and_then(Value::as_str),
        _ => None,
    }
}

/// Bytes of `value` as JSON.
#[must_use]
pub fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Writing a value to a counter cannot fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Whether bytes, the beginning of something, are not text: an eighth of them is neither UTF-8 nor printable.
#[must_use]
pub fn is_binary(sample: &[u8]) -> bool {
    let invalid: usize = sample.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    let nulls = sample.iter().filter(|&&byte| byte == 0).count();
    (invalid + nulls) * 8 > sample.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_of_resources_counts_and_binary_does_not() {
        let resource = |value| ContentBlock::Resource { resource: value, extra: serde_json::Map::new() };
        let content = [
            ContentBlock::text("abc"),
            ContentBlock::image("AAAA", "image/png"),
            resource(json!({"uri": "a:b", "text": "defg"})),
            resource(json!({"uri": "a:c", "blob": "AAAA"})),
        ];
        assert_eq!((text_bytes(&content), countable_text(&content)), (7, "abc\ndefg".into()));
        assert_eq!(json_bytes(&json!({"a": ["é", 1]})), r#"{"a":["é",1]}"#.len());
    }

    #[test]
    fn text_and_binary_are_told_apart() {
        let png = [0x89, b'P', b'N', b'G', 0, 0, 0, 13];
        for (sample, binary) in [
            (&b"plain"[..], false),
            ("ein höheres Wort\u{0}".as_bytes(), false),
            (b"", false),
            (&png, true),
            (&[0; 20], true),
        ] {
            assert_eq!(is_binary(sample), binary, "{sample:?}");
        }
        // A sample may end amid a character.
        assert!(!is_binary(&"ééééé".as_bytes()[..9]));
    }
}
