//! Reads and writes answers in the composed form.

use std::ops::Range;

use serde_json::{Map, Value, json};
use toolwright_core::json::repair;
use toolwright_core::model::RawToolCall;

use super::{ARGUMENTS_KEY, OUTPUT_KEY, REASONING_KEY, TOOL_KEY, Transport, key_of_parameter, parameter_of_key};

/// The longest answer that is read, in bytes.
const MAX_ANSWER: usize = 128 << 20;

/// A call of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ComposedCall {
    /// The call: `call_0`, `call_1`, … in written order. An invalid item has no name
    /// and its text as arguments, so that the check can report it.
    pub call: RawToolCall,
    /// Why the model makes it.
    pub reasoning: Option<String>,
    /// The model's result of a latent tool. It must be checked like any other.
    pub output: Option<Value>,
}

/// An answer: calls, an output, or both. With both, the calls run and the output ends the task.
#[derive(Debug, Clone, PartialEq)]
pub struct Composed {
    /// The final result; null counts as absent.
    pub output: Option<Value>,
    /// The calls, in order. All are closed.
    pub calls: Vec<ComposedCall>,
    /// Whether the answer was complete. Otherwise its unclosed parts are lost.
    pub complete: bool,
}

/// Why an answer cannot be used. [`UnusableAnswer::correction`] is the message for the model, to send once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnusableAnswer {
    /// The text has no object with `output` or `calls`.
    #[error("the answer has no object with `output` and `calls`")]
    NoObject,
    /// It has neither an output nor a call.
    #[error("the answer has neither an output nor a call")]
    Neither,
    /// It broke off before the first of them was whole.
    #[error("the answer broke off before its output or its first call was whole")]
    Cut,
    /// It is longer than 128 MiB.
    #[error("the answer is longer than {} MiB", MAX_ANSWER >> 20)]
    TooLong,
}

impl UnusableAnswer {
    /// The message for the model's one corrective turn.
    #[must_use]
    pub fn correction(self) -> String {
        let (problem, hint) = match self {
            Self::NoObject => ("was not the JSON object that was asked for", ""),
            Self::Neither => ("had no output and called no tool", ""),
            Self::Cut => ("broke off before anything in it was whole", " Keep it shorter."),
            Self::TooLong => ("was far too long", " Keep it shorter."),
        };
        format!(
            "Your answer {problem}. Answer once more, with one JSON object and nothing around it: \
             the final result in \"output\", or the tools to call in \"calls\".{hint}"
        )
    }
}

/// Reads an answer in chunks. A call is passed on when its item closes; an unclosed
/// one is lost. Prose and fences around the object are skipped, and broken JSON in it is repaired.
#[derive(Debug)]
pub struct Decoder<'a> {
    transport: &'a Transport,
    text: String,
    scan: Scan,
    output: Option<Value>,
    calls: Vec<ComposedCall>,
    too_long: bool,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(transport: &'a Transport) -> Self {
        Self { transport, text: String::new(), scan: Scan::default(), output: None, calls: Vec::new(), too_long: false }
    }

    /// Reads the next piece of text and passes completed calls to `sink`.
    pub fn feed(&mut self, piece: &str, sink: &mut impl FnMut(&ComposedCall)) {
        self.too_long |= self.text.len() + piece.len() > MAX_ANSWER;
        if self.too_long || self.scan.is_closed() {
            return;
        }
        self.text.push_str(piece);
        let (text, transport, calls, output) = (&self.text, self.transport, &mut self.calls, &mut self.output);
        self.scan.read(text, &mut |part| match part {
            Part::Output(range) => *output = value(&text[range]).filter(|value| !value.is_null()),
            Part::Call(range) => {
                for item in items(&text[range]) {
                    let call = call(transport, item, calls.len());
                    sink(&call);
                    calls.push(call);
                }
            }
        });
    }

    /// Returns the answer after the end of the text.
    ///
    /// # Errors
    /// [`UnusableAnswer`] if there is neither an output nor a call.
    pub fn finish(self) -> Result<Composed, UnusableAnswer> {
        let complete = self.scan.is_closed();
        if self.too_long {
            Err(UnusableAnswer::TooLong)
        } else if self.output.is_some() || !self.calls.is_empty() {
            Ok(Composed { output: self.output, calls: self.calls, complete })
        } else if complete {
            Err(UnusableAnswer::Neither)
        } else if self.scan.has_begun() {
            Err(UnusableAnswer::Cut)
        } else {
            Err(UnusableAnswer::NoObject)
        }
    }
}

