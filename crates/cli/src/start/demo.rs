//! `demo`: a run that needs no key and no network. Servers, executor, policy and loop are the real ones; the model is a
//! script. It reads no configuration and leaves nothing behind.

mod model;
mod servers;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::oneshot;
use toolwright::Toolwright;
use toolwright::agent::RunReport;
use toolwright::config::{LoadOptions, load};
use toolwright::core::model::Usage;
use toolwright::core::select::Exposure;
use toolwright::core::{ApprovalDecision, ApprovalRequest, Approver, Cancel, Event, Profile};

use crate::app::agent::{Terminal, failed};
use crate::app::open_with;
use crate::args::{AskName, Global};
use crate::exit::{Done, Failure};
use crate::terminal::screen::{
    BAD, BOLD, DIM, GOOD, Screen, WARN, is_interactive, one_line, print_json, print_text, say, styled,
};
use crate::terminal::signals::{First, watch};
use crate::use_tools::run::{exit, with_id};
use model::{MODEL, PROVIDER, ScriptedModel, TASK};
pub(crate) use servers::{Sample, serve};

/// How long the three servers may take to start.
const START: Duration = Duration::from_secs(20);
/// Columns that nothing here goes beyond.
const COLUMNS: usize = 80;

pub(crate) async fn command(global: &Global) -> Done {
    let folder = tempfile::tempdir().map_err(|error| Failure::failed(format!("no temporary folder: {error}")))?;
    let app = open_app(folder.path()).await?;
    app.catalogue().offer_extraction(true).await;
    let cancel = Cancel::new();
    watch(cancel.clone(), First::Cancels);
    app.list_all(START).await;
    let terminal = Terminal::new(&app);
    let printer = StoryPrinter {
        to_stderr: global.json,
        screen: Arc::clone(&terminal.screen),
        said: String::new(),
        usage: Usage::default(),
        cost: 0.0,
    };
    printer.print(styled(BOLD, "This is a demo: the model is a script, and no language model is asked."));
    printer.print("It needs no key and no network. The three servers behind it (weather, notes,");
    printer.print("shop) are real MCP servers with made-up data; every call takes the real path.");
    printer.print(format_args!("\n{}  {}", styled(BOLD, "task"), TASK.replace('\n', "\n      ")));
    let approver: Arc<dyn Approver> =
        if is_interactive() { terminal.approver(AskName::Terminal, &app, String::new) } else { Arc::new(ApproveAll) };
    app.models().answer_by(PROVIDER, Arc::new(ScriptedModel));
    let id = "demo";
    let agent = app.agent(MODEL).id(id).task(TASK).policy(Profile::Ask).exposure(Some(Exposure::Pick));
    let (stop, stopped) = oneshot::channel();
    let story = tokio::spawn(printer.follow(app.events().subscribe(), stopped));
    let report = agent.shared_approver(approver).cancel(cancel).run().await;
    let _ = stop.send(());
    let printer = story.await;
    app.shut_down().await;
    let report = report.map_err(failed)?;
    if let Ok(printer) = printer {
        printer.end(&report);
    }
    if global.json {
        print_json(&with_id(&report, id))?;
    }
    Ok(exit(report.status))
}

/// An instance over the three servers in a folder of its own, whatever else is configured on this machine.
async fn open_app(folder: &Path) -> Result<Arc<Toolwright>, Failure> {
    let unusable = |error: std::io::Error| Failure::failed(format!("the demo cannot be prepared: {error}"));
    let program = std::env::current_exe().map_err(unusable)?;
    let servers = Sample::ALL.map(|sample| {
        let name = sample.name();
        (name.to_owned(), json!({"command": program, "args": ["demo-server", name], "trusted": true}))
    });
    let config = json!({
        "mcpServers": serde_json::Map::from_iter(servers),
        "defaults": {"tool_response_max_bytes": 2048, "builtins_denied": ["llm__*"]},
        "models": {MODEL: {"prices": {"input": 1.25, "output": 10.0}}},
    });
    let file = folder.join("toolwright.yaml");
    std::fs::write(&file, config.to_string()).map_err(unusable)?;
    let options = LoadOptions {
        config: Some(file),
        root: Some(folder.to_owned()),
        state_dir: Some(folder.join("state")),
        cwd: folder.to_owned(),
        ..LoadOptions::default()
    };
    // Neither home nor keys of this machine are looked at.
    let variables = |name: &str| (name == "PATH").then(|| std::env::var(name).ok()).flatten();
    let config = load(&options, &variables);
    open_with(options, config, Box::new(variables)).await
}

/// Approves every call if there is no terminal: nothing in the demo is real.
struct ApproveAll;

