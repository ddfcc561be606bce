//! Canonical JSON (RFC 8785 key order, no insignificant space) and its hashes.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Initial buffer size, in bytes, enough for most values.
const USUAL: usize = 1024;

/// A SHA-256 digest, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of `bytes` as they are.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Hashes the canonical form of `value`: equal JSON values have equal hashes in any key order.
    #[must_use]
    pub fn of_value(value: &Value) -> Self {
        let mut text = Vec::with_capacity(USUAL);
        write_canonical(value, &mut text);
        Self::of_bytes(&text)
    }

    /// Hashes the object with these distinct fields, equal to [`ContentHash::of_value`] of the object.
    #[must_use]
    pub fn of_fields<'v>(fields: impl IntoIterator<Item = (&'v str, &'v Value)>) -> Self {
        let mut text = Vec::with_capacity(USUAL);
        write_object(fields.into_iter(), &mut text);
        Self::of_bytes(&text)
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
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?)
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

/// Formats `value` as canonical JSON text (RFC 8785). Whole numbers beyond 2^53, outside the RFC, are written in full.
#[must_use]
pub fn canonical_json(value: &Value) -> String {
    let mut out = Vec::new();
    write_canonical(value, &mut out);
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => write_object(map.iter().map(|(key, item)| (key.as_str(), item)), out),
        Value::Array(items) => {
            out.extend_from_slice(b"[");
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.extend_from_slice(b",");
                }
                write_canonical(item, out);
            }
            out.extend_from_slice(b"]");
        }
        Value::String(text) => write_string(text, out),
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => out.extend_from_slice(put_float(float).as_bytes()),
            None => out.extend_from_slice(number.to_string().as_bytes()),
        },
    }
}

fn write_object<'v>(fields: impl Iterator<Item = (&'v str, &'v Value)>, out: &mut Vec<u8>) {
    let mut fields: Vec<_> = fields.collect();
    fields.sort_by(|(a, _), (b, _)| in_order(a, b));
    out.extend_from_slice(b"{");
    for (index, (key, item)) in fields.into_iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b",");
        }
        write_string(key, out);
        out.extend_from_slice(b":");
        write_canonical(item, out);
    }
    out.extend_from_slice(b"}");
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(out, text);
}

/// RFC 8785 sorts by UTF-16 code units, which differs from UTF-8 order beyond U+FFFF.
fn in_order(a: &str, b: &str) -> Ordering {
    if a.is_ascii() && b.is_ascii() { a.cmp(b) } else { a.encode_utf16().cmp(b.encode_utf16()) }
}

/// A number as ECMAScript writes it (RFC 8785, section 3.2.2.3): the shortest digits that mean it.
fn put_float(float: f64) -> String {
    // Of two equally short and near digits, ECMAScript takes the even one; so does `serde_json`, but not `{:e}`.
    let shortest = Value::from(float.abs()).to_string();
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let padded = format!("{whole}{fraction}");
    let digits = padded.trim_start_matches('0');
    let length = |text: &str| i32::try_from(text.len()).unwrap_or(i32::MAX);
    let point = exponent.parse::<i32>().unwrap_or(0) + length(whole) - (length(&padded) - length(digits));
    let digits = digits.trim_end_matches('0');
    let count = length(digits);
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    let split = |at: i32| digits.split_at(usize::try_from(at).unwrap_or(0).min(digits.len()));
    let plain = if float == 0.0 {
        return "0".to_owned();
    } else if (count..=21).contains(&point) {
        format!("{digits}{}", zeros(point - count))
    } else if (1..=21).contains(&point) {
        let (whole, rest) = split(point);
        format!("{whole}.{rest}")
    } else if (-5..=0).contains(&point) {
        format!("0.{}{digits}", zeros(-point))
    } else {
        let (first, rest) = split(1);
        let dot = if rest.is_empty() { "" } else { "." };
        format!("{first}{dot}{rest}e{}{}", if point > 0 { "+" } else { "-" }, (point - 1).abs())
    };
    if float.is_sign_negative() { format!("-{plain}") } else { plain }
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
        let fields = a.as_object().expect("object").iter().map(|(key, value)| (key.as_str(), value));
        assert_eq!(ContentHash::of_fields(fields), ContentHash::of_value(&a));
        let long = json!({"a": vec!["x".repeat(999); 9], "b": "y".repeat(9999)});
        assert_eq!(ContentHash::of_value(&long), ContentHash::of_bytes(canonical_json(&long).as_bytes()));
    }

    #[test]
    fn numbers_are_written_as_ecmascript_does() {
        // RFC 8785, appendix B.
        for (bits, text) in [
            (0x0000_0000_0000_0000_u64, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(canonical_json(&json!(f64::from_bits(bits))), text);
        }
        assert_eq!(canonical_json(&json!([1, -1, 1.0, 1.5, u64::MAX])), "[1,-1,1,1.5,18446744073709551615]");
    }

    #[test]
    fn a_hash_survives_its_text_form() {
        let hash = ContentHash::of_bytes(b"x");
        let text = serde_json::to_string(&hash).expect("text");
        assert_eq!(serde_json::from_str::<ContentHash>(&text).expect("hash"), hash);
        assert!(serde_json::from_str::<ContentHash>("\"zz\"").is_err());
    }
}
