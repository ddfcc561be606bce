//! The body of an operation: which media type it is sent as, and how.

use http::HeaderValue;
use http::header::{CONTENT_TYPE, HeaderName};
use serde_json::Value;

use super::document::{Document, Part};
use super::parameter::query_style;
use super::schema::{Binary, is_bytes};
use super::xml;
use crate::rest::{
    Explode, FRAMING, FieldWriting, Need, PartContent, PartList, PartWriting, PayloadKind, Reserved, Style,
};

/// Schemas combined in one that are looked through for properties.
const MAX_DEPTH: usize = 16;

/// A body as it will be sent.
pub(super) struct Chosen<'d> {
    pub(super) need: Need,
    pub(super) description: Option<&'d str>,
    pub(super) schema: Option<Part<'d>>,
    /// How bytes in its schema are given.
    pub(super) binary: Binary,
    pub(super) content_type: HeaderValue,
    pub(super) kind: PayloadKind,
}

/// The body of an operation; `None` when it has none. Of several media types it is the one that is `wanted`, else the
/// first that keeps types best: JSON, a form, parts, XML, text, bytes.
///
/// # Errors
/// Why none of its media types can be written.
pub(super) fn chosen<'d>(
    document: &'d Document,
    operation: Part<'d>,
    wanted: Option<&str>,
) -> Result<Option<Chosen<'d>>, String> {
    let Some(written) = operation.get("requestBody") else { return Ok(None) };
    let body = document.follow(written)?;
    let Some(content) = body.get("content") else { return Ok(None) };
    let media: Vec<(&String, Part<'d>)> = content.members().collect();
    if media.is_empty() {
        return Ok(None);
    }
    let mut best: Option<(u8, Chosen<'d>)> = None;
    let mut reasons = Vec::new();
    for (name, part) in media {
        if wanted.is_some_and(|wanted| !wanted.eq_ignore_ascii_case(name)) {
            reasons.push(format!("`{name}` is not the one that is configured"));
            continue;
        }
        match of(document, body, name, part) {
            Ok((rank, chosen)) if best.as_ref().is_none_or(|(have, _)| rank < *have) => best = Some((rank, chosen)),
            Ok(_) => {}
            Err(reason) => reasons.push(reason),
        }
    }
    match best {
        Some((_, chosen)) => Ok(Some(chosen)),
        None => Err(format!("its body cannot be written: {}", reasons.join("; "))),
    }
}

fn of<'d>(document: &'d Document, body: Part<'d>, media: &str, part: Part<'d>) -> Result<(u8, Chosen<'d>), String> {
    let part = document.follow(part)?;
    let schema = part.get("schema");
    let resolved = schema.map(|schema| document.follow(schema)).transpose()?;
    let essence = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_text = || {
        let kind = resolved.and_then(|schema| schema.text("type"));
        resolved.is_none() || kind == Some("string")
    };
    let mut binary = Binary::Text;
    let mut stated = media.trim();
    let (rank, kind) = match essence.as_str() {
        "*/*" | "application/*" => {
            stated = "application/json";
            (0, PayloadKind::Json)
        }
        "application/json" | "text/json" => (0, PayloadKind::Json),
        json if json.ends_with("+json") => (1, PayloadKind::Json),
        "application/x-www-form-urlencoded" => (2, PayloadKind::Form(fields(document, part, schema)?)),
        multipart if multipart.starts_with("multipart/") => {
            binary = Binary::Parts;
            if multipart == "multipart/*" {
                stated = "multipart/form-data";
            }
            // Where there is a choice, the kind that everybody reads.
            let rank = if matches!(multipart, "multipart/form-data" | "multipart/*") { 3 } else { 4 };
            (rank, PayloadKind::Multipart(part_list(document, part, schema)?))
        }
        _ if resolved.is_some_and(|schema| is_bytes(schema.value)) || is_binary(&essence) => {
            if let Some(schema) = resolved
                && !is_text()
                && !schema.value.as_object().is_some_and(serde_json::Map::is_empty)
            {
                return Err(format!("`{media}` of a schema that is no string is not written"));
            }
            binary = Binary::File;
            if essence.ends_with("/*") {
                stated = "application/octet-stream";
            }
            (7, PayloadKind::Bytes)
        }
        text if text.starts_with("text/") && !text.contains("xml") => {
            if text == "text/*" {
                stated = "text/plain";
            }
            (6, PayloadKind::Text)
        }
        // Whoever writes the text writes its syntax too.
        _ if is_text() => (6, PayloadKind::Text),
        xml if is_xml(xml) => match schema {
            Some(schema) => {
                let body = xml::body(document, schema, None).map_err(|why| format!("`{media}`: {why}"))?;
                (5, PayloadKind::Xml(body))
            }
            None => (6, PayloadKind::Text),
        },
        _ => return Err(format!("`{media}` is not written from values; JSON, forms, parts, XML, text and bytes are")),
    };
    let content_type = HeaderValue::from_str(stated).map_err(|_| format!("`{media}` is not a media type"))?;
    let is_required = body.value.get("required").and_then(Value::as_bool) == Some(true);
    let chosen = Chosen {
        need: if is_required { Need::Required } else { Need::Optional },
        description: body.text("description"),
        schema,
        binary,
        content_type,
        kind,
    };
    Ok((rank, chosen))
}

