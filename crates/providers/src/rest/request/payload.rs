//! A request body that is one argument, written by its media type: JSON, forms, files and texts.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use http::header::{CONTENT_DISPOSITION, HeaderName};
use serde_json::{Map, Value};

use super::body::RenderedBody;
use super::body::{self, EncodedPart, boundary, joined, quoted};
use super::encoded_values::Explode;
use super::query::{Reserved, Style, append_pairs, item_text};
use super::template::{Parameter, plain_text};
use super::xml::XmlBody;

/// A body that is a single argument.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    pub(crate) parameter: Parameter,
    /// Its media type; for a multipart body the boundary is added.
    pub(crate) content_type: HeaderValue,
    pub(crate) kind: PayloadKind,
}

/// The format of a body.
#[derive(Debug, Clone)]
pub(crate) enum PayloadKind {
    /// JSON.
    Json,
    /// Text; a value that is not a string is written as JSON.
    Text,
    /// Bytes, see [`file_of`].
    Bytes(Kinds),
    /// Form pairs; members that are not listed are [`FieldWriting::Plain`].
    Form(Vec<(String, FieldWriting)>),
    /// Parts of a multipart body.
    Multipart(PartList),
    /// XML.
    Xml(XmlBody),
}

/// The allowed media types of a body's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// The body's own.
    Own,
    /// A type of a range: the file's, else the body's own.
    Any(String),
    /// A type of a range, which the file must name.
    Declared(String),
}

/// The parts of a multipart body.
#[derive(Debug, Clone)]
pub(crate) enum PartList {
    /// The members of an object: the listed ones in this order, and how all others are written.
    Named(Vec<(String, PartWriting)>, PartWriting),
    /// The items of a list: the first ones, and all others.
    Items(Vec<PartWriting>, PartWriting),
}

/// The format of a form's member.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FieldWriting {
    /// In a style of queries.
    Styled { style: Style, explode: Option<bool>, reserved: Reserved },
    /// As JSON.
    Json,
    /// Scalars unchanged, lists as repeated pairs, objects as JSON.
    Plain,
}

/// The format of a multipart body's member.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct PartWriting {
    /// Headers with fixed values.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// The part's media type. Default: `text/plain` for scalars, `application/json` for objects.
    pub(crate) content_type: Option<String>,
    /// Its kind of content, see [`file_of`].
    pub(crate) content: PartContent,
}

/// The content of a part.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum PartContent {
    /// A value.
    #[default]
    Value,
    /// A file.
    File,
    /// A file if it is an object with `base64`, else a value.
    FileOrValue,
    /// A value in a style of queries, whose pairs are parts.
    Styled(Style, Explode),
    /// A value as XML.
    Xml(XmlBody),
}

/// Adds the charset to a text's media type, unless it names one.
fn with_charset(content_type: &HeaderValue) -> Option<HeaderValue> {
    let stated = content_type.to_str().ok()?;
    let is_plain = stated.starts_with("text/") && !stated.to_ascii_lowercase().contains("charset=");
    is_plain.then(|| HeaderValue::from_str(&format!("{stated}; charset=utf-8")).ok())?
}

impl Payload {
    /// Renders the body for these arguments; `None` if the argument is absent.
    ///
    /// # Errors
    /// A message for the caller.
    pub(in crate::rest) fn render(&self, arguments: &Value) -> Result<Option<RenderedBody>, String> {
        // A null is a valid JSON body, but no body of another type.
        let value = match (&self.kind, self.parameter.given(arguments)) {
            (PayloadKind::Json, Some(Value::Null)) => Some(&Value::Null),
            _ => self.parameter.value(arguments)?,
        };
        let Some(value) = value else { return Ok(None) };
        let mut content_type = self.content_type.clone();
        let bytes = match &self.kind {
            PayloadKind::Json => value.to_string().into(),
            PayloadKind::Text => {
                let text = plain_text(value);
                if let Some(said) = with_charset(&content_type).filter(|_| !text.is_ascii()) {
                    content_type = said;
                }
                text.into()
            }
            PayloadKind::Bytes(kinds) => {
                let file = file_of(value)?;
                if let Some(said) = kinds.declared_type(file.content_type)? {
                    content_type = said;
                }
                file.bytes.into_owned().into()
            }
            PayloadKind::Form(fields) => form(members(value, &self.parameter)?, fields)?.into(),
            PayloadKind::Multipart(parts) => {
                let written = self.parts(value, parts)?;
                let boundary = boundary(&written);
                let stated = self.content_type.to_str().unwrap_or("multipart/form-data");
                content_type = HeaderValue::from_str(&body::content_type(stated, &boundary, &written))
                    .map_err(|_| "the body's media type is malformed".to_owned())?;
                joined(&written, &boundary)
            }
            PayloadKind::Xml(xml) => xml.render(value)?.into(),
        };
        Ok(Some(RenderedBody { bytes, content_type }))
    }

