//! A small fixture for the tests: tools that misbehave in one way each, and an executor over a real store.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::{CallScope, Listing, ProviderKind, Snapshot};
use toolwright_core::client::ClientRequest;
use toolwright_core::definition::Concurrency;
use toolwright_core::event::Partial;
use toolwright_core::output::is_output_tool;
use toolwright_core::store::FileUse;
use toolwright_core::{
    CallId, Effects, Outcome, Policy, Principal, Profile, RawArguments, Services, Session, SessionId, StaticProvider,
    Tool, ToolCall, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_providers::builtin::{self, BuiltinOptions};
use toolwright_runtime::{EventHub, Executor, ExecutorOptions, OutputFiles, RunContext, SqliteStore, SystemClock};

/// Runs the test `name` of this binary in another process, with this folder in `variable`.
pub(crate) fn spawn_test(name: &str, variable: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name])
        .env(variable, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawned")
}

/// What the tools did, seen from outside.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ran: AtomicUsize,
    pub(crate) now: AtomicUsize,
    pub(crate) most: AtomicUsize,
    pub(crate) saw_cancel: AtomicUsize,
}

struct TestTool {
    name: &'static str,
    counts: Arc<Counts>,
}

#[async_trait]
impl Tool for TestTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("t", self.name, "1.0.0").expect("id");
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(id, "A test tool.", Some(schema));
        definition.effects = match self.name {
            "write" => Effects::WRITE,
            "shell" => Effects::UNKNOWN,
            _ => Effects::READ,
        };
        if self.name == "exclusive" {
            definition.concurrency = Concurrency::Exclusive;
        }
        if self.name == "cached" {
            definition.cache_ttl = Some(Duration::from_secs(60));
        }
        definition
    }

    /// `write` with nine leaves the workspace.
    fn scope(&self, arguments: &Value, _session: &Session) -> CallScope {
        if self.name == "write" && arguments["n"] != 9 { CallScope::Workspace } else { CallScope::Anywhere }
    }

    /// `write` replaces the file that it is given, `echo` reads it.
    fn files(&self, arguments: &Value, _session: &Session) -> FileUse {
        match (self.name, arguments["file"].as_str()) {
            ("write", Some(file)) => FileUse::replacing(file.into()),
            ("echo", Some(file)) => FileUse::reading(file.into()),
            _ => FileUse::default(),
        }
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let counts = &self.counts;
        counts.ran.fetch_add(1, Ordering::SeqCst);
        let n = arguments.get("n").and_then(Value::as_u64).unwrap_or(0);
        match self.name {
            "slow" | "exclusive" => {
                let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
                counts.most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(n)).await;
                counts.now.fetch_sub(1, Ordering::SeqCst);
                Ok(ToolOutput::text(format!("slept {n}")))
            }
            "polite" => {
                let cause = context.cancel.cancelled().await;
                counts.saw_cancel.fetch_add(1, Ordering::SeqCst);
                Err(ToolError::canceled(cause).with_model_message(format!("stopped politely, {}", cause.describe())))
            }
            "deaf" => std::future::pending().await,
            "panic" => panic!("the tool's own fault"),
            "big" => Ok(ToolOutput::text("0123456789\n".repeat(usize::try_from(n).expect("small")))),
            "progress" => {
                context.partials.send(Partial::Progress {
                    progress: 1.0,
                    total: Some(2.0),
                    message: None,
                    more: serde_json::Map::new(),
                });
                for piece in arguments["says"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    context.partials.send(Partial::Text(piece.to_owned()));
                }
                Ok(ToolOutput::text("done"))
            }
            "asks" => {
                let request = ClientRequest { key: None, method: "elicitation/create".into(), params: json!({}) };
                let answers = context.client.ask(vec![request]).await?;
                Ok(ToolOutput::text(format!("answered {}", answers.len())))
            }
            // Takes its question back after a while, and goes on.
            "withdraws" => {
                let request = ClientRequest { key: None, method: "elicitation/create".into(), params: json!({}) };
                let over = std::pin::pin!(tokio::time::sleep(Duration::from_millis(50)));
                let answers = context.client.ask_until(vec![request], over).await;
                let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
                counts.most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(n)).await;
                counts.now.fetch_sub(1, Ordering::SeqCst);
                Ok(ToolOutput::text(if answers.is_none() { "withdrawn" } else { "answered" }))
            }
            "fails" => Ok(ToolOutput::failure(arguments["says"].as_str().unwrap_or("it did not work"))),
            "write" if arguments["file"].is_string() => {
                // Some tests name a file that is nowhere.
                let _ = std::fs::write(arguments["file"].as_str().unwrap_or_default(), n.to_string());
                Ok(ToolOutput::text(format!("write {n}")))
            }
            _ if !context.granted.is_empty() => Ok(ToolOutput::text(json!(context.granted).to_string())),
            _ => Ok(ToolOutput::text(format!("{} {n}", self.name))),
        }
    }
}

