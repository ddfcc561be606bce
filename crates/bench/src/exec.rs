//! The executor around a tool that does nothing, with validation, policy, queue, events and the SQLite
//! ledger on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{Value, json};
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::{Listing, Provider as _, ProviderKind, Snapshot};
use toolwright_core::{
    CallId, Effects, Policy, Principal, Profile, RawArguments, Services, Session, SessionId, StaticProvider, Tool,
    ToolCall, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::{EventHub, Executor, ExecutorOptions, RunContext, SqliteStore, SystemClock};

use crate::Failure;
use crate::stats::{per_second, percentile_us};

#[derive(Serialize)]
pub(crate) struct Row {
    what: &'static str,
    calls: usize,
    p50_us: f64,
    p99_us: f64,
    calls_per_s: f64,
}

struct Noop;

#[async_trait]
impl Tool for Noop {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::parse("bench:noop@1.0.0").unwrap_or_else(|error| unreachable!("{error}"));
        let schema = json!({
            "type": "object",
            "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
            "required": ["path"],
            "additionalProperties": false,
        });
        let mut definition = ToolDefinition::new(id, "Does nothing.", Some(schema));
        definition.effects = Effects::READ;
        definition
    }

    async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text("done"))
    }
}

pub(crate) fn run(calls: usize) -> Result<Vec<Row>, Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(measure(calls.max(16)))
}

async fn measure(calls: usize) -> Result<Vec<Row>, Failure> {
    let dir = tempfile::tempdir()?;
    let provider = Arc::new(StaticProvider::new("bench", ProviderKind::Native, vec![Arc::new(Noop)])?);
    let tools = provider.list().await?;
    let snapshot = Arc::new(Snapshot::build(&[Listing { provider, tools, error: None, withheld: vec![] }]));
    let store = SqliteStore::open(dir.path())?;
    let mut services = Services::none(Arc::new(SystemClock));
    let events = Arc::new(EventHub::default());
    let _observer = events.subscribe();
    services.events = events;
    let executor =
        Executor::new(ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, Arc::clone(&store) as _));
    let session = Session {
        id: SessionId::new("bench"),
        principal: Principal::owner(),
        root: dir.path().to_owned(),
        agent: None,
    };
    let run = RunContext::new(
        Arc::new(session),
        snapshot,
        Arc::new(Policy::of(Profile::Ask)),
        Arc::new(NoApprover { remedy: String::new() }),
    );
    let one = async |n: usize| -> Duration {
        let started = Instant::now();
        let call = ToolCall {
            id: CallId::new(n.to_string()),
            name: "bench__noop".into(),
            arguments: RawArguments::Value(json!({"path": "src/lib.rs", "limit": 3})),
        };
        let outcomes = executor.run_calls(vec![call], &run).await;
        assert!(outcomes.iter().all(|outcome| outcome.ok), "the call failed");
        started.elapsed()
    };
    let mut rows = Vec::new();
    let started = Instant::now();
    let mut times = Vec::with_capacity(calls);
    for n in 0..calls {
        times.push(one(n).await);
    }
    rows.push(row("one after another", calls, &mut times, started.elapsed()));

    let started = Instant::now();
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..4 {
        let (executor, run) = (Arc::clone(&executor), run.clone());
        lanes.spawn(async move {
            let mut times = Vec::with_capacity(calls / 4);
            for n in 0..calls / 4 {
                let started = Instant::now();
                let call = ToolCall {
                    id: CallId::new(format!("{lane}-{n}")),
                    name: "bench__noop".into(),
                    arguments: RawArguments::Value(json!({"path": "src/lib.rs", "limit": 3})),
                };
                executor.run_calls(vec![call], &run).await;
                times.push(started.elapsed());
            }
            times
        });
    }
    let mut times: Vec<Duration> = lanes.join_all().await.into_iter().flatten().collect();
    let count = times.len();
    rows.push(row("4 at once", count, &mut times, started.elapsed()));
    Ok(rows)
}

fn row(what: &'static str, calls: usize, times: &mut [Duration], elapsed: Duration) -> Row {
    let (p50_us, p99_us) = (percentile_us(times, 0.5), percentile_us(times, 0.99));
    Row { what, calls, p50_us, p99_us, calls_per_s: per_second(calls, elapsed) }
}
