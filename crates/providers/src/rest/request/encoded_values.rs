//! Values in paths, headers and cookies (OpenAPI 3.1, "Style Values").

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::Value;

use super::query::{encode, item_text, without_nulls};
use super::template::plain_text;

/// Characters that are invalid in a cookie's value (RFC 6265 section 4.1.1), and `%`, so that encoding is reversible.
const NOT_IN_COOKIES: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b',').add(b';').add(b'\\').add(b'%');

/// How a value is written in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PathStyle {
    /// `a,b`; objects `k,v` or exploded `k=v`.
    #[default]
    Simple,
    /// `.a,b`, exploded `.a.b` and `.k=v`.
    Label,
    /// `;name=a,b`, exploded `;name=a;name=b` and `;k=v`.
    Matrix,
}

/// Whether the items of a list or object are separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Explode {
    /// They are separate.
    Yes,
    /// They are in one value.
    #[default]
    No,
}

/// How the values of cookies are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CookieStyle {
    /// Percent-encoded where necessary.
    #[default]
    Form,
    /// Unchanged (OpenAPI 3.2, "Style Values"): the caller has encoded them.
    Plain,
}

/// How a value is written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ValueEncoding {
    /// By style: scalars unchanged.
    #[default]
    Styled,
    /// As JSON (OpenAPI's `content`).
    Json,
}

/// Returns a value in a path. All separators in it are encoded, so that it stays within its segment. An empty list or
/// object gives an empty text.
///
/// # Errors
/// A text contains a dot, which cannot be encoded, in a style with dots as separators.
pub(in crate::rest) fn path_text(
    name: &str,
    value: &Value,
    style: PathStyle,
    explode: Explode,
    writing: ValueEncoding,
) -> Result<Option<String>, String> {
    let value = match writing {
        ValueEncoding::Styled => without_nulls(value),
        ValueEncoding::Json => Cow::Owned(Value::String(value.to_string())),
    };
    let value = &*value;
    let is_exploded = explode == Explode::Yes && (value.is_array() || value.is_object());
    match value {
        Value::Array(items) if items.is_empty() => return Ok(None),
        Value::Object(members) if members.is_empty() => return Ok(None),
        Value::Array(items) if is_exploded && style == PathStyle::Label => {
            items.iter().try_for_each(|item| item_text(name, plain_text(item), &['.']).map(drop))?;
        }
        Value::Object(members) if is_exploded && style == PathStyle::Label => {
            for (key, member) in members {
                item_text(name, key.clone(), &['.'])?;
                item_text(name, plain_text(member), &['.'])?;
            }
        }
        _ => {}
    }
    let name = encode(name);
    let text = |value: &Value| encode(&plain_text(value));
    let pair = |(key, value): (&String, &Value)| format!("{}={}", encode(key), text(value));
    let flat = || match value {
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(members) => {
            members.iter().flat_map(|(key, value)| [encode(key), text(value)]).collect::<Vec<_>>().join(",")
        }
        scalar => text(scalar),
    };
    let apart = |before: &str, between: &str| match value {
        Value::Array(items) if style == PathStyle::Matrix => {
            items.iter().map(|item| format!(";{name}={}", text(item))).collect::<String>()
        }
        Value::Array(items) => format!("{before}{}", items.iter().map(text).collect::<Vec<_>>().join(between)),
        Value::Object(members) => {
            format!("{before}{}", members.iter().map(pair).collect::<Vec<_>>().join(between))
        }
        _ => String::new(),
    };
    Ok(Some(match style {
        PathStyle::Simple if is_exploded => apart("", ","),
        PathStyle::Simple => flat(),
        PathStyle::Label if is_exploded => apart(".", "."),
        PathStyle::Label => format!(".{}", flat()),
        PathStyle::Matrix if is_exploded => apart(";", ";"),
        PathStyle::Matrix => format!(";{name}={}", flat()),
    }))
}

/// Returns a value in a header, in the style `simple`; an empty list or object gives an empty text. Headers have no
/// encoding.
///
/// # Errors
/// A text contains the separator.
pub(in crate::rest) fn header_text(
    name: &str,
    value: &Value,
    explode: Explode,
    writing: ValueEncoding,
) -> Result<Option<String>, String> {
    if writing == ValueEncoding::Json {
        return Ok(Some(value.to_string()));
    }
    let value = &*without_nulls(value);
    let item = |text: String| item_text(name, text, &[',']);
    let parts = match value {
        Value::Array(items) => items.iter().map(|value| item(plain_text(value))).collect::<Result<Vec<_>, _>>()?,
        Value::Object(members) => {
            let mut parts = Vec::with_capacity(members.len());
            for (key, member) in members {
                let member = item(plain_text(member))?;
                match explode {
                    Explode::Yes => {
                        let key = item_text(name, key.clone(), &[',', '='])?;
                        parts.push(format!("{key}={member}"));
                    }
                    Explode::No => parts.extend([item(key.clone())?, member]),
                }
            }
            parts
        }
        scalar => return Ok(Some(plain_text(scalar))),
    };
    Ok((!parts.is_empty()).then(|| parts.join(",")))
}

