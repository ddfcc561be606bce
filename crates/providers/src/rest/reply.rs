//! Reads a response, whole or the part that `select` names.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use serde_json::{Value, json};
use toolwright_core::event::Partial;
use toolwright_core::output::head_and_tail;
use toolwright_core::{CancelCause, ContentBlock, ToolContext, ToolOutput};
use toolwright_net::{Body, Bounds, HttpResponse, MediaType, NetError, decode_text};

use crate::rest::config::ResponseFormat;

/// The most bytes of a failed response's body that are read and shown.
const FAILURE_READ: usize = 64 << 10;
const FAILURE_SHOWN: usize = 4 << 10;
/// The end marker of streams in OpenAI's APIs.
const DONE: &str = "[DONE]";

/// How a tool reads responses.
#[derive(Debug, Clone)]
pub(crate) struct ResponseReading {
    pub(crate) format: ResponseFormat,
    pub(crate) max_bytes: usize,
    /// Whether JSON is also returned as a structured value, because there is a schema for it.
    pub(crate) structured: bool,
    /// Selects the part of the JSON that is the result.
    pub(crate) select: Option<Selection>,
    /// How the parts of a stream are joined.
    pub(crate) stream: Option<StreamAssembly>,
}

/// How the parts of a stream are joined to one text.
#[derive(Debug, Clone)]
pub(crate) struct StreamAssembly {
    /// Selects the text of a part.
    pub(crate) answer: Option<Selection>,
    /// Selects the field by which a part is marked as the last.
    pub(crate) done: Option<Selection>,
}

impl ResponseReading {
    /// Reads a response to its end or limit.
    ///
    /// # Errors
    /// [`NetError`]. A failure status is not an error but a failed output.
    pub(super) async fn read(
        &self,
        method: &Method,
        response: HttpResponse,
        context: &ToolContext,
    ) -> Result<ToolOutput, NetError> {
        let bounds = Bounds::of(context);
        let status = response.status();
        let media_type = response.media_type();
        let url = response.public_url();
        let output = if let Some(encoding) = response.encoding().filter(|_| *method != Method::HEAD) {
            ToolOutput::failure(format!("HTTP {status}, but its body is encoded as `{encoding}`, which cannot be read"))
        } else if !status.is_success() {
            let body = response.read(FAILURE_READ, bounds).await?;
            let shown = if is_text(&body, media_type.as_ref()) {
                decode_text(&body.bytes, media_type.as_ref())
            } else {
                String::new()
            };
            ToolOutput::failure(format!("HTTP {status}\n{}", head_and_tail(shown.trim(), FAILURE_SHOWN)).trim_end())
        } else if *method == Method::HEAD {
            head(&response)
        } else if let Some(splitter) = self.splitter(media_type.as_ref()) {
            self.stream(response, splitter, context).await?
        } else {
            let body = response.read(self.max_bytes, bounds).await?;
            self.whole(&body, media_type.as_ref(), status, &url)
        };
        Ok(output
            .with_extra("status", status.as_u16())
            .with_extra("url", url)
            .with_extra("content_type", media_type.map_or(Value::Null, |media_type| media_type.essence.into())))
    }

    fn splitter(&self, media_type: Option<&MediaType>) -> Option<Splitter> {
        let essence = media_type.map_or("", |media_type| media_type.essence.as_str());
        match (self.format, essence) {
            (ResponseFormat::Events, _) | (ResponseFormat::Auto, "text/event-stream") => Some(Splitter::events()),
            (ResponseFormat::JsonLines, _)
            | (
                ResponseFormat::Auto,
                "application/x-ndjson" | "application/jsonl" | "application/x-jsonlines" | "application/stream+json",
            ) => Some(Splitter::lines()),
            _ => None,
        }
    }

