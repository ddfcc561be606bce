//! Parses the answer to a request directly from its text. Members are passed on unchanged, and interpreted
//! only where needed.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeOwned, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use toolwright_core::content::ContentBlock;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::passthrough::RESULT_FIELDS;

use crate::protocol::revision::Era;

/// Longest piece of an unknown block that is shown, in characters.
const EXCERPT: usize = 500;

/// A result, or the server's request for input, or a task in its place.
pub(crate) trait Reply: DeserializeOwned + Send {
    /// Returns a member that says which of these it is and how to continue.
    fn field(&self, name: &str) -> Option<&Value>;
    /// Whether it has a result's content.
    fn has_content(&self) -> bool;
    /// Returns all members that [`Reply::field`] knows.
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
pub(crate) struct CallReply {
    content: Content,
    structured: Option<Value>,
    is_error: bool,
    meta: Map<String, Value>,
    others: Map<String, Value>,
}

/// The content member of a result.
#[derive(Debug, Default)]
enum Content {
    #[default]
    Missing,
    Null,
    Blocks(Vec<ContentBlock>),
    NoList,
}

impl CallReply {
    /// Converts it to the output of a tool, for a server of `era`.
    ///
    /// # Errors
    /// Why it is not a result.
    pub(crate) fn output(mut self, era: Era) -> Result<ToolOutput, &'static str> {
        let content = match self.content {
            Content::Missing | Content::Null => Vec::new(),
            Content::Blocks(blocks) => blocks,
            Content::NoList => return Err("the content of its result is not a list"),
        };
        // It is complete here.
        self.others.shift_remove("resultType");
        // It is an object up to 2025-11-25: some serialisers write null for an absent one.
        let structured = self.structured.filter(|value| era == Era::Modern || !value.is_null());
        let mut extras = Map::new();
        if !self.others.is_empty() {
            extras.insert(RESULT_FIELDS.to_owned(), Value::Object(self.others));
        }
        Ok(ToolOutput {
            content,
            structured,
            is_error: self.is_error,
            meta: self.meta,
            extras,
            ..ToolOutput::default()
        })
    }
}

impl Reply for CallReply {
    fn field(&self, name: &str) -> Option<&Value> {
        self.others.get(name)
    }

    fn has_content(&self) -> bool {
        !matches!(self.content, Content::Missing)
    }

    fn into_value(self) -> Value {
        Value::Object(self.others)
    }
}

/// A type that is read from JSON of any type.
trait FromAnyJson<'de>: Sized {
    /// From a scalar.
    fn from_scalar<E: Error>(value: Value) -> Result<Self, E>;
    /// From a list.
    fn from_list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error>;
    /// From an object.
    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error>;
}

/// Visitor for any JSON type. Its own errors do not quote the server, whose texts may be long.
struct AnyJsonVisitor<T>(PhantomData<T>);

impl<'de, T: FromAnyJson<'de>> Visitor<'de> for AnyJsonVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::from_object(fields)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<T, A::Error> {
        T::from_list(items)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::from_scalar(text.into())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        T::from_scalar(value.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        T::from_scalar(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        T::from_scalar(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        T::from_scalar(number.into())
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        T::from_scalar(Value::Null)
    }
}

/// A `T`, read from JSON of any type.
struct Lenient<T>(T);

impl<'de, T: FromAnyJson<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyJsonVisitor(PhantomData)).map(Self)
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
        Lenient::deserialize(deserializer).map(|Lenient(reply)| reply)
    }
}

impl<'de> FromAnyJson<'de> for CallReply {
    fn from_scalar<E: Error>(_: Value) -> Result<Self, E> {
        Err(E::custom("an answer to tools/call is an object"))
    }

    fn from_list<A: SeqAccess<'de>>(_: A) -> Result<Self, A::Error> {
        Self::from_scalar(Value::Null)
    }

    fn from_object<A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        let mut reply = Self::default();
        while let Some(field) = fields.next_key()? {
            match field {
                Field::Content => Lenient(reply.content) = fields.next_value()?,
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

impl<'de> FromAnyJson<'de> for Content {
    fn from_scalar<E: Error>(value: Value) -> Result<Self, E> {
        Ok(if value.is_null() { Self::Null } else { Self::NoList })
    }

    fn from_list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        let mut blocks = Vec::new();
        while let Some(Lenient(block)) = items.next_element()? {
            blocks.push(block);
        }
        Ok(Self::Blocks(blocks))
    }

    fn from_object<A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::NoList)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum BlockField {
    Type,
    Text,
    Other(String),
}

impl<'de> FromAnyJson<'de> for ContentBlock {
    fn from_scalar<E: Error>(value: Value) -> Result<Self, E> {
        Ok(block(value))
    }

    fn from_list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(items)).map(block)
    }

    /// Most blocks are texts that say so first: theirs need no map.
    fn from_object<A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        let (mut is_text, mut text, mut others) = (false, None, Map::new());
        while let Some(field) = fields.next_key()? {
            let (name, value) = match (field, fields.next_value()?) {
                (BlockField::Type, Value::String(kind)) if kind == "text" && !is_text && others.is_empty() => {
                    is_text = true;
                    continue;
                }
                (BlockField::Text, value) if is_text && (text.is_some() || others.is_empty()) => {
                    text = Some(value);
                    continue;
                }
                (BlockField::Type, value) => ("type".to_owned(), value),
                (BlockField::Text, value) => ("text".to_owned(), value),
                (BlockField::Other(name), value) => (name, value),
            };
            others.insert(name, value);
        }
        Ok(match text {
            Some(Value::String(text)) if !others.contains_key("type") => ContentBlock::Text { text, extra: others },
            text => {
                let first = is_text.then(|| ("type".to_owned(), "text".into()));
                let text = text.map(|text| ("text".to_owned(), text));
                block(Value::Object(first.into_iter().chain(text).chain(others).collect()))
            }
        })
    }
}