/// Media types of bytes.
fn is_binary(essence: &str) -> bool {
    const BINARY: [&str; 5] =
        ["application/octet-stream", "application/pdf", "application/zip", "application/gzip", "application/x-tar"];
    BINARY.contains(&essence) || ["image/", "audio/", "video/", "font/"].iter().any(|kind| essence.starts_with(kind))
}

/// How the members of a form are written: by style where the encoding names one, else by media type (OpenAPI 3.1,
/// "Encoding Object").
fn fields<'d>(
    document: &'d Document,
    media: Part<'d>,
    schema: Option<Part<'d>>,
) -> Result<Vec<(String, FieldWriting)>, String> {
    let mut fields = Vec::new();
    for (name, _) in properties(document, schema)? {
        let Some(encoding) = media.get("encoding").and_then(|all| all.get(&name)) else { continue };
        let flag = |key: &str| encoding.value.get(key).and_then(Value::as_bool);
        let is_styled = ["style", "explode", "allowReserved"].iter().any(|key| encoding.value.get(key).is_some());
        let writing = if is_styled {
            let style = query_style(encoding.text("style"))
                .ok_or_else(|| format!("the member `{name}` of its form has a style that there is not"))?;
            let reserved = if flag("allowReserved") == Some(true) { Reserved::Kept } else { Reserved::Encoded };
            FieldWriting::Styled { style, explode: flag("explode"), reserved }
        } else if encoding.text("contentType").is_some_and(|media| media.contains("json")) {
            FieldWriting::Json
        } else {
            FieldWriting::Plain
        };
        fields.push((name, writing));
    }
    Ok(fields)
}

/// The style that an encoding names, if it names one at all. It holds for parts too, as in OpenAPI 3.1: 3.0 wants it
/// ignored there, but whoever writes it means it.
fn styled(encoding: Part<'_>) -> Option<(Option<Style>, Explode)> {
    if !["style", "explode", "allowReserved"].iter().any(|key| encoding.value.get(key).is_some()) {
        return None;
    }
    let style = query_style(encoding.text("style"));
    let stated = encoding.value.get("explode").and_then(Value::as_bool);
    let is_exploded = stated.unwrap_or(matches!(style, Some(Style::Form | Style::DeepObject)));
    Some((style, if is_exploded { Explode::Yes } else { Explode::No }))
}

/// Whether a media type is one of XML (RFC 7303, section 4.2).
fn is_xml(essence: &str) -> bool {
    matches!(essence, "application/xml" | "text/xml") || essence.ends_with("+xml")
}

/// How the parts of a body are written: the members of an object, each under `encoding`, or the items of a list, under
/// `prefixEncoding` and `itemEncoding` (OpenAPI 3.2, "Media Type Object").
fn part_list<'d>(document: &'d Document, media: Part<'d>, schema: Option<Part<'d>>) -> Result<PartList, String> {
    let resolved = schema.map(|schema| document.follow(schema)).transpose()?;
    if let Some(list) = resolved.filter(|schema| schema.text("type") == Some("array")) {
        let items = list.get("items");
        let mut first = Vec::new();
        let before = list.get("prefixItems").into_iter().flat_map(Part::items);
        let schemas: Vec<_> = before.map(Some).collect();
        let encodings: Vec<_> = media.get("prefixEncoding").into_iter().flat_map(Part::items).collect();
        for at in 0..schemas.len().max(encodings.len()) {
            let schema = schemas.get(at).copied().flatten().or(items);
            first.push(writing(document, &format!("{at}"), schema, encodings.get(at).copied())?);
        }
        return Ok(PartList::Items(first, writing(document, "item", items, media.get("itemEncoding"))?));
    }
    let mut parts = Vec::new();
    for (name, property) in properties(document, schema)? {
        let encoding = media.get("encoding").and_then(|all| all.get(&name));
        let part = writing(document, &name, Some(property), encoding)?;
        parts.push((name, part));
    }
    Ok(PartList::Named(parts))
}

