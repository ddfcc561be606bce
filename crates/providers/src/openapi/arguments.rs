//! Arguments of an operation: its parameters, their places in the request, their unique names and their schemas.

use std::collections::{HashMap, HashSet};

use http::HeaderName;
use serde_json::{Map, Value, json};
use toolwright_core::tool_id::short_hash;

use crate::openapi::body;
use crate::openapi::document::{Document, DocumentPart, of_text, of_value};
use crate::openapi::schema::{Binary, Direction, Schemas, file, file_of_range};
use crate::rest::{
    CookiePart, CookieStyle, Explode, HeaderPart, JsonTemplate, Kinds, Need, Pair, Parameter, PathStyle, PayloadKind,
    Reserved, Segment, Style, Template, ValueEncoding,
};

/// The most parts of the argument schemas of one tool.
const MAX_NODES: usize = 50_000;
/// The most arguments of one tool.
pub(super) const MAX_ARGUMENTS: usize = 1_000;
/// The longest argument name that every model API accepts.
const MAX_ARGUMENT: usize = 64;

/// Collects the arguments of a tool.
pub(super) struct Arguments<'d> {
    document: &'d Document,
    schemas: Schemas<'d>,
    /// The argument name of each parameter.
    names: HashMap<(Place, String), String>,
    /// Parameters that are arguments already: a parameter that occurs twice is one.
    made: HashMap<(Place, String), Parameter>,
    properties: Map<String, Value>,
    required: Vec<Value>,
}

impl<'d> Arguments<'d> {
    /// Creates it for parameters with these places and names.
    pub(super) fn new(document: &'d Document, stated: &[(Place, &str)]) -> Self {
        let names = stated.iter().map(|(place, name)| (*place, (*name).to_owned())).zip(distinct(stated));
        Self {
            document,
            schemas: Schemas::new(document, Direction::Request, MAX_NODES),
            names: names.collect(),
            made: HashMap::new(),
            properties: Map::new(),
            required: Vec::new(),
        }
    }

    /// Adds a declared parameter.
    ///
    /// # Errors
    /// Its schema cannot be resolved, or there are too many arguments.
    pub(super) fn add(&mut self, stated: &DeclaredParameter<'d>) -> Result<Parameter, String> {
        if let Some(made) = self.made.get(&(stated.place, stated.name.to_owned())) {
            return Ok(made.clone());
        }
        let description = stated.description.map(str::trim).filter(|text| !text.is_empty());
        let example = stated.part.value.get("example");
        let texts = description.map_or(0, of_text) + example.map_or(0, of_value);
        self.document.budget.take(of_text(stated.name) + texts)?;
        let mut schema = match stated.schema {
            Some(schema) => self.schemas.convert(schema, Binary::Text)?,
            None => json!({}),
        };
        if schema == Value::Bool(true) {
            schema = json!({});
        }
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
        self.put((stated.place, stated.name), stated.need, schema)
    }

    /// Adds an undeclared parameter.
    ///
    /// # Errors
    /// There are too many arguments.
    pub(super) fn add_unstated(&mut self, place: Place, name: &str) -> Result<Parameter, String> {
        if let Some(made) = self.made.get(&(place, name.to_owned())) {
            return Ok(made.clone());
        }
        self.document.budget.take(1 + of_text(name))?;
        self.put((place, name), Need::Required, json!({"type": "string"}))
    }

    /// Adds an undeclared parameter that occurs in the query of a path: the path's parameter, if it has one of this
    /// name.
    ///
    /// # Errors
    /// As [`Arguments::add_unstated`].
    pub(super) fn add_shown(&mut self, name: &str) -> Result<Parameter, String> {
        let is_of_path = self.made.contains_key(&(Place::Path, name.to_owned()));
        self.add_unstated(if is_of_path { Place::Path } else { Place::Query }, name)
    }

