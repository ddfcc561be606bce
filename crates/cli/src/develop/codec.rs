//! `decode`: parses a model's output into values.

use std::collections::{HashMap, HashSet};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolwright::core::json::repair;
use toolwright::core::model::{ModelResponse, StopReason, Usage, WrittenCall};
use toolwright::models::dialect::{Toolset, translate};
use toolwright::models::{Api, Decoder};
use toolwright::textcalls::{self, Choice, Options, Reasoning, TextDecoder};

use crate::args::{ApiName, Decode, ReasoningName};
use crate::develop::tool_file::ToolFile;
use crate::exit::{Done, Exit, Failure};
use crate::input;
use crate::terminal::screen::print_json;

/// An answer as it is printed, and how the program ends if it was the only one.
type Answer = (Value, Exit);

/// The format of arguments by themselves.
const ARGUMENTS: &str = "arguments";
/// The format that the model's name tells, or the text.
const AUTO: &str = "auto";

/// Every value of `--format`.
pub(crate) fn formats() -> impl Iterator<Item = &'static str> {
    let apis = Api::ALL.into_iter().map(|api| ApiName(api).as_str());
    [ARGUMENTS, AUTO].into_iter().chain(apis).chain(textcalls::formats().iter().map(|format| format.name()))
}

pub(crate) fn command(decode: &Decode) -> Done {
    let reader = Reader::new(decode)?;
    let bytes = input::read_bytes(decode.file.as_deref().unwrap_or(Path::new("-")))?;
    if !decode.jsonl {
        let (document, exit) = reader.read(&bytes);
        print_json(&document)?;
        return Ok(exit);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut whole = Exit::Ok;
    let bytes = input::without_mark(&bytes);
    // Each line has its answer, whatever it holds, so that they pair up; the last need not have its end.
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let (document, exit) = match input::json_text(line) {
            Ok(text) => reader.read(text.as_bytes()),
            Err(error) => reader.failed("input", &format!("the line is not one JSON string: {error}")),
        };
        writeln!(out, "{document}")?;
        if exit != Exit::Ok {
            whole = exit;
        }
    }
    out.flush()?;
    Ok(whole)
}

/// Reads answers of one format.
struct Reader {
    format: Format,
    /// Bytes that are fed at a time.
    chunk: usize,
    /// The names that the tools have in their file, by wire name.
    given: HashMap<String, String>,
}

enum Format {
    Arguments,
    Api(Api, Arc<Toolset>),
    Text(Choice, Options),
}

impl Reader {
    fn new(decode: &Decode) -> Result<Self, Failure> {
        let file = decode.tools.as_deref().map(ToolFile::read).transpose()?.unwrap_or_default();
        let format = decode.format.as_str();
        let format = if format == ARGUMENTS {
            Format::Arguments
        } else if let Some(api) = Api::ALL.into_iter().find(|api| ApiName(*api).as_str() == format) {
            Format::Api(api, Arc::new(translate(api.dialect(), &file.shown, decode.strict)))
        } else {
            let named = if format == AUTO {
                decode.model.as_deref().and_then(textcalls::for_model)
            } else {
                textcalls::by_name(format)
            };
            let reasoning = match decode.reasoning {
                ReasoningName::Split => Reasoning::Split,
                ReasoningName::Keep => Reasoning::Keep,
            };
            let options = Options { prefix: decode.prefix.clone(), reasoning, tools: file.by_every_name().into() };
            Format::Text(named.map_or(Choice::Auto, Choice::Format), options)
        };
        Ok(Self { format, chunk: decode.chunk.unwrap_or(usize::MAX), given: file.given() })
    }

    fn read(&self, bytes: &[u8]) -> Answer {
        match &self.format {
            Format::Arguments => arguments(&String::from_utf8_lossy(bytes)),
            Format::Api(api, tools) => self.api(*api, tools, bytes),
            Format::Text(choice, options) => (self.text(*choice, options, bytes), Exit::Ok),
        }
    }

