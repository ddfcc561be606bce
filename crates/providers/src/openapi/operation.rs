//! One operation as a tool: its id, its arguments, its request, and the schema of its answers.

use std::collections::{HashMap, HashSet};

use http::header::HeaderName;
use http::{HeaderValue, Method};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use toolwright_core::ToolId;
use toolwright_core::catalogue::foreign_ids;
use toolwright_core::tool_id::short_hash;

use crate::openapi::arguments::{self, Arguments, DeclaredParameter, MAX_ARGUMENTS, Place};
use crate::openapi::body;
use crate::openapi::config::{GroupBy, OpenApiConfig};
use crate::openapi::document::{Document, DocumentPart, OpenApiError};
use crate::openapi::import::{FoundOperation, tags};
use crate::openapi::schema::{Binary, Direction, Schemas};
use crate::openapi::security::Base;
use crate::openapi::security::OperationAuth;
use crate::rest::{
    BodyTemplate, CookiePart, Explode, HeaderPart, Need, Pair, PathPart, PathStyle, Payload, RequestTemplate, Segment,
    Template, ValueEncoding,
};

/// The operation to compile, and what was determined about it.
pub(super) struct Source<'d> {
    pub(super) document: &'d Document,
    pub(super) method: Method,
    pub(super) path: &'d str,
    /// Its path item and referenced ones, the nearest first.
    pub(super) path_item: &'d [DocumentPart<'d>],
    pub(super) operation: DocumentPart<'d>,
    pub(super) base: Base,
    /// Configured headers.
    pub(super) headers: &'d [(HeaderName, String)],
    /// Places that credentials fill.
    pub(super) admission: &'d OperationAuth,
    /// The configured media type of its body.
    pub(super) content_type: Option<&'d str>,
    pub(super) accept: Option<HeaderValue>,
}

/// The compiled operation.
pub(super) struct CompiledOperation {
    pub(super) parameters: Value,
    pub(super) request: RequestTemplate,
    /// The executable part of the definition.
    pub(super) declaration: Map<String, Value>,
}

/// Compiles an operation.
///
/// # Errors
/// Its requests cannot be made.
pub(super) fn compile(source: &Source<'_>) -> Result<CompiledOperation, String> {
    let mut stated = arguments::stated(source.document, source.path_item, source.operation)?;
    stated.retain(|parameter| !is_filled(parameter, source));
    // A fragment is not sent; documents use it to distinguish operations of one path.
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
        Some(body) if is_body_meaningless(source) => match body.need {
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
    // Only the document's own content: the operator's settings (`base_url`, `headers`) do not change a pin.
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
        credential_places: source.admission.places.clone(),
    };
    Ok(CompiledOperation { parameters: arguments.schema()?, request, declaration })
}

/// Returns whether a body of this operation is meaningless: OpenAPI 3.0 ignores it, later versions allow it for GET.
fn is_body_meaningless(source: &Source<'_>) -> bool {
    match source.method {
        Method::HEAD => true,
        Method::GET => !source.document.version.has_json_schema(),
        _ => false,
    }
}

/// Returns whether a credential or a configured header takes the place of a parameter.
fn is_filled(parameter: &DeclaredParameter<'_>, source: &Source<'_>) -> bool {
    let is_header = parameter.place == Place::Header;
    let by_credential = source.admission.places.iter().any(|(place, name)| {
        *place == parameter.place.as_str()
            && if is_header { name.eq_ignore_ascii_case(parameter.name) } else { name == parameter.name }
    });
    // All cookies are in one header.
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

/// Returns all parameters by place and name, including undeclared ones of the path and its query.
///
/// # Errors
/// The path has more than a tool may have.
fn named<'a>(
    path_template: &'a str,
    query: &'a str,
    stated: &[DeclaredParameter<'a>],
) -> Result<Vec<(Place, &'a str)>, String> {
    let mut named: Vec<(Place, &str)> = stated.iter().map(|parameter| (parameter.place, parameter.name)).collect();
    let mut known: HashSet<(Place, &str)> = named.iter().copied().collect();
    let shown = path_template.split('{').skip(1).filter_map(|rest| Some((Place::Path, rest.split_once('}')?.0)));
    let asked = query.split('&').filter_map(|written| Some((Place::Query, placeholder(written)?.1)));
    for (count, (place, name)) in shown.chain(asked).enumerate() {
        if count >= MAX_ARGUMENTS {
            return Err(format!("its path has more than {MAX_ARGUMENTS} parameters"));
        }
        // A query placeholder may also mean a path parameter.
        if !known.contains(&(Place::Path, name)) && known.insert((place, name)) {
            named.push((place, name));
        }
    }
    Ok(named)
}

/// Returns the key and the parameter of a query pair whose value is a parameter.
fn placeholder(written: &str) -> Option<(&str, &str)> {
    let (key, value) = written.split_once('=').unwrap_or(("", written));
    let name = value.strip_prefix('{')?.strip_suffix('}')?;
    (!key.contains('{') && !name.contains(['{', '}'])).then_some((key, name))
}

/// Returns the parameter that a query pair means.
fn find<'s, 'd>(stated: &'s [DeclaredParameter<'d>], name: &str) -> Option<&'s DeclaredParameter<'d>> {
    let of = |place: Place| stated.iter().find(|known| known.place == place && known.name == name);
    of(Place::Query).or_else(|| of(Place::Path))
}