/// Returns the value in a part of the answer; its text if it is not even broken JSON.
fn value(text: &str) -> Option<Value> {
    match repair(text) {
        Ok(read) => Some(read.value),
        Err(_) if text.trim().is_empty() => None,
        Err(_) => Some(text.trim().into()),
    }
}

/// Returns possible calls in the text of one item, or of `calls` if that is no array.
fn items(text: &str) -> Vec<Value> {
    match value(text) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(item) => vec![item],
    }
}

fn call(transport: &Transport, item: Value, number: usize) -> ComposedCall {
    let id = format!("call_{number}");
    let Value::Object(members) = item else {
        let arguments = item.as_str().map_or_else(|| item.to_string(), Into::into);
        return ComposedCall {
            call: RawToolCall { id, name: String::new(), arguments },
            reasoning: None,
            output: None,
        };
    };
    let (mut name, mut reasoning, mut output, mut whole) = (String::new(), None, None, None);
    let mut parameters = Map::new();
    for (member, value) in members {
        match (member.as_str(), value) {
            (TOOL_KEY, Value::String(tool)) => name = tool,
            (REASONING_KEY, Value::String(why)) => reasoning = Some(why).filter(|why| !why.is_empty()),
            (TOOL_KEY | REASONING_KEY, _) => {}
            (OUTPUT_KEY, result) => output = Some(result),
            (ARGUMENTS_KEY, arguments) => whole = Some(arguments),
            (parameter, value) => {
                parameters.insert(parameter_of_key(parameter).into(), value);
            }
        }
    }
    let arguments = match whole {
        Some(Value::String(text)) => text,
        Some(arguments) => arguments.to_string(),
        None => Value::Object(parameters).to_string(),
    };
    let output = output.filter(|_| transport.form(&name).latent);
    ComposedCall { call: RawToolCall { id, name, arguments }, reasoning, output }
}

pub(super) fn encode(transport: &Transport, answer: &Composed) -> Value {
    let item = |composed: &ComposedCall| {
        let form = transport.form(&composed.call.name);
        let mut item = Map::new();
        item.insert(TOOL_KEY.into(), composed.call.name.as_str().into());
        item.insert(REASONING_KEY.into(), composed.reasoning.as_deref().unwrap_or_default().into());
        let arguments: Map<String, Value> = serde_json::from_str(&composed.call.arguments).unwrap_or_default();
        if form.wrapped {
            item.insert(ARGUMENTS_KEY.into(), arguments.into());
        } else {
            let written = |(name, value): (String, _)| (key_of_parameter(&name).into_owned(), value);
            item.extend(arguments.into_iter().map(written));
        }
        if form.latent {
            item.insert(OUTPUT_KEY.into(), composed.output.clone().unwrap_or_default());
        }
        Value::from(item)
    };
    json!({"output": answer.output, "calls": answer.calls.iter().map(item).collect::<Vec<_>>()})
}

/// A part of the text that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// The value of `output`.
    Output(Range<usize>),
    /// An item of `calls`, or its value if that is no array.
    Call(Range<usize>),
}

/// The members of the answer that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Output,
    Calls,
    Other,
}

/// Scans brackets, quotes and commas, each byte once. It tolerates broken JSON as far as possible without
/// looking back: the reader of a part repairs its content.
#[derive(Debug, Default)]
struct Scan {
    /// Bytes that were read.
    at: usize,
    /// The open brackets.
    open: Vec<u8>,
    quote: Option<u8>,
    escaped: bool,
    /// The last byte outside of quotes that is not white space.
    before: u8,
    /// The member of the root whose value is being read.
    member: Option<Member>,
    /// Start of that value, or of the next member's name.
    start: usize,
    /// Start of the current item of `calls`.
    item: Option<usize>,
    /// Whether the root had one of the members.
    known: bool,
    closed: bool,
}

