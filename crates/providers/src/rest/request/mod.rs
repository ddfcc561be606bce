//! Describes an HTTP request with arguments, for configured tools and imported operations.

pub(in crate::rest) mod body;
pub(in crate::rest) mod encoded_values;
pub(in crate::rest) mod payload;
pub(in crate::rest) mod query;
pub(in crate::rest) mod template;
pub(in crate::rest) mod xml;
mod xml_writer;

use http::header::{ACCEPT, CONTENT_TYPE, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;
use url::Url;

use self::body::{BodyTemplate, JsonTemplate};
use self::encoded_values::{CookieStyle, Explode, PathStyle, ValueEncoding, append_cookies, header_text, path_text};
use self::query::{Reserved, Style, append_pairs, encode};
use self::template::{Nulls, Parameter, Template, plain_text};
use toolwright_net::HttpRequest;

const ACCEPT_ANY: HeaderValue = HeaderValue::from_static("application/json, text/*;q=0.9, */*;q=0.5");

/// A request template.
#[derive(Debug, Clone)]
pub(crate) struct RequestTemplate {
    pub(crate) method: Method,
    /// Scheme and authority, which no argument can change.
    pub(crate) origin: String,
    /// The path segments.
    pub(crate) path: Vec<Vec<PathPart>>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) headers: Vec<(HeaderName, HeaderPart)>,
    pub(crate) cookies: Vec<CookiePart>,
    /// `Accept`, unless a header sets it.
    pub(crate) accept: Option<HeaderValue>,
    pub(crate) body: Option<BodyTemplate>,
    /// The places that credentials fill: (`query`, `header` or `cookie`; name).
    pub(crate) credential_places: Vec<(&'static str, String)>,
}

/// A part of a path segment.
#[derive(Debug, Clone)]
pub(crate) enum PathPart {
    /// Literal text, as in the URL.
    Literal(String),
    /// An argument.
    Value { parameter: Parameter, name: String, style: PathStyle, explode: Explode, writing: ValueEncoding },
}

/// A part of a query.
#[derive(Debug, Clone)]
pub(crate) enum Pair {
    /// Literal text, as in the URL.
    Literal(String),
    /// `name=` as in the URL, and a value of several parts.
    Mixed(String, Template),
    /// A decoded name, and a value of any type.
    Typed {
        name: String,
        value: JsonTemplate,
        style: Style,
        explode: Option<bool>,
        reserved: Reserved,
        writing: ValueEncoding,
    },
}

/// A header's value.
#[derive(Debug, Clone)]
pub(crate) enum HeaderPart {
    /// Text with placeholders.
    Text(Template),
    /// An argument.
    Value { parameter: Parameter, explode: Explode, writing: ValueEncoding },
}

/// One or more cookies.
#[derive(Debug, Clone)]
pub(crate) struct CookiePart {
    pub(crate) name: String,
    pub(crate) parameter: Parameter,
    pub(crate) style: CookieStyle,
    pub(crate) explode: Explode,
    pub(crate) writing: ValueEncoding,
}

impl RequestTemplate {
    /// Renders the request for these arguments.
    ///
    /// # Errors
    /// A message for the caller: a value is missing, or invalid in its place.
    pub(super) fn render(&self, arguments: &Value) -> Result<HttpRequest, String> {
        let mut headers = self.render_headers(arguments)?;
        let body = self.body.as_ref().map(|body| body.render(arguments)).transpose()?.flatten();
        let body = body.map(|body| {
            headers.entry(CONTENT_TYPE).or_insert(body.content_type);
            body.bytes
        });
        headers.entry(ACCEPT).or_insert_with(|| self.accept.clone().unwrap_or(ACCEPT_ANY));
        Ok(HttpRequest { method: self.method.clone(), url: self.render_url(arguments)?, headers, body })
    }

    /// Returns all arguments of the template.
    pub(super) fn parameters(&self) -> Vec<&Parameter> {
        let mut found: Vec<&Parameter> = Vec::new();
        found.extend(self.path.iter().flatten().filter_map(|part| match part {
            PathPart::Literal(_) => None,
            PathPart::Value { parameter, .. } => Some(parameter),
        }));
        for (_, header) in &self.headers {
            match header {
                HeaderPart::Text(template) => found.extend(template.parameters()),
                HeaderPart::Value { parameter, .. } => found.push(parameter),
            }
        }
        found.extend(self.cookies.iter().map(|cookie| &cookie.parameter));
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
        for (index, pair) in self.pairs.iter().enumerate() {
            match pair {
                Pair::Literal(literal) => pairs.push(literal.clone()),
                Pair::Mixed(name, template) => {
                    let value = template.render_text(arguments, str::to_owned, |value| encode(&plain_text(value)))?;
                    pairs.extend(value.map(|value| format!("{name}={value}")));
                }
                Pair::Typed { name, value, style, explode, reserved, writing } => {
                    let whole = value.parameter();
                    let value = value.render(arguments, Nulls::LeftOut)?.filter(|value| !value.is_null());
                    let value = value.map(|value| match writing {
                        ValueEncoding::Styled => value,
                        ValueEncoding::Json => value.to_string().into(),
                    });
                    if let Some(value) = value {
                        let before = pairs.len();
                        append_pairs(&mut pairs, name, &value, *style, *explode, *reserved)?;
                        if value.is_object() {
                            let members = pairs[before..].iter().map(|pair| name_of(pair));
                            own_members(name, members, |member| self.is_other_pair(index, member))?;
                        }
                        if let Some(parameter) = whole.filter(|_| pairs.len() == before) {
                            parameter.reject_empty_value()?;
                        }
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
        for (name, header) in &self.headers {
            let text = match header {
                HeaderPart::Text(template) => template.render_text(arguments, str::to_owned, plain_text)?,
                HeaderPart::Value { parameter, explode, writing } => match parameter.value(arguments)? {
                    Some(value) => {
                        let text = header_text(name.as_str(), value, *explode, *writing)?;
                        if text.is_none() {
                            parameter.reject_empty_value()?;
                        }
                        text
                    }
                    None => None,
                },
            };
            if let Some(text) = text {
                add_header(&mut headers, name, &text)?;
            }
        }
        // One header contains all of them (RFC 6265 section 5.4).
        let mut cookies: Vec<String> = headers.get_all(COOKIE).iter().map(text_of).collect();
        let others = cookies.len();
        for (index, cookie) in self.cookies.iter().enumerate() {
            if let Some(value) = cookie.parameter.value(arguments)? {
                let before = cookies.len();
                if let (Value::Object(members), Explode::Yes, ValueEncoding::Styled) =
                    (value, cookie.explode, cookie.writing)
                {
                    let members = members.keys().map(String::as_str);
                    own_members(&cookie.name, members, |member| self.is_other_cookie(index, member))?;
                }
                append_cookies(&mut cookies, (&cookie.name, value), cookie.style, cookie.explode, cookie.writing)?;
                if cookies.len() == before {
                    cookie.parameter.reject_empty_value()?;
                }
            }
        }
        if cookies.len() > others {
            headers.remove(COOKIE);
            add_header(&mut headers, &COOKIE, &cookies.join("; "))?;
        }
        Ok(headers)
    }

    /// Returns whether another pair, or a credential, has this encoded name.
    fn is_other_pair(&self, index: usize, name: &str) -> bool {
        let mut others = self.pairs.iter().enumerate().filter(|(at, _)| *at != index);
        let is_of = |pair: &Pair| match pair {
            Pair::Literal(pair) => name_of(pair) == name,
            Pair::Mixed(written, _) => written == name,
            Pair::Typed { name: written, .. } => encode(written) == name,
        };
        others.any(|(_, pair)| is_of(pair)) || self.is_filled("query", |filled| encode(filled) == name)
    }

    /// Returns whether another cookie, or a credential, has this name.
    fn is_other_cookie(&self, index: usize, name: &str) -> bool {
        let mut others = self.cookies.iter().enumerate().filter(|(at, _)| *at != index);
        others.any(|(_, cookie)| cookie.name == name) || self.is_filled("cookie", |filled| filled == name)
    }

    fn is_filled(&self, place: &str, is_name: impl Fn(&str) -> bool) -> bool {
        self.credential_places.iter().any(|(filled, name)| *filled == place && is_name(name))
    }
}

/// Returns the members of an exploded object. They are separate parameters, so none may replace another, which may be a
/// credential.
fn own_members<'m>(
    object: &str,
    mut members: impl Iterator<Item = &'m str>,
    is_other: impl Fn(&str) -> bool,
) -> Result<(), String> {
    match members.find(|member| is_other(member)) {
        Some(member) => Err(format!(
            "the member `{member}` of `{object}` would stand in the place of another parameter or of a credential: leave it out"
        )),
        None => Ok(()),
    }
}

/// Returns the name of an encoded pair.
fn name_of(pair: &str) -> &str {
    pair.split_once('=').map_or(pair, |(name, _)| name)
}

fn text_of(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn add_header(headers: &mut HeaderMap, name: &HeaderName, text: &str) -> Result<(), String> {
    // The value is not quoted, because it may be a secret.
    let mut value = HeaderValue::from_bytes(text.as_bytes()).map_err(|_| {
        format!("the value of the header `{name}` would hold a line break or another control character")
    })?;
    value.set_sensitive(true);
    headers.append(name.clone(), value);
    Ok(())
}

fn render_segment(segment: &[PathPart], arguments: &Value) -> Result<String, String> {
    let mut text = String::new();
    let mut names = Vec::new();
    let mut is_complete = true;
    for part in segment {
        match part {
            PathPart::Literal(literal) => text.push_str(literal),
            PathPart::Value { parameter, name, style, explode, writing } => {
                names.push(format!("`{}`", parameter.path));
                match parameter.value(arguments)? {
                    Some(value) => match path_text(name, value, *style, *explode, *writing)? {
                        Some(value) => text.push_str(&value),
                        None => is_complete = false,
                    },
                    None => is_complete = false,
                }
            }
        }
    }
    if names.is_empty() {
        return Ok(text);
    }
    let names = names.join(", ");
    if !is_complete || text.is_empty() {
        return Err(format!("the URL's path needs a value for the parameter {names}"));
    }
    // These mean another directory, even percent-encoded (WHATWG URL, "double-dot path segment").
    if matches!(text.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..") {
        return Err(format!("the parameter {names} may not be `{text}` in a URL's path"));
    }
    Ok(text)
}
