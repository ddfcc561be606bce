//! Child runs over a scripted model that answers at once: the cost of one agent run inside a call, and the memory of
//! many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;
use toolwright_agent::{AgentProvider, AgentProviderOptions, RunConfig};
use toolwright_core::agents::{AgentConfig, AgentLimits};
use toolwright_core::catalogue::{Listing, Provider as _, Snapshot};
use toolwright_core::event::Event;
use toolwright_core::model::{ModelClient, ModelError, ModelEvents, ModelRequest, ModelResponse};
use toolwright_core::{CallId, Cancel, Profile, RawArguments, Services, StaticProvider, ToolCall};
use toolwright_providers::builtin::{self, BuiltinOptions};
use toolwright_runtime::{EventHub, Executor, ExecutorOptions, JobManager, RunContext, SqliteStore, SystemClock};

use crate::Failure;
use crate::app::run_in;
use crate::memory::{cpu_time, rss_mb};
use crate::stats::{per_second, percentile_us};

#[derive(Serialize)]
pub(crate) struct Row {
    what: &'static str,
    runs: usize,
    p50_us: f64,
    p99_us: f64,
    runs_per_s: f64,
    /// The processor time of each run, which does not depend on the machine's other work.
    cpu_us: f64,
    /// The resident memory of the process while they run, in MiB.
    rss_mb: f64,
    /// The part of the memory that the runs use.
    rss_of_runs_mb: f64,
}

/// A model client that waits for a permit of the gate, then answers; it records nothing.
struct GatedClient {
    gate: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

#[async_trait]
impl ModelClient for GatedClient {
    async fn complete(
        &self,
        _model: &str,
        _request: &ModelRequest,
        _events: &dyn ModelEvents,
        _cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _permit = self.gate.acquire().await;
        Ok(ModelResponse { text: "done".into(), ..ModelResponse::default() })
    }
}

struct Bench {
    executor: Arc<Executor>,
    run: RunContext,
    /// The permits for the model's answers.
    gate: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    _observer: tokio::sync::broadcast::Receiver<Arc<Event>>,
    _dir: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Result<Self, Failure> {
        let dir = tempfile::tempdir()?;
        let store = SqliteStore::open(dir.path())?;
        let (gate, waiting) = (Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)), Arc::new(AtomicUsize::new(0)));
        let model = Arc::new(GatedClient { gate: Arc::clone(&gate), waiting: Arc::clone(&waiting) });
        let events = Arc::new(EventHub::default());
        let _observer = events.subscribe();
        let jobs = JobManager::new(Arc::clone(&store), dir.path());
        let services = Services {
            events,
            model,
            log: Arc::clone(&store) as _,
            jobs: Arc::clone(&jobs) as _,
            ..Services::none(Arc::new(SystemClock))
        };
        let mut options = ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, Arc::clone(&store) as _);
        options.jobs = Some(jobs);
        let parts = AgentProviderOptions {
            runs: Arc::clone(&store) as _,
            tree: Arc::clone(&store) as _,
            limits: AgentLimits::default(),
            default_model: Some("test/m".into()),
            config: Arc::new(|model| RunConfig::new(model, "")),
        };
        let worker = AgentConfig { name: "worker".into(), prompt: "You work.".into(), ..AgentConfig::default() };
        let agents = Arc::new(AgentProvider::new(vec![worker], parts));
        let tools = builtin::tools(&BuiltinOptions::default());
        let builtins = Arc::new(StaticProvider::new("builtin", toolwright_core::ProviderKind::Builtin, tools)?);
        let listing = |provider: Arc<dyn toolwright_core::Provider>, tools| Listing {
            provider,
            tools,
            error: None,
            withheld: Vec::new(),
        };
        let (own, started) = (builtins.list().await?, agents.list().await?);
        let snapshot = Snapshot::build(&[listing(builtins, own), listing(agents, started)]);
        let run = run_in(dir.path(), snapshot, Profile::Trusted);
        Ok(Self { executor: Executor::new(options), run, gate, waiting, _observer, _dir: dir })
    }

    async fn start(&self, id: String) -> Result<Duration, Failure> {
        let arguments = RawArguments::Value(json!({"reason": "to time it", "task": "Work."}));
        let call = ToolCall::new(CallId::new(id), "agent__worker", arguments);
        let started = Instant::now();
        let outcomes = self.executor.run_calls(vec![call], &self.run).await;
        match outcomes.into_iter().next() {
            Some(outcome) if outcome.ok => Ok(started.elapsed()),
            other => Err(format!("an agent failed: {other:?}").into()),
        }
    }
}

pub(crate) fn run(runs: usize, live: usize) -> Result<Vec<Row>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async { tokio::spawn(measure(runs.max(16), live)).await? })
}

async fn measure(runs: usize, live: usize) -> Result<Vec<Row>, Failure> {
    let bench = Arc::new(Bench::new().await?);
    for n in 0..50 {
        bench.start(format!("warm-{n}")).await?;
    }
    let mut times = Vec::with_capacity(runs);
    let (started, computed) = (Instant::now(), cpu_time());
    for n in 0..runs {
        times.push(bench.start(format!("one-{n}")).await?);
    }
    let spent = (started.elapsed(), cpu_time() - computed);
    let pid = std::process::id();
    let before = rss_mb(pid);
    let mut rows = vec![row("one after another", &mut times, spent, (before, 0.0))];

    // Every run waits at its first request until all have reached theirs.
    bench.gate.forget_permits(Semaphore::MAX_PERMITS);
    bench.waiting.store(0, Ordering::SeqCst);
    let mut tasks = tokio::task::JoinSet::new();
    let (started, computed) = (Instant::now(), cpu_time());
    for n in 0..live {
        let bench = Arc::clone(&bench);
        tasks.spawn(async move { bench.start(format!("live-{n}")).await });
    }
    while bench.waiting.load(Ordering::SeqCst) < live {
        if started.elapsed() > Duration::from_secs(60) {
            return Err("the agents did not all begin within a minute".into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let during = rss_mb(pid);
    bench.gate.add_permits(live);
    let mut times = Vec::with_capacity(live);
    while let Some(ended) = tasks.join_next().await {
        times.push(ended??);
    }
    rows.push(row("at once", &mut times, (started.elapsed(), cpu_time() - computed), (during, during - before)));
    Ok(rows)
}

fn row(
    what: &'static str,
    times: &mut [Duration],
    (elapsed, computed): (Duration, Duration),
    (rss_mb, of_runs): (f64, f64),
) -> Row {
    Row {
        what,
        runs: times.len(),
        p50_us: percentile_us(times, 0.5),
        p99_us: percentile_us(times, 0.99),
        runs_per_s: per_second(times.len(), elapsed),
        cpu_us: (computed.as_secs_f64() * 1e7 / times.len().max(1) as f64).round() / 10.0,
        rss_mb,
        rss_of_runs_mb: (of_runs * 10.0).round() / 10.0,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn agents_are_timed_alone_and_at_once() {
        let rows = super::run(16, 4).expect("they run");
        let runs: Vec<_> = rows.iter().map(|row| (row.what, row.runs)).collect();
        assert_eq!(runs, [("one after another", 16), ("at once", 4)]);
    }
}