/// Converts a content block; an unknown or incomplete one becomes a text that says so.
pub(crate) fn block(value: Value) -> ContentBlock {
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
        other => return placeholder(&kind, &other),
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

fn placeholder(kind: &str, value: &Value) -> ContentBlock {
    let text = value.to_string();
    let excerpt: String = text.chars().take(EXCERPT).collect();
    let cut = if excerpt.len() < text.len() { format!(" … {} bytes in all", text.len()) } else { String::new() };
    ContentBlock::text(format!("[content of the type `{kind}`, which is not known here: {excerpt}{cut}]"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads it from text, which must give the same result as from a value.
    fn output(result: &Value, era: Era) -> Result<ToolOutput, String> {
        let read = |reply: serde_json::Result<CallReply>| Ok(reply.map_err(|error| error.to_string())?.output(era)?);
        let from_text: Result<_, String> = read(serde_json::from_str(&result.to_string()));
        let from_value: Result<_, String> = read(CallReply::deserialize(result.clone()));
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
    fn structured_null_is_a_value_since_2026() {
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
            (json!({"type": "text", "text": 1, "more": 2}), r#"{"type":"text","text":1,"more":2}"#),
            (json!({"type": "text", "more": 2, "text": 1}), r#"{"type":"text","more":2,"text":1}"#),
            (json!({"type": "video", "text": "A cat", "data": "x"}), r#"{"type":"video","text":"A cat","data":"x"}"#),
            (json!({"data": "x", "type": "image"}), r#"{"data":"x","type":"image"}"#),
            (json!([1, {"a": null}]), r#"[1,{"a":null}]"#),
            (json!(-1.5), "-1.5"),
            (json!("bare"), "bare"),
        ] {
            let output = output(&json!({"content": [block]}), Era::Legacy).expect("output");
            let text = output.content[0].as_text().expect("text");
            assert!(text.contains(expect) && text.contains("not known here"), "{text}");
        }
    }

    #[test]
    fn malformed_results_are_refused_without_quoting_them() {
        let long = "word ".repeat(1000);
        for result in [json!(null), json!([1]), json!(long), json!({"content": long}), json!({"content": {"a": [1]}})] {
            let refused = output(&result, Era::Legacy).expect_err("no result");
            assert!(refused.len() < 100, "{refused}");
        }
        assert_eq!(output(&json!({}), Era::Legacy).expect("empty"), ToolOutput::default());
    }

    #[test]
    fn content_type_may_come_in_any_order() {
        for block in [
            r#"{"type": "text", "text": "a", "z": 1, "b": 2}"#,
            r#"{"text": "a", "type": "text", "z": 1, "b": 2}"#,
            r#"{"z": 1, "b": 2, "text": "a", "type": "text"}"#,
            r#"{"type": "text", "z": 1, "text": "a", "b": 2}"#,
            r#"{"type": "image", "z": 1, "b": 2, "text": "a", "type": "text"}"#,
            r#"{"type": "text", "text": "no", "z": 1, "b": 2, "text": "a", "type": "text"}"#,
        ] {
            let Lenient::<ContentBlock>(read) = serde_json::from_str(block).expect("a block");
            let expect = r#"{"type":"text","text":"a","z":1,"b":2}"#;
            assert_eq!(serde_json::to_string(&read).expect("JSON"), expect, "{block}");
        }
        let changed = r#"{"type": "text", "text": "a", "type": "audio", "data": "AA==", "mimeType": "audio/wav"}"#;
        let Lenient::<ContentBlock>(changed) = serde_json::from_str(changed).expect("a block");
        assert!(matches!(&changed, ContentBlock::Audio { extra, .. } if extra["text"] == "a"), "{changed:?}");
    }

    #[test]
    fn input_requests_are_read_beside_any_content() {
        let wants = json!({"resultType": "input_required", "content": "", "inputRequests": {"k": {}}});
        let reply = CallReply::deserialize(&wants).expect("a reply");
        assert_eq!(reply.field("resultType"), Some(&json!("input_required")));
        assert_eq!(reply.into_value()["inputRequests"], wants["inputRequests"]);
        for (content, expect) in [(json!({}), false), (json!({"content": null}), true), (json!({"content": []}), true)]
        {
            assert_eq!(CallReply::deserialize(&content).expect("a reply").has_content(), expect, "{content}");
            assert_eq!(content.has_content(), expect, "{content}");
        }
    }
}
