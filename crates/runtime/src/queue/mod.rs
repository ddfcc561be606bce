//! Named queues, and the assignment of calls to them.

mod call_order;
mod priority_queue;
mod workspace;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::ModelPriority;
use toolwright_core::setting::TimeSpan;
use toolwright_core::tool_id::ToolId;

pub use call_order::{CallOrder, WorkspaceTurn};
pub(crate) use call_order::{HeldTurn, SharedUse};
pub(crate) use priority_queue::{PriorityQueue, Slot, WaitBounds};
pub(crate) use workspace::WorkspaceLocks;

/// The name of the queue of calls without their own queue.
pub const DEFAULT_QUEUE: &str = "default";

/// The priority of a call in its queue. The times below are shorter if the queue's [`QueueConfig::wait_timeout`] is
/// under 140 s: a sixth of it for each step down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// A caller waits for it.
    #[default]
    Interactive = 0,
    /// Jobs and batches of calls: after interactive calls, unless those arrive more than ten seconds later.
    Background = 1,
    /// Work without urgency, such as measurements: after all others, unless those arrive more than a minute later.
    Low = 2,
}

impl From<Priority> for ModelPriority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Interactive => Self::Interactive,
            Priority::Background => Self::Background,
            Priority::Low => Self::Low,
        }
    }
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// Calls that run at once.
    #[schemars(range(min = 1))]
    pub concurrent: usize,
    /// Calls that may wait, background calls included. When the queue is full, a new call fails at once; if its
    /// priority is higher, the newest waiting call of the lowest priority fails instead. With 0 a call that cannot
    /// start at once fails.
    #[serde(default = "max_waiting")]
    pub max_waiting: usize,
    /// How long a call may wait.
    #[serde(default = "wait_timeout", with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub wait_timeout: Duration,
    /// Calls that may start in any minute. Default: no limit.
    #[schemars(range(min = 1, max = 100_000))]
    pub per_minute: Option<usize>,
}

fn max_waiting() -> usize {
    1024
}

fn wait_timeout() -> Duration {
    Duration::from_secs(60)
}

impl Default for QueueConfig {
    /// Allows 32 at once, 1,024 waiting, for 60 seconds. Most calls wait for other systems, so the number of cores does
    /// not matter.
    fn default() -> Self {
        Self { concurrent: 32, per_minute: None, max_waiting: max_waiting(), wait_timeout: wait_timeout() }
    }
}

/// A tool or provider names an undefined queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("queue `{name}` is not defined; define it under `queues`, or use one of: {}", .defined.join(", "))]
pub struct UnknownQueue {
    /// The name.
    pub name: String,
    /// The defined queues.
    pub defined: Vec<String>,
}

impl From<UnknownQueue> for ToolError {
    fn from(unknown: UnknownQueue) -> Self {
        Self::new(ErrorKind::NotPermitted, unknown.to_string())
            .with_model_message("the tool is not set up correctly; its operator must fix that")
            .with_source(unknown)
    }
}

/// All queues. Calls without their own queue use one per provider, so that a provider that hangs delays no other.
#[derive(Debug)]
pub struct Queues {
    named: BTreeMap<String, Arc<PriorityQueue>>,
    default: QueueConfig,
    of_providers: Mutex<ProviderQueues>,
}

#[derive(Debug, Default)]
struct ProviderQueues {
    queues: HashMap<String, Arc<PriorityQueue>>,
    closed: Option<CancelCause>,
}

impl Default for Queues {
    fn default() -> Self {
        Self::new(BTreeMap::new())
    }
}

impl Queues {
    /// Creates the configured queues. The settings of one called `default` apply to providers without a queue.
    #[must_use]
    pub fn new(mut configs: BTreeMap<String, QueueConfig>) -> Self {
        let default = configs.entry(DEFAULT_QUEUE.to_owned()).or_default().clone();
        let queue = |(name, config): (String, QueueConfig)| {
            let queue = PriorityQueue::new(&*name, format!("queue `{name}`"), config);
            (name, queue)
        };
        Self { named: configs.into_iter().map(queue).collect(), default, of_providers: Mutex::default() }
    }

    /// Checks a binding at start-up.
    ///
    /// # Errors
    /// [`UnknownQueue`] with the existing names.
    pub fn check(&self, name: &str) -> Result<(), UnknownQueue> {
        self.named(name).map(drop)
    }

    fn named(&self, name: &str) -> Result<&Arc<PriorityQueue>, UnknownQueue> {
        self.named
            .get(name)
            .ok_or_else(|| UnknownQueue { name: name.to_owned(), defined: self.named.keys().cloned().collect() })
    }

