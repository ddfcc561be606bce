//! `run` and `chat`: runs an agent on one task, or on each message of the user.

use std::cell::RefCell;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use toolwright::Error;
use toolwright::Toolwright;
use toolwright::agent::{
    ChildEnd, ChildNote, Dispatch, DriverError, Format, ReportConfig, RunReport, RunState, Status,
};
use toolwright::app::Conversation;
use toolwright::app::watch as watch_configuration;
use toolwright::core::json::fault;
use toolwright::core::model::Usage;
use toolwright::core::run_input::MAX_INSTANCES;
use toolwright::core::{Cancel, CancelCause, RunInput, SessionId};
use toolwright::search::{SearchFilter, search_or_similar};

use crate::app::agent::{Agent, agent, failed, model, named, profile, record, who};
use crate::app::lists::{WaitFor, wait_for};
use crate::app::{Global, open};
use crate::exit::{Done, Exit, Failure};
use crate::input;
use crate::terminal::console::{OnSignal, TerminalGuard, Typed, background_on_quit, next_signal, watch};
use crate::terminal::markdown::render;
use crate::terminal::person::Terminal;
use crate::terminal::progress::{Cost, ProgressDisplay, Text, TextShown};
use crate::terminal::screen::{
    BAD, DIM, WARN, columns, harmless, is_interactive, print_drawn, print_json, prose, say, size, styled,
};
use crate::terminal::table::{Table, name};
use crate::use_tools::plan::drawn;
use crate::use_tools::serve::say_reload;
use crate::values::{AskName, report_format, usd};

/// How long the first request waits for providers without known tools. Later tools are shown from the next turn on.
pub(crate) const LIST_WAIT: Duration = Duration::from_secs(5);
/// The most bytes of a task from standard input.
const MAX_TASK: u64 = 4 << 20;
/// The line history, in the state directory.
const HISTORY: &str = "chat_history";
/// The most tools that `/tools WORDS` lists.
const FOUND: usize = 20;
/// The text of `/help`.
const HELP: &str = "\
/help          this list
/tools [WORDS] the tools, or those that the words find
/cost          tokens and cost so far
/new           begin a new conversation
/exit          end (Ctrl-D does, too)
Ctrl-C stops an answer. Ctrl-\\ lets running calls go on in the background. Up and Ctrl-R find earlier lines.";

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

