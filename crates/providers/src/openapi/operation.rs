//! One operation as a tool: the arguments that a model gives, and the request that they fill.

use http::header::HeaderName;
use http::{HeaderValue, Method};
use serde_json::{Map, Value, json};
use toolwright_core::name::short_hash;

use super::body;
use super::budget::{of_text, of_value};
use super::document::{Document, Part};
use super::parameter::{self, Place, Stated};
use super::schema::{Binary, Direction, Schemas, file};
use super::security::Admission;
use super::server::Base;
use crate::rest::{
    BodyTemplate, CookiePart, Explode, HeaderPart, Need, Pair, Parameter, PathPart, PathStyle, Payload,
    RequestTemplate, Segment, Template, Writing,
};

/// Parts of one tool's schemas of arguments.
const MAX_NODES: usize = 50_000;
/// Arguments of one tool.
const MAX_ARGUMENTS: usize = 1_000;
/// The longest name of an argument that every model API takes.
const MAX_ARGUMENT: usize = 64;

/// The operation to compile, and what was settled about it.
pub(super) struct Source<'d> {
    pub(super) document: &'d Document,
    pub(super) method: Method,
    pub(super) path: &'d str,
    pub(super) path_item: Part<'d>,
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
    let mut arguments = Arguments::new(source.document);
    let mut stated = parameter::stated(source.document, source.path_item, source.operation)?;
    stated.retain(|parameter| !is_filled(parameter, source));
    let (path_template, query) = source.path.split_once('?').unwrap_or((source.path, ""));
    let path_template = path_template.split('#').next().unwrap_or_default();

    let mut path: Vec<Vec<PathPart>> =
        source.base.path.iter().map(|segment| vec![PathPart::Literal(segment.clone())]).collect();
    for segment in path_template.strip_prefix('/').unwrap_or(path_template).split('/') {
        path.push(self::segment(segment, &stated, &mut arguments)?);
    }
    let mut pairs: Vec<Pair> =
        query.split('&').filter(|pair| !pair.is_empty()).map(|pair| Pair::Literal(pair.into())).collect();
    let mut headers: Vec<(HeaderName, HeaderPart)> = source.headers.iter().map(literal).collect();
    let mut cookies: Vec<CookiePart> = Vec::new();
    for parameter in &stated {
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
    by_credential
        || (is_header && source.headers.iter().any(|(name, _)| name.as_str().eq_ignore_ascii_case(parameter.name)))
}

fn literal((name, value): &(HeaderName, String)) -> (HeaderName, HeaderPart) {
    (name.clone(), HeaderPart::Text(Template { segments: vec![Segment::Literal(value.clone())] }))
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
            None => (
                arguments.put(name, Place::Path, Need::Required, json!({"type": "string"}))?,
                (PathStyle::Simple, Explode::No, Writing::Styled),
            ),
        };
        parts.push(PathPart::Value { parameter, name: name.to_owned(), style, explode, writing });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(PathPart::Literal(rest.to_owned()));
    }
    Ok(parts)
}

/// The arguments of a tool as they are collected.
struct Arguments<'d> {
    document: &'d Document,
    schemas: Schemas<'d>,
    properties: Map<String, Value>,
    required: Vec<Value>,
}

impl<'d> Arguments<'d> {
    fn new(document: &'d Document) -> Self {
        Self {
            document,
            schemas: Schemas::new(document, Direction::Request, MAX_NODES),
            properties: Map::new(),
            required: Vec::new(),
        }
    }

    fn add(&mut self, stated: &Stated<'d>) -> Result<Parameter, String> {
        let description = stated.description.map(str::trim).filter(|text| !text.is_empty());
        let example = stated.part.value.get("example");
        let texts = description.map_or(0, of_text) + example.map_or(0, of_value);
        self.document.budget.take(of_text(stated.name) + texts)?;
        let mut schema = match stated.schema {
            Some(schema) => self.schemas.convert(schema, Binary::Text)?,
            None => json!({}),
        };
        if let Value::Object(members) = &mut schema {
            if let Some(description) = description {
                members.insert("description".into(), description.into());
            }
            if let Some(example) = example.filter(|_| !members.contains_key("examples")) {
                members.insert("examples".into(), json!([example]));
            }
            if stated.part.value.get("deprecated") == Some(&Value::Bool(true)) {
                members.insert("deprecated".into(), true.into());
            }
        }
        self.put(stated.name, stated.place, stated.need, schema)
    }

    fn add_body(&mut self, body: &body::Chosen<'d>) -> Result<Parameter, String> {
        let mut schema = match (body.schema, body.binary) {
            (_, Binary::File) => file(None),
            (Some(schema), binary) => self.schemas.convert(schema, binary)?,
            (None, Binary::Parts) => json!({"type": "object"}),
            (None, Binary::Text) => json!({}),
        };
        if let (Value::Object(members), Some(description)) = (&mut schema, body.description)
            && !members.contains_key("description")
        {
            self.document.budget.take(of_text(description))?;
            members.insert("description".into(), description.trim().into());
        }
        let name = if self.properties.contains_key("body") { "request_body" } else { "body" };
        self.named(name, body.need, schema)
    }

    /// Adds an argument under its own name, or one that tells its place where that is taken.
    fn put(&mut self, name: &str, place: Place, need: Need, schema: Value) -> Result<Parameter, String> {
        let legal = legal_argument(name);
        if self.properties.contains_key(&legal) {
            let placed = legal_argument(&format!("{}_{name}", place.as_str()));
            return self.named(&placed, need, schema);
        }
        self.named(&legal, need, schema)
    }

    fn named(&mut self, name: &str, need: Need, schema: Value) -> Result<Parameter, String> {
        if self.properties.len() >= MAX_ARGUMENTS {
            return Err(format!("it takes more than {MAX_ARGUMENTS} arguments"));
        }
        let mut free = name.to_owned();
        let mut count = 2;
        while self.properties.contains_key(&free) {
            free = legal_argument(&format!("{name}_{count}"));
            count += 1;
        }
        self.properties.insert(free.clone(), schema);
        if need == Need::Required {
            self.required.push(free.clone().into());
        }
        Ok(Parameter::argument(&free, need))
    }

    fn schema(self) -> Result<Value, String> {
        let mut schema = Map::new();
        schema.insert("type".into(), "object".into());
        schema.insert("properties".into(), self.properties.into());
        if !self.required.is_empty() {
            schema.insert("required".into(), self.required.into());
        }
        schema.insert("additionalProperties".into(), false.into());
        let definitions = self.schemas.definitions()?;
        if !definitions.is_empty() {
            schema.insert("$defs".into(), definitions.into());
        }
        Ok(schema.into())
    }
}

/// An argument's name that every model API takes: letters, digits, `_`, `-` and `.`, at most 64.
fn legal_argument(name: &str) -> String {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !name.is_empty() && name.len() <= MAX_ARGUMENT && name.chars().all(is_legal) {
        return name.to_owned();
    }
    let mut legal = String::new();
    for c in name.chars() {
        match c {
            c if is_legal(c) => legal.push(c),
            _ if legal.ends_with('_') => {}
            _ => legal.push('_'),
        }
    }
    let legal = legal.trim_matches('_');
    match legal.len() {
        0 => format!("argument_{}", short_hash(name, 8)),
        1..=MAX_ARGUMENT => legal.to_owned(),
        _ => format!("{}_{}", &legal[..MAX_ARGUMENT - 9], short_hash(name, 8)),
    }
}
