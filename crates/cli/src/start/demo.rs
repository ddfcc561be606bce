//! `demo`: a run without keys and network. Executor, policy and loop are real; the model and three MCP servers are part
//! of the program. It reads no configuration and leaves no files.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use toolwright::Toolwright;
use toolwright::agent::RunReport;
use toolwright::config::{LoadOptions, load};
use toolwright::core::exposure::Exposure;
use toolwright::core::model::{
    CallResult, Message, ModelClient, ModelError, ModelEvent, ModelEvents, ModelRequest, ModelResponse, RawToolCall,
    StopReason, Usage,
};
use toolwright::core::{ApprovalDecision, ApprovalRequest, Approver, Cancel, Event, Profile};

use crate::app::agent::failed;
use crate::app::{GlobalOptions, open_with};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::console::{OnSignal, watch};
use crate::terminal::person::Terminal;
use crate::terminal::progress::EventStream;
use crate::terminal::screen::{
    BAD, BOLD, DIM, GOOD, Screen, WARN, is_interactive, one_line, print_json, print_text, say, styled,
};
use crate::use_tools::report::{exit, with_id};
use crate::values::address;

/// How long the three servers may take to start.
const START: Duration = Duration::from_secs(20);
/// The most columns of the output.
const COLUMNS: usize = 80;

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Serves the web console with a team of sample agents instead. ADDR defaults to 127.0.0.1:7117.
    #[arg(long, value_name = "ADDR", value_parser = address, num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:7117")]
    serve: Option<SocketAddr>,
    /// Prints the console's address and opens no browser.
    #[arg(long, requires = "serve")]
    print: bool,
}

