//! `call`: calls one tool once, with arguments written as JSON or as key=value pairs.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::{Map, Value};
use toolwright::Toolwright;
use toolwright::app::{CallOptions, ClientOptions};
use toolwright::core::catalogue::Snapshot;
use toolwright::core::client::CallClient;
use toolwright::core::context::INFO_ID;
use toolwright::core::error::labelled;
use toolwright::core::json::fault;
use toolwright::core::llm::llm_definition;
use toolwright::core::model::Effort;
use toolwright::core::name_table::Resolution;
use toolwright::core::output::{TOOL_OUTPUT, outputs_of_note};
use toolwright::core::store::StoredOutput;
use toolwright::core::{CallId, Cancel, Outcome, Profile, RawArguments, ToolCall};
use toolwright::models::default_model;
use toolwright::runtime::executor::LlmOptions;

use crate::app::agent::{Record, approver, can_answer, can_be_asked, person, question_recipient, record};
use crate::app::lists::{WaitFor, say_starting, starting_for, wait_with_notice};
use crate::app::{GlobalOptions, open, variable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::input;
use crate::terminal::console::{OnSignal, watch};
use crate::terminal::person::Terminal;
use crate::terminal::progress::ProgressDisplay;
use crate::terminal::screen::{one_line, print_result_json, print_result_text, sanitize, say_error, say_warning};
use crate::values::{AskName, ask, duration, effort};

/// How long the tool's provider may take to list.
pub(crate) const LIST_WAIT: Duration = Duration::from_secs(60);
/// The most characters of the last line of a failed tool's output in its error.
const MAX_LAST: usize = 300;
/// The number of characters by which a message is recognised.
const MESSAGE_PREFIX_LENGTH: usize = 80;

#[derive(Debug, Args)]
pub(crate) struct Call {
    /// Wire name, id, alias, or a bare name that only one tool has.
    pub(crate) tool: String,
    /// Arguments: one JSON object, `-` for JSON on standard input, or key=value pairs.
    #[arg(value_name = "JSON|-|KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
    /// Limit of the call, like 30s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Cuts the text of the result to this many bytes. Default: `defaults.whole_result_max_bytes`, 16 MiB.
    ///
    /// The rest is stored for output__read, as the result says.
    #[arg(long, value_name = "BYTES", value_parser = RangedU64ValueParser::<usize>::new())]
    pub(crate) max_output: Option<usize>,
    /// Runs the call as a job. The job's id is printed at once, and the program stays until the job ends.
    #[arg(long)]
    pub(crate) background: bool,
    /// Who answers questions that the tool's source asks during the call: forms, pages, and whether it may ask a model.
    /// Default: `terminal` if there is one, else `nobody`.
    #[arg(long, value_name = "WHOM", value_parser = ask())]
    pub(crate) ask: Option<AskName>,
    /// The one model that an LLM-backed tool asks, provider/model. Default: the tool's own models, else
    /// `models.default`, else a model that the environment offers.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    pub(crate) model: Option<String>,
    /// How much the model of an LLM-backed tool thinks before it answers. Default: as the tool says, else as configured for
    /// the model.
    #[arg(long, value_name = "HOW_MUCH", value_parser = effort())]
    pub(crate) effort: Option<Effort>,
    /// The mode of an LLM-backed tool that has several.
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    #[command(flatten)]
    pub(crate) record: Record,
}

pub(crate) async fn command(global: &GlobalOptions, call: &Call) -> CommandResult {
    can_be_asked(question_recipient(call.ask))?;
    let app = open(global).await?;
    record(&app, &call.record)?;
    app.offer_llm_tools().await;
    let cancel = Cancel::new();
    watch(cancel.clone(), OnSignal::Cancel);
    list(&app, &call.tool, &cancel).await?;
    let snapshot = app.catalogue().snapshot();
    if matches!(snapshot.resolve(&call.tool), Resolution::Unknown(_)) {
        say_starting(&app, &call.tool);
    }
    let arguments = parse_arguments(&call.arguments, &call.tool, &snapshot)?;
    if let Resolution::Found(index, _) = snapshot.resolve(&call.tool)
        && let Some(entry) = snapshot.list().get(index)
    {
        // Manuals are for models: the owner's calls do not require them.
        app.executor().services().manuals.read(&app.call_session().id, entry.tool.hash());
        if let Some(other) = manual_of(&arguments).filter(|_| entry.id().as_str() == INFO_ID) {
            list(&app, &other, &cancel).await?;
        }
    }
    let text = match &arguments {
        RawArguments::Text(text) => Some(text.clone()),
        RawArguments::Value(_) | RawArguments::Resolved(..) => None,
    };
    let written = ToolCall::new(CallId::new("call"), call.tool.clone(), arguments);
    let background_after = call.background.then_some(Duration::ZERO);
    let llm = llm_options(call, &app, &snapshot).await?;
    let terminal = Terminal::new(&app);
    let client = client(&terminal, &app, question_recipient(call.ask));
    let progress = ProgressDisplay::of_call(app.events().subscribe(), terminal.screen);
    // People and programs get the whole result, because it fills no context window. A job's result is stored, and
    // limited as usual.
    let whole = app.config().sections.defaults.calls.whole_result_max_bytes;
    let max_output = call.max_output.or((!call.background).then_some(whole));
    let options = CallOptions {
        cancel: cancel.clone(),
        timeout: call.timeout,
        background_after,
        max_output,
        client,
        llm,
        ..CallOptions::new(Profile::Owner)
    };
    let outcome = app.call_with(written, options).await;
    progress.end().await;
    if outcome.provenance.repaired {
        let fault = text.as_deref().map(json_fault).unwrap_or_default();
        say_warning(&format!("the arguments are not valid JSON{fault}; toolwright repaired them before the call"));
    }
    let printed = if global.json {
        print_result_json(&outcome.to_json())
    } else {
        let cut = cut(&app, &outcome, max_output.unwrap_or(whole)).await;
        print_outcome(&outcome, cut)
    };
    // A call that became a job continues here, because no other process would run it.
    tokio::select! {
        () = app.jobs().all_ended() => {}
        _ = cancel.cancelled() => {}
    }
    app.shut_down().await;
    printed?;
    Ok(outcome.error.as_ref().map_or(Exit::Ok, |error| error.kind().into()))
}

/// Waits until the sources that may have this tool have listed.
async fn list(app: &Arc<Toolwright>, tool: &str, cancel: &Cancel) -> Result<(), Failure> {
    tokio::select! {
        () = wait_with_notice(|| starting_for(app, WaitFor::All, tool), app.list_for(tool, LIST_WAIT)) => Ok(()),
        _ = cancel.cancelled() => Err(Failure::cancelled()),
    }
}

/// Returns the tool whose manual these arguments request.
fn manual_of(arguments: &RawArguments) -> Option<String> {
    let name = |arguments: &Value| arguments.get("name").and_then(Value::as_str).map(str::to_owned);
    match arguments {
        RawArguments::Text(text) => name(&serde_json::from_str(text).ok()?),
        RawArguments::Value(value) => name(value),
        RawArguments::Resolved(..) => None,
    }
}

/// Returns the error in arguments that are not JSON.
fn json_fault(arguments: &str) -> String {
    let read = serde_json::from_str::<serde::de::IgnoredAny>(arguments);
    read.err().map(|error| format!(": {}", fault(&error))).unwrap_or_default()
}

/// Returns the requested model and mode. A tool without a model from benchmarks, its author or the configuration gets
/// one that the environment offers.
async fn llm_options(call: &Call, app: &Toolwright, snapshot: &Snapshot) -> Result<LlmOptions, Failure> {
    let given = LlmOptions {
        model: call.model.as_deref().map(Arc::from),
        mode: call.mode.as_deref().map(Arc::from),
        effort: call.effort,
        ..LlmOptions::default()
    };
    // The executor reports an unknown name.
    let Resolution::Found(index, _) = snapshot.resolve(&call.tool) else { return Ok(given) };
    let Some(entry) = snapshot.list().get(index) else { return Ok(given) };
    let definition = llm_definition(entry);
    let preference = entry.definition().model_preference.as_ref();
    if definition.is_none() && preference.is_none() && given != LlmOptions::default() {
        let why = format!("{} asks no model: --model, --mode and --effort are for tools that do", entry.id());
        return Err(Failure::usage(why));
    }
    if let Some(mode) = &given.mode {
        let modes = definition.as_ref().map(|definition| definition.modes()).unwrap_or_default();
        if !modes.contains(&&**mode) {
            let has = if modes.is_empty() { "none".to_owned() } else { modes.join(", ") };
            return Err(Failure::usage(format!("{} has no mode `{mode}`; its modes: {has}", entry.id())));
        }
    }
    if let Some(model) = &given.model {
        can_answer(app, model).await.map_err(Failure::usage)?;
        return Ok(given);
    }
    if definition.is_none() || app.names_model_for(entry) {
        return Ok(given);
    }
    let found = default_model(&variable, app.models().http()).await.map_err(Failure::usage)?;
    Ok(LlmOptions { default: Some(found.into()), ..given })
}

/// Returns the client that the tool's source may ask. The owner's call is no permission for the source's own requests
/// to a model.
fn client(terminal: &Terminal, app: &Toolwright, ask: AskName) -> Arc<dyn CallClient> {
    let remedy = || {
        "there is no terminal to ask at: run it in one or with --ask inbox, or allow client:sample by a rule under \
         policy.rules"
            .to_owned()
    };
    let approver = approver(terminal, ask, app, remedy);
    let (session, policy) = (app.call_session(), Arc::new(app.config().policy(None, Profile::Ask)));
    let person = person(terminal, ask, app, &session);
    app.client(ClientOptions { session, policy, approver, person, model: None })
}

/// The shown part of a result that was cut.
struct CutResult {
    /// Its beginning, if stored separately from the text for models.
    beginning: Option<String>,
    /// The note about the rest.
    notice: String,
}

/// Returns the first bytes of a result that did not fit, at most `max`, and how to get the rest.
async fn cut(app: &Toolwright, outcome: &Outcome, max: usize) -> Option<CutResult> {
    const REMEDY: &str = "--max-output BYTES, or defaults.whole_result_max_bytes, raises the limit";
    if !outcome.is_truncated() {
        return None;
    }
    let unkept = || CutResult { beginning: None, notice: format!("the result was cut: {REMEDY}") };
    let stored = outcome.extras.get(TOOL_OUTPUT).map(outputs_of_note).unwrap_or_default();
    let [StoredOutput { handle, bytes, .. }] = &*stored else { return Some(unkept()) };
    let outputs = &app.executor().services().outputs;
    let Ok(open) = outputs.open(&app.call_session().id, handle).await else { return Some(unkept()) };
    let read = tokio::task::spawn_blocking(move || {
        let mut beginning = Vec::new();
        open.reader.take(max as u64).read_to_end(&mut beginning).map(|_| beginning)
    });
    let Ok(Ok(mut beginning)) = read.await else { return Some(unkept()) };
    if let Err(error) = std::str::from_utf8(&beginning)
        && error.error_len().is_none()
    {
        // A character that the limit cuts.
        beginning.truncate(error.valid_up_to());
    }
    let shown = beginning.len();
    let notice = format!(
        "the result was cut: the first {shown} of {bytes} bytes are shown. `toolwright call output__read handle={handle} \
         offset={shown}` reads on; {REMEDY}"
    );
    Some(CutResult { beginning: Some(String::from_utf8_lossy(&beginning).into_owned()), notice })
}

fn print_outcome(outcome: &Outcome, cut: Option<CutResult>) -> std::io::Result<()> {
    let (beginning, notice) = cut.map_or((None, None), |cut| (cut.beginning, Some(cut.notice)));
    let text = outcome.model_text();
    // If the tool itself has written text, that is its output; otherwise there is only the error.
    let spoke = outcome.error.as_ref().is_none_or(|error| text != error.for_model());
    if spoke {
        print_result_text(beginning.as_deref().unwrap_or(&text))?;
    }
    if let Some(notice) = notice {
        say_warning(&notice);
    }
    let Some(error) = &outcome.error else { return Ok(()) };
    let kind = error.kind().as_str();
    if spoke && repeats(&text, error.message()) {
        say_error(&labelled(kind, &sanitize(&ending(&text))));
    } else {
        say_error(&sanitize(&labelled(kind, error.message())));
    }
    Ok(())
}

/// Returns the last line of an output, which usually has the reason of the failure. The whole is above it, or in a
/// file.
fn ending(output: &str) -> String {
    let last = output.lines().map(str::trim).rfind(|line| !line.is_empty());
    one_line(last.unwrap_or_default(), MAX_LAST)
}

/// Returns whether the message repeats the output. Long messages are cut in the middle, so the beginning is compared.
fn repeats(output: &str, message: &str) -> bool {
    let end = message.char_indices().nth(MESSAGE_PREFIX_LENGTH).map_or(message.len(), |(at, _)| at);
    output.contains(&message[..end])
}

/// Parses arguments: one JSON object, `-`, or key=value pairs. JSON stays text, because the later check parses it and
/// reports errors.
fn parse_arguments(words: &[String], tool: &str, snapshot: &Snapshot) -> Result<RawArguments, Failure> {
    match words {
        [] => Ok(RawArguments::Value(Value::Object(Map::new()))),
        [dash] if dash == "-" => Ok(RawArguments::Text(input::read(Path::new("-"))?)),
        [json] if json.trim_start().starts_with(['{', '[', '"']) => Ok(RawArguments::Text(json.clone())),
        pairs => {
            let schema = match snapshot.resolve(tool) {
                Resolution::Found(index, _) => {
                    snapshot.list().get(index).and_then(|entry| entry.definition().parameters.clone())
                }
                Resolution::Unknown(_) => None,
            };
            let mut map = Map::new();
            for pair in pairs {
                let Some((key, value)) = pair.split_once('=') else {
                    return Err(Failure::usage(format!(
                        "`{}` is neither a JSON object nor key=value; quote JSON for the shell: '{{\"key\": \"value\"}}'",
                        one_line(pair, 40)
                    )));
                };
                map.insert(
                    key.to_owned(),
                    typed(value, schema.as_ref().and_then(|schema| schema.pointer(&format!("/properties/{key}/type")))),
                );
            }
            Ok(RawArguments::Value(map.into()))
        }
    }
}

/// Converts a value to its schema's type: strings stay text, other types are read as JSON if valid.
fn typed(value: &str, wanted: Option<&Value>) -> Value {
    let text = || Value::String(value.to_owned());
    if wanted.and_then(Value::as_str) == Some("string") {
        return text();
    }
    match serde_json::from_str(value) {
        Ok(Value::String(_)) | Err(_) => text(),
        Ok(parsed) => parsed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_follow_their_schema() {
        for (value, wanted, expect) in [
            ("3", json!("string"), json!("3")),
            ("3", json!("integer"), json!(3)),
            ("3", Value::Null, json!(3)),
            ("true", json!("boolean"), json!(true)),
            ("[1,2]", json!("array"), json!([1, 2])),
            ("plain", json!("integer"), json!("plain")),
            ("\"x\"", Value::Null, json!("\"x\"")),
        ] {
            assert_eq!(typed(value, Some(&wanted)), expect, "{value} {wanted}");
        }
    }

    #[test]
    fn three_ways_to_write_arguments() {
        let snapshot = Snapshot::default();
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            parse_arguments(&words, "t", &snapshot)
        };
        assert_eq!(parse(&[]).expect("none"), RawArguments::Value(json!({})));
        assert_eq!(parse(&["{\"a\": 1"]).expect("json"), RawArguments::Text("{\"a\": 1".into()));
        assert_eq!(parse(&["a=1", "b=x=y"]).expect("pairs"), RawArguments::Value(json!({"a": 1, "b": "x=y"})));
        assert!(parse(&["a=1", "b"]).expect_err("not a pair").message.contains("key=value"));
    }
}
