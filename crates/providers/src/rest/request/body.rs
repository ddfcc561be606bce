//! Request bodies, and several parts as one body (RFC 2046, section 5.1).

use bytes::Bytes;
use http::HeaderValue;
use serde_json::{Map, Value};
use toolwright_core::tool_id::short_hash;

use crate::rest::FieldError;
use crate::rest::request::payload::Payload;
use crate::rest::request::query::{Reserved, Style, append_pairs, encode};
use crate::rest::request::template::{Nulls, Parameter, Rendered, Segment, Template, plain_text};

/// The deepest nesting of a body template.
const MAX_DEPTH: usize = 64;

const FORM: &str = "application/x-www-form-urlencoded";

/// A rendered body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenderedBody {
    pub(crate) bytes: Bytes,
    /// The content type, unless the headers set one.
    pub(crate) content_type: HeaderValue,
}

/// A compiled body.
#[derive(Debug, Clone)]
pub(crate) enum BodyTemplate {
    Json(JsonTemplate),
    /// Pairs of a form.
    Form(Vec<(String, JsonTemplate)>),
    /// Text; in a form its values are encoded.
    Text {
        template: Template,
        form: bool,
    },
    /// One argument, written by media type.
    Payload(Payload),
}

/// JSON with templates in strings.
#[derive(Debug, Clone)]
pub(crate) enum JsonTemplate {
    Fixed(Value),
    Text(Template),
    List(Vec<JsonTemplate>),
    Object(Vec<(String, JsonTemplate)>),
}