pub(crate) async fn command(global: &GlobalOptions, args: &DemoArgs) -> CommandResult {
    if let Some(address) = args.serve {
        return super::demo_team::serve(address, !args.print).await;
    }
    let folder = tempfile::tempdir().map_err(|error| Failure::failed(format!("no temporary folder: {error}")))?;
    let app = open_sample(folder.path(), &SECTIONS.replace("MODEL", MODEL)).await?;
    app.catalogue().offer_extraction(true).await;
    let cancel = Cancel::new();
    watch(cancel.clone(), OnSignal::Cancel);
    app.list_all(START).await;
    let terminal = Terminal::new(&app);
    let printer = StoryPrinter {
        to_stderr: global.json,
        screen: Arc::clone(&terminal.screen),
        unprinted: String::new(),
        usage: Usage::default(),
        cost: 0.0,
    };
    printer.print(styled(BOLD, "This is a demo: the model is a script, and no language model is asked."));
    printer.print("It needs no key and no network. The three servers behind it (weather, notes,");
    printer.print("shop) are real MCP servers with made-up data; every call takes the real path.");
    printer.print(format_args!("\n{}  {}", styled(BOLD, "task"), TASK.replace('\n', "\n      ")));
    // Without a terminal every call is approved: nothing in the demo is real.
    let approver: Arc<dyn Approver> = if is_interactive() {
        Arc::new(terminal.clone())
    } else {
        Arc::new(|_: &ApprovalRequest| ApprovalDecision::Approve)
    };
    app.models().answer_by(PROVIDER, Arc::new(ScriptedModel));
    let id = "demo";
    let agent = app.agent(MODEL).id(id).task(TASK).policy(Profile::Ask).exposure(Some(Exposure::Pick));
    let (stop, stopped) = oneshot::channel();
    let events_shown = tokio::spawn(printer.follow(EventStream::new(app.events().subscribe(), stopped)));
    let report = agent.shared_approver(approver).cancel(cancel).run().await;
    let _ = stop.send(());
    let printer = events_shown.await;
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

/// Settings in addition to the servers.
const SECTIONS: &str = r#"
defaults: {tool_response_max_bytes: 2048, builtins_denied: ["llm__*"]}
models: {MODEL: {prices: {input: 1.25, output: 10.0}}}
"#;

/// Opens an instance with the three servers and these sections in its own folder, independent of any other
/// configuration on this machine.
pub(super) async fn open_sample(folder: &Path, sections: &str) -> Result<Arc<Toolwright>, Failure> {
    let unusable = |error: std::io::Error| Failure::failed(format!("the demo cannot be prepared: {error}"));
    let program = std::env::current_exe().map_err(unusable)?;
    let servers = SampleServer::ALL.map(|sample| {
        let name = sample.name();
        (name.to_owned(), json!({"command": program, "args": ["demo-server", name], "trusted": true}))
    });
    let servers = Value::Object(serde_json::Map::from_iter(servers));
    let file = folder.join("toolwright.yaml");
    std::fs::write(&file, format!("mcpServers: {servers}\n{sections}")).map_err(unusable)?;
    let options = LoadOptions {
        config: Some(file),
        root: Some(folder.to_owned()),
        state_dir: Some(folder.join("state")),
        cwd: folder.to_owned(),
        ..LoadOptions::default()
    };
    // Neither the home nor the keys of this machine are used.
    let variables = |name: &str| (name == "PATH").then(|| std::env::var(name).ok()).flatten();
    let config = load(&options, &variables);
    open_with(options, config, Box::new(variables)).await
}

/// Prints the events of the run in order.
struct StoryPrinter {
    /// Whether standard output is reserved for the report.
    to_stderr: bool,
    screen: Arc<Screen>,
    /// The model's text that has not been printed, because it arrives in pieces.
    unprinted: String,
    usage: Usage,
    cost: f64,
}

impl StoryPrinter {
    fn print(&self, line: impl std::fmt::Display) {
        if self.to_stderr {
            say(line);
        } else {
            // The reader may have stopped reading.
            let _ = print_text(&line.to_string());
        }
    }

    async fn follow(mut self, mut events: EventStream) -> Self {
        while let Some(event) = events.next().await {
            if let Ok(event) = event {
                self.show(&event).await;
            }
        }
        self
    }

    async fn show(&mut self, event: &Event) {
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
            Event::ModelText { text, .. } => self.unprinted.push_str(text),
            Event::ModelFinished { usage, cost_usd, .. } => {
                let said = std::mem::take(&mut self.unprinted);
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
                    styled(DIM, "waits for a person's approval:")
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

    /// Prints the result, and what to do next.
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
                    format_args!("repaired: the model wrote `{key}` of {tool} as {value}; it ran with {now}"),
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

/// The provider of the scripted models.
pub(super) const PROVIDER: &str = "demo";
/// The id of the model.
const MODEL: &str = "demo/scripted";
/// The task that the script solves.
const TASK: &str =
    "Plan our picnic on Saturday in Oslo: look at the weather\nforecast, and order the lemonade that my notes ask for.";

/// The scripted model.
struct ScriptedModel;

#[async_trait]
impl ModelClient for ScriptedModel {
    async fn complete(
        &self,
        _model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        _cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let turn = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
        Ok(written(answer(turn, request), request, events))
    }
}

/// An answer of a script: its text and its calls.
pub(super) type Answer = (String, Vec<(&'static str, Value)>);

/// Returns it as a model's response, streamed word by word.
pub(super) fn written((text, calls): Answer, request: &ModelRequest, events: &dyn ModelEvents) -> ModelResponse {
    for word in text.split_inclusive(' ') {
        events.on_event(ModelEvent::Text(word.to_owned()));
    }
    let call = |(index, (name, arguments)): (usize, (&str, Value))| RawToolCall {
        id: format!("call_{}_{}", request.messages.len(), index + 1),
        name: name.to_owned(),
        arguments: arguments.to_string(),
    };
    let calls: Vec<RawToolCall> = calls.into_iter().enumerate().map(call).collect();
    // Four characters per token, so that there is usage to account for.
    let tokens = |characters: usize| u64::try_from(characters.div_ceil(4)).unwrap_or(u64::MAX);
    let sent = serde_json::to_string(request).map_or(0, |sent| sent.len());
    let length = text.len() + calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
    let usage = Usage { input_tokens: tokens(sent), output_tokens: tokens(length), ..Usage::default() };
    let stop = if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls };
    ModelResponse { text, calls, usage, stop, ..ModelResponse::default() }
}

fn answer(turn: usize, request: &ModelRequest) -> Answer {
    match turn {
        // A number as text, as models write it.
        0 => (
            "I look at the forecast and your notes, both at once.".into(),
            vec![
                ("weather__forecast", json!({"city": "Oslo", "days": "7"})),
                ("notes__search", json!({"query": "picnic"})),
            ],
        ),
        1 => {
            let forecast = result(request, "weather__forecast").map(text).unwrap_or_default();
            let Some(handle) = after(&forecast, "Handle: ") else {
                return ("The forecast came back without a handle; I stop here.".into(), Vec::new());
            };
            let bytes = after(&forecast, "because of its size: ").unwrap_or("many");
            (
                format!(
                    "The forecast has {bytes} bytes. I was shown its beginning and a handle\nto the rest, and search that for Saturday."
                ),
                vec![
                    ("output__grep", json!({"handle": handle, "pattern": "^Sat 1[2-6]"})),
                    ("shop__find", json!({"query": "lemonade"})),
                ],
            )
        }
        2 => (
            "The notes say one bottle for each of six.".into(),
            vec![("shop__order", json!({"article": "lemonade", "quantity": 6}))],
        ),
        _ => {
            let hours = result(request, "output__grep").map(text).unwrap_or_default();
            let noon = after(&hours, "Sat 14:00").map_or("unknown", str::trim);
            let order = match result(request, "shop__order") {
                Some(order) if !order.is_error => format!("Ordered: {}.", text(order)),
                _ => "Nothing was ordered, as you did not allow it.".to_owned(),
            };
            (format!("Saturday at 14:00 in Oslo: {noon}.\nHave your picnic then. {order}"), Vec::new())
        }
    }
}

/// Returns the last result of a tool.
pub(super) fn result<'r>(request: &'r ModelRequest, tool: &str) -> Option<&'r CallResult> {
    let results = request.messages.iter().rev().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    results.flatten().find(|result| result.name == tool)
}

pub(super) fn text(result: &CallResult) -> String {
    result.content.iter().filter_map(|block| block.as_text()).collect::<Vec<_>>().join("\n")
}

/// Returns the text after `mark` in its line, up to ` bytes` if present.
fn after<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    let rest = text.split_once(mark)?.1;
    let line = rest.lines().next().unwrap_or_default();
    Some(line.split_once(" bytes").map_or(line, |(number, _)| number))
}

/// The most bytes of one message.
const MAX_MESSAGE: u64 = 1 << 20;
/// The protocol revision for clients; Toolwright supports it.
const REVISION: &str = "2025-11-25";

/// A sample server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SampleServer {
    /// Forecasts for any city.
    Weather,
    /// A person's notes.
    Notes,
    /// A shop that takes orders.
    Shop,
}

impl SampleServer {
    /// All servers.
    const ALL: [Self; 3] = [Self::Weather, Self::Notes, Self::Shop];

    fn name(self) -> &'static str {
        match self {
            Self::Weather => "weather",
            Self::Notes => "notes",
            Self::Shop => "shop",
        }
    }

    fn tools(self) -> Value {
        match self {
            Self::Weather => json!([
                tool(
                    "forecast",
                    "Weather forecast of a city, hour by hour",
                    true,
                    json!({
                        "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
                    })
                ),
                tool("alerts", "Weather warnings that hold for a city now", true, json!({"city": {"type": "string"}})),
            ]),
            Self::Notes => json!([
                tool("search", "Find notes by a word in their text", true, json!({"query": {"type": "string"}})),
                tool("write", "Write a new note", false, json!({"text": {"type": "string"}})),
            ]),
            Self::Shop => json!([
                tool("find", "Find articles of the shop, with prices", true, json!({"query": {"type": "string"}})),
                tool(
                    "order",
                    "Order an article of the shop; it is paid at once",
                    false,
                    json!({
                        "article": {"type": "string"}, "quantity": {"type": "integer", "minimum": 1, "maximum": 100},
                    })
                ),
                tool("orders", "List the orders that were placed", true, json!({})),
            ]),
        }
    }
}

