//! One operation as a tool: the arguments that a model gives, and the request that they fill.

use std::collections::HashSet;

use http::header::HeaderName;
use http::{HeaderValue, Method};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::arguments::{Arguments, MAX_ARGUMENTS};
use super::body;
use super::document::{Document, Part};
use super::parameter::{self, Place, Stated};
use super::security::Admission;
use super::server::Base;
use crate::rest::{
    BodyTemplate, CookiePart, Explode, HeaderPart, Need, Pair, PathPart, PathStyle, Payload, RequestTemplate, Segment,
    Template, Writing,
};

/// The operation to compile, and what was settled about it.
pub(super) struct Source<'d> {
    pub(super) document: &'d Document,
    pub(super) method: Method,
    pub(super) path: &'d str,
    /// With those that it refers to, the nearest first.
    pub(super) path_item: &'d [Part<'d>],
    pub(super) operation: Part<'d>,
    pub(super) base: Base,
    /// Headers that are configured.
    pub(super) headers: &'d [(HeaderName, String)],
    /// Places that credentials fill.
    pub(super) admission: &'d Admission,
    /// The media type that is configured for its body.
    pub(super) content_type: Option<&'d str>,
    pub(super) accept: Option<HeaderValue>,
}

/// What came of it.
pub(super) struct Compiled {
    pub(super) parameters: Value,
    pub(super) request: RequestTemplate,
    /// The executable part of the definition.
    pub(super) declaration: Map<String, Value>,
}

/// Compiles an operation.
///
/// # Errors
/// Why its requests cannot be made.
pub(super) fn compile(source: &Source<'_>) -> Result<Compiled, String> {
    let mut stated = parameter::stated(source.document, source.path_item, source.operation)?;
    stated.retain(|parameter| !is_filled(parameter, source));
    // A fragment is no part of a request: documents tell operations of one path apart by it.
    let sent = source.path.split('#').next().unwrap_or_default();
    let (path_template, query) = sent.split_once('?').unwrap_or((sent, ""));
    let mut arguments = Arguments::new(source.document, &named(path_template, query, &stated)?);

    let mut path: Vec<Vec<PathPart>> =
        source.base.path.iter().map(|segment| vec![PathPart::Literal(segment.clone())]).collect();
    for segment in path_template.strip_prefix('/').unwrap_or(path_template).split('/') {
        path.push(self::segment(segment, &stated, &mut arguments)?);
    }
    let mut in_query = HashSet::new();
    let mut pairs: Vec<Pair> = Vec::new();
    for written in query.split('&').filter(|pair| !pair.is_empty()) {
        pairs.extend(pair(written, source.admission, &stated, &mut arguments, &mut in_query)?);
    }
    let mut headers: Vec<(HeaderName, HeaderPart)> = source.headers.iter().map(literal).collect();
    let mut cookies: Vec<CookiePart> = Vec::new();
    for parameter in stated.iter().filter(|parameter| !in_query.contains(&(parameter.place, parameter.name))) {
        if parameter.place == Place::Path {
            if !path_template.contains(&format!("{{{}}}", parameter.name)) {
                return Err(format!("its path has no place for the parameter `{}`", parameter.name));
            }
            continue;
        }
        let argument = arguments.add(parameter)?;
        match parameter.place {
            Place::Path => {}
            Place::Query => pairs.push(parameter.pair(argument)?),
            Place::Header => headers.push(parameter.header(argument)?),
            Place::Cookie => cookies.push(parameter.cookie(argument)?),
        }
    }
    let mut declared_body = Value::Null;
    let body = match body::chosen(source.document, source.operation, source.content_type)? {
        Some(body) if is_senseless(source) => match body.need {
            Need::Required => {
                let method = &source.method;
                return Err(format!(
                    "it is a {method} that must have a body, which no server need look at (RFC 9110 section 9.3)"
                ));
            }
            Need::Optional => None,
        },
        Some(body) => {
            declared_body = body.content_type.to_str().unwrap_or_default().into();
            let parameter = arguments.add_body(&body)?;
            Some(BodyTemplate::Payload(Payload { parameter, content_type: body.content_type, kind: body.kind }))
        }
        None => None,
    };
    // Of the document's own words alone: what the operator sets (`base_url`, `headers`) changes no pin.
    let declaration: [(&str, Value); 4] = [
        ("method", source.method.as_str().into()),
        ("url", format!("{}/{}", source.base.stated.trim_end_matches('/'), source.path.trim_start_matches('/')).into()),
        ("parameters", stated.iter().map(|parameter| json!([parameter.place.as_str(), parameter.name])).collect()),
        ("body", declared_body),
    ];
    let declaration = declaration.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
    let request = RequestTemplate {
        method: source.method.clone(),
        origin: source.base.origin.clone(),
        path,
        pairs,
        headers,
        cookies,
        accept: source.accept.clone(),
        body,
        filled: source.admission.places.clone(),
    };
    Ok(Compiled { parameters: arguments.schema()?, request, declaration })
}

/// Whether a body of this operation means nothing: OpenAPI 3.0 wants it ignored, later ones let a GET have one.
fn is_senseless(source: &Source<'_>) -> bool {
    match source.method {
        Method::HEAD => true,
        Method::GET => !source.document.version.has_json_schema(),
        _ => false,
    }
}

