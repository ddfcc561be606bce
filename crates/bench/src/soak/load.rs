//! The calls of a soak: three quarters succeed, and each kind of failure has its share of the rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::{Listing, Provider, ProviderKind, Snapshot};
use toolwright_core::{
    CallId, Effects, Outcome, Policy, Principal, Profile, RawArguments, Services, Session, SessionId, StaticProvider,
    Tool, ToolCall, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_mcp::client::{McpOptions, McpProvider, McpServerConfig, McpServerOptions, McpTransport};
use toolwright_providers::builtin::{self, BuiltinOptions};
use toolwright_runtime::{
    EventHub, Executor, ExecutorOptions, OutputFiles, Responses, RunContext, SqliteStore, SystemClock,
};

use crate::Failure;

/// The expected statuses of calls.
pub(super) const STATUSES: [&str; 6] =
    ["ok", "invalid_parameters", "timeout", "transport_error", "execution_error", "internal_error"];

/// The variable that marks processes. They would not inherit one of Toolwright's own.
const MARK: &str = "SOAK_MARK";
/// The most bytes of a message from an MCP server.
const MAX_MESSAGE: usize = 256 << 10;
/// The bytes of an output over the cap of a result.
const FLOOD: usize = 64 << 10;
/// The time limits of a call that hangs, and of any other call.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(30);
/// The most bytes of all stored outputs.
const MAX_OUTPUTS: u64 = 64 << 20;

/// The message of the tool that panics.
pub(super) const PANIC: &str = "it panicked, as it should";

/// A kind of call: its share of a hundred calls, the tool, its arguments, and the time limit.
struct Kind {
    share: usize,
    tool: &'static str,
    arguments: Value,
    limit: Duration,
}

/// The parts of a soak's load.
pub(super) struct Load {
    executor: Arc<Executor>,
    run: RunContext,
    store: Arc<SqliteStore>,
    providers: Vec<Arc<dyn Provider>>,
    /// A hundred places, each with the kind of its call.
    places: Vec<usize>,
    kinds: Vec<Kind>,
    mark: String,
    _dir: tempfile::TempDir,
}

/// The number of calls by status.
#[derive(Default)]
pub(super) struct CallCounts {
    pub(super) by_status: BTreeMap<String, u64>,
}

impl CallCounts {
    pub(super) fn note(&mut self, outcome: &Outcome) {
        let status = outcome.error.as_ref().map_or("ok", |error| error.kind().as_str());
        *self.by_status.entry(status.to_owned()).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: Self) {
        for (status, count) in other.by_status {
            *self.by_status.entry(status).or_default() += count;
        }
    }
}

impl Load {
    pub(super) async fn new() -> Result<Self, Failure> {
        let dir = tempfile::tempdir()?;
        let mark = format!("soak-{}-{}", std::process::id(), dir.path().display());
        let store = SqliteStore::open(&dir.path().join("state"))?;
        let events = Arc::new(EventHub::default());
        let mut observed = events.subscribe();
        // An observer that reads every event, as a console does; it ends with the hub.
        tokio::spawn(async move { while observed.recv().await.is_ok() {} });
        let mut services = Services::none(Arc::new(SystemClock));
        services.events = Arc::clone(&events) as _;
        let week = Duration::from_secs(7 * 24 * 3600);
        services.outputs = OutputFiles::with_limits(dir.path().join("outputs"), MAX_OUTPUTS, week);
        let mut options = ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, Arc::clone(&store) as _);
        options.grace = Duration::from_millis(500);
        options.cache = Some(Responses::new(Arc::clone(&store), Arc::new(SystemClock)));
        let deps = || McpOptions {
            manifests: Arc::clone(&store) as _,
            events: Arc::clone(&events) as _,
            roots: Arc::default(),
        };
        let native = ["noop", "cached", "fail", "panic", "hang", "flood"].map(|name| Arc::new(Native(name)) as _);
        let providers: Vec<Arc<dyn Provider>> = vec![
            Arc::new(StaticProvider::new("native", ProviderKind::Native, native.to_vec())?),
            Arc::new(builtin::provider(&BuiltinOptions::default(), [])?),
            McpProvider::new(server("steady", &mark), deps()),
            McpProvider::new(server("frail", &mark), deps()),
        ];
        let mut listings = Vec::new();
        for provider in &providers {
            let tools = provider.list().await?;
            listings.push(Listing { provider: Arc::clone(provider), tools, error: None, withheld: Vec::new() });
        }
        let root = dir.path().join("root");
        std::fs::create_dir(&root)?;
        let session = Session { id: SessionId::new("soak"), principal: Principal::owner(), root, agent: None };
        let run = RunContext::new(
            Arc::new(session),
            Arc::new(Snapshot::build(&listings)),
            Arc::new(Policy::of(Profile::Trusted)),
            Arc::new(NoApprover { remedy: String::new() }),
        );
        let (executor, kinds) = (Executor::new(options), kinds(&mark));
        let places = kinds.iter().enumerate().flat_map(|(kind, of)| vec![kind; of.share]).collect();
        Ok(Self { executor, run, store, providers, places, kinds, mark, _dir: dir })
    }

    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    pub(super) fn store(&self) -> &SqliteStore {
        &self.store
    }

    /// Makes the next call of a lane. In a hundred calls each kind has its share; lanes start at different kinds.
    pub(super) async fn call(&self, lane: usize, turn: usize) -> Outcome {
        let place = (turn * 37 + lane * 13) % self.places.len();
        let kind = &self.kinds[self.places[place]];
        let call = ToolCall::new(
            CallId::new(format!("{lane}-{turn}")),
            kind.tool.to_owned(),
            RawArguments::Value(kind.arguments.clone()),
        );
        let run = RunContext { timeout: Some(kind.limit), ..self.run.clone() };
        match self.executor.run_calls(vec![call], &run).await.pop() {
            Some(outcome) => outcome,
            None => unreachable!("one outcome a call"),
        }
    }

    /// Ends connections and processes.
    pub(super) async fn end(&self) {
        for provider in &self.providers {
            provider.shut_down().await;
        }
    }
}

