//! The body of an operation: its media type, its parts, and its XML names.

use std::collections::{BTreeMap, HashMap, HashSet};

use http::HeaderValue;
use http::header::{CONTENT_TYPE, HeaderName};
use serde_json::Value;

use crate::openapi::arguments::query_style;
use crate::openapi::document::{Document, DocumentPart, of_text};
use crate::openapi::schema::{Binary, only_type};
use crate::openapi::schema_walk::{ContainsBytes, StepBudget, bytes_of, combined, properties};
use crate::rest::{
    Explode, FRAMING, FieldWriting, Kinds, Need, PartContent, PartList, PartWriting, PayloadKind, Reserved, Style,
    XmlBody, XmlList, XmlNode, XmlPlace, XmlSchema, is_xml_name,
};

/// The chosen form of a body.
pub(super) struct ChosenBody<'d> {
    pub(super) need: Need,
    pub(super) description: Option<&'d str>,
    pub(super) schema: Option<DocumentPart<'d>>,
    /// How binary strings in its schema are given.
    pub(super) binary: Binary,
    pub(super) content_type: HeaderValue,
    pub(super) kind: PayloadKind,
}

/// Returns the body of an operation; `None` if it has none. Of several media types it is the `wanted` one, else the
/// first that preserves types best: JSON, form, parts, XML, text, bytes.
///
/// # Errors
/// None of its media types can be written.
pub(super) fn chosen<'d>(
    document: &'d Document,
    operation: DocumentPart<'d>,
    wanted: Option<&str>,
) -> Result<Option<ChosenBody<'d>>, String> {
    let Some(written) = operation.get("requestBody") else { return Ok(None) };
    let body = document.follow(written)?;
    let Some(content) = body.get("content") else { return Ok(None) };
    // Fields beside a reference override its target (OpenAPI 3.1, "Reference Object").
    let beside = written.text("description").filter(|_| document.version.has_json_schema());
    let description = beside.or(body.text("description"));
    let media: Vec<(&String, DocumentPart<'d>)> = content.members().collect();
    if media.is_empty() {
        return Ok(None);
    }
    document.budget.look(media.len())?;
    let (mut candidates, mut reasons) = (Vec::new(), Vec::new());
    for (name, part) in media {
        if wanted.is_some_and(|wanted| !wanted.eq_ignore_ascii_case(name)) {
            reasons.push(format!("`{name}` is not the one that is configured"));
            continue;
        }
        match candidate(document, name, part) {
            Ok(candidate) => candidates.push(candidate),
            Err(reason) => reasons.push(reason),
        }
    }
    // The first one of equal rank wins. Later candidates are only examined if earlier ones cannot be written.
    candidates.sort_by_key(|candidate| candidate.rank);
    for candidate in candidates {
        match candidate.build(document, body, description) {
            Ok(chosen) => return Ok(Some(chosen)),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(format!("its body cannot be written: {}", reasons.join("; ")))
}

/// A media type in which a body may be sent.
struct BodyCandidate<'d> {
    /// The lower, the better it preserves types.
    rank: u8,
    /// The document's name for it.
    media: &'d str,
    part: DocumentPart<'d>,
    /// The name that is sent.
    stated: &'d str,
    /// The allowed media types of its bytes.
    kinds: Kinds,
    writing: Kind<'d>,
}

/// How a body is written, before its schema is examined.
#[derive(Debug, Clone, Copy)]
enum Kind<'d> {
    Json,
    Form,
    Parts,
    /// With this schema.
    Xml(DocumentPart<'d>),
    Text,
    Bytes,
}

fn candidate<'d>(document: &'d Document, media: &'d str, part: DocumentPart<'d>) -> Result<BodyCandidate<'d>, String> {
    let part = document.follow(part)?;
    let resolved = part.get("schema").map(|schema| document.follow(schema)).transpose()?;
    let essence = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let only = resolved.and_then(|schema| only_type(schema.value));
    let is_text = resolved.is_none() || only == Some("string");
    let is_bytes = match resolved.filter(|_| !has_values(&essence) && only != Some("array")) {
        Some(schema) => bytes_of(document, schema)?.0 == ContainsBytes::Always,
        None => false,
    };
    let mut stated = media.trim();
    let mut kinds = Kinds::Own;
    let (rank, writing) = match essence.as_str() {
        // Bytes are not a JSON value.
        "*/*" | "application/*" if is_bytes => {
            stated = "application/octet-stream";
            kinds = Kinds::Any(essence.clone());
            (7, Kind::Bytes)
        }
        "*/*" | "application/*" => {
            stated = "application/json";
            (0, Kind::Json)
        }
        "application/json" | "text/json" => (0, Kind::Json),
        json if json.ends_with("+json") => (1, Kind::Json),
        "application/x-www-form-urlencoded" => match only {
            Some(other) if other != "object" => {
                return Err(format!("`{media}` of a schema that is no object has no names for its pairs"));
            }
            _ => (2, Kind::Form),
        },
        multipart if multipart.starts_with("multipart/") => {
            let is_list = only == Some("array");
            if multipart == "multipart/*" {
                stated = if is_list { "multipart/mixed" } else { "multipart/form-data" };
            }
            // Its parts are identified only by their names (RFC 7578, section 4.2).
            if multipart == "multipart/form-data" && is_list {
                return Err(format!("`{media}` of a list has no names for its parts"));
            }
            // If there is a choice, the most widely supported kind.
            (if matches!(multipart, "multipart/form-data" | "multipart/*") { 3 } else { 4 }, Kind::Parts)
        }
        _ if is_bytes || is_binary(&essence) => {
            if let Some(schema) = resolved
                && !is_text
                && !is_bytes
                && !schema.value.as_object().is_some_and(serde_json::Map::is_empty)
            {
                return Err(format!("`{media}` of a schema that is no string is not written"));
            }
            // A concrete type of `image/*` is required, which only the caller knows.
            if essence.ends_with("/*") {
                kinds = Kinds::Declared(essence.clone());
            }
            (7, Kind::Bytes)
        }
        text if text.starts_with("text/") && !text.contains("xml") => {
            if text == "text/*" {
                stated = "text/plain";
            }
            (6, Kind::Text)
        }
        // The author of the text also writes its syntax.
        _ if is_text => (6, Kind::Text),
        other => match part.get("schema").filter(|_| is_xml(other)) {
            Some(schema) => (5, Kind::Xml(schema)),
            None => {
                let written = "JSON, forms, parts, XML, text and bytes are";
                return Err(format!("`{media}` is not written from values; {written}"));
            }
        },
    };
    Ok(BodyCandidate { rank, media, part, stated, kinds, writing })
}

