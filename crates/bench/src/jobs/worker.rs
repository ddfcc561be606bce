//! The process that is killed: starts background jobs, reports the id of each, and takes over the jobs of the process
//! before it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::ProviderKind;
use toolwright_core::definition::Mode;
use toolwright_core::{
    CallId, Effects, Policy, Principal, Profile, RawArguments, Services, Session, SessionId, Snapshot, StaticProvider,
    Tool, ToolCall, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::{
    Catalogue, EventHub, Executor, ExecutorOptions, JobManager, QueueConfig, Queues, RecoveryOptions, RunContext,
    SqliteStore, SystemClock,
};

use super::{kind, runs_file};
use crate::Failure;

/// What one worker is to do.
#[derive(clap::Args)]
pub(crate) struct Worker {
    /// Where state and counters are.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Number of its first job.
    #[arg(long)]
    pub(crate) from: u64,
    /// How many it starts.
    #[arg(long)]
    pub(crate) count: u64,
    /// Milliseconds between two.
    #[arg(long)]
    pub(crate) pace: u64,
}

/// A tool that first writes its job's number to a file, then takes its time.
struct CountingTool {
    name: &'static str,
    effects: Effects,
    runs: PathBuf,
}

#[async_trait]
impl Tool for CountingTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("bench", self.name, "1.0.0").unwrap_or_else(|error| unreachable!("{error}"));
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "ms": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(id, "Counts its runs.", Some(schema));
        definition.mode = Mode::Background;
        definition.effects = self.effects;
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let number = |name: &str| arguments.get(name).and_then(Value::as_u64).unwrap_or_default();
        let noted = std::fs::OpenOptions::new().create(true).append(true).open(&self.runs);
        // A single write, so that lines of two processes never mix.
        noted
            .and_then(|mut runs| runs.write_all(format!("{}\n", number("n")).as_bytes()))
            .map_err(|error| ToolError::new(toolwright_core::ErrorKind::ExecutionError, error.to_string()))?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(number("ms"))) => {
                Ok(ToolOutput::text(format!("result {}", number("n"))))
            }
            cause = context.cancel.cancelled() => Err(ToolError::canceled(cause)),
        }
    }
}

pub(crate) fn run(worker: &Worker) -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(work(worker))
}

async fn work(worker: &Worker) -> Result<(), Failure> {
    let dir = &worker.dir;
    let tool = |name, effects| Arc::new(CountingTool { name, effects, runs: runs_file(dir) }) as Arc<dyn Tool>;
    let tools = vec![tool("again", Effects::WRITE), tool("once", Effects::UNKNOWN)];
    let catalogue = Catalogue::from_snapshot(Arc::default());
    catalogue.add_provider(Arc::new(StaticProvider::new("bench", ProviderKind::Native, tools)?)).await?;
    catalogue.refresh("bench").await;
    let store = SqliteStore::open(dir)?;
    let jobs = JobManager::new(Arc::clone(&store), dir);
    let services = Services {
        jobs: Arc::clone(&jobs) as _,
        events: Arc::new(EventHub::default()),
        ..Services::none(Arc::new(SystemClock))
    };
    let mut options = ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, store as _);
    options.jobs = Some(jobs);
    let spec = QueueConfig { concurrent: 32, ..QueueConfig::default() };
    options.queues = Queues::new([("default".to_owned(), spec)].into());
    let executor = Executor::new(options);
    let context = Arc::new(terms);
    let run = terms(session(dir), catalogue.snapshot());
    let root = run.session.root.clone();
    executor.recover_jobs(RecoveryOptions { catalogue: Arc::clone(&catalogue), root, session: None, context });
    for n in worker.from..worker.from + worker.count {
        let (name, ms) = kind(n);
        let arguments = RawArguments::Value(json!({"n": n, "ms": ms}));
        let call = ToolCall::new(CallId::new(format!("call-{n}")), format!("bench__{name}"), arguments);
        let outcomes = executor.run_calls(vec![call], &run).await;
        let reported = outcomes.iter().find_map(|outcome| outcome.structured.as_ref()?.get("job")?.as_str());
        let id = reported.ok_or_else(|| format!("job {n} did not begin: {outcomes:?}"))?;
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{n} {id}\n").as_bytes())?;
        out.flush()?;
        drop(out);
        tokio::time::sleep(Duration::from_millis(worker.pace)).await;
    }
    // Waits until the process is killed.
    std::future::pending().await
}

fn session(dir: &Path) -> Session {
    Session { id: SessionId::new("bench"), principal: Principal::owner(), root: dir.to_owned(), agent: None }
}

fn terms(session: Session, snapshot: Arc<Snapshot>) -> RunContext {
    let approver = Arc::new(NoApprover { remedy: String::new() });
    RunContext::new(Arc::new(session), snapshot, Arc::new(Policy::of(Profile::Trusted)), approver)
}