const NAMES: [&str; 14] = [
    "asks",
    "withdraws",
    "shell",
    "echo",
    "slow",
    "exclusive",
    "polite",
    "deaf",
    "panic",
    "big",
    "progress",
    "fails",
    "write",
    "cached",
];

/// Everything a test needs.
pub(crate) struct Fixture {
    pub(crate) executor: Arc<Executor>,
    pub(crate) events: Arc<EventHub>,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) run: RunContext,
    _dir: tempfile::TempDir,
}

pub(crate) fn provider(counts: &Arc<Counts>) -> Arc<StaticProvider> {
    let tools = NAMES.map(|name| Arc::new(TestTool { name, counts: Arc::clone(counts) }) as Arc<dyn Tool>).to_vec();
    Arc::new(StaticProvider::new("tests", ProviderKind::Native, tools).expect("provider"))
}

/// The tools that read stored outputs.
pub(crate) async fn readers() -> Listing {
    use toolwright_core::Provider as _;
    let mut tools = builtin::tools(&BuiltinOptions::default());
    tools.retain(|tool| is_output_tool(&tool.definition().id));
    let provider = Arc::new(StaticProvider::new("builtin", ProviderKind::Builtin, tools).expect("provider"));
    let tools = provider.list().await.expect("list");
    Listing { provider, tools, error: None, withheld: vec![] }
}

pub(crate) async fn fixture(configure: impl FnOnce(&mut ExecutorOptions)) -> Fixture {
    use toolwright_core::Provider as _;
    let dir = tempfile::tempdir().expect("dir");
    let counts = Arc::new(Counts::default());
    let provider = provider(&counts);
    let tools = provider.list().await.expect("list");
    let tests = Listing { provider, tools, error: None, withheld: vec![] };
    let snapshot = Snapshot::build(&[tests, readers().await]);
    let events = Arc::new(EventHub::default());
    let store = SqliteStore::open(&dir.path().join("state")).expect("store");
    let mut services = Services::none(Arc::new(SystemClock));
    services.events = Arc::clone(&events) as _;
    services.outputs = OutputFiles::new(dir.path().join("outputs"));
    let mut options = ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, Arc::clone(&store) as _);
    options.grace = Duration::from_millis(200);
    configure(&mut options);
    let run = RunContext::new(
        session(dir.path()),
        Arc::new(snapshot),
        Arc::new(Policy::of(Profile::Trusted)),
        Arc::new(NoApprover { remedy: "use --policy trusted".into() }),
    );
    Fixture { executor: Executor::new(options), events, store, counts, run, _dir: dir }
}

fn session(root: &Path) -> Arc<Session> {
    Arc::new(Session { id: SessionId::new("test"), principal: Principal::owner(), root: root.to_owned(), agent: None })
}

pub(crate) fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
    ToolCall::new(CallId::new(id), format!("t__{name}"), RawArguments::Value(arguments))
}

impl Fixture {
    pub(crate) async fn one(&self, name: &str, arguments: Value) -> Outcome {
        let outcomes = self.all(vec![call("c", name, arguments)]).await;
        outcomes.into_iter().next().expect("one outcome")
    }

    /// The terms of the fixture's run, on another catalogue.
    pub(crate) fn on(&self, snapshot: Snapshot) -> RunContext {
        RunContext { snapshot: Arc::new(snapshot), ..self.run.clone() }
    }

    pub(crate) async fn all(&self, calls: Vec<ToolCall>) -> Vec<Outcome> {
        self.executor.run_calls(calls, &self.run).await
    }
}