/// Appends the cookies of one value, each `name=value`; an empty list or object has none.
///
/// # Errors
/// A text is invalid in a cookie and must not be encoded.
pub(in crate::rest) fn append_cookies(
    out: &mut Vec<String>,
    (name, value): (&str, &Value),
    style: CookieStyle,
    explode: Explode,
    writing: ValueEncoding,
) -> Result<(), String> {
    let text = |text: &str| match style {
        CookieStyle::Form => Ok(utf8_percent_encode(text, NOT_IN_COOKIES).to_string()),
        CookieStyle::Plain if text.contains(is_not_cookie_octet) => Err(format!(
            "the value of the cookie `{name}` holds a space, a control character or one of `\",;\\`; write them percent-encoded"
        )),
        CookieStyle::Plain => Ok(text.to_owned()),
    };
    let cookie = |name: &str, value: &Value| {
        let (name, value) = (text(name)?, text(&plain_text(value))?);
        Ok::<_, String>(format!("{name}={value}"))
    };
    let joined = |parts: Vec<Result<String, String>>| {
        let parts = parts.into_iter().collect::<Result<Vec<_>, String>>()?;
        Ok::<_, String>(format!("{}={}", text(name)?, parts.join(",")))
    };
    let written = if writing == ValueEncoding::Json { Cow::Borrowed(value) } else { without_nulls(value) };
    match &*written {
        _ if writing == ValueEncoding::Json => out.push(cookie(name, &value.to_string().into())?),
        Value::Array(items) if items.is_empty() => {}
        Value::Object(members) if members.is_empty() => {}
        Value::Array(items) if explode == Explode::Yes => {
            for item in items {
                out.push(cookie(name, item)?);
            }
        }
        Value::Object(members) if explode == Explode::Yes => {
            for (key, value) in members {
                out.push(cookie(key, value)?);
            }
        }
        Value::Array(items) => out.push(joined(items.iter().map(|item| text(&plain_text(item))).collect())?),
        Value::Object(members) => {
            let pairs = members.iter().flat_map(|(key, value)| [text(key), text(&plain_text(value))]);
            out.push(joined(pairs.collect())?);
        }
        scalar => out.push(cookie(name, scalar)?),
    }
    Ok(())
}