    /// Returns the parts, in order.
    fn parts(&self, value: &Value, parts: &PartList) -> Result<Vec<EncodedPart>, String> {
        let mut written = Vec::new();
        match parts {
            PartList::Named(parts, rest) => {
                let members = members(value, &self.parameter)?;
                let listed = parts.iter().filter_map(|(name, part)| Some((name, members.get(name)?, part)));
                let is_listed = |name: &String| parts.iter().any(|(listed, _)| listed == name);
                let others = members.iter().filter(|(name, _)| !is_listed(name));
                let others = others.map(|(name, value)| (name, value, rest));
                for (name, value, part) in listed.chain(others).filter(|(_, value, _)| !value.is_null()) {
                    part.member(name, value, &mut written)?;
                }
            }
            PartList::Items(first, rest) => {
                let path = &self.parameter.path;
                let items = value.as_array().ok_or_else(|| {
                    format!("the parameter `{path}` is sent as a list of parts, so it must be an array")
                })?;
                for (at, item) in items.iter().enumerate() {
                    written.push(first.get(at).unwrap_or(rest).render(None, item)?);
                }
            }
        }
        Ok(written)
    }
}

/// Returns the pairs of a form.
///
/// # Errors
/// As [`append_pairs`].
fn form(members: &Map<String, Value>, fields: &[(String, FieldWriting)]) -> Result<String, String> {
    let mut pairs = Vec::new();
    for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        let field = fields.iter().find(|(field, _)| field == name).map_or(&FieldWriting::Plain, |(_, field)| field);
        match field {
            FieldWriting::Styled { style, explode, reserved } => {
                append_pairs(&mut pairs, name, value, *style, *explode, *reserved)?;
            }
            FieldWriting::Json => {
                let json = value.to_string().into();
                append_pairs(&mut pairs, name, &json, Style::Form, None, Reserved::Encoded)?;
            }
            FieldWriting::Plain => {
                let json;
                let value = if value.is_object() {
                    json = value.to_string().into();
                    &json
                } else {
                    value
                };
                append_pairs(&mut pairs, name, value, Style::Form, Some(true), Reserved::Encoded)?;
            }
        }
    }
    Ok(pairs.join("&"))
}

