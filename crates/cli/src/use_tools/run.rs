//! `run`: an agent on one task, or on a task for each of many inputs.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use toolwright::agent::{Format, ReportConfig};
use toolwright::core::json::fault;
use toolwright::core::{Cancel, RunInput, SessionId};

use super::batches::Batches;
use crate::app::agent::{Agent, model, named, profile, record};
use crate::app::lists::{WaitFor, wait_for};
use crate::app::{GlobalOptions, open};
use crate::exit::{CommandResult, Failure};
use crate::input;
use crate::terminal::console::{OnSignal, background_on_sigquit, watch};
use crate::terminal::person::Terminal;
use crate::values::{report_format, usd};

/// How long the first request waits for providers without known tools. Later tools are shown from the next turn on.
pub(super) const LIST_WAIT: Duration = Duration::from_secs(5);
/// The most bytes of a task from standard input.
const MAX_TASK: u64 = 4 << 20;

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The task; `-` reads it from standard input.
    #[arg(required_unless_present = "resume")]
    pub(crate) task: Option<String>,
    /// Continues an interrupted run with its model, tools, system prompt and limits. Its id was printed when it began.
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = [
            "task", "agent", "model", "effort", "dispatch", "tools", "exposure", "window", "system", "max_turns", "max_calls", "max_time", "max_tokens",
            "format", "output_schema", "input", "foreign_references",
        ]
    )]
    pub(crate) resume: Option<String>,
    /// With --resume: runs only these held calls (repeatable). Default: all of them.
    #[arg(long = "call", value_name = "ID", requires = "resume", conflicts_with = "task")]
    pub(crate) calls: Vec<String>,
    /// Has the model plan the whole work first. The plan is shown and approved as a whole: in a terminal you are asked;
    /// with --policy each call is decided by itself; with --dispatch manual the run stops, and --resume runs the plan.
    /// Then the model answers with the results.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) plan: bool,
    /// With --plan: most US dollars for the plan, by the cost hints of its tools. Default: no limit.
    #[arg(long, value_name = "USD", requires = "plan", value_parser = usd)]
    pub(crate) max_cost: Option<f64>,
    /// Has the run end with a final report in this format.
    #[arg(long, value_name = "FORMAT", value_parser = report_format())]
    pub(crate) format: Option<Format>,
    /// File with the JSON Schema of the answer. The answer is then JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) output_schema: Option<PathBuf>,
    /// What references like †input.x stand for: a JSON object, or a file of one. With an array the request covers many
    /// inputs, each an instance (①, ②, …); each hundred of them is one run.
    #[arg(long, value_name = "FILE|JSON")]
    pub(crate) input: Option<String>,
    /// Also replaces references like †state.x and †input.x in arguments for tools of other servers. Default: these
    /// tools get the text that the model wrote.
    #[arg(long)]
    pub(crate) foreign_references: bool,
    #[command(flatten)]
    pub(crate) agent: Agent,
}

pub(crate) async fn run(global: &GlobalOptions, run: &Run) -> CommandResult {
    let task = run.task.as_deref().map(read_task).transpose()?;
    let report = report_config(run)?;
    let inputs = match &run.input {
        Some(written) => input::run_input(written)?.batches(),
        None => vec![RunInput::default()],
    };
    let app = open(global).await?;
    record(&app, &run.agent.record)?;
    // The run's model answers them if nothing else names one.
    app.offer_llm_tools().await;
    app.catalogue().offer_extraction(true).await;
    let config = named(&run.agent, &app)?;
    let profile = profile(&run.agent, config.as_ref(), &app)?;
    let cancel = Cancel::new();
    watch(cancel.clone(), OnSignal::Cancel);
    let id = run.resume.clone().unwrap_or_else(|| format!("run-{}", uuid::Uuid::new_v4()));
    let terminal = Terminal::new(&app);
    app.follow_pins();
    let session = SessionId::new(&*id);
    app.recover_jobs_of(session.clone());
    background_on_sigquit(&app, &session);
    let chosen = if task.is_some() { model(&run.agent, config.as_ref(), &app).await? } else { String::new() };
    tokio::select! {
        () = wait_for(&app, WaitFor::Unlisted, LIST_WAIT) => {}
        _ = cancel.cancelled() => return Err(Failure::cancelled()),
    }
    let batches = Batches {
        global,
        run,
        app: &app,
        terminal: &terminal,
        id,
        task,
        model: chosen,
        profile,
        report,
        inputs,
        cancel,
    };
    let ended = batches.run().await;
    app.shut_down().await;
    ended
}

/// Returns the report that the run must end with.
fn report_config(run: &Run) -> Result<Option<ReportConfig>, Failure> {
    let Some(file) = &run.output_schema else { return Ok(run.format.map(ReportConfig::in_format)) };
    if run.format.is_some_and(|format| format != Format::Json) {
        return Err(Failure::usage("--output-schema is for --format json, which it implies"));
    }
    let name = file.display();
    let schema = serde_json::from_str(&input::read(file)?)
        .map_err(|error| Failure::usage(format!("{name} is not JSON: {}", fault(&error))))?;
    ReportConfig::by_schema(schema).map(Some).map_err(|error| Failure::usage(format!("{name}: {error}")))
}

pub(super) fn read_task(task: &str) -> Result<String, Failure> {
    if task != "-" {
        return Ok(task.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_TASK + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?;
    if text.len() as u64 > MAX_TASK || text.trim().is_empty() {
        return Err(Failure::usage(format!("standard input must hold a task of at most {MAX_TASK} bytes")));
    }
    Ok(text)
}
