//! Reads events without copying them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use toolwright_core::model::{ModelError, ModelErrorKind, Usage};

use crate::api::Api;

/// A text of an event, borrowed from it if it has no escapes. Any other value counts as an empty text: servers send `null`,
/// and sometimes an object, where the API has a text.
#[derive(Debug, Default)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl<'a> Text<'a> {
    /// A text of the event itself.
    pub(crate) fn borrowed(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// A text that had escapes.
    pub(crate) fn owned(text: &str) -> Self {
        Self(Cow::Owned(text.to_owned()))
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, unless it is empty.
    pub(crate) fn filled(&self) -> Option<&str> {
        Some(self.as_str()).filter(|text| !text.is_empty())
    }

    /// The text as one that outlives the event.
    pub(crate) fn into_string(self) -> String {
        self.0.into_owned()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text::borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text::owned(text))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Text::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text::default())
    }
}

/// A number or boolean of an event, also if a server wrote it as a text. Any other value counts as none.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let written = <&RawValue>::deserialize(deserializer)?.get();
    Ok(serde_json::from_str(written.trim_matches('"')).ok())
}

/// Parses the JSON of an event or answer.
pub(crate) fn parse<'a, T: Deserialize<'a>>(api: Api, data: &'a [u8]) -> Result<T, ModelError> {
    serde_json::from_slice(data).map_err(|error| {
        let start = String::from_utf8_lossy(&data[..data.len().min(120)]).into_owned();
        let message = format!("the answer holds something that is no {api} event ({error}): {start}");
        ModelError { source: Some(Box::new(error)), ..ModelError::new(ModelErrorKind::BadResponse, message) }
    })
}

/// Parses a part of an event that was set aside unread.
pub(crate) fn parse_part<'a, T: Deserialize<'a>>(api: Api, part: &'a RawValue) -> Result<T, ModelError> {
    parse(api, part.get().as_bytes())
}

/// A part of an event as a value.
pub(crate) fn value(part: &RawValue) -> Value {
    serde_json::from_str(part.get()).unwrap_or_default()
}

/// Arguments as they were written: JSON text, or the JSON itself from servers that do not wrap it.
pub(crate) fn arguments(part: &RawValue) -> Cow<'_, str> {
    let written = part.get();
    match written.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<Text<'_>>(written).unwrap_or_default().0,
        _ if written == "null" => Cow::Borrowed(""),
        _ => Cow::Borrowed(written),
    }
}

/// The number at `pointer`, zero where there is none.
pub(crate) fn count(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Where OpenAI's two APIs have their usage figures, as JSON Pointers.
pub(crate) struct UsagePointers {
    pub(crate) prompt: &'static str,
    pub(crate) cached: &'static str,
    pub(crate) cache_written: &'static str,
    pub(crate) answer: &'static str,
    pub(crate) reasoning: &'static str,
    pub(crate) all: &'static str,
}

impl UsagePointers {
    /// What `usage` says of a request.
    pub(crate) fn read(&self, usage: &Value) -> Usage {
        Usage {
            input_tokens: count(usage, self.prompt),
            output_tokens: self.answer_tokens(usage),
            cached_tokens: count(usage, self.cached),
            cache_written_tokens: count(usage, self.cache_written),
        }
    }

    /// The tokens of the response including its reasoning, as OpenAI counts them. Two servers count the reasoning apart, so
    /// that the total is larger: xAI, which reports how much it is, and Google's endpoint of this API, which reports only the
    /// three figures.
    fn answer_tokens(&self, usage: &Value) -> u64 {
        let [prompt, answer, all] = [self.prompt, self.answer, self.all].map(|place| count(usage, place));
        let beside = all.saturating_sub(prompt).saturating_sub(answer);
        let is_reasoning = match usage.pointer(self.reasoning).and_then(Value::as_u64) {
            Some(reasoning) => beside == reasoning,
            None => usage.pointer(self.cached).is_none(),
        };
        if is_reasoning { answer.saturating_add(beside) } else { answer }
    }
}
