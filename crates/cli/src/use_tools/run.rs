//! `run`: an agent on one task, or on a task for each of many inputs.

use std::cell::RefCell;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use toolwright::Error;
use toolwright::Toolwright;
use toolwright::agent::{Dispatch, DriverError, Format, ReportConfig, RunState};
use toolwright::app::Conversation;
use toolwright::core::json::fault;
use toolwright::core::run_input::MAX_INSTANCES;
use toolwright::core::{Cancel, RunInput, SessionId};

use super::plan::drawn;
use super::report::{exit, print_report};
use crate::app::agent::{Agent, agent, failed, model, named, profile, record, who};
use crate::app::lists::{WaitFor, wait_for};
use crate::app::{Global, open};
use crate::exit::{Done, Exit, Failure};
use crate::input;
use crate::terminal::console::{OnSignal, background_on_quit, watch};
use crate::terminal::person::Terminal;
use crate::terminal::progress::{ProgressDisplay, Text};
use crate::terminal::screen::{DIM, harmless, say, styled};
use crate::values::{AskName, report_format, usd};

/// How long the first request waits for providers of which no tools are known; what comes later is shown
/// from the next turn on.
pub(super) const LIST_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a task on standard input.
const MAX_TASK: u64 = 4 << 20;

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The task; `-` reads it from standard input.
    #[arg(required_unless_present = "resume")]
    pub(crate) task: Option<String>,
    /// Goes on with a run that was interrupted, with its model, tools, system prompt and limits; its id
    /// was printed when it began.
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = [
            "task", "agent", "model", "effort", "dispatch", "tools", "exposure", "window", "system", "max_turns", "max_calls", "max_time", "max_tokens",
            "format", "output_schema", "input", "foreign_references",
        ]
    )]
    pub(crate) resume: Option<String>,
    /// With --resume: lets only these held calls run (repeatable). Default: all of them.
    #[arg(long = "call", value_name = "ID", requires = "resume", conflicts_with = "task")]
    pub(crate) calls: Vec<String>,
    /// Has the model plan the whole work first. The plan is shown, and approved as a whole: in a terminal it is asked about, with
    /// --policy each call is judged by itself, and with --dispatch manual the run stops and --resume lets the plan run. Then the
    /// model answers with the results.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) plan: bool,
    /// With --plan: US dollars that the plan may cost at most, by the hints of its tools. Default: any amount.
    #[arg(long, value_name = "USD", requires = "plan", value_parser = usd)]
    pub(crate) max_cost: Option<f64>,
    /// Has the run end with a final report in this format.
    #[arg(long, value_name = "FORMAT", value_parser = report_format())]
    pub(crate) format: Option<Format>,
    /// File with the JSON Schema of the answer, which is JSON then.
    #[arg(long, value_name = "FILE")]
    pub(crate) output_schema: Option<PathBuf>,
    /// What references like †input.x stand for: a JSON object, or a file of one. An array is a request over many inputs, each
    /// an instance (①, ②, …), in a run for each hundred of them.
    #[arg(long, value_name = "FILE|JSON")]
    pub(crate) input: Option<String>,
    /// Replaces references like †state.x and †input.x also in arguments for tools of other servers. Default: these get what the
    /// model wrote.
    #[arg(long)]
    pub(crate) foreign_references: bool,
    #[command(flatten)]
    pub(crate) agent: Agent,
}

