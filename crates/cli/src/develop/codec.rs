//! `validate`, `encode`, `decode`: convert arguments, tools and model output without a call, and print JSON.

use std::collections::{HashMap, HashSet};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};
use toolwright::config::{Severity, variable};
use toolwright::core::Cancel;
use toolwright::core::RawArguments;
use toolwright::core::arguments::{FittedArguments, Provenance, fit, read_object};
use toolwright::core::json::{fault, repair};
use toolwright::core::model::{CallMeta, ModelResponse, RawToolCall, RequestTool, StopReason, Usage};
use toolwright::core::name_table::Resolution;
use toolwright::core::schema::{CompiledSchema, Draft, bundle, suggest};
use toolwright::core::tool_id::{MAX_WIRE_NAME, wire_names};
use toolwright::models::dialect::{Toolset, translate};
use toolwright::models::{Api, Decoder, tools_json};
use toolwright::net::{AddressPolicy, Bounds, HttpClient, HttpOptions, HttpRequest};
use toolwright::textcalls::{self, Choice, Options, Reasoning, TextDecoder};
use toolwright_eval::select::{RecordFields, SCHEMA, TOOLS, records};
use url::Url;

use crate::app::{GlobalOptions, open, read};
use crate::exit::{CommandResult, Exit, Failure};
use crate::input;
use crate::terminal::screen::print_json;
use crate::use_tools::call::LIST_WAIT;
use crate::use_tools::tools;
use crate::values::{API_NAMES, api, draft, reasoning};

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("against").args(["tool", "schema"]))]
pub(crate) struct Validate {
    /// Tool of the catalogue: wire name, id, alias or bare name.
    #[arg(long, value_name = "TOOL", conflicts_with = "schema")]
    pub(crate) tool: Option<String>,
    /// File with a JSON Schema; no configuration is read, and any JSON value may be checked.
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// Prints the schema as one document that includes what it references in its folder and below. Validates nothing.
    #[arg(long, requires = "schema", conflicts_with_all = ["tool", "arguments", "coerce", "no_coerce"])]
    pub(crate) bundle: bool,
    /// With `--bundle`, also fetches references to public http and https addresses.
    #[arg(long, requires = "bundle")]
    pub(crate) allow_remote: bool,
    /// JSON Schema draft, if the schema names none. Default: the newest draft in which it compiles.
    #[arg(long, value_name = "DRAFT", conflicts_with = "tool", value_parser = draft())]
    pub(crate) draft: Option<Draft>,
    /// Repairs values of the wrong type with --schema too. Default with --tool.
    #[arg(long, conflicts_with = "tool")]
    pub(crate) coerce: bool,
    /// Leaves values of the wrong type as they are. Default with --schema.
    #[arg(long, conflicts_with = "coerce")]
    pub(crate) no_coerce: bool,
    /// Arguments as JSON, which may be malformed; `-` reads them from standard input. Default: `{}`.
    #[arg(value_name = "ARGS|-", allow_negative_numbers = true, requires = "against")]
    pub(crate) arguments: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Encode {
    /// The model API.
    #[arg(long, value_name = "API", value_parser = api())]
    pub(crate) api: Api,
    /// File with the tools, `-` for standard input: JSON or JSON lines of {name, description, parameters}.
    #[arg(long, value_name = "FILE|-")]
    pub(crate) tools: PathBuf,
    /// Requests strict decoding for tools that do not decide it, if the API supports it and the strict schema means the
    /// same.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Decode {
    /// What the input is: an answer of a model API (a JSON body, server-sent events, or one event a line), a text in a
    /// format for tool calls, `auto` for whichever it is in, or `arguments`, one JSON text that may be malformed.
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(formats()))]
    pub(crate) format: String,
    /// The model that wrote it. With `auto` it selects the format, if the model's format is known.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// File with the tools that the model was shown, as for `encode`. They give values their types and restore changed
    /// names.
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// The tools were encoded with --strict.
    #[arg(long, requires = "tools")]
    pub(crate) strict: bool,
    /// Feeds this many bytes at a time. Default: all at once.
    #[arg(long, value_name = "BYTES", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) chunk: Option<usize>,
    /// What the prompt already opened in the model's turn, like `<think>`.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prefix: Option<String>,
    /// What happens to reasoning in a text.
    #[arg(long, value_name = "split|keep", default_value = "split", value_parser = reasoning())]
    pub(crate) reasoning: Reasoning,
    /// The input has one JSON string a line. Each gets one line of output.
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// File with the input. Default: standard input.
    #[arg(value_name = "FILE|-")]
    pub(crate) file: Option<PathBuf>,
}