impl<'d> BodyCandidate<'d> {
    fn build(
        &self,
        document: &'d Document,
        body: DocumentPart<'d>,
        description: Option<&'d str>,
    ) -> Result<ChosenBody<'d>, String> {
        let Self { media, part, stated, writing, kinds, .. } = self;
        let (media, part, stated, writing) = (*media, *part, *stated, *writing);
        let (schema, mut steps) = (part.get("schema"), StepBudget::new());
        let (kind, binary) = match writing {
            Kind::Json => (PayloadKind::Json, Binary::Text),
            Kind::Form => (PayloadKind::Form(fields(document, part, schema, &mut steps)?), Binary::Text),
            Kind::Parts => (PayloadKind::Multipart(part_list(document, part, schema, &mut steps)?), Binary::Parts),
            Kind::Bytes => (PayloadKind::Bytes(kinds.clone()), Binary::File),
            Kind::Text => (PayloadKind::Text, Binary::Text),
            Kind::Xml(schema) => {
                let body = xml_body(document, schema, None);
                (PayloadKind::Xml(body.map_err(|why| format!("`{media}`: {why}"))?), Binary::Text)
            }
        };
        let content_type = HeaderValue::from_str(stated).map_err(|_| format!("`{media}` is not a media type"))?;
        let is_required = body.value.get("required").and_then(Value::as_bool) == Some(true);
        Ok(ChosenBody {
            need: if is_required { Need::Required } else { Need::Optional },
            description,
            schema,
            binary,
            content_type,
            kind,
        })
    }
}