#[async_trait]
impl Approver for ApproveAll {
    async fn ask(&self, _request: &ApprovalRequest) -> ApprovalDecision {
        ApprovalDecision::Approve
    }
}

/// Prints the events of the run in order.
struct StoryPrinter {
    /// Standard output belongs to the report.
    to_stderr: bool,
    screen: Arc<Screen>,
    /// What the model has said and nobody was told yet: its text comes in pieces.
    said: String,
    usage: Usage,
    cost: f64,
}

impl StoryPrinter {
    fn print(&self, line: impl std::fmt::Display) {
        if self.to_stderr {
            say(line);
        } else {
            // Whoever read the output has seen enough.
            let _ = print_text(&line.to_string());
        }
    }

    async fn follow(mut self, mut events: Receiver<Arc<Event>>, mut stopped: oneshot::Receiver<()>) -> Self {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                _ = &mut stopped => break,
            };
            match event {
                Ok(event) => self.told(&event).await,
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            }
        }
        loop {
            match events.try_recv() {
                Ok(event) => self.told(&event).await,
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return self,
            }
        }
    }

    async fn told(&mut self, event: &Event) {
        let screen = Arc::clone(&self.screen);
        let _screen = screen.hold().await;
        match event {
            Event::ModelStarted { turn, shown, .. } => {
                let all = screen.tools();
                self.print(format_args!("\n{}", styled(BOLD, format_args!("turn {turn}"))));
                if *turn == 1 {
                    self.print(format_args!(
                        "  Of {all} tools the model is shown the {} that fit the task:",
                        shown.len()
                    ));
                    self.print(format_args!("  {}", styled(DIM, one_line(&shown.join(", "), COLUMNS - 3))));
                }
            }
            Event::ModelText { text, .. } => self.said.push_str(text),
            Event::ModelFinished { usage, cost_usd, .. } => {
                let said = std::mem::take(&mut self.said);
                self.print(format_args!("  {}", said.replace('\n', "\n  ")));
                self.usage.add(*usage);
                self.cost += cost_usd.unwrap_or_default();
            }
            Event::ToolStarted { tool, arguments, .. } => {
                let call = format!("{} {arguments}", screen.name(tool));
                self.print(format_args!("  {} {}", styled(DIM, "→"), one_line(&call, COLUMNS - 5)));
            }
            Event::ApprovalRequested { tool, reason, .. } => {
                let name = screen.name(tool);
                self.print(format_args!(
                    "  {} {name} {}",
                    styled(WARN, "?"),
                    styled(DIM, "waits for a person's word:")
                ));
                self.print(format_args!("    {}", one_line(reason, COLUMNS - 5)));
                if !is_interactive() {
                    self.print("    There is no terminal to ask at. In a real run nobody would say yes; as");
                    self.print("    nothing here is real, the demo does.");
                }
            }
            Event::ToolFinished { tool: Some(tool), ok, latency_us, characters_out, message, .. } => {
                let (mark, style) = if *ok { ("✓", GOOD) } else { ("✗", BAD) };
                let about = match message {
                    Some(why) if !ok => one_line(why, COLUMNS / 2),
                    _ => format!("{} ms, {characters_out} characters for the model", latency_us / 1000),
                };
                self.print(format_args!("  {} {} {}", styled(style, mark), screen.name(tool), styled(DIM, about)));
            }
            _ => {}
        }
    }

    /// What it came to, and what to do next.
    fn end(&self, report: &RunReport) {
        self.print("");
        for call in &report.calls {
            let Some(ran_with) = &call.ran_with else { continue };
            let written = call.arguments.as_object().into_iter().flatten();
            for (key, value) in written.filter(|(key, value)| ran_with.get(key) != Some(value)) {
                let tool = call.tool.split('@').next().unwrap_or_default();
                let now = ran_with.get(key).unwrap_or(&Value::Null);
                self.print(styled(
                    DIM,
                    format_args!("mended: the model wrote `{key}` of {tool} as {value}; it ran with {now}"),
                ));
            }
        }
        let Usage { input_tokens, output_tokens, .. } = self.usage;
        let calls = format!("{}: {} turns, {} calls", report.status.as_str(), report.turns, report.calls.len());
        self.print(styled(DIM, format_args!("{calls}, {input_tokens} tokens in, {output_tokens} out,")));
        self.print(styled(
            DIM,
            format_args!("${:.4} at $1.25 and $10 for a million of them (the script itself is free)", self.cost),
        ));
        self.print(format_args!("\n{}", styled(BOLD, "next")));
        self.print("  toolwright import claude-code --dry-run   the servers you already have");
        self.print("  toolwright run \"TASK\"                     with your model; needs its key");
        self.print("  toolwright serve                          the same tools for your MCP client");
    }
}
