//! Tool calls in plain text, for models that are spoken to without an API for tools.
//!
//! Every family of models has its own format, which is a row of a table: how reasoning is set apart, how a call
//! begins and ends, how a result reads. The rows are data; eight syntaxes of calls read and write them all.
//! [`TextTools`] carries a whole conversation over one format. [`TextDecoder`] takes text as it comes, cut anywhere,
//! and gives out text, reasoning and calls; the other direction are [`Format::prompt`],
//! [`Format::write_calls`] and [`Format::write_results`].
//!
//! What is no whole call stays text: a marker that no call follows, one in a block of code or in
//! reasoning, a call that the answer does not close.

pub mod composed;
mod conversation;
mod decoder;
mod format;
mod syntax;
mod table;

use std::sync::Arc;

use toolwright_core::model::{ModelEvent, ShownTool, WrittenCall};

pub use conversation::{TextListener, TextTools};
pub use decoder::TextDecoder;
pub use format::{Format, Values};
pub use table::for_model;

/// All formats, in the order of the table.
#[must_use]
pub fn formats() -> &'static [Format] {
    &table::FORMATS
}

/// The format that models of no known family are shown.
#[must_use]
pub fn default_format() -> &'static Format {
    &table::FORMATS[0]
}

/// The format called `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Format> {
    formats().iter().find(|format| format.name == name)
}

/// Which format an answer is in.
#[derive(Clone, Copy)]
pub enum Choice {
    /// This one.
    Format(&'static Format),
    /// Whichever the text shows: the markers of all formats count. A form without markers counts only
    /// where the whole text is a call of a tool that was shown.
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

/// What to do with reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reasoning {
    /// It goes out apart from the text.
    #[default]
    Split,
    /// It stays in the text, with its markers.
    Keep,
}

/// How to read an answer.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What the prompt has already put into the assistant's turn (`<think>`, say); it is read as if the
    /// model had written it. Empty when it is known that nothing was. None when it is not known: then
    /// text is held back until it is clear whether it was reasoning, in formats whose prompt may have
    /// opened it.
    pub prefix: Option<String>,
    /// What to do with reasoning.
    pub reasoning: Reasoning,
    /// The tools that were shown. They type values that a format writes as plain text; calls of other
    /// tools are given out as they were written.
    pub tools: Arc<[ShownTool]>,
}

/// A whole answer, read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decoded {
    /// Text.
    pub text: String,
    /// Reasoning.
    pub reasoning: String,
    /// Calls. Their ids are empty where the format has none.
    pub calls: Vec<WrittenCall>,
}

impl Decoded {
    /// Adds the next piece.
    pub fn add(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Text(piece) => self.text.push_str(&piece),
            ModelEvent::Reasoning(piece) => self.reasoning.push_str(&piece),
            ModelEvent::Call(call) => self.calls.push(call),
        }
    }
}

/// Reads a whole answer. The same as feeding it to a [`TextDecoder`] in pieces.
#[must_use]
pub fn decode(text: &str, choice: Choice, options: Options) -> Decoded {
    let mut decoded = Decoded::default();
    let mut decoder = TextDecoder::new(choice, options);
    decoder.feed(text.as_bytes(), &mut |event| decoded.add(event));
    decoder.finish(&mut |event| decoded.add(event));
    decoded
}

impl Format {
    /// Its name, as the command line and the configuration write it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether arguments may hold the format's own markers.
    #[must_use]
    pub fn values(&self) -> Values {
        self.values
    }
}
