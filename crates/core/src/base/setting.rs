//! Scalar settings, as written in a configuration.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration: `250ms`, `30s`, `5m`, `2h`, `1d`, `1w`; a bare number is milliseconds. Zero is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TimeSpan(#[serde(with = "crate::duration::required")] pub Duration);

impl TimeSpan {
    /// A duration of whole seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl JsonSchema for TimeSpan {
    fn schema_name() -> Cow<'static, str> {
        "TimeSpan".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"], "format": "duration", "minimum": 1 })
    }
}

/// How long a result may be reused: a duration as [`TimeSpan`], or `off`, the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheTtl(pub Option<Duration>);

impl Serialize for CacheTtl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(duration) => serializer.serialize_str(&crate::duration::format(duration)),
            None => serializer.serialize_str("off"),
        }
    }
}

impl<'de> Deserialize<'de> for CacheTtl {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum RawCacheTtl {
            Flag(bool),
            Millis(u64),
            Text(String),
        }
        let text = match RawCacheTtl::deserialize(deserializer)? {
            RawCacheTtl::Flag(flag) => flag.to_string(),
            RawCacheTtl::Millis(millis) => millis.to_string(),
            RawCacheTtl::Text(text) => text,
        };
        if is_off(&text) {
            return Ok(Self(None));
        }
        crate::duration::parse(&text).map(|duration| Self(Some(duration))).map_err(serde::de::Error::custom)
    }
}

/// Whether a time to live is `off`, which YAML 1.1 reads as false.
#[must_use]
pub fn is_off(text: &str) -> bool {
    matches!(text, "off" | "false")
}

impl JsonSchema for CacheTtl {
    fn schema_name() -> Cow<'static, str> {
        "CacheTtl".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean"], "x-text": true, "format": "ttl" })
    }
}

/// Text that YAML may parse as a number or boolean; it is kept as written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LiteralText(pub String);

impl JsonSchema for LiteralText {
    fn schema_name() -> Cow<'static, str> {
        "Written".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean"], "x-text": true })
    }
}
