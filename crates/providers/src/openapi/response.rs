//! What an operation answers: what is asked for in `Accept`, and the schema of results where it is sound.

use http::HeaderValue;
use serde_json::Value;

use super::document::{Document, Part};
use super::schema::{Binary, Direction, Schemas};

/// Parts and bytes of a schema of results: a larger one costs every list of tools more than it tells.
const MAX_NODES: usize = 400;
const MAX_BYTES: usize = 4 << 10;
/// Media types that are asked for.
const MAX_MEDIA: usize = 64;

/// What an operation answers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) accept: Option<HeaderValue>,
    /// The schema of every successful answer, when there is one kind of it: one status, JSON, an object.
    pub(super) schema: Option<Value>,
    /// Whether it may come in pieces.
    pub(super) streams: bool,
}

/// What the document says of an operation's answers. What it says wrongly is not used.
pub(super) fn answers(document: &Document, operation: Part<'_>) -> Answers {
    let successes: Vec<Part<'_>> = operation
        .get("responses")
        .into_iter()
        .flat_map(Part::members)
        .filter(|(status, _)| status.starts_with('2'))
        .filter_map(|(_, response)| document.follow(response).ok())
        .collect();
    let mut media: Vec<&String> = Vec::new();
    for (name, _) in successes.iter().filter_map(|response| response.get("content")).flat_map(Part::members) {
        if media.len() == MAX_MEDIA {
            break;
        }
        if !media.contains(&name) {
            media.push(name);
        }
    }
    // JSON is asked for first, in whatever order it is written.
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
        document.budget.give_back(mark);
    }
    Answers { accept, schema, streams }
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

fn schema(document: &Document, response: Part<'_>) -> Option<Value> {
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
    // A result's schema says at its root that it is of an object.
    if !members.contains_key("type") {
        members.insert("type".into(), "object".into());
    }
    if !definitions.is_empty() {
        members.insert("$defs".into(), definitions.into());
    }
    (schema.to_string().len() <= MAX_BYTES).then_some(schema)
}