/// Returns the options of a server that misbehaves on request.
fn server(name: &str, mark: &str) -> McpServerOptions {
    let transport = McpTransport::Stdio {
        command: toolwright_testkit::bin("misbehaving-mcp").display().to_string(),
        args: Vec::new(),
        env: [(MARK.to_owned(), mark.to_owned())].into(),
        cwd: None,
    };
    McpServerOptions::new(name, McpServerConfig { max_message_bytes: MAX_MESSAGE, ..transport.into() })
}

fn kinds(mark: &str) -> Vec<Kind> {
    let kind = |share, tool, arguments, limit| Kind { share, tool, arguments, limit };
    let bash = |share, command: &str, limit| {
        let command = format!("export {MARK}='{mark}'; {command}");
        kind(share, "shell__bash", json!({"command": command}), limit)
    };
    vec![
        // Successful calls.
        kind(45, "native__noop", json!({"n": 1}), LONG),
        kind(10, "native__cached", json!({"n": 1}), LONG),
        kind(12, "steady__echo", json!({"text": "hello"}), LONG),
        bash(8, "echo hello", LONG),
        // Failing calls.
        kind(4, "native__fail", json!({"n": 1}), LONG),
        kind(1, "native__panic", json!({"n": 1}), LONG),
        kind(1, "native__noop", json!({"n": "many"}), LONG),
        bash(2, "exit 3", LONG),
        // Hanging calls.
        kind(3, "native__hang", json!({"n": 1}), SHORT),
        kind(2, "steady__hang", json!({}), SHORT),
        bash(2, "sleep 600 & sleep 600", SHORT),
        // Flooding calls.
        kind(3, "native__flood", json!({"n": 1}), LONG),
        kind(2, "steady__flood", json!({"bytes": FLOOD}), LONG),
        kind(1, "frail__huge_line", json!({"bytes": 2 * MAX_MESSAGE}), LONG),
        bash(2, "head -c 300000 /dev/zero | tr '\\0' x", LONG),
        // Calls that kill their server.
        kind(1, "frail__die", json!({}), LONG),
        bash(1, "kill -9 $$", LONG),
    ]
}

/// A tool in this process.
struct Native(&'static str);

#[async_trait]
impl Tool for Native {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("native", self.0, "1.0.0").unwrap_or_else(|error| unreachable!("{error}"));
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
        let mut definition = ToolDefinition::new(id, "Part of a load.", Some(schema));
        definition.effects = Effects::READ;
        definition.cache_ttl = (self.0 == "cached").then_some(Duration::from_secs(1));
        definition
    }

    #[expect(clippy::panic, reason = "a panic is part of the load")]
    async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        match self.0 {
            "fail" => Ok(ToolOutput::failure("it failed, as it should")),
            "panic" => panic!("{PANIC}"),
            "hang" => std::future::pending().await,
            "flood" => Ok(ToolOutput::text("a line of the flood\n".repeat(FLOOD / 20))),
            _ => Ok(ToolOutput::text("done")),
        }
    }
}