/// Returns whether a media type is for values, which are not bytes as a whole.
fn has_values(essence: &str) -> bool {
    matches!(essence, "application/json" | "text/json" | "application/x-www-form-urlencoded")
        || essence.ends_with("+json")
        || essence.starts_with("multipart/")
}

/// Returns whether a media type is binary.
fn is_binary(essence: &str) -> bool {
    const BINARY: [&str; 5] =
        ["application/octet-stream", "application/pdf", "application/zip", "application/gzip", "application/x-tar"];
    BINARY.contains(&essence) || ["image/", "audio/", "video/", "font/"].iter().any(|kind| essence.starts_with(kind))
}

/// Returns how the members of a form are written: by style if the encoding names one, else by media type (OpenAPI 3.1,
/// "Encoding Object").
fn fields<'d>(
    document: &'d Document,
    media: DocumentPart<'d>,
    schema: Option<DocumentPart<'d>>,
    steps: &mut StepBudget,
) -> Result<Vec<(String, FieldWriting)>, String> {
    let mut fields = Vec::new();
    for (name, _) in properties(document, schema, steps)? {
        let Some(encoding) = media.get("encoding").and_then(|all| all.get(&name)) else { continue };
        document.budget.take(1 + of_text(&name))?;
        let flag = |key: &str| encoding.value.get(key).and_then(Value::as_bool);
        let is_styled = ["style", "explode", "allowReserved"].iter().any(|key| encoding.value.get(key).is_some());
        let writing = if is_styled {
            let style = query_style(encoding.text("style"))
                .ok_or_else(|| format!("the member `{name}` of its form has an unknown style"))?;
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

/// Returns the style of an encoding, if it names one. It applies to parts too, as in OpenAPI 3.1: 3.0 ignores it there,
/// but authors who write it mean it.
fn styled(encoding: DocumentPart<'_>) -> Option<(Option<Style>, Explode)> {
    if !["style", "explode", "allowReserved"].iter().any(|key| encoding.value.get(key).is_some()) {
        return None;
    }
    let style = query_style(encoding.text("style"));
    let stated = encoding.value.get("explode").and_then(Value::as_bool);
    let is_exploded = stated.unwrap_or(matches!(style, Some(Style::Form | Style::DeepObject)));
    Some((style, if is_exploded { Explode::Yes } else { Explode::No }))
}

/// Returns whether a media type is XML (RFC 7303, section 4.2).
fn is_xml(essence: &str) -> bool {
    matches!(essence, "application/xml" | "text/xml") || essence.ends_with("+xml")
}

/// Returns how the parts of a body are written: the members of an object, each with its `encoding`, or the items of a
/// list, with `prefixEncoding` and `itemEncoding` (OpenAPI 3.2, "Media Type Object").
fn part_list<'d>(
    document: &'d Document,
    media: DocumentPart<'d>,
    schema: Option<DocumentPart<'d>>,
    steps: &mut StepBudget,
) -> Result<PartList, String> {
    let resolved = schema.map(|schema| document.follow(schema)).transpose()?;
    if let Some(list) = resolved.filter(|schema| only_type(schema.value) == Some("array")) {
        let items = list.get("items");
        let mut first = Vec::new();
        let before = list.get("prefixItems").into_iter().flat_map(DocumentPart::items);
        let schemas: Vec<_> = before.map(Some).collect();
        let encodings: Vec<_> = media.get("prefixEncoding").into_iter().flat_map(DocumentPart::items).collect();
        document.budget.take(schemas.len().max(encodings.len()))?;
        for at in 0..schemas.len().max(encodings.len()) {
            let schema = schemas.get(at).copied().flatten().or(items);
            first.push(writing(document, &format!("{at}"), schema, encodings.get(at).copied())?);
        }
        let rest = writing(document, "item", items, media.get("itemEncoding"))?;
        return Ok(PartList::Items(first, rest));
    }
    let mut parts = Vec::new();
    for (name, property) in properties(document, schema, steps)? {
        document.budget.take(1 + of_text(&name))?;
        let encoding = media.get("encoding").and_then(|all| all.get(&name));
        let part = writing(document, &name, Some(property), encoding)?;
        parts.push((name, part));
    }
    let content = other_members(document, schema, steps)?;
    Ok(PartList::Named(parts, PartWriting { content, ..PartWriting::default() }))
}

/// Returns the content of a multipart body's members without a declared property.
fn other_members<'d>(
    document: &'d Document,
    schema: Option<DocumentPart<'d>>,
    steps: &mut StepBudget,
) -> Result<PartContent, String> {
    let mut content = None;
    let Some(schema) = schema else { return Ok(PartContent::Value) };
    for schema in combined(document, schema, &["allOf", "anyOf", "oneOf"], steps)? {
        let more = ["additionalProperties", "unevaluatedProperties"].iter().filter_map(|key| schema.get(key));
        let by_pattern =
            schema.get("patternProperties").into_iter().flat_map(DocumentPart::members).map(|(_, member)| member);
        for member in more.chain(by_pattern).filter(|member| member.value.is_object()) {
            content = Some(match (bytes_of(document, member)?.0, content) {
                (ContainsBytes::Never, None | Some(PartContent::Value)) => PartContent::Value,
                (ContainsBytes::Always, None | Some(PartContent::File)) => PartContent::File,
                _ => PartContent::FileOrValue,
            });
        }
    }
    Ok(content.unwrap_or_default())
}

/// Returns how a part with this schema and encoding is written.
fn writing<'d>(
    document: &'d Document,
    name: &str,
    schema: Option<DocumentPart<'d>>,
    encoding: Option<DocumentPart<'d>>,
) -> Result<PartWriting, String> {
    let property = schema.map(|schema| document.follow(schema)).transpose()?;
    let items = property.and_then(|property| property.get("items"));
    let single = items.map(|items| document.follow(items)).transpose()?;
    let (bytes, media) =
        property.map(|schema| bytes_of(document, schema)).transpose()?.unwrap_or((ContainsBytes::Never, None));
    let stated = encoding.and_then(|encoding| encoding.text("contentType"));
    // The first of several; a range names none.
    let stated = stated.map(|stated| stated.split(',').next().unwrap_or_default().trim());
    let content_type = stated.filter(|stated| !stated.contains('*') && !stated.is_empty()).map(str::to_owned);
    let media = property.and_then(|property| property.text("contentMediaType")).or(media);
    let media = media.filter(|media| bytes != ContainsBytes::Sometimes && !media.contains('*')).map(str::to_owned);
    let content_type = content_type.or(media);
    let essence = content_type.as_deref().and_then(|kind| kind.split(';').next()).unwrap_or_default();
    // The author of a part's text also writes its syntax.
    let is_text = single.or(property).and_then(|schema| only_type(schema.value)) == Some("string");
    let content = match encoding.and_then(styled) {
        _ if bytes == ContainsBytes::Always => PartContent::File,
        _ if bytes == ContainsBytes::Sometimes => PartContent::FileOrValue,
        Some((style, explode)) => {
            let style = style.ok_or_else(|| format!("the part `{name}` of its body has an unknown style"))?;
            PartContent::Styled(style, explode)
        }
        None => match items.or(schema).filter(|_| !is_text && is_xml(&essence.trim().to_ascii_lowercase())) {
            Some(schema) => PartContent::Xml(xml_body(document, schema, Some(name))?),
            None => PartContent::Value,
        },
    };
    Ok(PartWriting { headers: headers(document, name, encoding)?, content_type, content })
}

