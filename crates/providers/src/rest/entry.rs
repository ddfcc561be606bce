//! Compiles a configured entry to its request.

use http::{HeaderName, HeaderValue, Method};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use url::Url;

use super::config::RestToolConfig;
use super::request::body::{BodyTemplate, JsonTemplate};
use super::request::encoded_values::{Explode, PathStyle, ValueEncoding};
use super::request::query::{Reserved, Style};
use super::request::template::{Segment, Template};
use super::request::{HeaderPart, Pair, PathPart, RequestTemplate};
use crate::rest::FieldError;

/// Headers that frame the message, so they cannot be set.
pub(crate) const FRAMING: [&str; 5] = ["connection", "content-length", "te", "transfer-encoding", "upgrade"];

/// Compiles an entry whose arguments follow `schema`.
///
/// # Errors
/// The first invalid field.
pub(super) fn compile(config: &RestToolConfig, schema: &Value) -> Result<RequestTemplate, FieldError> {
    let (origin, path, mut pairs) = compile_url(&Template::compile(&config.url, "url", schema)?)?;
    for (name, query) in &config.query {
        let value = JsonTemplate::compile(&query.value, &format!("query.{name}"), schema, 0)?;
        pairs.push(Pair::Typed {
            name: name.clone(),
            value,
            style: query.style,
            explode: query.explode,
            reserved: Reserved::Encoded,
            writing: ValueEncoding::Styled,
        });
    }
    let headers = compile_headers(config, schema)?;
    let content_type = headers
        .iter()
        .find(|(name, _)| name == http::header::CONTENT_TYPE)
        .and_then(|(_, template)| template.literal());
    let body = config.body.as_ref().filter(|body| !body.is_null());
    let body = body.map(|body| BodyTemplate::compile(body, content_type, schema)).transpose()?;
    let path = path.into_iter().map(path_parts).collect();
    let headers = headers.into_iter().map(|(name, template)| (name, HeaderPart::Text(template))).collect();
    Ok(RequestTemplate {
        method: config.method.into(),
        origin,
        path,
        pairs,
        headers,
        cookies: Vec::new(),
        accept: None,
        body,
        credential_places: Vec::new(),
    })
}

/// Returns the parts of a configured path segment: lists and objects are written in the style `simple`.
fn path_parts(segment: Template) -> Vec<PathPart> {
    let part = |segment| match segment {
        Segment::Literal(text) => PathPart::Literal(text),
        Segment::Parameter(parameter) => PathPart::Value {
            name: parameter.path.clone(),
            parameter,
            style: PathStyle::Simple,
            explode: Explode::No,
            writing: ValueEncoding::Styled,
        },
    };
    segment.segments.into_iter().map(part).collect()
}

/// Splits a URL into origin, path and query.
fn compile_url(template: &Template) -> Result<(String, Vec<Template>, Vec<Pair>), FieldError> {
    let fail = |reason: &str| FieldError::new("url", reason);
    let (template, fragment) = split_once(template, '#');
    if fragment.is_some_and(|fragment| fragment.literal().is_none()) {
        return Err(fail("a placeholder after `#` is never sent"));
    }
    let (address, query) = split_once(&template, '?');
    let Some(Segment::Literal(start)) = address.segments.first() else {
        return Err(fail("it must begin with http:// or https:// and a host; a placeholder cannot choose them"));
    };
    let authority = ["http://", "https://"]
        .into_iter()
        .find(|scheme| start.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme)))
        .map(str::len)
        .ok_or_else(|| fail("it must begin with http:// or https://"))?;
    let end = start[authority..].find('/').map(|slash| authority + slash);
    let origin = match end {
        Some(end) => &start[..end],
        None if address.segments.len() == 1 => start,
        None => return Err(fail("a placeholder cannot be part of the host: it may stand after the host's `/` only")),
    };
    Url::parse(origin).map_err(|error| fail(&format!("`{origin}` is not a host: {error}")))?;

    let mut path = address.clone();
    match (end, path.segments.first_mut()) {
        (Some(end), Some(Segment::Literal(first))) => *first = first[end + 1..].to_owned(),
        _ => path.segments.clear(),
    }
    let pairs = match query {
        None => Vec::new(),
        Some(query) => split(&query, '&')
            .iter()
            .filter(|pair| !pair.segments.is_empty())
            .map(compile_pair)
            .collect::<Result<_, _>>()?,
    };
    Ok((origin.to_owned(), split(&path, '/'), pairs))
}

fn compile_pair(pair: &Template) -> Result<Pair, FieldError> {
    if let Some(literal) = pair.literal() {
        return Ok(Pair::Literal(literal.to_owned()));
    }
    let (name, value) = split_once(pair, '=');
    match (name.literal(), value) {
        (Some(name), Some(value)) if value.segments.len() == 1 => Ok(Pair::Typed {
            name: percent_decode_str(name).decode_utf8_lossy().into_owned(),
            value: JsonTemplate::Text(value),
            style: Style::Form,
            explode: None,
            reserved: Reserved::Encoded,
            writing: ValueEncoding::Styled,
        }),
        (Some(name), Some(value)) => Ok(Pair::Mixed(name.to_owned(), value)),
        _ => Err(FieldError::new("url", "a placeholder in the query stands after a `name=`")),
    }
}

