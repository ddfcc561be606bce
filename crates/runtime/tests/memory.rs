//! What requests to models hold while they wait, by the allocator's own count. A binary of its own with one test: the
//! allocator counts for the whole process.

use std::alloc::System;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::task::JoinSet;
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    IgnoreModelEvents, Message, ModelClient, ModelError, ModelErrorKind, ModelEvents, ModelPriority, ModelRequest,
    ModelResponse,
};
use toolwright_runtime::{ModelQueueConfig, ModelTraffic, TrafficConfig};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Agents that ask at once.
const AGENTS: usize = 200;
/// Bytes that may be left over from all rounds together, of whatever grew for good: less than a byte a request.
const SLACK: usize = 16 << 10;
/// Bytes that one waiting request may hold beyond itself: its task, its place in the queue, its timer.
const EACH: usize = 4 << 10;

/// Bytes that are allocated now.
fn held() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Answers after a tenth of a second; every fourth request fails in a way that may pass.
#[derive(Default)]
struct Provider(AtomicUsize);

#[async_trait]
impl ModelClient for Provider {
    async fn complete(
        &self,
        _model: &str,
        _request: &ModelRequest,
        _events: &dyn ModelEvents,
        _cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        match self.0.fetch_add(1, Ordering::Relaxed) % 4 {
            3 => Err(ModelError::new(ModelErrorKind::RateLimit, "not now")),
            _ => Ok(ModelResponse::default()),
        }
    }
}

/// All agents ask `model` once; returns what was held while most of them waited.
async fn round(traffic: &Arc<ModelTraffic>, model: impl Fn(usize) -> String) -> usize {
    use ModelPriority::{Background, Interactive, Low};
    let mut agents = JoinSet::new();
    for agent in 0..AGENTS {
        let (traffic, model) = (Arc::clone(traffic), model(agent));
        let request = ModelRequest {
            messages: vec![Message::user("q")],
            priority: [Low, Background, Interactive][agent % 3],
            ..ModelRequest::default()
        };
        agents.spawn(async move {
            let answer = traffic.complete(&model, &request, &IgnoreModelEvents, &Cancel::new()).await;
            answer.map(drop).map_err(|error| error.kind)
        });
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let waiting = held();
    // Some fail: after four refusals in a row, or because the queue is full.
    while agents.join_next().await.is_some() {}
    waiting
}

#[tokio::test(start_paused = true)]
async fn memory_grows_only_with_waiting_requests() {
    let queue = ModelQueueConfig { concurrent: 5, requests_per_minute: Some(600), ..ModelQueueConfig::default() };
    let small = ModelQueueConfig { max_waiting: 10, ..queue.clone() };
    let terms = [("p", queue), ("full", small)];
    let terms = terms.map(|(name, queue)| (name.to_owned(), TrafficConfig { queue: Some(queue), retry: None }));
    let traffic = ModelTraffic::new(Arc::new(Provider::default()), BTreeMap::from(terms));

    // Many requests to one model: what they hold is given back, round after round.
    let before = held();
    round(&traffic, |_| "p/m".into()).await;
    let first = held();
    let mut most = 0;
    for _ in 0..20 {
        most = most.max(round(&traffic, |_| "p/m".into()).await - first);
    }
    let after = held();
    assert!(after <= first + SLACK, "{after} bytes after 21 rounds, {first} after one, {before} before");
    assert!(most <= AGENTS * EACH, "{AGENTS} requests that wait hold {most} bytes");

    // More than may wait: those that are refused leave nothing behind.
    round(&traffic, |_| "full/m".into()).await;
    let first = held();
    for _ in 0..20 {
        round(&traffic, |_| "full/m".into()).await;
    }
    let after = held();
    assert!(after <= first + SLACK, "{after} bytes after 21 rounds of refusals, {first} after one");

    // Ever other models: their queues are kept only up to a bound.
    let name = |round: usize| move |agent: usize| format!("other/{round}-{agent}");
    for other in 0..4 {
        round(&traffic, name(other)).await;
    }
    let first = held();
    for other in 4..24 {
        round(&traffic, name(other)).await;
    }
    let after = held();
    let kept = first.saturating_sub(before);
    assert!(after <= first + kept, "{after} bytes after {} models, {first} after {}", 24 * AGENTS, 4 * AGENTS);
    drop(traffic);
    let end = held();
    assert!(end <= before + SLACK, "{end} bytes in the end, {before} before");
}