/// Returns the headers of a part for which the document allows a single value; others are not asked for.
fn headers(
    document: &Document,
    name: &str,
    encoding: Option<DocumentPart<'_>>,
) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let mut found = Vec::new();
    let stated = encoding.and_then(|encoding| encoding.get("headers"));
    for (key, header) in stated.into_iter().flat_map(DocumentPart::members) {
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
            document.budget.take(1 + of_text(&value) + of_text(key))?;
            found.push((header_name, HeaderValue::from_str(&value).map_err(|_| wrong())?));
        }
    }
    Ok(found)
}

/// The most schemas of one body.
const MAX_NODES: usize = 10_000;

/// Returns a body of this schema. Its root is named by its `xml`, else like the schema that it refers to, else
/// `otherwise`.
///
/// # Errors
/// A name is invalid, or the root has none.
pub(super) fn xml_body(
    document: &Document,
    schema: DocumentPart<'_>,
    otherwise: Option<&str>,
) -> Result<XmlBody, String> {
    let part = written_schema(document, schema)?;
    let made = document.xml.of(part.value, || graph(document, part, &mut StepBudget::new()))?;
    let named = made.nodes.get(made.root).and_then(|node| node.name.as_deref());
    // A file that is referenced as a whole has its own name, which is not a component's.
    let fragment = schema.text("$ref").and_then(|reference| reference.split_once('#'));
    let component = fragment.and_then(|(_, pointer)| pointer.rsplit('/').next());
    let name = named.or(component.filter(|name| is_xml_name(name))).or(otherwise.filter(|name| is_xml_name(name)));
    let root = name.ok_or("its schema has no name for the root of its XML (`xml.name`)")?.to_owned();
    Ok(XmlBody { schema: made, root })
}