/// An answer to print, and the exit code if it is the only one.
type PrintedAnswer = (Value, Exit);

/// The format of bare arguments.
const ARGUMENTS: &str = "arguments";
/// The format is determined by the model's name, or the text.
const AUTO: &str = "auto";

/// Returns every value of `--format`.
pub(crate) fn formats() -> impl Iterator<Item = &'static str> {
    let apis = API_NAMES.into_iter().map(|(name, _)| name);
    [ARGUMENTS, AUTO].into_iter().chain(apis).chain(textcalls::formats().iter().map(|format| format.name()))
}

pub(crate) fn decode(decode: &Decode) -> CommandResult {
    let reader = AnswerReader::new(decode)?;
    let bytes = input::read_bytes(decode.file.as_deref().unwrap_or(Path::new("-")))?;
    if !decode.jsonl {
        let (document, exit) = reader.read(&bytes);
        print_json(&document)?;
        return Ok(exit);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut whole = Exit::Ok;
    let bytes = input::without_mark(&bytes);
    // Each line gets an answer, whatever its content, so that they correspond. The last line may lack its end.
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

/// Parses answers of one format.
struct AnswerReader {
    format: Format,
    /// Bytes per chunk.
    chunk: usize,
    /// The tools' names in their file, by wire name.
    given: HashMap<String, String>,
}

enum Format {
    Arguments,
    Api(Api, Arc<Toolset>),
    Text(Choice, Options),
}

impl AnswerReader {
    fn new(decode: &Decode) -> Result<Self, Failure> {
        let file = decode.tools.as_deref().map(ToolFile::read).transpose()?.unwrap_or_default();
        let format = decode.format.as_str();
        let format = if format == ARGUMENTS {
            Format::Arguments
        } else if let Some((_, api)) = API_NAMES.into_iter().find(|(name, _)| *name == format) {
            Format::Api(api, Arc::new(translate(api.dialect(), &file.shown, decode.strict)))
        } else {
            let named = if format == AUTO {
                decode.model.as_deref().and_then(textcalls::for_model)
            } else {
                textcalls::by_name(format)
            };
            let tools = file.by_every_name().into();
            let options = Options { prefix: decode.prefix.clone(), reasoning: decode.reasoning, tools };
            Format::Text(named.map_or(Choice::Auto, Choice::Format), options)
        };
        Ok(Self { format, chunk: decode.chunk.unwrap_or(usize::MAX), given: file.given() })
    }

    fn read(&self, bytes: &[u8]) -> PrintedAnswer {
        match &self.format {
            Format::Arguments => match repair(&String::from_utf8_lossy(bytes)) {
                Ok(read) => (json!({"value": read.value, "repaired": read.repaired}), Exit::Ok),
                Err(error) => self.failed("unreadable", &error.to_string()),
            },
            Format::Api(api, tools) => self.api(*api, tools, bytes),
            Format::Text(choice, options) => (self.text(*choice, options, bytes), Exit::Ok),
        }
    }

    fn api(&self, api: Api, tools: &Arc<Toolset>, bytes: &[u8]) -> PrintedAnswer {
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

    /// Returns the content of an answer, independent of its API.
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

    /// Returns `[{id, name, arguments}]`: calls without an id are numbered, and tools have the names of their file.
    fn calls(&self, calls: Vec<RawToolCall>) -> Value {
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

    /// Returns the answer for text that could not be parsed.
    fn failed(&self, kind: &str, message: &str) -> PrintedAnswer {
        let mut document = match self.format {
            Format::Arguments => json!({"value": null, "repaired": false}),
            Format::Api(..) | Format::Text(..) => self.document(ModelResponse::default()).into(),
        };
        document["error"] = json!({"kind": kind, "message": message});
        (document, Exit::Failed)
    }
}

/// Returns the object of a call's arguments, empty if there are none; or their text if they are not an object.
fn object(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(object @ Value::Object(_)) => object,
        Ok(Value::Null) => json!({}),
        _ if arguments.trim().is_empty() => json!({}),
        _ => arguments.into(),
    }
}

/// Returns the stop reason as one word.
fn stop_reason(stop: &StopReason) -> Value {
    match stop {
        StopReason::Other(word) => word.as_str().into(),
        known => json!(known),
    }
}

/// Prints `{tools, losses, names, quarantined}`. A tool that is left out is not a failure: the answer has the reason.
pub(crate) fn encode(encode: &Encode) -> CommandResult {
    let file = ToolFile::read(&encode.tools)?;
    let set = translate(encode.api.dialect(), &file.shown, encode.strict);
    print_json(&json!({
        "tools": tools_json(encode.api, &set),
        "losses": set.losses,
        "names": file.names(),
        "quarantined": set.quarantined,
    }))?;
    Ok(Exit::Ok)
}

/// Validates the configuration with its agent files. Starts nothing.
pub(crate) fn validate_configuration(global: &GlobalOptions) -> CommandResult {
    let mut config = read(global)?;
    config.problems.extend(config.unsigned_webhooks(&variable));
    let valid = config.problems.iter().all(|problem| problem.severity == Severity::Warning);
    let agents: Vec<&str> = config.agents.iter().map(|agent| agent.config.name.as_str()).collect();
    let problems = &config.problems;
    print_json(&json!({"valid": valid, "files": config.files, "agents": agents, "problems": problems}))?;
    Ok(if valid { Exit::Ok } else { Exit::Failed })
}

/// Validates against a file, without any configuration. Any JSON value may be an instance.
pub(crate) fn validate_by_schema(file: &Path, validate: &Validate) -> CommandResult {
    let name = file.display();
    let written_schema: Value = serde_json::from_str(&input::read(file)?)
        .map_err(|error| Failure::usage(format!("{name} is not JSON: {}", fault(&error))))?;
    let written_schema = match validate.bundle {
        true => bundled(&written_schema, file, validate.allow_remote)?,
        false => written_schema,
    };
    let schema = match validate.draft {
        Some(draft) => CompiledSchema::compile_as(&written_schema, draft),
        None => CompiledSchema::compile(&written_schema),
    }
    .map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    if validate.bundle {
        print_json(&written_schema)?;
        return Ok(Exit::Ok);
    }
    let text = written(validate)?;
    let fitted = repair(&text).map_err(|error| error.to_string()).map(|read| {
        let provenance = Provenance { repaired: read.repaired, ..Provenance::default() };
        if validate.coerce {
            fit(&schema, read.value, provenance)
        } else {
            let mut violations = schema.violations(&read.value);
            suggest(&written_schema, &read.value, &mut violations);
            FittedArguments { arguments: read.value, provenance, pending: Vec::new(), violations }
        }
    });
    answer(&text, fitted)
}

/// The most bytes of a document that a schema refers to.
const MAX_DOCUMENT: usize = 16 << 20;
/// Time limit of fetching one.
const FETCH: Duration = Duration::from_secs(30);

/// Returns the schema with the targets of its references: files in its folder and below, and addresses if they are
/// allowed.
fn bundled(schema: &Value, file: &Path, allow_remote: bool) -> Result<Value, Failure> {
    let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let beside = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = beside.canonicalize().map_err(|error| Failure::usage(format!("{}: {error}", beside.display())))?;
    let mut load = |from: &str, reference: &str| -> Result<(String, Value), String> {
        let url = match (Url::parse(reference), Url::parse(from)) {
            (Ok(url), _) if matches!(url.scheme(), "http" | "https") => Some(url),
            (_, Ok(from)) if matches!(from.scheme(), "http" | "https") => from.join(reference).ok(),
            _ => None,
        };
        let (found, text) = match url {
            Some(_) if !allow_remote => return Err("it is an address: --allow-remote fetches it".to_owned()),
            Some(url) => (url.to_string(), fetched(url)?),
            None => {
                let path = Path::new(from).parent().unwrap_or(Path::new("")).join(reference);
                let path = path.canonicalize().map_err(|error| error.to_string())?;
                if !path.starts_with(&folder) {
                    let folder = folder.display();
                    return Err(format!("it lies outside of {folder}, the schema's folder: put the file there"));
                }
                let text = input::read(&path).map_err(|failure| failure.message)?;
                (path.display().to_string(), text)
            }
        };
        let document = serde_json::from_str(&text).map_err(|error| format!("it is not JSON: {}", fault(&error)))?;
        Ok((found, document))
    };
    bundle(schema, &path.display().to_string(), &mut load).map_err(Failure::usage)
}

/// Fetches a document at a public address.
fn fetched(url: Url) -> Result<String, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let cancel = Cancel::new();
        let bounds = Bounds::new(&cancel, Some(Instant::now() + FETCH));
        let client = HttpClient::new(AddressPolicy::default(), HttpOptions::default());
        let response = client.send(HttpRequest::get(url), bounds).await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("HTTP {}", response.status()));
        }
        let body = response.read(MAX_DOCUMENT, bounds).await.map_err(|error| error.to_string())?;
        if body.cut {
            return Err(format!("it has more than {MAX_DOCUMENT} bytes"));
        }
        String::from_utf8(body.bytes).map_err(|_| "it is no text".to_owned())
    })
}