    fn api(&self, api: Api, tools: &Arc<Toolset>, bytes: &[u8]) -> Answer {
        let mut decoder = Decoder::detecting(api).with_tools(Arc::clone(tools));
        for piece in bytes.chunks(self.chunk) {
            decoder.feed(piece, &mut |_| {});
        }
        match decoder.finish() {
            Ok(response) => {
                let stop = stop_reason(&response.stop);
                let mut document = self.document(response);
                document.insert("stop_reason".into(), stop);
                (document.into(), Exit::Ok)
            }
            Err(error) => {
                let mut document = self.document(error.partial.map(|partial| *partial).unwrap_or_default());
                document.insert("error".into(), json!({"kind": error.kind, "message": error.message}));
                (document.into(), Exit::Failed)
            }
        }
    }

    fn text(&self, choice: Choice, options: &Options, bytes: &[u8]) -> Value {
        let mut decoded = textcalls::Decoded::default();
        let mut decoder = TextDecoder::new(choice, options.clone());
        for piece in bytes.chunks(self.chunk) {
            decoder.feed(piece, &mut |event| decoded.add(event));
        }
        decoder.finish(&mut |event| decoded.add(event));
        let textcalls::Decoded { text, reasoning, calls } = decoded;
        self.document(ModelResponse { text, reasoning, calls, ..ModelResponse::default() }).into()
    }

    /// What an answer holds; the rest is its API's.
    fn document(&self, response: ModelResponse) -> Map<String, Value> {
        let mut document = Map::new();
        document.insert("text".into(), response.text.into());
        document.insert("reasoning".into(), response.reasoning.into());
        document.insert("calls".into(), self.calls(response.calls));
        if !response.other_calls.is_empty() {
            document.insert("other_calls".into(), json!(response.other_calls));
        }
        if response.usage != Usage::default() {
            document.insert("usage".into(), json!(response.usage));
        }
        document
    }

    /// `[{id, name, arguments}]`: calls without an id are counted, and tools have the names of their file.
    fn calls(&self, calls: Vec<WrittenCall>) -> Value {
        let mut ids: HashSet<String> = calls.iter().map(|call| call.id.clone()).collect();
        let each = calls.into_iter().enumerate().map(|(index, mut call)| {
            let mut number = index;
            while call.id.is_empty() {
                let id = format!("call_{number}");
                if ids.insert(id.clone()) {
                    call.id = id;
                }
                number += 1;
            }
            let name = self.given.get(&call.name).unwrap_or(&call.name);
            json!({"id": call.id, "name": name, "arguments": object(&call.arguments)})
        });
        each.collect()
    }

    /// An answer that could not be read.
    fn failed(&self, kind: &str, message: &str) -> Answer {
        let mut document = match self.format {
            Format::Arguments => json!({"value": null, "repaired": false}),
            Format::Api(..) | Format::Text(..) => self.document(ModelResponse::default()).into(),
        };
        document["error"] = json!({"kind": kind, "message": message});
        (document, Exit::Failed)
    }
}

/// `{value, repaired}`, with `error` where there is no value.
fn arguments(text: &str) -> Answer {
    match repair(text) {
        Ok(read) => (json!({"value": read.value, "repaired": read.repaired}), Exit::Ok),
        Err(error) => {
            let error = json!({"kind": "unreadable", "message": error.to_string()});
            (json!({"value": null, "repaired": false, "error": error}), Exit::Failed)
        }
    }
}

/// The object that a call's arguments are, the empty one if there are none; else their text.
fn object(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(object @ Value::Object(_)) => object,
        Ok(Value::Null) => json!({}),
        _ if arguments.trim().is_empty() => json!({}),
        _ => arguments.into(),
    }
}

/// The reason in one word.
fn stop_reason(stop: &StopReason) -> Value {
    match stop {
        StopReason::Other(word) => word.as_str().into(),
        known => json!(known),
    }
}