#[derive(Debug, Args)]
pub(crate) struct Chat {
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

pub(crate) fn read_task(task: &str) -> Result<String, Failure> {
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

fn print_report(
    global: &Global,
    id: &str,
    report: &RunReport,
    text: Text,
    (shown, cost): (TextShown, Cost),
) -> Result<(), Failure> {
    if global.json {
        print_json(&with_id(report, id))?;
        if report.status != Status::Success {
            summary(report, cost, WITH_SERVE);
        }
        return Ok(());
    }
    print_answer(report, text, shown)?;
    for call in &report.held {
        say(format_args!("{} {} {}", call.id, call.tool, harmless(&call.arguments.to_string())));
        if let Some(verdict) = &call.verdict {
            say(styled(DIM, format_args!("  {}: {}", verdict.effect, harmless(&verdict.reason))));
        }
    }
    if !report.held.is_empty() {
        say(styled(DIM, format_args!("toolwright run --resume {id} lets them run; --call CALL, only that one")));
    }
    summary(report, cost, WITH_SERVE);
    Ok(())
}

/// Prints the answer unless it is on the screen already: a streamed answer is, an answer by a call is not. If there is
/// none, the summary has the reason.
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

/// Returns the report of the run `id`, with the id for `run --resume`.
pub(crate) fn with_id(report: &RunReport, id: &str) -> Value {
    let mut value = report.to_json();
    value["run"] = id.into();
    value
}

/// What a detached agent does when this process ends.
const WITH_SERVE: &str = "goes on when `toolwright serve` runs";

/// What became of an agent that still worked when the run ended. A detached one `goes_on` so.
fn ended(child: &ChildNote, goes_on: &str) -> String {
    let end = match child.end {
        ChildEnd::Cancelled => "was cancelled",
        ChildEnd::Detached => goes_on,
    };
    format!("agent {} (job {}) had not ended: it {end}", harmless(&child.agent), harmless(&child.job))
}

/// One line about a finished task, after those about its sources, its files and agents that had not ended. A detached one
/// `goes_on` so.
pub(crate) fn summary(report: &RunReport, cost: Cost, goes_on: &str) {
    for source in &report.sources {
        let url = source.url.as_deref().filter(|url| *url != source.title).map(|url| format!(" {url}"));
        say(format_args!("source: {}{}", harmless(&source.title), harmless(&url.unwrap_or_default())));
    }
    for file in &report.files {
        let at = match (&file.handle, file.bytes) {
            (Some(handle), Some(bytes)) => {
                format!("{} as {handle}", size(usize::try_from(bytes).unwrap_or(usize::MAX)))
            }
            _ => format!("{} at the model's provider", file.name),
        };
        say(format_args!("file: {}, {}", harmless(&file.media_type), harmless(&at)));
    }
    for child in &report.children {
        say(styled(WARN, ended(child, goes_on)));
    }
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

/// Returns the exit code of a run.
pub(crate) fn exit(status: Status) -> Exit {
    match status {
        Status::Success => Exit::Ok,
        Status::Failure | Status::Partial => Exit::Failed,
        Status::Cancelled => Exit::Cancelled,
        Status::Suspended => Exit::Denied,
    }
}

/// The request in a line.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Empty,
    Help,
    Tools(&'a str),
    Cost,
    New,
    Exit,
    /// An unknown command.
    Unknown(&'a str),
    Message(&'a str),
    /// No input: messages have arrived that wake the conversation.
    Mail,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "" => Self::Empty,
            "/help" | "/?" => Self::Help,
            "/tools" => Self::Tools(rest.trim()),
            "/cost" => Self::Cost,
            "/new" | "/clear" => Self::New,
            "/exit" | "/quit" => Self::Exit,
            // A path counts as a message.
            _ if word.starts_with('/') && !word[1..].contains('/') => Self::Unknown(word),
            _ => Self::Message(line),
        }
    }
}

/// The totals of a chat.
#[derive(Default)]
struct Total {
    turns: u32,
    usage: Usage,
    cost: Cost,
}

impl Total {
    fn say(&self) {
        let Usage { input_tokens, output_tokens, .. } = self.usage;
        let (turns, cost) = (self.turns, self.cost);
        say(styled(DIM, format_args!("in all: {turns} turns, {input_tokens} tokens in, {output_tokens} out{cost}")));
    }
}

pub(crate) async fn chat(global: &Global, chat: &Chat) -> Done {
    let app = open(global).await?;
    record(&app, &chat.agent.record)?;
    app.offer_llm_tools().await;
    app.catalogue().offer_extraction(true).await;
    let spec = named(&chat.agent, &app)?;
    let profile = profile(&chat.agent, spec.as_ref(), &app)?;
    let model = model(&chat.agent, spec.as_ref(), &app).await?;
    wait_for(&app, WaitFor::Unlisted, LIST_WAIT).await;
    let id = format!("chat-{}", uuid::Uuid::new_v4());
    let terminal = Terminal::new(&app);
    let agent = agent(&chat.agent, &app, &terminal, (&id, &model), profile, None)?;
    // Jobs that continue wake the conversation when they end.
    let mut conversation = agent.job_wait(None).reading_mailbox().conversation().await.map_err(failed)?;
    app.follow_pins();
    app.recover_jobs_of(conversation.session().clone());
    let triggers = app.run_triggers().await;
    let reloading = tokio::spawn(watch_configuration(Arc::clone(&app), |reloaded| say_reload(&reloaded)));
    if conversation.spec().dispatch == Dispatch::Manual {
        return Err(Failure::usage(
            "a chat has no way to let calls run one turn at a time: use --dispatch turn-end or streaming, and --policy ask to be asked",
        ));
    }
    background_on_quit(&app, conversation.session());
    let groups = app.config().sections.defaults.groups.then(|| app.drive_groups());
    if is_interactive() {
        say(styled(DIM, format_args!("{}; /help lists what you can type, Ctrl-D ends", conversation.spec().model)));
    }
    let (mut status, mut total) = (Exit::Ok, Total::default());
    let prompt = if is_interactive() { "> " } else { "" };
    // An editor needs a terminal at both ends; otherwise lines are read plainly.
    let history = (is_interactive() && columns().is_some()).then(|| app.config().state_dir.join(HISTORY));
    let _terminal = TerminalGuard::new();
    loop {
        let asked = async {
            match &history {
                Some(history) => terminal.console.edit(prompt, history).await,
                None => terminal.console.ask(prompt).await.map_or(Typed::End, Typed::Line),
            }
        };
        let typed = tokio::select! {
            biased;
            typed = asked => Some(typed),
            _ = next_signal() => Some(Typed::End),
            received = conversation.receive() => {
                received.map_err(failed)?;
                None
            }
        };
        let line = match typed {
            Some(Typed::Line(line)) => Some(line),
            Some(Typed::Interrupted) => {
                say(styled(DIM, "Ctrl-D or /exit ends"));
                continue;
            }
            Some(Typed::End) => break,
            None => None,
        };
        let message = match line.as_deref().map_or(Line::Mail, Line::of) {
            Line::Mail => {
                if is_interactive() {
                    say(styled(DIM, "a message came"));
                }
                None
            }
            Line::Empty => continue,
            Line::Exit => break,
            Line::Help => {
                say(HELP);
                continue;
            }
            Line::Cost => {
                total.say();
                continue;
            }
            Line::Tools(words) => {
                tools(&app, words)?;
                continue;
            }
            Line::New => {
                conversation.reset();
                say(styled(DIM, "a new conversation"));
                continue;
            }
            Line::Unknown(command) => {
                say(styled(WARN, format_args!("{} is no command; /help lists them", harmless(command))));
                continue;
            }
            Line::Message(message) => Some(message.to_owned()),
        };
        let cancel = Cancel::new();
        conversation.set_cancel(cancel.clone());
        let text = Text::for_output(global.json);
        let progress = ProgressDisplay::begin(app.events().subscribe(), text, Arc::clone(&terminal.screen));
        let signals = watch(cancel.clone(), OnSignal::Cancel);
        let report = match message {
            Some(message) => conversation.send(message).await,
            None => conversation.proceed().await,
        };
        signals.abort();
        let (shown, cost) = progress.end().await;
        let report = report.map_err(failed)?;
        total.turns += report.turns;
        total.usage.add(report.usage);
        total.cost.add(cost);
        if global.json {
            print_json(&with_id(&report, &id))?;
        } else {
            print_answer(&report, text, shown)?;
            summary(&report, cost, "goes on in this chat");
        }
        status = exit(report.status);
        if cancel.cause() == Some(CancelCause::Shutdown) {
            break;
        }
    }
    if is_interactive() && total.turns > 0 {
        total.say();
    }
    // Other processes take over their work before calls are cancelled.
    drop((triggers, groups));
    reloading.abort();
    app.shut_down().await;
    Ok(status)
}

/// Lists all tools, or those that match the words.
fn tools(app: &Toolwright, words: &str) -> std::io::Result<()> {
    let snapshot = app.catalogue().snapshot();
    let mut table = Table::new(["tool", "description"]);
    let mut row = |entry: &toolwright::core::Entry| {
        table.row([name(&entry.wire_name), (&entry.definition().description).into()]);
    };
    if words.is_empty() {
        snapshot.list().iter().for_each(|entry| row(entry));
    } else {
        search_or_similar(&snapshot, words, FOUND, &SearchFilter::default()).iter().for_each(|hit| row(&hit.entry));
    }
    table.print()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn agents_that_had_not_ended_are_named() {
        for (end, expect) in [
            (ChildEnd::Cancelled, "agent slow (job 7) had not ended: it was cancelled"),
            (ChildEnd::Detached, "agent slow (job 7) had not ended: it goes on when `toolwright serve` runs"),
        ] {
            assert_eq!(ended(&ChildNote { agent: "slow".into(), job: "7".into(), end }, WITH_SERVE), expect);
        }
    }

    #[test]
    fn a_slash_begins_a_command_except_in_paths() {
        for (line, expect) in [
            ("  ", Line::Empty),
            ("/help", Line::Help),
            ("/tools read file ", Line::Tools("read file")),
            ("/quit", Line::Exit),
            ("/frob", Line::Unknown("/frob")),
            ("/etc/hosts: what is it?", Line::Message("/etc/hosts: what is it?")),
            ("hello /help", Line::Message("hello /help")),
        ] {
            assert_eq!(Line::of(line), expect, "{line}");
        }
    }
}