    /// Returns the queue of a call: the named one, else its provider's own.
    pub(crate) fn queue_of(&self, queue: Option<&str>, provider: &str) -> Result<Arc<PriorityQueue>, UnknownQueue> {
        if let Some(queue) = queue {
            return self.named(queue).map(Arc::clone);
        }
        let mut of_providers = self.of_providers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = of_providers.queues.get(provider) {
            return Ok(Arc::clone(queue));
        }
        let what = format!("queue `{DEFAULT_QUEUE}` of {provider}");
        let queue = PriorityQueue::new(format!("{DEFAULT_QUEUE}:{provider}"), what, self.default.clone());
        if let Some(cause) = of_providers.closed {
            queue.close(cause);
        }
        of_providers.queues.insert(provider.to_owned(), Arc::clone(&queue));
        Ok(queue)
    }

    /// Ends all waits and admits nobody any more.
    pub(crate) fn close(&self, cause: CancelCause) {
        self.named.values().for_each(|queue| queue.close(cause));
        let mut of_providers = self.of_providers.lock().unwrap_or_else(PoisonError::into_inner);
        of_providers.closed.get_or_insert(cause);
        of_providers.queues.values().for_each(|queue| queue.close(cause));
    }
}

/// A slot in a queue that can be released for a while.
#[derive(Debug)]
pub(crate) struct PausableSlot {
    queue: Arc<PriorityQueue>,
    held: Mutex<HeldSlot>,
}

#[derive(Debug)]
struct HeldSlot {
    slot: Option<Slot>,
    /// The number of open questions.
    asking: usize,
}

impl PausableSlot {
    /// Wraps this slot.
    pub(crate) fn new(queue: Arc<PriorityQueue>, slot: Slot) -> Arc<Self> {
        Arc::new(Self { queue, held: Mutex::new(HeldSlot { slot: Some(slot), asking: 0 }) })
    }

    fn held(&self) -> MutexGuard<'_, HeldSlot> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an open question, and releases the slot until no question is open.
    pub(crate) fn question_opened(&self) {
        let mut held = self.held();
        held.asking += 1;
        // Dropping may pass the slot on at once.
        let given_back = held.slot.take();
        drop(held);
        drop(given_back);
    }

    /// Records that a question was answered or given up.
    pub(crate) fn answered(&self) {
        self.held().asking -= 1;
    }

    /// Takes a slot again, unless another question is open. A call that gets none in time continues without one,
    /// because failing would leave it half done.
    ///
    /// # Errors
    /// `canceled`, not retryable: a new attempt could repeat effects.
    pub(crate) async fn take_again(&self, tool: &ToolId, priority: Priority, cancel: &Cancel) -> Result<(), ToolError> {
        if self.held().asking > 0 {
            return Ok(());
        }
        match self.queue.take(tool, priority, cancel, |_| ()).await {
            Ok((slot, _)) => {
                let second = self.held().slot.replace(slot);
                drop(second);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::LimitExceeded => Ok(()),
            Err(error) => Err(error.not_retryable()),
        }
    }
}

const WINDOW: Duration = Duration::from_secs(60);

/// The starts of the last minute, up to the limit.
#[derive(Debug)]
pub(super) struct Rate {
    limit: usize,
    starts: VecDeque<Instant>,
}

impl Rate {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), starts: VecDeque::new() }
    }

    /// Returns when the next may start, if not now.
    pub(super) fn blocked_until(&mut self, now: Instant) -> Option<Instant> {
        while self.starts.front().is_some_and(|&start| now.saturating_duration_since(start) >= WINDOW) {
            self.starts.pop_front();
        }
        if self.starts.len() < self.limit { None } else { self.starts.front().map(|&start| start + WINDOW) }
    }

    pub(super) fn note_start(&mut self, now: Instant) {
        self.starts.push_back(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_wait_in_their_or_their_providers_queue() {
        let queues = Queues::new(BTreeMap::from([("db".to_owned(), QueueConfig::default())]));
        let queue = |queue, provider| queues.queue_of(queue, provider).expect("defined");
        assert!(Arc::ptr_eq(&queue(Some("db"), "a"), &queue(Some("db"), "b")));
        assert!(Arc::ptr_eq(&queue(None, "a"), &queue(None, "a")));
        assert!(!Arc::ptr_eq(&queue(None, "a"), &queue(None, "b")), "a provider that hangs holds up nobody else");
        assert!(queues.check("default").is_ok(), "it is there though nobody wrote it");
        let unknown = queues.check("nope").expect_err("unknown").to_string();
        assert!(unknown.contains("`nope`") && unknown.contains("db, default"), "{unknown}");
    }

    #[test]
    fn no_minute_has_more_starts_than_allowed() {
        let (mut rate, begin) = (Rate::new(2), Instant::now());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        for (now, blocked_until) in
            [(0, None), (10, None), (20, Some(60)), (59, Some(60)), (60, None), (61, Some(70)), (70, None)]
        {
            let blocked = rate.blocked_until(at(now));
            assert_eq!(blocked, blocked_until.map(at), "{now}");
            if blocked.is_none() {
                rate.note_start(at(now));
            }
            assert!(rate.starts.len() <= 2);
        }
    }
}
