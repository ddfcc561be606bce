//! Provides the parts that the readers share: typed fields with their paths, content parts, and the messages of a
//! conversation.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, Effort, MAX_SEED, MAX_STOP, Message, OpaqueData, OutputFormat, RawToolCall, RequestTool,
};

use super::RequestError;
use crate::api::Api;
use crate::codec::history::{PDF, document, placed};

pub(super) type ReadResult<T> = Result<T, RequestError>;

/// An object of the request, with its path.
#[derive(Clone)]
pub(super) struct Object<'a> {
    pub(super) map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Object<'a> {
    pub(super) fn root(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// `value` as an object.
    pub(super) fn of(value: &'a Value, path: impl Into<String>) -> ReadResult<Self> {
        let path = path.into();
        match value.as_object() {
            Some(map) => Ok(Self { map, path }),
            None => Err(RequestError::new(path, "it is not an object")),
        }
    }

    /// The path of a field.
    pub(super) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// An error in a field.
    pub(super) fn wrong(&self, key: &str, message: impl Into<String>) -> RequestError {
        RequestError::new(self.at(key), message)
    }

    /// Returns a field that is present and not null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(&self, key: &str, what: &str, take: impl FnOnce(&'a Value) -> Option<T>) -> ReadResult<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        take(value).map(Some).ok_or_else(|| self.wrong(key, format!("it is not {what}")))
    }

    pub(super) fn text(&self, key: &str) -> ReadResult<Option<&'a str>> {
        self.typed(key, "a text", Value::as_str)
    }

    pub(super) fn needed_text(&self, key: &str) -> ReadResult<&'a str> {
        self.text(key)?.ok_or_else(|| self.wrong(key, "it is missing"))
    }

    pub(super) fn bool(&self, key: &str) -> ReadResult<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn number(&self, key: &str, most: f64) -> ReadResult<Option<f64>> {
        let found = self.typed(key, "a number", Value::as_f64)?;
        match found {
            Some(number) if !(0.0..=most).contains(&number) => {
                Err(self.wrong(key, format!("it is not between 0 and {most}")))
            }
            found => Ok(found),
        }
    }

    pub(super) fn count(&self, key: &str) -> ReadResult<Option<u32>> {
        self.typed(key, "a whole number above 0", |value| {
            value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0)
        })
    }

    pub(super) fn seed(&self) -> ReadResult<Option<u32>> {
        // Any whole number is accepted; values out of the APIs' range are wrapped into it.
        let seed = self.typed("seed", "a whole number", Value::as_i64)?;
        Ok(seed.and_then(|seed| u32::try_from(seed.unsigned_abs() % (u64::from(MAX_SEED) + 1)).ok()))
    }

    pub(super) fn list(&self, key: &str) -> ReadResult<&'a [Value]> {
        Ok(self.typed(key, "a list", Value::as_array)?.map_or(&[], Vec::as_slice))
    }

    pub(super) fn object(&self, key: &str) -> ReadResult<Option<Object<'a>>> {
        self.get(key).map(|value| Object::of(value, self.at(key))).transpose()
    }

    /// The objects of a list.
    pub(super) fn objects(&self, key: &str) -> ReadResult<Vec<Object<'a>>> {
        let path = self.at(key);
        self.list(key)?.iter().enumerate().map(|(at, value)| Object::of(value, format!("{path}[{at}]"))).collect()
    }

    /// The texts that end an answer: one, or a list.
    pub(super) fn stop(&self, key: &str) -> ReadResult<Vec<String>> {
        let stop: Vec<String> = match self.get(key) {
            None => Vec::new(),
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(many)) => many
                .iter()
                .map(|text| {
                    text.as_str().map(str::to_owned).ok_or_else(|| self.wrong(key, "it is not a list of texts"))
                })
                .collect::<ReadResult<_>>()?,
            Some(_) => return Err(self.wrong(key, "it is not a text or a list of texts")),
        };
        if stop.len() > MAX_STOP {
            return Err(self.wrong(key, format!("it has more than {MAX_STOP} texts")));
        }
        Ok(stop)
    }

    pub(super) fn effort(&self, key: &str) -> ReadResult<Option<Effort>> {
        let effort = self.text(key)?.map(str::parse::<Effort>).transpose();
        effort.map_err(|error| self.wrong(key, error.to_string()))
    }
}

/// Returns the name of the call `call_id` among the calls of `messages`.
fn name_of(messages: &[Message], call_id: &str) -> Option<String> {
    let calls = messages.iter().rev().filter_map(|message| match message {
        Message::Assistant { calls, .. } => Some(calls),
        Message::User { .. } | Message::Tool { .. } => None,
    });
    calls.flatten().find(|call| call.id == call_id).map(|call| call.name.clone())
}