pub(crate) async fn run(global: &Global, run: &Run) -> Done {
    let task = run.task.as_deref().map(read_task).transpose()?;
    let report = report_spec(run)?;
    let inputs = match &run.input {
        Some(written) => input::run_input(written)?.batches(),
        None => vec![RunInput::default()],
    };
    let app = open(global).await?;
    record(&app, &run.agent.record)?;
    // The run's model answers them if nothing else names one.
    app.offer_llm_tools().await;
    app.catalogue().offer_extraction(true).await;
    let spec = named(&run.agent, &app)?;
    let profile = profile(&run.agent, spec.as_ref(), &app)?;
    let cancel = Cancel::new();
    watch(cancel.clone(), OnSignal::Cancel);
    let id = run.resume.clone().unwrap_or_else(|| format!("run-{}", uuid::Uuid::new_v4()));
    let terminal = Terminal::new(&app);
    app.follow_pins();
    let session = SessionId::new(&*id);
    app.recover_jobs_of(session.clone());
    background_on_quit(&app, &session);
    let chosen = if task.is_some() { model(&run.agent, spec.as_ref(), &app).await? } else { String::new() };
    tokio::select! {
        () = wait_for(&app, WaitFor::Unlisted, LIST_WAIT) => {}
        _ = cancel.cancelled() => return Err(Failure::cancelled()),
    }
    let conversation = async |batch: usize| {
        let id = batch_id(&id, batch);
        let input = inputs.get(batch).cloned().unwrap_or_default();
        let mut agent = agent(&run.agent, &app, &terminal, (&id, &chosen), profile, report.clone())?
            .cancel(cancel.clone())
            .input(RunInput { foreign: run.foreign_references, ..input });
        if task.is_none() {
            agent = agent.resume(&*id);
        }
        agent.conversation().await.map_err(failed)
    };
    let ended = async {
        if run.plan && inputs.len() > 1 {
            say("each hundred inputs is planned by itself; after an interruption, begin anew with those that are left");
        }
        // All are stored before any starts: after a crash, resuming the first one's name also continues the others.
        if let Some(task) = task.as_ref().filter(|_| !run.plan) {
            for batch in 1..inputs.len() {
                conversation(batch).await?.keep(task.as_str()).await.map_err(failed)?;
            }
        }
        let (mut whole, mut batch) = (Exit::Ok, 0);
        loop {
            let mut conversation = conversation(batch).await?;
            if task.is_none() {
                if batch > 0 {
                    app.recover_jobs_of(conversation.session().clone());
                }
                let held = RefCell::new(Vec::new());
                let is_meant = |id: &str| {
                    held.borrow_mut().push(id.to_owned());
                    run.calls.is_empty() || run.calls.iter().any(|call| call == id)
                };
                match conversation.load_for(is_meant).await {
                    Err(Error::Agent(DriverError::NotFound(_))) if batch > 0 => break,
                    loaded => loaded.map_err(failed)?,
                }
                let held = held.into_inner();
                if let Some(call) = run.calls.iter().find(|call| !held.contains(call)) {
                    let held = if held.is_empty() { "none".to_owned() } else { held.join(", ") };
                    return Err(Failure::usage(format!("no call {call} is held; held calls of {id}: {held}")));
                }
            }
            let is_full = conversation.spec().input.instances.len() == MAX_INSTANCES;
            let id = batch_id(&id, batch);
            let exit =
                one(global, run, &app, &terminal, (&id, task.as_deref(), profile.is_some()), conversation).await?;
            if exit != Exit::Ok {
                whole = exit;
            }
            batch += 1;
            // A call that is allowed to run belongs to this batch.
            let is_last = if task.is_some() { batch == inputs.len() } else { !is_full || !run.calls.is_empty() };
            if is_last || cancel.is_cancelled() {
                break;
            }
        }
        Ok(whole)
    }
    .await;
    app.shut_down().await;
    ended
}

/// Returns the name of the run for a batch of inputs of the run `id`.
fn batch_id(id: &str, batch: usize) -> String {
    if batch == 0 { id.to_owned() } else { format!("{id}-{}", batch + 1) }
}

/// Runs one conversation to its end, and prints its report.
async fn one(
    global: &Global,
    run: &Run,
    app: &Toolwright,
    terminal: &Terminal,
    (id, task, is_judged): (&str, Option<&str>, bool),
    mut conversation: Conversation,
) -> Done {
    if conversation.state().is_some_and(RunState::is_over) {
        say(styled(DIM, format_args!("{id} has ended; this is its report")));
    } else {
        let spec = conversation.spec();
        let tools = app.catalogue().snapshot().list().iter().filter(|entry| spec.has_tool(entry)).count();
        let model = &spec.model;
        say(styled(
            DIM,
            format_args!("{id} with {model} and {tools} tools; after an interruption: toolwright run --resume {id}"),
        ));
    }
    if let Some(task) = task.filter(|_| run.plan) {
        plan_first(&mut conversation, task, run, is_judged, terminal).await?;
    }
    let text = Text::for_output(global.json);
    let progress = ProgressDisplay::begin(app.events().subscribe(), text, Arc::clone(&terminal.screen));
    let report = match task {
        Some(task) if !run.plan => conversation.send(task).await,
        _ => conversation.proceed().await,
    };
    let shown = progress.end().await;
    let report = report.map_err(failed)?;
    print_report(global, id, &report, text, shown)?;
    Ok(exit(report.status))
}

/// Lets the model plan the work, shows the plan, and runs it if that is requested or confirmed.
async fn plan_first(
    conversation: &mut Conversation,
    task: &str,
    run: &Run,
    is_judged: bool,
    terminal: &Terminal,
) -> Result<(), Failure> {
    let plan = conversation.plan(task, run.max_cost).await.map_err(failed)?;
    say(drawn(&plan.document, &plan.check).trim_end());
    if !plan.check.is_valid() {
        let faults: Vec<String> = plan.check.errors.iter().map(|fault| harmless(&fault.to_string())).collect();
        return Err(Failure::failed(format!("the model wrote no plan that can run:\n{}", faults.join("\n"))));
    }
    if conversation.spec().dispatch == Dispatch::Manual {
        return Ok(());
    }
    let asks = !is_judged && who(run.agent.ask) == AskName::Terminal;
    let is_approved = asks
        && terminal.console.ask("run this plan? [y/N] ").await.is_some_and(|word| {
            let word = word.trim().to_lowercase();
            word == "y" || word == "yes"
        });
    if asks && !is_approved {
        conversation.refuse_plan().await.map_err(failed)?;
        return Err(Failure::failed("the plan was not approved; nothing ran"));
    }
    conversation.run_plan(&plan, is_approved);
    Ok(())
}

/// Returns the report that the run must end with.
fn report_spec(run: &Run) -> Result<Option<ReportConfig>, Failure> {
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
