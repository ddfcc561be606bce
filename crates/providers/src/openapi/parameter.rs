//! Parameters of an operation, and where each goes in a request.

use std::collections::HashMap;

use http::HeaderName;
use serde_json::Value;

use super::document::{Document, Part};
use crate::rest::{
    CookiePart, CookieStyle, Explode, HeaderPart, JsonTemplate, Need, Pair, Parameter, PathStyle, Reserved, Segment,
    Style, Template, Writing,
};

/// Header parameters that say nothing (OpenAPI 3.1, "Parameter Object"): the request's own parts say them.
const IGNORED_HEADERS: [&str; 3] = ["accept", "content-type", "authorization"];

/// Parameters of one operation.
const MAX_PARAMETERS: usize = 1_000;

/// Where a parameter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Path,
    Query,
    Header,
    Cookie,
}

impl Place {
    /// Every place, that first whose names stay as they are.
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

/// A parameter as the document states it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stated<'d> {
    pub(super) name: &'d str,
    pub(super) place: Place,
    pub(super) need: Need,
    pub(super) part: Part<'d>,
    /// Its schema, its own or that of its media type.
    pub(super) schema: Option<Part<'d>>,
    pub(super) description: Option<&'d str>,
    style: Option<&'d str>,
    explode: Option<bool>,
    reserved: Reserved,
    writing: Writing,
}

/// The parameters of an operation: its own, and those of its path, and of what that refers to, that it does not state
/// itself.
///
/// # Errors
/// Why one cannot be sent.
pub(super) fn stated<'d>(
    document: &'d Document,
    path_item: &[Part<'d>],
    operation: Part<'d>,
) -> Result<Vec<Stated<'d>>, String> {
    let mut all: Vec<Stated<'d>> = Vec::new();
    let mut known: HashMap<(Place, &str), usize> = HashMap::new();
    let levels = path_item.iter().rev().copied().chain([operation]);
    for list in levels.filter_map(|level| level.get("parameters")) {
        for written in list.items() {
            document.budget.look(1)?;
            let Some(mut stated) = read(document, document.follow(written)?)? else { continue };
            // What a reference says goes before what it refers to (OpenAPI 3.1, "Reference Object").
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

fn read<'d>(document: &'d Document, part: Part<'d>) -> Result<Option<Stated<'d>>, String> {
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
        None => (part.get("schema"), Writing::Styled),
    };
    let is_required = place == Place::Path || flag("required") == Some(true);
    Ok(Some(Stated {
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

fn writing_of(name: &str, media: &str) -> Result<Writing, String> {
    let essence = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(Writing::Json);
    }
    if essence.starts_with("text/") {
        return Ok(Writing::Styled);
    }
    Err(format!("the parameter `{name}` is written as `{media}`; JSON and text are"))
}

impl Stated<'_> {
    fn unknown_style<T>(&self) -> Result<T, String> {
        let (name, style, place) = (self.name, self.style.unwrap_or_default(), self.place.as_str());
        Err(format!("the parameter `{name}` has the style `{style}`, which there is not in a {place}"))
    }

    fn exploded(&self) -> Explode {
        if self.explode == Some(true) { Explode::Yes } else { Explode::No }
    }

    /// How it is written in a path.
    ///
    /// # Errors
    /// A style that there is not.
    pub(super) fn path_style(&self) -> Result<(PathStyle, Explode, Writing), String> {
        let style = match self.style {
            None | Some("simple") => PathStyle::Simple,
            Some("label") => PathStyle::Label,
            Some("matrix") => PathStyle::Matrix,
            Some(_) => return self.unknown_style(),
        };
        Ok((style, self.exploded(), self.writing))
    }

    /// Its pairs of the query, filled by `argument`.
    ///
    /// # Errors
    /// A style that there is not.
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

    /// Its header, filled by `argument`.
    ///
    /// # Errors
    /// A name or style that there is not.
    pub(super) fn header(&self, argument: Parameter) -> Result<(HeaderName, HeaderPart), String> {
        if !matches!(self.style, None | Some("simple")) {
            return self.unknown_style();
        }
        let name = header_name(self.name)?;
        Ok((name, HeaderPart::Value { parameter: argument, explode: self.exploded(), writing: self.writing }))
    }

    /// Its cookie, filled by `argument`.
    ///
    /// # Errors
    /// A style that there is not.
    pub(super) fn cookie(&self, argument: Parameter) -> Result<CookiePart, String> {
        let style = match self.style {
            None | Some("form") => CookieStyle::Form,
            Some("cookie") => CookieStyle::Plain,
            Some(_) => return self.unknown_style(),
        };
        // Both explode unless they say otherwise.
        let explode = if self.explode == Some(false) { Explode::No } else { Explode::Yes };
        Ok(CookiePart { name: self.name.to_owned(), parameter: argument, style, explode, writing: self.writing })
    }
}

/// The pair of a query whose parameter no document states, filled by `argument`.
pub(super) fn unstated_pair(name: &str, argument: Parameter) -> Pair {
    Pair::Typed {
        name: name.to_owned(),
        value: JsonTemplate::Text(Template { segments: vec![Segment::Parameter(argument)] }),
        style: Style::Form,
        explode: None,
        reserved: Reserved::Encoded,
        writing: Writing::Styled,
    }
}

/// A style of queries and forms.
pub(super) fn query_style(written: Option<&str>) -> Option<Style> {
    Some(match written {
        None | Some("form") => Style::Form,
        Some("spaceDelimited") => Style::SpaceDelimited,
        Some("pipeDelimited") => Style::PipeDelimited,
        Some("deepObject") => Style::DeepObject,
        Some(_) => return None,
    })
}

/// A header that an operation may set.
pub(super) fn header_name(name: &str) -> Result<HeaderName, String> {
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is not a header's name"))?;
    if crate::rest::FRAMING.contains(&header.as_str()) || header == http::header::HOST {
        return Err(format!("the header `{name}` frames the message and cannot be set"));
    }
    Ok(header)
}