/// Returns whether a character is invalid by RFC 6265 section 4.1.1. Non-ASCII characters are allowed, because servers
/// accept them.
fn is_not_cookie_octet(c: char) -> bool {
    c.is_ascii_control() || matches!(c, ' ' | '"' | ',' | ';' | '\\')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Checks the table of OpenAPI 3.1, "Style Examples".
    #[test]
    fn styles_are_openapis() {
        let list = || json!(["blue", "black"]);
        let object = || json!({"R": 100, "G": "a/b"});
        let path = |value: Value, style: PathStyle, explode: Explode, expect: &str| {
            let written = path_text("color", &value, style, explode, ValueEncoding::Styled).expect("written");
            assert_eq!(written.as_deref(), Some(expect), "{value} {style:?}");
        };
        path(json!("bl/ue"), PathStyle::Simple, Explode::No, "bl%2Fue");
        path(list(), PathStyle::Simple, Explode::Yes, "blue,black");
        path(object(), PathStyle::Simple, Explode::No, "R,100,G,a%2Fb");
        path(object(), PathStyle::Simple, Explode::Yes, "R=100,G=a%2Fb");
        path(json!("blue"), PathStyle::Label, Explode::No, ".blue");
        path(list(), PathStyle::Label, Explode::No, ".blue,black");
        path(list(), PathStyle::Label, Explode::Yes, ".blue.black");
        path(object(), PathStyle::Label, Explode::Yes, ".R=100.G=a%2Fb");
        path(json!("blue"), PathStyle::Matrix, Explode::Yes, ";color=blue");
        path(list(), PathStyle::Matrix, Explode::No, ";color=blue,black");
        path(list(), PathStyle::Matrix, Explode::Yes, ";color=blue;color=black");
        path(object(), PathStyle::Matrix, Explode::No, ";color=R,100,G,a%2Fb");
        path(object(), PathStyle::Matrix, Explode::Yes, ";R=100;G=a%2Fb");
        assert_eq!(
            path_text("c", &json!([1]), PathStyle::Simple, Explode::No, ValueEncoding::Json),
            Ok(Some("%5B1%5D".to_owned())),
            "content is JSON"
        );

        let header = |value: Value, explode: Explode, writing: ValueEncoding, expect: &str| {
            assert_eq!(header_text("h", &value, explode, writing), Ok(Some(expect.to_owned())));
        };
        header(list(), Explode::No, ValueEncoding::Styled, "blue,black");
        header(object(), Explode::No, ValueEncoding::Styled, "R,100,G,a/b");
        header(object(), Explode::Yes, ValueEncoding::Styled, "R=100,G=a/b");
        header(object(), Explode::No, ValueEncoding::Json, r#"{"R":100,"G":"a/b"}"#);

        let cookies = |value: Value, explode: Explode, expect: &[&str]| {
            let mut out = Vec::new();
            append_cookies(&mut out, ("c", &value), CookieStyle::Form, explode, ValueEncoding::Styled)
                .expect("written");
            assert_eq!(out, expect);
        };
        let plain = |value: Value, explode: Explode, expect: Option<&[&str]>| {
            let mut out = Vec::new();
            let written = append_cookies(&mut out, ("c", &value), CookieStyle::Plain, explode, ValueEncoding::Styled);
            assert_eq!(
                written.is_ok().then_some(out),
                expect.map(|all| all.iter().map(|&one| one.to_owned()).collect())
            );
        };
        plain(json!("a%20b"), Explode::Yes, Some(&["c=a%20b"]));
        plain(list(), Explode::Yes, Some(&["c=blue", "c=black"]));
        plain(object(), Explode::No, Some(&["c=R,100,G,a/b"]));
        plain(json!("a b"), Explode::Yes, None);
        plain(json!(["a", "b; admin=1"]), Explode::Yes, None);
        cookies(json!("a; b=1,%"), Explode::No, &["c=a%3B%20b=1%2C%25"]);
        cookies(list(), Explode::No, &["c=blue,black"]);
        cookies(list(), Explode::Yes, &["c=blue", "c=black"]);
        cookies(object(), Explode::Yes, &["R=100", "G=a/b"]);
        cookies(object(), Explode::No, &["c=R,100,G,a/b"]);
    }

    #[test]
    fn items_containing_the_separator_are_refused() {
        let header = |value: Value, explode: Explode, is_written: bool| {
            let written = header_text("X", &value, explode, ValueEncoding::Styled);
            assert_eq!(written.is_ok(), is_written, "{value}");
        };
        header(json!(["a", "b,c"]), Explode::No, false);
        header(json!(["a=b", "c d"]), Explode::No, true);
        header(json!("a,b"), Explode::No, true);
        header(json!({"a": "b,c"}), Explode::Yes, false);
        header(json!({"a,b": "c"}), Explode::No, false);
        header(json!({"a=b": "c"}), Explode::Yes, false);
        header(json!({"a=b": "c=d"}), Explode::No, true);
        let label = |value: Value, explode: Explode, is_written: bool| {
            let written = path_text("l", &value, PathStyle::Label, explode, ValueEncoding::Styled);
            assert_eq!(written.is_ok(), is_written, "{value}");
        };
        label(json!(["a.b", "c"]), Explode::Yes, false);
        label(json!([1.5]), Explode::Yes, false);
        label(json!({"k": "a.b"}), Explode::Yes, false);
        label(json!({"k.l": 1}), Explode::Yes, false);
        label(json!(["a.b", "c"]), Explode::No, true);
        label(json!("a.b"), Explode::Yes, true);
    }

    #[test]
    fn empty_lists_are_left_out_everywhere() {
        for value in [json!([]), json!({}), json!([null]), json!({"k": null})] {
            assert_eq!(header_text("h", &value, Explode::No, ValueEncoding::Styled), Ok(None));
            for style in [PathStyle::Simple, PathStyle::Label, PathStyle::Matrix] {
                assert_eq!(path_text("p", &value, style, Explode::No, ValueEncoding::Styled), Ok(None));
            }
            for explode in [Explode::Yes, Explode::No] {
                let mut out = Vec::new();
                append_cookies(&mut out, ("c", &value), CookieStyle::Form, explode, ValueEncoding::Styled)
                    .expect("written");
                assert!(out.is_empty(), "{out:?}");
            }
        }
    }
}