    /// Passes each event on as it arrives. The result is all of them, one per line. If the call's time is over before
    /// the stream ends, or the stream breaks off, the result is a failure with the events so far. A stream without its
    /// end marker, or without an answer in any part, is a failure too. `select` applies to the whole answer, else to
    /// each event.
    async fn stream(
        &self,
        mut response: HttpResponse,
        mut splitter: Splitter,
        context: &ToolContext,
    ) -> Result<ToolOutput, NetError> {
        let bounds = Bounds::of(context);
        let mut items_read = StreamItems::default();
        let mut room = self.max_bytes;
        // Whether the stream has its end marker.
        let emit = |found: Vec<String>, items_read: &mut StreamItems| {
            for item in found {
                let Part { text, is_last } = self.part(&item);
                if let Some(text) = text {
                    context.partials.send(Partial::Text(text.clone()));
                    items_read.items.push(text);
                } else if items_read.unused.is_none() && item.trim() != DONE {
                    items_read.unused = Some(item);
                }
                if is_last {
                    return true;
                }
            }
            false
        };
        let mut end = loop {
            match response.chunk(bounds).await {
                Ok(Some(chunk)) if chunk.len() > room => {
                    emit(splitter.push(&chunk[..room]), &mut items_read);
                    break End::Full;
                }
                Ok(Some(chunk)) => {
                    room -= chunk.len();
                    if emit(splitter.push(&chunk), &mut items_read) {
                        break End::Marked;
                    }
                }
                Ok(None) => break End::Whole,
                Err(error) if items_read.items.is_empty() => return Err(error),
                Err(NetError::Timeout | NetError::Canceled(CancelCause::Deadline)) => break End::TimedOut,
                Err(error @ NetError::Canceled(_)) => return Err(error),
                Err(error) => break End::Broken(error),
            }
        };
        // The last line of a stream that ended early may be incomplete.
        if matches!(end, End::Whole | End::Full) {
            let was_emitted = emit(splitter.finish(), &mut items_read);
            let should_say = self.stream.as_ref().is_some_and(|stream| stream.done.is_some());
            if matches!(end, End::Whole) && should_say && !was_emitted {
                end = End::Unmarked;
            }
        }
        let StreamItems { items, unused } = items_read;
        let events = items.len();
        let answer = self.stream.as_ref().and_then(|stream| stream.answer.as_ref());
        let is_assembled = answer.is_some();
        let mut text = items.join(if is_assembled { "" } else { "\n" });
        let unanswered = answer.zip(unused).filter(|_| events == 0);
        let is_unanswered = unanswered.is_some();
        if let Some((answer, part)) = unanswered {
            let part = head_and_tail(part.trim(), FAILURE_SHOWN);
            let answer = answer.as_str();
            text =
                format!("no event of the stream has {answer}, the tool's `stream.answer`; the first event is:\n{part}");
        }
        let output = match &end {
            End::Whole | End::Marked if is_unanswered => ToolOutput::failure(text),
            End::Full if is_unanswered => ToolOutput::failure(text + &self.cut_note()),
            End::Whole | End::Marked if is_assembled => match serde_json::from_str(&text) {
                Ok(value) => self.selected(text, value),
                Err(error) if self.select.is_some() => ToolOutput::text(format!(
                    "{text}\n[the answer is not JSON ({error}), so `select` takes no part of it]"
                )),
                Err(_) => ToolOutput::text(text),
            },
            End::Whole | End::Marked => ToolOutput::text(text),
            End::Full => ToolOutput::text(text + &self.cut_note()),
            End::TimedOut => ToolOutput::text(format!(
                "{text}\n[toolwright stopped reading after {events} events: the time of the call was over]"
            )),
            End::Broken(error) => ToolOutput::failure(format!("{text}\n[the stream broke off: {error}]")),
            End::Unmarked => ToolOutput::failure(format!(
                "{text}\n[the stream broke off: it ended without the event that `stream.done` describes]"
            )),
        };
        Ok(output.with_extra("events", events).with_extra("cut", !matches!(end, End::Whole | End::Marked)))
    }

    /// Returns the part of the result in an item of a stream.
    fn part(&self, item: &str) -> Part {
        let path = self.stream.as_ref().and_then(|stream| stream.answer.as_ref()).or(self.select.as_ref());
        let done = self.stream.as_ref().and_then(|stream| stream.done.as_ref());
        if path.is_none() && done.is_none() {
            return Part { text: Some(item.to_owned()), is_last: false };
        }
        let Ok(value) = serde_json::from_str::<Value>(item) else {
            let is_last = item.trim() == DONE;
            return Part { text: (path.is_none() && !is_last).then(|| item.to_owned()), is_last };
        };
        let text = match path {
            None => Some(item.to_owned()),
            Some(path) => path.of(&value).map(|part| match part {
                Value::String(text) => text,
                part => part.to_string(),
            }),
        };
        let is_last = done.and_then(|done| done.of(&value)).is_some_and(|said| match said {
            Value::Null | Value::Bool(false) => false,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            _ => true,
        });
        Part { text, is_last }
    }