/// Whether a credential or a configured header stands where a parameter would.
fn is_filled(parameter: &Stated<'_>, source: &Source<'_>) -> bool {
    let is_header = parameter.place == Place::Header;
    let by_credential = source.admission.places.iter().any(|(place, name)| {
        *place == parameter.place.as_str()
            && if is_header { name.eq_ignore_ascii_case(parameter.name) } else { name == parameter.name }
    });
    // All cookies stand in one header.
    let by_cookie = is_header
        && parameter.name.eq_ignore_ascii_case("cookie")
        && source.admission.places.iter().any(|(place, _)| *place == Place::Cookie.as_str());
    by_credential
        || by_cookie
        || (is_header && source.headers.iter().any(|(name, _)| name.as_str().eq_ignore_ascii_case(parameter.name)))
}

fn literal((name, value): &(HeaderName, String)) -> (HeaderName, HeaderPart) {
    (name.clone(), HeaderPart::Text(Template { segments: vec![Segment::Literal(value.clone())] }))
}

/// All parameters by what they are called where they stand, those of the path and its query too that are not stated.
///
/// # Errors
/// That the path shows more than a tool may have.
fn named<'a>(path_template: &'a str, query: &'a str, stated: &[Stated<'a>]) -> Result<Vec<(Place, &'a str)>, String> {
    let mut named: Vec<(Place, &str)> = stated.iter().map(|parameter| (parameter.place, parameter.name)).collect();
    let mut known: HashSet<(Place, &str)> = named.iter().copied().collect();
    let shown = path_template.split('{').skip(1).filter_map(|rest| Some((Place::Path, rest.split_once('}')?.0)));
    let asked = query.split('&').filter_map(|written| Some((Place::Query, placeholder(written)?.1)));
    for (count, (place, name)) in shown.chain(asked).enumerate() {
        if count >= MAX_ARGUMENTS {
            return Err(format!("its path has more than {MAX_ARGUMENTS} parameters"));
        }
        // In the query one of the path is meant as well.
        if !known.contains(&(Place::Path, name)) && known.insert((place, name)) {
            named.push((place, name));
        }
    }
    Ok(named)
}

/// The key and the parameter of a pair of the query that is a parameter as a whole.
fn placeholder(written: &str) -> Option<(&str, &str)> {
    let (key, value) = written.split_once('=').unwrap_or(("", written));
    let name = value.strip_prefix('{')?.strip_suffix('}')?;
    (!key.contains('{') && !name.contains(['{', '}'])).then_some((key, name))
}

/// The parameter that a pair of the query means.
fn find<'s, 'd>(stated: &'s [Stated<'d>], name: &str) -> Option<&'s Stated<'d>> {
    let of = |place: Place| stated.iter().find(|known| known.place == place && known.name == name);
    of(Place::Query).or_else(|| of(Place::Path))
}

/// A pair of the query that stands in the path: as it is, or with a parameter for its value. What a credential fills is left
/// to it.
fn pair<'d>(
    written: &str,
    admission: &Admission,
    stated: &[Stated<'d>],
    arguments: &mut Arguments<'d>,
    seen: &mut HashSet<(Place, &'d str)>,
) -> Result<Option<Pair>, String> {
    if !written.contains('{') {
        return Ok(Some(Pair::Literal(written.to_owned())));
    }
    let found = placeholder(written);
    let key = found.map(|(key, _)| percent_decode_str(key).decode_utf8_lossy().into_owned()).unwrap_or_default();
    let is_filled = |name: &str| admission.places.iter().any(|(place, filled)| *place == "query" && filled == name);
    let Some((_, shown)) = found.filter(|(_, shown)| key.is_empty() || key == *shown || !is_filled(shown)) else {
        return Err(format!(
            "the query of its path has `{written}`, which is no pair with one parameter for its value"
        ));
    };
    let parameter = find(stated, shown);
    seen.extend(parameter.map(|parameter| (parameter.place, parameter.name)));
    if is_filled(if key.is_empty() { shown } else { &key }) {
        return Ok(None);
    }
    let mut pair = match parameter {
        Some(parameter) => parameter.pair(arguments.add(parameter)?)?,
        // Documents forget to state what the path shows anyway.
        None => parameter::unstated_pair(shown, arguments.add_shown(shown)?),
    };
    // Without a key it is called as the parameter is.
    if let Pair::Typed { name, .. } = &mut pair
        && !key.is_empty()
    {
        *name = key;
    }
    Ok(Some(pair))
}

/// A segment of the path: what stands between its slashes, and its parameters.
fn segment<'d>(written: &str, stated: &[Stated<'d>], arguments: &mut Arguments<'d>) -> Result<Vec<PathPart>, String> {
    let mut parts = Vec::new();
    let mut rest = written;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { return Err("its path has an open `{`".into()) };
        if !before.is_empty() {
            parts.push(PathPart::Literal(before.to_owned()));
        }
        let known = stated.iter().find(|parameter| parameter.place == Place::Path && parameter.name == name);
        let (parameter, (style, explode, writing)) = match known {
            Some(parameter) => (arguments.add(parameter)?, parameter.path_style()?),
            // Documents forget to state what the path shows anyway.
            None => (arguments.add_unstated(Place::Path, name)?, (PathStyle::Simple, Explode::No, Writing::Styled)),
        };
        parts.push(PathPart::Value { parameter, name: name.to_owned(), style, explode, writing });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(PathPart::Literal(rest.to_owned()));
    }
    Ok(parts)
}
