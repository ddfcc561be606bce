//! Tool calls in plain text, for models without an API for tools.
//!
//! Every model family has its own format, which is a row of a table: how reasoning is marked, how a call begins and
//! ends, how a result is written. The rows are data; eight syntaxes read and write the calls of all of them.
//! [`TextTools`] converts a whole conversation to one format. [`TextDecoder`] reads text in chunks and returns text,
//! reasoning and calls. [`Format::prompt`], [`Format::write_calls`] and [`Format::write_results`] write.
//!
//! Anything but a complete call stays text: a marker without a call, a marker in a code block or in reasoning, a call
//! that the response does not close.

pub mod composed;
mod conversation;
mod decoder;
mod syntax;
mod table;

use std::sync::Arc;

use toolwright_core::model::{ModelEvent, RawToolCall, RequestTool};

pub use conversation::{TextListener, TextTools};
pub use decoder::TextDecoder;
pub use table::for_model;
pub use table::format::{Format, Values};

/// All formats, in the order of the table.
#[must_use]
pub fn formats() -> &'static [Format] {
    &table::FORMATS
}

/// The format for models of unknown families.
#[must_use]
pub fn default_format() -> &'static Format {
    &table::FORMATS[0]
}

/// The format called `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Format> {
    formats().iter().find(|format| format.name == name)
}

/// The format of a response.
#[derive(Clone, Copy)]
pub enum Choice {
    /// This format.
    Format(&'static Format),
    /// Detected from the text: the markers of all formats count. A form without markers counts only if the whole text is a call
    /// of a tool in [`Options::tools`].
    Auto,
}

impl std::fmt::Debug for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Format(format) => format.name,
            Self::Auto => "auto",
        })
    }
}

/// How to handle reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reasoning {
    /// It is returned apart from the text.
    #[default]
    Split,
    /// It stays in the text, with its markers.
    Keep,
}

/// Options of reading a response.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The start of the assistant's turn in the prompt, like `<think>`; it is read as if the model had written it.
    /// Empty if there is none; `None` if unknown: then, in formats whose prompt may open reasoning, text is held back
    /// until it is clear whether it was reasoning.
    pub prefix: Option<String>,
    /// How to handle reasoning.
    pub reasoning: Reasoning,
    /// The tools of the request. They give types to values written as plain text; calls of other tools are returned
    /// as written.
    pub tools: Arc<[RequestTool]>,
}

/// A decoded response.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decoded {
    /// Text.
    pub text: String,
    /// Reasoning.
    pub reasoning: String,
    /// Calls. Their ids are empty if the format has none.
    pub calls: Vec<RawToolCall>,
}

impl Decoded {
    /// Adds the next piece.
    pub fn add(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Text(piece) => self.text.push_str(&piece),
            ModelEvent::Reasoning(piece) => self.reasoning.push_str(&piece),
            ModelEvent::Call(call) => self.calls.push(call),
            ModelEvent::Opaque(_) => {}
        }
    }
}

/// Reads a whole response, as a [`TextDecoder`] would in pieces.
#[must_use]
pub fn decode(text: &str, choice: Choice, options: Options) -> Decoded {
    let mut decoded = Decoded::default();
    let mut decoder = TextDecoder::new(choice, options);
    decoder.feed(text.as_bytes(), &mut |event| decoded.add(event));
    decoder.finish(&mut |event| decoded.add(event));
    decoded
}

impl Format {
    /// Its name on the command line and in the configuration.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether arguments may contain the format's own markers.
    #[must_use]
    pub fn values(&self) -> Values {
        self.values
    }
}