    fn whole(&self, body: &Body, media_type: Option<&MediaType>, status: http::StatusCode, url: &str) -> ToolOutput {
        if body.bytes.is_empty() && !body.cut {
            return ToolOutput::text(format!("HTTP {status}, without a body"));
        }
        let essence = media_type.map_or("of no stated type", |media_type| media_type.essence.as_str());
        if self.format == ResponseFormat::Auto && !is_text(body, media_type) {
            if body.cut {
                return ToolOutput::text(format!(
                    "HTTP {status}; the body is {essence} of more than {} bytes, the tool's max_bytes: a part of it would be \
                     of no use",
                    self.max_bytes
                ));
            }
            let content = vec![binary(&body.bytes, media_type, url)];
            return ToolOutput { content, ..ToolOutput::default() };
        }
        let mut text = decode_text(&body.bytes, media_type);
        let json = match self.format {
            ResponseFormat::Json => true,
            ResponseFormat::Auto => media_type.is_some_and(MediaType::is_json),
            _ => false,
        };
        if json && !body.cut {
            match serde_json::from_str(&text) {
                Ok(value) => return self.selected(text, value).with_extra("cut", false),
                Err(error) if self.format == ResponseFormat::Json => {
                    return ToolOutput::failure(format!(
                        "HTTP {status}, but the body is not JSON ({error}):\n{}",
                        head_and_tail(&text, FAILURE_SHOWN)
                    ));
                }
                Err(_) => {}
            }
        }
        if body.cut {
            text.push_str(&self.cut_note());
        }
        ToolOutput::text(text).with_extra("cut", body.cut)
    }

    /// Returns the selected part of a JSON text with the parsed `value`.
    fn selected(&self, mut text: String, mut value: Value) -> ToolOutput {
        match self.select.as_ref().map(|select| (select, select.of(&value))) {
            Some((_, Some(part))) => {
                text = part.as_str().map_or_else(|| part.to_string(), str::to_owned);
                value = part;
            }
            Some((select, None)) => {
                text.push_str(&format!("\n[the response has no {}, so this is all of it]", select.as_str()));
            }
            None => {}
        }
        ToolOutput { structured: self.structured.then_some(value), ..ToolOutput::text(text) }
    }

    fn cut_note(&self) -> String {
        format!("\n[toolwright stopped reading after {} bytes: the tool's max_bytes]", self.max_bytes)
    }
}

/// The items read from a stream.
#[derive(Default)]
struct StreamItems {
    /// The parts of the result.
    items: Vec<String>,
    /// The first part that adds nothing to the result.
    unused: Option<String>,
}

/// The part of the result in an item of a stream, and whether it is the last.
struct Part {
    text: Option<String>,
    is_last: bool,
}

/// How a stream ended.
enum End {
    /// At its end.
    Whole,
    /// With its end marker.
    Marked,
    /// Without its required end marker.
    Unmarked,
    /// At the tool's `max_bytes`.
    Full,
    /// At the call's time limit.
    TimedOut,
    /// The connection failed.
    Broken(NetError),
}

/// Returns binary data as a block of its kind.
fn binary(bytes: &[u8], media_type: Option<&MediaType>, url: &str) -> ContentBlock {
    let media = media_type.map_or("application/octet-stream", |media_type| media_type.essence.as_str());
    let data = BASE64_STANDARD.encode(bytes);
    match media.split_once('/') {
        Some(("image", _)) => ContentBlock::image(data, media),
        Some(("audio", _)) => ContentBlock::Audio { data, mime_type: media.to_owned(), extra: Default::default() },
        _ => ContentBlock::Resource {
            resource: json!({"uri": url, "mimeType": media, "blob": data}),
            extra: Default::default(),
        },
    }
}

/// Returns the result of a HEAD: the headers, without cookies.
fn head(response: &HttpResponse) -> ToolOutput {
    let mut text = format!("HTTP {}", response.status());
    for (name, value) in response.headers() {
        if name != http::header::SET_COOKIE {
            text.push_str(&format!("\n{name}: {}", String::from_utf8_lossy(value.as_bytes())));
        }
    }
    ToolOutput::text(text)
}

/// Returns whether a body is text, by its stated type; without a specific one, by its bytes.
fn is_text(body: &Body, media_type: Option<&MediaType>) -> bool {
    match media_type {
        Some(media_type) if media_type.essence != "application/octet-stream" => media_type.is_text(),
        _ => !body.bytes.contains(&0),
    }
}

/// Splits a stream into items as its bytes arrive.
#[derive(Debug)]
struct Splitter {
    line: Vec<u8>,
    after_return: bool,
    /// The `data` lines of the event so far; `None` if every line is an item.
    event: Option<Vec<String>>,
}

impl Splitter {
    fn events() -> Self {
        Self { line: Vec::new(), after_return: false, event: Some(Vec::new()) }
    }

    fn lines() -> Self {
        Self { line: Vec::new(), after_return: false, event: None }
    }

