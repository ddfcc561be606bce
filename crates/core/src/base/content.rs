//! Content blocks of tool results and conversations, and their size in bytes and tokens. The shape is MCP's
//! (2025-11-25, "Tool Result"), so that blocks pass through a gateway unchanged: unknown fields are kept.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Tokens estimated for an image or sound: the price depends on the model, not on the size.
const MEDIA_TOKENS: usize = 1500;

/// Fields of a block that Toolwright does not interpret (`annotations`, `_meta`, later additions).
pub type ExtraFields = Map<String, Value>;

/// A block of content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Plain text.
    Text {
        /// The text.
        text: String,
        /// Uninterpreted fields.
        #[serde(flatten)]
        extra: ExtraFields,
    },
    /// An image.
    Image {
        /// Base64 of the bytes.
        data: String,
        /// For example `image/png`.
        #[serde(rename = "mimeType")]
        mime_type: String,
        /// Uninterpreted fields.
        #[serde(flatten)]
        extra: ExtraFields,
    },
    /// Sound.
    Audio {
        /// Base64 of the bytes.
        data: String,
        /// For example `audio/wav`.
        #[serde(rename = "mimeType")]
        mime_type: String,
        /// Uninterpreted fields.
        #[serde(flatten)]
        extra: ExtraFields,
    },
    /// An embedded resource.
    Resource {
        /// `{uri, mimeType?, text | blob, …}` as MCP defines it.
        resource: Value,
        /// Uninterpreted fields.
        #[serde(flatten)]
        extra: ExtraFields,
    },
    /// A link to a resource that the client may read.
    #[serde(rename = "resource_link")]
    Link {
        /// Address of the resource.
        uri: String,
        /// Its name.
        name: String,
        /// Uninterpreted fields (`title`, `description`, `mimeType`, `size`, …).
        #[serde(flatten)]
        extra: ExtraFields,
    },
}

impl ContentBlock {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), extra: ExtraFields::new() }
    }

    /// An image block; `data` is base64.
    pub fn image(data: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self::Image { data: data.into(), mime_type: mime_type.into(), extra: ExtraFields::new() }
    }

    /// The text of a text block.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The base64 data and media type of a block that is not text, if it has data.
    #[must_use]
    pub fn binary(&self) -> Option<(&str, &str)> {
        match self {
            Self::Image { data, mime_type, .. } | Self::Audio { data, mime_type, .. } => Some((data, mime_type)),
            Self::Resource { resource, .. } => {
                let part = |key| resource.get(key).and_then(Value::as_str);
                Some((part("blob")?, part("mimeType").unwrap_or("application/octet-stream")))
            }
            Self::Text { .. } | Self::Link { .. } => None,
        }
    }

    /// Estimates its tokens in a conversation.
    #[must_use]
    pub fn tokens(&self) -> usize {
        match self {
            Self::Image { .. } | Self::Audio { .. } => MEDIA_TOKENS,
            Self::Text { text, .. } => EstimatedTokens::of_text(text),
            other => EstimatedTokens::of_text(&other.placeholder()),
        }
    }

    /// Returns a line of text that replaces a block where only text is possible, and says what is missing.
    #[must_use]
    pub fn placeholder(&self) -> String {
        match self {
            Self::Text { text, .. } => text.clone(),
            Self::Image { mime_type, data, .. } => {
                format!("[image, {mime_type}, {} bytes of base64, not shown]", data.len())
            }
            Self::Audio { mime_type, data, .. } => {
                format!("[audio, {mime_type}, {} bytes of base64, not shown]", data.len())
            }
            Self::Resource { resource, .. } => {
                let uri = resource.get("uri").and_then(Value::as_str).unwrap_or("unnamed");
                match resource.get("text").and_then(Value::as_str) {
                    Some(text) => format!("[resource {uri}]\n{text}"),
                    None => format!("[resource {uri}, binary, not shown]"),
                }
            }
            Self::Link { uri, name, .. } => format!("[link to {name}: {uri}]"),
        }
    }
}

/// The text of the text blocks, joined by line feeds; other blocks are left out.
#[must_use]
pub fn joined_text(blocks: &[ContentBlock]) -> String {
    let mut texts = blocks.iter().filter_map(ContentBlock::as_text);
    let mut out = texts.next().unwrap_or_default().to_owned();
    for text in texts {
        out.push('\n');
        out.push_str(text);
    }
    out
}

/// Converts every block to text: [`ContentBlock::placeholder`] for other kinds.
#[must_use]
pub fn text_for_model(blocks: &[ContentBlock]) -> String {
    blocks.iter().map(ContentBlock::placeholder).collect::<Vec<_>>().join("\n")
}

/// Bytes of all text in `content`: text blocks and the text of embedded resources.
#[must_use]
pub fn text_bytes(content: &[ContentBlock]) -> usize {
    content.iter().filter_map(countable).map(str::len).sum()
}

