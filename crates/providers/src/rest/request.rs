//! One HTTP request as templates.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use url::Url;

use super::body::{BodyTemplate, JsonTemplate};
use super::error::Complaint;
use super::query::{Style, append_pairs, encode, path_text};
use super::spec::RestToolSpec;
use super::template::{Parameter, Segment, Template, plain_text};
use crate::net::HttpRequest;

const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
/// Headers that frame the message and so are not an entry's to set.
const FRAMING: [&str; 5] = ["connection", "content-length", "te", "transfer-encoding", "upgrade"];

/// A compiled entry.
#[derive(Debug, Clone)]
pub(super) struct RequestTemplate {
    pub(super) method: Method,
    /// Scheme and authority, which no argument reaches.
    origin: String,
    /// The path between its slashes.
    path: Vec<Template>,
    pairs: Vec<Pair>,
    headers: Vec<(HeaderName, Template)>,
    body: Option<BodyTemplate>,
}

#[derive(Debug, Clone)]
enum Pair {
    /// As it stands in the URL.
    Literal(String),
    /// `name=` as it stands in the URL, and a value of several pieces.
    Mixed(String, Template),
    /// A name, decoded, and a value of any type.
    Typed { name: String, value: JsonTemplate, style: Style, explode: Option<bool> },
}

impl RequestTemplate {
    /// Compiles an entry whose arguments obey `schema`.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub(super) fn compile(spec: &RestToolSpec, schema: &Value) -> Result<Self, Complaint> {
        let method =
            METHODS.into_iter().find(|method| method.as_str().eq_ignore_ascii_case(&spec.method)).ok_or_else(|| {
                Complaint::new(
                    "method",
                    format!("`{}` is not one of {}", spec.method, METHODS.map(|method| method.to_string()).join(", ")),
                )
            })?;
        let (origin, path, mut pairs) = compile_url(&Template::compile(&spec.url, "url", schema)?)?;
        for (name, query) in &spec.query {
            let value = JsonTemplate::compile(&query.value, &format!("query.{name}"), schema, 0)?;
            pairs.push(Pair::Typed { name: name.clone(), value, style: query.style, explode: query.explode });
        }
        let headers = compile_headers(spec, schema)?;
        let content_type =
            headers.iter().find(|(name, _)| name == CONTENT_TYPE).and_then(|(_, template)| template.literal());
        let body = spec.body.as_ref().filter(|body| !body.is_null());
        let body = body.map(|body| BodyTemplate::compile(body, content_type, schema)).transpose()?;
        Ok(Self { method, origin, path, pairs, headers, body })
    }

    /// The request for these arguments.
    ///
    /// # Errors
    /// A message for the caller: a value is missing, or cannot stand where it would.
    pub(super) fn render(&self, arguments: &Value) -> Result<HttpRequest, String> {
        let mut headers = self.render_headers(arguments)?;
        let body = self.body.as_ref().map(|body| body.render(arguments)).transpose()?.flatten();
        if let (Some(template), Some(_)) = (&self.body, &body) {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(template.content_type()));
        }
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json, text/*;q=0.9, */*;q=0.5"));
        Ok(HttpRequest { method: self.method.clone(), url: self.render_url(arguments)?, headers, body })
    }

    /// Whether the entry sets this header itself.
    pub(super) fn sets(&self, header: &HeaderName) -> bool {
        self.headers.iter().any(|(name, _)| name == header)
    }

    /// Every placeholder.
    pub(super) fn parameters(&self) -> Vec<&Parameter> {
        let mut found: Vec<&Parameter> = Vec::new();
        found.extend(self.path.iter().flat_map(Template::parameters));
        found.extend(self.headers.iter().flat_map(|(_, template)| template.parameters()));
        for pair in &self.pairs {
            match pair {
                Pair::Literal(_) => {}
                Pair::Mixed(_, template) => found.extend(template.parameters()),
                Pair::Typed { value, .. } => value.collect(&mut found),
            }
        }
        found.extend(self.body.iter().flat_map(BodyTemplate::parameters));
        found
    }

    fn render_url(&self, arguments: &Value) -> Result<Url, String> {
        let mut text = self.origin.clone();
        for segment in &self.path {
            text.push('/');
            text.push_str(&render_segment(segment, arguments)?);
        }
        let mut pairs = Vec::new();
        for pair in &self.pairs {
            match pair {
                Pair::Literal(literal) => pairs.push(literal.clone()),
                Pair::Mixed(name, template) => {
                    let value = template.render_text(arguments, str::to_owned, |value| encode(&plain_text(value)))?;
                    pairs.extend(value.map(|value| format!("{name}={value}")));
                }
                Pair::Typed { name, value, style, explode } => {
                    if let Some(value) = value.render(arguments)?.filter(|value| !value.is_null()) {
                        append_pairs(&mut pairs, name, &value, *style, *explode);
                    }
                }
            }
        }
        if !pairs.is_empty() {
            text.push('?');
            text.push_str(&pairs.join("&"));
        }
        Url::parse(&text).map_err(|error| format!("the URL comes out malformed: {error}"))
    }

    fn render_headers(&self, arguments: &Value) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, template) in &self.headers {
            let Some(text) = template.render_text(arguments, str::to_owned, plain_text)? else { continue };
            // The value may be a secret: it is not quoted.
            let mut value = HeaderValue::from_bytes(text.as_bytes()).map_err(|_| {
                format!("the value of the header `{name}` would hold a line break or another control character")
            })?;
            value.set_sensitive(true);
            headers.append(name.clone(), value);
        }
        Ok(headers)
    }
}