impl PartWriting {
    /// Writes the parts of a member: each item of a list is a part.
    fn member(&self, name: &str, value: &Value, written: &mut Vec<EncodedPart>) -> Result<(), String> {
        if let PartContent::Styled(style, explode) = self.content {
            for (name, text) in styled(name, value, style, explode)? {
                written.push(self.render(Some(&name), &text.into())?);
            }
            return Ok(());
        }
        let items = match value {
            Value::Array(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        for item in items {
            written.push(self.render(Some(name), item)?);
        }
        Ok(())
    }

    /// Renders one part. Members are identified by their names, which form data has for it (RFC 7578, section 4.2),
    /// list items by their order.
    fn render(&self, name: Option<&str>, value: &Value) -> Result<EncodedPart, String> {
        let shown = name.unwrap_or("part");
        let mut head = name.map(|name| format!("Content-Disposition: form-data; name=\"{}\"", quoted(name)));
        let is_file = match &self.content {
            PartContent::File => true,
            PartContent::FileOrValue => value.get("base64").is_some_and(Value::is_string),
            PartContent::Value | PartContent::Styled(..) | PartContent::Xml(_) => false,
        };
        let (content_type, bytes) = match &self.content {
            _ if is_file => {
                let file = file_of(value).map_err(|reason| format!("`{shown}`: {reason}"))?;
                match (&mut head, file.name) {
                    (Some(head), file_name) => {
                        head.push_str(&format!("; filename=\"{}\"", quoted(file_name.unwrap_or(shown))));
                    }
                    (None, Some(file_name)) => {
                        head = Some(format!("Content-Disposition: attachment; filename=\"{}\"", quoted(file_name)));
                    }
                    (None, None) => {}
                }
                let stated = file.content_type.or(self.content_type.as_deref());
                (stated.unwrap_or("application/octet-stream").to_owned(), file.bytes)
            }
            PartContent::Xml(xml) => {
                let text = xml.render(value).map_err(|reason| format!("`{shown}`: {reason}"))?;
                let stated = self.content_type.as_deref().unwrap_or("application/xml");
                (stated.to_owned(), Cow::Owned(text.into_bytes()))
            }
            PartContent::Value | PartContent::File | PartContent::FileOrValue | PartContent::Styled(..) => {
                let default = if value.is_object() || value.is_array() { "application/json" } else { "text/plain" };
                let content_type = self.content_type.clone().unwrap_or_else(|| default.to_owned());
                let text = if content_type.contains("json") { value.to_string() } else { plain_text(value) };
                (content_type, Cow::Owned(text.into_bytes()))
            }
        };
        if content_type.contains(['\r', '\n']) {
            return Err(format!("`{shown}`: a media type holds no line breaks"));
        }
        // A configured header overrides the generated one.
        let is_stated = self.headers.iter().any(|(name, _)| *name == CONTENT_DISPOSITION);
        let mut part: Vec<u8> = Vec::with_capacity(bytes.len() + 256);
        if let Some(line) = head.filter(|_| !is_stated) {
            part.extend_from_slice(line.as_bytes());
            part.extend_from_slice(b"\r\n");
        }
        for (name, value) in &self.headers {
            part.extend_from_slice(format!("{name}: ").as_bytes());
            part.extend_from_slice(value.as_bytes());
            part.extend_from_slice(b"\r\n");
        }
        part.extend_from_slice(format!("Content-Type: {content_type}\r\n\r\n").as_bytes());
        part.extend_from_slice(&bytes);
        Ok(EncodedPart { content_type, bytes: part })
    }
}

/// Returns the parts of a value in a style: names and texts, which are not encoded in parts.
///
/// # Errors
/// An item contains the separator.
fn styled(name: &str, value: &Value, style: Style, explode: Explode) -> Result<Vec<(String, String)>, String> {
    let one = |text: String| vec![(name.to_owned(), text)];
    let between = match style {
        Style::SpaceDelimited => ' ',
        Style::PipeDelimited => '|',
        Style::Form | Style::DeepObject => ',',
    };
    let item = |text: String| item_text(name, text, &[between]);
    let joined = |items: Vec<String>| items.join(&between.to_string());
    Ok(match value {
        Value::Object(members) if style == Style::DeepObject => {
            members.iter().map(|(key, member)| (format!("{name}[{key}]"), plain_text(member))).collect()
        }
        Value::Array(items) if explode == Explode::Yes => {
            items.iter().map(|item| (name.to_owned(), plain_text(item))).collect()
        }
        Value::Object(members) if explode == Explode::Yes => {
            members.iter().map(|(key, member)| (key.clone(), plain_text(member))).collect()
        }
        Value::Array(items) => {
            one(joined(items.iter().map(|value| item(plain_text(value))).collect::<Result<_, _>>()?))
        }
        Value::Object(members) => {
            let flat = members.iter().flat_map(|(key, member)| [item(key.clone()), item(plain_text(member))]);
            one(joined(flat.collect::<Result<_, _>>()?))
        }
        scalar => one(plain_text(scalar)),
    })
}

impl Kinds {
    /// Returns the media type that a file names, if it may.
    ///
    /// # Errors
    /// It is outside of the range, or missing although the range has no default.
    fn declared_type(&self, stated: Option<&str>) -> Result<Option<HeaderValue>, String> {
        let (range, stated) = match (self, stated) {
            (Self::Own, _) | (Self::Any(_), None) => return Ok(None),
            (Self::Any(range) | Self::Declared(range), Some(stated)) => (range, stated),
            (Self::Declared(range), None) => {
                return Err(format!("the body is `{range}`: say in `content_type` which of these it is"));
            }
        };
        let essence = stated.split(';').next().unwrap_or_default().trim();
        let fits = match (range.split_once('/'), essence.split_once('/')) {
            (Some((kind, _)), Some((own, sub))) => {
                // Header names and the parts of a media type are both tokens.
                let is_token = |text: &str| HeaderName::from_bytes(text.as_bytes()).is_ok() && !text.contains('*');
                is_token(own) && is_token(sub) && (kind == "*" || kind.eq_ignore_ascii_case(own))
            }
            _ => false,
        };
        let value = HeaderValue::from_str(stated).ok().filter(|_| fits);
        value.map(Some).ok_or_else(|| format!("`{stated}` in `content_type` is none of `{range}`, which the body is"))
    }
}

fn members<'a>(value: &'a Value, parameter: &Parameter) -> Result<&'a Map<String, Value>, String> {
    value
        .as_object()
        .ok_or_else(|| format!("the parameter `{}` is sent as a form, so it must be an object", parameter.path))
}