/// Validates against a tool of the catalogue, as for a call.
pub(crate) async fn validate_by_tool(global: &GlobalOptions, tool: &str, validate: &Validate) -> CommandResult {
    let text = written(validate)?;
    let app = open(global).await?;
    app.list_for(tool, LIST_WAIT).await;
    let snapshot = app.catalogue().snapshot();
    app.shut_down().await;
    match snapshot.resolve(tool) {
        Resolution::Found(index, matched) => {
            let entry = &snapshot.list()[index];
            let mut fitted =
                FittedArguments::to(entry, RawArguments::Text(text.clone()), &mut CallMeta::default(), None);
            let schema = entry.tool.schema().ok().flatten();
            let valid = schema.is_some() && fitted.as_ref().is_ok_and(|fitted| fitted.violations.is_empty());
            // An invalid call by a guessed name counts as a call of an unknown tool.
            if matched.is_guess() && !valid {
                return Err(tools::unknown(&snapshot, tool, std::slice::from_ref(&entry.wire_name)));
            }
            if let (true, Some(schema), Ok(fitted), Some(written)) =
                (validate.no_coerce, schema, &mut fitted, read_object(&text))
                && !fitted.provenance.coerced.is_empty()
            {
                fitted.violations = schema.violations(&written);
                fitted.arguments = written;
                fitted.provenance.coerced.clear();
            }
            answer(&text, fitted.map_err(|unusable| format!("the arguments {}", unusable.message)))
        }
        Resolution::Unknown(near) => Err(tools::unknown(&snapshot, tool, &near)),
    }
}