fn tool(name: &str, description: &str, is_read_only: bool, properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().into_iter().flat_map(|map| map.keys()).collect();
    json!({
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        },
        "annotations": {"readOnlyHint": is_read_only, "destructiveHint": !is_read_only, "openWorldHint": false},
    })
}

/// The state of a running server.
struct SampleServerState {
    notes: Vec<String>,
    orders: Vec<String>,
}

/// Serves until standard input ends.
pub(crate) fn serve(sample: SampleServer) -> CommandResult {
    let mut memory = SampleServerState {
        notes: vec![
            "Picnic: six of us on Saturday. Bring lemonade, one bottle each.".to_owned(),
            "Bicycle: new brake pads, front and rear.".to_owned(),
        ],
        orders: Vec::new(),
    };
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    loop {
        let mut line = String::new();
        if input.by_ref().take(MAX_MESSAGE).read_line(&mut line)? == 0 {
            return Ok(Exit::Ok);
        }
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        // Notifications have no id, and none has an effect here.
        let Some(id) = message.get("id") else { continue };
        let mut answer = json!({"jsonrpc": "2.0", "id": id});
        match answered(sample, &message, &mut memory) {
            Some(result) => answer["result"] = result,
            None => answer["error"] = json!({"code": -32601, "message": "this sample server has no such method"}),
        }
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
}

fn answered(sample: SampleServer, message: &Value, memory: &mut SampleServerState) -> Option<Value> {
    match message.get("method")?.as_str()? {
        "initialize" => Some(json!({
            "protocolVersion": REVISION,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": format!("demo-{}", sample.name()), "version": env!("CARGO_PKG_VERSION")},
        })),
        "ping" => Some(json!({})),
        "tools/list" => Some(json!({"tools": sample.tools()})),
        "tools/call" => {
            let called = |key: &str| message.pointer(&format!("/params/{key}"));
            let text = call(sample, called("name")?.as_str()?, called("arguments").unwrap_or(&Value::Null), memory);
            let (text, is_error) = text.map_or_else(|why| (why, true), |text| (text, false));
            Some(json!({"content": [{"type": "text", "text": text}], "isError": is_error}))
        }
        _ => None,
    }
}

fn call(sample: SampleServer, name: &str, arguments: &Value, memory: &mut SampleServerState) -> Result<String, String> {
    let text = |key: &str| {
        let text = arguments.get(key).and_then(Value::as_str);
        text.ok_or_else(|| format!("`{key}` must be a text"))
    };
    let number = |key: &str, max: u64| {
        let number = arguments.get(key).and_then(Value::as_u64).filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| format!("`{key}` must be an integer from 1 to {max}"))
    };
    match (sample, name) {
        (SampleServer::Weather, "forecast") => Ok(forecast(text("city")?, number("days", 7)?)),
        (SampleServer::Weather, "alerts") => Ok(format!("no warnings for {}", text("city")?)),
        (SampleServer::Notes, "search") => {
            let word = text("query")?.to_lowercase();
            let found: Vec<&String> = memory.notes.iter().filter(|note| note.to_lowercase().contains(&word)).collect();
            Ok(json!(found).to_string())
        }
        (SampleServer::Notes, "write") => {
            memory.notes.push(text("text")?.to_owned());
            Ok("written".into())
        }
        (SampleServer::Shop, "find") => Ok(ARTICLES
            .iter()
            .filter(|(article, _)| article.contains(&text("query").unwrap_or_default().to_lowercase()))
            .map(|(article, cents)| format!("{article}: {} EUR", euros(*cents)))
            .collect::<Vec<_>>()
            .join("\n")),
        (SampleServer::Shop, "order") => {
            let (article, quantity) = (text("article")?, number("quantity", 100)?);
            let Some((_, cents)) = ARTICLES.iter().find(|(name, _)| *name == article) else {
                return Err(format!("the shop has no `{article}`; `find` says what it has"));
            };
            let order = format!("{quantity} x {article}, {} EUR", euros(cents * quantity));
            memory.orders.push(order.clone());
            Ok(format!("order {}: {order}", memory.orders.len()))
        }
        (SampleServer::Shop, "orders") => Ok(json!(memory.orders).to_string()),
        _ => Err(format!("there is no tool `{name}`")),
    }
}

/// The shop's articles, with prices in cents.
const ARTICLES: [(&str, u64); 4] =
    [("lemonade", 240), ("lemonade, sugar-free", 260), ("picnic blanket", 1890), ("sun cream", 995)];

fn euros(cents: u64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// Returns an invented forecast with one line per hour from Thursday on, too long to be shown whole.
fn forecast(city: &str, days: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const SKIES: [&str; 4] = ["clear sky", "few clouds", "overcast", "light rain"];
    let mut out = format!("Forecast for {city} (made up for the demo)\n");
    for (day, name) in (0u64..).zip(DAYS).take(usize::try_from(days).unwrap_or(DAYS.len())) {
        for hour in 0u64..24 {
            let sky = SKIES[usize::try_from((day * 2 + hour / 8) % 4).unwrap_or(0)];
            let degrees = 12 + 10 - hour.abs_diff(14).min(10) + day % 2;
            out.push_str(&format!("{name} {hour:02}:00  {degrees} C  {sky}, wind {} m/s\n", 2 + (day + hour) % 5));
        }
    }
    out
}