/// Returns a query pair in the path: literal, or with a parameter as its value. Pairs that a credential fills are left
/// to it.
fn pair<'d>(
    written: &str,
    admission: &OperationAuth,
    stated: &[DeclaredParameter<'d>],
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
        // Documents sometimes omit the declaration of a parameter in the path.
        None => arguments::undeclared_pair(shown, arguments.add_shown(shown)?),
    };
    // Without a key it has the parameter's name.
    if let Pair::Typed { name, .. } = &mut pair
        && !key.is_empty()
    {
        *name = key;
    }
    Ok(Some(pair))
}

/// Returns a path segment with its parameters.
fn segment<'d>(
    written: &str,
    stated: &[DeclaredParameter<'d>],
    arguments: &mut Arguments<'d>,
) -> Result<Vec<PathPart>, String> {
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
            // Documents sometimes omit the declaration of a parameter in the path.
            None => {
                (arguments.add_unstated(Place::Path, name)?, (PathStyle::Simple, Explode::No, ValueEncoding::Styled))
            }
        };
        parts.push(PathPart::Value { parameter, name: name.to_owned(), style, explode, writing });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(PathPart::Literal(rest.to_owned()));
    }
    Ok(parts)
}

/// The most parts and bytes of a result schema. Larger ones cost more in each tool list than they are worth.
const MAX_NODES: usize = 400;
const MAX_BYTES: usize = 4 << 10;
/// The most media types in `Accept`.
const MAX_MEDIA: usize = 64;

/// The answers of an operation.
#[derive(Debug, Default)]
pub(super) struct ResponseSpec {
    pub(super) accept: Option<HeaderValue>,
    /// The schema of all successful answers, if they are of one kind: one status, JSON, an object.
    pub(super) schema: Option<Value>,
    /// Whether an answer may be streamed.
    pub(super) streams: bool,
}

/// Returns the declared answers of an operation. Invalid declarations are ignored.
pub(super) fn answers(document: &Document, operation: DocumentPart<'_>) -> ResponseSpec {
    let successes: Vec<DocumentPart<'_>> = operation
        .get("responses")
        .into_iter()
        .flat_map(DocumentPart::members)
        .filter(|(status, _)| status.starts_with('2'))
        .filter_map(|(_, response)| document.follow(response).ok())
        .collect();
    let mut media: Vec<&String> = Vec::new();
    for (name, _) in successes.iter().filter_map(|response| response.get("content")).flat_map(DocumentPart::members) {
        if media.len() == MAX_MEDIA {
            break;
        }
        if !media.contains(&name) {
            media.push(name);
        }
    }
    // JSON is preferred, whatever the order in the document.
    media.sort_by_key(|name| !is_json(name));
    let streams = media.iter().any(|name| is_stream(name));
    let accept = media.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let accept = HeaderValue::from_str(&accept).ok().filter(|_| !media.is_empty());
    let mark = document.budget.mark();
    let schema = match successes.as_slice() {
        [only] => schema(document, *only),
        _ => None,
    };
    if schema.is_none() {
        document.budget.rewind(mark);
    }
    ResponseSpec { accept, schema, streams }
}

