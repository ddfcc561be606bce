//! Answers out of bytes, streamed or whole.

use toolwright_core::model::{ModelError, ModelErrorKind, ModelEvent, ModelResponse};

use crate::answer::Assemble;
use crate::api::Api;
use crate::lines::Lines;
use crate::sse::Sse;
use crate::{anthropic, ollama, openai_chat};

/// The longest answer that is read, in bytes on the wire; it also bounds what a decoder holds.
pub const MAX_ANSWER: usize = 64 << 20;

/// An incremental decoder of one streamed answer. Any bytes at any chunking are safe to feed.
pub struct Decoder {
    api: Api,
    framing: Framing,
    assembly: Box<dyn Assemble>,
    fed: usize,
    failure: Option<ModelError>,
}

enum Framing {
    Sse(Sse),
    Ndjson(Lines),
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("api", &self.api).field("fed", &self.fed).finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder for one answer of `api`.
    #[must_use]
    pub fn new(api: Api) -> Self {
        let framing = match api {
            Api::Ollama => Framing::Ndjson(Lines::default()),
            Api::OpenAiChat | Api::Anthropic => Framing::Sse(Sse::default()),
        };
        Self { api, framing, assembly: assembly(api), fed: 0, failure: None }
    }

    /// Takes the next bytes and hands the pieces that they complete to `sink`. A failure is kept for
    /// [`Decoder::finish`]; what follows it is ignored.
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
        let assembly = &mut self.assembly;
        let mut each = |data: &[u8]| event(assembly.as_mut(), data, sink);
        self.failure = match &mut self.framing {
            Framing::Sse(sse) => sse.feed(bytes, &mut each),
            Framing::Ndjson(lines) => lines.feed(bytes, &mut each),
        }
        .err();
    }

    /// Whether the outcome is settled: the answer is complete, or has failed. Of a complete one only
    /// usage figures may still follow.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.failure.is_some() || self.assembly.is_complete()
    }

    /// Says that no more bytes come. A last event without its end still counts, if it is whole.
    pub fn end(&mut self, sink: &mut impl FnMut(ModelEvent)) {
        if self.failure.is_some() {
            return;
        }
        let assembly = &mut self.assembly;
        let mut each = |data: &[u8]| event(assembly.as_mut(), data, sink);
        let last = match &mut self.framing {
            Framing::Sse(sse) => sse.finish(&mut each),
            Framing::Ndjson(lines) => lines.finish(&mut each),
        };
        // Half an event is no news: that the stream broke off is said by `finish`.
        self.failure = last.err().filter(|error| error.kind != ModelErrorKind::BadResponse);
    }

    /// The answer, when the stream has ended.
    ///
    /// # Errors
    /// The error that the stream itself reported; `BadResponse` when it is not what the API speaks, is
    /// over its bounds, or broke off before its end. Of a stream that broke off nothing is returned.
    pub fn finish(mut self) -> Result<ModelResponse, ModelError> {
        self.end(&mut |_| {});
        match self.failure {
            Some(failure) => Err(failure),
            None if self.assembly.is_complete() => Ok(self.assembly.into_answer().into_response(self.api)),
            None => Err(ModelError::new(
                ModelErrorKind::BadResponse,
                format!(
                    "the {} stream broke off after {} bytes, before the end of the answer; nothing of it was kept",
                    self.api, self.fed
                ),
            )),
        }
    }
}

/// Decodes an answer that was not streamed.
///
/// # Errors
/// As [`Decoder::finish`].
pub fn decode_whole(api: Api, bytes: &[u8]) -> Result<ModelResponse, ModelError> {
    let mut assembly = assembly(api);
    assembly.whole(bytes, &mut |_| {})?;
    Ok(assembly.into_answer().into_response(api))
}

fn assembly(api: Api) -> Box<dyn Assemble> {
    match api {
        Api::OpenAiChat => Box::<openai_chat::Assembly>::default(),
        Api::Anthropic => Box::<anthropic::Assembly>::default(),
        Api::Ollama => Box::<ollama::Assembly>::default(),
    }
}

fn event(assembly: &mut dyn Assemble, data: &[u8], sink: &mut dyn FnMut(ModelEvent)) -> Result<(), ModelError> {
    if data.trim_ascii().is_empty() { Ok(()) } else { assembly.event(data, sink) }
}