impl BodyTemplate {
    /// Compiles a body for the content type in the headers, if any.
    ///
    /// # Errors
    /// The error, with the path inside the body.
    pub(in crate::rest) fn compile(
        body: &Value,
        content_type: Option<&str>,
        schema: &Value,
    ) -> Result<Self, FieldError> {
        let content_type =
            content_type.map(|value| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
        let form = content_type.as_deref() == Some(FORM);
        let json = content_type.as_deref().is_none_or(|value| value == "application/json" || value.ends_with("+json"));
        match body {
            Value::Object(members) if form => {
                let pairs = members.iter().map(|(name, value)| {
                    Ok((name.clone(), JsonTemplate::compile(value, &format!("body.{name}"), schema, 0)?))
                });
                Ok(Self::Form(pairs.collect::<Result<_, FieldError>>()?))
            }
            Value::String(text) => {
                let template = Template::compile(text, "body", schema)?;
                let looks_like_json = text.trim_start().starts_with(['{', '[']);
                if json && looks_like_json {
                    return Self::compile_json_text(text, schema);
                }
                let alone = template.segments.len() == 1 && template.literal().is_none();
                if json && (alone || content_type.is_some()) {
                    return Ok(Self::Json(JsonTemplate::Text(template)));
                }
                Ok(Self::Text { template, form })
            }
            _ if json => Ok(Self::Json(JsonTemplate::compile(body, "body", schema, 0)?)),
            _ => Err(FieldError::new("body", "a body of this Content-Type is a string")),
        }
    }

    /// Compiles JSON that was written as text. It is parsed now, so that values cannot change its structure.
    fn compile_json_text(text: &str, schema: &Value) -> Result<Self, FieldError> {
        let parsed: Value = serde_json::from_str(text).map_err(|error| {
            FieldError::new(
                "body",
                format!("it looks like JSON and does not parse ({error}): quote each placeholder (one that is alone in its quotes keeps its type), or write the body as YAML"),
            )
        })?;
        Ok(Self::Json(JsonTemplate::compile(&parsed, "body", schema, 0)?))
    }

    /// Renders the body with the arguments; `None` if the whole body is an absent optional argument.
    ///
    /// # Errors
    /// A message that names a missing required argument.
    pub(in crate::rest) fn render(&self, arguments: &Value) -> Result<Option<RenderedBody>, String> {
        let (bytes, content_type) = match self {
            Self::Payload(payload) => return payload.render(arguments),
            Self::Json(template) => {
                (template.render(arguments, Nulls::Sent)?.map(|value| value.to_string().into()), "application/json")
            }
            Self::Form(members) => {
                let mut pairs = Vec::new();
                for (name, template) in members {
                    if let Some(value) = template.render(arguments, Nulls::LeftOut)? {
                        append_pairs(&mut pairs, name, &value, Style::Form, None, Reserved::Encoded)?;
                    }
                }
                (Some(pairs.join("&").into()), FORM)
            }
            Self::Text { template, form: true } => {
                let text = template.render_text(arguments, str::to_owned, |value| encode(&plain_text(value)))?;
                (text.map(Bytes::from), FORM)
            }
            Self::Text { template, form: false } => {
                let text = template.render_text(arguments, str::to_owned, plain_text)?;
                (text.map(Bytes::from), "text/plain; charset=utf-8")
            }
        };
        Ok(bytes.map(|bytes| RenderedBody { bytes, content_type: HeaderValue::from_static(content_type) }))
    }

    /// Returns its placeholders.
    pub(in crate::rest) fn parameters(&self) -> Vec<&Parameter> {
        let mut found = Vec::new();
        match self {
            Self::Json(template) => template.collect(&mut found),
            Self::Form(members) => members.iter().for_each(|(_, template)| template.collect(&mut found)),
            Self::Text { template, .. } => found.extend(template.parameters()),
            Self::Payload(payload) => found.push(&payload.parameter),
        }
        found
    }
}

impl JsonTemplate {
    pub(in crate::rest) fn compile(
        value: &Value,
        field: &str,
        schema: &Value,
        depth: usize,
    ) -> Result<Self, FieldError> {
        if depth == MAX_DEPTH {
            return Err(FieldError::new(field, format!("it nests deeper than {MAX_DEPTH} levels")));
        }
        Ok(match value {
            Value::String(text) => {
                let template = Template::compile(text, field, schema)?;
                match template.literal() {
                    Some(_) => Self::Fixed(value.clone()),
                    None => Self::Text(template),
                }
            }
            Value::Array(items) => Self::List(
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| Self::compile(item, &format!("{field}.{index}"), schema, depth + 1))
                    .collect::<Result<_, _>>()?,
            ),
            Value::Object(members) => Self::Object(
                members
                    .iter()
                    .map(|(name, member)| {
                        let field = format!("{field}.{name}");
                        if name.contains("${") {
                            return Err(FieldError::new(field, "a placeholder cannot be a name; only values can"));
                        }
                        Ok((name.clone(), Self::compile(member, &field, schema, depth + 1)?))
                    })
                    .collect::<Result<_, _>>()?,
            ),
            fixed => Self::Fixed(fixed.clone()),
        })
    }

    /// Renders the value; `None` if it is an absent optional argument. Members and items without a value are left out.
    pub(in crate::rest) fn render(&self, arguments: &Value, nulls: Nulls) -> Result<Option<Value>, String> {
        Ok(match self {
            Self::Fixed(value) => Some(value.clone()),
            Self::Text(template) => template.render(arguments, nulls)?.map(|rendered| match rendered {
                Rendered::Value(value) => value.clone(),
                Rendered::Text(text) => text.into(),
            }),
            Self::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    list.extend(item.render(arguments, nulls)?);
                }
                Some(list.into())
            }
            Self::Object(members) => {
                let mut object = Map::new();
                for (name, member) in members {
                    if let Some(value) = member.render(arguments, nulls)? {
                        object.insert(name.clone(), value);
                    }
                }
                Some(object.into())
            }
        })
    }

    /// Returns the parameter, if it is nothing else.
    pub(in crate::rest) fn parameter(&self) -> Option<&Parameter> {
        match self {
            Self::Text(Template { segments }) => match segments.as_slice() {
                [Segment::Parameter(parameter)] => Some(parameter),
                _ => None,
            },
            _ => None,
        }
    }

    pub(in crate::rest) fn collect<'a>(&'a self, found: &mut Vec<&'a Parameter>) {
        match self {
            Self::Fixed(_) => {}
            Self::Text(template) => found.extend(template.parameters()),
            Self::List(items) => items.iter().for_each(|item| item.collect(found)),
            Self::Object(members) => members.iter().for_each(|(_, member)| member.collect(found)),
        }
    }
}