impl Scan {
    /// Whether the answer is complete; further text does not belong to it.
    fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether an answer has begun.
    fn has_begun(&self) -> bool {
        !self.open.is_empty()
    }

    /// Reads on in `text`, which begins with all that was read before.
    fn read(&mut self, text: &str, found: &mut impl FnMut(Part)) {
        let bytes = text.as_bytes();
        while !self.closed && self.at < bytes.len() {
            let byte = bytes[self.at];
            self.at += 1;
            if let Some(quote) = self.quote {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    _ if byte == quote => self.quote = None,
                    _ => {}
                }
                continue;
            }
            match byte {
                _ if byte.is_ascii_whitespace() => continue,
                b'{' | b'[' if self.has_begun() || byte == b'{' => self.opened(byte),
                _ if !self.has_begun() => continue,
                b'"' => self.quote = Some(byte),
                // Elsewhere it is an apostrophe.
                b'\'' if matches!(self.before, b'{' | b'[' | b',' | b':') => self.quote = Some(byte),
                b'}' => self.close(b'{', text, found),
                b']' => self.close(b'[', text, found),
                b':' if self.open.len() == 1 && self.member.is_none() => self.named(&text[self.start..self.at - 1]),
                b',' if self.open.len() == 1 => self.value_ended(self.at - 1, text, found),
                b',' if self.in_calls() => {
                    self.item_ended(self.at - 1, text, found);
                    self.item = Some(self.at);
                }
                _ => {}
            }
            self.before = byte;
        }
    }

    fn opened(&mut self, bracket: u8) {
        self.open.push(bracket);
        if self.open.len() == 1 {
            self.start = self.at;
        } else if self.in_calls() && self.item.is_none() && self.open.len() == 2 {
            self.item = Some(self.at);
        }
    }

    /// Directly inside the array of calls.
    fn in_calls(&self) -> bool {
        self.member == Some(Member::Calls) && self.open.len() == 2 && self.open[1] == b'['
    }

    /// Handles a closing bracket. It also closes inner open ones; an unmatched bracket is ignored.
    fn close(&mut self, bracket: u8, text: &str, found: &mut impl FnMut(Part)) {
        if !self.open.contains(&bracket) {
            return;
        }
        while let Some(&top) = self.open.last() {
            let end = if top == bracket { self.at } else { self.at - 1 };
            if self.in_calls() {
                self.item_ended(self.at - 1, text, found);
            } else if self.open.len() == 1 {
                self.value_ended(self.at - 1, text, found);
            }
            self.open.pop();
            if self.in_calls() {
                self.item_ended(end, text, found);
            }
            if top == bracket {
                break;
            }
        }
        if self.open.is_empty() {
            if self.known {
                self.closed = true;
            } else {
                // Braces in the prose before the answer.
                *self = Self { at: self.at, ..Self::default() };
            }
        }
    }

    fn named(&mut self, name: &str) {
        let member = match name.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')) {
            "output" => Member::Output,
            "calls" => Member::Calls,
            _ => Member::Other,
        };
        self.known |= member != Member::Other;
        self.member = Some(member);
        self.start = self.at;
    }

    fn value_ended(&mut self, end: usize, text: &str, found: &mut impl FnMut(Part)) {
        let value = self.start..end;
        let is_array = || text[value.clone()].trim_start().starts_with('[');
        match self.member {
            Some(Member::Output) => found(Part::Output(value)),
            Some(Member::Calls) if !is_array() => found(Part::Call(value)),
            _ => {}
        }
        self.member = None;
        self.start = self.at;
    }

    fn item_ended(&mut self, end: usize, text: &str, found: &mut impl FnMut(Part)) {
        if let Some(start) = self.item.take()
            && !text[start..end].trim().is_empty()
        {
            found(Part::Call(start..end));
        }
    }
}
