//! What an answer to a request says, read from its text straight into what is made of it. Fields pass as they came, none
//! is interpreted that need not be.

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use toolwright_core::content::ContentBlock;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::passthrough::RESULT_FIELDS;
use toolwright_mcp::revision::Era;

/// Longest piece of an unknown block that is shown, in characters.
const EXCERPT: usize = 500;

/// A result, or what the server says in place of one: that it wants input, or has made a task of the request.
pub(super) trait Reply: DeserializeOwned + Send {
    /// A field of those that say which of these it is, and how it goes on.
    fn field(&self, name: &str) -> Option<&Value>;
    /// Whether it has the content that results have.
    fn has_content(&self) -> bool;
    /// All the fields that [`Reply::field`] knows.
    fn into_value(self) -> Value;
}

impl Reply for Value {
    fn field(&self, name: &str) -> Option<&Value> {
        self.get(name)
    }

    fn has_content(&self) -> bool {
        self.get("content").is_some()
    }

    fn into_value(self) -> Value {
        self
    }
}

/// The answer to a `tools/call`.
#[derive(Debug, Default)]
pub(super) struct CallReply {
    content: Option<Vec<ContentBlock>>,
    structured: Option<Value>,
    is_error: bool,
    meta: Map<String, Value>,
    others: Map<String, Value>,
}

impl CallReply {
    /// As the output of a tool, of a server of `era`.
    pub(super) fn output(mut self, era: Era) -> ToolOutput {
        // Complete, or it would not be taken for one.
        self.others.shift_remove("resultType");
        // It is an object up to 2025-11-25: a null is what serialisers write for none.
        let structured = self.structured.filter(|value| era == Era::Modern || !value.is_null());
        let mut extras = Map::new();
        if !self.others.is_empty() {
            extras.insert(RESULT_FIELDS.to_owned(), Value::Object(self.others));
        }
        let content = self.content.unwrap_or_default();
        ToolOutput { content, structured, is_error: self.is_error, meta: self.meta, extras }
    }
}

impl Reply for CallReply {
    fn field(&self, name: &str) -> Option<&Value> {
        self.others.get(name)
    }

    fn has_content(&self) -> bool {
        self.content.is_some()
    }