/// A rendered part, with its headers.
pub(in crate::rest) struct EncodedPart {
    pub(in crate::rest) content_type: String,
    pub(in crate::rest) bytes: Vec<u8>,
}

/// Quotes a name: quotes and line breaks as in HTML ("multipart/form-data encoding algorithm"), a backslash as a quoted
/// pair (RFC 2183). HTML and browsers do not escape it, but parsers of quoted pairs then lose it, and after it possibly
/// the closing quote, while other parsers at worst see it twice.
pub(in crate::rest) fn quoted(name: &str) -> String {
    name.replace('\\', r"\\").replace('\r', "%0D").replace('\n', "%0A").replace('"', "%22")
}

/// Returns a boundary that no part contains. It depends only on the parts, so that a repeated request is identical.
pub(in crate::rest) fn boundary(parts: &[EncodedPart]) -> String {
    let all = parts.iter().map(|part| String::from_utf8_lossy(&part.bytes)).collect::<Vec<_>>().join("\n");
    let mut attempt = 0_u32;
    loop {
        let boundary = format!("toolwright-{}", short_hash(&format!("{attempt}\n{all}"), 32));
        if parts.iter().all(|part| memchr::memmem::find(&part.bytes, boundary.as_bytes()).is_none()) {
            return boundary;
        }
        attempt += 1;
    }
}