/// Returns the written arguments; an empty text means an empty object.
fn written(validate: &Validate) -> Result<String, Failure> {
    match validate.arguments.as_deref() {
        None => Ok("{}".into()),
        Some("-") => input::read(Path::new("-")),
        Some(text) => Ok(text.into()),
    }
}

/// Prints `{valid, arguments, coerced, repaired, errors}`.
fn answer(text: &str, fitted: Result<FittedArguments, String>) -> CommandResult {
    let (valid, document) = match fitted {
        Ok(FittedArguments { arguments, provenance, violations, .. }) => (
            violations.is_empty(),
            json!({
                "valid": violations.is_empty(),
                "arguments": arguments,
                "coerced": provenance.coerced,
                "repaired": provenance.repaired,
                "errors": violations,
            }),
        ),
        Err(message) => (
            false,
            json!({
                "valid": false,
                "arguments": serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
                "coerced": [],
                "repaired": false,
                "errors": [{"path": "", "keyword": "parse", "message": message}],
            }),
        ),
    };
    print_json(&document)?;
    Ok(if valid { Exit::Ok } else { Exit::Failed })
}

/// The tools of a file, in its order.
#[derive(Debug, Default)]
pub(crate) struct ToolFile {
    /// The tools as a request shows them, by their wire names.
    pub(crate) shown: Vec<RequestTool>,
    /// The names in the file.
    given: Vec<String>,
    /// The id of each tool: its `id` in the file, else its name.
    ids: Vec<String>,
}