    /// Adds the body.
    ///
    /// # Errors
    /// As [`Arguments::add`].
    pub(super) fn add_body(&mut self, body: &body::ChosenBody<'d>) -> Result<Parameter, String> {
        let mut schema = match (body.schema, body.binary) {
            (_, Binary::File) => match &body.kind {
                PayloadKind::Bytes(Kinds::Declared(range)) => file_of_range(range),
                _ => file(None),
            },
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

    /// Adds an argument under its unique name. If that differs from the parameter's, its description names the
    /// parameter.
    fn put(&mut self, (place, name): (Place, &str), need: Need, mut schema: Value) -> Result<Parameter, String> {
        let settled = self.names.get(&(place, name.to_owned()));
        let argument = settled.cloned().unwrap_or_else(|| legal_argument(name));
        if let Value::Object(members) = &mut schema
            && argument != name
        {
            let about = members.get("description").and_then(Value::as_str).unwrap_or_default();
            let about = format!("`{name}` of the {}. {about}", place.as_str());
            members.insert("description".into(), about.trim_end().into());
        }
        let parameter = self.named(&argument, need, schema)?;
        self.made.insert((place, name.to_owned()), parameter.clone());
        Ok(parameter)
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

    /// Returns the schema of all arguments.
    ///
    /// # Errors
    /// A schema that they refer to cannot be resolved.
    pub(super) fn schema(self) -> Result<Value, String> {
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

/// The form of a name, each more distinctive than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Without the characters that are invalid in argument names.
    Own,
    /// With words for these characters.
    Spelled,
    /// With the place as a prefix.
    Placed,
    /// With a hash.
    Hashed,
}

/// Returns a unique name for each parameter, independent of their order. A legal name stays, for the first place that
/// has it in the order path, query, headers, cookies.
fn distinct(stated: &[(Place, &str)]) -> Vec<String> {
    let mut names: Vec<Option<String>> = vec![None; stated.len()];
    let mut taken = HashSet::new();
    for at in Place::ALL {
        for (name, (place, stated)) in names.iter_mut().zip(stated) {
            if *place == at && legal_argument(stated) == *stated && taken.insert((*stated).to_owned()) {
                *name = Some((*stated).to_owned());
            }
        }
    }
    for form in [Form::Own, Form::Spelled, Form::Placed, Form::Hashed] {
        let written = |(place, stated): &(Place, &str)| match form {
            Form::Own => legal_argument(stated),
            Form::Spelled => legal_argument(&readable_name(stated)),
            Form::Placed => legal_argument(&format!("{}_{stated}", place.as_str())),
            Form::Hashed => {
                let hash = short_hash(&format!("{} {stated}", place.as_str()), 8);
                let placed = legal_argument(&format!("{}_{stated}", place.as_str()));
                legal_argument(&format!("{placed}_{hash}"))
            }
        };
        let wanted: Vec<Option<String>> =
            names.iter().zip(stated).map(|(name, stated)| name.is_none().then(|| written(stated))).collect();
        let mut count: HashMap<&str, usize> = HashMap::new();
        for name in wanted.iter().flatten() {
            *count.entry(name).or_default() += 1;
        }
        for (name, wanted) in names.iter_mut().zip(&wanted) {
            if let Some(wanted) = wanted
                && count.get(wanted.as_str()) == Some(&1)
                && taken.insert(wanted.clone())
            {
                *name = Some(wanted.clone());
            }
        }
    }
    let numbered = |(name, (_, stated)): (Option<String>, &(Place, &str))| {
        name.unwrap_or_else(|| {
            let mut count = 2_usize;
            loop {
                let free = legal_argument(&format!("{stated}_{count}"));
                if taken.insert(free.clone()) {
                    return free;
                }
                count += 1;
            }
        })
    };
    names.into_iter().zip(stated).map(numbered).collect()
}

/// Returns a name with words for invalid characters: `StartTime_lt` for `StartTime<`.
fn readable_name(name: &str) -> String {
    let mut spelled = String::new();
    for c in name.chars() {
        let word = match c {
            '<' => "lt",
            '>' => "gt",
            '=' => "eq",
            '!' => "not",
            '*' => "star",
            '+' => "plus",
            '@' => "at",
            '$' => "dollar",
            '%' => "percent",
            '&' => "and",
            '|' => "or",
            '~' => "tilde",
            '#' => "hash",
            '?' => "query",
            '[' | ']' | '(' | ')' | '{' | '}' | ' ' | ',' | ';' | ':' | '/' => "",
            c => {
                spelled.push(c);
                continue;
            }
        };
        for part in ["_", word, "_"] {
            if part != "_" || !spelled.ends_with('_') {
                spelled.push_str(part);
            }
        }
    }
    spelled.trim_matches('_').to_owned()
}

/// Returns an argument name that every model API accepts: letters, digits, `_`, `-` and `.`, at most 64.
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

/// Header parameters that have no meaning (OpenAPI 3.1, "Parameter Object"), because other parts of the request set
/// them.
const IGNORED_HEADERS: [&str; 3] = ["accept", "content-type", "authorization"];

/// The most parameters of one operation.
const MAX_PARAMETERS: usize = 1_000;

/// The place of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Path,
    Query,
    Header,
    Cookie,
}

impl Place {
    /// All places, in the order of precedence for names.
    pub(super) const ALL: [Self; 4] = [Self::Path, Self::Query, Self::Header, Self::Cookie];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
            Self::Header => "header",
            Self::Cookie => "cookie",
        }
    }
}

/// A declared parameter.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeclaredParameter<'d> {
    pub(super) name: &'d str,
    pub(super) place: Place,
    pub(super) need: Need,
    pub(super) part: DocumentPart<'d>,
    /// Its schema: its own, or that of its media type.
    pub(super) schema: Option<DocumentPart<'d>>,
    pub(super) description: Option<&'d str>,
    style: Option<&'d str>,
    explode: Option<bool>,
    reserved: Reserved,
    writing: ValueEncoding,
}