/// Joins the parts with the boundary between them.
pub(in crate::rest) fn joined(parts: &[EncodedPart], boundary: &str) -> Bytes {
    let mut body = Vec::with_capacity(parts.iter().map(|part| part.bytes.len() + boundary.len() + 8).sum());
    for part in parts {
        body.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
        body.extend_from_slice(&part.bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    body.into()
}

/// Returns the media type of the whole: the document's, with this boundary instead of any other. If the first part is
/// the root, its type is named too, unless the document does so (RFC 2387, section 3.1).
pub(in crate::rest) fn content_type(stated: &str, boundary: &str, parts: &[EncodedPart]) -> String {
    let (essence, parameters) = pieces(stated);
    let is = |parameter: &str, name: &str| {
        parameter.split('=').next().is_some_and(|stated| stated.trim().eq_ignore_ascii_case(name))
    };
    let kept: Vec<&str> = parameters.into_iter().filter(|parameter| !is(parameter, "boundary")).collect();
    let mut whole = essence.to_owned();
    for parameter in &kept {
        whole.push_str("; ");
        whole.push_str(parameter);
    }
    whole.push_str("; boundary=");
    whole.push_str(boundary);
    let is_related = essence.eq_ignore_ascii_case("multipart/related");
    if let Some(root) = parts.first().filter(|_| is_related && !kept.iter().any(|parameter| is(parameter, "type"))) {
        let kind = root.content_type.replace('\\', r"\\").replace('"', r#"\""#);
        whole.push_str(&format!("; type=\"{kind}\""));
    }
    whole
}

/// Splits a media type into the type and its parameters.
fn pieces(stated: &str) -> (&str, Vec<&str>) {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let mut pieces = stated.split(|c| {
        let is_between = c == ';' && !is_quoted;
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && is_quoted && !is_escaped;
        is_between
    });
    let essence = pieces.next().unwrap_or_default().trim();
    (essence, pieces.map(str::trim).filter(|parameter| !parameter.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({"properties": {"n": {}, "s": {}, "o": {}}, "required": ["s"]})
    }

    #[test]
    fn bodies_render_by_type() {
        let check = |body: Value, content_type: Option<&str>, arguments: Value, expect: &str| {
            let template = BodyTemplate::compile(&body, content_type, &schema()).expect("compiles");
            let rendered = template.render(&arguments).expect("renders").map(|body| body.bytes).unwrap_or_default();
            assert_eq!(std::str::from_utf8(&rendered), Ok(expect), "{body}");
        };
        let arguments = || json!({"n": 1, "s": "a\"b & c"});
        check(
            json!({"n": "${parameters.n}", "s": "<${parameters.s}>", "f": [true, "${parameters.o}"]}),
            None,
            arguments(),
            r#"{"n":1,"s":"<a\"b & c>","f":[true]}"#,
        );
        check(json!({"o": "${parameters.o}", "k": {"o": "x${parameters.o}"}}), None, arguments(), r#"{"k":{}}"#);
        check(json!("${parameters.n}"), None, arguments(), "1");
        check(json!("${parameters.o}"), None, arguments(), "");
        check(json!(r#"{"s": "${parameters.s}"}"#), None, arguments(), r#"{"s":"a\"b & c"}"#);
        check(json!("hello ${parameters.s}"), None, arguments(), "hello a\"b & c");
        check(json!("hello ${parameters.n}"), Some("application/json"), arguments(), "\"hello 1\"");
        check(
            json!({"s": "${parameters.s}", "o": "${parameters.o}", "l": [1, 2]}),
            Some(FORM),
            arguments(),
            "s=a%22b%20%26%20c&l=1&l=2",
        );
        check(json!("s=${parameters.s}"), Some(FORM), arguments(), "s=a%22b%20%26%20c");
        // An explicit null is sent where nulls exist, and deletes what was set.
        let null = || json!({"n": null, "s": null});
        let body = json!({"n": "${parameters.n}", "s": "${parameters.s}", "l": ["${parameters.n}", "${parameters.o}"]});
        check(body.clone(), None, null(), r#"{"n":null,"s":null,"l":[null]}"#);
        check(json!({"n": "x${parameters.n}"}), None, null(), "{}");
        check(json!("${parameters.n}"), None, null(), "null");
        check(json!("${parameters.n}"), None, json!({}), "");
        let form = json!({"n": "${parameters.n}", "l": ["${parameters.n}", 1]});
        check(form, Some(FORM), null(), "l=1");
    }

    #[test]
    fn contradictory_bodies_are_errors() {
        for (body, content_type, field, fragment) in [
            (json!(r#"{"n": ${parameters.n}}"#), None, "body", "quote each placeholder"),
            (json!({"a": {"${parameters.n}": 1}}), None, "body.a.${parameters.n}", "cannot be a name"),
            (json!({"a": ["x", "${parameters.z}"]}), None, "body.a.1", "does not declare"),
            (json!({"a": 1}), Some("text/plain"), "body", "is a string"),
        ] {
            let complaint = BodyTemplate::compile(&body, content_type, &schema()).expect_err("refused");
            assert!(complaint.field == field && complaint.reason.contains(fragment), "{complaint:?}");
        }
        let required = BodyTemplate::compile(&json!({"s": "${parameters.s}"}), None, &schema()).expect("compiles");
        assert!(required.render(&json!({})).expect_err("missing").contains("`s`"));
    }

    #[test]
    fn multipart_bodies_have_one_boundary_and_type() {
        let of = |kind: &str| [EncodedPart { content_type: kind.to_owned(), bytes: Vec::new() }];
        for (stated, root, expect) in [
            ("multipart/form-data", "a/b", "multipart/form-data; boundary=B"),
            ("multipart/mixed ; Boundary = x;;a=b ", "a/b", "multipart/mixed; a=b; boundary=B"),
            (
                r#"multipart/mixed; a="\";boundary=y"; boundary="\"x;""#,
                "a/b",
                r#"multipart/mixed; a="\";boundary=y"; boundary=B"#,
            ),
            ("Multipart/Related", "a/b", r#"Multipart/Related; boundary=B; type="a/b""#),
            ("multipart/related; TYPE=c/d", "a/b", "multipart/related; TYPE=c/d; boundary=B"),
            ("multipart/related", r#"a/b\; c="d""#, r#"multipart/related; boundary=B; type="a/b\\; c=\"d\"""#),
        ] {
            assert_eq!(content_type(stated, "B", &of(root)), expect, "{stated}");
        }
        assert_eq!(content_type("multipart/related", "B", &[]), "multipart/related; boundary=B");
    }
}
