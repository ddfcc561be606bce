//! Decodes responses, streamed or whole, and reports how the response ended.

use std::sync::Arc;

use toolwright_core::model::{ModelError, ModelErrorKind, ModelEvent, ModelResponse, Usage};

use super::decoder;
use super::framing::{DONE, Framing, MAX_ANSWER, is_cut};
use super::response::ApiDecoder;
use crate::api::Api;
use crate::dialect::Toolset;
use crate::failure;

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