/// A conversation being read.
#[derive(Default)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    /// Whether it continues a stored conversation, which may have the calls for its results.
    pub(super) continues: bool,
    /// The texts of system messages.
    pub(super) system: Vec<String>,
    /// Whether one of them follows another message.
    pub(super) moves_system: bool,
}

impl Conversation {
    /// Returns the assistant's message at the end, added if missing.
    fn assistant(&mut self) -> (&mut String, &mut Vec<RawToolCall>, &mut Vec<OpaqueData>) {
        if !matches!(self.messages.last(), Some(Message::Assistant { .. })) {
            self.begin_assistant();
        }
        match self.messages.last_mut() {
            Some(Message::Assistant { text, calls, opaque }) => (text, calls, opaque),
            _ => unreachable!("one was just added"),
        }
    }

    pub(super) fn begin_assistant(&mut self) {
        self.messages.push(Message::Assistant { text: String::new(), calls: Vec::new(), opaque: Vec::new() });
    }

    pub(super) fn say(&mut self, said: &str) {
        self.assistant().0.push_str(said);
    }

    pub(super) fn call(&mut self, call: RawToolCall) {
        self.assistant().1.push(call);
    }

    /// Data of `api` at this place of the assistant's message.
    pub(super) fn opaque(&mut self, api: &str, item: Value, own: usize) {
        let (text, calls, opaque) = self.assistant();
        let data = placed(item, text.len(), calls.len(), own);
        opaque.push(OpaqueData { api: api.to_owned(), data });
    }

    /// Reads a system message. All of them begin the conversation: not every API can have one amid others.
    pub(super) fn instruct(&mut self, text: String) {
        if !text.is_empty() {
            self.moves_system |= self.continues || !self.messages.is_empty();
            self.system.push(text);
        }
    }

    pub(super) fn user(&mut self, content: Vec<ContentBlock>) {
        self.messages.push(Message::User { content });
    }

    /// Reads the result of a call, whose id is in this field of the object.
    pub(super) fn result(
        &mut self,
        (object, key): (&Object<'_>, &str),
        content: Vec<ContentBlock>,
        is_error: bool,
    ) -> ReadResult<()> {
        let call_id = object.needed_text(key)?;
        let name = match name_of(&self.messages, call_id) {
            Some(name) => name,
            None if self.continues => String::new(),
            None => return Err(object.wrong(key, format!("no call `{call_id}` comes before this result of it"))),
        };
        let result = CallResult { call_id: call_id.to_owned(), name, content, is_error, loads: Vec::new() };
        match self.messages.last_mut() {
            Some(Message::Tool { results }) => results.push(result),
            _ => self.messages.push(Message::Tool { results: vec![result] }),
        }
        Ok(())
    }
}

/// Content that is a text or a list of parts, each read by `part`.
pub(super) fn content(
    object: &Object<'_>,
    key: &str,
    part: impl Fn(&Object<'_>) -> ReadResult<ContentBlock>,
) -> ReadResult<Vec<ContentBlock>> {
    match object.get(key) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![ContentBlock::text(text)]),
        Some(Value::Array(_)) => object.objects(key)?.iter().map(part).collect(),
        Some(_) => Err(object.wrong(key, "it is not a text or a list of parts")),
    }
}

/// Splits `data:TYPE;base64,DATA`.
fn data_url(url: &str) -> Option<(&str, &str)> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    Some((head.strip_suffix(";base64")?.split(';').next().unwrap_or_default(), data))
}

/// An image by its URL.
pub(super) fn image_by_url(object: &Object<'_>, key: &str, url: &str) -> ReadResult<ContentBlock> {
    match data_url(url) {
        Some((mime_type, data)) => image(object, (key, key), mime_type, data),
        None => Err(object.wrong(key, "images are taken as data URLs, like data:image/png;base64,…")),
    }
}

/// Reads an image in base64. The keys are those of its type and data.
pub(super) fn image(
    object: &Object<'_>,
    (type_key, data_key): (&str, &str),
    mime_type: &str,
    data: &str,
) -> ReadResult<ContentBlock> {
    if !matches!(mime_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp") {
        let why = format!("no model takes an image of the type `{mime_type}`: send png, jpeg, gif or webp");
        return Err(object.wrong(type_key, why));
    }
    decoded(object, data_key, data)?;
    Ok(ContentBlock::image(data, mime_type))
}

fn decoded(object: &Object<'_>, key: &str, data: &str) -> ReadResult<Vec<u8>> {
    STANDARD.decode(data).map_err(|_| object.wrong(key, "it is not base64"))
}

