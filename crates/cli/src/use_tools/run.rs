//! `run`: runs an agent on one task.

use std::io::Read as _;
use std::time::Duration;

use serde_json::Value;
use toolwright::agent::{Format, ReportSpec, RunReport, RunState, Status};
use toolwright::core::json::fault;
use toolwright::core::{Cancel, SessionId};

use crate::app::agent::{Terminal, agent, failed, model, profile};
use crate::app::list_wait::{Wanted, wait_for};
use crate::app::{config, open, record};
use crate::args::{Global, Run};
use crate::exit::{Done, Exit, Failure};
use crate::input;
use crate::terminal::markdown::render;
use crate::terminal::progress::{Cost, ProgressDisplay, Text, TextShown};
use crate::terminal::screen::{BAD, DIM, columns, harmless, print_drawn, print_json, prose, say, styled};
use crate::terminal::signals::{First, background_on_quit, watch};

/// How long the first request waits for providers of which no tools are known; what comes later is shown
/// from the next turn on.
pub(crate) const LIST_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a task on standard input.
const MAX_TASK: u64 = 4 << 20;

pub(crate) async fn command(global: &Global, run: &Run) -> Done {
    let task = run.task.as_deref().map(read_task).transpose()?;
    let report = report_spec(run)?;
    let app = open(global, config::usable(global)?).await?;
    record(&app, &run.agent.record)?;
    // The model of the run answers them, where nothing else says one.
    app.offer_llm_tools().await;
    app.catalogue().offer_extraction(true).await;
    let profile = profile(&run.agent, &app)?;
    let cancel = Cancel::new();
    watch(cancel.clone(), First::Cancels);
    let id = run.resume.clone().unwrap_or_else(|| format!("run-{}", uuid::Uuid::new_v4()));
    let terminal = Terminal::new(&app);
    app.follow_pins();
    let session = SessionId::new(&*id);
    app.recover_jobs_of(session.clone());
    background_on_quit(&app, &session);
    let chosen = if task.is_some() { model(&run.agent, &app).await? } else { String::new() };
    let mut agent = agent(&run.agent, &app, &terminal, (&id, &chosen), profile, report)?.cancel(cancel.clone());
    if task.is_none() {
        agent = agent.resume(&*id);
    }
    tokio::select! {
        () = wait_for(&app, Wanted::Unknown, LIST_WAIT) => {}
        _ = cancel.cancelled() => return Err(Failure::cancelled()),
    }
    let mut conversation = agent.conversation().await.map_err(failed)?;
    if task.is_none() {
        conversation.load().await.map_err(failed)?;
    }
    if conversation.state().is_some_and(RunState::is_over) {
        say(styled(DIM, format_args!("{id} has ended; this is its report")));
    } else {
        let (model, tools) = (&conversation.spec().model, app.catalogue().snapshot().list().len());
        say(styled(
            DIM,
            format_args!("{id} with {model} and {tools} tools; after an interruption: toolwright run --resume {id}"),
        ));
    }
    let text = Text::for_output(global.json);
    let progress = ProgressDisplay::begin(app.events().subscribe(), text, terminal.screen);
    let report = match task {
        Some(task) => conversation.send(task).await,
        None => conversation.proceed().await,
    };
    let (shown, cost) = progress.end().await;
    app.shut_down().await;
    let report = report.map_err(failed)?;
    print(global, &id, &report, text, (shown, cost))?;
    Ok(exit(report.status))
}

/// What the run is to end with.
fn report_spec(run: &Run) -> Result<Option<ReportSpec>, Failure> {
    let format = run.format.map(Format::from);
    let Some(file) = &run.output_schema else { return Ok(format.map(ReportSpec::in_format)) };
    if format.is_some_and(|format| format != Format::Json) {
        return Err(Failure::usage("--output-schema is for --format json, which it implies"));
    }
    let name = file.display();
    let schema = serde_json::from_str(&input::read(file)?)
        .map_err(|error| Failure::usage(format!("{name} is not JSON: {}", fault(&error))))?;
    ReportSpec::by_schema(schema).map(Some).map_err(|error| Failure::usage(format!("{name}: {error}")))
}

fn read_task(task: &str) -> Result<String, Failure> {
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

fn print(
    global: &Global,
    id: &str,
    report: &RunReport,
    text: Text,
    (shown, cost): (TextShown, Cost),
) -> Result<(), Failure> {
    if global.json {
        print_json(&with_id(report, id))?;
        if report.status != Status::Success {
            summary(report, cost);
        }
        return Ok(());
    }
    print_answer(report, text, shown)?;
    for call in &report.held {
        say(format_args!("{} {}", call.tool, harmless(&call.arguments.to_string())));
    }
    summary(report, cost);
    Ok(())
}

/// The answer, where it is not on the screen already: what was streamed whole is, what a call said is not. Where there is
/// none, the summary says why.
pub(crate) fn print_answer(report: &RunReport, text: Text, shown: TextShown) -> std::io::Result<()> {
    if report.has_answer() && (report.is_delivered() || text == Text::Held || shown == TextShown::Gaps) {
        let answer = prose(&report.answer);
        let is_markdown = report.final_report.as_ref().is_none_or(|report| report.format == Format::Markdown);
        match columns().filter(|_| is_markdown) {
            Some(width) => print_drawn(&render(&answer, width))?,
            None => print_drawn(&answer)?,
        }
    }
    Ok(())
}

/// The report of the run `id`, with the id that `run --resume` takes.
pub(crate) fn with_id(report: &RunReport, id: &str) -> Value {
    let mut value = report.to_json();
    value["run"] = id.into();
    value
}

/// One line about a finished task.
pub(crate) fn summary(report: &RunReport, cost: Cost) {
    let usage = report.usage;
    let figures = format!(
        "{} turns, {} calls, {} tokens in, {} out{cost}",
        report.turns,
        report.calls.len(),
        usage.input_tokens,
        usage.output_tokens
    );
    match &report.reason {
        Some(reason) if report.status != Status::Success => {
            say(styled(BAD, format_args!("{}: {} ({figures})", report.status.as_str(), harmless(reason))))
        }
        _ => say(styled(DIM, format_args!("{}: {figures}", report.status.as_str()))),
    }
}

/// The exit code of a run.
pub(crate) fn exit(status: Status) -> Exit {
    match status {
        Status::Success => Exit::Ok,
        Status::Failure | Status::Partial => Exit::Failed,
        Status::Cancelled => Exit::Cancelled,
        Status::Suspended => Exit::Denied,
    }
}
