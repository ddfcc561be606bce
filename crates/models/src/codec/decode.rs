//! Decodes responses, streamed or whole, and reports how the response ended.
//!
//! The bytes come cut anywhere. They are split into the data of events: server-sent events or JSON values. JSON values may
//! be one event per line, a list of events, or one value over many lines. Events without their last brackets, as some relays
//! send them, are repaired.

use std::sync::Arc;

use serde_json::error::Category;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelEvent, ModelResponse, Usage};
use toolwright_core::sse::{BYTE_ORDER_MARK, Event, Events, Lines, TooLong};

use super::decoder;
use super::response::ApiDecoder;
use crate::api::Api;
use crate::dialect::Toolset;
use crate::failure;

/// Bound on an answer in bytes on the wire, and so on a decoder's memory.
pub(crate) const MAX_ANSWER: usize = 128 << 20;
/// The longest line, and the longest event, in bytes.
const MAX_LINE: usize = 16 << 20;
/// The mark that ends the streams of some APIs.
const DONE: &[u8] = b"[DONE]";

/// An incremental decoder of one response. It is safe to feed it any bytes, cut anywhere.
pub struct Decoder {
    api: Api,
    framing: Framing,
    assembly: Box<dyn ApiDecoder>,
    fed: usize,
    seen: StreamState,
    complete: bool,
    failure: Option<ModelError>,
}

/// The content of the stream so far.
#[derive(Default)]
struct StreamState {
    /// An event, or data that may be one.
    any: bool,
    /// `[DONE]`, which ends the streams of some APIs.
    mark: bool,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("api", &self.api).field("fed", &self.fed).finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder for one response as `api` streams it: server-sent events, or lines from Ollama.
    #[must_use]
    pub fn new(api: Api) -> Self {
        let framing = if api == Api::Ollama { Framing::json() } else { Framing::events() };
        Self::framed(api, framing)
    }

    /// A decoder that detects from the first byte whether it gets server-sent events or JSON: one event a line, a list of
    /// events, or a whole response, on one line or many.
    #[must_use]
    pub fn detecting(api: Api) -> Self {
        Self::framed(api, Framing::detect())
    }

    /// Sets the request's tools: arguments of calls are converted back to the tools' own schemas.
    #[must_use]
    pub fn with_tools(mut self, tools: Arc<Toolset>) -> Self {
        self.assembly.answer().set_tools(tools);
        self
    }

    fn framed(api: Api, framing: Framing) -> Self {
        Self {
            api,
            framing,
            assembly: decoder(api),
            fed: 0,
            seen: StreamState::default(),
            complete: false,
            failure: None,
        }
    }