/// Returns the schema that determines the XML form: the target of a reference, unless fields are beside it.
fn written_schema<'d>(document: &'d Document, part: DocumentPart<'d>) -> Result<DocumentPart<'d>, String> {
    let says_more = document.version.has_json_schema() && part.get("xml").is_some();
    if says_more { Ok(part) } else { document.follow(part) }
}

fn graph(document: &Document, part: DocumentPart<'_>, steps: &mut StepBudget) -> Result<XmlSchema, String> {
    let mut graph = Graph { document, steps, nodes: Vec::new(), known: HashMap::new(), waiting: Vec::new() };
    let root = graph.node(part)?;
    while let Some((index, part)) = graph.waiting.pop() {
        graph.fill(index, part)?;
    }
    let nodes = graph.nodes;
    // Enclosing elements may declare the namespace, as far as any does.
    let (declaring, using): (Vec<&XmlNode>, Vec<&XmlNode>) = nodes.iter().partition(|node| node.namespace.is_some());
    let declared: HashSet<&str> = declaring.iter().filter_map(|node| node.prefix.as_deref()).collect();
    let mut used = using.iter().filter_map(|node| node.prefix.as_deref());
    if let Some(prefix) = used.find(|prefix| *prefix != "xml" && !declared.contains(prefix)) {
        return Err(format!(
            "no schema of its body says which namespace the prefix `{prefix}` stands for (`xml.namespace`)"
        ));
    }
    Ok(XmlSchema { nodes, root })
}

struct Graph<'d, 's> {
    document: &'d Document,
    steps: &'s mut StepBudget,
    nodes: Vec<XmlNode>,
    /// By the address of the value, because the document is not moved while it is read.
    known: HashMap<*const Value, usize>,
    waiting: Vec<(usize, DocumentPart<'d>)>,
}

impl<'d> Graph<'d, '_> {
    /// Returns the node of a schema; a new one is filled later.
    fn node(&mut self, part: DocumentPart<'d>) -> Result<usize, String> {
        let part = written_schema(self.document, part)?;
        let key: *const Value = part.value;
        if let Some(index) = self.known.get(&key) {
            return Ok(*index);
        }
        if self.nodes.len() == MAX_NODES {
            return Err(format!("its body has more than {MAX_NODES} schemas"));
        }
        self.document.budget.take(1)?;
        let index = self.nodes.len();
        self.nodes.push(XmlNode::default());
        self.known.insert(key, index);
        self.waiting.push((index, part));
        Ok(index)
    }

