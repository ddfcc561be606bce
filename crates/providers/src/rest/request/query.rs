//! Lists and objects in queries (OpenAPI 3.1, "Style Values" and "Style Examples"), and percent-encoding.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::template::plain_text;

/// All characters except the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same, except reserved characters that are valid in the value of a query's pair.
const ENCODED_BUT_RESERVED: &AsciiSet = &ENCODED
    .remove(b':')
    .remove(b'/')
    .remove(b'?')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b',')
    .remove(b';')
    .remove(b'=');

/// How a list or object is written in a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Style {
    /// `k=a&k=b` exploded, `k=a,b` not.
    #[default]
    #[serde(rename = "form")]
    Form,
    /// `k=a%20b`.
    #[serde(rename = "spaceDelimited", alias = "space_delimited")]
    SpaceDelimited,
    /// `k=a%7Cb`.
    #[serde(rename = "pipeDelimited", alias = "pipe_delimited")]
    PipeDelimited,
    /// `k%5Bx%5D=a`, for objects, including nested objects and lists.
    #[serde(rename = "deepObject", alias = "deep_object")]
    DeepObject,
}

/// The deepest nesting that `deepObject` writes; deeper members are written as JSON.
const MAX_DEPTH: usize = 8;

/// Percent-encodes everything except unreserved characters.
pub(in crate::rest) fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// How RFC 3986's reserved characters in a value are treated (OpenAPI's `allowReserved`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reserved {
    /// They are encoded.
    #[default]
    Encoded,
    /// They are kept, except those that would end the value: `#`, `&` and `+`, and `[` and `]`, which are invalid in a
    /// query.
    Kept,
}

impl Reserved {
    fn encode(self, text: &str) -> String {
        match self {
            Self::Encoded => encode(text),
            Self::Kept => utf8_percent_encode(text, ENCODED_BUT_RESERVED).to_string(),
        }
    }
}

/// Checks the text of an item of a list or object that is written as one text.
///
/// # Errors
/// The item contains a separator, so it would be read as two.
pub(in crate::rest) fn item_text(name: &str, text: String, separators: &[char]) -> Result<String, String> {
    match text.chars().find(|c| separators.contains(c)) {
        Some(found) => Err(format!(
            "an item of `{name}` holds a `{found}`, which separates items there and cannot be written inside of one"
        )),
        None => Ok(text),
    }
}

/// Returns a list without nulls, or an object without null members, because these styles have no null (RFC 6570 section
/// 2.3).
pub(in crate::rest) fn without_nulls(value: &Value) -> Cow<'_, Value> {
    match value {
        Value::Array(items) if items.iter().any(Value::is_null) => {
            Cow::Owned(items.iter().filter(|item| !item.is_null()).cloned().collect())
        }
        Value::Object(members) if members.values().any(Value::is_null) => {
            let present = members.iter().filter(|(_, member)| !member.is_null());
            Cow::Owned(Value::Object(present.map(|(name, member)| (name.clone(), member.clone())).collect()))
        }
        other => Cow::Borrowed(other),
    }
}

/// Appends the pairs of one value to `out`, each an encoded `k=v`. An empty list or object has none.
///
/// # Errors
/// An item contains a separator that encoding does not distinguish.
pub(in crate::rest) fn append_pairs(
    out: &mut Vec<String>,
    key: &str,
    value: &Value,
    style: Style,
    explode: Option<bool>,
    reserved: Reserved,
) -> Result<(), String> {
    let value = &*without_nulls(value);
    let explode = explode.unwrap_or(matches!(style, Style::Form | Style::DeepObject));
    let pair = |key: &str, value: &Value| format!("{}={}", encode(key), reserved.encode(&plain_text(value)));
    // The encoded separator, and the characters that items must not contain.
    let (between, separators): (&str, &[char]) = match style {
        Style::SpaceDelimited => ("%20", &[' ']),
        Style::PipeDelimited => ("%7C", &['|']),
        Style::Form | Style::DeepObject => (",", &[]),
    };
    let item = |text: String| {
        // An unencoded comma would separate items.
        item_text(key, text, separators).map(|text| reserved.encode(&text).replace(',', "%2C"))
    };
    match value {
        Value::Array(_) | Value::Object(_) if style == Style::DeepObject => deep(out, key, value, reserved, 0)?,
        Value::Array(items) if explode => out.extend(items.iter().map(|item| pair(key, item))),
        Value::Array(items) if !items.is_empty() => {
            let items = items.iter().map(|value| item(plain_text(value))).collect::<Result<Vec<_>, _>>()?;
            out.push(format!("{}={}", encode(key), items.join(between)));
        }
        Value::Object(members) if explode => out.extend(members.iter().map(|(name, member)| pair(name, member))),
        Value::Object(members) if !members.is_empty() => {
            let mut items = Vec::with_capacity(2 * members.len());
            for (name, member) in members {
                items.push(encode(&item_text(key, name.clone(), separators)?));
                items.push(item(plain_text(member))?);
            }
            out.push(format!("{}={}", encode(key), items.join(between)));
        }
        Value::Array(_) | Value::Object(_) => {}
        scalar => out.push(pair(key, scalar)),
    }
    Ok(())
}