/// Returns the parameters of an operation: its own, and those of its path item and the latter's references that it does
/// not override.
///
/// # Errors
/// A parameter cannot be sent.
pub(super) fn stated<'d>(
    document: &'d Document,
    path_item: &[DocumentPart<'d>],
    operation: DocumentPart<'d>,
) -> Result<Vec<DeclaredParameter<'d>>, String> {
    let mut all: Vec<DeclaredParameter<'d>> = Vec::new();
    let mut known: HashMap<(Place, &str), usize> = HashMap::new();
    let levels = path_item.iter().rev().copied().chain([operation]);
    for list in levels.filter_map(|level| level.get("parameters")) {
        for written in list.items() {
            document.budget.look(1)?;
            let Some(mut stated) = read(document, document.follow(written)?)? else { continue };
            // Fields beside a reference override its target (OpenAPI 3.1, "Reference Object").
            if document.version.has_json_schema() && written.value.get("$ref").is_some() {
                stated.description = written.text("description").or(stated.description);
            }
            let at = *known.entry((stated.place, stated.name)).or_insert(all.len());
            match all.get_mut(at) {
                Some(have) => *have = stated,
                None if at >= MAX_PARAMETERS => return Err(format!("it has more than {MAX_PARAMETERS} parameters")),
                None => all.push(stated),
            }
        }
    }
    Ok(all)
}

fn read<'d>(document: &'d Document, part: DocumentPart<'d>) -> Result<Option<DeclaredParameter<'d>>, String> {
    let name = part.text("name").ok_or("a parameter has no name")?;
    let place = match part.text("in") {
        Some("path") => Place::Path,
        Some("query") => Place::Query,
        Some("header") if IGNORED_HEADERS.iter().any(|ignored| name.eq_ignore_ascii_case(ignored)) => return Ok(None),
        Some("header") => Place::Header,
        Some("cookie") => Place::Cookie,
        other => {
            let place = other.unwrap_or("nowhere");
            return Err(format!("the parameter `{name}` is in `{place}`, which is not a place that is written to"));
        }
    };
    let flag = |key: &str| part.value.get(key).and_then(Value::as_bool);
    let content = part.get("content").and_then(|content| content.members().next());
    let (schema, writing) = match content {
        Some((media, content)) => {
            let content = document.follow(content)?;
            (content.get("schema"), writing_of(name, media)?)
        }
        None => (part.get("schema"), ValueEncoding::Styled),
    };
    let is_required = place == Place::Path || flag("required") == Some(true);
    Ok(Some(DeclaredParameter {
        name,
        place,
        need: if is_required { Need::Required } else { Need::Optional },
        part,
        schema,
        description: part.text("description"),
        style: part.text("style"),
        explode: flag("explode"),
        reserved: if flag("allowReserved") == Some(true) { Reserved::Kept } else { Reserved::Encoded },
        writing,
    }))
}

fn writing_of(name: &str, media: &str) -> Result<ValueEncoding, String> {
    let essence = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(ValueEncoding::Json);
    }
    if essence.starts_with("text/") {
        return Ok(ValueEncoding::Styled);
    }
    Err(format!("the parameter `{name}` is written as `{media}`; JSON and text are"))
}