fn render_segment(segment: &Template, arguments: &Value) -> Result<String, String> {
    if let Some(literal) = segment.literal() {
        return Ok(literal.to_owned());
    }
    let names = || segment.parameters().map(|parameter| format!("`{}`", parameter.path)).collect::<Vec<_>>().join(", ");
    let text = segment.render_text(arguments, str::to_owned, path_text)?;
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Err(format!("the URL's path needs a value for the parameter {}", names()));
    };
    // These mean another directory, even percent-encoded (WHATWG URL, "double-dot path segment").
    if matches!(text.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..") {
        return Err(format!("the parameter {} may not be `{text}` in a URL's path", names()));
    }
    Ok(text)
}

/// Splits a URL into origin, path and query.
fn compile_url(template: &Template) -> Result<(String, Vec<Template>, Vec<Pair>), Complaint> {
    let fail = |reason: &str| Complaint::new("url", reason);
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

fn compile_pair(pair: &Template) -> Result<Pair, Complaint> {
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
        }),
        (Some(name), Some(value)) => Ok(Pair::Mixed(name.to_owned(), value)),
        _ => Err(Complaint::new("url", "a placeholder in the query stands after a `name=`")),
    }
}

fn compile_headers(spec: &RestToolSpec, schema: &Value) -> Result<Vec<(HeaderName, Template)>, Complaint> {
    let mut headers = Vec::with_capacity(spec.headers.len());
    for (written, value) in &spec.headers {
        let field = format!("headers.{written}");
        let name = HeaderName::from_bytes(written.as_bytes())
            .map_err(|_| Complaint::new(&field, "it is not a header's name"))?;
        let template = Template::compile(value, &field, schema)?;
        if FRAMING.contains(&name.as_str()) || (name == http::header::HOST && template.literal().is_none()) {
            return Err(Complaint::new(field, "this header frames the message and cannot be set"));
        }
        let literals = template.segments.iter().filter_map(|segment| match segment {
            Segment::Literal(text) => Some(text),
            Segment::Parameter(_) => None,
        });
        if literals.into_iter().any(|text| HeaderValue::from_bytes(text.as_bytes()).is_err()) {
            return Err(Complaint::new(field, "its value holds a line break or another control character"));
        }
        headers.push((name, template));
    }
    Ok(headers)
}

/// Splits at `separator` where it stands in a literal.
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

/// As [`split`], at the first one only.
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

/// The executable part of the entry, for the contract. From the entry as written where that is known;
/// else without anything in headers, query and body that could be an expanded secret.
pub(super) fn declaration(spec: &RestToolSpec, method: &Method) -> Value {
    let mut declared = Map::new();
    declared.insert("method".into(), method.as_str().into());
    if let Some(Value::Object(written)) = &spec.written {
        for field in ["url", "headers", "query", "body"] {
            declared.extend(written.get(field).map(|value| (field.to_owned(), value.clone())));
        }
        return declared.into();
    }
    let url = spec.url.split(['?', '#']).next().unwrap_or_default();
    let query = spec.url.split_once('?').map(|(_, query)| placeholders(query));
    declared.insert("url".into(), without_userinfo(url).into());
    declared.insert("url_query".into(), query.into());
    declared.insert(
        "headers".into(),
        spec.headers.iter().map(|(name, value)| (name.clone(), Value::from(placeholders(value)))).collect(),
    );
    let styled = |(name, query): (&String, &super::spec::QueryValue)| {
        (name.clone(), json!({"value": shape(&query.value), "style": query.style, "explode": query.explode}))
    };
    declared.insert("query".into(), spec.query.iter().map(styled).collect());
    declared.insert("body".into(), spec.body.as_ref().map(shape).into());
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

/// The value with `*` for every literal text.
fn shape(value: &Value) -> Value {
    match value {
        Value::String(text) => placeholders(text).into(),
        Value::Array(items) => items.iter().map(shape).collect(),
        Value::Object(members) => members.iter().map(|(name, member)| (name.clone(), shape(member))).collect(),
        other => other.clone(),
    }
}

/// The placeholders of a text, with `*` for what stands between them.
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