    /// Reads the next bytes and passes completed pieces to `sink`. An error is kept for
    /// [`Decoder::finish`]; later bytes are ignored.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut impl FnMut(ModelEvent)) {
        if self.failure.is_some() {
            return;
        }
        self.fed = self.fed.saturating_add(bytes.len());
        if self.fed > MAX_ANSWER {
            let message = format!("the answer is longer than {} MiB", MAX_ANSWER >> 20);
            self.failure = Some(ModelError::new(ModelErrorKind::BadResponse, message));
            return;
        }
        let (api, assembly, seen) = (self.api, self.assembly.as_mut(), &mut self.seen);
        self.failure = self.framing.feed(bytes, &mut |data| event(api, assembly, seen, data, sink)).err();
        self.complete = self.assembly.answer().complete;
    }

    /// Whether the response is complete or has failed. Only usage may follow a complete one.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.failure.is_some() || self.complete
    }

    /// Whether the response is complete but usage may follow, as from servers that send it last.
    pub(crate) fn awaits_usage(&mut self) -> bool {
        let follow = matches!(self.api, Api::OpenAiChat | Api::Gemini);
        let is_open = follow && !self.seen.mark && self.failure.is_none() && self.complete;
        is_open && self.assembly.answer().usage == Usage::default()
    }

    /// Marks the end of the input. A last event without its end still counts if it is whole.
    pub fn end(&mut self, sink: &mut impl FnMut(ModelEvent)) {
        if self.failure.is_some() {
            return;
        }
        let (api, assembly, seen) = (self.api, self.assembly.as_mut(), &mut self.seen);
        let last = self.framing.finish(&mut |data| event(api, assembly, seen, data, sink));
        self.complete = self.assembly.answer().complete;
        // `finish` reports the broken stream; half an event adds no information.
        self.failure = last.err().filter(|error| !is_cut(error));
    }

    /// Returns the response, after the end of the stream.
    ///
    /// # Errors
    /// The error that the response reported; `BadResponse` if it is not of the API's form, exceeds a bound, or broke
    /// off. [`ModelError::partial`] holds the complete part, and the message says how much that is.
    pub fn finish(mut self) -> Result<ModelResponse, ModelError> {
        self.end(&mut |_| {});
        match self.failure.take() {
            None if self.complete => Ok(self.into_response()),
            None if self.fed == 0 => Err(ModelError::new(ModelErrorKind::BadResponse, "the answer has not one byte")),
            None if !self.seen.any => {
                let message = format!("the answer holds no {} event in its {} bytes", self.api, self.fed);
                Err(ModelError::new(ModelErrorKind::BadResponse, message))
            }
            None => {
                let message =
                    format!("the {} answer broke off after {} bytes, before it was complete", self.api, self.fed);
                Err(self.fail(ModelError::new(ModelErrorKind::BadResponse, message)))
            }
            Some(failure) => Err(self.fail(failure)),
        }
    }

    /// Adds the complete part to the error that ended the response.
    #[must_use]
    pub(crate) fn fail(mut self, mut error: ModelError) -> ModelError {
        let unclosed = self.assembly.unclosed();
        let answer = self.assembly.answer();
        answer.keep_complete_calls(unclosed);
        error.usage = answer.used();
        match answer.describe() {
            Some(kept) => {
                error.message.push_str(&format!("; kept as a partial answer: {kept}"));
                error.partial = Some(Box::new(self.into_response()));
            }
            None => error.message.push_str("; nothing of it was complete"),
        }
        error
    }

    fn into_response(mut self) -> ModelResponse {
        std::mem::take(self.assembly.answer()).into_response(self.api)
    }
}

/// Decodes a response without streaming.
///
/// # Errors
/// As [`Decoder::finish`].
pub fn decode_whole(api: Api, bytes: &[u8]) -> Result<ModelResponse, ModelError> {
    let mut decoder = Decoder::detecting(api);
    decoder.feed(bytes, &mut |_| {});
    decoder.finish()
}

fn event(
    api: Api,
    assembly: &mut dyn ApiDecoder,
    seen: &mut StreamState,
    data: &[u8],
    sink: &mut dyn FnMut(ModelEvent),
) -> Result<(), ModelError> {
    let data = data.trim_ascii();
    seen.any |= !data.is_empty();
    match data {
        b"" => Ok(()),
        DONE => {
            seen.mark = true;
            assembly.done(sink);
            Ok(())
        }
        // The stream broke off within the mark.
        data if DONE.starts_with(data) => Ok(()),
        data => {
            assembly.event(data, sink).map_err(|error| match error.source {
                // A proxy may have answered in its own form.
                Some(_) => failure::from_unknown(api, data).unwrap_or(error),
                None => error,
            })?;
            assembly.answer().all_kept()
        }
    }
}

/// Receives the data of one event.
type OnEventData<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), ModelError>;

/// The separation of a response's events.
#[derive(Debug)]
enum Framing {
    /// Unknown before the first byte.
    Unknown,
    /// Server-sent events.
    Events(Events),
    /// JSON values: one a line, in a list, or one alone. A line that is one whole value, as most are, is passed on without
    /// a scan.
    Json(Lines, Partial),
}

impl Framing {
    /// Server-sent events.
    fn events() -> Self {
        Self::Events(Events::new(MAX_LINE))
    }

    /// JSON values.
    fn json() -> Self {
        Self::Json(Lines::new(MAX_LINE), Partial::default())
    }

    /// Either of the two, by the first byte.
    fn detect() -> Self {
        Self::Unknown
    }

