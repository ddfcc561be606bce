//! The syntaxes of calls: for each a reader and a writer. A [`Block`] reads from a marker to the end of the calls.

pub(crate) mod json;
pub(crate) mod markup;
pub(crate) mod named;
pub(crate) mod python;
pub(crate) mod scan;
pub(crate) mod tag_per_argument;
mod typing;

use serde_json::{Map, Value};
use toolwright_core::model::{RawToolCall, RequestTool};

use crate::table;
use crate::table::format::{Call, Form, FormPosition};
use scan::{PrefixMatch, begins, whitespace_len};

/// The result of reading on in a block.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// It is not complete.
    More,
    /// It is not a call.
    Fail,
    /// It is closed.
    Done {
        /// Its length from its marker on.
        len: usize,
        /// The calls in it.
        calls: Vec<RawToolCall>,
    },
}

/// Which calls are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptedCalls {
    /// Calls of any tool: the format is known.
    Any,
    /// Only calls of tools in the request, because the text's shape is the only evidence.
    Known,
}

/// The input of a reader.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReaderInput<'a> {
    /// The text from the block's marker on.
    pub text: &'a str,
    /// Whether no more text comes.
    pub ended: bool,
    /// The tools of the request.
    pub tools: &'a [RequestTool],
    /// Which calls are accepted.
    pub trust: AcceptedCalls,
    /// Whether it begins its line.
    pub alone: bool,
    /// The tokens that end a response in its format.
    pub stops: &'static [&'static str],
}

impl ReaderInput<'_> {
    /// The result for an incomplete block.
    pub(crate) fn wait(&self) -> Step {
        if self.ended { Step::Fail } else { Step::More }
    }

    /// Whether a response of only a call to this name counts. Any name does if the request has no tools.
    pub(crate) fn may_call(&self, name: &str) -> bool {
        self.tools.is_empty() || self.knows(name)
    }

    /// Whether the request has a tool of this name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }
}

/// Reads the calls of one form. It keeps its position.
pub(crate) trait CallReader: std::fmt::Debug + Send + Sync {
    /// Returns how far it has read.
    fn read_len(&self) -> usize;

    /// Continues behind the markers, which are `head` bytes long. `view.text` has the same start as before, and has
    /// grown or is complete.
    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step;
}

/// A block of calls, and how far it has been read.
#[derive(Debug)]
pub(crate) struct Block {
    /// Its form; `None` if a message header gave the call.
    call: Option<&'static Call>,
    /// Length of its markers, once known.
    head: Option<usize>,
    reader: Box<dyn CallReader>,
}

impl Block {
    /// A block that begins with a marker of `call`.
    pub(crate) fn new(call: &'static Call) -> Self {
        let reader: Box<dyn CallReader> = match &call.form {
            Form::Json(form) => Box::new(json::JsonReader::new(form)),
            Form::Named(form) => Box::new(named::NamedReader::new(form, call.section)),
            Form::Tagged(form) => Box::new(tag_per_argument::TaggedReader::new(form)),
            Form::Nested(form) => Box::new(tag_per_argument::NestedReader::new(form)),
            Form::Pythonic(form) => Box::new(python::PythonicReader::new(form)),
            Form::Braces(form) => Box::new(python::BracesReader::new(form)),
            Form::Markup(form) => Box::new(markup::MarkupReader::new(*form)),
            Form::Raw(form) => Box::new(named::RawReader::new(form)),
        };
        Self { call: Some(call), head: None, reader }
    }

    /// The body of a message to a tool.
    pub(crate) fn body(body: named::Body) -> Self {
        Self { call: None, head: Some(0), reader: Box::new(body) }
    }

    /// Returns how far it has been read.
    pub(crate) fn read_len(&self) -> usize {
        self.reader.read_len()
    }

    /// Continues reading. `view.text` has the same start as before, and has grown or is complete.
    pub(crate) fn step(&mut self, view: ReaderInput<'_>) -> Step {
        let head = match (self.head, self.call) {
            (Some(head), _) => head,
            (None, None) => 0,
            (None, Some(call)) => match head(call, view) {
                Ok(head) => *self.head.insert(head),
                Err(step) => return step,
            },
        };
        self.reader.step(head, view)
    }
}

/// The length of the markers before the form's own text.
fn head(call: &Call, view: ReaderInput<'_>) -> Result<usize, Step> {
    if call.at() == FormPosition::Start {
        return Ok(0);
    }
    let mut at = 0;
    if let Some((section, _)) = call.section
        && begins(view.text, section) == PrefixMatch::Yes
    {
        at = section.len() + whitespace_len(&view.text[section.len()..]);
    }
    let rest = &view.text[at..];
    if let Some((_, close)) = call.section.filter(|(section, _)| at > 0 && table::is_control(section)) {
        match begins(rest, close) {
            // An empty section.
            PrefixMatch::Yes => return Err(Step::Done { len: at + close.len(), calls: Vec::new() }),
            PrefixMatch::Perhaps => return Err(view.wait()),
            PrefixMatch::No => {}
        }
    }
    let opens = call.opens();
    if let Some(open) = opens.iter().filter(|open| rest.starts_with(**open)).max_by_key(|open| open.len()) {
        // The reader reads a tag around the call itself, since it must find its end.
        let outer = matches!(&call.form, Form::Tagged(form) if form.outer.is_some_and(|outer| outer.0 == *open));
        return Ok(if outer { at } else { at + open.len() });
    }
    let perhaps = opens.iter().any(|open| begins(rest, open) == PrefixMatch::Perhaps);
    Err(if perhaps { view.wait() } else { Step::Fail })
}

/// Whether `character` may occur in a tool's name.
pub(crate) fn is_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | ':' | '/')
}

/// The longest name, in bytes.
pub(crate) const MAX_NAME: usize = 256;

/// A call without an id.
pub(crate) fn call(name: &str, arguments: String) -> RawToolCall {
    RawToolCall { id: String::new(), name: name.to_owned(), arguments }
}

/// A past call, its arguments read.
pub(crate) struct PastCall<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its arguments; an empty object if they are not one.
    pub arguments: Map<String, Value>,
    /// The same as JSON, as the model wrote it.
    pub json: &'a str,
    /// Its index among the calls of its turn.
    pub index: usize,
}

impl<'a> PastCall<'a> {
    pub(crate) fn of((index, call): (usize, &'a RawToolCall)) -> Self {
        let read = serde_json::from_str(&call.arguments).ok();
        let json = if read.is_some() { call.arguments.trim() } else { "{}" };
        Self { id: &call.id, name: &call.name, arguments: read.unwrap_or_default(), json, index }
    }
}
