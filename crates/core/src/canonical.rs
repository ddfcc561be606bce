//! Canonical JSON (RFC 8785 key order, no insignificant space) and the hashes made of it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A SHA-256 digest, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of `bytes` as they are.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The hash of `value` in canonical form: equal JSON values have equal hashes, whatever their key order.
    #[must_use]
    pub fn of_value(value: &Value) -> Self {
        let mut hasher = HashSink(Sha256::new());
        write_canonical(value, &mut hasher);
        Self(hasher.0.finalize().into())
    }

    /// The digest as 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.to_string()
    }

    /// The raw digest.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut digest = [0u8; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(serde::de::Error::custom("a content hash is 64 hexadecimal digits"));
        }
        for (index, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).map_err(serde::de::Error::custom)?;
        }
        Ok(Self(digest))
    }
}

/// `value` as canonical JSON text. Numbers are written as `serde_json` writes them.
#[must_use]
pub fn canonical_json(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

trait Sink {
    fn put(&mut self, text: &str);
}

impl Sink for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

struct HashSink(Sha256);

impl Sink for HashSink {
    fn put(&mut self, text: &str) {
        self.0.update(text.as_bytes());
    }
}

fn write_canonical(value: &Value, out: &mut dyn Sink) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            // RFC 8785 sorts by UTF-16 code units, which differs from UTF-8 order beyond U+FFFF.
            entries.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.put("{");
            for (index, (key, item)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.put(",");
                }
                put_string(key, out);
                out.put(":");
                write_canonical(item, out);
            }
            out.put("}");
        }
        Value::Array(items) => {
            out.put("[");
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.put(",");
                }
                write_canonical(item, out);
            }
            out.put("]");
        }
        Value::String(text) => put_string(text, out),
        Value::Null => out.put("null"),
        Value::Bool(true) => out.put("true"),
        Value::Bool(false) => out.put("false"),
        Value::Number(number) => out.put(&number.to_string()),
    }
}

fn put_string(text: &str, out: &mut dyn Sink) {
    out.put(&Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn key_order_does_not_matter() {
        let a = json!({"b": [1, {"y": null, "x": "é\n"}], "a": true});
        let b = json!({"a": true, "b": [1, {"x": "é\n", "y": null}]});
        assert_eq!(canonical_json(&a), r#"{"a":true,"b":[1,{"x":"é\n","y":null}]}"#);
        assert_eq!(ContentHash::of_value(&a), ContentHash::of_value(&b));
        assert_eq!(ContentHash::of_value(&a), ContentHash::of_bytes(canonical_json(&a).as_bytes()));
    }

    #[test]
    fn a_hash_survives_its_text_form() {
        let hash = ContentHash::of_bytes(b"x");
        let text = serde_json::to_string(&hash).expect("text");
        assert_eq!(serde_json::from_str::<ContentHash>(&text).expect("hash"), hash);
        assert!(serde_json::from_str::<ContentHash>("\"zz\"").is_err());
    }
}