fn is_json(media: &str) -> bool {
    let essence = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

fn is_stream(media: &str) -> bool {
    const STREAMS: [&str; 5] = [
        "text/event-stream",
        "application/x-ndjson",
        "application/jsonl",
        "application/x-jsonlines",
        "application/stream+json",
    ];
    STREAMS.contains(&media.split(';').next().unwrap_or_default().trim())
}

fn schema(document: &Document, response: DocumentPart<'_>) -> Option<Value> {
    let mut kinds = response.get("content")?.members();
    let (media, content) = kinds.next()?;
    if kinds.next().is_some() || !is_json(media) {
        return None;
    }
    let written = document.follow(content).ok()?.get("schema")?;
    if document.follow(written).ok()?.text("type") != Some("object") {
        return None;
    }
    let mut schemas = Schemas::new(document, Direction::Response, MAX_NODES);
    let mut schema = schemas.convert(written, Binary::Text).ok()?;
    let definitions = schemas.definitions().ok()?;
    let members = schema.as_object_mut()?;
    // A result schema must declare an object at its root.
    if !members.contains_key("type") {
        members.insert("type".into(), "object".into());
    }
    if !definitions.is_empty() {
        members.insert("$defs".into(), definitions.into());
    }
    (schema.to_string().len() <= MAX_BYTES).then_some(schema)
}

/// Makes the names of `found` unique, and creates their ids.
///
/// # Errors
/// The namespace is invalid.
pub(super) fn assign_ids(
    config: &OpenApiConfig,
    found: &mut [FoundOperation<'_>],
) -> Result<Vec<ToolId>, OpenApiError> {
    let named: Vec<Named<'_>> =
        found.iter().map(|entry| Named { name: &entry.name, method: &entry.method, path: entry.path }).collect();
    let names = distinct(&named);
    for (entry, name) in found.iter_mut().zip(names) {
        entry.name = name;
    }
    ids(config, found)
}

/// Returns `get_repos_owner_repo` for `GET /repos/{owner}/{repo}`.
pub(super) fn method_and_path(method: &Method, path: &str) -> String {
    let mut name = method.as_str().to_ascii_lowercase();
    for c in path.chars() {
        match c {
            c if c.is_alphanumeric() || c == '-' => name.push(c),
            _ if name.ends_with('_') => {}
            _ => name.push('_'),
        }
    }
    name.trim_end_matches('_').to_owned()
}

/// An operation with the parts of its name.
struct Named<'a> {
    name: &'a str,
    method: &'a Method,
    path: &'a str,
}

/// The form of a name, each more distinctive than the one before.
#[derive(Debug, Clone, Copy)]
enum Form {
    Own,
    Placed,
    Hashed,
}

impl Named<'_> {
    fn written(&self, form: Form) -> String {
        match form {
            Form::Own => self.name.to_owned(),
            Form::Placed => self.placed(),
            Form::Hashed => self.hashed(),
        }
    }

    /// Returns its name with method and path, which distinguishes operations with the same name.
    fn placed(&self) -> String {
        let placed = method_and_path(self.method, self.path);
        if placed == self.name { placed } else { format!("{}_{placed}", self.name) }
    }

    /// Returns that with a hash, because paths may differ in characters that names cannot have (`/users` and
    /// `/users/`).
    fn hashed(&self) -> String {
        format!("{}_{}", self.placed(), short_hash(&format!("{} {}", self.method, self.path), 8))
    }
}