    fn into_value(self) -> Value {
        Value::Object(self.others)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Field {
    Content,
    StructuredContent,
    IsError,
    #[serde(rename = "_meta")]
    Meta,
    Other(String),
}

impl<'de> Deserialize<'de> for CallReply {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = CallReply;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the object that answers a tools/call")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<CallReply, A::Error> {
                let mut reply = CallReply::default();
                while let Some(field) = fields.next_key()? {
                    match field {
                        Field::Content => {
                            let blocks: Option<Vec<Block>> = fields.next_value()?;
                            reply.content = blocks.map(|blocks| blocks.into_iter().map(|block| block.0).collect());
                        }
                        Field::StructuredContent => reply.structured = Some(fields.next_value()?),
                        Field::IsError => reply.is_error = fields.next_value::<Value>()?.as_bool().unwrap_or(false),
                        Field::Meta => {
                            reply.meta = match fields.next_value()? {
                                Value::Object(meta) => meta,
                                _ => Map::new(),
                            }
                        }
                        Field::Other(name) => _ = reply.others.insert(name, fields.next_value()?),
                    }
                }
                Ok(reply)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// A content block of any kind.
struct Block(ContentBlock);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum BlockField {
    Type,
    Text,
    Other(String),
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = ContentBlock;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a content block")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<ContentBlock, A::Error> {
                let (mut kind, mut text, mut others) = (None, None, Map::new());
                while let Some(field) = fields.next_key()? {
                    match field {
                        BlockField::Type => kind = Some(fields.next_value()?),
                        BlockField::Text => text = Some(fields.next_value()?),
                        BlockField::Other(name) => _ = others.insert(name, fields.next_value()?),
                    }
                }
                Ok(match (kind, text) {
                    // As most are.
                    (Some(Value::String(kind)), Some(Value::String(text))) if kind == "text" => {
                        ContentBlock::Text { text, extra: others }
                    }
                    (kind, text) => {
                        let named = [("type", kind), ("text", text)].into_iter();
                        others.extend(named.filter_map(|(name, value)| Some((name.to_owned(), value?))));
                        block(Value::Object(others))
                    }
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<ContentBlock, A::Error> {
                Value::deserialize(SeqAccessDeserializer::new(items)).map(block)
            }

            fn visit_str<E>(self, text: &str) -> Result<ContentBlock, E> {
                Ok(block(text.into()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<ContentBlock, E> {
                Ok(block(value.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<ContentBlock, E> {
                Ok(block(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<ContentBlock, E> {
                Ok(block(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<ContentBlock, E> {
                Ok(block(number.into()))
            }

            fn visit_unit<E>(self) -> Result<ContentBlock, E> {
                Ok(block(Value::Null))
            }
        }
        deserializer.deserialize_any(Any).map(Self)
    }
}

/// A content block; one of an unknown type, or without what its type needs, becomes a text that says so.
pub(super) fn block(value: Value) -> ContentBlock {
    let has = |key: &str| value.get(key).is_some_and(Value::is_string);
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("missing").to_owned();
    let sound = match kind.as_str() {
        "text" => has("text"),
        "image" | "audio" => has("data") && has("mimeType"),
        "resource" => value.get("resource").is_some_and(Value::is_object),
        "resource_link" => has("uri") && has("name"),
        _ => false,
    };
    let mut fields = match value {
        Value::Object(fields) if sound => fields,
        other => return stand_in(&kind, &other),
    };
    fields.shift_remove("type");
    let mut take = |key: &str| match fields.shift_remove(key) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    match kind.as_str() {
        "text" => ContentBlock::Text { text: take("text"), extra: fields },
        "image" => ContentBlock::Image { data: take("data"), mime_type: take("mimeType"), extra: fields },
        "audio" => ContentBlock::Audio { data: take("data"), mime_type: take("mimeType"), extra: fields },
        "resource_link" => ContentBlock::Link { uri: take("uri"), name: take("name"), extra: fields },
        _ => ContentBlock::Resource { resource: fields.shift_remove("resource").unwrap_or_default(), extra: fields },
    }
}

fn stand_in(kind: &str, value: &Value) -> ContentBlock {
    let text = value.to_string();
    let excerpt: String = text.chars().take(EXCERPT).collect();
    let cut = if excerpt.len() < text.len() { format!(" … {} bytes in all", text.len()) } else { String::new() };
    ContentBlock::text(format!("[content of the type `{kind}`, which is not known here: {excerpt}{cut}]"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As read from the text, which must say the same as what is read from a value.
    fn output(result: &Value, era: Era) -> serde_json::Result<ToolOutput> {
        let from_value = CallReply::deserialize(result.clone()).map(|reply| reply.output(era));
        let from_text = serde_json::from_str::<CallReply>(&result.to_string()).map(|reply| reply.output(era));
        assert_eq!(from_text.as_ref().ok(), from_value.as_ref().ok(), "{result}");
        from_text
    }

    #[test]
    fn a_result_passes_untouched() {
        let content = json!([
            {"type": "text", "text": "a", "annotations": {"priority": 0.1}, "_meta": {"k": 1}},
            {"type": "image", "data": "AA==", "mimeType": "image/png", "later": true},
            {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "a:b", "text": "t", "x": 1}, "y": 2},
            {"type": "resource_link", "uri": "a:b", "name": "n", "size": 12.0},
        ]);
        let result = json!({
            "resultType": "complete", "content": content, "structuredContent": {"z": 1, "a": null},
            "isError": true, "_meta": {"m": 0.1}, "later": [1],
        });
        let output = output(&result, Era::Legacy).expect("output");
        assert_eq!(serde_json::to_value(&output.content).expect("json"), content);
        assert_eq!(output.structured, Some(result["structuredContent"].clone()));
        assert!(output.is_error);
        assert_eq!(Value::Object(output.meta), result["_meta"]);
        assert_eq!(output.extras[RESULT_FIELDS], json!({"later": [1]}));
    }

    #[test]
    fn a_structured_null_is_a_value_from_2026_07_28_on() {
        for (era, expect) in [(Era::Legacy, None), (Era::Modern, Some(Value::Null))] {
            let result = json!({"content": [], "structuredContent": null});
            assert_eq!(output(&result, era).expect("output").structured, expect, "{era:?}");
        }
    }

    #[test]
    fn unknown_content_is_named_not_lost() {
        for (block, expect) in [
            (json!({"type": "video", "data": "x"}), "`video`"),
            (json!({"type": "text"}), "`text`"),
            (json!({"text": "no type"}), "`missing`"),
            (json!("bare"), "bare"),
        ] {
            let output = output(&json!({"content": [block]}), Era::Legacy).expect("output");
            let text = output.content[0].as_text().expect("text");
            assert!(text.contains(expect) && text.contains("not known here"), "{text}");
        }
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for result in [json!(null), json!([1]), json!({"content": "text"})] {
            assert!(output(&result, Era::Legacy).is_err(), "{result}");
        }
        assert_eq!(output(&json!({}), Era::Legacy).expect("empty"), ToolOutput::default());
    }
}
