//! Thousands of calls in a queue that runs three at once: how many run together, in which order, the memory left, and
//! how fast all of them are cancelled.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{Value, json};
use toolwright_core::{
    Cancel, CancelCause, Effects, Event, EventSink, Outcome, Services, Tool, ToolCall, ToolContext, ToolDefinition,
    ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::{QueueConfig, Queues, RunContext};

use crate::Failure;
use crate::app::{Toolwright, call};
use crate::memory::rss_mb;

const QUEUE: &str = "three";
/// The calls that the queue runs at once.
const PLACES: usize = 3;
/// How often the queue is filled.
const ROUNDS: usize = 5;

#[derive(Serialize)]
pub(crate) struct Row {
    what: String,
    calls: usize,
    /// The most calls that ran at once.
    most_at_once: usize,
    /// Calls whose task was polled after that of a later call. The runtime's threads decide that order, not the queue.
    starts_seen_out_of_order: usize,
    ms: f64,
    /// Resident memory before the round; an uncounted round comes first.
    rss_before_mb: f64,
    /// Resident memory while all calls wait, if measured.
    rss_full_mb: Option<f64>,
    /// Resident memory after all calls have ended.
    rss_after_mb: f64,
}

/// Observations of the calls.
#[derive(Default)]
struct CallLog {
    now: AtomicUsize,
    most: AtomicUsize,
    /// The calls in the order of their start events.
    order: Mutex<Vec<usize>>,
}

impl EventSink for CallLog {
    fn emit(&self, event: Event) {
        if let Event::ToolStarted { call, .. } = event {
            let n = call.as_str().parse().unwrap_or(usize::MAX);
            self.order.lock().unwrap_or_else(PoisonError::into_inner).push(n);
        }
    }
}

/// A tool that waits for its cancel if `stays` is set.
struct WaitTool(Arc<CallLog>);

#[async_trait]
impl Tool for WaitTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::parse("bench:work@1.0.0").unwrap_or_else(|error| unreachable!("{error}"));
        let schema = json!({"type": "object", "properties": {"stays": {"type": "boolean"}}});
        let mut definition = ToolDefinition::new(id, "Works.", Some(schema));
        definition.effects = Effects::READ;
        definition.queue = Some(QUEUE.into());
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let notes = &self.0;
        notes.most.fetch_max(notes.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        if arguments["stays"] == true {
            context.cancel.cancelled().await;
        } else {
            tokio::task::yield_now().await;
        }
        notes.now.fetch_sub(1, Ordering::SeqCst);
        Ok(ToolOutput::text("done"))
    }
}

pub(crate) fn run(calls: usize) -> Result<Vec<Row>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async { tokio::spawn(measure(calls.max(PLACES + 1))).await? })
}

async fn measure(calls: usize) -> Result<Vec<Row>, Failure> {
    let notes = Arc::new(CallLog::default());
    let config = QueueConfig {
        concurrent: PLACES,
        per_minute: None,
        max_waiting: calls,
        wait_timeout: Duration::from_secs(600),
    };
    let app = Toolwright::of(Arc::new(WaitTool(Arc::clone(&notes))), |options| {
        options.services = Arc::new(Services { events: Arc::clone(&notes) as _, ..(*options.services).clone() });
        options.queues = Queues::new(BTreeMap::from([(QUEUE.to_owned(), config)]));
        options.defaults.calls_per_turn = calls;
    })
    .await?;
    // An uncounted round, because memory left by the first one (such as the allocator's and SQLite's pages) is not the
    // queue's.
    drain(&app, &notes, calls, 0).await?;
    let mut rows = Vec::new();
    for round in 1..=ROUNDS {
        rows.push(drain(&app, &notes, calls, round).await?);
    }
    rows.push(cancel_all(&app, &notes, calls).await?);
    Ok(rows)
}

fn work(calls: usize, stays: usize) -> Vec<ToolCall> {
    (0..calls).map(|n| call(n.to_string(), "work", json!({"stays": n < stays}))).collect()
}

/// Runs all calls to their end.
async fn drain(app: &Toolwright, notes: &CallLog, calls: usize, round: usize) -> Result<Row, Failure> {
    let rss_before = rss_mb(std::process::id());
    let started = Instant::now();
    let outcomes = app.executor.run_calls(work(calls, 0), &app.run).await;
    let elapsed = started.elapsed();
    if let Some(failed) = outcomes.iter().find(|outcome| !outcome.ok) {
        return Err(format!("a call failed: {}", failed.text()).into());
    }
    drop(outcomes);
    Ok(row(rss_before, format!("round {round}"), notes, calls, elapsed))
}

/// Starts three calls that stay, queues all others, and cancels all of them at once.
async fn cancel_all(app: &Toolwright, notes: &CallLog, calls: usize) -> Result<Row, Failure> {
    let rss_before = rss_mb(std::process::id());
    let cancel = Cancel::new();
    let run = RunContext { cancel: cancel.clone(), ..app.run.clone() };
    let (executor, calling) = (Arc::clone(&app.executor), work(calls, PLACES));
    let task = tokio::spawn(async move { executor.run_calls(calling, &run).await });
    while notes.now.load(Ordering::SeqCst) < PLACES {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let full = rss_mb(std::process::id());
    let started = Instant::now();
    cancel.cancel(CancelCause::User);
    let outcomes: Vec<Outcome> = task.await?;
    let elapsed = started.elapsed();
    if outcomes.len() != calls {
        return Err(format!("{} outcomes for {calls} calls", outcomes.len()).into());
    }
    drop(outcomes);
    Ok(Row { rss_full_mb: Some(full), ..row(rss_before, "cancel of all".to_owned(), notes, calls, elapsed) })
}

fn row(rss_before_mb: f64, what: String, notes: &CallLog, calls: usize, elapsed: Duration) -> Row {
    let order = std::mem::take(&mut *notes.order.lock().unwrap_or_else(PoisonError::into_inner));
    Row {
        what,
        calls,
        most_at_once: notes.most.swap(0, Ordering::SeqCst),
        starts_seen_out_of_order: order.windows(2).filter(|pair| pair[0] > pair[1]).count(),
        ms: (elapsed.as_secs_f64() * 1e4).round() / 10.0,
        rss_before_mb,
        rss_full_mb: None,
        rss_after_mb: rss_mb(std::process::id()),
    }
}
