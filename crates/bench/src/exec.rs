//! The executor around a tool that does nothing, on two workers, with validation, policy, queue, cache look-up,
//! observed events and the SQLite ledger.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{Value, json};
use toolwright_core::call::CallMeta;
use toolwright_core::store::LedgerStore as _;
use toolwright_core::{Effects, RunInput, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput};

use toolwright_runtime::{RunContext, RunVariables};

use crate::Failure;
use crate::app::{EmptyCache, Toolwright, arguments, call};
use crate::stats::{per_second, percentile_us};

#[derive(Serialize)]
pub(crate) struct Row {
    what: &'static str,
    calls: usize,
    p50_us: f64,
    p99_us: f64,
    calls_per_s: f64,
    /// Rows of the ledger at the end, from all calls so far.
    ledger_rows: u64,
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
        definition.cache_ttl = Some(Duration::from_secs(60));
        definition
    }

    async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text("done"))
    }
}

pub(crate) fn run(calls: usize) -> Result<Vec<Row>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Runs on a worker, as the calls of a gateway do.
    runtime.block_on(async { tokio::spawn(measure(calls.max(16))).await? })
}

async fn measure(calls: usize) -> Result<Vec<Row>, Failure> {
    let app = Arc::new(Toolwright::of(Arc::new(Noop), |options| options.cache = Some(Arc::new(EmptyCache))).await?);
    lane(&app, "warm-up", 1_000).await?;
    let mut rows = Vec::new();
    for (what, lanes) in [("one after another", 1), ("2 at once", 2), ("4 at once", 4)] {
        let started = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..lanes {
            let app = Arc::clone(&app);
            tasks.spawn(async move { lane(&app, &format!("{lanes}-{n}"), calls / lanes).await });
        }
        let mut times = Vec::with_capacity(calls);
        while let Some(lane) = tasks.join_next().await {
            times.extend(lane??);
        }
        // Writing the ledger is part of the work.
        app.store.flush().await?;
        let elapsed = started.elapsed();
        rows.push(Row {
            what,
            calls: times.len(),
            p50_us: percentile_us(&mut times, 0.5),
            p99_us: percentile_us(&mut times, 0.99),
            calls_per_s: per_second(times.len(), elapsed),
            ledger_rows: app.store.totals().await?.tool_calls,
        });
    }
    for (what, refers) in [("50 at once, a call", false), ("a plan of 50, a call", true)] {
        let started = Instant::now();
        let rounds = calls.div_ceil(PLANNED);
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds {
            times.push(together(&app, round, refers).await?);
        }
        app.store.flush().await?;
        rows.push(Row {
            what,
            calls: rounds * PLANNED,
            p50_us: percentile_us(&mut times, 0.5),
            p99_us: percentile_us(&mut times, 0.99),
            calls_per_s: per_second(rounds * PLANNED, started.elapsed()),
            ledger_rows: app.store.totals().await?.tool_calls,
        });
    }
    Ok(rows)
}

/// The calls of a plan.
const PLANNED: usize = 50;

/// Makes the calls of a plan together and returns the time per call. With `refers`, each call after the first ten
/// refers to the stored result of an earlier one.
async fn together(app: &Toolwright, round: usize, refers: bool) -> Result<Duration, Failure> {
    let planned = (0..PLANNED).map(|n| {
        let mut arguments = arguments();
        if !refers {
            return call(format!("p{round}-{n}"), "noop", arguments);
        }
        if n >= 10 {
            arguments["path"] = format!("†state.v{}", n - 10).into();
        }
        let meta = CallMeta { output_path: Some(format!("v{n}")), ..CallMeta::default() };
        call(format!("p{round}-{n}"), "noop", arguments).with_meta(meta)
    });
    let variables = RunVariables::in_memory(RunInput::default());
    let run = RunContext { variables: refers.then_some(variables as _), is_plan: true, ..app.run.clone() };
    let planned: Vec<_> = planned.collect();
    let started = Instant::now();
    let outcomes = app.executor.run_calls(planned, &run).await;
    let took = started.elapsed();
    match outcomes.iter().find(|outcome| !outcome.ok) {
        Some(failed) => Err(failed.text().into()),
        None => Ok(took / 50),
    }
}

/// Makes calls one after another and returns their times.
async fn lane(app: &Toolwright, name: &str, calls: usize) -> Result<Vec<Duration>, Failure> {
    let mut times = Vec::with_capacity(calls);
    for n in 0..calls {
        let call = call(format!("{name}-{n}"), "noop", arguments());
        let started = Instant::now();
        let outcomes = app.executor.run_calls(vec![call], &app.run).await;
        times.push(started.elapsed());
        if !outcomes.iter().all(|outcome| outcome.ok) {
            return Err("a call failed".into());
        }
    }
    Ok(times)
}