fn deep(out: &mut Vec<String>, key: &str, value: &Value, reserved: Reserved, depth: usize) -> Result<(), String> {
    match &*without_nulls(value) {
        Value::Object(members) if depth < MAX_DEPTH => {
            for (name, member) in members {
                let name = item_text(key, name.clone(), &['[', ']'])?;
                deep(out, &format!("{key}[{name}]"), member, reserved, depth + 1)?;
            }
        }
        Value::Array(items) if depth < MAX_DEPTH => {
            for (index, item) in items.iter().enumerate() {
                deep(out, &format!("{key}[{index}]"), item, reserved, depth + 1)?;
            }
        }
        leaf => out.push(format!("{}={}", encode(key), reserved.encode(&plain_text(leaf)))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn styles_are_openapis() {
        let check = |value: Value, style: Style, explode: Option<bool>, expect: &str| {
            let mut pairs = Vec::new();
            append_pairs(&mut pairs, "c", &value, style, explode, Reserved::Encoded).expect("written");
            assert_eq!(pairs.join("&"), expect, "{value} {style:?} {explode:?}");
        };
        let list = || json!(["blue", "b k,x"]);
        let object = || json!({"R": 100, "G": "a&b"});
        check(json!("é /?&=+"), Style::Form, None, "c=%C3%A9%20%2F%3F%26%3D%2B");
        check(json!(""), Style::Form, None, "c=");
        check(json!(1.5), Style::Form, None, "c=1.5");
        check(list(), Style::Form, None, "c=blue&c=b%20k%2Cx");
        check(list(), Style::Form, Some(false), "c=blue,b%20k%2Cx");
        check(json!(["blue", "b,x"]), Style::SpaceDelimited, None, "c=blue%20b%2Cx");
        check(list(), Style::PipeDelimited, None, "c=blue%7Cb%20k%2Cx");
        check(list(), Style::PipeDelimited, Some(true), "c=blue&c=b%20k%2Cx");
        check(object(), Style::Form, None, "R=100&G=a%26b");
        check(object(), Style::Form, Some(false), "c=R,100,G,a%26b");
        check(object(), Style::DeepObject, None, "c%5BR%5D=100&c%5BG%5D=a%26b");
        check(json!({"a": {"b": [1]}}), Style::DeepObject, None, "c%5Ba%5D%5Bb%5D%5B0%5D=1");
        check(json!([]), Style::Form, None, "");
        check(json!([null, "x", null]), Style::Form, None, "c=x");
        check(json!([null]), Style::Form, Some(false), "");
        check(json!({"a": null, "b": 1}), Style::Form, None, "b=1");
        check(
            json!({"a": null, "b": {"c": [null, 2], "d": null}}),
            Style::DeepObject,
            None,
            "c%5Bb%5D%5Bc%5D%5B0%5D=2",
        );
        check(json!([[1, 2], {"a": true}]), Style::Form, None, "c=%5B1%2C2%5D&c=%7B%22a%22%3Atrue%7D");
    }

    #[test]
    fn reserved_characters_may_stay() {
        let mut pairs = Vec::new();
        append_pairs(&mut pairs, "a b", &json!("x/y:z?=,;&#+[é "), Style::Form, None, Reserved::Kept).expect("written");
        assert_eq!(pairs, ["a%20b=x/y:z?=,;%26%23%2B%5B%C3%A9%20"]);
    }

    #[test]
    fn items_are_separable_or_refused() {
        let check = |value: Value, style: Style, reserved: Reserved, expect: Option<&str>| {
            let mut pairs = Vec::new();
            let written = append_pairs(&mut pairs, "c", &value, style, Some(style == Style::DeepObject), reserved);
            assert_eq!(written.is_ok().then(|| pairs.join("&")).as_deref(), expect, "{value} {style:?}");
        };
        check(json!(["a b", "c"]), Style::SpaceDelimited, Reserved::Encoded, None);
        check(json!({"a b": "c"}), Style::SpaceDelimited, Reserved::Encoded, None);
        check(json!(["a|b", "c"]), Style::PipeDelimited, Reserved::Encoded, None);
        check(json!(["a b", "c"]), Style::PipeDelimited, Reserved::Encoded, Some("c=a%20b%7Cc"));
        check(json!("a|b"), Style::PipeDelimited, Reserved::Encoded, Some("c=a%7Cb"));
        check(json!(["a,b", "c/d"]), Style::Form, Reserved::Kept, Some("c=a%2Cb,c/d"));
        check(json!({"a]": 1}), Style::DeepObject, Reserved::Encoded, None);
    }
}