/// How a part is written whose schema and encoding are these.
fn writing<'d>(
    document: &'d Document,
    name: &str,
    schema: Option<Part<'d>>,
    encoding: Option<Part<'d>>,
) -> Result<PartWriting, String> {
    let property = schema.map(|schema| document.follow(schema)).transpose()?;
    let items = property.and_then(|property| property.get("items"));
    let single = items.map(|items| document.follow(items)).transpose()?;
    let is_file = [property, single].into_iter().flatten().any(|schema| is_bytes(schema.value));
    let stated = encoding.and_then(|encoding| encoding.text("contentType"));
    // Of several the first; a range names none.
    let stated = stated.map(|stated| stated.split(',').next().unwrap_or_default().trim());
    let content_type = stated.filter(|stated| !stated.contains('*') && !stated.is_empty()).map(str::to_owned);
    let media = property.and_then(|property| property.text("contentMediaType")).map(str::to_owned);
    let content_type = content_type.or(media);
    let essence = content_type.as_deref().and_then(|kind| kind.split(';').next()).unwrap_or_default();
    // Whoever writes the text of a part writes its syntax too.
    let is_text = single.or(property).and_then(|schema| schema.text("type")) == Some("string");
    let content = match encoding.and_then(styled) {
        _ if is_file => PartContent::File,
        Some((style, explode)) => {
            let style = style.ok_or_else(|| format!("the part `{name}` of its body has a style that there is not"))?;
            PartContent::Styled(style, explode)
        }
        None => match items.or(schema).filter(|_| !is_text && is_xml(&essence.trim().to_ascii_lowercase())) {
            Some(schema) => PartContent::Xml(xml::body(document, schema, Some(name))?),
            None => PartContent::Value,
        },
    };
    Ok(PartWriting { headers: headers(document, name, encoding)?, content_type, content })
}

/// The headers of a part that its document gives one value for: nobody is asked for others.
fn headers(
    document: &Document,
    name: &str,
    encoding: Option<Part<'_>>,
) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let mut found = Vec::new();
    let stated = encoding.and_then(|encoding| encoding.get("headers"));
    for (key, header) in stated.into_iter().flat_map(Part::members) {
        let wrong = || format!("the part `{name}` of its body has a header `{key}` that cannot be sent");
        let header_name = HeaderName::from_bytes(key.as_bytes()).map_err(|_| wrong())?;
        if header_name == CONTENT_TYPE || FRAMING.contains(&header_name.as_str()) {
            continue;
        }
        let schema = document.follow(header)?.get("schema").map(|schema| document.follow(schema)).transpose()?;
        let only = schema.and_then(|schema| {
            let listed = schema.value.get("enum").and_then(Value::as_array).filter(|values| values.len() == 1);
            let value =
                schema.value.get("const").or_else(|| listed?.first()).or_else(|| schema.value.get("default"))?;
            Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        });
        if let Some(value) = only {
            found.push((header_name, HeaderValue::from_str(&value).map_err(|_| wrong())?));
        }
    }
    Ok(found)
}

/// The properties of a schema and of those that it is combined of.
pub(super) fn properties<'d>(
    document: &'d Document,
    schema: Option<Part<'d>>,
) -> Result<Vec<(String, Part<'d>)>, String> {
    let mut found = Vec::new();
    if let Some(schema) = schema {
        collect(document, schema, &mut found, 0)?;
    }
    Ok(found)
}

fn collect<'d>(
    document: &'d Document,
    schema: Part<'d>,
    found: &mut Vec<(String, Part<'d>)>,
    depth: usize,
) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("the schema of its body nests too deeply".into());
    }
    let schema = document.follow(schema)?;
    if let Some(properties) = schema.get("properties") {
        for (name, property) in properties.members() {
            if found.iter().all(|(have, _)| have != name) {
                found.push((name.clone(), property));
            }
        }
    }
    for list in ["allOf", "anyOf", "oneOf"].iter().filter_map(|key| schema.get(key)) {
        for inner in list.items() {
            collect(document, inner, found, depth + 1)?;
        }
    }
    Ok(())
}