/// Binary data in an argument.
struct File<'a> {
    bytes: Cow<'a, [u8]>,
    name: Option<&'a str>,
    content_type: Option<&'a str>,
}

/// Returns the bytes of an argument: a string's UTF-8, or the decoded `{base64, filename?, content_type?}`.
fn file_of(value: &Value) -> Result<File<'_>, String> {
    match value {
        Value::String(text) => Ok(File { bytes: text.as_bytes().into(), name: None, content_type: None }),
        Value::Object(members) => {
            let text = |key: &str| members.get(key).and_then(Value::as_str);
            let encoded = text("base64").ok_or("a file is a text, or an object with its bytes under `base64`")?;
            let bytes =
                BASE64_STANDARD.decode(encoded).map_err(|error| format!("its `base64` is malformed: {error}"))?;
            // An empty text counts as absent.
            let content_type = text("content_type").filter(|stated| !stated.trim().is_empty());
            Ok(File { bytes: bytes.into(), name: text("filename"), content_type })
        }
        _ => Err("a file is a text, or an object with its bytes under `base64`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::template::Need;
    use super::*;
    use serde_json::json;

    fn render(kind: PayloadKind, content_type: &'static str, body: Value) -> Result<(String, String), String> {
        let payload = Payload {
            parameter: Parameter::argument("body", Need::Optional),
            content_type: HeaderValue::from_static(content_type),
            kind,
        };
        let body = payload.render(&json!({ "body": body }))?.expect("a body");
        let stated = body.content_type.to_str().expect("ascii").to_owned();
        Ok((stated, String::from_utf8_lossy(&body.bytes).into_owned()))
    }

    #[test]
    fn bodies_are_written_by_their_media_type() {
        let check = |kind: PayloadKind, body: Value, expect: &str| {
            assert_eq!(render(kind, "x/y", body).expect("renders"), ("x/y".to_owned(), expect.to_owned()));
        };
        check(PayloadKind::Json, json!({"a": [1, null]}), r#"{"a":[1,null]}"#);
        check(PayloadKind::Json, json!(null), "null");
        check(PayloadKind::Text, json!("é"), "é");
        check(PayloadKind::Text, json!(5), "5");
        check(PayloadKind::Bytes(Kinds::Own), json!("é"), "é");
        check(PayloadKind::Bytes(Kinds::Own), json!({"base64": "YWJj"}), "abc");
        let styled = FieldWriting::Styled { style: Style::DeepObject, explode: None, reserved: Reserved::Encoded };
        let fields = vec![("d".to_owned(), styled), ("j".to_owned(), FieldWriting::Json)];
        check(
            PayloadKind::Form(fields),
            json!({"s": "a b", "l": [1, 2], "n": null, "o": {"k": 1}, "d": {"k": 1}, "j": [1]}),
            "s=a%20b&l=1&l=2&o=%7B%22k%22%3A1%7D&d%5Bk%5D=1&j=%5B1%5D",
        );
        for broken in [json!(5), json!({"base64": "*"}), json!({})] {
            assert!(render(PayloadKind::Bytes(Kinds::Own), "x/y", broken).is_err());
        }
        assert!(render(PayloadKind::Form(Vec::new()), "x/y", json!([1])).is_err());
    }

    /// Models fill optional members with empty strings.
    #[test]
    fn empty_media_types_are_ignored() {
        for empty in ["", " "] {
            let body = json!({"base64": "YWJj", "content_type": empty});
            let kinds = Kinds::Any("*/*".into());
            let sent = render(PayloadKind::Bytes(kinds), "x/y", body.clone());
            assert_eq!(sent, Ok(("x/y".to_owned(), "abc".to_owned())));
            let reported = render(PayloadKind::Bytes(Kinds::Declared("image/*".into())), "x/y", body.clone());
            assert!(reported.expect_err("a range").contains("say in `content_type`"));
            let file = PartWriting { content: PartContent::File, ..PartWriting::default() };
            let parts = PartList::Named(vec![("f".into(), file)], PartWriting::default());
            let sent = render(PayloadKind::Multipart(parts), "multipart/form-data", json!({"f": body}));
            let (_, text) = sent.expect("renders");
            assert!(text.contains("\r\nContent-Type: application/octet-stream\r\n"), "{text}");
        }
    }

    #[test]
    fn parts_have_own_heads_and_boundary() {
        let part = |content| PartWriting { content, ..PartWriting::default() };
        let file = PartWriting { content_type: Some("image/png".into()), ..part(PartContent::File) };
        let pipes = part(PartContent::Styled(Style::PipeDelimited, Explode::No));
        let deep = part(PartContent::Styled(Style::DeepObject, Explode::Yes));
        let body = json!({"s": "x", "n": 5, "p": ["a", "b"], "d": {"k": 1}, "o": {"k": [1]}, "l": ["a", "b"], "q\"": true,
            "f": {"base64": "iVBORw==", "filename": "a\".png"}});
        let (stated, text) = render(
            PayloadKind::Multipart(PartList::Named(
                vec![("f".into(), file), ("p".into(), pipes), ("d".into(), deep)],
                PartWriting::default(),
            )),
            "multipart/form-data",
            body,
        )
        .expect("renders");
        let boundary = stated.strip_prefix("multipart/form-data; boundary=").expect("boundary");
        let part = |head: &str, content: &str| {
            format!("--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
        };
        let text_part =
            |name: &str, content: &str| part(&format!("name=\"{name}\"\r\nContent-Type: text/plain"), content);
        let expect = [
            part("name=\"f\"; filename=\"a%22.png\"\r\nContent-Type: image/png", "\u{fffd}PNG"),
            text_part("p", "a|b"),
            text_part("d[k]", "1"),
            text_part("s", "x"),
            text_part("n", "5"),
            part("name=\"o\"\r\nContent-Type: application/json", "{\"k\":[1]}"),
            text_part("l", "a"),
            text_part("l", "b"),
            text_part("q%22", "true"),
            format!("--{boundary}--\r\n"),
        ];
        assert_eq!(text, expect.concat());
    }

    /// Parsers that treat a backslash as an escape would lose the quote after it, and so the part.
    #[test]
    fn a_backslash_in_a_name_escapes_no_quote() {
        let file = PartWriting { content: PartContent::File, ..PartWriting::default() };
        for (name, expect) in [("a\\", "a\\\\"), ("a\\b", "a\\\\b"), ("a\\\"b", "a\\\\%22b")] {
            let body = json!({"f": {"base64": "", "filename": name}, name: 1});
            let parts = PartList::Named(vec![("f".into(), file.clone())], PartWriting::default());
            let (_, text) = render(PayloadKind::Multipart(parts), "multipart/form-data", body).expect("renders");
            assert!(text.contains(&format!("filename=\"{expect}\"\r\n")), "{text}");
            assert!(text.contains(&format!("name=\"{expect}\"\r\n")), "{text}");
        }
    }
}