impl ToolFile {
    /// Parses a JSON list of tools, an object with a list under `tools` or with tools as its members, or one tool per
    /// line. A tool is `{name, description?, parameters? | inputSchema? | input_schema?, id?, strict?,
    /// body_argument?}`, by itself or under `function`.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let name = file.display();
        let text = input::read(file)?;
        let records = records(&text, TOOLS).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
        let mut tools = Self { shown: Vec::with_capacity(records.len()), given: Vec::new(), ids: Vec::new() };
        for (place, record) in records {
            tools.add(record).map_err(|error| Failure::usage(format!("{name}: {place}: {error}")))?;
        }
        let wire = wire_names(tools.given.iter().map(String::as_str), MAX_WIRE_NAME);
        for (tool, wire) in tools.shown.iter_mut().zip(wire) {
            tool.name = wire;
        }
        Ok(tools)
    }

    fn add(&mut self, record: Value) -> Result<(), String> {
        let mut record = RecordFields::of(record)?;
        if let Some(Value::Object(function)) = record.value(&["function"]) {
            record = RecordFields(function);
        }
        let name = record.text("name")?.ok_or("it has no `name`")?;
        let (description, id) = (record.text("description")?.unwrap_or_default(), record.text("id")?);
        let body_argument = record.text("body_argument")?;
        let parameters = record.value(&SCHEMA);
        let strict = match record.0.get("strict").and_then(Value::as_bool) {
            // The arguments are undeclared.
            _ if parameters.is_none() => Some(false),
            said => said,
        };
        self.shown.push(RequestTool {
            name: String::new(),
            description,
            parameters: parameters.unwrap_or_else(|| json!({"type": "object"})),
            strict,
            body_argument,
            ..RequestTool::default()
        });
        self.ids.push(id.unwrap_or_else(|| name.clone()));
        self.given.push(name);
        Ok(())
    }

    /// Returns the tools by their wire names and, if they differ, by those in the file: a model that was shown them in
    /// a prompt may use either.
    pub(crate) fn by_every_name(&self) -> Vec<RequestTool> {
        let other = self.shown.iter().zip(&self.given).filter(|(tool, given)| tool.name != **given);
        let other = other.map(|(tool, given)| RequestTool { name: given.clone(), ..tool.clone() });
        self.shown.iter().cloned().chain(other).collect()
    }

    /// Returns `{wire name: id}`.
    pub(crate) fn names(&self) -> Map<String, Value> {
        self.shown.iter().zip(&self.ids).map(|(tool, id)| (tool.name.clone(), id.as_str().into())).collect()
    }

    /// Returns the names in the file, by wire name.
    pub(crate) fn given(&self) -> HashMap<String, String> {
        self.shown.iter().zip(&self.given).map(|(tool, given)| (tool.name.clone(), given.clone())).collect()
    }
}