    /// Reads bytes and passes the data of each completed event to `each`.
    fn feed(&mut self, mut bytes: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
        if let Self::Unknown = self {
            // No event begins with a byte of the byte order mark, which may arrive in pieces.
            let blank = |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
            bytes = &bytes[bytes.iter().take_while(|byte| blank(byte)).count()..];
            match bytes.first() {
                None => return Ok(()),
                Some(b'{' | b'[') => *self = Self::json(),
                Some(_) => *self = Self::events(),
            }
        }
        match self {
            Self::Unknown => Ok(()),
            Self::Events(events) => events.feed(bytes, &mut |event| data_of(event, each)),
            Self::Json(lines, value) => lines.feed(bytes, &mut |line| value.line(line, each)),
        }
    }

    /// Hands over a last event that has no end.
    fn finish(&mut self, each: OnEventData<'_>) -> Result<(), ModelError> {
        match self {
            Self::Unknown => Ok(()),
            Self::Events(events) => events.finish(&mut |event| data_of(event, each)),
            Self::Json(lines, value) => {
                let is_cut = lines.finish(&mut |line| value.line(line, each))?;
                value.finish(is_cut, each)
            }
        }
    }
}

/// Passes on the data of an event. If its last line is terminated, it arrived whole: brackets that it lacks may be added.
fn data_of(event: Event<'_>, each: OnEventData<'_>) -> Result<(), ModelError> {
    if event.is_cut { each(event.data) } else { or_mended(event.data, each) }
}

/// A value that continues after its line.
#[derive(Debug, Default)]
struct Partial {
    held: Vec<u8>,
    nesting: Nesting,
    depth: usize,
    /// The last byte that is not a blank.
    last: u8,
    lines: usize,
}

impl Partial {
    /// Hands over a last value that has no end; `is_cut` if its last line has none either.
    fn finish(&mut self, is_cut: bool, each: OnEventData<'_>) -> Result<(), ModelError> {
        match std::mem::take(self) {
            Self { held, .. } if held.is_empty() => Ok(()),
            // A terminated line is complete.
            Self { held, lines: 1, .. } if !is_cut => or_mended(&held, each),
            Self { held, .. } => each(&held),
        }
    }

    fn line(&mut self, line: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
        let mut line = line.trim_ascii();
        // A value cannot begin here: the held one lost its end.
        if !self.held.is_empty() && line.starts_with(b"{") && !matches!(self.last, b',' | b':' | b'[' | b'{') {
            let lost = std::mem::take(self).held;
            or_mended(&lost, each)?;
        }
        while !line.is_empty() {
            if self.held.is_empty() {
                line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
                // The first byte alone may also begin a list.
                if line.len() > 1 && DONE.starts_with(line) {
                    return each(line);
                }
                // The brackets and commas of a list around the values.
                line = line.trim_ascii_start();
                if let [b'[' | b',' | b']', rest @ ..] = line {
                    line = rest;
                    continue;
                }
                if line.is_empty() {
                    return Ok(());
                }
                match each(line) {
                    Err(error) if is_cut(&error) || self.end(line).is_some_and(|end| end < line.len()) => {}
                    taken => return taken,
                }
                *self = Self::default();
            }
            match self.end(line) {
                Some(end) if self.held.is_empty() => {
                    *self = Self::default();
                    each(&line[..end])?;
                    line = &line[end..];
                }
                Some(end) => {
                    let mut whole = std::mem::take(self).held;
                    whole.extend_from_slice(&line[..end]);
                    each(&whole)?;
                    line = &line[end..];
                }
                None => return self.hold(line),
            }
        }
        Ok(())
    }

    /// Returns the end of the value in `line`.
    fn end(&mut self, line: &[u8]) -> Option<usize> {
        for (at, &byte) in line.iter().enumerate() {
            match self.nesting.step(byte) {
                Step::Open => self.depth += 1,
                Step::Close => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                Step::None => {}
            }
        }
        self.last = line.last().copied().unwrap_or(self.last);
        None
    }

