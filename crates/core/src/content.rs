//! Content blocks: what a tool returns and a conversation carries. The shape is MCP's (2025-11-25,
//! "Tool Result"), so that blocks pass through a gateway untouched: fields we do not know are kept.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::context::EstimatedTokens;

/// What an image or a sound counts: their price depends on the model, not on their bytes.
const MEDIA_TOKENS: usize = 1500;

/// Fields of a block that Toolwright does not interpret (`annotations`, `_meta`, later additions).
pub type Extra = Map<String, Value>;

/// One block of content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Plain text.
    Text {
        /// The text.
        text: String,
        /// Uninterpreted fields.
        #[serde(flatten)]
        extra: Extra,
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
        extra: Extra,
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
        extra: Extra,
    },
    /// An embedded resource.
    Resource {
        /// `{uri, mimeType?, text | blob, …}` as MCP defines it.
        resource: Value,
        /// Uninterpreted fields.
        #[serde(flatten)]
        extra: Extra,
    },
    /// A link to a resource that the client may read.
    #[serde(rename = "resource_link")]
    Link {
        /// Where it is.
        uri: String,
        /// Its name.
        name: String,
        /// Uninterpreted fields (`title`, `description`, `mimeType`, `size`, …).
        #[serde(flatten)]
        extra: Extra,
    },
}

impl ContentBlock {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), extra: Extra::new() }
    }

    /// An image block; `data` is base64.
    pub fn image(data: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self::Image { data: data.into(), mime_type: mime_type.into(), extra: Extra::new() }
    }

    /// The text of a text block.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The base64 and media type of a block that is not text, where it has its bytes.
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

    /// Estimated tokens that it takes in a conversation.
    #[must_use]
    pub fn tokens(&self) -> usize {
        match self {
            Self::Image { .. } | Self::Audio { .. } => MEDIA_TOKENS,
            Self::Text { text, .. } => EstimatedTokens::of_text(text),
            other => EstimatedTokens::of_text(&other.stand_in()),
        }
    }

    /// A line that stands in for a block where only text can go, honest about what is missing.
    #[must_use]
    pub fn stand_in(&self) -> String {
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

/// Every block as text: [`ContentBlock::stand_in`] for those that are not.
#[must_use]
pub fn text_for_model(blocks: &[ContentBlock]) -> String {
    blocks.iter().map(ContentBlock::stand_in).collect::<Vec<_>>().join("\n")
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
    fn text_joins_and_stands_in() {
        let blocks = [ContentBlock::text("a"), ContentBlock::image("AA==", "image/png"), ContentBlock::text("b")];
        assert_eq!(joined_text(&blocks), "a\nb");
        assert!(text_for_model(&blocks).contains("[image, image/png"));
    }
}