/// Returns a unique name for each. A name that is already unique stays. Other names do not depend on the order of the
/// operations, unless one has the name of another's hash.
fn distinct(named: &[Named<'_>]) -> Vec<String> {
    let mut names: Vec<Option<String>> = vec![None; named.len()];
    let mut taken: HashSet<String> = HashSet::new();
    for form in [Form::Own, Form::Placed, Form::Hashed] {
        let wanted: Vec<Option<String>> =
            named.iter().zip(&names).map(|(named, have)| have.is_none().then(|| named.written(form))).collect();
        let mut count: HashMap<&str, usize> = HashMap::new();
        for name in wanted.iter().flatten() {
            *count.entry(name).or_default() += 1;
        }
        let is_free = |name: &&String| count.get(name.as_str()) == Some(&1) && !taken.contains(*name);
        let free: Vec<Option<String>> = wanted.iter().map(|name| name.as_ref().filter(is_free).cloned()).collect();
        for (name, free) in names.iter_mut().zip(free) {
            if let Some(free) = free {
                taken.insert(free.clone());
                *name = Some(free);
            }
        }
    }
    let numbered = |(name, named): (Option<String>, &Named<'_>)| {
        name.unwrap_or_else(|| {
            let hashed = named.hashed();
            let mut count = 2_usize;
            let mut free = hashed.clone();
            while !taken.insert(free.clone()) {
                free = format!("{hashed}_{count}");
                count += 1;
            }
            free
        })
    };
    names.into_iter().zip(named).map(numbered).collect()
}

fn ids(config: &OpenApiConfig, found: &[FoundOperation<'_>]) -> Result<Vec<ToolId>, OpenApiError> {
    let mut groups: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, entry) in found.iter().enumerate() {
        let namespace = match config.group_by {
            GroupBy::None => config.name.clone(),
            GroupBy::Tag => grouped(&config.name, tags(entry.operation).first().copied().unwrap_or_default()),
        };
        groups.entry(namespace).or_default().push(index);
    }
    let mut ids: Vec<Option<ToolId>> = vec![None; found.len()];
    for (namespace, members) in groups {
        let names: Vec<&str> =
            members.iter().filter_map(|index| found.get(*index)).map(|entry| entry.name.as_str()).collect();
        let made = foreign_ids(&namespace, &names)
            .map_err(|error| OpenApiError::Setting { field: "prefix".into(), reason: error.to_string() })?;
        for (index, id) in members.into_iter().zip(made) {
            if let Some(slot) = ids.get_mut(index) {
                *slot = Some(id);
            }
        }
    }
    Ok(ids.into_iter().flatten().collect())
}

/// Returns the namespace of a tag.
fn grouped(name: &str, tag: &str) -> String {
    let mut slug = String::new();
    for c in tag.chars().flat_map(char::to_lowercase) {
        match c {
            c if c.is_ascii_alphanumeric() => slug.push(c),
            _ if slug.is_empty() || slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { name.to_owned() } else { format!("{name}-{slug}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_one_name_are_made_distinct() {
        let check = |operations: &[(&str, &str, &str)], expect: &[&str]| {
            let method = |method: &str| Method::from_bytes(method.as_bytes()).expect("method");
            let own: Vec<(Method, String)> = operations
                .iter()
                .map(|(name, verb, path)| {
                    let name = if name.is_empty() { method_and_path(&method(verb), path) } else { (*name).to_owned() };
                    (method(verb), name)
                })
                .collect();
            let named = |reversed: bool| {
                let mut named: Vec<Named<'_>> = own
                    .iter()
                    .zip(operations)
                    .map(|((method, name), (.., path))| Named { name, method, path })
                    .collect();
                if reversed {
                    named.reverse();
                }
                distinct(&named)
            };
            let (names, mut reversed) = (named(false), named(true));
            reversed.reverse();
            assert_eq!(names, reversed, "the order of a document names nothing");
            let shown: Vec<String> = names
                .iter()
                .zip(operations)
                .map(|(name, (_, method, path))| name.replace(&short_hash(&format!("{method} {path}"), 8), "#"))
                .collect();
            assert_eq!(shown, expect);
        };
        check(&[("a", "GET", "/x"), ("b", "GET", "/x")], &["a", "b"]);
        check(&[("", "GET", "/users"), ("", "GET", "/users/")], &["get_users_#", "get_users_#"]);
        check(&[("", "GET", "/a.json"), ("", "GET", "/a/json")], &["get_a_json_#", "get_a_json_#"]);
        check(&[("", "GET", "/a/{b}"), ("", "GET", "/a/b")], &["get_a_b_#", "get_a_b_#"]);
        check(
            &[("x", "GET", "/a"), ("x", "GET", "/b"), ("x_get_a", "GET", "/c")],
            &["x_get_a_#", "x_get_b", "x_get_a"],
        );
        check(&[("x", "GET", "/a"), ("x", "GET", "/a/")], &["x_get_a_#", "x_get_a_#"]);
    }
}