impl DeclaredParameter<'_> {
    fn unknown_style<T>(&self) -> Result<T, String> {
        let (name, style, place) = (self.name, self.style.unwrap_or_default(), self.place.as_str());
        Err(format!("the parameter `{name}` has the style `{style}`, which does not exist in a {place}"))
    }

    fn exploded(&self) -> Explode {
        if self.explode == Some(true) { Explode::Yes } else { Explode::No }
    }

    /// Returns how it is written in a path.
    ///
    /// # Errors
    /// Its style is invalid.
    pub(super) fn path_style(&self) -> Result<(PathStyle, Explode, ValueEncoding), String> {
        let style = match self.style {
            None | Some("simple") => PathStyle::Simple,
            Some("label") => PathStyle::Label,
            Some("matrix") => PathStyle::Matrix,
            Some(_) => return self.unknown_style(),
        };
        Ok((style, self.exploded(), self.writing))
    }

    /// Returns its pairs of the query, filled by `argument`.
    ///
    /// # Errors
    /// Its style is invalid.
    pub(super) fn pair(&self, argument: Parameter) -> Result<Pair, String> {
        let style = match query_style(self.style) {
            Some(style) => style,
            None => return self.unknown_style(),
        };
        Ok(Pair::Typed {
            name: self.name.to_owned(),
            value: JsonTemplate::Text(Template { segments: vec![Segment::Parameter(argument)] }),
            style,
            explode: self.explode,
            reserved: self.reserved,
            writing: self.writing,
        })
    }

    /// Returns its header, filled by `argument`.
    ///
    /// # Errors
    /// Its name or style is invalid.
    pub(super) fn header(&self, argument: Parameter) -> Result<(HeaderName, HeaderPart), String> {
        if !matches!(self.style, None | Some("simple")) {
            return self.unknown_style();
        }
        let name = header_name(self.name)?;
        Ok((name, HeaderPart::Value { parameter: argument, explode: self.exploded(), writing: self.writing }))
    }

    /// Returns its cookie, filled by `argument`.
    ///
    /// # Errors
    /// Its style is invalid.
    pub(super) fn cookie(&self, argument: Parameter) -> Result<CookiePart, String> {
        let style = match self.style {
            None | Some("form") => CookieStyle::Form,
            Some("cookie") => CookieStyle::Plain,
            Some(_) => return self.unknown_style(),
        };
        // Both explode by default.
        let explode = if self.explode == Some(false) { Explode::No } else { Explode::Yes };
        Ok(CookiePart { name: self.name.to_owned(), parameter: argument, style, explode, writing: self.writing })
    }
}

/// Returns the pair of a query for an undeclared parameter, filled by `argument`.
pub(super) fn undeclared_pair(name: &str, argument: Parameter) -> Pair {
    Pair::Typed {
        name: name.to_owned(),
        value: JsonTemplate::Text(Template { segments: vec![Segment::Parameter(argument)] }),
        style: Style::Form,
        explode: None,
        reserved: Reserved::Encoded,
        writing: ValueEncoding::Styled,
    }
}

/// Returns a style of queries and forms.
pub(super) fn query_style(written: Option<&str>) -> Option<Style> {
    Some(match written {
        None | Some("form") => Style::Form,
        Some("spaceDelimited") => Style::SpaceDelimited,
        Some("pipeDelimited") => Style::PipeDelimited,
        Some("deepObject") => Style::DeepObject,
        Some(_) => return None,
    })
}

/// Returns a header that an operation may set.
pub(super) fn header_name(name: &str) -> Result<HeaderName, String> {
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is not a header's name"))?;
    if crate::rest::FRAMING.contains(&header.as_str()) || header == http::header::HOST {
        return Err(format!("the header `{name}` frames the message and cannot be set"));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn illegal_characters_keep_parameters_apart() {
        use Place::{Cookie, Header, Path, Query};
        let check = |stated: &[(Place, &str)], expect: &[&str]| {
            let mut reversed: Vec<_> = stated.to_vec();
            reversed.reverse();
            let mut names = distinct(&reversed);
            names.reverse();
            assert_eq!(names, distinct(stated), "the order of a document names nothing");
            assert_eq!(names, expect);
        };
        check(
            &[(Query, "StartTime<"), (Query, "StartTime"), (Query, "StartTime>")],
            &["StartTime_lt", "StartTime", "StartTime_gt"],
        );
        check(&[(Query, "a[b]"), (Query, "é")], &["a_b", &format!("argument_{}", short_hash("é", 8))]);
        check(
            &[(Query, "id"), (Path, "id"), (Cookie, "id"), (Header, "id")],
            &["query_id", "id", "cookie_id", "header_id"],
        );
        let hash = short_hash("query a]", 8);
        let other = short_hash("query a[", 8);
        check(&[(Query, "a]"), (Query, "a[")], &[&format!("query_a_{hash}"), &format!("query_a_{other}")]);
    }
}