fn compile_headers(config: &RestToolConfig, schema: &Value) -> Result<Vec<(HeaderName, Template)>, FieldError> {
    let mut headers = Vec::with_capacity(config.headers.len());
    for (written, value) in &config.headers {
        let field = format!("headers.{written}");
        let name = HeaderName::from_bytes(written.as_bytes())
            .map_err(|_| FieldError::new(&field, "it is not a header's name"))?;
        let template = Template::compile(value, &field, schema)?;
        if FRAMING.contains(&name.as_str()) || (name == http::header::HOST && template.literal().is_none()) {
            return Err(FieldError::new(field, "this header frames the message and cannot be set"));
        }
        let literals = template.segments.iter().filter_map(|segment| match segment {
            Segment::Literal(text) => Some(text),
            Segment::Parameter(_) => None,
        });
        if literals.into_iter().any(|text| HeaderValue::from_bytes(text.as_bytes()).is_err()) {
            return Err(FieldError::new(field, "its value holds a line break or another control character"));
        }
        headers.push((name, template));
    }
    Ok(headers)
}

/// Splits at each `separator` in a literal.
fn split(template: &Template, separator: char) -> Vec<Template> {
    let mut parts = vec![Template::default()];
    let add = |parts: &mut Vec<Template>, segment: Segment| {
        if let Some(last) = parts.last_mut() {
            last.segments.push(segment);
        }
    };
    for segment in &template.segments {
        match segment {
            Segment::Parameter(_) => add(&mut parts, segment.clone()),
            Segment::Literal(text) => {
                for (index, piece) in text.split(separator).enumerate() {
                    if index > 0 {
                        parts.push(Template::default());
                    }
                    if !piece.is_empty() {
                        add(&mut parts, Segment::Literal(piece.to_owned()));
                    }
                }
            }
        }
    }
    parts
}

/// Like [`split`], at the first separator only.
fn split_once(template: &Template, separator: char) -> (Template, Option<Template>) {
    for (index, segment) in template.segments.iter().enumerate() {
        if let Segment::Literal(text) = segment
            && let Some((before, after)) = text.split_once(separator)
        {
            let literal = |text: &str| (!text.is_empty()).then(|| Segment::Literal(text.to_owned()));
            let head = template.segments[..index].iter().cloned().chain(literal(before)).collect();
            let tail = literal(after).into_iter().chain(template.segments[index + 1..].iter().cloned()).collect();
            return (Template { segments: head }, Some(Template { segments: tail }));
        }
    }
    (template.clone(), None)
}

/// Returns the executable part of the entry, for the contract. Uses the entry as written if known. Otherwise leaves out
/// everything in headers, query and body that could be an expanded secret.
pub(super) fn declaration(config: &RestToolConfig, method: &Method) -> Value {
    let mut declared = Map::new();
    declared.insert("method".into(), method.as_str().into());
    if let Some(Value::Object(written)) = &config.written {
        for field in ["url", "headers", "query", "body"] {
            declared.extend(written.get(field).map(|value| (field.to_owned(), value.clone())));
        }
        return declared.into();
    }
    let url = config.url.split(['?', '#']).next().unwrap_or_default();
    let query = config.url.split_once('?').map(|(_, query)| placeholders(query));
    declared.insert("url".into(), without_userinfo(url).into());
    declared.insert("url_query".into(), query.into());
    declared.insert(
        "headers".into(),
        config.headers.iter().map(|(name, value)| (name.clone(), Value::from(placeholders(value)))).collect(),
    );
    let styled = |(name, query): (&String, &super::config::QueryValue)| {
        (name.clone(), json!({"value": shape(&query.value), "style": query.style, "explode": query.explode}))
    };
    declared.insert("query".into(), config.query.iter().map(styled).collect());
    declared.insert("body".into(), config.body.as_ref().map(shape).into());
    declared.into()
}

fn without_userinfo(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}

/// Returns the value with `*` for every literal text.
fn shape(value: &Value) -> Value {
    match value {
        Value::String(text) => placeholders(text).into(),
        Value::Array(items) => items.iter().map(shape).collect(),
        Value::Object(members) => members.iter().map(|(name, member)| (name.clone(), shape(member))).collect(),
        other => other.clone(),
    }
}

/// Returns the placeholders of a text, with `*` for the text between them.
fn placeholders(text: &str) -> String {
    let mut shape = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let end = rest[start..].find('}').map_or(rest.len(), |length| start + length + 1);
        shape.push_str(if start > 0 { "*" } else { "" });
        shape.push_str(&rest[start..end]);
        rest = &rest[end..];
    }
    shape.push_str(if rest.is_empty() { "" } else { "*" });
    shape
}
