//! The members of an answer, read one by one: what is wrong is said by a member's name, because the parser's words may
//! quote the answer, and the answer may hold a secret.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::OAuthError;

/// A JSON object that an endpoint answered with.
pub(crate) struct Members {
    what: &'static str,
    all: Map<String, Value>,
}

impl Members {
    /// Reads the body of the answer to the request `what`.
    ///
    /// # Errors
    /// [`OAuthError::Answer`].
    pub(crate) fn read(what: &'static str, body: &[u8]) -> Result<Self, OAuthError> {
        match serde_json::from_slice(body) {
            Ok(all) => Ok(Self { what, all }),
            Err(_) => Err(OAuthError::Answer { what, reason: "it is not a JSON object".to_owned() }),
        }
    }

    /// A member that must be there.
    ///
    /// # Errors
    /// [`OAuthError::Answer`].
    pub(crate) fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, OAuthError> {
        let what = self.what;
        self.optional(name)?.ok_or_else(|| OAuthError::Answer { what, reason: format!("it has no `{name}`") })
    }

    /// A member that may be left out, or be null.
    ///
    /// # Errors
    /// [`OAuthError::Answer`].
    pub(crate) fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, OAuthError> {
        let Some(value) = self.all.remove(name) else { return Ok(None) };
        let kind = kind(&value);
        serde_json::from_value(value)
            .map_err(|_| OAuthError::Answer { what: self.what, reason: format!("its `{name}` cannot be {kind}") })
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "this number",
        Value::String(_) => "this text",
        Value::Array(_) => "this list",
        Value::Object(_) => "an object",
    }
}

/// Scopes: words of one text, or a list of texts, which some servers write.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Scopes {
    Text(String),
    List(Vec<String>),
}

impl Scopes {
    /// Each by itself.
    pub(crate) fn words(&self) -> Vec<String> {
        let texts = match self {
            Self::Text(text) => std::slice::from_ref(text),
            Self::List(texts) => texts,
        };
        texts.iter().flat_map(|text| text.split_ascii_whitespace()).map(str::to_owned).collect()
    }
}

/// Seconds, which servers write as a number, also with a fraction, or as a text of one; `None` for anything else, and
/// for less than none.
pub(crate) fn seconds(value: &Value) -> Option<u64> {
    let text = value.as_str().map(str::trim);
    if let Some(whole) = value.as_u64().or_else(|| text?.parse().ok()) {
        return Some(whole);
    }
    let fraction: f64 = value.as_f64().or_else(|| text?.parse().ok())?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is cut, and not below zero")]
    (fraction.is_finite() && fraction >= 0.0).then_some(fraction as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn seconds_are_read_however_they_are_written() {
        for (value, expect) in [
            (json!(3600), Some(3600)),
            (json!(3600.0), Some(3600)),
            (json!(3600.9), Some(3600)),
            (json!("3600"), Some(3600)),
            (json!(" 3600.5 "), Some(3600)),
            (json!(1e300), Some(u64::MAX)),
            (json!(0), Some(0)),
            (json!(-1), None),
            (json!("-1.5"), None),
            (json!("NaN"), None),
            (json!("inf"), None),
            (json!("soon"), None),
            (json!([]), None),
        ] {
            assert_eq!(seconds(&value), expect, "{value}");
        }
    }
}