    /// Returns the items that these bytes complete. Lines end with LF, CR or both (HTML, "server-sent events").
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut items = Vec::new();
        for &byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => items.extend(self.end_line()),
                _ => self.line.push(byte),
            }
        }
        items
    }

    /// Returns the rest at the end of the stream, even if its last line or event has no end.
    fn finish(mut self) -> Vec<String> {
        let last = if self.line.is_empty() { None } else { self.end_line() };
        let rest = self.event.filter(|data| !data.is_empty()).map(|data| data.join("\n"));
        last.into_iter().chain(rest).collect()
    }

    fn end_line(&mut self) -> Option<String> {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        let line = line.strip_prefix('\u{feff}').unwrap_or(&line);
        match &mut self.event {
            None => (!line.trim().is_empty()).then(|| line.to_owned()),
            Some(data) if line.is_empty() => {
                let data = std::mem::take(data);
                (!data.is_empty()).then(|| data.join("\n"))
            }
            Some(data) => {
                let (field, value) = line.split_once(':').unwrap_or((line, ""));
                if field == "data" {
                    data.push(value.strip_prefix(' ').unwrap_or(value).to_owned());
                }
                None
            }
        }
    }
}

/// The most steps of a path.
const MAX_STEPS: usize = 32;

/// A path into JSON: names and positions after slashes, as in a JSON Pointer (RFC 6901), and `*` for every item of a
/// list or member of an object. `/items/*/name` of `{"items": [{"name": 1}, {"name": 2}]}` is `[1, 2]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    written: String,
    steps: Vec<String>,
}

impl Selection {
    /// Reads a path.
    ///
    /// # Errors
    /// The error in it.
    pub fn parse(path: &str) -> Result<Self, String> {
        let Some(rest) = path.strip_prefix('/') else {
            return Err(format!("`{path}` does not begin with `/`: write it like /items/*/name"));
        };
        let steps: Vec<String> = rest.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        if steps.len() > MAX_STEPS {
            return Err(format!("`{path}` has more than {MAX_STEPS} steps"));
        }
        Ok(Self { written: path.to_owned(), steps })
    }

    /// Returns the path as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Returns the part of `value`; `None` if there is none. Below a `*`, items without the part are left out.
    #[must_use]
    pub fn of(&self, value: &Value) -> Option<Value> {
        part(value, &self.steps)
    }
}

fn part(value: &Value, steps: &[String]) -> Option<Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value.clone()) };
    match value {
        Value::Array(items) if step == "*" => Some(items.iter().filter_map(|item| part(item, rest)).collect()),
        Value::Object(members) if step == "*" => {
            Some(members.values().filter_map(|member| part(member, rest)).collect())
        }
        Value::Array(items) => part(items.get(step.parse::<usize>().ok()?)?, rest),
        Value::Object(members) => part(members.get(step)?, rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn streams_split_into_items_at_any_chunking() {
        let check = |make: fn() -> Splitter, stream: &str, expect: &[&str]| {
            for size in [1, 2, 3, 1000] {
                let mut splitter = make();
                let mut items: Vec<String> =
                    stream.as_bytes().chunks(size).flat_map(|chunk| splitter.push(chunk)).collect();
                items.extend(splitter.finish());
                assert_eq!(items, expect, "{stream:?} by {size}");
            }
        };
        check(
            Splitter::events,
            "\u{feff}data: a\n\n: note\nevent: x\ndata:b\ndata: é\n\ndata: last",
            &["a", "b\né", "last"],
        );
        check(Splitter::events, "data: a\r\n\r\ndata: b\r\rid: 1\n\n", &["a", "b"]);
        check(Splitter::events, "data\n\n", &[""]);
        check(Splitter::lines, "{\"a\":1}\n\n{\"b\":2}\r\n[3]", &["{\"a\":1}", "{\"b\":2}", "[3]"]);
    }

    #[test]
    fn parts_are_found() {
        let value = json!({"items": [{"n": 1, "a/b": true}, {"n": 2}, 3], "o": {"x": [1], "y": [2]}});
        let check = |path: &str, expect: Option<Value>| {
            assert_eq!(Selection::parse(path).expect(path).of(&value), expect, "{path}");
        };
        check("/items/*/n", Some(json!([1, 2])));
        check("/items/0/a~1b", Some(json!(true)));
        check("/o/*/0", Some(json!([1, 2])));
        check("/o/z", None);
        check("/items/x", None);
        assert!(Selection::parse("items").is_err() && Selection::parse(&"/a".repeat(40)).is_err());
    }
}