    fn hold(&mut self, line: &[u8]) -> Result<(), ModelError> {
        if self.held.len() + line.len() > MAX_ANSWER {
            return Err(TooLong(MAX_ANSWER).into());
        }
        self.held.extend_from_slice(line);
        self.held.push(b'\n');
        self.lines += 1;
        Ok(())
    }
}

/// The most missing brackets that are added.
const MAX_DEPTH: usize = 128;

/// Passes `data` to `each`, and retries with closed brackets if only those were missing.
fn or_mended(data: &[u8], each: OnEventData<'_>) -> Result<(), ModelError> {
    match each(data) {
        Err(error) if is_cut(&error) => match closed(data) {
            // It is still not valid: report that it was cut.
            Some(whole) => each(&whole).map_err(|mended| if mended.source.is_some() { error } else { mended }),
            None => Err(error),
        },
        taken => taken,
    }
}

/// Whether an event failed because it ends too early.
fn is_cut(error: &ModelError) -> bool {
    let source = error.source.as_deref().and_then(|source| source.downcast_ref::<serde_json::Error>());
    source.is_some_and(|source| source.classify() == Category::Eof)
}

/// Closes the open brackets of `data`; `None` if it ends within a text.
fn closed(data: &[u8]) -> Option<Vec<u8>> {
    let mut open = Vec::new();
    let mut nesting = Nesting::default();
    for &byte in data {
        match nesting.step(byte) {
            Step::Open => open.push(if byte == b'{' { b'}' } else { b']' }),
            Step::Close => drop(open.pop()),
            Step::None => {}
        }
        if open.len() > MAX_DEPTH {
            return None;
        }
    }
    (!nesting.in_text).then(|| data.iter().copied().chain(open.into_iter().rev()).collect())
}

/// The effect of a byte on the nesting of JSON.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Opens a bracket.
    Open,
    /// Closes one.
    Close,
    /// Neither.
    None,
}

/// Tracks the brackets of JSON byte by byte.
#[derive(Debug, Default)]
struct Nesting {
    in_text: bool,
    escaped: bool,
}

impl Nesting {
    /// The next byte.
    fn step(&mut self, byte: u8) -> Step {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return Step::None;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => return Step::Open,
            b'}' | b']' => return Step::Close,
            _ => {}
        }
        Step::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_values(text: &str, expect: &[&str]) {
        for chunk in 1..=text.len() {
            let mut values = Framing::json();
            let mut got = Vec::new();
            let mut each = |data: &[u8]| {
                let value: serde_json::Value = crate::codec::response::parse(crate::Api::Ollama, data)?;
                got.push(value.to_string());
                Ok(())
            };
            for piece in text.as_bytes().chunks(chunk) {
                values.feed(piece, &mut each).expect("values");
            }
            values.finish(&mut each).expect("last value");
            assert_eq!(got, expect, "chunks of {chunk}");
        }
    }

    #[test]
    fn values_are_found_however_they_are_laid_out() {
        check_values("{\"a\":1}\n{\"b\":\"}{\"}\r\n\r\n{\"c\":3}", &[r#"{"a":1}"#, r#"{"b":"}{"}"#, r#"{"c":3}"#]);
        check_values("{\n  \"a\": [\n    {\"x\": 1}\n  ]\n}\n", &[r#"{"a":[{"x":1}]}"#]);
        check_values("[{\"a\":1},{\"b\":[2]}]", &[r#"{"a":1}"#, r#"{"b":[2]}"#]);
        check_values("[{\n\"a\": 1\n}\n,\n{\n\"b\": \"\\\"\"\n}\n]\n", &[r#"{"a":1}"#, r#"{"b":"\""}"#]);
        check_values("{\"a\":1} {\"b\":2}", &[r#"{"a":1}"#, r#"{"b":2}"#]);
        check_values("\u{feff}{\"a\":1}\n\u{feff}[{\"b\":2}]", &[r#"{"a":1}"#, r#"{"b":2}"#]);
    }

    #[test]
    fn missing_last_brackets_are_repaired() {
        check_values("{\"a\":{\"b\":[1]}\n{\"c\":2}\n{\"d\":[\n", &[r#"{"a":{"b":[1]}}"#, r#"{"c":2}"#, r#"{"d":[]}"#]);
    }
}