/// Reads a file from its data URL, or from base64 with a separate type. The keys are those of its type and data.
pub(super) fn file(
    object: &Object<'_>,
    (type_key, key): (&str, &str),
    name: &str,
    data: &str,
    mime_type: Option<&str>,
) -> ReadResult<ContentBlock> {
    let (declared, data) = data_url(data).map_or((mime_type, data), |(declared, data)| (Some(declared), data));
    let found = match declared.filter(|declared| !matches!(*declared, "" | "application/octet-stream")) {
        Some(declared) => declared,
        None if is_pdf(name, data) => PDF,
        None => declared.filter(|declared| !declared.is_empty()).unwrap_or("text/plain"),
    };
    let is_text =
        found.starts_with("text/") || matches!(found, "application/json" | "application/xml" | "application/yaml");
    if found.starts_with("image/") {
        return image(object, (type_key, key), found, data);
    }
    if found == PDF {
        let block = ContentBlock::Resource {
            resource: json!({"uri": uri(name), "mimeType": PDF, "blob": data}),
            extra: Map::new(),
        };
        return match document(&block) {
            Some(_) => Ok(block),
            None => Err(object.wrong(key, "it is not base64")),
        };
    }
    if !is_text {
        let why = format!("files of the type `{found}` are not passed on: send text in base64, images or PDFs");
        return Err(object.wrong(type_key, why));
    }
    match String::from_utf8(decoded(object, key, data)?) {
        Ok(text) => Ok(resource(name, found, &text)),
        Err(_) => Err(object.wrong(key, "it is not text in UTF-8")),
    }
}

/// Whether a file without a type is a PDF, by its name or its first bytes.
fn is_pdf(name: &str, data: &str) -> bool {
    let first = data.get(..8).and_then(|first| STANDARD.decode(first).ok()).unwrap_or_default();
    name.to_ascii_lowercase().ends_with(".pdf") || first.starts_with(b"%PDF-")
}

/// A text file.
pub(super) fn resource(name: &str, mime_type: &str, text: &str) -> ContentBlock {
    ContentBlock::Resource {
        resource: json!({"uri": uri(name), "mimeType": mime_type, "text": text}),
        extra: Map::new(),
    }
}

fn uri(name: &str) -> &str {
    if name.is_empty() { "file" } else { name }
}

/// Checks the request's PDFs against `upstream`: an error names the field.
pub(super) fn check_documents(messages: &[Message], upstream: Option<Api>, field: &'static str) -> ReadResult<()> {
    let has = |content: &[ContentBlock]| content.iter().any(|block| document(block).is_some());
    for message in messages {
        match message {
            Message::User { content } if has(content) && matches!(upstream, None | Some(Api::Ollama)) => {
                return Err(RequestError::new(field, "the API of this model takes no PDF: send its text"));
            }
            Message::Tool { results } if results.iter().any(|result| has(&result.content)) => {
                return Err(RequestError::new(
                    field,
                    "models take no PDF in a result: send it in a message of the user",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A function of the client.
pub(super) fn function(object: &Object<'_>, schema_key: &str) -> ReadResult<RequestTool> {
    let name = object.needed_text("name")?;
    let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 128 || !name.chars().all(is_legal) {
        return Err(object.wrong("name", "a name has 1 to 128 letters, digits, `_` and `-`"));
    }
    let parameters = match object.get(schema_key) {
        None => json!({"type": "object", "properties": {}}),
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(_) => return Err(object.wrong(schema_key, "it is not a JSON Schema")),
    };
    Ok(RequestTool {
        name: name.to_owned(),
        description: object.text("description")?.unwrap_or_default().to_owned(),
        parameters,
        strict: object.bool("strict")?,
        ..RequestTool::default()
    })
}

/// Reads the answer's format: `{"type": "text" | "json_object" | "json_schema", …}`, with its schema in `inner`.
pub(super) fn output(format: &Object<'_>, inner: &Object<'_>) -> ReadResult<Option<OutputFormat>> {
    let name = inner.text("name")?.unwrap_or("answer").to_owned();
    match format.text("type")?.unwrap_or("text") {
        "text" => Ok(None),
        "json_object" => Ok(Some(OutputFormat { name, schema: None })),
        "json_schema" => match inner.get("schema") {
            Some(schema @ Value::Object(_)) => Ok(Some(OutputFormat { name, schema: Some(schema.clone()) })),
            _ => Err(inner.wrong("schema", "it is missing, or not an object")),
        },
        other => Err(format.wrong("type", format!("there is no format `{other}`: text, json_object or json_schema"))),
    }
}

/// A name that two tools have is an error.
pub(super) fn distinct(tools: &[RequestTool]) -> ReadResult<()> {
    let mut seen = std::collections::HashSet::new();
    match tools.iter().position(|tool| !seen.insert(tool.name.as_str())) {
        Some(at) => {
            Err(RequestError::new(format!("tools[{at}]"), format!("two tools have the name `{}`", tools[at].name)))
        }
        None => Ok(()),
    }
}