    fn fill(&mut self, index: usize, part: DocumentPart<'d>) -> Result<(), String> {
        let schema = self.document.follow(part)?;
        // Its own `xml`, or that of the first schema in `allOf`.
        let xml = match part.get("xml") {
            Some(xml) => Some(xml),
            None => {
                combined(self.document, schema, &["allOf"], self.steps)?.into_iter().find_map(|part| part.get("xml"))
            }
        };
        let mut members = BTreeMap::new();
        for (name, property) in properties(self.document, Some(schema), self.steps)? {
            self.document.budget.take(1 + of_text(&name))?;
            members.insert(name, self.node(property)?);
        }
        let items = schema.get("items").filter(|items| items.value.is_object()).map(|items| self.node(items));
        let flag = |key: &str| xml.and_then(|xml| xml.value.get(key)) == Some(&Value::Bool(true));
        let name = |key: &str| {
            let stated = xml.and_then(|xml| xml.text(key)).filter(|name| !name.is_empty());
            match stated {
                Some(stated) if !is_xml_name(stated) => {
                    Err(format!("`{stated}`, which its schema gives as `xml.{key}`, is not a name in XML"))
                }
                stated => Ok(stated.map(str::to_owned)),
            }
        };
        let namespace = xml.and_then(|xml| xml.text("namespace")).filter(|namespace| !namespace.is_empty());
        let texts = ["name", "namespace", "prefix"].iter().filter_map(|key| xml?.text(key));
        self.document.budget.take(texts.map(of_text).sum())?;
        let (mut place, mut list) = (XmlPlace::Element, XmlList::Bare);
        if flag("attribute") {
            place = XmlPlace::Attribute;
        }
        if flag("wrapped") {
            list = XmlList::Wrapped;
        }
        let is_list = only_type(schema.value) == Some("array");
        // OpenAPI 3.2, "XML Object": replaces the other two.
        match xml.and_then(|xml| xml.text("nodeType")) {
            None => {}
            Some("attribute") => place = XmlPlace::Attribute,
            Some("text" | "cdata") if !is_list => place = XmlPlace::Text,
            Some("element") if is_list => list = XmlList::Wrapped,
            Some("element") => {}
            Some("none") if is_list => list = XmlList::Bare,
            Some(other) => {
                let what = if is_list { "a list" } else { "no list" };
                return Err(format!("`{other}` as the `xml.nodeType` of what is {what} is not written"));
            }
        }
        let node = XmlNode {
            name: name("name")?,
            namespace: namespace.map(str::to_owned),
            prefix: name("prefix")?,
            place,
            list,
            members,
            items: items.transpose()?,
        };
        if let Some(slot) = self.nodes.get_mut(index) {
            *slot = node;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::openapi::Origin;

    #[test]
    fn bodies_of_one_schema_share_its_translation() {
        let schemas =
            json!({"S": {"type": "object", "properties": {"a": {"type": "string"}}}, "T": {"type": "object"}});
        let text = json!({"openapi": "3.0.0", "components": {"schemas": schemas}}).to_string();
        let document = Document::read(&text, Origin::File("api.json".into())).expect("a document");
        let made = |name: &str| {
            let reference = json!({"$ref": format!("#/components/schemas/{name}")});
            let part = DocumentPart { file: 0, value: &reference };
            xml_body(&document, part, None).expect("a body")
        };
        let (one, other, third) = (made("S"), made("S"), made("T"));
        assert!(Arc::ptr_eq(&one.schema, &other.schema) && !Arc::ptr_eq(&one.schema, &third.schema));
        assert_eq!((one.root.as_str(), third.root.as_str()), ("S", "T"));
    }
}