/// Joins all text that counts toward a cap with line feeds; it is stored when a result exceeds its cap.
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
pub fn json_bytes(value: &(impl Serialize + ?Sized)) -> usize {
    count_json(value, <[u8]>::len)
}

/// Characters of `value` as JSON.
#[must_use]
pub fn json_characters(value: &(impl Serialize + ?Sized)) -> usize {
    let is_first_byte = |byte: &&u8| **byte & 0xC0 != 0x80;
    count_json(value, |bytes| bytes.iter().filter(is_first_byte).count())
}

fn count_json(value: &(impl Serialize + ?Sized), of: impl Fn(&[u8]) -> usize) -> usize {
    struct Count<F>(usize, F);
    impl<F: Fn(&[u8]) -> usize> std::io::Write for Count<F> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += self.1(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0, of);
    // Writing a value to a counter cannot fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Whether a sample from the start of data is binary: more than an eighth is invalid UTF-8 or unprintable.
#[must_use]
pub fn is_binary(sample: &[u8]) -> bool {
    let invalid: usize = sample.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    let nulls = sample.iter().filter(|&&byte| byte == 0).count();
    (invalid + nulls) * 8 > sample.len()
}

/// Counts tokens.
pub trait TokenCounter: Send + Sync {
    /// The count, and whether it is an estimate.
    fn count(&self, text: &str) -> (usize, Exactness);

    /// Returns the counter of `model` (`provider/model`); `None` if its tokenizer is unknown. The lookup is cheap. The
    /// first count may read a large file and take a second, so call it on a thread that may block.
    fn of_model(&self, _model: &str) -> Option<Arc<dyn TokenCounter>> {
        None
    }
}

/// Whether a count matches the model's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exactness {
    /// Counted with the model's own tokenizer.
    Exact,
    /// Estimated without a tokenizer.
    Estimate,
}

/// Estimates tokens without a tokenizer. As a [`TokenCounter`] it considers the kinds of characters
/// ([`EstimatedTokens::of_text`]).
#[derive(Debug, Clone, Copy, Default)]
pub struct EstimatedTokens;

impl EstimatedTokens {
    /// The count for a text of so many bytes, four a token: right to some 20 % for English text and JSON.
    #[must_use]
    pub fn of_bytes(bytes: usize) -> usize {
        bytes.div_ceil(4)
    }

    /// Estimates a text by its kinds of characters. Conversations hold more than prose, which has four bytes a token: a
    /// token is two digits or signs, a character of a script without spaces, or three bytes of other non-ASCII text.
    #[must_use]
    pub fn of_text(text: &str) -> usize {
        let (mut words, mut signs, mut wide, mut other) = (0, 0, 0, 0);
        for c in text.chars() {
            match c {
                'a'..='z' | 'A'..='Z' | ' ' | '\n' => words += 1,
                c if c.is_ascii() => signs += 1,
                c if c >= '\u{2e80}' => wide += 1,
                c => other += c.len_utf8(),
            }
        }
        words / 4 + signs / 2 + wide + other / 3 + usize::from(words % 4 + signs % 2 + other % 3 > 0)
    }
}

impl TokenCounter for EstimatedTokens {
    fn count(&self, text: &str) -> (usize, Exactness) {
        (Self::of_text(text), Exactness::Estimate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_of_a_block_survive() {
        for block in [
            json!({"type": "text", "text": "a", "annotations": {"priority": 0.5}, "_meta": {"k": 1}}),
            json!({"type": "image", "data": "AA==", "mimeType": "image/png", "later": true}),
            json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"}),
            json!({"type": "resource", "resource": {"uri": "a:b", "text": "t", "x": 1}}),
            json!({"type": "resource_link", "uri": "a:b", "name": "n", "size": 3}),
        ] {
            let parsed: ContentBlock = serde_json::from_value(block.clone()).expect("block");
            assert_eq!(serde_json::to_value(&parsed).expect("json"), block);
        }
    }

    #[test]
    fn text_joins_and_substitutes() {
        let blocks = [ContentBlock::text("a"), ContentBlock::image("AA==", "image/png"), ContentBlock::text("b")];
        assert_eq!(joined_text(&blocks), "a\nb");
        assert!(text_for_model(&blocks).contains("[image, image/png"));
    }

    #[test]
    fn text_of_resources_counts_and_binary_does_not() {
        let resource = |value| ContentBlock::Resource { resource: value, extra: ExtraFields::new() };
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
    fn text_and_binary_are_distinguished() {
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

    #[test]
    fn non_prose_counts_more_tokens() {
        for (text, tokens) in [
            ("", 0),
            ("a", 1),
            ("four four four four", 5),
            ("{\"a\": 17}", 4),
            ("0f3c77aa", 3),
            ("港の門は", 4),
            ("été", 2),
        ] {
            assert_eq!(EstimatedTokens::of_text(text), tokens, "{text}");
        }
    }
}
